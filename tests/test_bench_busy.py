"""Rounds beside busy processes: these end with the benchmark, whatever happens, and run only when they are to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedkin.bench import busy
from fedkin.bench.busy import measure_busy
from fedkin.bench.busy_processes import BusyProcesses
from fedkin.bench.meter import Meter
from fedkin.bench.timing import Options
from fedkin.threads import torch_threads

PROC = Path("/proc")
pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="processes are looked at in /proc")


def condition(process: int) -> str:
    """The kernel's letter: T is stopped, R running, Z ended; none if it is gone."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def awaited(process: int, letters: str) -> str:
    end = time.monotonic() + 20
    while condition(process) not in letters.split() and time.monotonic() < end:
        time.sleep(0.01)
    return condition(process)


def test_they_run_only_while_they_are_let_go() -> None:
    with BusyProcesses(1) as others:
        (process,) = others.all
        assert awaited(process.pid, "T") == "T"
        with others.running():
            assert awaited(process.pid, "R") == "R"
        assert awaited(process.pid, "T") == "T"
    assert condition(process.pid) == ""


def test_they_end_if_the_benchmark_fails() -> None:
    with pytest.raises(KeyboardInterrupt), BusyProcesses(2) as others, others.running():
        raise KeyboardInterrupt
    assert [condition(process.pid) for process in others.all] == ["", ""]


def test_they_end_if_one_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    right = subprocess.Popen

    def refused(*arguments: Any, **named: Any) -> Any:
        if begun:
            raise OSError("no more processes")
        begun.append(right(*arguments, **named))
        return begun[0]

    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(OSError, match="no more"), BusyProcesses(2):
        pass
    assert condition(begun[0].pid) == ""


def test_they_end_if_the_benchmark_is_killed() -> None:
    script = (
        "import time\nfrom fedkin.bench.busy_processes import BusyProcesses\n"
        "with BusyProcesses(1) as others, others.running():\n"
        "    print(others.all[0].pid, flush=True)\n    time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert awaited(child, "Z") in ("Z", "")


def test_works_are_measured_alone_and_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """With processes that only count how often they are let go."""
    let_go: list[int] = []

    class Counted(BusyProcesses):
        def __enter__(self) -> "Counted":
            return self

        @contextmanager
        def running(self) -> Iterator[None]:
            let_go.append(1)
            yield

    monkeypatch.setattr(busy, "BusyProcesses", Counted)
    monkeypatch.setattr(busy, "DEMO", ("kin",))
    with torch_threads(1):
        section = measure_busy([], Options(2, threads=1, quick=True), Meter(Console(quiet=True), 1.0, 1.0))
    assert [(record["work"], record["runs"]) for record in section.records] == [("demo: kin", 5), ("mnist-softmax", 1)]
    assert len(let_go) == 2 * (1 + 2), "for each work a first round, and two turns"
    for record in section.records:
        assert record["ratio"]["low"] == pytest.approx(record["beside"]["low"] / record["alone"]["low"], rel=0.9)
