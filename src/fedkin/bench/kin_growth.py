"""Kin among many clients: time to find them from updates, and of rounds with few sampled clients."""

from collections.abc import Sequence
from dataclasses import asdict

from fedkin.bench import kin_process
from fedkin.bench.growth import MIB, in_own_process
from fedkin.bench.growth_process import SAMPLES, TAKE_PART
from fedkin.bench.kin_process import KINDS, KinRecord
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.timing import Options, spread
from fedkin.bench.workloads import CLASSES, Workload
from fedkin.reports.tables import Cell, Table

# Clients and features: as many as MNIST has pixels, and fewer of 100,000 clients.
SIZES = ((1_000, 784), (10_000, 784), (100_000, 64))
QUICK_SIZES = ((100, 64),)


def measure_kin_growth(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Time and memory of `Kin` for growing numbers of clients in kinds."""
    records = []
    for clients, features in QUICK_SIZES if options.quick else SIZES:
        meter.notify(f"kin: {clients:,} clients of {features} features")
        values = in_own_process(kin_process.__name__, clients, features, threads=options.threads)
        records.append(KinRecord(**{**values, **{key: tuple(values[key]) for key in ("compared", "rounds")}}))
        meter.advance(_seconds(clients, features))
    heads = ("clients", "D", "first round of all, s", "search, s", "round, s", "with comparison, s", "same kind")
    table = Table(
        f"Kin by updates: {KINDS} kinds, M = {TAKE_PART} clients per round, {SAMPLES} samples each, K = {CLASSES}",
        (*heads, "peak memory, MiB", "before, MiB"),
        tuple(
            (
                Cell(f"{k.clients:,}", float(k.clients)),
                Cell(f"{k.features}", float(k.features)),
                *(Cell(f"{seconds:.3g}", seconds) for seconds in (k.first, k.search)),
                *(Cell(spread(times).text(), spread(times).median) for times in (k.rounds, k.compared)),
                Cell(f"{k.alike:.1%}", k.alike),
                *(Cell(f"{n / MIB:.0f}", n / MIB) for n in (k.peak, k.before)),
            )
            for k in records
        ),
    )
    notes = (
        "All clients train once, so that every one has a model and a direction. Search: from their updates to the "
        "nearest 64 of each. Then some clients are sampled per round; in some rounds candidates are compared.",
        "Same kind: share of the pairs of kin, as chosen, that are of one kind.",
    )
    return BenchResult("kin", [asdict(k) for k in records], table, notes)


def kin_growth_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of the measurement."""
    return sum(_seconds(*size) for size in (QUICK_SIZES if options.quick else SIZES))


def _seconds(clients: int, features: int) -> float:
    return 5 + clients * features / 500_000 + (clients / 10_000) ** 2
