"""The table of docs/algorithms.md is what the classes say."""

from algorithm_table import BEGIN, END, PAGE, PURPOSE, P, amount, table
from fedkin.algorithms import ALGORITHMS


def test_the_page_has_the_table_of_all_algorithms() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"{BEGIN}\n{table()}\n{END}" in page, "PYTHONPATH=tools python -m algorithm_table writes it anew"
    assert PURPOSE.keys() == ALGORITHMS.keys()


def test_amounts() -> None:
    assert [amount(n) for n in (0, 4, P, P + 1, 11 * P)] == ["0", "4", "P", "P + 1", "11P"]
