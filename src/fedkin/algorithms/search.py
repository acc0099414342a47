"""Where the hyper-parameters of an algorithm are searched, and points of such a space."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import qmc

from fedkin.errors import BadInput

SIGNIFICANT = 3  # significant digits of a point: it is written into names and tables


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`, on a logarithmic scale unless `linear`."""

    low: float
    high: float
    linear: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise BadInput(f"there is no range from {self.low:g} to {self.high:g}: give the lower end first")
        if not self.linear and self.low <= 0:
            raise BadInput(f"a logarithmic range from {self.low:g} is not possible: begin above 0, or make it linear")

    def at(self, share: float) -> float:
        """The value below which this share of the range lies.

        >>> Between(0.01, 1.0).at(0.5), Between(0.0, 1.0, linear=True).at(0.25)
        (0.1, 0.25)
        """
        value = (
            self.low + share * (self.high - self.low) if self.linear
            else self.low * (self.high / self.low) ** share
        )  # fmt: skip
        return float(f"{value:.{SIGNIFICANT}g}")

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{'' if self.linear else ', log'}"


@dataclass(frozen=True)
class OneOf:
    """One of some values, such as numbers of epochs."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value in whose part of the unit interval the share lies.

        >>> [OneOf((1, 5, 10)).at(share) for share in (0.0, 0.5, 0.99)]
        [1, 5, 10]
        """
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return ", ".join(str(value) for value in self.values)


Search = Between | OneOf
SearchSpace = Mapping[str, Search]


def points(space: SearchSpace, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Quasi-random points of a space: a scrambled Halton sequence, of which more points continue fewer.

    >>> [point["x"] for point in points({"x": Between(0.0, 1.0, linear=True)}, 4)]
    [0.707, 0.207, 0.957, 0.457]
    """
    shares = qmc.Halton(max(1, len(space)), rng=seed).random(count)
    return [{name: one.at(share) for (name, one), share in zip(space.items(), row, strict=False)} for row in shares]
