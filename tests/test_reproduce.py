"""Reproductions: each can be carried out and continued, and its numbers are those of the runs."""

import csv
import json
import math
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkin import cli
from fedkin.errors import BadInput
from fedkin.experiments import run as experiment
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.progress import Silent
from fedkin.paper.controls import interval_cell
from fedkin.paper.earlier import with_earlier_cells
from fedkin.paper.figures import _graphs, curve_figures
from fedkin.paper.reproduce import Context, Output, merged, read_reproduction, reproduce, reproduction_names
from fedkin.reports.groups import speed_up
from fedkin.reports.tables import Cell, Table, text_cell

SHARED = {"table", "times", "curves", "classes"}  # show the same runs


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.mark.parametrize("name", reproduction_names())
def test_every_one_can_be_tried_quickly(name: str, out: Path) -> None:
    began = time.monotonic()
    shown = reproduce(name, quick=True, out=out)
    assert time.monotonic() - began < 120
    written = {path.name for path in shown.files}
    assert f"{name}.md" in written
    assert all(path.stat().st_size > 100 for path in shown.files)
    pictures = {path.stem for path in shown.files if path.suffix == ".png"}
    assert pictures == {path.stem for path in shown.files if path.suffix == ".pdf"}
    assert shown.tables or pictures
    page = (out / "quick" / f"{name}.md").read_text()
    assert all(f"]({picture}.png)" in page for picture in pictures)
    assert f"`fedkin reproduce {name} --quick`" in page
    assert "embedded digits" in page  # these numbers are not results
    for table in shown.tables:
        assert table.cells
        assert all("not run" not in cell.text for row in table.cells for cell in row)


def rows(shown: Output, table: int = 0) -> list[dict[str, str]]:
    found = shown.tables[table]
    return [dict(zip(found.columns, (cell.text for cell in row), strict=True)) for row in found.cells]


