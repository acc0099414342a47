"""Evaluation: loss and accuracy of a model on many samples, by the engine and by a loop in plain PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from fedkin.bench.loops import CHUNK, plain_scores, plain_start
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.timing import LATE, LEAST_TURNS, Options, Spread, interleaved, ratio, spread
from fedkin.bench.workloads import Workload
from fedkin.data.federation import Clients, from_rows
from fedkin.engine.metrics import score, scorer
from fedkin.reports.tables import Cell, Table
from fedkin.threads import torch_threads
from fedkin.types import Record

EVALUATED, QUICK_EVALUATED = 70_000, 1_000  # samples: those of MNIST, and a trial
MEASURED = ("mnist-softmax", "mnist-mlp", "module", "groupnorm")  # one workload of each model
# Estimated seconds of a turn of all competitors, for all models together and at the reference rate.
TURN = 60.0


def measure_evaluation(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Seconds to measure a model, of the engine and of the plain loop."""
    chosen = [workload for workload in workloads if workload.name in MEASURED]
    with torch_threads(options.threads):
        records = [_evaluation_record(workload, options, meter) for workload in chosen]
    samples = QUICK_EVALUATED if options.quick else EVALUATED
    table = Table(
        f"Seconds to measure loss and accuracy on {samples:,} samples, median (lowest–highest)",
        ("model of", "engine", "plain loop", "plain loop ÷ engine", "differs"),
        tuple(
            (
                Cell(r["workload"], r["workload"]),
                *(Cell(Spread(**r[key]).text(), r[key]["median"]) for key in ("engine", "loop", "ratio")),
                Cell(f"{r['difference']:.0e}", r["difference"]),
            )
            for r in records
        ),
    )
    notes = (
        f"Plain loop: the module in evaluation mode, without gradients, on {CHUNK} samples at a time.",
        "Differs: the difference of both losses.",
    )
    return BenchResult("evaluation", records, table, notes)


def _evaluation_record(workload: Workload, options: Options, meter: Meter) -> Record:
    meter.notify(f"evaluation of {workload.name}: generating data")
    clients = _samples(workload, QUICK_EVALUATED if options.quick else EVALUATED)
    federation = workload.quick().federation()
    model, w = workload.model(workload), workload.simulation(federation).start().model[None]
    scores = scorer(model, w, replace(federation, test=clients))
    net = plain_start(workload, federation)
    images = clients.x.view(-1, *workload.shape)
    losses: dict[str, float] = {}

    def by_engine() -> None:
        losses["engine"] = score(model, w, clients, scores=scores)[0].loss

    def by_loop() -> None:
        losses["loop"] = plain_scores(net, images, clients.y)[0]

    competitors: dict[str, Callable[[], object]] = {"engine": by_engine, "loop": by_loop}
    times = interleaved(
        competitors,
        options,
        lambda what: meter.notify(f"evaluation of {workload.name}: {what}"),
        lambda turn: meter.advance(turn * TURN / len(MEASURED)),
    )
    return {
        "workload": workload.name,
        "samples": len(images),
        "quick": options.quick,
        "threads": options.threads,
        **{name: asdict(spread(times[name].spent)) for name in competitors},
        "ratio": asdict(ratio(times["loop"], times["engine"])),
        "difference": abs(losses["engine"] - losses["loop"]),
    }


def _samples(workload: Workload, count: int) -> Clients:
    generator = torch.Generator().manual_seed(1)
    x: Tensor = torch.rand(count, workload.features, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    return from_rows(x, y, np.full(10, count // 10))


def evaluation_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of all turns."""
    turns = 1 + LEAST_TURNS + LATE * (options.repeat - LEAST_TURNS)
    share = len([w for w in workloads if w.name in MEASURED]) / len(MEASURED)
    return turns * TURN * share * (QUICK_EVALUATED / EVALUATED if options.quick else 1.0)
