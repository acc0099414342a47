"""The result of a measurement, and how it is written to a page."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from fedkin.reports.tables import Table
from fedkin.types import Record


@dataclass(frozen=True)
class BenchResult:
    """The result of one measurement: its records, and a table of them with notes."""

    name: str
    records: list[Record]
    table: Table
    notes: tuple[str, ...] = ()
    figure: Figure | None = None


def result_page(result: BenchResult, facts: Record, command: str) -> str:
    """A result in Markdown: table, notes, and how it was measured."""
    lines = [
        f"{result.table.title}.",
        "",
        result.table.markdown(),
        *(f"- {note}" for note in result.notes),
        "",
        f"Measured on {facts['date']} by `{command}` on {facts['machine']}.",
    ]
    return "\n".join(lines)
