"""Tables for the terminal, for Markdown and for a spreadsheet."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import rich.box
import rich.table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

NEVER = "—"
NOT_RUN = "not run"
LEAST_TEXT, GAP = 12, 2  # characters: of text whose long words are broken, and between columns


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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table in a terminal: one too narrow for it wraps titles and texts before numbers."""
        # `Text` throughout: Rich would interpret a bracket in a name as markup.
        title = Text(self.title) if self.title else None
        shown = rich.table.Table(
            title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        widths = self._widths(options.max_width)
        for number, column in enumerate(self.columns):
            width = widths[number] if widths else None
            is_number = self._is_numeric(number)
            shown.add_column(Text(column), justify="right" if is_number else "left", overflow="fold", width=width)
        for row in self.cells:
            shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
        yield shown

    def _widths(self, room: int) -> list[int] | None:
        """Widths of the columns where not all fit side by side: titles of numbers are wrapped first, then texts.

        A wrapped title costs a line or two, a wrapped text one in every row; numbers are wrapped last. None if all fit,
        or if not even the words do: Rich decides then.
        """
        room -= GAP * len(self.columns)
        columns = [[title, *(row[k].text for row in self.cells)] for k, title in enumerate(self.columns)]
        widths = [_widest(texts) for texts in columns]
        words = [_widest([word for text in texts for word in text.split()]) for texts in columns]
        cells = [_widest([*title.split(), *texts]) for title, *texts in columns]
        kept = [k == 0 or self._is_numeric(k) for k in range(len(columns))]
        whole_words = [cells[k] if kept[k] else words[k] for k in range(len(columns))]
        broken_words = [cells[k] if kept[k] else min(LEAST_TEXT, words[k]) for k in range(len(columns))]
        least = next((each for each in (whole_words, broken_words, words) if sum(each) <= room), None)
        if least is None or sum(widths) <= room:
            return None
        while sum(widths) > room:
            free = [k for k in range(len(widths)) if widths[k] > least[k]]
            widths[max(free, key=lambda k: (kept[k] == (least is not words), widths[k]))] -= 1
        return widths

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


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


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
