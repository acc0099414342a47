"""Runs in folders: continued after crashes and damage, bitwise reproducible."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import FedAvg, FedKin, Local, Schedule, federate, load, plot, run, train
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.experiments import records
from fedkin.experiments import run as experiment

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 8,
    "checkpoint_every": 3,
    "threshold": 0.3,
    "take_part": 4,
    "partition": {"clients": 6, "class_imbalance": 1, "size_imbalance": 0.5},
    "local": {"step_size": 0.05, "epochs": 2, "batch_size": 32, "order": "shuffled"},
    "algorithm": {"name": "fedkin", "beta": 0.5, "absent": "last"},
}


def rounds(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "check")} for line in lines]


class Crash(Exception):  # noqa: N818 - what it stands for is no error
    """As if the process had been killed."""


def crash_after(monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    advance = Simulation.advance

    def crashing(self: Simulation, state: State) -> State:
        if state.round == done:
            raise Crash
        return advance(self, state)

    monkeypatch.setattr(Simulation, "advance", crashing)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    (result,) = run(SMALL, out=tmp_path_factory.mktemp("whole"))
    assert result.folder is not None
    return result.folder


def test_files_of_a_run(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} - {".lock"} == {
        "checkpoint-000008.safetensors",
        "clients.jsonl",
        "config.json",
        "origin.json",
        "rounds.jsonl",
        "summary.json",
        "model.safetensors",
    }
    assert whole.parts[-2:] == ("small", "fedkin-beta=0.5-absent=last")
    done = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in done] == list(range(8))
    assert set(done[0]) >= {"round", "train_loss", "test_loss", "train_accuracy", "test_accuracy", "seconds"}
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["algorithm"] == "fedkin"
    assert summary["hyperparameters"] == {"step_size": 0.05, "beta": 0.5, "absent": "last"}
    assert summary["status"] == "finished"
    assert summary["final_test_accuracy"] == done[-1]["test_accuracy"]
    assert summary["best_test_accuracy"] == max(r["test_accuracy"] for r in done)
    reached = [r["round"] for r in done if r["test_accuracy"] >= 0.3]
    assert summary["rounds_to_threshold"] == reached[0]
    assert summary["seconds"] == pytest.approx(sum(r["seconds"] for r in done), abs=1e-3)
    assert json.loads((whole / "config.json").read_text())["local"]["l2"] == 1e-4, "defaults are written out"


def test_the_same_configuration_gives_identical_results(whole: Path, tmp_path: Path) -> None:
    (result,) = run(SMALL, out=tmp_path)
    assert result.folder is not None
    assert rounds(result.folder) == rounds(whole)
    (other,) = run({**SMALL, "seed": 1}, out=tmp_path / "other")
    assert other.folder is not None
    assert rounds(other.folder) != rounds(whole)


@pytest.mark.parametrize("done", range(8))
def test_a_crash_at_any_round(done: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        crash_after(patch, done)
        with pytest.raises(Crash):
            run(SMALL, out=tmp_path)
    folder = tmp_path / "small" / whole.name
    assert len(rounds(folder)) == done
    assert not (folder / "summary.json").exists()
    advanced = []
    advance = Simulation.advance

    def watched(self: Simulation, state: State) -> State:
        advanced.append(state.round)
        return advance(self, state)

    monkeypatch.setattr(Simulation, "advance", watched)
    run(SMALL, out=tmp_path)
    assert rounds(folder) == rounds(whole)
    assert advanced == list(range(done - done % 3, 8)), "work since the checkpoint is all that is done again"


def cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(bytes(content))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "last line cut off": lambda f: cut(f / "rounds.jsonl", (f / "rounds.jsonl").stat().st_size - 5),
    "line break lost": lambda f: cut(f / "rounds.jsonl", (f / "rounds.jsonl").stat().st_size - 1),
    "first line damaged": lambda f: flip(f / "rounds.jsonl", 3),
    "records gone": lambda f: (f / "rounds.jsonl").unlink(),
    "checkpoint cut off": lambda f: cut(newest(f), newest(f).stat().st_size // 2),
    "checkpoint empty": lambda f: cut(newest(f), 0),
    "checkpoint damaged": lambda f: flip(newest(f), newest(f).stat().st_size - 7),
    "checkpoint header damaged": lambda f: flip(newest(f), 30),
    "all checkpoints gone": lambda f: list(map(Path.unlink, f.glob("checkpoint*"))),
    "rubbish left by a write": lambda f: (f / ".checkpoint-000006.safetensors.1.tmp").write_bytes(b"half"),
    "summary cut off": lambda f: (f / "summary.json").write_text('{"status": "fin'),
}


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoint*"))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_detected(damage: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        crash_after(patch, 7)
        with pytest.raises(Crash):
            run(SMALL, out=tmp_path)
    folder = tmp_path / "small" / whole.name
    assert len(list(folder.glob("checkpoint*"))) == 2
    DAMAGE[damage](folder)
    run(SMALL, out=tmp_path)
    assert rounds(folder) == rounds(whole)


def test_a_finished_run_is_kept(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = run(SMALL, out=tmp_path)
    assert first.folder is not None
    before = (first.folder / "rounds.jsonl").read_bytes()
    monkeypatch.setattr(Simulation, "advance", None)
    (again,) = run(SMALL, out=tmp_path)
    assert (first.folder / "rounds.jsonl").read_bytes() == before
    assert torch.equal(again.model, first.model)
    assert again.summary == first.summary


@pytest.mark.parametrize("file", ["summary.json", "model.safetensors"])
def test_a_damaged_finished_run_is_repeated(file: str, whole: Path, tmp_path: Path) -> None:
    (first,) = run(SMALL, out=tmp_path)
    assert first.folder is not None
    cut(first.folder / file, 10)
    (again,) = run(SMALL, out=tmp_path)
    assert rounds(first.folder) == rounds(whole)
    assert torch.equal(again.model, first.model)


def test_other_settings_in_the_same_folder_are_an_error(whole: Path, tmp_path: Path) -> None:
    run(SMALL, out=tmp_path)
    changed = {**SMALL, "take_part": 3}
    with pytest.raises(BadInput, match=r"take_part was 4, now 3.*--fresh"):
        run(changed, out=tmp_path)
    (result,) = run(changed, out=tmp_path, fresh=True)
    assert result.config["take_part"] == 3
    run({**changed, "threads": 1, "checkpoint_every": 1}, out=tmp_path)  # of no influence on what comes out


def test_settings_that_fail_before_the_first_round_do_not_claim_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="5000"):  # more clients than samples, an error of the partition
        run({**SMALL, "partition": {"clients": 5000}}, out=tmp_path)
    (result,) = run(SMALL, out=tmp_path)
    assert len(result.rounds) == 8


def test_a_diverging_run_does_not_stop_the_others(tmp_path: Path) -> None:
    grid = {**SMALL, "local": {"step_size": [1e30, 0.05], "epochs": 2, "batch_size": 32}}
    first, second = run(grid, out=tmp_path)
    assert first.summary["status"] == "diverged"
    assert first.summary["diverged_at"] == len(first.rounds) - 1 < 7
    assert second.summary["status"] == "finished"
    assert first.folder is not None
    text = (first.folder / "rounds.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text.splitlines()[-1])["train_loss"] is None
    kept, _ = run(grid, out=tmp_path)
    assert kept.summary == first.summary


def test_other_runs_in_the_grid_change_nothing(whole: Path, tmp_path: Path) -> None:
    grid = {**SMALL, "algorithm": ["fedavg", {"name": "fedkin", "beta": [0.9, 0.5], "absent": "last"}]}
    results = run(grid, out=tmp_path)
    same = next(r for r in results if r.name == whole.name)
    alone = [r["test_loss"] for r in rounds(whole)]
    assert same.test_loss.tolist() == pytest.approx(alone, rel=1e-4)


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    folder, process = records.RunFolder(tmp_path / "run"), multiprocessing.get_context("fork")
    said = process.SimpleQueue()

    def child() -> None:
        try:
            with records.RunFolder(folder.path).opened({"a": 1}):
                said.put("opened")
        except BadInput as error:
            said.put(str(error))

    with folder.opened({"a": 1}):
        other = process.Process(target=child)
        other.start()
        assert "another process is running" in said.get()
        other.join()


def test_a_killed_process_continues_with_the_same_command(whole: Path, tmp_path: Path) -> None:
    """A real process, killed (SIGKILL) after it has written some rounds, beyond its first checkpoint."""
    script = "import sys, json, fedkin; fedkin.run(json.loads(sys.argv[1]), out=sys.argv[2])"
    command = [sys.executable, "-c", script, json.dumps(SMALL), str(tmp_path)]
    file = tmp_path / "small" / whole.name / "rounds.jsonl"
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_bytes().count(b"\n") >= 4:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL
    subprocess.run(command, check=True)
    assert rounds(file.parent) == rounds(whole)


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match=r"cannot write to .* choose another folder with --out"):
        run(SMALL, out=tmp_path / "file")


def test_an_unusable_device(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="device = 'nonsense' cannot be used here"):
        run({**SMALL, "device": "nonsense"}, out=tmp_path)


def test_from_python(tmp_path: Path) -> None:
    federation = federate(load("digits"), clients=6, class_imbalance=1, seed=0)
    local = Local(epochs=2, batch_size=32, order="fixed")
    average = train(federation, FedAvg(step_size=0.05), local=local, rounds=6)
    kin = train(federation, FedKin(beta=Schedule(0.5, 1.0, over=3), step_size=0.05), local=local, rounds=6)
    assert kin.test_accuracy.shape == (6,)
    assert kin.rounds_to(0.2) is not None
    assert kin.summary["hyperparameters"]["beta"] == {"from": 0.5, "to": 1.0, "over": 3, "shape": "linear"}
    assert not np.allclose(kin.test_loss, average.test_loss)
    with pytest.raises(AttributeError):
        _ = kin.nonsense
    figure = plot([average, kin], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert len(figure.axes) == 2
    same = experiment.train(federation, FedAvg(step_size=0.05), local=local, rounds=6)
    assert same.test_loss.tolist() == average.test_loss.tolist()


def test_a_folder_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """Missing settings have their defaults; another value is an error."""
    (result,) = run(SMALL, out=tmp_path)
    assert result.folder is not None
    file = result.folder / "config.json"
    config = json.loads(file.read_text())
    del config["reading"], config["graph"]["temperature"]
    file.write_text(json.dumps(config))
    run(SMALL, out=tmp_path)
    assert json.loads(file.read_text())["graph"]["temperature"] == 1
    file.write_text(json.dumps(config))
    with pytest.raises(BadInput, match=r"graph\.temperature was 1.0, now 0.5"):
        run(SMALL, out=tmp_path, overrides=["graph.temperature=0.5"])
