"""Columns, their summaries, and the encoding that is agreed from the summaries."""

import datetime
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data.columns import Column, column_of, common_kind, number_column, text_column
from fedkin.data.encoding import Encoding, Step, agreed_encoding
from fedkin.data.remarks import remarks_on_classes, remarks_on_columns, remarks_on_units
from fedkin.data.summaries import MOST_CATEGORIES, ColumnSummary, combined_summary, summary_of
from fedkin.errors import BadInput

NAN = math.nan


def agreed(columns: dict[str, list[Column]], **options: Any) -> Encoding:
    """The encoding of columns that are given client by client."""
    kinds = {name: common_kind({str(i): c.kind for i, c in enumerate(parts)}) or "" for name, parts in columns.items()}
    return agreed_encoding(kinds, {name: [summary_of(c) for c in parts] for name, parts in columns.items()}, **options)


# --- columns ---


@pytest.mark.parametrize(
    ("values", "kind", "numbers", "words"),
    [
        ([1, 2, None], "number", [1, 2, NAN], ()),
        (np.array([1.5, NAN]), "number", [1.5, NAN], ()),
        ([True, None, False], "boolean", [1, NAN, 0], ()),
        ([True, 2.5], "number", [1, 2.5], ()),
        (["b", None, " a ", "b", ""], "text", [1, -1, 0, 1, -1], ("a", "b")),
        (np.array(["b", "a"]), "text", [1, 0], ("a", "b")),
        (np.array([b"b", b"a"]), "text", [1, 0], ("a", "b")),
        ([None, NAN], "empty", [NAN, NAN], ()),
        (["", " "], "empty", [NAN, NAN], ()),
        ([datetime.date(1970, 1, 3), None], "date", [2, NAN], ()),
        (np.array(["1970-01-02T12", "NaT"], dtype="M8[h]"), "date", [1.5, NAN], ()),
    ],
)
def test_columns_by_hand(values: Any, kind: str, numbers: list[float], words: tuple[str, ...]) -> None:
    column = column_of(values, "it")
    assert (column.kind, column.words) == (kind, words)
    np.testing.assert_array_equal(column.values, numbers)
    missing = [n == -1 for n in numbers] if kind == "text" else np.isnan(numbers)
    np.testing.assert_array_equal(column.missing, missing)


@pytest.mark.parametrize("values", [[1, "a"], [[1, 2], [3]], [{}, {}], [[1], [2]], [1, datetime.date(2024, 1, 1)]])
def test_columns_of_mixed_types_are_refused(values: Any) -> None:
    with pytest.raises(BadInput, match="column 'age' of north"):
        column_of(values, "column 'age' of north")


def test_numbers_as_text() -> None:
    """For columns of codes: whole numbers without a fraction, days as dates."""
    assert column_of([2, 10, None, 2], "").as_text().words == ("10", "2")
    assert column_of([2.5, 10], "").as_text().words == ("10", "2.5")
    assert column_of([True, None], "").as_text().words == ("True",)
    assert column_of([datetime.date(2024, 2, 1)], "").as_text().words == ("2024-02-01",)
    assert column_of([2, 10, None], "").as_text().values.tolist() == [1, 0, -1]


def test_taken_rows_know_no_other_words() -> None:
    """What a client holds does not depend on the other rows of the table that it comes from."""
    column = column_of(["a", "b", None, "c"], "").taken(np.array([3, 2, 1]))
    assert (column.words, column.values.tolist()) == (("b", "c"), [1, -1, 0])
    assert column_of(["a", None], "").taken(np.array([1])).kind == "empty"


def test_kinds_that_agree() -> None:
    assert common_kind({"a": "number", "b": "boolean", "c": "empty"}) == "number"
    assert common_kind({"a": "empty", "b": "empty"}) == "empty"
    assert common_kind({"a": "text", "b": "empty"}) == "text"
    assert common_kind({"a": "text", "b": "number"}) is None
    assert common_kind({"a": "text", "b": "boolean"}) is None
    assert common_kind({"a": "date", "b": "number"}) is None


# --- summaries ---


def test_summary_by_hand() -> None:
    """1, 2, 6 have the mean 3 and the squares 4 + 1 + 9 = 14."""
    found = summary_of(number_column(np.array([1, NAN, 2, 6])))
    assert found == ColumnSummary(count=3, missing=1, mean=3.0, squares=14.0, unique=True)
    words = summary_of(column_of(["b", "a", "b", None], ""))
    assert (words.count, words.missing, words.distinct, words.words) == (3, 1, 2, {"b": 2, "a": 1})
    assert not words.unique


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.none(), min_size=1, max_size=12), min_size=1, max_size=5))
def test_combined_summaries_are_those_of_all_rows(clients: list[list[float | None]]) -> None:
    columns = [number_column(np.array([NAN if v is None else v for v in values])) for values in clients]
    found = combined_summary([summary_of(column) for column in columns])
    every = np.array([v for values in clients for v in values if v is not None])
    assert found.count == len(every)
    assert found.missing == sum(map(len, clients)) - len(every)
    if len(every):
        assert found.mean == pytest.approx(every.mean(), rel=1e-9, abs=1e-6)
        assert found.deviation == pytest.approx(every.std(), rel=1e-6, abs=1e-6)


