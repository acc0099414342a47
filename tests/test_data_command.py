"""`fedkin data`, and the example of five hospitals from its files to a report."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from command_line import Command, Refusal
from fedkin.data import Encoding, from_folder
from fedkin.errors import BadInput
from fedkin.experiments.grid import experiment_of, experiment_on, plans
from fedkin.experiments.run import run
from fedkin.reports.data_view import data_views

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
NAMES = ("coast", "hilltop", "lakeside", "north", "south")


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the example are relative to the repository."""
    monkeypatch.chdir(HOSPITALS.parents[1])


def shown(source: str | Path | None, width: int = 80, **settings: str) -> str:
    """What the command shows on a terminal of 80 columns."""
    console = Console(width=width, markup=False, highlight=False, emoji=False, color_system=None)
    with console.capture() as capture:
        for view in data_views(source, settings):
            console.print(view)
    return capture.get()


def test_the_example_is_what_its_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HOSPITALS))
    import make  # type: ignore[import-not-found]

    make.main(tmp_path)
    for name in NAMES:
        assert (tmp_path / f"{name}.csv").read_text() == (HOSPITALS / f"{name}.csv").read_text()
    sys.modules.pop("make")


def test_hospitals_are_shown_in_80_columns() -> None:
    text = shown(HOSPITALS, target="readmitted")
    assert max(map(len, text.splitlines())) <= 80
    assert "5 clients, 640 rows, 15 features from 9 columns" in " ".join(text.split())
    assert "to predict: 'readmitted', one of 2 classes: no, yes" in text
    for words in ("hilltop     40        32", "creatinine  number", "emergency   boolean", "admitted    date"):
        assert words in text, words
    assert "column 'patient' is left out: an identifier" in text
    assert "Missing values by client" in text


def test_the_page_shows_what_the_command_shows() -> None:
    page = (HOSPITALS.parents[1] / "docs" / "data.md").read_text()
    text = shown("examples/hospitals", target="readmitted")
    block = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    assert block in page, block


def test_what_is_worth_a_look(tmp_path: Path) -> None:
    """Grams at one hospital, a single class at another, a constant column, a laboratory that one hospital lacks."""
    shutil.copytree(HOSPITALS, tmp_path / "h", ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    rng = np.random.default_rng(0)
    for name in NAMES:
        lines = (tmp_path / "h" / f"{name}.csv").read_text().splitlines()
        rows = [lines[0] + ",weight,country,lab"]
        for line in lines[1:]:
            weight = rng.normal(75, 8) * (1000 if name == "south" else 1)
            rows.append(f"{line},{weight:.1f},it,{'' if name == 'coast' else rng.integers(9)}")
        text = "\n".join(rows)
        (tmp_path / "h" / f"{name}.csv").write_text(text.replace("yes", "no") if name == "hilltop" else text)
    text = " ".join(shown(tmp_path / "h", target="readmitted", drop="patient").split())
    assert "• column 'weight' is about 1,0" in text
    assert "times larger at client 'south' than elsewhere: do the units agree?" in text
    assert "• column 'country' is left out: constant, always 'it'" in text
    assert "• client 'coast' has no value of column 'lab'" in text
    assert "• client 'hilltop' has rows of one class only ('no')" in text
    assert "patient" not in text


def test_numbers_to_predict_and_many_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{i % 40},{rng.normal():.3f},{rng.normal():.3f},{'' if i % 7 else 1 + i % 5}" for i in range(400)]
    (tmp_path / "all.csv").write_text("client,a,y,b\n" + "\n".join(rows))
    text = shown(tmp_path / "all.csv")
    assert "to predict: 'y', a number" in text
    assert "Clients, the first 30 of 40; they have 10 to 10 rows" in text
    assert "lowest" in text
    assert "median" in text


def test_data_sets_and_experiments_are_shown(tmp_path: Path) -> None:
    text = shown("digits")
    assert "1,438 training and 359 testing samples, 8 × 8 images" in text
    assert "pixels: (x − 0.5) / 0.5" in text
    assert "one of 10 classes" in text
    assert shown(None) == text, "the embedded experiment uses the digits"
    np.savez(tmp_path / "mine.npz", x=np.arange(20.0).reshape(10, 2), y=np.linspace(0, 1, 10), site=np.arange(10) % 3)
    text = shown(tmp_path / "mine.npz")
    assert "standardised" in text
    assert "to predict: y, a number" in text
    assert "group 'site': 3 in the training part" in text
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=[0, 1, 0, 1])
    np.savez(tmp_path / "b.npz", x=np.eye(4), y=[0, 1, 0, 1])
    (tmp_path / "mine.npz").unlink()
    assert "2 clients, 8 rows, 4 features, pixels" in " ".join(shown(tmp_path).split())


