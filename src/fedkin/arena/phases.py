"""Progress of a comparison: one bar, or a line every few seconds, with an estimate of the remaining time."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedkin.experiments.progress import Silent
from fedkin.output import error_console
from fedkin.types import Record

Show = Callable[[str, float, float | None], None]  # what is done, the share that is done, the seconds that are left

# Shares of the work, and of a phase, that have to be done before the rest is estimated by them.
LEAST_DONE, LEAST_OF_PHASE = 0.01, 0.1


@dataclass(frozen=True)
class Phase:
    """A phase of a comparison.

    name    in words
    runs    number of its runs
    rounds  that each of them takes
    cost    of a round, in those of the first phase
    """

    name: str
    runs: int
    rounds: int
    cost: float

    @property
    def size(self) -> float:
        """Estimated duration, in rounds of the first phase."""
        return self.runs * self.rounds * self.cost


class Phases(Silent):
    """Counts the rounds of all runs, and shows where the comparison is. Runs that are kept count as done."""

    def __init__(self, works: Sequence[Phase], show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self.works, self.show, self.clock = list(works), show, clock
        self.phase, self.ended, self.rounds = -1, 0, 0
        self.kept = 0.0  # what was done before, by an earlier command
        self.since = clock()
        self.phase_kept, self.phase_since = self.kept, self.since

    def next(self, name: str) -> None:
        """The phase of this name begins."""
        self.phase = next(k for k, work in enumerate(self.works) if work.name == name)
        self.ended = self.rounds = 0
        self.phase_kept, self.phase_since = self.kept, self.clock()
        self._tell()

    @property
    def _work(self) -> Phase:
        return self.works[self.phase]

    @property
    def done(self) -> float:
        """What is done, in rounds of the first phase."""
        return self._before + min(self.rounds * self._work.cost, self._work.size)

    @property
    def _before(self) -> float:
        return sum(work.size for work in self.works[: self.phase])

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None as long as there is too little to judge by.

        The current phase says best how fast this machine is now, as soon as enough of it is done. Runs that share
        products report a round one after the other when all have done it: the first of sixteen would make it look
        sixteen times as slow.
        """
        total, now = sum(work.size for work in self.works), self.clock()
        done, of_phase = self.done - self.kept, self.done - self._before - (self.kept - self.phase_kept)
        if of_phase >= LEAST_OF_PHASE * self._work.size:
            return (now - self.phase_since) / of_phase * (total - self.done)
        if done > LEAST_DONE * (total - self.kept):
            return (now - self.since) / done * (total - self.done)
        return None

    def round(self, name: str, record: Record) -> None:
        self.rounds += 1
        self._tell()

    def doing(self, what: str) -> None:
        self.show(what, self._share, self.left)

    def end(self, name: str, summary: Record, kept: bool) -> None:
        self.ended += 1
        rounds = self._work.rounds
        if kept:
            self.rounds += rounds
            self.kept += rounds * self._work.cost
        elif summary["status"] == "diverged":
            self.rounds += max(0, rounds - 1 - int(summary["diverged_at"]))
        self._tell()

    @property
    def _share(self) -> float:
        return self.done / sum(work.size for work in self.works)

    def _tell(self) -> None:
        work = self._work
        self.show(f"{work.name}: {min(self.ended, work.runs)} of {work.runs} runs", self._share, self.left)


@contextmanager
def phases_watched() -> Iterator[Show]:
    """A bar where somebody looks at it, on a terminal or in a notebook; on standard error, as scripts print results."""
    console = error_console()
    if console.is_terminal or console.is_jupyter:
        with phases_shown(console) as show:
            yield show
    else:
        yield lambda what, share, left: None


@contextmanager
def phases_shown(console: Console, every: float = 5.0) -> Iterator[Show]:
    """A bar on a terminal, a line every few seconds elsewhere."""

    def words(what: str, left: float | None) -> str:
        return what if left is None else f"{what}, about {timedelta(seconds=round(left))} left"

    if console.is_terminal or console.is_jupyter:
        bar = Progress(
            SpinnerColumn(), BarColumn(bar_width=30), TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(), console=console, transient=True,
        )  # fmt: skip
        task = bar.add_task("", total=1.0)
        with bar:
            yield lambda what, share, left: bar.update(task, completed=share, description=words(what, left))
        return
    last = -every

    def line(what: str, share: float, left: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            console.print(words(what, left), markup=False, highlight=False, soft_wrap=True)

    yield line
