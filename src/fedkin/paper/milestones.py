"""A table of a measure after some rounds, next to published values: one row for each part and number of rounds."""

import math
from collections.abc import Callable, Sequence
from statistics import mean

from fedkin.paper.controls import interval_cell
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell


def milestone_table(context: Context) -> Output:
    """For each part: the measure after the rounds of the published values, its mean over the seeds, and theirs.

    Publications that print the best round on the testing samples (`best = true`) are compared with the best round here.
    """
    rows = []
    for part in context.reproduction.parts:
        printed, runs = context.reproduction.printed[part.name], context.runs(part)
        for rounds, value in zip(printed["rounds"], printed["values"], strict=True):
            last = values_after(runs, printed["measure"], rounds)
            best = values_after(runs, printed["measure"], rounds, max) if printed.get("best") else {}
            alike = best or last
            rows.append(
                (
                    text_cell(part.label),
                    Cell(str(rounds), rounds),
                    Cell(str(len(last)), len(last)),
                    interval_cell([100 * one for one in last.values()], "{:.2f}"),
                    interval_cell([100 * one for one in best.values()], "{:.2f}") if best else Cell(NEVER),
                    number_cell("{:.2f}", None if context.quick else 100 * value),
                    Cell(NEVER)
                    if context.quick or not alike
                    else number_cell("{:+.2f}", 100 * (mean(alike.values()) - value)),
                )
            )
    columns = ("what", "rounds", "seeds", "after them, %", "best round, %", "published", "difference")
    table = Table("", columns, tuple(rows))
    notes = [
        "Accuracy after so many rounds. ± is half the width of a 95 % confidence interval over the seeds, each with a "
        "division of its own."
    ]
    if any(context.reproduction.printed[part.name].get("best") for part in context.reproduction.parts):
        notes.append(
            "The published values are of the round that is best on the testing samples, and so is the difference; "
            "nobody can choose that round without them."
        )
    return Output(tables=(table,), spreadsheet=table, notes=tuple(notes))


def values_after(
    runs: Sequence[Run], measure: str, rounds: int, of: Callable[[list[float]], float] = lambda values: values[-1]
) -> dict[int, float]:
    """By seed, the measure in the last measured round up to a number of rounds, or in another one `of` them."""
    found: dict[int, float] = {}
    for run in runs:
        number, values = run.series("round"), run.series(measure)
        known = [
            float(value) for k, value in zip(number, values, strict=True) if k < max(rounds, 1) and math.isfinite(value)
        ]
        if known and (run.status == "finished" or len(number) >= rounds):
            found[int(run.settings["seed"])] = of(known)
    return found
