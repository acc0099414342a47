"""The matrix: the engine against the slicing loop (b) in every combination of settings.

A round of the engine is one of `fedkin run`: lanes, measurements on training and testing samples, records. The loop
has the same settings, and measures the same.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch

from fedkin.algorithms import FedAvg
from fedkin.bench.loops import SliceLoop
from fedkin.bench.matrix_figure import matrix_figure
from fedkin.bench.matrix_table import matrix_table, other_table, summary_notes
from fedkin.bench.memory import MEMORIES
from fedkin.bench.meter import Meter
from fedkin.bench.results import BenchResult
from fedkin.bench.runs import RunRounds, as_run
from fedkin.bench.settings import BASES, RUNS, SWEEP_STEPS, Setting, others, part_of, runs_of, settings
from fedkin.bench.timing import Options, Pace, Times, interleaved, ratio, spread
from fedkin.bench.workloads import STEP_SIZE, WORKLOADS, Workload, dense_net, module_model
from fedkin.data.federation import Federation
from fedkin.engine.lanes import joined, together
from fedkin.engine.simulation import Simulation
from fedkin.threads import torch_threads
from fedkin.types import Record

# Rounds are not repeated within a turn: with sampled clients a turn is the same round for all competitors.
PACE = Pace(least_turns=1, allowance=0.8, block=0.0, long=2.0, unprepared=("loop", "whole loop", "evaluation"))
STRIDE = 5  # where all clients work, the loop is timed on every fifth
CHECKED_ROUNDS = 3


def measure_matrix(workloads: Sequence[Workload], options: Options, meter: Meter) -> BenchResult:
    """Seconds per round of the engine and of the loop in every combination, and beside the matrix."""
    with torch_threads(options.threads):
        cells = [record for setting in _settings(options) for record in _cells(setting, options, meter)]
        beside = [_other(*other, options, meter) for other in _others(options)]
    table = matrix_table(cells) if cells else other_table(beside)
    return BenchResult(
        "matrix",
        [*cells, *beside],
        table,
        summary_notes(cells, beside, STRIDE),
        matrix_figure(cells) if cells else None,
        (other_table(beside),) if cells and beside else (),
    )


def _settings(options: Options) -> list[Setting]:
    """Combinations of one federation are consecutive."""
    return sorted(settings(options.only, options.quick), key=lambda setting: setting.words["sizes"])


@lru_cache(maxsize=1)
def _federation(workload: Workload) -> Federation:
    return workload.federation()


def federation_of(workload: Workload) -> Federation:
    """The federation of a workload. Combinations with the same one are consecutive, and share it."""
    base = WORKLOADS[BASES["softmax"]]
    kept = ("clients", "samples", "shape", "class_imbalance", "size_imbalance", "testing")
    return _federation(replace(base, **{name: getattr(workload, name) for name in kept}))


def simulations(workload: Workload, federation: Federation, runs: int) -> list[Simulation]:
    """The runs of a cell: one, or a sweep of step sizes, of which the first is the loop's."""
    steps = [STEP_SIZE * factor for factor in SWEEP_STEPS[:runs]]
    return [workload.simulation(federation, FedAvg(step_size=step)) for step in steps]


def _cells(setting: Setting, options: Options, meter: Meter) -> Iterator[Record]:
    """The cells of a combination: one run, and a sweep."""
    workload, kinds = setting.workload, runs_of(options.only)
    meter.notify(f"{setting.title}: generating data")
    federation = federation_of(workload)
    part, share = (None, 1.0)
    if workload.take_part is None:
        part, share = part_of(federation.train.sizes, workload.local, STRIDE)
    loop = SliceLoop(workload, federation, part)
    rounds: dict[str, Callable[[], object]] = {"loop": loop.round, "evaluation": loop.evaluate}
    if shows_proportion(setting):
        rounds["whole loop"] = SliceLoop(workload, federation).round
    with contextlib.ExitStack() as held:
        engines = {
            kind: held.enter_context(as_run(simulations(workload, federation, RUNS[kind]))) for kind in kinds
        }  # fmt: skip
        difference = None
        if part is None:
            difference = _difference(loop, next(iter(engines.values())))
        for engine in engines.values():
            while engine.group.state.round < setting.warm_up - 1:
                engine.round()
        loop.number = setting.warm_up - 1
        rounds |= {kind: engine.round for kind, engine in engines.items()}
        times = interleaved(
            rounds,
            options,
            lambda what: meter.notify(f"{setting.title}: {what}"),
            lambda turn: meter.advance(turn * setting_seconds(setting) / _turns(options)),
            PACE,
        )
    by_loop = times["loop"].each(share).then(times["evaluation"])
    proportion = None
    if "whole loop" in times:
        proportion = asdict(ratio(times["whole loop"], times["loop"].each(share)))
    meter.notify(f"{setting.title}: comparing with the plain path")
    plain = plain_differences(setting.few, kinds)
    for kind in kinds:
        yield {
            **setting.words,
            "runs": kind,
            "quick": options.quick,
            "threads": options.threads,
            **_compared(by_loop, times[kind].each(RUNS[kind])),
            "share": share,
            "proportion": proportion,
            "loop_differs": difference,
            "plain_differs": plain[kind],
        }


