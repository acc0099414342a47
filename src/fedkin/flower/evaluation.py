"""Where a model starts, and how it is measured: helpers for server apps and for the strategy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedkin.data.federation import Federation
from fedkin.engine import metrics
from fedkin.flower.wire import flatten, pack
from fedkin.models import Model
from fedkin.types import Floats

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def initial_arrays(model: Model, seed: int = 0) -> ArrayRecord:
    """The first parameters of a fedkin model. (Of a `torch.nn.Module`: `ArrayRecord(net.state_dict())`.)"""
    return pack({"model": model.start(seed)})


def measured(model: Model, federation: Federation, l2: float = 0.0) -> EvaluateFn:
    """An `evaluate_fn` that measures what the engine measures, for a server that has a federation to test on."""

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        (found,) = metrics.measure(model, flatten(arrays)[None], federation, [l2])
        return MetricRecord({**found})

    return evaluate


def averaged(numbers: Sequence[MetricRecord], weights: Floats) -> MetricRecord:
    """Σ pᵢ·metricᵢ of every number that all nodes report, except their number of samples."""
    common = [key for key in numbers[0] if key != "num-examples" and all(_is_number(n.get(key)) for n in numbers)]
    mean: dict[str, Any] = {key: float(weights @ np.array([n[key] for n in numbers], dtype=float)) for key in common}
    return MetricRecord(mean)


def averaged_by_samples(found: Sequence[MetricRecord | None]) -> MetricRecord | None:
    """The average of the nodes' metrics by their number of samples (`num-examples`), of the nodes that report it."""
    sound = [numbers for numbers in found if numbers is not None and "num-examples" in numbers]
    sizes = np.array([numbers["num-examples"] for numbers in sound], dtype=np.float64)
    return averaged(sound, sizes / sizes.sum()) if sound else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
