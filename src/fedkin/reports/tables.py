"""Tables for the terminal, for Markdown and for a spreadsheet."""

import csv
import io
import math
from dataclasses import dataclass

import rich.box
import rich.table
from rich.text import Text

NEVER = "—"


@dataclass(frozen=True)
class Cell:
    """What a table shows, and the number behind it.

    value   not rounded; None where there is nothing to say
    spread  the standard deviation over seeds, where there are several
    count   how many seeds the value is of, where it is not all of them
    """

    text: str
    value: float | str | None = None
    spread: float | None = None
    count: int | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A comparison of runs, for the terminal, for Markdown and for a spreadsheet."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

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
        """For the terminal."""
        # `Text` throughout: a bracket in a name must not be taken for markup.
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
        """For a README or a notebook."""
        lines = [
            [escaped(column) for column in self.columns],
            ["---:" if self._is_numeric(number) else "---" for number in range(len(self.columns))],
            *([f"**{escaped(cell.text)}**" if cell.best else escaped(cell.text) for cell in row] for row in self.cells),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        """For a spreadsheet: numbers that are not rounded, accuracies between 0 and 1, empty for nothing."""
        head: list[str] = []
        lines: list[list[str]] = [[] for _ in self.cells]
        for number, column in enumerate(self.columns):
            cells = [row[number] for row in self.cells]
            parts: list[tuple[str, list[float | str | None]]] = [(column, [cell.value for cell in cells])]
            if any(cell.spread is not None for cell in cells):
                parts.append((f"{column}, standard deviation", [cell.spread for cell in cells]))
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
    """Text that Markdown takes for text."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


def word(text: str) -> Cell:
    """A cell that says something, and is not a number."""
    return Cell(text, text)


def measured(form: str, value: float | None) -> Cell:
    """A number in a form of print, or a dash where there is none."""
    if value is None or not math.isfinite(value):
        return Cell(NEVER)
    return Cell(form.format(value), value)