def test_the_command_refuses_in_a_sentence(refused: Refusal, tmp_path: Path) -> None:
    assert "no column called target or label" in refused("data", str(HOSPITALS))
    assert "did you mean 'readmitted'" in refused("data", str(HOSPITALS), "--target", "readmited")
    assert "no column 'id' to leave out" in refused("data", str(HOSPITALS), "--target", "readmitted", "--drop", "id")
    assert "there is no file" in refused("data", str(tmp_path / "nothing.csv"))
    assert "there is no data set" in refused("data", str(tmp_path / "nothing"))
    assert "change it there, or with --set" in refused("data", "mine.toml", "--target", "y")
    assert "in one string" in refused("data", str(HOSPITALS), "--set", 'data.drop=["a", "b"]')


def test_a_take_part_larger_than_the_default_number_of_clients() -> None:
    """100 clients are the default of a partition, which does not concern a folder."""
    settings = {"data": {"source": str(HOSPITALS), "target": "readmitted"}, "take_part": 120}
    assert plans(settings)[0].config.take_part == 120
    with pytest.raises(BadInput, match="take_part = 120 is more than the 100 clients"):
        plans({"take_part": 120})


def test_from_files_to_a_report(tmp_path: Path, invoke: Command) -> None:
    """The commands of docs/data.md, with fewer rounds."""
    seen = invoke("data", "examples/hospitals/experiment.toml")
    assert seen.returncode == 0, seen.stderr
    assert "5 clients, 640 rows" in seen.stdout
    few = ["--set", "rounds=2", "--set", "seed=[0,1]", "--set", "step_size=0.1", "--out", str(tmp_path)]
    done = invoke("run", "examples/hospitals/experiment.toml", *few)
    assert done.returncode == 0, done.stderr
    told = invoke("report", str(tmp_path / "hospitals"))
    assert told.returncode == 0, told.stderr
    assert "100 clients" not in told.stdout, "the number that a partition would have made"
    assert "own test samples" in told.stdout, "the answer in words"
    assert (tmp_path / "hospitals" / "report.html").stat().st_size > 100_000
    left = invoke("export", str(tmp_path / "hospitals" / "kin-seed=0"), "--all", "--out", str(tmp_path / "m"))
    assert left.returncode == 0, left.stderr
    assert sorted(path.stem for path in (tmp_path / "m").iterdir()) == [
        "coast",
        "hilltop",
        "lakeside",
        "north",
        "south",
    ]
    graph = invoke("graph", "examples/hospitals/experiment.toml", *few)
    assert graph.returncode == 0, graph.stderr
    assert "examples/hospitals, 5 clients\n" in graph.stdout
    folders = sorted((tmp_path / "hospitals").glob("fedavg-*"))
    kept = [Encoding.from_json((folder / "encoding.json").read_text()) for folder in folders]
    assert [
        from_folder(HOSPITALS, target="readmitted", drop=["patient"], validation=0.2, seed=s).encoding for s in (0, 1)
    ] == kept
    assert kept[0] != kept[1], "seeds redraw the training rows"


