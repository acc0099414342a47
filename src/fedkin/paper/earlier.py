"""Cells of an earlier table stay on a page when only a part of them was carried out again.

A reproduction may take hours, and its run folders need not be kept: what is missing in them is read from the page.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import groupby

from fedkin.paper.reproduce import Output
from fedkin.reports.tables import NOT_RUN, Table, text_cell

ALL_OTHERS = "all others"
HEADS = 3  # columns that say what a row is: algorithm, loss, and whose values
Rows = dict[tuple[str, str, str], list[str]]  # cells by what the row is


def with_earlier_cells(output: Output, section: str) -> Output:
    """The output of a main table, with the cells that were not run as they are in a section of a page."""
    (table,) = output.tables
    before = next((found for found in _tables(section) if found[0] == list(table.columns)), None)
    if before is None:
        return output
    now, kept = _rows([list(row) for row in table.rows]), _rows(before[1:])
    labels = table.columns[HEADS:]
    fresh = _carried_out(now, labels)
    for key, cells in now.items():
        old = kept.get(key, cells)
        kept[key] = [o if cell == NOT_RUN else cell for cell, o in zip(cells, old, strict=True)]
    algorithms, losses = (list(dict.fromkeys(key[part] for key in kept)) for part in (0, 1))
    rows = []
    for key, cells in sorted(kept.items(), key=lambda row: (algorithms.index(row[0][0]), losses.index(row[0][1]))):
        head = list(key) if key[-1] == "here" else ["", "", key[-1]]
        rows.append(tuple(text_cell(word) for word in [*head, *cells]))
    merged = Table(table.title, table.columns, tuple(rows))
    return replace(output, tables=(merged,), notes=_notes(output, section, fresh, _carried_out(kept, labels) - fresh))


def _carried_out(rows: Rows, labels: Sequence[str]) -> set[str]:
    """The cells with values of ours, as `FEDERATION, LOSS`."""
    return {
        f"{label}, {loss}"
        for (_, loss, whose), cells in rows.items()
        for label, cell in zip(labels, cells, strict=True)
        if whose == "here" and cell != NOT_RUN
    }


def _notes(output: Output, section: str, fresh: set[str], kept: set[str]) -> tuple[str, ...]:
    """Those of now, with what earlier ones say about the cells that are kept, and the days of both."""
    if not kept:
        return output.notes
    goal, *agreements = output.notes
    lines = [line[2:] for line in section.splitlines() if line.startswith("- ")]
    about = re.compile(r"(.*), \d+ of \d+ cells: ")
    others = [line for line in lines if (found := about.match(line)) and found[1] not in fresh]
    now = f"Cells of {date.today().isoformat()}: {'; '.join(sorted(fresh))}."
    return (goal, *sorted([*others, *agreements]), now, *_days(section, lines, kept))


def _days(section: str, lines: Sequence[str], kept: set[str]) -> Iterator[str]:
    """On which days the cells that are kept were carried out."""
    said = (re.fullmatch(r"Cells of (\S+): (.*)\.", line) for line in lines)
    days = {found[1]: found[2] for found in said if found}
    if not days and (written := re.search(r"Written on (\S+)", section)):
        days = {written[1]: ALL_OTHERS}
    named = {name for names in days.values() for name in names.split("; ")}
    for day, names in days.items():
        if names == ALL_OTHERS and kept - named:
            yield f"Cells of {day}: {ALL_OTHERS}."
        elif left := [name for name in names.split("; ") if name in kept]:
            yield f"Cells of {day}: {'; '.join(left)}."


def _rows(lines: list[list[str]]) -> Rows:
    """By algorithm, loss and whose values; empty words are those of the line above."""
    found: Rows = {}
    algorithm = loss = ""
    for name, kind, whose, *cells in lines:
        algorithm, loss = name or algorithm, kind or loss
        found[algorithm, loss, whose] = cells
    return found


def _tables(text: str) -> Iterator[list[list[str]]]:
    """The tables of a Markdown text: head and rows."""
    for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("| ")):
        if is_table:
            head, _, *rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines]
            yield [head, *rows]
