"""Runs in processes side by side give the folders of runs here, and nothing is left running."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import environment
from fedkin import run
from fedkin.errors import BadInput
from fedkin.experiments import processes
from fedkin.experiments.grid import plans
from fedkin.experiments.places import place_named
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.processes import Processes
from fedkin.experiments.progress import Silent
from fedkin.paper.reproduce import reproduce
from fedkin.types import Record

GRID: dict[str, Any] = {
    "name": "grid",
    "rounds": 3,
    "threads": 1,
    "partition": {"clients": 4},
    "local": {"epochs": 1, "step_size": [0.1, 0.3]},
    "algorithm": ["fedavg", "alone"],
}


class Told(Silent):
    """Counts what it hears."""

    def __init__(self) -> None:
        self.rounds: list[str] = []
        self.ends: list[str] = []

    def round(self, name: str, record: Record) -> None:
        self.rounds.append(name)

    def end(self, name: str, summary: Record, kept: bool) -> None:
        self.ends.append(name)


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Two processes for all tests of this file: their start takes seconds."""
    with Processes(cores=2) as place:
        yield place


def records(folder: Path) -> dict[str, list[Record]]:
    """The records of all runs without what is measured in seconds."""
    found = {}
    for path in sorted(folder.glob("grid/*/rounds.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = [{k: v for k, v in line.items() if k not in ("seconds", "check")} for line in lines]
    return found


def test_processes_give_the_same_folders(two: Processes, tmp_path: Path) -> None:
    told = Told()
    here = run(GRID, out=tmp_path / "here")
    there = run(GRID, out=tmp_path / "there", on=two, listener=told)
    assert len(records(tmp_path / "there")) == 4
    assert records(tmp_path / "there") == records(tmp_path / "here")
    assert [one.summary["final_test_accuracy"] for one in there] == [one.summary["final_test_accuracy"] for one in here]
    assert sorted(told.ends) == sorted(one.name for one in there)
    assert sorted(told.rounds) == sorted(3 * [one.name for one in there])


def test_what_is_done_is_kept_and_fresh_repeats_it(two: Processes, tmp_path: Path) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.glob("grid/*/rounds.jsonl")}

    run({**GRID, "algorithm": "fedavg"}, out=tmp_path, on=two)
    before = written()
    told = Told()
    run(GRID, out=tmp_path, on=two, listener=told)
    assert len(told.rounds) == 2 * 3  # of the other algorithm
    assert before.items() <= written().items()
    run(GRID, out=tmp_path, on=two, fresh=True)
    assert all(written()[path] > at for path, at in before.items())


def test_a_refusal_is_that_of_this_process(two: Processes, tmp_path: Path) -> None:
    settings = {**GRID, "algorithm": ["fedavg", {"name": "kin", "source": "nothing"}]}
    with pytest.raises(BadInput) as here:
        run(settings, out=tmp_path / "here")
    with pytest.raises(BadInput) as there:
        run(settings, out=tmp_path / "there", on=two)
    assert str(there.value) == str(here.value)


def test_models_and_algorithms_beside_the_file_are_found(two: Processes, tmp_path: Path) -> None:
    """A process that has just begun has not imported them."""
    (tmp_path / "beside.py").write_text(
        "from torch import nn\n\nfrom fedkin.algorithms import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n\n\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (tmp_path / "grid.toml").write_text(
        'name = "grid"\nrounds = 2\nthreads = 1\npartition.clients = 4\nmodel.kind = "beside:net"\nlocal.epochs = 1\n'
        'algorithm = ["fedavg", "beside:Mine"]\n'
    )
    there = run(tmp_path / "grid.toml", out=tmp_path, on=two)
    assert [one.summary["status"] for one in there] == ["finished"] * 2
    assert there[0].summary["final_test_accuracy"] == there[1].summary["final_test_accuracy"]


def test_reproductions_run_side_by_side(two: Processes, tmp_path: Path) -> None:
    part = ["pfedme-global"]
    here = reproduce("pfedme", quick=True, only=part, out=tmp_path / "here")
    there = reproduce("pfedme", quick=True, only=part, out=tmp_path / "there", on=two)
    assert there.tables == here.tables


def test_classes_of_a_script_stay_in_its_process(two: Processes, tmp_path: Path) -> None:
    todo = plans({**GRID, "algorithm": ["fedavg", "alone"]})
    own = [plan for plan in todo if plan.config.algorithm.name == "alone"]
    for plan in own:
        object.__setattr__(plan.config.algorithm, "name", "__main__:Mine")
    units = [[plan for plan in todo if plan not in own], own]
    assert two.carry_out(units, tmp_path, Preparation(None, Silent())) == []  # one unit is left, which is done here


def test_one_core_is_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(processes, "_Worker", never)
    with Processes(cores=1) as place:
        assert [result.summary["status"] for result in run(GRID, out=tmp_path, on=place)] == ["finished"] * 4


def test_memory_and_threads_limit_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparation, place = Preparation(None, Silent()), Processes(cores=8)
    units = [[plan] for plan in plans({**GRID, "threads": 2, "seed": [0, 1, 2]})]
    assert len(units) == 12
    assert place._number(units, preparation) == 4  # two threads each
    monkeypatch.setattr(processes, "available_memory", lambda: 3 * processes.LEAST_MEMORY)
    assert place._number(units, preparation) == 2  # the third one would not have room for its data
    assert place._number(units[:1], preparation) == 1


def test_a_process_that_ends_is_a_sentence(tmp_path: Path) -> None:
    class Kill(Silent):
        def round(self, name: str, record: Record) -> None:
            for worker in place._workers:
                worker.process.kill()

    with (
        Processes(cores=2) as place,
        pytest.raises(BadInput, match=r"has ended \(exit code -9\): the same command continues"),
    ):
        run({**GRID, "rounds": 100_000}, out=tmp_path, on=place, listener=Kill())
    assert all(worker.process.poll() is not None for worker in place._workers)


SCRIPT = """
import fedkin, fedkin.experiments.progress, fedkin.experiments.processes
class Say(fedkin.experiments.progress.Silent):
    def round(self, name, record):
        print("round", flush=True)
with fedkin.experiments.processes.Processes(cores=2) as place:  # without a guard: processes do not import the script
    fedkin.run(SETTINGS, out="out", on=place, listener=Say())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_processes_end_with_the_command(how: signal.Signals, tmp_path: Path) -> None:
    settings = {**GRID, "rounds": 100_000}
    (tmp_path / "script.py").write_text(SCRIPT.replace("SETTINGS", repr(settings)))
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"round\n", process.communicate()
    workers = children(process.pid)
    assert len(workers) == 2
    process.send_signal(how)
    process.communicate(timeout=60)
    until = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def children(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid, of in (line.split() for line in listed.splitlines()) if int(of) == parent]


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")
    return False


def test_words() -> None:
    with place_named("process") as place:
        assert place is None
    with place_named("cores") as place:
        assert isinstance(place, Processes)
        with place_named(place) as same:
            assert same is place
