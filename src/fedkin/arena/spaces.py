"""The search spaces of all algorithms as a table, for the command and for docs/compare.md.

`python -m fedkin.arena.spaces docs/compare.md` writes it into its place in the page.
"""

import sys
from pathlib import Path

from fedkin.algorithms import ALGORITHMS, label_of
from fedkin.reports.pages import with_section
from fedkin.reports.tables import Table, text_cell


def space_table() -> Table:
    """For each algorithm, what a comparison searches, and where."""
    rows = []
    for name, kind in ALGORITHMS.items():
        searched = "; ".join(f"`{setting}` {where}" for setting, where in kind.search.items())
        rows.append((text_cell(label_of(name)), text_cell(f"`{name}`"), text_cell(searched)))
    return Table("What a comparison searches", ("algorithm", "name", "searched"), tuple(rows))


def page_with_spaces(text: str) -> str:
    """A page with the table in its place."""
    table = space_table().markdown().rstrip("\n").replace("\\_", "_")  # in code nothing is escaped
    return with_section(text, "spaces", table, "compare")


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(page_with_spaces(page.read_text(encoding="utf-8")), encoding="utf-8")