def summary(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_the_table_says_what_the_runs_say(out: Path) -> None:
    shown = reproduce("table", quick=True, out=out)
    ours = [row for row in rows(shown) if row[""] == "here"]
    theirs = [row for row in rows(shown) if row[""] == "paper"]
    assert [row["algorithm"] for row in ours[::2]] == [
        "FedAvg", "FedProx α=1", "FedKin β=0.9", "FedKin β=0.7", "FedKin β=0.5"]  # fmt: skip
    assert len(theirs) == 8  # the paper shows no FedProx
    place = out / "quick" / "cifar10-imbalanced"
    base, run = summary(place / "fedavg-model=softmax"), summary(place / "fedkin-beta=0.5-model=softmax")
    ratio = base["rounds_to_threshold"] / run["rounds_to_threshold"]
    assert ours[8]["digits for CIFAR-10 imbalanced"] == (
        f"{100 * run['final_test_accuracy']:.2f} / {run['rounds_to_threshold']} ({ratio:.1f}×)"
    )
    assert theirs[-2]["digits for CIFAR-10 imbalanced"] == "37.49 / 15 (1.3×)"
    with (out / "quick" / "table.csv").open() as file:
        (line,) = [
            r
            for r in csv.DictReader(file)
            if (r["experiment"], r["loss"], r["algorithm"]) == ("cifar10-imbalanced", "convex", "FedKin β=0.5")
        ]
    assert float(line["accuracy"]) == pytest.approx(run["final_test_accuracy"])
    assert float(line["paper accuracy"]) == 0.3749
    assert float(line["rounds − paper"]) == run["rounds_to_threshold"] - 15


def test_a_quick_trial_names_its_own_data(out: Path) -> None:
    """The embedded digits are not called CIFAR-10, neither in titles nor in tables; the full version is."""
    for name in reproduction_names():
        for part in read_reproduction(name, quick=True).parts:
            assert not part.label.startswith("CIFAR"), f"{name}: {part.label}"
    assert [part.data for part in read_reproduction("table").parts] == ["CIFAR-10", "CIFAR-10", "digits", "digits"]
    what = read_reproduction("curves", quick=True)
    experiment.run(what.parts[0].settings, out=out / "quick")
    figures = curve_figures(Context(what, out / "quick", Preparation(), quick=True)).figures
    title = figures["digits-for-cifar-10"].get_suptitle()
    assert title == "digits for CIFAR-10"


def test_runs_are_shared_and_kept(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reproduce("table", quick=True, out=out)
    monkeypatch.setattr("fedkin.paper.reproduce._save_figures", lambda *_: [])  # drawn in the tests of each
    monkeypatch.setattr(experiment, "play", lambda *_: pytest.fail("a finished run was carried out again"))
    for name in SHARED:
        reproduce(name, quick=True, out=out)


def test_a_page_keeps_the_cells_that_were_not_run(tmp_path: Path) -> None:
    page = tmp_path / "PAGE.md"
    names = ["digits for CIFAR-10 balanced", "digits for CIFAR-10 imbalanced", "digits balanced", "digits imbalanced"]
    lines = [
        f"Before.\n<!-- reproduce published -->\n| algorithm | loss |  | {' | '.join(names)} |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| FedAvg | convex | here | 12.34 / 5 (1.0×) | 1 / 2 | not run | 3 / 4 |",
        "|  |  | paper | 38.70 / 11 (1.0×) | a | b | c |",
        "| FedAvg | nonconvex | here | 6 / 7 | 8 / 9 | not run | not run |\n",
        "- CIFAR-10 balanced, convex, 4 of 4 cells: rounds at most 0\n",
        "Written on 2026-01-02 by `fedkin`.\n<!-- end published -->\nAfter.\n",
    ]
    page.write_text("\n".join(lines))
    parts = ["mnist-balanced-published"]
    new = rows(reproduce("published", quick=True, out=tmp_path / "out", only=parts, page=page))
    text = page.read_text()
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    balanced = new[0]["digits balanced"]
    assert "/" in balanced
    assert lines[2] == f"| FedAvg | convex | here | 12.34 / 5 (1.0×) | 1 / 2 | {balanced} | 3 / 4 |"
    assert "| FedAvg | nonconvex | here | 6 / 7 | 8 / 9 | not run | not run |" in lines
    assert "- CIFAR-10 balanced, convex, 4 of 4 cells: rounds at most 0" in text
    assert "- Cells of 2026-01-02: all others." in text
    assert f"- Cells of {date.today().isoformat()}: digits balanced, convex." in text
    reproduce("published", quick=True, out=tmp_path / "out", only=parts, run=False, page=page)
    assert page.read_text() == text

    # Once none of the former cells is left, nothing is said about them.
    balanced_only = [
        "<!-- reproduce published -->\n| algorithm | loss |  | digits balanced |",
        "| --- | --- | --- | --- |",
        "| FedAvg | convex | here | 3 / 4 |\n",
        "Written on 2026-01-02 by `fedkin`.\n<!-- end published -->",
    ]
    table = Table("", ("algorithm", "loss", "", "digits balanced"), (_texts("FedAvg", "convex", "here", "5 / 6"),))
    found = with_earlier_cells(Output((table,), notes=("A goal.",)), "\n".join(balanced_only))
    assert (found.tables[0].rows, found.notes) == (table.rows, ("A goal.",))


def test_days_of_cells_that_were_carried_out_again_are_left_out() -> None:
    section = [
        "| algorithm | loss |  | a | b | c |",
        "| --- | --- | --- | --- | --- | --- |",
        "| FedAvg | convex | here | 1 | 2 | 3 |\n",
        "- Cells of 2026-01-03: a, convex; b, convex.",
        "- Cells of 2026-01-02: all others.",
    ]
    columns = ("algorithm", "loss", "", "a", "b", "c")
    today = date.today().isoformat()

    def days(*cells: str) -> tuple[str, ...]:
        table = Table("", columns, (_texts("FedAvg", "convex", "here", *cells),))
        return with_earlier_cells(Output((table,), notes=("A goal.",)), "\n".join(section)).notes[1:]

    others = "Cells of 2026-01-02: all others."
    assert days("not run", "5", "not run") == (
        f"Cells of {today}: b, convex.",
        "Cells of 2026-01-03: a, convex.",
        others,
    )
    assert days("4", "5", "not run") == (f"Cells of {today}: a, convex; b, convex.", others)
    assert days("4", "not run", "6") == (f"Cells of {today}: a, convex; c, convex.", "Cells of 2026-01-03: b, convex.")
    assert days("4", "5", "6") == ()


def _texts(*words: str) -> tuple[Cell, ...]:
    return tuple(map(text_cell, words))


def test_a_part_at_a_time(tmp_path: Path) -> None:
    shown = reproduce("published", quick=True, out=tmp_path, only=["mnist-balanced-published"])
    row = rows(shown)[0]
    assert row["digits for CIFAR-10 balanced"] == "not run"
    assert "/" in row["digits balanced"]
    again = reproduce("published", quick=True, out=tmp_path, run=False)
    assert [cell.text for cell in again.tables[0].cells[0]] == [cell.text for cell in shown.tables[0].cells[0]]
    with pytest.raises(BadInput, match="there are no runs of table"):
        reproduce("table", quick=True, out=tmp_path, run=False)
    with pytest.raises(BadInput, match="has no part 'mnist'"):
        reproduce("published", quick=True, out=tmp_path, only=["mnist"])


def test_an_unfinished_run_is_shown_as_such(tmp_path: Path) -> None:
    reproduce("published", quick=True, out=tmp_path, only=["mnist-balanced-published"])
    folder = tmp_path / "quick" / "mnist-balanced-published" / "fedavg-model=softmax"
    (folder / "summary.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:3]))
    shown = reproduce("published", quick=True, out=tmp_path, run=False)
    assert rows(shown)[0]["digits balanced"] == "running, round 2 of 8"


def test_a_damaged_run_is_repeated_with_fresh(tmp_path: Path) -> None:
    """The error names an option that is there."""
    part: dict[str, Any] = {"quick": True, "out": tmp_path, "only": ["mnist-balanced-published"]}
    first = reproduce("published", **part)
    config = tmp_path / "quick" / "mnist-balanced-published" / "fedavg-model=softmax" / "config.json"
    config.write_text("{")
    with pytest.raises(BadInput, match=r"config\.json is damaged: run again with --fresh"):
        reproduce("published", **part)
    command = ["reproduce", "published", "--quick", "--fresh", "--out", str(tmp_path), "--only", *part["only"]]
    assert CliRunner().invoke(cli.app, command).exit_code == 0
    again = reproduce("published", run=False, **part)
    assert [cell.text for cell in again.tables[0].cells[0]] == [cell.text for cell in first.tables[0].cells[0]]


@pytest.mark.parametrize("damage", [b"", b"half a file"])
def test_kept_distributions_are_those_of_the_settings(tmp_path: Path, damage: bytes) -> None:
    """What was computed with other settings, or is damaged, is computed again."""
    what = read_reproduction("misalignment", quick=True)
    part = replace(what.parts[0], settings=merged(what.parts[0].settings, {"seed": 0}))
    other = replace(part, settings=merged(part.settings, {"partition": {"scheme": "paper"}}))
    context = Context(what, tmp_path, Preparation(None, Silent()), quick=True)
    first = _graphs(context, part)
    assert [pairs.tolist() for _, pairs, _ in _graphs(context, part)] == [pairs.tolist() for _, pairs, _ in first]
    assert _graphs(context, other)[0][1].tolist() != first[0][1].tolist()
    file = next((tmp_path / part.name).glob("*.npz"))
    file.write_bytes(damage)
    assert [pairs.tolist() for _, pairs, _ in _graphs(context, part)] == [pairs.tolist() for _, pairs, _ in first]


def test_all_describe_experiments_that_exist() -> None:
    for name in reproduction_names():
        for part in read_reproduction(name).parts:
            for plan in plans(part.settings):
                assert plan.config.name == part.name
    with pytest.raises(BadInput, match=r"no reproduction 'tabel'.*table"):
        read_reproduction("tabel")


def test_the_main_table_is_the_paper_s_grid() -> None:
    """Its Table of hyper-parameters: E, B, γ, λ, C, T, a, b, c and the seed."""
    runs = [plan.config for part in read_reproduction("table").parts for plan in plans(part.settings)]
    fedkin = [c for c in runs if c.algorithm.name != "fedprox"]
    assert len(fedkin) == 32
    for c in runs:
        assert (c.rounds, c.partition.clients, c.seed, c.take_part) == (200, 100, 0, "all")
        assert (c.local.epochs, c.local.batch_size, c.local.step_size, c.local.l2) == (10, 256, 1e-3, 1e-4)
        assert (c.graph.weights, c.graph.kind, c.local.clip) == ("adjacency", "similarity", math.inf)
        assert c.threshold == {"cifar10": 0.30, "mnist": 0.75}[c.data.source]
        balanced = (c.partition.class_imbalance, c.partition.size_imbalance) == (0, 0)
        most = {"cifar10": (100, 1), "mnist": (10, 1)}[c.data.source]
        assert balanced or (c.partition.class_imbalance, c.partition.size_imbalance) == most
    printed = read_reproduction("table").printed
    assert sum(len(kind) for part in printed.values() for kind in part.values()) == 32


def test_merging() -> None:
    below = {"a": 1, "b": {"c": 2, "d": 3}}
    assert merged(below, {"b": {"c": 5}, "e": 6}) == {"a": 1, "b": {"c": 5, "d": 3}, "e": 6}
    assert below == {"a": 1, "b": {"c": 2, "d": 3}}
    assert merged({"b": [1]}, {"b": {"c": 1}}) == {"b": {"c": 1}}


def test_intervals_by_hand() -> None:
    # mean 3, deviation √2.5, t with 4 degrees of freedom 2.776: 2.776 · 1.5811 / √5 = 1.963
    cell = interval_cell([1, 2, 3, 4, 5], "{:.2f}")
    assert cell.text == "3.00 ± 1.96"
    assert cell.spread == pytest.approx(1.9632, abs=1e-4)
    assert interval_cell([4, math.nan], "{:.1f}").text == "4.0 (1 of 2)"
    assert interval_cell([math.nan], "{:.1f}").value is None
    assert interval_cell([-1, -1], "{:+.1f}").text == "-1.0 ± 0.0"
    assert speed_up(20, 15) == pytest.approx(4 / 3)
    assert math.isnan(speed_up(20, 0))


def test_distances_are_taken_seed_by_seed(out: Path) -> None:
    shown = reproduce("controls", quick=True, out=out)
    table, steps = shown.tables[:2]
    by_name = {row[0].text: row for row in table.cells}
    place = out / "quick"
    apart = [
        100
        * (
            summary(place / "cifar10-step-sizes" / f"fedavg-seed={s}-step_size=0.004")["final_test_accuracy"]
            - summary(place / "cifar10-graph-kinds" / f"fedkin-beta=0.5-graph=similarity-seed={s}")[
                "final_test_accuracy"
            ]
        )
        for s in (0, 1)
    ]
    assert by_name["FedAvg, γ = 0.004"][5].value == pytest.approx(np.mean(apart))
    assert by_name["FedKin β=0.5"][5].text == ""
    place = place / "cifar10-step-sizes"
    at_half = [
        100
        * (
            summary(place / f"fedkin-beta=0.5-seed={s}-step_size=0.004")["final_test_accuracy"]
            - summary(place / f"fedavg-seed={s}-step_size=0.008")["final_test_accuracy"]
        )
        for s in (0, 1)
    ]
    assert [row[0].value for row in steps.cells] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]
    assert steps.cells[3][4].value == pytest.approx(np.mean(at_half))


def test_the_command(out: Path) -> None:
    listed = CliRunner().invoke(cli.app, ["reproduce"])
    assert all(name in listed.output for name in reproduction_names())
    shown = CliRunner().invoke(cli.app, ["reproduce", "times", "--quick", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "Running times" in shown.output
    assert f"wrote {out / 'quick' / 'times.md'}" in shown.output


def test_a_section_of_a_page(out: Path, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\n<!-- reproduce classes -->\nold\n<!-- end classes -->\n\nMore.\n")
    reproduce("classes", quick=True, out=out, page=page)
    text = page.read_text()
    assert text.startswith("# Results\n\n<!-- reproduce classes -->\nIn the paper: ")
    assert text.endswith("<!-- end classes -->\n\nMore.\n")
    assert "old" not in text
    assert "](docs/results/classes.png)" in text
    assert (tmp_path / "docs" / "results" / "classes.png").exists()
