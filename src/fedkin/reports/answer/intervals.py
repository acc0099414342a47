"""Paired differences with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences, positive if the first is better, with its interval.

    low, high  the interval; NaN if there are fewer than two pairs
    pairs      their number
    over       what was paired: "seeds" or "clients"; empty if there is no interval
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    pairs: int = 0
    over: str = ""

    def seen_from_the_other(self, sign: float) -> tuple[float, float, float]:
        """The difference of values, second − first, with its interval; sign is 1 if higher values are better, else −1.

        `mean` is positive if the first is better: of errors, the value of the second is higher then.
        """
        low, high = sorted((-sign * self.low, -sign * self.high))
        return -sign * self.mean, low, high

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return math.isfinite(self.low)

    @property
    def is_better(self) -> bool:
        """Whether the first is measurably better: the whole interval is above 0."""
        return self.has_interval and self.low > 0

    @property
    def is_worse(self) -> bool:
        """Whether the first is measurably worse: the whole interval is below 0."""
        return self.has_interval and self.high < 0

    @property
    def is_tie(self) -> bool:
        """Whether there is no measurable difference: 0 is in the interval."""
        return self.has_interval and not (self.is_better or self.is_worse)


def paired_difference(differences: Sequence[float], over: str, weights: Sequence[float] | None = None) -> Difference:
    """The mean of paired differences with its t interval of 95 %.

        d̄ = Σ aᵢ dᵢ,   s² = n/(n−1) Σ aᵢ² (dᵢ − d̄)²,   d̄ ± t(n−1) s

    with a = `weights` normalised to sum 1. For equal weights aᵢ = 1/n, s is the usual standard error of the mean.
    """
    d = np.asarray(differences, dtype=np.float64)
    a = np.ones(len(d)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not len(d) or a.sum() <= 0:
        return Difference(math.nan)
    a = a / a.sum()
    mean, n = float(a @ d), len(d)
    if n < 2:
        return Difference(mean, pairs=n)
    error = math.sqrt(n / (n - 1) * float(a**2 @ (d - mean) ** 2))
    if error < 1e-12 * max(1.0, float(abs(d).max())):  # all differences are equal, up to rounding
        error = 0.0
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    low, high = (0.0 if abs(end) < 1e-12 else end for end in (mean - reach, mean + reach))
    return Difference(mean, low, high, n, over)
