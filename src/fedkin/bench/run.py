"""`fedkin bench`: how fast the engine is, against loops written by hand and against the machine's own limit.

All competitors are measured in one run and interleaved, a block of rounds each in turn, so that noise hits everyone
alike; ratios are taken within the same turn.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fedkin.bench import growth as growing
from fedkin.bench.loops import BETAS, LOOPS, Competitor, engine, sweep
from fedkin.bench.works import CLASSES, WORKS, Work
from fedkin.errors import BadInput, nearest
from fedkin.files import as_json, write_atomically
from fedkin.reports.figures import save
from fedkin.reports.pages import machine, with_section
from fedkin.reports.tables import Cell, Table
from fedkin.types import Record

# Turns everyone gets, and the seconds after which a slow competitor gets no more than these.
LEAST_TURNS, ALLOWANCE = 2, 8.0
# The share of a turn in which the slow ones have used up theirs.
LATE = 0.2
# A turn lasts at least so many seconds: a round of a few milliseconds alone is mostly noise.
LEAST_SECONDS = 0.3
# Works say how long they last on a machine of so many operations a second.
REFERENCE_RATE = 150e9


@dataclass(frozen=True)
class Options:
    """What can be chosen.

    repeat   how many turns
    threads  of the computation
    quick    a few clients and short turns: for trying out, not for numbers
    """

    repeat: int = 7
    threads: int = field(default_factory=torch.get_num_threads)
    quick: bool = False

    def __post_init__(self) -> None:
        if self.repeat < LEAST_TURNS:
            raise BadInput(f"--repeat {self.repeat} is too few: a spread needs at least {LEAST_TURNS}")
        if self.threads < 1:
            raise BadInput(f"--threads {self.threads} is out of range: it must be at least 1")

    @property
    def words(self) -> str:
        """As given on the command line."""
        return f"--repeat {self.repeat} --threads {self.threads}{' --quick' if self.quick else ''}"


@dataclass(frozen=True)
class Section:
    """One measurement: its numbers, the table of them, and what has to be said along with it."""

    name: str
    records: list[Record]
    table: Table
    notes: tuple[str, ...] = ()
    figure: Figure | None = None


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass
class Times:
    """Seconds a competitor took for a round: for its very first, and in each turn (None where it had no turn)."""

    first: float
    turns: list[float | None] = field(default_factory=list)

    @property
    def spent(self) -> list[float]:
        """The turns it had."""
        return [seconds for seconds in self.turns if seconds is not None]

    def each(self, runs: int) -> "Times":
        """Of one run, where the competitor does several."""
        return Times(self.first / runs, [None if seconds is None else seconds / runs for seconds in self.turns])


@dataclass(frozen=True)
class Spread:
    """A quantity measured several times."""

    median: float
    low: float
    high: float

    def text(self, form: str = ".3g", scale: float = 1.0) -> str:
        """Median, and from lowest to highest in brackets."""
        return f"{scale * self.median:{form}} ({scale * self.low:{form}}–{scale * self.high:{form}})"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(values), min(values), max(values))


def ratio(slower: Times, faster: Times) -> Spread:
    """How many times faster, from the turns that both had."""
    both = zip(slower.turns, faster.turns, strict=True)
    return spread([slow / fast for slow, fast in both if slow is not None and fast is not None])


def interleaved(
    rounds: Mapping[str, Callable[[], object]],
    options: Options,
    told: Callable[[str], None],
    turned: Callable[[float], None],
) -> dict[str, Times]:
    """Give everyone a turn, again and again. A first round of each warms up and does what is done only once.

    Who comes first changes from turn to turn, so that nobody always finds the cache as the same other left it.
    """
    times, block, names = {}, {}, list(rounds)
    for name in names:
        told(f"{name}, warming up")
        times[name] = Times(seconds_of(rounds[name]))
        # The first round may be slow for what it prepares: a second says how many make up a turn.
        may_be_short = not options.quick and times[name].first < 10 * LEAST_SECONDS
        again = seconds_of(rounds[name]) if may_be_short else math.inf
        block[name] = max(1, math.ceil(LEAST_SECONDS / again))
    turned(1.0)
    for turn in range(options.repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            mine = times[name]
            if turn >= LEAST_TURNS and sum(mine.spent) * block[name] > ALLOWANCE:
                mine.turns.append(None)
                continue
            told(f"{name}, turn {turn + 1} of {options.repeat}")
            mine.turns.append(seconds_of(rounds[name], block[name]))
        turned(1.0 if turn < LEAST_TURNS else LATE)
    return times


def seconds_of(round: Callable[[], object], times: int = 1) -> float:
    """Of one round, on average over a few in a row."""
    began = time.perf_counter()
    for _ in range(times):
        round()
    return (time.perf_counter() - began) / times


class Product:
    """(c) A product of large square matrices in single precision: nothing makes better use of the machine."""

    def __init__(self, size: int = 2048) -> None:
        self.one, self.other = torch.rand(size, size), torch.rand(size, size)
        self.result = torch.empty(size, size)
        self.operations = 2.0 * size**3
        self.best = math.inf

    def round(self) -> None:
        """One product, timed."""
        self.best = min(self.best, seconds_of(lambda: torch.mm(self.one, self.other, out=self.result)))

    @property
    def rate(self) -> float:
        """Operations a second, at best."""
        return self.operations / self.best


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """PyTorch's threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- speed: the engine against the loops and the limit -----------------------------------------------------------------


