"""Hyper-parameters that change over the rounds."""

import math
from dataclasses import dataclass
from typing import Any, NoReturn

from fedkin.errors import BadInput

SHAPES = ("linear", "cosine", "geometric", "step")


@dataclass(frozen=True)
class Schedule:
    """A value that changes from `start` to `end` over the first `over` rounds, then stays at `end`.

    With s = min(t / over, 1):  linear  start + s·(end − start);  cosine  the same with s ← (1 − cos πs)/2;
    geometric  start·(end/start)^s;  step  start while s < 1, then end.

    The theory suggests a small β at first (faster contraction) and β = 1 at the end (lower error floor):

    >>> [Schedule(0.5, 1.0, over=2)(t) for t in range(4)]
    [0.5, 0.75, 1.0, 1.0]
    """

    start: float
    end: float
    over: int
    shape: str = "linear"

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise BadInput(f"unknown schedule shape '{self.shape}': choose from {', '.join(SHAPES)}")
        if self.over < 1:
            raise BadInput(f"a schedule must run over at least 1 round, not {self.over}: raise 'over'")
        if not all(map(math.isfinite, self.values)):
            raise BadInput("a schedule must start and end at finite values: check 'from' and 'to'")
        if self.shape == "geometric" and min(self.values) <= 0:
            raise BadInput("a geometric schedule must start and end above 0: use shape = 'linear'")

    @property
    def values(self) -> tuple[float, float]:
        """Start and end, which bound all values."""
        return (self.start, self.end)

    def __call__(self, round: int) -> float:
        """The value in a round; rounds count from 0."""
        s = min(round / self.over, 1.0)
        if self.shape == "geometric":
            return float(self.start * (self.end / self.start) ** s)
        if self.shape == "cosine":
            s = (1 - math.cos(math.pi * s)) / 2
        elif self.shape == "step":
            s = math.floor(s)
        return self.start + s * (self.end - self.start)

    def _refused(self, *_: Any) -> NoReturn:
        raise TypeError(
            "a schedule cannot be used in arithmetic: use the fields of algorithm.at(round), which are numbers"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refused