def shows_proportion(setting: Setting) -> bool:
    """Whether the loop is timed on all clients as well, in one combination for each model and partition."""
    return {"all", "B256", "fixed", "unclipped"} <= set(setting.words.values())


def _compared(loop: Times, engine: Times) -> Record:
    return {
        "engine": asdict(spread(engine.spent)),
        "loop": asdict(spread(loop.spent)),
        "ratio": asdict(ratio(loop, engine)),
        "turns": sum(None not in both for both in zip(loop.turns, engine.turns, strict=True)),
    }


def _difference(loop: SliceLoop, engine: RunRounds) -> float:
    """Distance of the loop's model from the engine's after one round of both, over the round's change."""
    start = loop.global_model.clone()
    loop.round()
    engine.round()
    mine = engine.global_model
    return float(torch.linalg.vector_norm(loop.global_model - mine) / torch.linalg.vector_norm(mine - start))


def plain_differences(workload: Workload, kinds: Sequence[str]) -> dict[str, float]:
    """Largest distance of a model from that of the plain path after three rounds, over the length of the latter.

    The plain path processes one client at a time, step by step on parameters. One run and a sweep are compared with
    the same plain runs.
    """
    federation, norm = workload.federation(), torch.linalg.vector_norm

    def ends(runs: int, stacked: bool) -> torch.Tensor:
        each = [replace(one, stacked=stacked) for one in simulations(workload, federation, runs)]
        group = together(each)
        state = joined([one.start() for one in each], group)
        for _ in range(CHECKED_ROUNDS):
            state = group.advance(state)
        return state.model.view(runs, -1)

    plain = ends(max(RUNS[kind] for kind in kinds), stacked=False)
    found = {}
    for kind in kinds:
        fast = ends(RUNS[kind], stacked=True)
        found[kind] = float((norm(fast - plain[: len(fast)], dim=1) / norm(plain[: len(fast)], dim=1)).max())
    return found


# -- beside the matrix -------------------------------------------------------------------------------------------------


def _others(options: Options) -> Iterator[tuple[str, Workload, str | None]]:
    """What is measured beside the matrix: its name, the workload, and the algorithm unless it is FedAvg."""
    chosen = others(options.only)
    few: dict[str, Any] = {"clients": 2, "samples": 8} if options.quick else {}
    if "modules" in chosen:
        mlp = replace(WORKLOADS["mnist-mlp"], clients=20, net=dense_net, model=module_model)
        for title, workload in (
            ("module: convolutions", WORKLOADS["module"]),
            ("module: convolutions with GroupNorm", WORKLOADS["groupnorm"]),
            ("module: network as nn.Module", mlp),
        ):
            yield title, replace(workload, order="shuffled", **few), None
    if "memory" in chosen:
        for algorithm in MEMORIES:
            for model, base in BASES.items():
                workload = replace(WORKLOADS[base], clients=20, batch_size=32, order="shuffled")
                yield f"{algorithm}: {model}", replace(workload, **few), algorithm


def _other(title: str, workload: Workload, algorithm: str | None, options: Options, meter: Meter) -> Record:
    meter.notify(f"{title}: generating data")
    federation = workload.federation()
    kind, by_hand = MEMORIES[algorithm] if algorithm else (FedAvg, SliceLoop)
    loop = by_hand(workload, federation)
    with as_run([workload.simulation(federation, kind(step_size=STEP_SIZE))]) as engine:
        meter.notify(f"{title}: comparing with the loop")
        differs = _difference(loop, engine)
        times = interleaved(
            {"loop": loop.round, "evaluation": loop.evaluate, "engine": engine.round},
            options,
            lambda what: meter.notify(f"{title}: {what}"),
            lambda turn: meter.advance(turn * other_seconds(workload) / _turns(options)),
            PACE,
        )
    return {
        "other": title,
        "clients": workload.clients,
        "quick": options.quick,
        "threads": options.threads,
        **_compared(times["loop"].then(times["evaluation"]), times["engine"]),
        "loop_differs": differs,
    }


# -- estimates ---------------------------------------------------------------------------------------------------------


def _turns(options: Options) -> float:
    """What `interleaved` advances by in all its turns."""
    return 3 + 0.2 * (options.repeat - 2)


def setting_seconds(setting: Setting) -> float:
    """The estimated duration of a combination at the reference rate."""
    model, small = setting.words["model"], setting.words["batch"] == "B32"
    seconds = {"softmax": 8.0, "network": 32.0}[model] * (2.0 if small else 1.0)
    everyone = setting.workload.take_part is None
    return seconds * (1.0 if everyone else 0.4) * setting.workload.clients / 100


def other_seconds(workload: Workload) -> float:
    """The estimated duration of a line beside the matrix."""
    return 30.0 * math.sqrt(workload.clients / 50)


def matrix_seconds(workloads: Sequence[Workload], options: Options) -> float:
    """The estimated duration of all combinations."""
    combinations = sum(map(setting_seconds, _settings(options)))
    return combinations + sum(other_seconds(workload) for _, workload, _ in _others(options))
