"""Processes that carry out an experiment by the command `fedkin run`, and can be killed."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from soak.grids import Grid


def server() -> ForkServerContext:
    """Processes that begin with PyTorch imported: most of the time is then spent on rounds."""
    os.environ["OMP_WAIT_POLICY"] = "passive"  # threads that wait leave the cores to others
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedkin.cli", "fedkin.experiments.run", "fedkin.experiments.progress"])
    return context


def started(context: ForkServerContext, grid: Grid, file: Path, out: Path, threads: int) -> ForkServerProcess:
    """A process that carries out the experiment."""
    settings = [*grid.settings, f"threads={threads}"]
    command = ["fedkin", "run", str(file), "--out", str(out), *(part for s in settings for part in ("--set", s))]
    process = context.Process(target=carry_out, args=(command, grid.most_numbers, out.with_suffix(".log")))
    process.start()
    return process


def carry_out(command: Sequence[str], most_numbers: int, log: Path) -> None:
    """What the process does."""
    from fedkin.cli import main
    from fedkin.engine import lanes

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    lanes.MOST_NUMBERS = most_numbers or lanes.MOST_NUMBERS
    sys.argv = list(command)
    main()