def test_a_client_sends_few_values_of_text() -> None:
    """60 values, the first of them twice: it is among those sent, and not all others are."""
    column = column_of([f"v{i:02}" for i in [*range(60), 0]], "")
    sent = summary_of(column)
    assert len(sent.words) == MOST_CATEGORIES
    assert sent.words["v00"] == 2
    assert sent.distinct == 60


# --- the encoding ---


def test_numbers_by_hand() -> None:
    """2 and 4 at one client, 6 and 8 at the other: mean 5, variance (9 + 1 + 1 + 9) / 4 = 5. Missing becomes 0."""
    encoding = agreed({"a": [number_column(np.array([2, 4])), number_column(np.array([6, NAN, 8]))]})
    assert encoding.features == ("a", "a is missing")
    found = encoding.transform({"a": [5, 2, None]})
    np.testing.assert_allclose(found, np.array([[0, 0], [-3 / math.sqrt(5), 0], [0, 1]]), rtol=1e-6)
    assert found.dtype == np.float32
    plain = agreed({"a": [number_column(np.array([2, 4])), number_column(np.array([6, NAN, 8]))]}, standardise=False)
    np.testing.assert_array_equal(plain.transform({"a": [5, 2, None]}), [[5, 0], [2, 0], [5, 1]])
    bare = agreed({"a": [number_column(np.array([2, 4])), number_column(np.array([6, NAN, 8]))]}, indicators=False)
    np.testing.assert_array_equal(bare.transform({"a": [None, 5]}), [[0], [0]])


def test_categories_and_booleans_by_hand() -> None:
    encoding = agreed(
        {
            "ward": [column_of(["b", "a"], ""), column_of(["c", "a"], "")],
            "seen": [column_of([True, None], ""), column_of([False, True], "")],
        }
    )
    assert encoding.features == ("seen", "seen is missing", "ward = a", "ward = b", "ward = c")
    rows = encoding.transform({"ward": ["c", "other", None], "seen": [False, None, True], "unused": [1, 2, 3]})
    share = np.float32(2 / 3)  # of true
    np.testing.assert_array_equal(rows, [[0, 0, 0, 0, 1], [share, 1, 0, 0, 0], [1, 0, 0, 0, 0]])


def test_dates_are_days() -> None:
    """1 and 3 January: the mean is the 2nd and the deviation 1 day."""
    dates = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)]
    encoding = agreed({"d": [column_of(dates[:1], ""), column_of(dates[1:], "")]})
    np.testing.assert_array_equal(encoding.transform({"d": [*dates, datetime.date(2024, 1, 2)]}), [[-1], [1], [0]])
    assert "mean 2024-01-02, deviation 1" in encoding.steps[0].described()


def test_columns_without_information_are_left_out() -> None:
    columns = {
        "name": [column_of([f"{c}{i}" for i in range(15)], "") for c in "ab"],
        "same": [column_of([3] * 15, "")] * 2,
        "tenth": [column_of([0.1] * 15, "")] * 2,  # its mean is 0.1 up to rounding
        "word": [column_of(["w"] * 15, "")] * 2,
        "none": [column_of([None] * 15, "")] * 2,
        "x": [column_of(list(range(15)), "")] * 2,
    }
    encoding = agreed(columns)
    assert [step.column for step in encoding.steps] == ["x"]
    assert encoding.left_out == {
        "name": "an identifier, no value occurs twice at a client",
        "none": "no value at any client",
        "same": "constant, always 3",
        "tenth": "constant, always 0.1",
        "word": "constant, always 'w'",
    }
    kept = agreed(columns, categories=["name"])
    assert len([name for name in kept.features if name.startswith("name = ")]) == 30
    with pytest.raises(BadInput, match="no column is left to learn from"):
        agreed({"same": columns["same"]})


def test_the_most_frequent_categories_are_kept() -> None:
    """60 categories; those with even numbers occur twice at the first client: all 30 of them are kept."""
    words = [f"v{i:02}" for i in range(60)]
    encoding = agreed({"w": [column_of([*words, *words[::2]], ""), column_of(["v00", "v01"], "")]})
    (step,) = encoding.steps
    assert len(step.categories) == MOST_CATEGORIES
    assert set(words[::2]) <= set(step.categories)
    assert not encoding.transform({"w": [word for word in words if word not in step.categories]}).any()


