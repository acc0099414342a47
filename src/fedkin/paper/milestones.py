"""A table of a measure after some rounds, next to published values: one row for each part and number of rounds."""

import math
from collections.abc import Sequence
from statistics import mean

from fedkin.paper.controls import interval_cell
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell


def milestone_table(context: Context) -> Output:
    """For each part: the measure after the rounds of the published values, its mean over the seeds, and theirs."""
    rows = []
    for part in context.reproduction.parts:
        printed, runs = context.reproduction.printed[part.name], context.runs(part)
        for rounds, value in zip(printed["rounds"], printed["values"], strict=True):
            ours = values_after(runs, printed["measure"], rounds)
            known = value if not context.quick else None
            differs = 100 * (mean(ours.values()) - value) if ours and not context.quick else None
            rows.append(
                (
                    text_cell(part.label),
                    Cell(str(rounds), rounds),
                    Cell(str(len(ours)), len(ours)),
                    interval_cell([100 * one for one in ours.values()], "{:.2f}"),
                    number_cell("{:.2f}", None if known is None else 100 * known),
                    Cell(NEVER) if differs is None else number_cell("{:+.2f}", differs),
                )
            )
    columns = ("what", "rounds", "seeds", "accuracy, %", "published", "difference")
    table = Table("", columns, tuple(rows))
    notes = ("± is half the width of a 95 % confidence interval over the seeds, each with a division of its own.",)
    return Output(tables=(table,), spreadsheet=table, notes=notes)


def values_after(runs: Sequence[Run], measure: str, rounds: int) -> dict[int, float]:
    """By seed, the measure in the last measured round up to a number of rounds."""
    found: dict[int, float] = {}
    for run in runs:
        number, values = run.series("round"), run.series(measure)
        known = [
            value for k, value in zip(number, values, strict=True) if k < max(rounds, 1) and math.isfinite(value)
        ]  # fmt: skip
        last = known[-1:] if run.status == "finished" or len(number) >= rounds else []
        found |= {int(run.settings["seed"]): float(value) for value in last}
    return found
