"""Timing: competitors take turns, so that disturbances affect all of them equally."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedkin.errors import BadInput

# Every competitor has at least so many turns, and no more once it has used so many seconds.
LEAST_TURNS, ALLOWANCE = 2, 8.0
# The estimated duration of a later turn, without the slow competitors, relative to a full one.
LATE = 0.2
# The minimum duration of a turn in seconds: the time of a single round of a few milliseconds is mostly noise.
LEAST_SECONDS = 0.3


@dataclass(frozen=True)
class Options:
    """The options of the command.

    repeat   number of turns
    threads  number of threads
    quick    few clients and short turns: a trial whose numbers are not meaningful
    only     words that choose a part of a measurement
    """

    repeat: int = 7
    threads: int = field(default_factory=torch.get_num_threads)
    quick: bool = False
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.repeat < LEAST_TURNS:
            raise BadInput(f"--repeat {self.repeat} is too few for a range: give at least {LEAST_TURNS}")
        if self.threads < 1:
            raise BadInput(f"--threads {self.threads} is out of range: it must be at least 1")

    @property
    def words(self) -> str:
        """The options as on the command line."""
        return f"--repeat {self.repeat} --threads {self.threads}{' --quick' if self.quick else ''}"


@dataclass(frozen=True)
class Pace:
    """How long competitors are timed.

    least_turns  every competitor has at least so many turns
    allowance    and no more once it has used so many seconds
    block        the minimum duration of a turn in seconds, in which short rounds are repeated
    long         a competitor whose first round takes more seconds has one turn: it is not worth more
    unprepared   competitors that prepare nothing in their first round: a long one is their turn
    """

    least_turns: int = LEAST_TURNS
    allowance: float = ALLOWANCE
    block: float = LEAST_SECONDS
    long: float = math.inf
    unprepared: tuple[str, ...] = ()


@dataclass
class Times:
    """Seconds per round of a competitor: of its first round, and in each turn (None: it had no turn)."""

    first: float
    turns: list[float | None] = field(default_factory=list)

    @property
    def spent(self) -> list[float]:
        """Seconds per round in the turns that it had."""
        return [seconds for seconds in self.turns if seconds is not None]

    def each(self, runs: float) -> "Times":
        """Seconds per run of a competitor that executes several, or a fraction of one."""
        return Times(self.first / runs, [None if seconds is None else seconds / runs for seconds in self.turns])

    def then(self, other: "Times") -> "Times":
        """Seconds of both, one after the other, in the turns that both had."""
        both = zip(self.turns, other.turns, strict=True)
        return Times(self.first + other.first, [None if None in (a, b) else a + b for a, b in both])  # type: ignore[operator]


@dataclass(frozen=True)
class Spread:
    """Median and range of a quantity measured several times."""

    median: float
    low: float
    high: float

    def text(self, form: str = ".3g", scale: float = 1.0) -> str:
        """The median, with the range in brackets."""
        return f"{scale * self.median:{form}} ({scale * self.low:{form}}–{scale * self.high:{form}})"


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(values), min(values), max(values))


def ratio(slower: Times, faster: Times) -> Spread:
    """The ratio of two times, from the turns that both competitors had."""
    both = zip(slower.turns, faster.turns, strict=True)
    return spread([slow / fast for slow, fast in both if slow is not None and fast is not None])


def interleaved(
    rounds: Mapping[str, Callable[[], object]],
    options: Options,
    notify: Callable[[str], None],
    advance: Callable[[float], None],
    pace: Pace = Pace(),
) -> dict[str, Times]:
    """Time competitors in turns, after a first round of each that warms up and prepares what is reused.

    The first competitor changes from turn to turn, so that none always runs after the same other one.

    rounds   one round of each competitor, by its name
    notify   called with what is being timed
    advance  called after each turn with its part of a full turn
    """
    times, block, names = {}, {}, list(rounds)
    for name in names:
        notify(f"{name}, warming up")
        times[name] = Times(seconds_of(rounds[name]))
        # The first round includes preparations: the second determines how many rounds make up a turn.
        may_be_short = not options.quick and times[name].first < 10 * pace.block
        again = seconds_of(rounds[name]) if may_be_short else math.inf
        block[name] = max(1, math.ceil(pace.block / again))
    advance(1.0)
    for turn in range(options.repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            mine = times[name]
            if mine.first > pace.long and turn:
                mine.turns.append(None)
                continue
            if mine.first > pace.long and name in pace.unprepared:
                mine.turns.append(mine.first)
                continue
            if turn >= pace.least_turns and sum(mine.spent) * block[name] > pace.allowance:
                mine.turns.append(None)
                continue
            notify(f"{name}, turn {turn + 1} of {options.repeat}")
            mine.turns.append(seconds_of(rounds[name], block[name]))
        advance(1.0 if turn < LEAST_TURNS else LATE)
    return times


def seconds_of(round: Callable[[], object], times: int = 1) -> float:
    """Seconds per round, averaged over some rounds."""
    began = time.perf_counter()
    for _ in range(times):
        round()
    return (time.perf_counter() - began) / times


class Product:
    """(c) A product of large square matrices in single precision, which determines the machine's limit."""

    def __init__(self, size: int = 2048) -> None:
        self.one, self.other = torch.rand(size, size), torch.rand(size, size)
        self.result = torch.empty(size, size)
        self.operations = 2.0 * size**3
        self.best = math.inf

    def round(self) -> None:
        """Time one product."""
        self.best = min(self.best, seconds_of(lambda: torch.mm(self.one, self.other, out=self.result)))

    @property
    def rate(self) -> float:
        """The highest measured rate, in operations per second."""
        return self.operations / self.best
