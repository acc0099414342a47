"""Beside other processes: rounds alone, and with one process on every core that never rests."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from fedkin.bench.busy_processes import BusyProcesses
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.runs import RunRounds, as_run
from fedkin.bench.timing import LATE, LEAST_TURNS, Options, Spread, Times, interleaved, ratio, spread
from fedkin.bench.workloads import WORKLOADS, Workload
from fedkin.cores import usable_cores
from fedkin.engine.simulation import Simulation
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.reports.tables import Cell, Table, text_cell
from fedkin.threads import torch_threads
from fedkin.types import Record

DEMO = ("fedkin", "kin")  # the algorithms of the demo that are measured
TURN_SECONDS = 4.0  # estimated duration of a turn of all competitors


def measure_busy(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Seconds per round alone, and beside one busy process per core."""
    cores = usable_cores()
    with BusyProcesses(cores) as others:
        records = [_busy_record(*work, others, options, meter) for work in _measured(options)]
    table = Table(
        f"Seconds per round alone, and beside {cores} busy processes, median (lowest–highest)",
        ("work", "runs", "alone", "beside", "times slower"),
        tuple(
            (
                text_cell(record["work"]),
                Cell(f"{record['runs']}", record["runs"]),
                *(Cell(Spread(**record[key]).text(), record[key]["median"]) for key in ("alone", "beside", "ratio")),
            )
            for record in records
        ),
    )
    waiting = os.environ.get("OMP_WAIT_POLICY", "not set")
    notes = (
        f"One busy process for each of {cores} cores, so that half of the processor time remains: twice as slow is "
        "a fair share.",
        f"Waiting of PyTorch's threads (`OMP_WAIT_POLICY`): {waiting}.",
    )
    return BenchResult("busy", records, table, notes)


def _measured(options: Options) -> Iterator[tuple[str, list[Simulation], int]]:
    """The works and their threads: the demo's runs of each algorithm, executed together, and softmax regression."""
    preparation = Preparation()
    for name in DEMO:
        configs = [plan.config for plan in plans() if plan.config.algorithm.name == name]
        yield f"demo: {name}", [preparation.simulation(config) for config in configs], configs[0].threads
    softmax = WORKLOADS["mnist-softmax"]
    softmax = softmax.quick() if options.quick else softmax
    yield softmax.name, [softmax.simulation(softmax.federation())], options.threads


def _busy_record(
    name: str, simulations: list[Simulation], threads: int, others: BusyProcesses, options: Options, meter: Meter
) -> Record:
    with torch_threads(threads), as_run(simulations) as runs:
        times = interleaved(
            {"alone": runs.round, "beside": _beside(runs, others)},
            options,
            lambda what: meter.notify(f"{name}: {what}"),
            lambda turn: meter.advance(turn * TURN_SECONDS),
        )
    each: dict[str, Times] = {key: one.each(len(simulations)) for key, one in times.items()}
    return {
        "work": name,
        "runs": len(simulations),
        "quick": options.quick,
        "threads": threads,
        "waiting": os.environ.get("OMP_WAIT_POLICY"),
        **{key: asdict(spread(one.spent)) for key, one in each.items()},
        "ratio": asdict(ratio(times["beside"], times["alone"])),
    }


def _beside(runs: RunRounds, others: BusyProcesses) -> Callable[[], None]:
    def round() -> None:
        with others.running():
            runs.round()

    return round


def busy_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of all turns."""
    turns = 1 + LEAST_TURNS + LATE * (options.repeat - LEAST_TURNS)
    return (len(DEMO) + 1) * turns * TURN_SECONDS * (0.1 if options.quick else 1.0)