def speed(works: Sequence[Work], options: Options, meter: "Meter") -> Section:
    """All works, one after the other."""
    with threads_set(options.threads):
        records = [speed_of(work, options, meter) for work in works]
    table = Table(
        "Seconds a round, median (lowest–highest); ratios within the same turn",
        ("work", "engine", "(a) ÷ engine", "(b) ÷ engine", "sweep", "(b) ÷ sweep",
         "(c)", "% of (c)", "first", "differs"),
        tuple(_speed_row(record) for record in records),
    )  # fmt: skip
    notes = (
        "(a) `DataLoader` for every client, `optim.SGD`, deep copies of the model, averaged state dicts.",
        "(b) The same slicing tensors, with one module and one optimiser for all clients.",
        f"Sweep: {len(BETAS)} runs of FedKin that differ in β, executed together as lanes; seconds of one of them "
        "(– where it is not measured).",
        "(c) The operations a round needs plainly, at the best rate of a large matrix product: "
        + "; ".join(
            f"`{r['work']}` {r['formula']} = {r['operations'] / 1e9:.4g}·10⁹ at {r['rate'] / 1e9:.0f}·10⁹ a second"
            for r in records
        )
        + ".",
        "% of (c): how near the engine comes to that limit. In sample space it needs fewer operations than are counted "
        "here, so it can exceed 100 %.",
        "First: the engine's first round, with what is prepared once for all rounds.",
        "Differs: (a)'s and (b)'s models from the engine's after one round, relative to how far the round moved it.",
    )
    return Section("speed", records, table, notes)


def speed_of(work: Work, options: Options, meter: "Meter") -> Record:
    """One work."""

    def told(what: str) -> None:
        meter.tell(f"{work.name}: {what}")

    told("making up the data")
    federation = work.federation()
    competitors: dict[str, Competitor] = {"engine": engine(work, federation)}
    competitors |= {name: loop(work, federation) for name, loop in LOOPS.items()}
    start = competitors["engine"].global_model.clone()
    after_one: dict[str, torch.Tensor] = {}
    product = Product(512 if options.quick else 2048)
    rounds: dict[str, Callable[[], object]] = {"product": product.round}
    for name, competitor in competitors.items():
        rounds[name] = _noting(name, competitor, after_one)
    if work.sweep:
        rounds["sweep"] = sweep(work, federation).round
    times = interleaved(rounds, options, told, lambda turn: meter.advance(turn * _seconds(work)))

    mine = after_one["engine"]
    moved = torch.linalg.vector_norm(mine - start)
    record: Record = {
        "work": work.name,
        "clients": work.clients,
        "quick": options.quick,
        "threads": options.threads,
        "formula": work.formula,
        "operations": work.arithmetic(),
        "rate": product.rate,
        "limit": work.arithmetic() / product.rate,
        "rounds": {name: asdict(t) for name, t in times.items() if name != "product"},
        "engine": asdict(spread(times["engine"].spent)),
        "difference": {
            name: float(torch.linalg.vector_norm(after_one[name] - mine) / moved) for name in LOOPS
        },
        "ratios": {name: asdict(ratio(times[name], times["engine"])) for name in LOOPS},
    }  # fmt: skip
    record["of_limit"] = asdict(spread([record["limit"] / seconds for seconds in times["engine"].spent]))
    if "sweep" in times:
        each = times["sweep"].each(len(BETAS))
        record["sweep"] = asdict(spread(each.spent))
        record["sweep_ratios"] = {name: asdict(ratio(times[name], each)) for name in LOOPS}
    return record


