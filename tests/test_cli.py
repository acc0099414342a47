"""The command, as a newcomer uses it."""

import os
from pathlib import Path

import numpy as np
import pytest

from command_line import FEW, Command, Refusal, fedkin

STEPS = ["--set", "step_size=[0.1, 0.3]"]


def test_run_and_report(tmp_path: Path, invoke: Command) -> None:
    done = invoke("run", *FEW, *STEPS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "16 runs" in done.stdout
    assert "fedkin-beta=0.5-step_size=0.3:" in done.stdout
    assert done.stdout.count("with own models") == 10  # alone, kin and three fine-tuned ones
    assert "fedkin report results/demo" in done.stdout
    again = invoke("run", *FEW, *STEPS, cwd=tmp_path)
    assert again.stdout.count("(kept)") == 16
    report = invoke("report", "results/demo", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "demo, chosen on validation: digits, 5 clients, 4 kinds rotated" in report.stdout
    for word in (
        "Alone",
        "FedAvg",
        "FineTuned",
        "FedKin β=0.5",
        "Kin",
        "FedAvg, pooled",
        "gain over alone",
        "chosen.png",
    ):
        assert word in report.stdout
    assert "speed-up" not in report.stdout  # test results are for chosen runs; all are in the files
    for name in (
        "report.html",
        "report.md",
        "report.csv",
        "chosen.csv",
        "curves.png",
        "curves.pdf",
        "chosen.png",
        "chosen.pdf",
    ):
        assert (tmp_path / "results" / "demo" / name).stat().st_size > 100


def test_graph(tmp_path: Path, invoke: Command) -> None:
    done = invoke("graph", *FEW, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("5 training, 5 testing", "misalignment of pairs: quartiles", "Laplacian", "federation.png"):
        assert word in done.stdout
    uniform = invoke("graph", *FEW, "--set", "graph.kind=uniform", cwd=tmp_path)
    assert uniform.returncode == 0, uniform.stderr
    assert "misalignment" not in uniform.stdout


@pytest.mark.parametrize(
    "settings", [["graph.kind=global"], ["graph.neighbours=2"], ["graph.neighbours=2", "temperature=0.5"]]
)
def test_graphs_that_are_sparse(settings: list[str], tmp_path: Path, invoke: Command) -> None:
    done = invoke("graph", *FEW, *(word for one in settings for word in ("--set", one)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("misalignment of pairs" in done.stdout) == (settings == ["graph.neighbours=2"])
    assert (tmp_path / "results" / "demo" / "federation.png").exists()


def npz(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, object] = {
        "x_train": rng.uniform(0, 1, (60, 4)).astype(np.float32),
        "y_train": np.arange(60) % 3,
        "x_test": rng.uniform(0, 1, (30, 4)).astype(np.float32),
        "y_test": np.arange(30) % 3,
    }
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]
    return path


def with_nan() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    x = np.ones((60, 4), dtype=np.float32)
    x[3, 2] = np.nan
    return x


BALANCED = ["--set", "clients=4", "--set", "class_imbalance=0", "--set", "size_imbalance=0"]
BAD_DATA: dict[str, dict[str, object]] = {
    "NaN": {"x_train": with_nan()},
    "labels": {"y_train": np.zeros(60, dtype=int)},
    "identical": {"x_train": np.ones((60, 4), dtype=np.float32)},
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--set", "ronds=3"], "unknown key 'ronds' (did you mean 'rounds'?)"),
        (["run", "--set", "beta=1.5"], "beta = 1.5 is out of range"),
        (["run", "--set", "step_size=-1"], "step_size = -1 is out of range"),
        (["run", "--set", "clients=5000"], "5000 clients cannot share"),
        (["run", "--set", "clients=1"], "partition.clients = 1 is out of range"),
        (["run", "--set", "take_part=25"], "take_part = 25 is more than the 24 clients there are"),
        (["run", "--set", "clients=300", "--set", "scheme=published"], "hold no sample"),
        (["run", "--set", "clients=400"], "400 clients cannot share 359 testing samples"),
        (["run", "--set", "source=mnist"], "mnist"),
        (["run", "--set", "source=nothing.npz"], "nothing.npz"),
        (["run", "--set", "source=damaged.npz"], "damaged.npz"),
        (["run", "--set", "source=NaN.npz"], "NaN"),
        (["run", "--set", "source=labels.npz"], "label"),
        (["run", "--set", "source=identical.npz", *BALANCED], "hold the same data"),
        (["run", "none.toml"], "there is no file none.toml"),
        (["run", "--out", "damaged.npz"], "cannot write to"),
        (["report", "nowhere"], "nowhere"),
        (["graph", "--set", "preprocess=twice"], "data.preprocess = 'twice' is not valid"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refusal,
) -> None:
    whole = npz(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "damaged.npz").write_bytes(whole[: len(whole) // 2])
    for name, change in BAD_DATA.items():
        npz(tmp_path / f"{name}.npz", **change)
    # no cache of the user's, and no network: what is not here cannot be had
    for name, value in (("XDG_CACHE_HOME", str(tmp_path / "cache")), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FEDKIN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert says in refused(*arguments)


def test_help_names_the_commands(tmp_path: Path) -> None:
    done = fedkin("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    for command in ("run", "graph", "report"):
        assert command in done.stdout
    assert fedkin("run", "--nonsense", cwd=tmp_path).returncode == 2


def test_an_algorithm_from_outside_the_package(tmp_path: Path, invoke: Command) -> None:
    """The example of CONTRIBUTING.md, as it says."""
    example = Path(__file__).parents[1] / "examples" / "own_algorithm"
    command = ["run", "experiment.toml", "--out", str(tmp_path), "--set", "rounds=3"]
    path = os.pathsep.join([".", *filter(None, [os.environ.get("PYTHONPATH")])])
    done = fedkin(*command, cwd=example, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "scaffold:Scaffold-server_step=0.7: " in done.stdout
    report = invoke("report", str(tmp_path / "experiment"), cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "Scaffold" in report.stdout
