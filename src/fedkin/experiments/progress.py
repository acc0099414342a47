"""Progress of runs: live bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedkin.types import Record


class Listener(Protocol):
    """Receives the progress of runs."""

    def grid(self, runs: int) -> None:
        """A grid of this many runs starts."""

    def doing(self, what: str) -> None:
        """A task between rounds starts, such as data loading."""

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A run starts, or continues after `done` rounds."""

    def round(self, name: str, record: Record) -> None:
        """A round has finished."""

    def end(self, name: str, summary: Record, kept: bool) -> None:
        """A run has ended, or had ended before (`kept`)."""


class Silent:
    """No output: the default from Python."""

    def grid(self, runs: int) -> None:
        pass

    def doing(self, what: str) -> None:
        pass

    def begin(self, name: str, rounds: int, done: int) -> None:
        pass

    def round(self, name: str, record: Record) -> None:
        pass

    def end(self, name: str, summary: Record, kept: bool) -> None:
        pass


def percent(accuracy: float | None) -> str:
    """An accuracy as text: 84.4 %, or a dash if it is missing."""
    return "–" if accuracy is None or accuracy != accuracy else f"{100 * accuracy:.1f} %"


def result(summary: Record) -> str:
    """A short text with the result of a run."""
    if summary["status"] == "diverged":
        return f"diverged at round {summary['diverged_at']}"
    if "final_own_test_accuracy" in summary:  # the threshold is for the global model
        return f"{percent(summary['final_own_test_accuracy'])} with own models, {summary['seconds']:.1f} s"
    reached = summary["rounds_to_threshold"]
    goal = f"{100 * summary['threshold']:g} %"
    when = f"never reached {goal}" if reached is None else f"reached {goal} in round {reached}"
    return f"{percent(summary['final_test_accuracy'])}, {when}, {summary['seconds']:.1f} s"


class Lines(Silent):
    """Plain lines, at most one every few seconds."""

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self.console, self.every = console, every
        self.total: dict[str, tuple[int, int, float]] = {}
        self.last = 0.0

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def grid(self, runs: int) -> None:
        self._print(f"{runs} runs" if runs != 1 else "1 run")

    def doing(self, what: str) -> None:
        self._print(f"{what} …")

    def begin(self, name: str, rounds: int, done: int) -> None:
        self.total[name] = (rounds, done, time.monotonic())
        if done:
            self._print(f"{name}: continues after round {done - 1}")

    def round(self, name: str, record: Record) -> None:
        now = time.monotonic()
        rounds, before, since = self.total[name]
        done = record["round"] + 1
        if now - self.last >= self.every and done < rounds:
            self.last = now
            left = timedelta(seconds=round((now - since) / (done - before) * (rounds - done)))
            self._print(f"{name}: round {done}/{rounds}, accuracy {percent(record['test_accuracy'])}, {left} left")

    def end(self, name: str, summary: Record, kept: bool) -> None:
        self._print(f"{name}: {result(summary)}{' (kept)' if kept else ''}")


class Bars(Silent):
    """Live bars: one for the grid, one for each current run."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            TimeRemainingColumn(),
            console=console,
        )
        self.all = self.progress.add_task("runs", total=None, note="")
        self.tasks: dict[str, Any] = {}

    def grid(self, runs: int) -> None:
        self.progress.update(self.all, total=runs)

    def doing(self, what: str) -> None:
        self.progress.update(self.all, note=what)

    def begin(self, name: str, rounds: int, done: int) -> None:
        self.progress.update(self.all, note="")
        self.tasks[name] = self.progress.add_task(name, total=rounds, completed=done, note="")

    def round(self, name: str, record: Record) -> None:
        note = f"accuracy {percent(record['test_accuracy'])}"
        self.progress.update(self.tasks[name], completed=record["round"] + 1, note=note)

    def end(self, name: str, summary: Record, kept: bool) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
        mark = ("✗ ", "red") if summary["status"] == "diverged" else ("✓ ", "green")
        self.progress.console.print(
            Text.assemble(mark, (name, "bold"), f"  {result(summary)}", (" (kept)" if kept else "", "dim"))
        )
        self.progress.advance(self.all)

    def close(self) -> None:
        """Leave only the number of runs, if there were any."""
        runs = self.progress.tasks[0].total
        self.progress.update(self.all, note="", visible=runs is not None)


@contextmanager
def shown(console: Console) -> Iterator[Listener]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Lines(console)
        return
    bars = Bars(console)
    with bars.progress:
        yield bars
        bars.close()
