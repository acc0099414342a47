"""A run knows what it was computed from, and its numbers do not depend on what happened around it."""

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedkin import run
from fedkin.engine import lanes
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.experiments.group import MOST_LANES
from test_experiment import SMALL, Crash, crash_after, rounds

# Two lanes that go on, and one that diverges in the fifth round.
GRID: dict[str, Any] = {
    **SMALL,
    "local": {**SMALL["local"], "order": "fixed", "step_size": [0.05, 40.0, 0.02]},
    "algorithm": {"name": "fedprox", "alpha": 0.1},
}


def crashed(settings: dict[str, Any], out: Path, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        crash_after(patch, done)
        with pytest.raises(Crash):
            run(settings, out=out)


def first_round(settings: dict[str, Any], out: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Carry out the experiment, and say in which round it began."""
    advanced, advance = [], Simulation.advance

    def watched(self: Simulation, state: State) -> State:
        advanced.append(state.round)
        return advance(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "advance", watched)
        run(settings, out=out)
    return min(advanced)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of an undisturbed grid."""
    results = run(GRID, out=tmp_path_factory.mktemp("whole"))
    assert [r.summary["status"] for r in results] == ["finished", "diverged", "finished"]
    assert 1 < len(results[1].rounds) < 7, "it diverges between two checkpoints"
    assert results[0].folder is not None
    return results[0].folder.parent


def assert_same(out: Path, whole: Path) -> None:
    for folder in whole.glob("*/"):
        assert rounds(out / "small" / folder.name) == rounds(folder), folder.name
        models = [
            load_file(where / "model.safetensors")["model"].nan_to_num(7.0)
            for where in (folder, out / "small" / folder.name)
        ]
        assert torch.equal(*models)


# -- other data --------------------------------------------------------------------------------------------------------


def npz(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 1, (300, 6)).astype(np.float32), rng.integers(0, 3, 300)
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])


@pytest.mark.parametrize("lost", [(), ("config.json",), ("config.json", "origin.json")], ids=str)
@pytest.mark.parametrize("done", [5, None], ids=["killed", "finished"])
def test_other_data_are_refused(
    lost: tuple[str, ...], done: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "mine.npz"
    npz(file, seed=0)
    settings = {**SMALL, "data": {"source": str(file)}}
    if done is None:
        run(settings, out=tmp_path)
    else:
        crashed(settings, tmp_path, done, monkeypatch)
    (folder,) = (tmp_path / "small").glob("*/")
    for name in lost:
        (folder / name).unlink()
    npz(file, seed=1)
    with pytest.raises(BadInput, match=r"other data.*--fresh"):
        run(settings, out=tmp_path)
    run(settings, out=tmp_path / "other")
    npz(file, seed=0)
    run(settings, out=tmp_path)


def test_other_settings_are_refused_without_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(SMALL, tmp_path, 5, monkeypatch)
    (folder,) = (tmp_path / "small").glob("*/")
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match="other settings or other data"):
        run({**SMALL, "take_part": 3}, out=tmp_path)
    assert first_round(SMALL, tmp_path, monkeypatch) == 3, "with its own settings it continues"


# -- digits that change ------------------------------------------------------------------------------------------------


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def first_digits(path: Path, key: str) -> str:
    line = path.read_text().splitlines()[2]
    return f'"{key}": {json.loads(line)[key]}'


