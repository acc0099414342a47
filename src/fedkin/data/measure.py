"""The main measure of a run: how its models are compared, sorted and shown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.types import Floats


@dataclass(frozen=True)
class Measure:
    """A measure of models on samples.

    name    in records: `test_accuracy`, `own_test_mse`
    title   in tables and figures
    higher  whether a higher value is better
    usual   threshold to which rounds are counted, if the user sets none
    number  format of a value times `times`, without its unit
    unit    of a value; `points` of a difference
    """

    name: str
    title: str
    higher: bool
    usual: float | None
    number: str
    times: float = 1.0
    unit: str = ""
    points: str = ""

    def text(self, value: float | None) -> str:
        """A value as it is shown: `93.9 %`, `0.0121`, or a dash if it is missing."""
        return "–" if value is None or math.isnan(value) else f"{self.times * value:{self.number}}{self.unit}"

    def goal(self, threshold: float) -> str:
        """A threshold as the user wrote it: `75 %`, `0.012`."""
        return f"{self.times * threshold:g}{self.unit}"

    def gain(self, value: float, reference: float) -> float:
        """By how much a value is better than a reference; negative if it is worse."""
        return value - reference if self.higher else reference - value

    def best(self, values: Iterable[float]) -> float:
        """The best of some values; NaN if none is finite."""
        finite = [value for value in values if math.isfinite(value)]
        return (max if self.higher else min)(finite, default=math.nan)

    def worst_decile(self, values: Floats) -> float:
        """The mean over the tenth of the clients (at least one) with the worst values."""
        ordered = np.sort(values) if self.higher else -np.sort(-values)
        return float(ordered[: max(1, len(values) // 10)].mean())

    def rounds_to(self, threshold: float | None, values: Sequence[float] | Floats) -> int | None:
        """The first round after which the value is at least the threshold (at most, if lower is better), or None.

        Rounds count from 0, as in the paper's published results.

        >>> ACCURACY.rounds_to(0.5, [0.1, 0.5, 0.7]), MSE.rounds_to(0.5, [0.7, 0.5, 0.1])
        (1, 1)
        """
        if threshold is None:
            return None
        return next((t for t, v in enumerate(values) if (v >= threshold if self.higher else v <= threshold)), None)


ACCURACY = Measure("accuracy", "accuracy", True, 0.75, ".1f", 100.0, " %", " pp")
MSE = Measure("mse", "mean squared error", False, None, ".4g")
MEASURES = {measure.name: measure for measure in (ACCURACY, MSE)}


def measure_in(record: Mapping[str, Any]) -> Measure:
    """The main measure of a run, by the keys of a record of a round or of its summary; accuracy if none is there."""
    return next(
        (measure for name, measure in MEASURES.items() if {f"test_{name}", f"final_test_{name}"} & record.keys()),
        ACCURACY,
    )
