"""Columns of results: a value of each run, one cell for runs that differ in their seeds, and the best cells."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fedkin.data.measure import ACCURACY, Measure
from fedkin.reports.groups import problem_of
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell

MOST_DIGITS = 6  # of a mean with its spread


@dataclass(frozen=True)
class ResultColumn:
    """A column of results: the value of a run, its formats, and whether small or large is better."""

    title: str
    of: Callable[[Run], float]
    one: str  # format of a single value
    many: str  # format of a mean
    unit: str
    better: Callable[[Iterable[float]], float]

    def cell(self, group: Sequence[Run], *, standard_error: bool = False) -> Cell:
        """The value of a run, or mean and standard deviation over seeds, or its standard error."""
        values = [value for run in group if math.isfinite(value := self.of(run))]
        if not values:
            return Cell(NEVER)
        mean = sum(values) / len(values)
        count = len(values) if len(values) < len(group) else None
        part = f" ({count} of {len(group)})" if count else ""
        if len(group) == 1:
            return Cell(printed(self.one, mean) + self.unit, mean)
        if len(values) == 1:
            return Cell(printed(self.many, mean) + self.unit + part, mean, None, count)
        # Divided by n − 1: seeds are a sample.
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        if standard_error:
            spread /= math.sqrt(len(values))
        form = with_decimals_of(self.many, mean, spread)
        text = f"{printed(form, mean)} ± {printed(form, spread).removeprefix('+')}{self.unit}"
        return Cell(text + part, mean, spread, count)


def value_column(measure: Measure, title: str, of: Callable[[Run], float]) -> ResultColumn:
    """A column with values of the main measure, for the runs that have it."""
    form = "{:.1%}" if measure is ACCURACY else f"{{:{measure.number}}}"

    def value(run: Run) -> float:
        return of(run) if run.measure is measure else math.nan

    return ResultColumn(title, value, form, form, measure.unit, measure.best)


def measures_of(runs: Iterable[Run]) -> list[Measure]:
    """The main measures of runs: a single one, unless some predict classes and others a number."""
    return list(dict.fromkeys(run.measure for run in runs))


def printed(form: str, value: float) -> str:
    """A formatted value without its percent sign, which is the unit of the measure."""
    return form.format(value).removesuffix("%")


def with_decimals_of(form: str, mean: float, spread: float) -> str:
    """A format of significant digits as one of decimals: those of two digits of a spread, for it and its mean.

    The mean has six digits at most: the spread of seeds that give the same is a rounding error.

    >>> with_decimals_of("{:+.4g}", 0.5, 0.0123), with_decimals_of("{:.4g}", 1024.5, 345.6)
    ('{:+.3f}', '{:.0f}')
    >>> with_decimals_of("{:.4g}", 96.7, 1e-13), with_decimals_of("{:.1%}", 0.5, 0.1)
    ('{:.4f}', '{:.1%}')
    """
    if not form.endswith("g}") or not spread:
        return form
    most = MOST_DIGITS - 1 - math.floor(math.log10(abs(mean))) if mean else MOST_DIGITS
    decimals = max(0, min(1 - math.floor(math.log10(spread)), most))
    return f"{form[: form.index('.')]}.{decimals}f}}"


def mark_best(
    rows: list[list[Cell]], groups: Sequence[Sequence[Run]], measures: Sequence[ResultColumn], start: int
) -> None:
    """Mark the best cells among the finished runs of each learning problem; measures begin in the column `start`."""
    problems: dict[object, list[int]] = {}
    for row, group in enumerate(groups):
        if all(run.status == "finished" for run in group):
            problems.setdefault((problem_of(group[0]), group[0].threshold), []).append(row)
    for column, measure in enumerate(measures, start):
        for members in problems.values():
            # A mean over some of the seeds cannot be compared with one over all seeds.
            values = {
                row: cell.value
                for row in members
                if isinstance((cell := rows[row][column]).value, float) and cell.count is None
            }
            texts = {row: printed(measure.many, value) for row, value in values.items()}
            if len(set(texts.values())) < 2:
                continue  # a single value, or all equal: none is best
            top = printed(measure.many, measure.better(values.values()))
            for row, text in texts.items():
                if text == top:  # equal as printed
                    rows[row][column] = replace(rows[row][column], best=True)
