"""Growth: time and memory of rounds and graph for growing numbers of clients, of which few are sampled per round.

Each number of clients is measured in a process of its own (`growth_process.py`), so that its peak memory is its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from fedkin.bench import growth_process
from fedkin.bench.growth_process import ABSENT, FEATURES, SAMPLES, TAKE_PART, GrowthRecord
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.timing import Options, spread
from fedkin.bench.workloads import CLASSES, Workload
from fedkin.errors import BadInput
from fedkin.reports.figures import ACCENT, FIGURE_WIDTH, MUTED, style
from fedkin.reports.tables import Cell, Table

CLIENT_COUNTS = (100, 1_000, 10_000, 100_000)
QUICK_COUNTS = (100, 200)
MIB = 1 << 20


def measure_growth(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Time and memory for growing numbers of clients, of which a fixed number is sampled per round."""
    records: list[GrowthRecord] = []
    for one in growth_records(options.quick, options.threads, meter.notify):
        records.append(one)
        meter.advance(_clients_seconds(one.clients))
    table = Table(
        f"Growth: M = {TAKE_PART} of C clients per round, {SAMPLES} samples each, D = {FEATURES}, K = {CLASSES}",
        ("clients", "absent", "seconds per round", "peak memory, MiB", "before, MiB", "messages, s", "graph, s"),
        tuple(
            (
                Cell(f"{g.clients:,}", float(g.clients)),
                Cell(g.absent, g.absent),
                Cell(spread(g.rounds).text(), g.seconds),
                *(Cell(f"{n / MIB:.0f}", n / MIB) for n in (g.peak, g.before)),
                Cell(f"{g.messages:.3g}", g.messages),
                Cell(f"{g.graph:.3g}", g.graph),
            )
            for g in records
        ),
    )
    notes = (
        "Each row is measured in a process of its own. Before: memory before the federation is made.",
        'With `absent = "last"` the server has a model of every client from the start, which is the largest state.',
    )
    content = [asdict(g) | {"seconds": g.seconds} for g in records]
    return BenchResult("growth", content, table, notes, growth_figure(records))


def growth_records(quick: bool, threads: int, notify: Callable[[str], None]) -> Iterator[GrowthRecord]:
    """The records of all numbers of clients, each measured in a process of its own."""
    for clients in QUICK_COUNTS if quick else CLIENT_COUNTS:
        for absent in ABSENT:
            notify(f"growth: {clients:,} clients, absent = {absent}")
            values = in_own_process(growth_process.__name__, clients, absent, threads=threads)
            yield GrowthRecord(**{**values, "rounds": tuple(values["rounds"])})


def in_own_process(module: str, clients: int, *arguments: object, threads: int) -> dict[str, Any]:
    """The record that a module prints when it measures so many clients."""
    command = [sys.executable, "-m", module, str(clients), *map(str, arguments), "--threads", str(threads)]
    # The process must import the same package as this one.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise BadInput(f"measuring {clients:,} clients failed ({last}): free some memory and try again")
    values: dict[str, Any] = json.loads(done.stdout)
    return values


def growth_figure(records: list[GrowthRecord]) -> Figure:
    """Seconds per round and peak memory over the number of clients, on logarithmic axes."""
    with style():
        drawn = Figure(figsize=(FIGURE_WIDTH, 3.4), layout=ConstrainedLayoutEngine())
        left, right = drawn.subplots(1, 2)
        for absent, color in zip(ABSENT, (ACCENT, MUTED), strict=True):
            own = [g for g in records if g.absent == absent]
            clients = [g.clients for g in own]
            label = f'absent = "{absent}"'
            left.plot(clients, [g.seconds for g in own], "o-", color=color, label=label)
            right.plot(clients, [g.peak / MIB for g in own], "o-", color=color, label=label)
        _axes(left, "seconds per round", f"M = {TAKE_PART} clients per round")
        _axes(right, "peak memory, MiB", f"{SAMPLES} samples per client, D = {FEATURES}, K = {CLASSES}")
        left.legend()
    return drawn


def _axes(axes: Axes, quantity: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=quantity)
    axes.set_title(title, loc="left")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(NullFormatter())


def growth_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of the measurement, which has no workloads."""
    counts = QUICK_COUNTS if options.quick else CLIENT_COUNTS
    return sum(_clients_seconds(clients) for clients in counts) * len(ABSENT)


def _clients_seconds(clients: int) -> float:
    return 4 + clients / 2000
