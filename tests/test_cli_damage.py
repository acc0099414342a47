"""Run folders that were damaged: one sentence, or the run is done again."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from command_line import RACE, Refusal
from fedkin.errors import BadInput
from fedkin.experiments.run import run
from fedkin.reports import report
from fedkin.reports.runs import collect

OVERRIDES = RACE[1::2]
ARGUMENTS = ["run", *(word for override in OVERRIDES for word in ("--set", override))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs."""
    folder = tmp_path_factory.mktemp("whole")
    run(overrides=OVERRIDES, out=folder)
    return folder


@pytest.fixture
def damaged(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, to be damaged: the folder of one run."""
    shutil.copytree(whole, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return Path("results/demo/fedavg")


def turn_into_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path / "inside").mkdir(parents=True)


@pytest.mark.parametrize(
    "name", ["config.json", "origin.json", "rounds.jsonl", "summary.json", "model.safetensors", ".lock"]
)
def test_a_folder_in_the_place_of_a_file(name: str, damaged: Path, refused: Refusal) -> None:
    turn_into_folder(damaged / name)
    said = refused(*ARGUMENTS)
    assert str(damaged) in said
    assert ".tmp" not in said
    if name != ".lock":
        assert len(run(overrides=OVERRIDES, out="results", fresh=True)) == 5


def test_a_folder_in_the_place_of_a_checkpoint(damaged: Path, refused: Refusal) -> None:
    (damaged / "summary.json").unlink()
    turn_into_folder(damaged / "checkpoint-000002.safetensors")
    assert "checkpoint-000002.safetensors is a folder where a file should be: remove it" in refused(*ARGUMENTS)


@pytest.mark.parametrize(
    "name", ["checkpoint-000001 (copy).safetensors", "checkpoint-x.safetensors", "checkpoint-1.safetensors.bak"]
)
def test_copies_of_checkpoints_are_left_alone(name: str, damaged: Path) -> None:
    (damaged / "summary.json").unlink()
    (damaged / name).write_bytes(b"copy")
    assert len(run(overrides=OVERRIDES, out="results")) == 5
    assert (damaged / name).read_bytes() == b"copy"


def test_a_report_in_whose_place_a_folder_stands(damaged: Path, refused: Refusal) -> None:
    turn_into_folder(damaged.parent.parent / "report.md")
    assert "the report cannot be written to results (is a directory)" in refused("report")


@pytest.mark.parametrize("value", [10**400, "\ud800", None, [], {}, "x", "[/red]", True, float("inf")], ids=repr)
@pytest.mark.parametrize("file", ["config.json", "summary.json", "rounds.jsonl"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reports_of_any_values(file: str, value: Any, damaged: Path) -> None:
    """Each value in turn; runs that make no sense are left out."""
    path = damaged / file
    text = path.read_text()
    lines = text.splitlines() if file == "rounds.jsonl" else [text]
    console = Console(file=io.StringIO(), width=60)
    for key in json.loads(lines[0]):
        path.write_text("\n".join([json.dumps({**json.loads(lines[0]), key: value}), *lines[1:], ""]))
        runs = collect("results")
        assert len(runs) in (4, 5)
        compared = report.table(runs)
        (compared.markdown() + compared.csv()).encode()
        console.print(compared)


def test_nothing_but_damaged_runs(damaged: Path) -> None:
    for path in damaged.parent.glob("*/"):
        (path / "config.json").write_text("[" * 100_000)
    with pytest.warns(UserWarning, match="left out the run"), pytest.raises(BadInput, match="no usable runs"):
        collect("results")
