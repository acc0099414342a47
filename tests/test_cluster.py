"""Runs as tasks on Ray give the folders of runs here."""

import json
from pathlib import Path

import pytest

from fedkin import run
from fedkin.errors import BadInput
from fedkin.experiments.cluster import packed, restore
from fedkin.experiments.places import place_named

GRID = {
    "name": "grid",
    "rounds": 3,
    "threads": 1,
    "partition": {"clients": 4},
    "local": {"epochs": 1, "step_size": [0.1, 0.3]},
    "algorithm": ["fedavg", "alone"],
}


def rounds(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The records of all runs without what is measured in seconds."""
    found = {}
    for path in sorted(folder.glob("grid/*/rounds.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [{k: v for k, v in line.items() if k not in ("seconds", "check")} for line in lines]
    return found


@pytest.mark.first
def test_tasks_give_the_same_folders(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = run(GRID, out=tmp_path / "here")
    with place_named("ray") as ray:  # one start for both: it takes seconds
        there = run(GRID, out=tmp_path / "there", on=ray)
        assert rounds(tmp_path / "there") == rounds(tmp_path / "here")
        assert len(rounds(tmp_path / "there")) == 4
        marked = next((tmp_path / "there").glob("grid/*/summary.json"))
        written = marked.stat().st_mtime_ns
        run(GRID, out=tmp_path / "there", on=ray, fresh=True)
        assert marked.stat().st_mtime_ns > written
    for one, other in zip(here, there, strict=True):
        assert one.name == other.name
        assert one.summary["final_test_accuracy"] == other.summary["final_test_accuracy"]


def test_an_address_without_ray_is_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(BadInput, match=r"nothing answers at '127\.0\.0\.1:1'"):
        run(GRID, out=tmp_path, on="127.0.0.1:1")


def test_folders_travel_and_replace(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place, text in ((old, "one"), (new, "two")):
        (place / "grid" / "run").mkdir(parents=True)
        (place / "grid" / "run" / "file").write_text(text)
    (new / "grid" / "run" / "more").write_text("")
    restore(packed(old, ["grid/run", "grid/none"]), new)
    assert [path.name for path in (new / "grid" / "run").iterdir()] == ["file"]
    assert (new / "grid" / "run" / "file").read_text() == "one"
    assert [path.name for path in new.iterdir()] == ["grid"]
