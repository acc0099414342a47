"""Speed: the engine compared with hand-written loops and the machine's limit, and one thread with several."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from fedkin.bench.loops import LOOPS, SWEEP_BETAS, Competitor, engine_run, engine_sweep
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.timing import LATE, LEAST_TURNS, Options, Product, Spread, interleaved, ratio, spread
from fedkin.bench.workloads import WORKLOADS, Workload
from fedkin.errors import BadInput
from fedkin.reports.tables import Cell, Table
from fedkin.threads import torch_threads
from fedkin.types import Record


def measure_speed(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Seconds per round of all competitors on all workloads."""
    with torch_threads(options.threads):
        records = [_speed_record(workload, options, meter) for workload in workloads]
    table = Table(
        "Seconds per round, median (lowest–highest); ratios within the same turn",
        ("workload", "engine", "(a) ÷ engine", "(b) ÷ engine", "sweep", "(b) ÷ sweep",
         "(c)", "% of (c)", "first", "differs"),
        tuple(_speed_row(record) for record in records),
    )  # fmt: skip
    notes = (
        "(a) `DataLoader` for every client, `optim.SGD`, deep copies of the model, averaged state dicts.",
        "(b) The same with slices of tensors, and one module and one optimiser for all clients.",
        f"Sweep: {len(SWEEP_BETAS)} runs of FedKin that differ in β, executed together as lanes; seconds per run "
        "(–: not measured).",
        "(c) The operations of a round in parameter space, at the best rate of a large matrix product: "
        + "; ".join(
            f"`{r['workload']}` {r['formula']} = {r['operations'] / 1e9:.4g}·10⁹ at {r['rate'] / 1e9:.0f}·10⁹ a second"
            for r in records
        )
        + ".",
        "% of (c): the limit over the engine's time. In sample space the engine needs fewer operations than are "
        "counted here, so it can exceed 100 %.",
        "First: the engine's first round, including what is prepared once for all rounds.",
        "Differs: distance of the models of (a) and (b) from the engine's after one round, over the round's change.",
    )
    return BenchResult("speed", records, table, notes)


def _speed_record(workload: Workload, options: Options, meter: Meter) -> Record:

    def notify(what: str) -> None:
        meter.notify(f"{workload.name}: {what}")

    notify("generating data")
    federation = workload.federation()
    competitors: dict[str, Competitor] = {"engine": engine_run(workload, federation)}
    competitors |= {name: loop(workload, federation) for name, loop in LOOPS.items()}
    start = competitors["engine"].global_model.clone()
    after_one: dict[str, torch.Tensor] = {}
    product = Product(512 if options.quick else 2048)
    rounds: dict[str, Callable[[], object]] = {"product": product.round}
    for name, competitor in competitors.items():
        rounds[name] = _with_first_model(name, competitor, after_one)
    if workload.sweep:
        rounds["sweep"] = engine_sweep(workload, federation).round
    times = interleaved(rounds, options, notify, lambda turn: meter.advance(turn * turn_seconds(workload)))

    mine = after_one["engine"]
    moved = torch.linalg.vector_norm(mine - start)
    record: Record = {
        "workload": workload.name,
        "clients": workload.clients,
        "quick": options.quick,
        "threads": options.threads,
        "formula": workload.formula,
        "operations": workload.arithmetic(),
        "rate": product.rate,
        "limit": workload.arithmetic() / product.rate,
        "rounds": {name: asdict(t) for name, t in times.items() if name != "product"},
        "engine": asdict(spread(times["engine"].spent)),
        "difference": {
            name: float(torch.linalg.vector_norm(after_one[name] - mine) / moved) for name in LOOPS
        },
        "ratios": {name: asdict(ratio(times[name], times["engine"])) for name in LOOPS},
    }  # fmt: skip
    record["of_limit"] = asdict(spread([record["limit"] / seconds for seconds in times["engine"].spent]))
    if "sweep" in times:
        each = times["sweep"].each(len(SWEEP_BETAS))
        record["sweep"] = asdict(spread(each.spent))
        record["sweep_ratios"] = {name: asdict(ratio(times[name], each)) for name in LOOPS}
    return record


def _with_first_model(name: str, competitor: Competitor, after_one: dict[str, torch.Tensor]) -> Callable[[], None]:
    """A competitor's round; the model after its first one is stored for comparison."""

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
        Cell(record["workload"], record["workload"]),
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


def measure_threads(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Seconds per round of the engine with one thread and with several."""
    if options.threads < 2:
        raise BadInput("threads are compared with a single one: give --threads 2 or more")
    with torch_threads(options.threads):
        records = [record for workload in workloads for record in _thread_records(workload, options, meter)]
    many = f"{options.threads} threads"
    table = Table(
        f"Seconds per round with 1 and with {many}, median (lowest–highest)",
        ("workload", "runs", "1 thread", many, f"{many}, times faster"),
        tuple(
            (
                Cell(r["workload"], r["workload"]),
                Cell(r["runs"], r["runs"]),
                *(Cell(Spread(**r[key]).text(), r[key]["median"]) for key in ("one", "many", "ratio")),
            )
            for r in records
        ),
    )
    return BenchResult("threads", records, table)


def _thread_records(workload: Workload, options: Options, meter: Meter) -> Iterator[Record]:
    """Of one workload: a single run, and a sweep."""
    meter.notify(f"{workload.name}: generating data")
    federation = workload.federation()
    measured = {"one run": engine_run(workload, federation)}
    if workload.sweep:
        measured[f"sweep of {len(SWEEP_BETAS)}"] = engine_sweep(workload, federation)
    for runs, competitor in measured.items():
        rounds = {str(n): _with_threads(competitor, n) for n in (1, options.threads)}
        times = interleaved(
            rounds,
            options,
            lambda what, runs=runs: meter.notify(f"{workload.name}, {runs}, threads: {what}"),  # type: ignore[misc]
            lambda turn: meter.advance(turn * turn_seconds(workload) / len(measured)),
        )
        one, many = times["1"], times[str(options.threads)]
        yield {
            "workload": workload.name,
            "runs": runs,
            "quick": options.quick,
            "threads": options.threads,
            "one": asdict(spread(one.spent)),
            "many": asdict(spread(many.spent)),
            "ratio": asdict(ratio(one, many)),
        }


def _with_threads(competitor: Competitor, threads: int) -> Callable[[], None]:
    def round() -> None:
        with torch_threads(threads):
            competitor.round()

    return round


# -- estimates ---------------------------------------------------------------------------------------------------------


def turn_seconds(workload: Workload) -> float:
    """The estimated duration of one turn of all competitors."""
    return workload.seconds * workload.clients / WORKLOADS[workload.name].clients


def total_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of all turns."""
    turns = 1 + LEAST_TURNS + LATE * (options.repeat - LEAST_TURNS)
    return turns * sum(map(turn_seconds, workloads))
