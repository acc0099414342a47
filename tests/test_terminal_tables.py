"""Tables in terminals of any width: texts and titles are wrapped before numbers, and nothing is cut off."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedkin.reports.tables import Cell, Table, text_cell

SETTINGS = "γ=0.00525, server step=1.53, server momentum=0.802"
TABLE = Table(
    "",
    ("method", "chosen settings", "accuracy of clients' models", "seeds"),
    (
        (text_cell("FedAvg, pooled"), text_cell(SETTINGS), Cell("97.2 ± 0.1 %", 0.972), Cell("5", 5)),
        (text_cell("Kin"), text_cell("γ=1"), Cell("—"), Cell("5", 5)),
    ),
)


def lines(table: Table, width: int) -> list[str]:
    """What a terminal of this width shows, without the rule below the titles."""
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return [line for line in file.getvalue().splitlines() if line.strip() and not set(line) <= set(" ─")]


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (120, 3),  # 14 + 50 + 27 + 5 and gaps of 2: all in one line each
        (90, 5),  # the title of accuracy has 13: three lines
        (61, 7),  # accuracy has 12, the least (97.2 ± 0.1 %), and settings 22: three lines, and a title of three
        (53, 9),  # settings have 14, the least (the longest word): five lines
    ],
)
def test_widths_by_hand(width: int, rows: int) -> None:
    found = lines(TABLE, width)
    assert len(found) == rows
    assert max(map(len, found)) <= width
    assert any("FedAvg, pooled" in line and "97.2 ± 0.1 %" in line for line in found)


def test_what_is_too_narrow_for_numbers_keeps_words_whole() -> None:
    text = "\n".join(lines(TABLE, 46))
    assert all(word in text for word in ["momentum=0.802", "pooled", "accuracy", "97.2"])


@given(
    st.integers(20, 150),
    st.lists(st.tuples(st.text("ab ", min_size=1), st.text("cd, ", min_size=1), st.integers(0, 10**9)), min_size=1),
)
def test_nothing_is_cut_off(width: int, rows: list[tuple[str, str, int]]) -> None:
    """Every letter and digit is there, in lines that are no longer than the terminal is wide."""
    cells = tuple(
        (text_cell(first), text_cell(second), Cell(f"{number:,} e", number)) for first, second, number in rows
    )
    found = lines(Table("", ("X", "Y Z", "W"), cells), width)
    assert max(map(len, found)) <= width
    text = "".join(found)
    for letter in "abcde0123456789":
        assert text.count(letter) == sum(cell.text.count(letter) for row in cells for cell in row)
