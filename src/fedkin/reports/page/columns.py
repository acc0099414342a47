"""Data of charts as columns: smaller than rows, because names are written once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.types import Integers

TableColumns = Mapping[str, Sequence[Any]]
DIGITS = 5  # significant digits of a number: more than a screen can show


def encoded(columns: TableColumns) -> dict[str, Any]:
    """Columns for the page: numbers rounded, not finite ones null, and texts as places in a list of different ones."""
    return {name: _texts(values) if _has_text(values) else _numbers(values) for name, values in columns.items()}


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows behind encoded columns, as the browser makes them."""
    whole = {
        name: [values["of"][code] for code in values["codes"]] if isinstance(values, dict) else values
        for name, values in columns.items()
    }
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


def _has_text(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _texts(values: Sequence[Any]) -> dict[str, Any]:
    places = {text: place for place, text in enumerate(dict.fromkeys(values))}
    return {"of": list(places), "codes": [places[value] for value in values]}


def _numbers(values: Sequence[Any]) -> list[float | int | None]:
    return [_number(value) for value in values]


def _number(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def thinned(count: int, most: int) -> Integers:
    """Places of at most so many of `count` entries, evenly spread, the first and the last among them."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, max(most, 2)).round().astype(np.int64))