def test_the_encoding_survives_as_text() -> None:
    encoding = agreed(
        {
            "ward": [column_of(["b", "ä", None], ""), column_of(["c", "b", "b"], "")],
            "x": [column_of([1.1, 2, 3], ""), column_of([4, 5, 6], "")],
            "same": [column_of([1, 1, 1], ""), column_of([1, 1, 1], "")],
        }
    )
    assert Encoding.from_json(encoding.to_json()) == encoding
    assert Encoding.from_dict(json.loads(json.dumps(encoding.to_dict()))) == encoding


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"steps": 3}',
        '{"steps": [{"kind": "number"}]}',
        '{"steps": [{"column": "a", "kind": "odd"}]}',
        '{"steps": [{"column": "a", "kind": "number", "scale": NaN}]}',
        '{"steps": [{"column": "a", "kind": "number", "more": 1}]}',
    ],
)
def test_a_damaged_encoding_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not an encoding"):
        Encoding.from_json(text)


def test_tables_that_do_not_fit_are_refused() -> None:
    encoding = Encoding((Step("age", "number"), Step("ward", "text", categories=("a",))))
    with pytest.raises(BadInput, match="the table has no column 'ward': add it"):
        encoding.transform({"age": [1]})
    with pytest.raises(BadInput, match="column 'age' of the table holds text where numbers are expected"):
        encoding.transform({"age": ["old"], "ward": ["a"]})
    with pytest.raises(BadInput, match="columns of different lengths"):
        encoding.transform({"age": [1, 2], "ward": ["a"]})
    with pytest.raises(BadInput, match="column 'age' of the table has infinite values"):
        encoding.transform({"age": [math.inf], "ward": ["a"]})
    with pytest.raises(BadInput, match="the table cannot be read as a table"):
        encoding.transform(3)
    # Numbers are categories where categories are expected, and a column may be empty.
    np.testing.assert_array_equal(encoding.transform({"age": [None, True], "ward": [1, None]}), [[0, 0], [1, 0]])
    np.testing.assert_array_equal(encoding.transform({"age": [7], "ward": [None]}), [[7, 0]])


# --- what is worth a look ---


def summaries_of(*clients: Sequence[float]) -> list[ColumnSummary]:
    return [summary_of(number_column(np.array(values, dtype=float))) for values in clients]


def test_units_that_differ() -> None:
    kilograms, grams = [60, 70, 80, 65, 75], [60_000, 70_000, 80_000, 65_000, 75_000]
    celsius, fahrenheit = [36.5, 37, 37.5, 38, 36.8], [97.7, 98.6, 99.5, 100.4, 98.2]
    names = ("north", "south", "east")
    assert remarks_on_units("w", summaries_of(kilograms, kilograms, kilograms), names) == []
    (said,) = remarks_on_units("w", summaries_of(kilograms, grams, kilograms), names)
    assert said == "column 'w' is about 1,000 times larger at client 'south' than elsewhere: do the units agree?"
    (said,) = remarks_on_units("w", summaries_of(kilograms, grams), names[:2])
    assert "1,000 times larger at client 'south'" in said
    (said,) = remarks_on_units("t", summaries_of(celsius, celsius, fahrenheit), names)
    assert said.startswith("column 't' is around 98.88 at client 'east' but around 37.16 elsewhere")
    assert remarks_on_units("w", summaries_of(kilograms, grams[:3], kilograms), names) == [], "too few to judge"


def test_remarks_by_hand() -> None:
    columns = {
        "record": [column_of([7 * i for i in range(30)], ""), column_of([5 * i for i in range(30)], "")],
        "lab": [column_of([None] * 30, ""), column_of(list(range(10)) * 3, "")],
        "same": [column_of([1] * 30, "")] * 2,
    }
    encoding = agreed(columns)
    parts = {name: [summary_of(c) for c in of] for name, of in columns.items()}
    said = remarks_on_columns(encoding, parts, ("north", "south"))
    assert said[0] == "column 'same' is left out: constant, always 1"
    assert "client 'north' has no value of column 'lab'" in said
    assert any("'record' holds whole numbers of which none occurs twice" in sentence for sentence in said)
    assert len(said) == 3
    counts = np.array([[3, 0], [2, 2]])
    assert remarks_on_classes(counts, ("no", "yes"), ("a", "b")) == ["client 'a' has rows of one class only ('no')"]


def test_text_columns_merge_spellings_with_spaces() -> None:
    column = text_column(np.array([0, 1, 2, -1]), ["yes ", "yes", " "])
    assert (column.words, column.values.tolist()) == (("yes",), [0, 0, -1, -1])


def test_dates_may_be_text() -> None:
    """Days 0 and 10 have mean 5 and deviation 5; a data frame that was read from a CSV file has them as text."""
    made = np.array(["1970-01-01", "1970-01-11"], dtype="datetime64[D]")
    found = agreed({"day": [column_of(made, "day")] * 2})
    encoded = found.transform({"day": np.array(["1970-01-06", "1970-01-16", "1970-01-11 12:00"])})
    assert encoded[:, 0].tolist() == pytest.approx([0, 2, 1.1])
    with pytest.raises(BadInput, match="column 'day' of the table holds text where dates are expected"):
        found.transform({"day": np.array(["1970-01-06", "soon"])})
