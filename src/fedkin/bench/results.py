"""The result of a measurement, and how it is written to a page."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from fedkin.reports.tables import Table
from fedkin.types import Record


@dataclass(frozen=True)
class BenchResult:
    """The result of one measurement: its records, and a table of them with notes; `more` are further tables."""

    name: str
    records: list[Record]
    table: Table
    notes: tuple[str, ...] = ()
    figure: Figure | None = None
    more: tuple[Table, ...] = ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables."""
        return (self.table, *self.more)


def result_page(result: BenchResult, facts: Record, command: str) -> str:
    """A result in Markdown: table, notes, and how it was measured."""
    lines = [
        *(line for table in result.tables for line in (f"{table.title}.", "", table.markdown())),
        *(f"- {note}" for note in result.notes),
        "",
        f"Measured on {facts['date']} by `{command}` on {facts['machine']}.",
    ]
    return "\n".join(lines)
