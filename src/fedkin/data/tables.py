"""Tables from files and data frames, as columns.

PyArrow reads CSV and Parquet files, and takes the data frames of pandas, polars and others without a copy. Its reader
of CSV is strict: a row with too few or too many values is an error, not a guess.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkin.data.columns import Column, column_of, empty_column, number_column
from fedkin.errors import BadInput, in_short

TABLES = (".csv", ".parquet")
# Files that look like data but cannot be read: they are never ignored in a folder.
OTHERS = (".tsv", ".xls", ".xlsx", ".ods", ".gz", ".zip", ".feather", ".arrow", ".sav", ".dta", ".sas7bdat", ".npy")
SECONDS_PER_DAY = 86_400
_ROW = re.compile(r"Row #(\d+): ")
_COUNTS = re.compile(r"Expected (\d+) columns, got (\d+)")


@dataclass(frozen=True)
class Sheet:
    """The table of one client: its columns by name, and the names of columns that were left out when it was read."""

    columns: dict[str, Column]
    dropped: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def _arrow() -> Any:
    """PyArrow, which is optional."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise BadInput("tables are read with PyArrow, which is not installed: pip install 'fedkin[tables]'") from None
    return pyarrow


def files_of_clients(folder: Path) -> dict[str, Path]:
    """The file of each client in a folder, by the name of the client, which is that of the file without its ending.

    Hidden files, folders, and files that are neither tables nor npz files are ignored.
    """
    found: dict[str, Path] = {}
    entries = sorted(folder.iterdir(), key=lambda path: in_natural_order(path.name))
    for path in entries:
        ending = path.suffix.lower()
        if path.name.startswith(".") or path.is_dir():
            continue
        if ending in OTHERS:
            raise BadInput(
                f"{path} cannot be read: save it as CSV or Parquet with one column per feature, or move it elsewhere"
            )
        if ending not in (*TABLES, ".npz"):
            continue
        if path.stem in found:
            raise BadInput(
                f"{found[path.stem].name} and {path.name} in {folder} are both of client '{path.stem}': keep one"
            )
        found[path.stem] = path
    if len(found) < 2:
        below = next((path for path in entries if path.is_dir() and any(path.glob("*.csv"))), None)
        where = f" (there are CSV files in {below})" if below else ""
        raise BadInput(
            f"{folder} holds {'only the file ' + found.popitem()[1].name if found else 'no data files'}{where}: give a "
            "folder with a .csv, .parquet or .npz file for each of two or more clients"
        )
    return found


def in_natural_order(text: str) -> list[tuple[int, int, str]]:
    """A key for sorting by which `ward 2` comes before `ward 10`."""
    parts = re.split(r"(\d+)", text)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def read_table(path: Path, drop: Collection[str] = ()) -> Sheet:
    """The columns of a CSV or Parquet file, but for those in `drop`."""
    if not path.exists():
        raise BadInput(f"there is no file {path}: give the path of a .csv or .parquet file")
    table = _from_csv(path) if path.suffix.lower() == ".csv" else _from_parquet(path)
    return _sheet(table, str(path), drop)


def sheet_of_frame(frame: Any, where: str, drop: Collection[str] = ()) -> Sheet:
    """The columns of a data frame of pandas, polars or PyArrow, or of arrays and lists by name."""
    if isinstance(frame, Mapping):
        names = _names([str(name) for name in frame], where)
        found = {
            name: column_of(values, f"column '{name}' of {where}")
            for name, values in zip(names, frame.values(), strict=True)
            if name not in drop
        }
        if len(lengths := {len(column) for column in found.values()}) > 1:
            raise BadInput(f"{where} has columns of different lengths ({sorted(lengths)}): give one value per row")
        return Sheet(found, frozenset(names) & frozenset(drop))
    dropped = frozenset[str]()
    if hasattr(frame, "iloc"):  # of pandas, whose columns may hold anything: what is dropped need not be understood
        names = _names([str(name) for name in frame.columns], where)
        dropped = frozenset(names) & frozenset(drop)
        frame = frame.set_axis(names, axis=1)[[name for name in names if name not in dropped]]
    sheet = _sheet(arrow_table(frame, where), where, drop)
    return Sheet(sheet.columns, sheet.dropped | dropped)


def arrow_table(frame: Any, where: str) -> Any:
    """A data frame of pandas, polars or PyArrow, or arrays and lists by name, as a table of PyArrow."""
    arrow = _arrow()
    try:
        if hasattr(frame, "iloc"):  # of pandas, whose index is not a column
            return arrow.Table.from_pandas(frame, preserve_index=False)
        return frame if isinstance(frame, arrow.Table) else arrow.table(frame)
    except (arrow.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{where} cannot be read as a table ({in_short(error)}): give a data frame whose columns hold numbers, "
            "booleans, dates or text"
        ) from None


