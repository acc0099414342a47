"""Progress of runs: live bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
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

from fedkin.data.measure import ACCURACY, measure_in
from fedkin.types import Record


class Listener(Protocol):
    """Receives the progress of runs."""

    def grid(self, runs: int) -> None:
        """A grid of this many runs starts."""

    def doing(self, what: str) -> None:
        """A task between rounds starts, such as data loading."""

    def together(self, names: Sequence[str]) -> None:
        """Runs with these names are executed together; `begin` follows for each of them."""

    def about(self, name: str, folder: Path, settings: Record) -> None:
        """A run is about to begin, with these settings, in this folder."""

    def begin(self, name: str, rounds: int, done: int) -> None:
        """A run starts, or continues after `done` rounds."""

    def round(self, name: str, record: Record) -> None:
        """A round has finished."""

    def warn(self, name: str, sentence: str) -> None:
        """There is something to say about a run that goes on."""

    def end(self, name: str, summary: Record, kept: bool) -> None:
        """A run has ended, or had ended before (`kept`)."""


class Silent:
    """No output: the default from Python."""

    def grid(self, runs: int) -> None:
        pass

    def doing(self, what: str) -> None:
        pass

    def together(self, names: Sequence[str]) -> None:
        pass

    def about(self, name: str, folder: Path, settings: Record) -> None:
        pass

    def begin(self, name: str, rounds: int, done: int) -> None:
        pass

    def round(self, name: str, record: Record) -> None:
        pass

    def warn(self, name: str, sentence: str) -> None:
        pass

    def end(self, name: str, summary: Record, kept: bool) -> None:
        pass


def standing(record: Record) -> str:
    """The main measure after a round as text: accuracy 84.4 %; nothing if the round was not measured."""
    measure = measure_in(record)
    key = f"test_{measure.name}"
    return f"{measure.title} {measure.text(record[key])}" if key in record else ""


def standing_of(records: Sequence[Record]) -> str:
    """The main measure of several runs after a round as text, from the lowest to the highest.

    >>> standing_of([{"test_accuracy": 0.5}, {"test_accuracy": None}, {"test_accuracy": 0.75}])
    'accuracy 50.0 % to 75.0 %'
    """
    measure = measure_in(records[0])
    known = sorted(value for record in records if (value := record[f"test_{measure.name}"]) is not None)
    words = dict.fromkeys(measure.text(value) for value in (known[:1] + known[-1:]) or [None])
    return f"{measure.title} {' to '.join(words)}"


def result(summary: Record) -> str:
    """A short text with the result of a run."""
    if summary["status"] == "diverged":
        return f"diverged at round {summary['diverged_at']}"
    measure = measure_in(summary)
    what = "" if measure is ACCURACY else f"{measure.title} "
    if (own := f"final_own_test_{measure.name}") in summary:  # the threshold is for the global model
        return f"{what}{measure.text(summary[own])} with own models, {summary['seconds']:.1f} s"
    words = [what + measure.text(summary[f"final_test_{measure.name}"])]
    if summary["threshold"] is not None:
        reached, goal = summary["rounds_to_threshold"], measure.goal(summary["threshold"])
        words.append(f"never reached {goal}" if reached is None else f"reached {goal} in round {reached}")
    return ", ".join([*words, f"{summary['seconds']:.1f} s"])


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
            left = timedelta(seconds=round((now - since) / max(done - before, 1) * (rounds - done)))
            self._print(", ".join(filter(None, [f"{name}: round {done}/{rounds}", standing(record), f"{left} left"])))

    def warn(self, name: str, sentence: str) -> None:
        self._print(f"{name}: {sentence}")

    def end(self, name: str, summary: Record, kept: bool) -> None:
        self._print(f"{name}: {result(summary)}{' (kept)' if kept else ''}")


class Bars(Silent):
    """Live bars: one for the grid, and one for the current run or for the runs that are executed together."""

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
        self.tasks: dict[str, Any] = {}  # the bar of each current run
        self.records: dict[str, Record] = {}  # the last one of each current run

    def grid(self, runs: int) -> None:
        self.progress.update(self.all, total=runs, completed=0)

    def doing(self, what: str) -> None:
        self.progress.update(self.all, note=what)

    def together(self, names: Sequence[str]) -> None:
        if names:
            shared = self.progress.add_task("", total=None, note="")
            self.tasks |= dict.fromkeys(names, shared)
            self._describe(shared)

    def begin(self, name: str, rounds: int, done: int) -> None:
        if name not in self.tasks:
            self.together([name])
        self.progress.update(self.all, note="")
        self.progress.update(self.tasks[name], total=rounds, completed=done)

    def round(self, name: str, record: Record) -> None:
        self.progress.update(self.all, note="")
        self.progress.update(self.tasks[name], completed=record["round"] + 1)
        if not standing(record):  # the last measurement stays
            return
        self.records[name] = record
        note = standing_of([self.records[run] for run in self._runs_of(self.tasks[name]) if run in self.records])
        self.progress.update(self.tasks[name], note=note)

    def warn(self, name: str, sentence: str) -> None:
        self.progress.console.print(Text.assemble(("! ", "yellow"), (name, "bold"), f"  {sentence}"), soft_wrap=True)

    def end(self, name: str, summary: Record, kept: bool) -> None:
        self.progress.update(self.all, note="")
        if (bar := self.tasks.pop(name, None)) is not None:
            self.records.pop(name, None)
            self._describe(bar) if self._runs_of(bar) else self.progress.remove_task(bar)
        mark = ("✗ ", "red") if summary["status"] == "diverged" else ("✓ ", "green")
        self.progress.console.print(
            Text.assemble(mark, (name, "bold"), f"  {result(summary)}", (" (kept)" if kept else "", "dim"))
        )
        self.progress.advance(self.all)

    def _runs_of(self, bar: Any) -> list[str]:
        return [name for name, task in self.tasks.items() if task == bar]

    def _describe(self, bar: Any) -> None:
        """Put the name of the run on its bar, or the number of the runs that share it."""
        runs = self._runs_of(bar)
        self.progress.update(bar, description=runs[0] if len(runs) == 1 else f"{len(runs)} runs together")

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
