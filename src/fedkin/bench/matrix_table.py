"""The tables of the matrix, and what can be said about it in a sentence."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from fedkin.bench.settings import AXES, RUNS, SWEEP_STEPS
from fedkin.bench.timing import Spread
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell
from fedkin.types import Record

ROW_AXES = ("model", "sizes", "clients", "batch", "runs")
COLUMN_AXES = ("order", "clip")
NAMES = {
    "B256": "256", "B32": "32", "sampled": "10 of 100", "single": "one run", "sweep": f"sweep of {len(SWEEP_STEPS)}",
    "unclipped": "", "clipped": "G = 10",
}  # fmt: skip


def named(word: str) -> str:
    """A word of the command as it is shown."""
    return NAMES.get(word, word)


def column_names() -> list[tuple[tuple[str, ...], str]]:
    """The words of each column, and its title."""
    words = product(*(AXES[axis] for axis in COLUMN_AXES))
    return [(both, ", ".join(filter(None, map(named, both)))) for both in words]


def lines_by_row(cells: Sequence[Record]) -> list[tuple[tuple[str, ...], dict[tuple[str, ...], Record]]]:
    """The cells by row, in the order of the axes: the words of a row, and its cells by the words of their columns."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], Record]] = {}
    for cell in cells:
        found.setdefault(tuple(cell[axis] for axis in ROW_AXES), {})[tuple(cell[axis] for axis in COLUMN_AXES)] = cell
    axes: list[list[str]] = [list(AXES.get(axis, RUNS)) for axis in ROW_AXES]
    return [(row, found[row]) for row in product(*axes) if row in found]


def matrix_table(cells: Sequence[Record]) -> Table:
    """One row for each combination but order and clipping, which are its columns."""
    return Table(
        "Times faster per run than the slicing loop (b), median of the turns",
        (*ROW_AXES, *(title for _, title in column_names())),
        tuple(
            (
                *(text_cell(named(word)) for word in row),
                *(
                    number_cell("{:.1f}", line[words]["ratio"]["median"]) if words in line else Cell(NEVER)
                    for words, _ in column_names()
                ),
            )
            for row, line in lines_by_row(cells)
        ),
    )


def other_table(records: Sequence[Record]) -> Table:
    """Modules, and algorithms whose clients have a memory."""

    def cell(record: Record, key: str) -> Cell:
        found: Any = record[key]
        return Cell(Spread(**found).text(), found["median"])

    return Table(
        "Seconds per round, median (lowest–highest), shuffled",
        ("work", "clients", "engine", "loop", "loop ÷ engine", "differs"),
        tuple(
            (
                text_cell(record["other"]),
                Cell(f"{record['clients']}", record["clients"]),
                *(cell(record, key) for key in ("engine", "loop", "ratio")),
                Cell(f"{record['loop_differs']:.0e}", record["loop_differs"]),
            )
            for record in records
        ),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(map(math.log, values)) / len(values))


def summary_notes(cells: Sequence[Record], beside: Sequence[Record], stride: int) -> tuple[str, ...]:
    """Geometric mean and lowest cell of each model, and what the numbers rest on."""
    notes = []
    for model in AXES["model"]:
        own = {tuple(c[axis] for axis in (*ROW_AXES[1:], *COLUMN_AXES)): c["ratio"]["median"] for c in cells
               if c["model"] == model}  # fmt: skip
        if own:
            lowest = min(own, key=lambda words: own[words])
            where = ", ".join(filter(None, map(named, lowest)))
            mean = geometric_mean(list(own.values()))
            notes.append(f"{model}: geometric mean {mean:.1f}, lowest {own[lowest]:.2f} ({where}), {len(own)} cells.")
    if cells:
        worst = max(cell["plain_differs"] for cell in cells)
        notes.append(
            f"The engine differs from its plain path by at most {worst:.0e} after three rounds, in the length of the "
            "parameters, on fewer clients."
        )
    if differing := [c["loop_differs"] for c in (*cells, *beside) if c["loop_differs"] is not None]:
        notes.append(
            f"Engine and loop differ by at most {max(differing):.0e} of the change after a round, where the loop has "
            "all clients."
        )
    if shares := [cell["share"] for cell in cells if cell["share"] < 1]:
        notes.append(
            f"Where all clients work, the loop is timed on every {stride}th by size, with "
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the samples."
        )
    if found := [cell["proportion"]["median"] for cell in cells if cell["proportion"]]:
        notes.append(
            f"On all clients it takes {min(found):.2f} to {max(found):.2f} times what follows from that part "
            "(fixed, B = 256, no clipping)."
        )
    return tuple(notes)
