"""Agreement of clients on their columns: by name, whatever their order; what a column holds; what is predicted."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.columns import Column, common_kind
from fedkin.data.encoding import NOUN
from fedkin.data.tables import Sheet, in_natural_order
from fedkin.errors import BadInput, nearest

USUAL_TARGETS = (
    "target",
    "label",
    "y",
    "outcome",
    "class",
)  # names of a column that is the target, unless another is named
USUAL_CLIENTS = ("client",)
# With so large a share of numbers among its different values, text is a column of numbers with something else in it.
MOSTLY_NUMBERS = 0.5
LOOKED_AT = 1000  # different values by which this is judged

Sheets = Mapping[str, Sheet]


def column_called(sheet: Sheet, given: str | None, usual: Sequence[str], setting: str, where: str) -> str:
    """The column of a table that has a role: the one given, or else the only one with one of the usual names."""
    names = list(sheet.columns)
    if given is not None:
        if given in sheet.dropped:
            raise BadInput(f"the column '{given}' is both data.{setting} and in data.drop: take it out of data.drop")
        if given not in names:
            close = nearest(given, names) if names else ": it has no columns"
            raise BadInput(
                f"{where} has no column '{given}'{close}: name one of its columns as data.{setting} or with --{setting}"
            )
        return given
    found = [name for name in names if name.lower() in usual]
    if len(found) != 1:
        what = f"several candidates for the {setting}" if found else f"no column called {' or '.join(usual)}"
        raise BadInput(
            f"{where} has {what}: name one of its columns as data.{setting} or with --{setting} (its columns are "
            f"{_listed(found or names)})"
        )
    return found[0]


def _listed(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f", … {len(names)} in all" if len(names) > most else "")


def without_dropped(sheets: Sheets, drop: Sequence[str]) -> None:
    """Whether all columns that were to be left out were there, at some client at least."""
    seen = {name for sheet in sheets.values() for name in sheet.dropped}
    for name in drop:
        if name not in seen:
            known = {column for sheet in sheets.values() for column in sheet.columns}
            raise BadInput(f"there is no column '{name}' to leave out{nearest(name, known)}: correct data.drop")


def agreed_kinds(sheets: Sheets, categories: Sequence[str] = ()) -> dict[str, str]:
    """What each column holds, the same at all clients."""
    names = sorted({name for sheet in sheets.values() for name in sheet.columns})
    for name in categories:
        if name not in names:
            raise BadInput(f"there is no column '{name}' to take as categories{nearest(name, names)}")
    kinds = {}
    for name in names:
        columns = {client: sheet.columns[name] for client, sheet in sheets.items() if name in sheet.columns}
        for client, sheet in sheets.items():
            if name not in sheet.columns:
                raise _no_column(client, sheet, name, next(iter(columns)), names)
        if name in categories:
            kinds[name] = "text"
            continue
        for client, column in columns.items():
            _no_numbers_in_text(client, name, column)
        kind = common_kind({client: column.kind for client, column in columns.items()})
        if kind is None:
            raise _disagreement(name, columns)
        kinds[name] = kind
    return kinds


def _no_column(client: str, sheet: Sheet, name: str, other: str, names: Sequence[str]) -> BadInput:
    own = [column for column in sheet.columns if column not in names or column.lower() == name.lower()]
    alike = nearest(name, own) if own else ""
    hint = alike if "did you mean" in alike else ""
    return BadInput(
        f"client '{client}' has no column '{name}', which client '{other}' has{hint}: add it there, empty where it is "
        f"unknown, or leave it out everywhere with data.drop = '{name}'"
    )


def _no_numbers_in_text(client: str, name: str, column: Column) -> None:
    """Text that is mostly numbers is a column of numbers with something else in it."""
    if column.kind != "text":
        return
    words = column.words[:: 1 + len(column.words) // LOOKED_AT]
    numeric = [word for word in words if _is_number(word)]
    commas = [word for word in words if re.fullmatch(r"[-+]?\d+,\d+", word)]
    where = f"column '{name}' of client '{client}'"
    if commas and len(commas) + len(numeric) > MOSTLY_NUMBERS * len(words):
        raise BadInput(f"{where} has decimal commas ('{commas[0]}'): write numbers with points, such as 3.5")
    if len(numeric) > MOSTLY_NUMBERS * len(words):
        other = next((word for word in column.words if not _is_number(word)), None)
        if other is None:
            raise BadInput(
                f"{where} holds numbers as text, such as '{numeric[0]}': convert it to numbers, or set "
                f"data.categories = '{name}' if they are names"
            )
        raise BadInput(
            f"{where} has numbers but also text, such as '{other}': correct it, leave it empty where the number is "
            f"unknown, or set data.categories = '{name}' if the numbers are names"
        )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _disagreement(name: str, columns: Mapping[str, Column]) -> BadInput:
    """Who holds what, and the way out."""
    first: dict[str, str] = {}
    for client, column in columns.items():
        if column.kind != "empty":
            first.setdefault(column.kind, client)
    (kind, one), (other_kind, two) = sorted(first.items(), key=lambda entry: entry[0] == "text")[:2]
    example = f" (such as '{columns[two].words[0]}')" if other_kind == "text" else ""
    dates = ", written as 2024-01-31" if "date" in (kind, other_kind) else ""
    return BadInput(
        f"column '{name}' holds {NOUN[kind]} at client '{one}' but {NOUN[other_kind]}{example} at client '{two}': "
        f"bring it to the same type{dates}, leave it out with data.drop = '{name}', or take its values as names with "
        f"data.categories = '{name}'"
    )


def finite_numbers(sheets: Sheets) -> None:
    """Raise `BadInput` for infinite values, and those that float32 cannot hold."""
    most = float(np.finfo(np.float32).max)
    for client, sheet in sheets.items():
        for name, column in sheet.columns.items():
            if column.kind == "text":
                continue
            if (bad := np.abs(column.values) > most).any():
                row = int(np.argmax(bad))
                raise BadInput(
                    f"column '{name}' of client '{client}' holds {column.values[row]:g} in row {row + 1}, an infinite "
                    "value or one that is too large: correct it, or leave it empty"
                )


def target_values(sheets: Sheets, target: str, kind: str) -> dict[str, NDArray[Any]]:
    """The values of the target at each client, none of them missing."""
    if kind in ("date", "empty"):
        reason = "holds dates" if kind == "date" else "is empty"
        raise BadInput(f"the target '{target}' {reason}: name a column of numbers or classes as data.target")
    values = {}
    for client, sheet in sheets.items():
        column = sheet.columns[target]
        if (missing := column.missing).any():
            rows = int(missing.sum())
            raise BadInput(
                f"client '{client}' has no value of the target '{target}' in {rows} of {len(column)} rows (the first "
                f"is row {int(np.argmax(missing)) + 1}): fill it in, or remove these rows"
            )
        values[client] = (column.as_text() if kind == "text" else column).plain()
    if kind == "number":  # booleans at some clients, or whole numbers at some only
        values = {client: np.asarray(found, dtype=np.float64) for client, found in values.items()}
        if all((found == np.floor(found)).all() and (np.abs(found) < 2**53).all() for found in values.values()):
            values = {client: found.astype(np.int64) for client, found in values.items()}
    return values


def by_client(sheet: Sheet, client: str, where: str) -> dict[str, Sheet]:
    """One table as a table for each client, by the column that names the client."""
    column = sheet.columns[client].as_text() if len(sheet) else sheet.columns[client]
    if column.kind == "empty" or (missing := column.missing).any():
        row = 1 if column.kind == "empty" else int(np.argmax(missing)) + 1
        raise BadInput(f"{where} names no client in row {row}: fill in the column '{client}', or remove the row")
    order = np.argsort(column.values, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(column.values, minlength=len(column.words)))[:-1])
    rows_of = dict(zip(column.words, parts, strict=True))
    others = {name: values for name, values in sheet.columns.items() if name != client}
    return {
        word: Sheet({name: values.taken(rows_of[word]) for name, values in others.items()}, sheet.dropped)
        for word in sorted(column.words, key=in_natural_order)
    }
