"""Tables from files and data frames: what is read, and the sentence for what cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.data import from_folder
from fedkin.data.client_sources import TableOptions, is_of_clients, read_clients
from fedkin.data.digest import data_digest
from fedkin.data.tables import files_of_clients, in_natural_order, read_table, sheet_of_frame
from fedkin.errors import BadInput
from fuzz import assert_sentence

NORTH = "age,sex,seen,day,y\n30,f,true,2024-01-01,0\n,m,false,,1\n50.5,,,2024-01-03,1\n"
SOUTH = "y,day,seen,sex,age\n0,2024-02-01,true,x,40\n1,2024-02-02,false,f,41\n1,,true,f,42\n"


def folder(path: Path, **files: str | bytes) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (path / f"{name}.csv").write_bytes(data)
    return path


# --- reading ---


def test_csv_by_hand(tmp_path: Path) -> None:
    sheet = read_table(folder(tmp_path, north=NORTH) / "north.csv")
    assert len(sheet) == 3
    found = {name: (column.kind, column.words) for name, column in sheet.columns.items()}
    assert found == {
        "age": ("number", ()),
        "sex": ("text", ("f", "m")),
        "seen": ("boolean", ()),
        "day": ("date", ()),
        "y": ("number", ()),
    }
    np.testing.assert_array_equal(sheet.columns["age"].values, [30, np.nan, 50.5])
    np.testing.assert_array_equal(sheet.columns["sex"].values, [0, 1, -1])
    np.testing.assert_array_equal(sheet.columns["seen"].values, [1, 0, np.nan])
    np.testing.assert_array_equal(sheet.columns["day"].values, [19723, np.nan, 19725])


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + NORTH.encode(),  # a byte order mark
        NORTH.replace("\n", "\r\n").encode(),
        NORTH.rstrip("\n").encode(),
        NORTH.replace("age,sex", '" age ","sex"').encode(),
        NORTH.replace(",m,false,,1", "NA, m,false,NaN,1").encode(),
        NORTH.replace("\n30", "\n\n30").encode(),
    ],
)
def test_ways_to_write_the_same_csv(content: bytes, tmp_path: Path) -> None:
    one = read_table(folder(tmp_path, a=NORTH) / "a.csv").columns
    other = read_table(folder(tmp_path, b=content) / "b.csv").columns
    assert list(one) == list(other)
    for name, column in one.items():
        assert (column.kind, column.words) == (other[name].kind, other[name].words)
        np.testing.assert_array_equal(column.values, other[name].values)


def test_parquet_and_frames_are_read_as_csv_is(tmp_path: Path) -> None:
    """Of pandas with and without its own types, an index and categories; PyArrow; arrays and lists."""
    path = folder(tmp_path, north=NORTH) / "north.csv"
    frame = pd.read_csv(path, parse_dates=["day"], index_col=None)
    frame.index = pd.Index([7, 8, 9])
    frame["seen"] = frame["seen"].astype("boolean")
    frame.to_parquet(tmp_path / "n.parquet")
    tables: list[Any] = [
        frame,
        frame.astype({"sex": "category"}),
        frame.convert_dtypes(),
        pa.Table.from_pandas(frame, preserve_index=True),
        {name: frame[name].tolist() for name in frame},
        {name: frame[name] for name in frame},
    ]
    csv = read_table(path).columns
    for sheet in [read_table(tmp_path / "n.parquet"), *(sheet_of_frame(table, "it") for table in tables)]:
        assert set(sheet.columns) == set(csv)
        for name, column in csv.items():
            found = sheet.columns[name]
            assert (found.kind, found.words) == (column.kind, column.words), name
            np.testing.assert_array_equal(found.values, column.values)


def test_types_of_parquet(tmp_path: Path) -> None:
    table = pa.table(
        {
            "small": pa.array([1, None], pa.uint8()),
            "decimal": pa.array(["1.25", "2.5"]).cast(pa.decimal128(5, 2)),
            "time": pa.array([60, 61], pa.time32("s")),
            "long": pa.array([3, 4], pa.duration("s")),
            "zone": pa.array([0, 86_400_000], pa.timestamp("ms", tz="Europe/Rome")),
            "view": pa.array(["a", "b"], pa.large_string()),
            "list": pa.array([[1], [2]]),
            "bytes": pa.array([b"a", b"b"]),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(BadInput, match=r"column 'list' of .* is of type list.*leave it out"):
        read_table(tmp_path / "t.parquet", ["bytes"])
    with pytest.raises(BadInput, match=r"column 'bytes' of .* is not text in UTF-8"):
        read_table(tmp_path / "t.parquet", ["list"])
    sheet = read_table(tmp_path / "t.parquet", ["list", "bytes", "other"])
    assert sheet.dropped == {"list", "bytes"}
    numbers = {name: column.values.tolist() for name, column in sheet.columns.items() if name not in ("small", "view")}
    assert numbers == {"decimal": [1.25, 2.5], "time": [60, 61], "long": [3, 4], "zone": [0, 1]}
    assert sheet.columns["zone"].kind == "date"


# --- folders ---


def test_clients_are_called_like_their_files(tmp_path: Path) -> None:
    """In natural order; hidden files, folders and notes are not clients."""
    folder(tmp_path, **{"ward 10": SOUTH, "ward 2": NORTH})
    (tmp_path / ".hidden.csv").write_text("")
    (tmp_path / "notes.md").write_text("")
    folder(tmp_path / "older", x=NORTH)
    assert list(files_of_clients(tmp_path)) == ["ward 2", "ward 10"]
    federation = from_folder(tmp_path, test=0.3)
    assert federation.train.names == federation.test.names == ("ward 2", "ward 10")
    assert federation.name == tmp_path.name
    assert sorted(["a10", "a9", "a", "10", "9"], key=in_natural_order) == ["9", "10", "a", "a9", "a10"]


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no folder"):
        from_folder(tmp_path / "nowhere")
    folder(tmp_path / "below", a=NORTH)
    with pytest.raises(BadInput, match=r"holds no data files \(there are CSV files in .*below\)"):
        from_folder(tmp_path)
    folder(tmp_path, north=NORTH)
    with pytest.raises(BadInput, match=r"holds only the file north\.csv.*two or more clients"):
        from_folder(tmp_path)
    (tmp_path / "south.xlsx").write_bytes(b"")
    with pytest.raises(BadInput, match=r"south\.xlsx cannot be read: save it as CSV or Parquet"):
        from_folder(tmp_path)
    (tmp_path / "south.xlsx").unlink()
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "north.parquet")
    with pytest.raises(BadInput, match=r"north\.csv and north\.parquet in .* are both of client 'north'"):
        from_folder(tmp_path)
    (tmp_path / "north.parquet").unlink()
    np.savez(tmp_path / "east.npz", x=np.eye(2), y=[0, 1])
    with pytest.raises(BadInput, match=r"has tables but also east\.npz"):
        from_folder(tmp_path)


def test_which_sources_have_clients(tmp_path: Path) -> None:
    folder(tmp_path / "digits", a=NORTH)
    assert is_of_clients(tmp_path)
    assert is_of_clients("anything.CSV")
    assert is_of_clients("anything.parquet")
    assert not any(map(is_of_clients, ["digits", "mnist", "a.npz", "nowhere"]))


# --- bad files ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "south.csv is empty"),
        (b"\n\n", "south.csv is empty, or its first line is"),
        (b"\xef\xbb\xbf", "south.csv is empty"),
        (b"age,y\n", "client 'south' has no rows"),
        (b"age;y\n1,5;0\n", "separated by semicolons: save it with commas between columns, and points in decimal"),
        (b"age\ty\n1\t0\n", "separated by tabs"),
        (b"age,y\n1,0\n2\n3,1\n", "row 3 of .*south.csv has 1 values but line 1 names 2 columns"),
        (b"age,y\n1,0\n2,5,1\n", "row 3 of .*south.csv has 3 values but line 1 names 2 columns"),
        (b"age,age,y\n1,2,0\n", "south.csv has several columns called 'age'"),
        (b"age, age,y\n1,2,0\n", "several columns called 'age'"),
        (b",age,y\n0,1,0\n", "column 1 of .*south.csv has no name: name it, or write the table without its index"),
        (b"1,0\n2,1\n", "put the names of the columns in the first line"),
        (b"age,y,name\n1,0,Jos\xe9\n", "column 'name' of .*south.csv is not text in UTF-8"),
        (b"\xe9ge,y\n1,0\n", "south.csv .*UTF-8"),
        ("age,y\n1,0\n".encode("utf-16"), "south.csv is not text in UTF-8"),
        (b"age,y\n1,0\n2,\n3,1\n", "client 'south' has no value of the target 'y' in 1 of 3 rows .*row 2"),
        (b"age,y\n1,0\ninf,1\n", "column 'age' of client 'south' holds inf in row 2"),
        (b"age,y\n1,0\n1e300,1\n", "column 'age' of client 'south' holds 1e\\+300 in row 2"),
        (b"age,y\nold,0\nyoung,1\n", "column 'age' holds numbers at client 'north' but text \\(such as 'old'\\)"),
        (b"age,y\n30,0\n31,1\n32,0\n?,0\n", "column 'age' of client 'south' has numbers but also text, such as '\\?'"),
        (b'age,y\n"3,5",0\n4,1\n', "column 'age' of client 'south' has decimal commas \\('3,5'\\)"),
        (b"age,y\n2024-01-01,0\n2024-01-02,1\n", "holds dates at client 'south' but numbers|numbers at client 'north'"),
        (b"Age,y\n1,0\n2,1\n", "no column 'Age', which client 'south' has.*did you mean 'age'|'age'.*'Age'"),
        (b"age,z\n1,0\n2,1\n", "client 'south' has no column 'y'"),
        (b"age,y\n1,0\n", "client 'south' has 1 sample, too few for training and testing"),
    ],
)
def test_bad_csv(content: bytes, words: str, tmp_path: Path) -> None:
    folder(tmp_path, north="age,y\n30,0\n40,1\n50,0\n", south=content)
    with pytest.raises(BadInput, match=words) as error:
        from_folder(tmp_path)
    assert_sentence(error.value)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(BadInput, match=r"a\.parquet is damaged or not a Parquet file"):
        read_table(tmp_path / "a.parquet")
    with pytest.raises(BadInput, match="there is no file"):
        read_table(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"a": [1, 2], "b": [1]}, "columns of different lengths"),
        ({"a": [1, "x"]}, "column 'a' of it mixes values of different types"),
        (pd.DataFrame({"a": [1, "x"]}), "it cannot be read as a table"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns called 'a'"),
        (np.eye(2), "it cannot be read as a table"),
        (None, "it cannot be read as a table"),
    ],
)
def test_bad_frames(frame: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        sheet_of_frame(frame, "it")
    assert_sentence(error.value)


cells = st.sampled_from(
    ["", "1", "2.5", "-3", "yes", "no", "true", "2024-01-01", "NA", "é", '"a,b"', "1;2", "x\ty", "inf"]
)
lines = st.lists(st.lists(cells, min_size=1, max_size=4), min_size=0, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(one=lines, two=lines, names=st.permutations(["a", "b", "c", "y"]), noise=st.binary(max_size=20))
def test_any_csv_is_read_or_refused_in_a_sentence(
    one: list[list[str]], two: list[list[str]], names: list[str], noise: bytes, tmp_path: Path
) -> None:
    text = [
        ",".join(order) + "\n" + "".join(",".join(row) + "\n" for row in rows)
        for order, rows in ((["a", "b", "c", "y"], one), (names, two))
    ]
    folder(tmp_path, north=text[0], south=text[1].encode() + (noise if len(two) > 4 else b""))
    try:
        from_folder(tmp_path)
    except BadInput as error:
        assert_sentence(error)


# --- the order of columns ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(order=st.permutations(["age", "sex", "seen", "day", "y"]))
def test_the_order_of_columns_changes_nothing(order: list[str], tmp_path: Path) -> None:
    one = read_clients(folder(tmp_path / "one", north=NORTH * 1, south=SOUTH))
    frame = pd.read_csv(tmp_path / "one" / "north.csv", dtype=str, keep_default_na=False)
    other = read_clients(folder(tmp_path / "other", north=frame[order].to_csv(index=False), south=SOUTH))
    assert data_digest(one) == data_digest(other)
    a, b = one.federation(test=0.4, validation=0.4), other.federation(test=0.4, validation=0.4)
    assert a.encoding == b.encoding
    for part in ("train", "validation", "test"):
        assert getattr(a, part).x.equal(getattr(b, part).x)
        assert getattr(a, part).y.equal(getattr(b, part).y)


def test_a_changed_cell_changes_the_digest(tmp_path: Path) -> None:
    before = data_digest(read_clients(folder(tmp_path, north=NORTH, south=SOUTH)))
    for change in (("30,f", "31,f"), ("50.5,,", "50.5,f,"), ("30,f", "30,m"), ("2024-01-03,1", "2024-01-03,0")):
        after = data_digest(read_clients(folder(tmp_path, north=NORTH.replace(*change), south=SOUTH)))
        assert after != before, change
    options = TableOptions(drop=("sex",))
    assert data_digest(read_clients(folder(tmp_path, north=NORTH, south=SOUTH), options)) != before
    assert data_digest(read_clients(folder(tmp_path, north=NORTH, south=SOUTH))) == before
