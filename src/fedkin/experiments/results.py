"""Results of runs as Python objects."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from fedkin.engine import metrics
from fedkin.types import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A finished run: settings, records of the rounds, summary, and final global model w̄ (P,)."""

    name: str
    config: Record = field(repr=False)
    rounds: list[Record] = field(repr=False)
    summary: Record
    model: Tensor = field(repr=False)
    folder: Path | None = None

    def __getattr__(self, name: str) -> Any:
        """A measured quantity over the rounds, (T,): `result.test_accuracy`, `result.train_loss`, …"""
        if name.startswith("_") or not any(name in record for record in self.rounds):
            raise AttributeError(name)
        values = [record.get(name) for record in self.rounds]
        if any(isinstance(value, str) for value in values):
            return np.array(values)
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def rounds_to(self, threshold: float) -> int | None:
        """The first round after which the testing accuracy is at least the threshold."""
        return metrics.rounds_to(threshold, self.test_accuracy)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Plot accuracy and loss over the rounds; saved if a path is given."""
        from fedkin.reports.plotting import plot  # reports depend on experiments, not the reverse

        return plot([self], path)