def _noting(name: str, competitor: Competitor, after_one: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A competitor's round; the model after its first one is kept for comparison."""

    def round() -> None:
        competitor.round()
        if name not in after_one:
            after_one[name] = competitor.global_model.clone()

    return round


def _speed_row(record: Record) -> tuple[Cell, ...]:
    def cell(key: str, *inner: str, form: str = ".3g", scale: float = 1.0) -> Cell:
        found: Any = record.get(key)
        for name in inner:
            found = found and found[name]
        return Cell(Spread(**found).text(form, scale), found["median"]) if found else Cell("–")

    worst = max(record["difference"].values())
    return (
        Cell(record["work"], record["work"]),
        cell("engine"),
        cell("ratios", "loop"),
        cell("ratios", "slices"),
        cell("sweep"),
        cell("sweep_ratios", "slices"),
        Cell(f"{record['limit']:.3g}", record["limit"]),
        cell("of_limit", form=".0f", scale=100),
        Cell(f"{record['rounds']['engine']['first']:.3g}", record["rounds"]["engine"]["first"]),
        Cell(f"{worst:.0e}", worst),
    )


# -- threads -----------------------------------------------------------------------------------------------------------


def threads(works: Sequence[Work], options: Options, meter: "Meter") -> Section:
    """One thread against all, in the engine alone."""
    if options.threads < 2:
        raise BadInput("threads are compared with one thread: give --threads 2 or more")
    with threads_set(options.threads):
        records = [record for work in works for record in threads_of(work, options, meter)]
    many = f"{options.threads} threads"
    table = Table(
        f"Seconds a round with 1 and with {many}, median (lowest–highest)",
        ("work", "runs", "1 thread", many, f"{many}, times faster"),
        tuple(
            (
                Cell(r["work"], r["work"]),
                Cell(r["runs"], r["runs"]),
                *(Cell(Spread(**r[key]).text(), r[key]["median"]) for key in ("one", "many", "ratio")),
            )
            for r in records
        ),
    )
    return Section("threads", records, table)


def threads_of(work: Work, options: Options, meter: "Meter") -> Iterator[Record]:
    """One work: a run alone, and a sweep."""
    meter.tell(f"{work.name}: making up the data")
    federation = work.federation()
    measured = {"one run": engine(work, federation)}
    if work.sweep:
        measured[f"sweep of {len(BETAS)}"] = sweep(work, federation)
    for runs, competitor in measured.items():
        rounds = {str(n): _with_threads(competitor, n) for n in (1, options.threads)}
        times = interleaved(
            rounds,
            options,
            lambda what, runs=runs: meter.tell(f"{work.name}, {runs}, threads: {what}"),  # type: ignore[misc]
            lambda turn: meter.advance(turn * _seconds(work) / len(measured)),
        )
        one, many = times["1"], times[str(options.threads)]
        yield {
            "work": work.name,
            "runs": runs,
            "quick": options.quick,
            "threads": options.threads,
            "one": asdict(spread(one.spent)),
            "many": asdict(spread(many.spent)),
            "ratio": asdict(ratio(one, many)),
        }


def _with_threads(competitor: Competitor, threads: int) -> Callable[[], None]:
    def round() -> None:
        with threads_set(threads):
            competitor.round()

    return round


# -- growth ------------------------------------------------------------------------------------------------------------


def growth(works: Sequence[Work], options: Options, meter: "Meter") -> Section:
    """Ever more clients, of whom few take part."""
    grown = []
    for one in growing.measured(options.quick, options.threads, meter.tell):
        grown.append(one)
        meter.advance(_clients_seconds(one.clients))
    mib = growing.MIB
    table = Table(
        f"Growth: M = {growing.TAKE_PART} of C clients take part, {growing.SAMPLES} samples each, "
        f"D = {growing.FEATURES}, K = {CLASSES}",
        ("clients", "absent", "seconds a round", "peak memory, MiB", "of it before, MiB", "messages, s", "graph, s"),
        tuple(
            (
                Cell(f"{g.clients:,}", float(g.clients)),
                Cell(g.absent, g.absent),
                Cell(spread(g.rounds).text(), g.seconds),
                *(Cell(f"{n / mib:.0f}", n / mib) for n in (g.peak, g.before)),
                Cell(f"{g.messages:.3g}", g.messages),
                Cell(f"{g.graph:.3g}", g.graph),
            )
            for g in grown
        ),
    )
    notes = (
        "Each line is a process of its own; its memory before there is a federation is PyTorch and the package.",
        'With `absent = "last"` the server holds a model of every client from the start: the most it ever does.',
    )
    records = [asdict(g) | {"seconds": g.seconds} for g in grown]
    return Section("growth", records, table, notes, growing.figure(grown))


# -- all together ------------------------------------------------------------------------------------------------------


def _seconds(work: Work) -> float:
    """Of a turn, roughly."""
    return work.seconds * work.clients / WORKS[work.name].clients


def _work_seconds(works: Sequence[Work], options: Options) -> float:
    turns = 1 + LEAST_TURNS + LATE * (options.repeat - LEAST_TURNS)
    return turns * sum(map(_seconds, works))


def _clients_seconds(clients: int) -> float:
    return 4 + clients / 2000


def _growth_seconds(works: Sequence[Work], options: Options) -> float:
    sizes = growing.QUICK_CLIENTS if options.quick else growing.CLIENTS
    return sum(_clients_seconds(clients) for clients in sizes) * len(growing.ABSENT)


@dataclass(frozen=True)
class Measurement:
    """What can be measured, and roughly how long it lasts."""

    run: Callable[[Sequence[Work], Options, "Meter"], Section]
    seconds: Callable[[Sequence[Work], Options], float]


MEASUREMENTS: dict[str, Measurement] = {
    "speed": Measurement(speed, _work_seconds),
    "threads": Measurement(threads, _work_seconds),
    "growth": Measurement(growth, _growth_seconds),
}


def chosen(names: Sequence[str], quick: bool) -> tuple[list[str], list[Work]]:
    """Measurements and works among the names; without any of the first it is speed, without the second all works."""
    known = [*MEASUREMENTS, *WORKS]
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"there is nothing to measure called '{unknown[0]}'{nearest(unknown[0], known)}")
    measurements = [name for name in MEASUREMENTS if name in names] or ["speed"]
    works = [work for name, work in WORKS.items() if name in names] or list(WORKS.values())
    return measurements, [work.quick() if quick else work for work in works]