def test_a_comparison_on_a_folder(tmp_path: Path, invoke: Command) -> None:
    """Without an experiment file; what is not said has its default, not that of the embedded experiment."""
    few = ["--set", "rounds=2", "--trials", "1", "--seeds", "1", "--algorithm", "kin", "--out", str(tmp_path)]
    done = invoke("compare", "examples/hospitals", "--target", "readmitted", "--drop", "patient", *few)
    assert done.returncode == 0, done.stderr
    assert "hospitals-compared, chosen on validation: hospitals, softmax" in " ".join(done.stdout.split())
    (kin,) = (tmp_path / "hospitals-compared").glob("kin-*/config.json")
    config = json.loads(kin.read_text())
    assert config["data"]["target"] == "readmitted"
    assert config["data"]["drop"] == "patient"
    assert config["partition"]["kinds"] == 0
    words, _, command = done.stdout.splitlines()[-1].partition(": ")
    assert words.startswith(("The models of the clients, by ", "The model, by "))
    exported = invoke(*shlex.split(command)[1:], *["--out", str(tmp_path / "model")] if "--all" not in command else [])
    assert exported.returncode == 0, exported.stderr
    shown = invoke("graph", "examples/hospitals", "--target", "readmitted", "--out", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "5 clients" in shown.stdout


@pytest.mark.parametrize("command", ["run", "compare", "graph"])
def test_a_source_of_data_is_refused_in_a_sentence(refused: Refusal, tmp_path: Path, command: str) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert "no column called target or label" in refused(command, str(HOSPITALS), *out)
    assert "there is no data set" in refused(command, str(tmp_path / "hops"), "--target", "died", *out)
    assert "target and drop are about data: give a folder" in refused(command, "--target", "y", "--drop", "z", *out)
    assert "change it there, or with --set" in refused(command, "mine.toml", "--client", "site", *out)
    assert "there is no file" in refused(command, str(tmp_path / "nothing"), *out)


def test_an_experiment_on_data_has_their_name(tmp_path: Path) -> None:
    names = {"of.2024": "of.2024", ".hidden": "hidden"}
    for folder in names:
        (tmp_path / folder).mkdir()
    assert {folder: experiment_on(tmp_path / folder)["name"] for folder in names} == names
    assert experiment_on(tmp_path / "visits.csv", {"client": "site"}) == {
        "name": "visits",
        "data": {"source": str(tmp_path / "visits.csv"), "client": "site"},
    }
    assert experiment_on("/")["name"] == "experiment"
    assert plans(experiment_of("digits"))[0].config.name == "digits"


def test_a_number_is_learned_from_csv_files(tmp_path: Path) -> None:
    """The patient's age: the mean squared error falls below the variance, which is that of the mean."""
    settings = {
        "name": "age",
        "rounds": 15,
        "data": {"source": str(HOSPITALS), "target": "age", "task": "regression", "drop": "patient, readmitted"},
        "local": {"step_size": 0.1, "epochs": 2, "batch_size": 32},
    }
    (result,) = run(settings, out=tmp_path)
    errors = [record["test_mse"] for record in result.rounds]
    tested = from_folder(HOSPITALS, target="age", task="regression", drop=["patient", "readmitted"])
    ages = tested.test.y.double().numpy() * tested.target.scale
    assert errors[-1] < errors[0]
    assert errors[-1] < ages.var()


def test_a_changed_cell_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    shutil.copytree(HOSPITALS, folder, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    settings = {
        "name": "h",
        "rounds": 2,
        "data": {"source": str(folder), "target": "readmitted", "drop": "patient"},
        "local": {"step_size": 0.1, "epochs": 1},
    }
    (before,) = run(settings, out=tmp_path / "out")
    (again,) = run(settings, out=tmp_path / "out")
    assert again.summary == before.summary
    file = folder / "north.csv"
    text = file.read_text()
    header, first, rest = text.split("\n", 2)
    cells = first.split(",")
    place = header.split(",").index("systolic")
    cells[place] = str(int(cells[place]) + 1)
    file.write_text("\n".join([header, ",".join(cells), rest]))
    with pytest.raises(BadInput, match=r"other data.*--fresh"):
        run(settings, out=tmp_path / "out")
    file.write_text(text)
    (same,) = run(settings, out=tmp_path / "out")
    assert same.summary == before.summary
