"""Tables for the terminal, for Markdown and for a spreadsheet."""

import csv
import io
import math
from dataclasses import dataclass

import rich.box
import rich.table
from rich.text import Text

NEVER = "—"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the value behind it.

    value   not rounded; None if there is none
    spread  the standard deviation over seeds, or the standard error of their mean, if there are several
    count   the number of seeds that have a value, if not all of them do
    best    whether the value is the best of its column
    """

    text: str
    value: float | str | None = None
    spread: float | None = None
    count: int | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A titled table with one row of cells per entry; `spread` says what the spread of its cells is."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    spread: str = "standard deviation"

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The text of the cells."""
        return tuple(tuple(cell.text for cell in row) for row in self.cells)

    @property
    def values(self) -> tuple[tuple[float | str | None, ...], ...]:
        """The numbers behind the cells, not rounded."""
        return tuple(tuple(cell.value for cell in row) for row in self.cells)

    def _is_numeric(self, column: int) -> bool:
        return not any(isinstance(row[column].value, str) for row in self.cells)

    def rich(self) -> rich.table.Table:
        """The table for a terminal."""
        # `Text` throughout: Rich would interpret a bracket in a name as markup.
        title = Text(self.title) if self.title else None
        shown = rich.table.Table(
            title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        for number, column in enumerate(self.columns):
            shown.add_column(Text(column), justify="right" if self._is_numeric(number) else "left")
        for row in self.cells:
            shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
        return shown

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [
            [escaped(column) for column in self.columns],
            ["---:" if self._is_numeric(number) else "---" for number in range(len(self.columns))],
            *([f"**{escaped(cell.text)}**" if cell.best else escaped(cell.text) for cell in row] for row in self.cells),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        """The table for a spreadsheet: numbers not rounded, accuracies between 0 and 1, missing values empty."""
        head: list[str] = []
        lines: list[list[str]] = [[] for _ in self.cells]
        for number, column in enumerate(self.columns):
            cells = [row[number] for row in self.cells]
            parts: list[tuple[str, list[float | str | None]]] = [(column, [cell.value for cell in cells])]
            if any(cell.spread is not None for cell in cells):
                parts.append((f"{column}, {self.spread}", [cell.spread for cell in cells]))
            if any(cell.count is not None for cell in cells):
                parts.append((f"{column}, seeds", [cell.count for cell in cells]))
            for title, values in parts:
                head.append(title)
                for line, value in zip(lines, values, strict=True):
                    line.append("" if value is None else value if isinstance(value, str) else f"{value:.10g}")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *lines])
        return text.getvalue()


def escaped(text: str) -> str:
    """Text with the special characters of Markdown escaped."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def text_cell(text: str) -> Cell:
    """A cell with text, which is sorted and exported as text."""
    return Cell(text, text)


def number_cell(form: str, value: float | None) -> Cell:
    """A formatted number, or a dash if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return Cell(NEVER)
    return Cell(form.format(value), value)
