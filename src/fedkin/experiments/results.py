"""Results of runs, as Python objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedkin.engine import metrics
from fedkin.types import Floats, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A finished run: its rounds as arrays, what they come to, and the global model w̄ (P,)."""

    name: str
    config: Record = field(repr=False)
    rounds: list[Record] = field(repr=False)
    summary: Record
    model: Tensor = field(repr=False)
    folder: Path | None = None

    def __getattr__(self, name: str) -> Floats:
        """Any measured quantity over the rounds: `run.test_accuracy`, `run.train_loss`, …"""
        if name.startswith("_") or not self.rounds or name not in self.rounds[0]:
            raise AttributeError(name)
        return np.array([np.nan if r[name] is None else r[name] for r in self.rounds], dtype=np.float64)

    def rounds_to(self, threshold: float) -> int | None:
        """The first round after which the testing accuracy is at least the threshold."""
        return metrics.rounds_to(threshold, self.test_accuracy)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Accuracy and loss over the rounds, saved if a path is given."""
        return plot([self], path)


def plot(results: Sequence[Result], path: Path | str | None = None) -> "Figure":
    """The curves of several results in one figure, saved if a path is given (png, pdf, svg)."""
    from fedkin.reports import (
        curves,  # matplotlib is slow to import and not needed to train
        runs,
    )

    made = [
        runs.Run(
            folder=r.folder or Path(f"{place}"),
            experiment=str(r.config.get("name", "")),
            name=r.name,
            config=r.config,
            rounds={quantity: getattr(r, quantity) for quantity in r.rounds[0]},
            summary=r.summary,
            status=str(r.summary["status"]),
        )
        for place, r in enumerate(results)
    ]
    figure = curves.curves(runs.told_apart(made))
    if path is not None:
        figure.savefig(path)
    return figure
