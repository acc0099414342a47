"""Curves of results that are held in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkin.experiments.results import Result
from fedkin.reports.groups import key_of, with_differences
from fedkin.reports.run import Run
from fedkin.reports.selection import seed_of
from fedkin.types import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(results: Sequence[Result], path: Path | str | None = None) -> "Figure":
    """The curves of several results in one figure, saved if a path is given (png, pdf, svg)."""
    from fedkin.reports.curves import curves  # imports matplotlib, which is slow and not needed for training
    from fedkin.reports.figures import without_formulas

    runs = [
        Run(
            folder=result.folder or Path(f"{place}"),
            experiment=str(result.config.get("name", "")),
            name=result.name,
            config=result.config,
            rounds=_numbers(result),
            summary=result.summary,
            status=str(result.summary["status"]),
        )
        for place, result in enumerate(results)
    ]
    figure = curves(with_differences(_numbered(runs)))
    without_formulas(figure)
    if path is not None:
        figure.savefig(path)
    return figure


def _numbered(runs: Sequence[Run]) -> list[Run]:
    """The same runs; those with the same settings, seeds among them, differ in a number."""
    keys = [(key_of(run), seed_of(run)) for run in runs]
    return [
        replace(run, config={**run.config, "run": place + 1}) if keys.count(key) > 1 else run
        for place, (run, key) in enumerate(zip(runs, keys, strict=True))
    ]


def _numbers(result: Result) -> dict[str, Floats]:
    """The measured quantities over the rounds, without the words among them."""
    series = {name: getattr(result, name) for name in result.rounds[-1]}
    return {name: values for name, values in series.items() if values.dtype == np.float64}
