"""Columns of tables: numbers, booleans, dates or text, each with its missing values.

A column is read into one of few kinds, whatever it was stored as, so that clients can agree on what it holds.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.errors import BadInput

KINDS = ("number", "boolean", "date", "text", "empty")
DAY = np.timedelta64(1, "D")


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table.

    kind    `number`; `boolean`: 0 and 1; `date`: days since 1970-01-01, with fractions; `text`; `empty`: no values
    values  (n,) float64, NaN where the value is missing. Of text: int64, the places in `words`, −1 where it is missing
    words   the different values of text, in alphabetical order
    """

    kind: str
    values: NDArray[Any]
    words: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Where the value is missing, (n,)."""
        return np.asarray(self.values < 0 if self.kind == "text" else np.isnan(self.values))

    def taken(self, rows: NDArray[Any]) -> "Column":
        """Some rows of the column, as if it had no others: without words that do not occur in them."""
        values = self.values[rows]
        if self.kind == "text":
            used, places = np.unique(values, return_inverse=True)
            words = tuple(self.words[place] for place in used.tolist() if place >= 0)
            # The used words keep their order; before them comes −1, if any value is missing.
            missing = len(used) - len(words)
            return Column("text", places - missing, words) if words else empty_column(len(values))
        return Column(self.kind, values) if not np.isnan(values).all() else empty_column(len(values))

    def as_text(self) -> "Column":
        """The same column as text: whole numbers are written without a fraction."""
        if self.kind == "text":
            return self
        known = ~self.missing
        distinct, places = np.unique(self.values[known], return_inverse=True)
        if self.kind == "date":
            texts = [str(day) for day in distinct.astype("datetime64[D]")]
        else:
            names = {0.0: "False", 1.0: "True"} if self.kind == "boolean" else {}
            texts = [names.get(v) or (str(int(v)) if v == math.floor(v) else str(v)) for v in distinct.tolist()]
        values = np.full(len(self), -1)
        values[known] = places
        return text_column(values, texts)

    def as_dates(self) -> "Column":
        """Text that is written as 2024-03-31 or 2024-03-31 12:00 as dates; any other column as it is."""
        if self.kind != "text":
            return self
        try:
            days = _dates(np.array(self.words, dtype="datetime64[us]")).values
        except ValueError:
            return self
        return Column("date", np.append(days, np.nan)[self.values])  # the place −1 is a missing value

    def plain(self) -> NDArray[Any]:
        """The values as an array of numbers, booleans or strings, for a column without missing values."""
        if self.kind == "text":
            return np.asarray(np.array(self.words)[self.values])
        if self.kind == "boolean":
            return self.values.astype(bool)
        whole = self.kind == "number" and (np.abs(self.values) < 2**53).all()
        if whole and (self.values == np.floor(self.values)).all():
            return self.values.astype(np.int64)
        return self.values


def text_column(places: NDArray[Any], texts: Sequence[str]) -> Column:
    """A column of text from places in a list of texts, −1 where missing.

    Spaces around a text do not count, and a text without characters is missing.
    """
    used, inverse = np.unique(places, return_inverse=True)
    found = ["" if place < 0 else texts[place].strip() for place in used.tolist()]
    words = tuple(sorted(set(found) - {""}))
    place_of = {word: place for place, word in enumerate(words)}
    new = np.array([place_of.get(text, -1) for text in found], dtype=np.int64)
    return Column("text", new[inverse], words) if words else empty_column(len(places))


def empty_column(rows: int) -> Column:
    """A column without any value."""
    return Column("empty", np.full(rows, np.nan))


def number_column(values: NDArray[Any], kind: str = "number") -> Column:
    """A column of numbers, booleans or days, NaN where missing."""
    floats = values.astype(np.float64)
    return Column(kind, floats) if not np.isnan(floats).all() else empty_column(len(floats))


def column_of(values: Any, where: str) -> Column:
    """A column from an array or a list; None, NaN and NaT are missing values. `where` names it in errors."""
    try:
        # A list as objects: among strings, NumPy would make strings of its numbers.
        array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise BadInput(f"{where} has values of different or several dimensions: give one number or text per row")
    match array.dtype.kind:
        case "b":
            return number_column(array, "boolean")
        case "i" | "u" | "f":
            return number_column(array)
        case "M":
            return _dates(array)
        case "U" | "S" | "T":
            texts = array.astype(str) if array.dtype.kind != "S" else np.char.decode(array, "utf-8", "replace")
            distinct, places = np.unique(texts.astype(str), return_inverse=True)
            return text_column(places, distinct.tolist())
        case "O":
            return _of_objects(array, where)
    raise BadInput(f"{where} holds values of type {array.dtype}: give numbers, booleans, dates or text")


def _dates(array: NDArray[Any]) -> Column:
    """Days since 1970-01-01."""
    return number_column(
        np.where(np.isnat(array), np.nan, (array - np.datetime64(0, "D")).astype("timedelta64[us]") / DAY), "date"
    )


def _of_objects(array: NDArray[Any], where: str) -> Column:
    """A column of Python objects, which must be of one kind but for missing values."""
    known = np.array([not _is_missing(value) for value in array], dtype=bool)
    if not known.any():
        return empty_column(len(array))
    present = array[known]
    kinds = {_kind_of(value) for value in present}
    if kinds == {"number", "boolean"}:
        kinds = {"number"}
    if len(kinds) > 1 or None in kinds:
        first, other = (
            present[0],
            next(v for v in present if _kind_of(v) is None or _kind_of(v) != _kind_of(present[0])),
        )
        raise BadInput(
            f"{where} mixes values of different types ({first!r} and {other!r}): convert it to one type, or leave it "
            "out"
        )
    kind = kinds.pop()
    if kind == "text":
        values = np.full(len(array), -1)
        distinct, values[known] = np.unique(present.astype(str), return_inverse=True)
        return text_column(values, distinct.tolist())
    floats = np.full(len(array), np.nan)
    floats[known] = _dates(present.astype("datetime64[us]")).values if kind == "date" else present.astype(np.float64)
    return number_column(floats, str(kind))


def _is_missing(value: Any) -> bool:
    """None, empty text, NaN, NaT, and the NA of pandas, of which nobody can say whether it equals itself."""
    if value is None or isinstance(value, str):
        return not value
    try:
        return not bool(value == value)
    except TypeError:
        return True


def _kind_of(value: Any) -> str | None:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, datetime.date | np.datetime64):
        return "date"
    try:
        float(value)
    except (TypeError, ValueError):
        return None
    return "number"


def common_kind(kinds: Mapping[str, str]) -> str | None:
    """The kind that the columns of all clients can have, by client; None if they disagree.

    A column without values fits any kind, and booleans are the numbers 0 and 1 where others have numbers.

    >>> common_kind({"north": "number", "south": "empty", "east": "boolean"})
    'number'
    """
    found = set(kinds.values()) - {"empty"}
    if found == {"number", "boolean"}:
        return "number"
    return "empty" if not found else found.pop() if len(found) == 1 else None