CHANGES: dict[str, Callable[[Path], object]] = {
    "a loss": lambda f: change(f / "rounds.jsonl", first_digits(f / "rounds.jsonl", "test_loss"), '"test_loss": 0.125'),
    "no loss": lambda f: change(
        f / "rounds.jsonl", first_digits(f / "rounds.jsonl", "train_loss"), '"train_loss": null'
    ),
    "two lines": lambda f: (f / "rounds.jsonl").write_text(
        "".join(sorted((f / "rounds.jsonl").read_text().splitlines(keepends=True), reverse=True))
    ),
    "the summary": lambda f: change(f / "summary.json", '"final_test_accuracy": 0.', '"final_test_accuracy": 0.9'),
    "the status": lambda f: change(f / "summary.json", '"finished"', '"diverged"'),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_changed_digits_are_noticed(changed: str, tmp_path: Path) -> None:
    (before,) = run(SMALL, out=tmp_path)
    assert before.folder is not None
    CHANGES[changed](before.folder)
    (after,) = run(SMALL, out=tmp_path)
    keys = [key for key in before.summary if key != "seconds"]
    assert [after.summary[key] for key in keys] == [before.summary[key] for key in keys]
    assert after.test_loss.tolist() == before.test_loss.tolist()


def test_a_finished_run_of_a_version_without_seals_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = run(SMALL, out=tmp_path)
    assert before.folder is not None
    for name in ("rounds.jsonl", "summary.json"):
        records = [json.loads(part) for part in _objects(before.folder / name)]
        text = "".join(json.dumps({k: v for k, v in r.items() if k != "check"}) + "\n" for r in records)
        (before.folder / name).write_text(text)
    (before.folder / "origin.json").unlink()
    monkeypatch.setattr(Simulation, "advance", None)
    (after,) = run(SMALL, out=tmp_path)
    assert after.summary == before.summary


def _objects(path: Path) -> Iterator[str]:
    yield from path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", range(8))
@pytest.mark.parametrize("every", [1, 5])
def test_when_checkpoints_are_made_changes_nothing(
    done: int, every: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed({**GRID, "checkpoint_every": every}, tmp_path, done, monkeypatch)
    run(GRID, out=tmp_path)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("done", [5, None], ids=["killed", "finished"])
def test_a_lost_folder_is_computed_again_with_the_others(
    lost: int, done: int | None, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if done is None:
        run(GRID, out=tmp_path)
    else:
        crashed(GRID, tmp_path, done, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.rglob("summary.json")}
    shutil.rmtree(sorted((tmp_path / "small").glob("*/"))[lost])
    run(GRID, out=tmp_path)
    assert_same(tmp_path, whole)
    kept = [path.read_bytes() == content for path, content in before.items()]
    assert sum(kept) >= len(kept) - 1, "results of the others stay as they are"


def test_damage_to_the_newest_checkpoint_after_a_run_has_left(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go back to a round in which it was still there, and it is computed along."""
    crashed(GRID, tmp_path, 5, monkeypatch)
    for folder in (tmp_path / "small").glob("*/"):
        if not (folder / "summary.json").exists():
            newest = max(folder.glob("checkpoint-*"))
            assert newest.stem > "checkpoint-000003"
            newest.write_bytes(b"")
    run(GRID, out=tmp_path)
    assert_same(tmp_path, whole)


def test_a_grid_that_grows_continues_what_it_began(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(GRID, tmp_path, 5, monkeypatch)
    grown = {**GRID, "local": {**GRID["local"], "step_size": [*GRID["local"]["step_size"], 0.03]}}
    assert len(run(grown, out=tmp_path)) == 4
    assert_same(tmp_path, whole)


def test_groups_that_memory_limits_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, two at a time: when one of the first two has left, the third does not take its place."""
    monkeypatch.setattr(lanes, "most", lambda _: 2)
    run(GRID, out=tmp_path / "whole")
    crashed(GRID, tmp_path, 6, monkeypatch)
    assert first_round(GRID, tmp_path, monkeypatch) == 0, "the third run had not begun"
    begun = rounds(tmp_path / "small" / "fedprox-alpha=0.1-step_size=0.05")
    assert_same(tmp_path, tmp_path / "whole" / "small")
    crashed(GRID, tmp_path / "again", 7, monkeypatch)
    starts: list[int] = []
    advance = Simulation.advance

    def watched(self: Simulation, state: State) -> State:
        starts.append(state.round)
        return advance(self, state)

    monkeypatch.setattr(Simulation, "advance", watched)
    run(GRID, out=tmp_path / "again")
    assert starts == [6, 7, *range(8)], "the first group from its checkpoint, then the third run"
    assert rounds(tmp_path / "again" / "small" / "fedprox-alpha=0.1-step_size=0.05") == begun


def test_more_lanes_than_a_process_may_have_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a group have an open file each; the next group begins when these are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert MOST_LANES < 1024 / 2, "the limit on most machines"
    monkeypatch.setattr("fedkin.experiments.run.MOST_LANES", 20)
    grid = {
        **SMALL,
        "rounds": 1,
        "partition": {"clients": 2},
        "take_part": "all",
        "algorithm": "fedavg",
        "local": {"step_size": [round(0.01 + i / 1e3, 6) for i in range(60)], "epochs": 1, "batch_size": "all"},
    }
    run({**grid, "local": {"epochs": 1}}, out=tmp_path / "first")  # what is imported has been opened
    open_files = len(list(Path("/dev/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 40, hard))
    try:
        assert len(run(grid, out=tmp_path)) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