def run(
    names: Sequence[str],
    options: Options,
    console: Console,
    *,
    json: Path | None = None,
    markdown: Path | None = None,
    figure: Path | None = None,
) -> list[Section]:
    """Measure, print the tables, and write what is asked for."""
    measurements, works = chosen(names, options.quick)
    if figure and "growth" not in measurements:
        raise BadInput("the figure shows growth: measure it too (fedkin bench growth --figure …)")
    for path in filter(None, (json, markdown, figure)):
        path.parent.mkdir(parents=True, exist_ok=True)  # that it cannot be made is better known now than in the end
    facts = conditions()
    if facts["load"] > 0.5:
        console.print(f"The machine is busy (load {facts['load']:.1f}): numbers will be noisy.", highlight=False)
    with threads_set(options.threads):
        product = Product()
        seconds_of(product.round, 3)
    seconds = sum(MEASUREMENTS[name].seconds(works, options) for name in measurements)
    meter = Meter(console, seconds, seconds * REFERENCE_RATE / product.rate)
    with meter:
        sections = [MEASUREMENTS[name].run(works, options, meter) for name in measurements]
    for section in sections:
        console.print(section.table.rich())
        for note in section.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{facts['date']}, {facts['machine']}", highlight=False)
    command = f"fedkin bench {' '.join(names)}{' ' if names else ''}{options.words}"
    if json:
        content = {**facts, "command": command} | {section.name: section.records for section in sections}
        write_atomically(json, as_json(content, indent=1).encode())
    if markdown:
        text = markdown.read_text() if markdown.exists() else ""
        for section in sections:
            text = with_section(text, section.name, page(section, facts, command))
        write_atomically(markdown, text.encode())
    for section in sections:
        if figure and section.figure:
            save(section.figure, figure)
    return sections


def conditions() -> Record:
    """Where and when the numbers were measured, and how busy the machine was with other things before."""
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }


def page(section: Section, facts: Record, command: str) -> str:
    """A measurement for the documentation: table, notes, and where the numbers come from."""
    lines = [
        f"{section.table.title}.",
        "",
        section.table.markdown(),
        *(f"- {note}" for note in section.notes),
        "",
        f"Measured on {facts['date']} by `{command}` on {facts['machine']}.",
    ]
    return "\n".join(lines)


class Meter:
    """What a person sees meanwhile: a live bar on a terminal, a line every few seconds elsewhere.

    total     the works' own estimate of the seconds, in which progress is counted
    expected  the same for this machine
    """

    def __init__(self, console: Console, total: float, expected: float, every: float = 5.0) -> None:
        self.console, self.total, self.expected, self.every = console, total, expected, every
        self.done, self.began = 0.0, time.monotonic()
        self.last = self.began
        self.bar = Progress(
            SpinnerColumn(), BarColumn(bar_width=30), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> None:
        # to whole minutes, because it is a guess
        long = f"about {math.ceil(self.expected / 60)} minutes" if self.expected > 60 else "less than a minute"
        self.console.print(f"This takes {long}.", highlight=False)
        if self.console.is_terminal:
            self.bar.start()

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def tell(self, what: str) -> None:
        """What is being done now."""
        text = f"{what}{self._left()}"
        now = time.monotonic()
        if self.console.is_terminal:
            self.bar.update(self.task, description=text)
        elif now - self.last >= self.every:
            self.last = now
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def advance(self, seconds: float) -> None:
        """So much of the total is done."""
        self.done += seconds
        self.bar.update(self.task, completed=self.done)

    def _left(self) -> str:
        if self.done == 0:
            return ""
        elapsed = time.monotonic() - self.began
        left = max(0.0, elapsed / self.done * (self.total - self.done))
        return f" ({timedelta(seconds=round(left))} left)"
