"""The command `fedkin` in tests: as a process, and within this one, which is many times faster, for what it says."""

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from fedkin import output
from fedkin.cli import main

FEW = ["--set", "rounds=2", "--set", "clients=5", "--set", "epochs=1"]
# Five runs of different algorithms on the same clients: `fedavg`, `fedprox-alpha=0.1`, `fedkin-beta=0.9`, …
FIVE = 'algorithm=["fedavg", {name="fedprox", alpha=0.1}, {name="fedkin", beta=[0.9, 0.7, 0.5]}]'
RACE = [*FEW, "--set", FIVE, "--set", "step_size=0.01", "--set", "kinds=0", "--set", "validation=0"]
RACE += ["--set", "model.kind=softmax"]
COMMAND = [sys.executable, "-c", "from fedkin.cli import main; main()"]


def environment(**more: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "FEDKIN_DATA"} | more


def fedkin(*arguments: str | bytes, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, check=False, env=environment(**more)
    )


def started(*arguments: str, cwd: Path, stdout: int | IO[Any] = subprocess.PIPE) -> subprocess.Popen[str]:
    """A process that is still running, in a session of its own."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def is_one_sentence(said: str) -> bool:
    return said.startswith("fedkin: ") and said.endswith("\n") and said.count("\n") == 1


class Command:
    """The command within this process: `invoke("run", …)` returns its exit code and what it has written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        log, threads = logging.getLogger("fedkin"), torch.get_num_threads()
        level, handlers, propagate = log.level, log.handlers, log.propagate
        output.say_warning.cache_clear()
        code: Any = 0
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["fedkin", *arguments])
            patch.delenv("FEDKIN_DATA", raising=False)
            for owner, name in ((sys, "stdout"), (sys, "stderr"), (warnings, "showwarning")):
                patch.setattr(owner, name, getattr(owner, name))  # the command replaces them
            if cwd is not None:
                patch.chdir(cwd)
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
            finally:
                torch.set_num_threads(threads)
                log.setLevel(level)
                log.handlers, log.propagate = handlers, propagate
        said = self.capsys.readouterr()
        return subprocess.CompletedProcess(["fedkin", *arguments], code, said.out, said.err)


class Refusal:
    """The command within this process, which must end with exit code 2 and one sentence: `refused(…)` returns it."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def __call__(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 2, done.stderr
        assert is_one_sentence(done.stderr), done.stderr
        return done.stderr
