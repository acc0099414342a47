"""Where a model starts, and how it is measured: helpers for server apps and for the strategy."""

import copy
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from fedkin.algorithms.rounds import random_numbers
from fedkin.data.federation import Federation
from fedkin.engine import metrics
from fedkin.errors import BadInput, in_short, is_out_of_memory
from fedkin.flower.checks import NUM_EXAMPLES
from fedkin.flower.guard import loss_in
from fedkin.flower.wire import flatten, pack
from fedkin.models import Model, Module
from fedkin.types import Floats, Integers

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """How good the model is after a round: what `evaluate_fn` measured, what the nodes did, and the loss among it."""

    measured: MetricRecord | None
    seen: MetricRecord | None
    loss: float | None


def initial_arrays(model: Model | nn.Module, seed: int = 0, *, shape: Sequence[int] | None = None) -> ArrayRecord:
    """The first parameters of a fedkin model, or those of a module as they are.

    Of a module the trained parameters alone: buffers and frozen parameters (`requires_grad = False`) are constants that
    every node then builds for itself. `ArrayRecord(net.state_dict())` sends them, too.

    shape  of one sample: the module is tried with such samples, here and before any node is asked. What it cannot do
           (other shapes, running statistics) is said in a sentence
    """
    if not isinstance(model, nn.Module):
        return pack({"model": model.start(seed)})
    flatten(ArrayRecord(model.state_dict()))  # refuses what cannot be averaged
    if shape is not None:
        Module(lambda: copy.deepcopy(model), tuple(shape), _outputs(model, tuple(shape)))
    return pack({name: p.detach() for name, p in model.named_parameters() if p.requires_grad})


def _outputs(net: nn.Module, shape: tuple[int, ...]) -> int:
    """The number of outputs for a sample of this shape."""
    try:
        with torch.no_grad():
            return int(copy.deepcopy(net).eval()(torch.zeros(2, *shape))[0].numel())
    except Exception as error:  # whatever the user's code raises
        if is_out_of_memory(error):
            raise
        raise BadInput(
            f"the module does not take samples of shape {shape} ({in_short(error)}): change its layers, or give the "
            "shape of a sample that it expects"
        ) from error


def measured(model: Model, federation: Federation, l2: float = 0.0) -> EvaluateFn:
    """An `evaluate_fn` that measures what the engine measures, for a server that has a federation to test on."""

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        (found,) = metrics.measure(model, flatten(arrays)[None], federation, [l2])
        return MetricRecord({**found})

    return evaluate


def averaged(numbers: Sequence[Metrics], weights: Floats) -> MetricRecord:
    """Σ pᵢ·metricᵢ / Σ pᵢ over the nodes that report it, of every number that most nodes report, except `num-examples`.

    Not of all: one node could otherwise remove a number by leaving it out.
    """
    counts = Counter(key for found in numbers for key in found if key != NUM_EXAMPLES)
    mean: dict[str, Any] = {}
    for key in (key for key, count in counts.items() if 2 * count > len(numbers)):
        rows = [i for i, found in enumerate(numbers) if key in found]
        if (total := float(weights[rows].sum())) > 0:
            mean[key] = float(weights[rows] @ np.array([numbers[i][key] for i in rows])) / total
    return MetricRecord(mean)


def averaged_by_samples(found: Sequence[Metrics]) -> MetricRecord | None:
    """The average of the nodes' metrics by their number of samples."""
    return averaged(found, np.array([numbers[NUM_EXAMPLES] for numbers in found])) if found else None


def drawn(who: Integers, fraction: float, seed: int, round: int) -> Integers:
    """A fraction of clients, at least one, in ascending order; which ones depends on the seed and the round."""
    count = max(1, int(np.rint(fraction * len(who))))
    return (
        np.sort(random_numbers(seed, "evaluate", round).choice(who, count, replace=False)) if count < len(who) else who
    )


def loss_of_nodes(found: Sequence[Metrics]) -> float | None:
    """The median of the losses that nodes report; a few of any value do not move it."""
    losses = [loss for numbers in found if (loss := loss_in(numbers)) is not None]
    return statistics.median_low(losses) if 2 * len(losses) > len(found) else None