def parquet_of(table: Any) -> bytes:
    """A table of PyArrow as a Parquet file."""
    sink = _arrow().BufferOutputStream()
    _arrow().parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _from_csv(path: Path) -> Any:
    arrow = _arrow()
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    if not first.strip(b"\xef\xbb\xbf \t\r\n\0"):
        raise BadInput(f"{path} is empty, or its first line is: give a table with the names of the columns in line 1")
    if first.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in first:
        raise BadInput(f"{path} is not text in UTF-8: save it as CSV in UTF-8")
    for mark, word in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "vertical bars")):
        if mark in first and b"," not in first:
            raise BadInput(
                f"the columns of {path} are separated by {word}: save it with commas between columns, and points in "
                "decimal numbers"
            )
    options = {
        "parse_options": arrow.csv.ParseOptions(newlines_in_values=True),
        "convert_options": arrow.csv.ConvertOptions(strings_can_be_null=True),
    }
    try:
        return arrow.csv.read_csv(path, **options)
    except (arrow.ArrowException, UnicodeDecodeError):
        pass
    try:  # one thread, which knows the numbers of rows
        return arrow.csv.read_csv(path, read_options=arrow.csv.ReadOptions(use_threads=False), **options)
    except (arrow.ArrowException, UnicodeDecodeError) as error:
        text = str(error)
        if found := _COUNTS.search(text):
            row = f"row {number[1]} of " if (number := _ROW.search(text)) else ""
            raise BadInput(
                f"{row}{path} has {found[2]} values but line 1 names {found[1]} columns: correct it, or put values "
                "with commas in quotation marks"
            ) from None
        raise BadInput(
            f"{path} cannot be read ({in_short(error)}): save it as CSV in UTF-8, with the names of the columns in "
            "line 1"
        ) from None


def _from_parquet(path: Path) -> Any:
    arrow = _arrow()
    try:
        return arrow.parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is damaged or not a Parquet file ({in_short(error)}): write it again") from None


def _sheet(table: Any, where: str, drop: Collection[str]) -> Sheet:
    """The columns of an Arrow table; an index that pandas has stored with it is left out."""
    try:
        names = [str(name) for name in table.column_names]
    except UnicodeDecodeError:
        raise BadInput(f"the names of the columns of {where} are not UTF-8: save it as CSV in UTF-8") from None
    clean = _names(names, where)
    found = {
        name: _column(values, f"column '{name}' of {where}")
        for name, values in zip(clean, table.columns, strict=True)
        if name not in drop and not re.fullmatch(r"__index_level_\d+__", name)
    }
    return Sheet(found, frozenset(clean) & frozenset(drop))


def _names(names: Iterable[str], where: str) -> list[str]:
    """The names of the columns without spaces around them, checked."""
    clean = [name.strip() for name in names]
    if "" in clean:
        raise BadInput(
            f"column {clean.index('') + 1} of {where} has no name: name it, or write the table without its index"
        )
    if twice := next((name for place, name in enumerate(clean) if name in clean[:place]), None):
        raise BadInput(f"{where} has several columns called '{twice}': give each column a name of its own")
    if clean and all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", name) for name in clean):
        raise BadInput(
            f"the columns of {where} are called {', '.join(clean[:3])}…: put the names of the columns in the first line"
        )
    return clean


def _column(values: Any, where: str) -> Column:
    """A column of an Arrow table."""
    arrow = _arrow()
    types, kind = arrow.types, values.type
    if types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if types.is_null(kind):
        return empty_column(len(values))
    if types.is_binary(kind) or types.is_large_binary(kind):
        raise BadInput(f"{where} is not text in UTF-8: save it in UTF-8, or leave the column out")
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _text(values)
    if types.is_boolean(kind):
        return number_column(_numbers(values.cast(arrow.uint8())), "boolean")
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return number_column(_numbers(values.cast(arrow.float64(), safe=False)))
    if types.is_date(kind) or types.is_timestamp(kind):
        seconds = values.cast(arrow.timestamp("us"), safe=False).cast(arrow.int64())
        return number_column(_numbers(seconds) / (SECONDS_PER_DAY * 1e6), "date")
    if types.is_time(kind):
        return number_column(_numbers(values.cast(arrow.time64("us")).cast(arrow.int64())) / 1e6)
    if types.is_duration(kind):
        return number_column(_numbers(values.cast(arrow.duration("us")).cast(arrow.int64())) / 1e6)
    raise BadInput(f"{where} is of type {kind}: give numbers, booleans, dates or text, or leave it out")


def _text(values: Any) -> Column:
    """A column of text, sorted and without spaces around it by PyArrow: a million identifiers take a second."""
    arrow = _arrow()
    trimmed = arrow.compute.utf8_trim_whitespace(values.cast(arrow.large_string())).combine_chunks()
    coded = trimmed.dictionary_encode()
    if isinstance(coded, arrow.ChunkedArray):
        coded = coded.combine_chunks()
    order = np.asarray(arrow.compute.sort_indices(coded.dictionary))
    words = coded.dictionary.take(arrow.array(order)).to_pylist()
    place_of = np.empty(len(order) + 1, dtype=np.int64)  # the last entry is that of a missing value
    place_of[order], place_of[-1] = np.arange(len(order)), -1
    places = place_of[_numbers(coded.indices, -1).astype(np.int64)]
    if words and not words[0]:  # empty text, which comes first, is missing
        places, words = np.maximum(places - 1, -1), words[1:]
    return Column("text", places, tuple(words)) if words else empty_column(len(places))


def _numbers(values: Any, missing: float = np.nan) -> NDArray[Any]:
    """Numbers as float64, with a value for missing ones."""
    arrow = _arrow()
    floats = values.cast(arrow.float64(), safe=False)
    filled = floats.fill_null(missing)
    return np.asarray(filled.to_numpy(zero_copy_only=False) if isinstance(filled, arrow.Array) else filled.to_numpy())
