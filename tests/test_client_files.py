"""Clients in memory are written as files, and read as they were; comparisons on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest

import fedkin
from fedkin.arena import Budget, compare
from fedkin.arena.federations import federation_settings
from fedkin.data import client_files
from fedkin.data.client_files import write_clients
from fedkin.errors import BadInput
from fedkin.files import write_atomically

NAMES = ("north", "St. Mary", "ward 10")


def arrays() -> dict[str, tuple[Any, Any]]:
    generator = np.random.default_rng(3)
    return {name: (generator.normal(size=(30, 2)).astype(np.float32), generator.integers(0, 2, 30)) for name in NAMES}


def frames() -> dict[str, Any]:
    return {
        name: pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "sex": np.where(y, "f", "m"), "died": y})
        for name, (x, y) in arrays().items()
    }


def same(one: fedkin.Federation, other: fedkin.Federation) -> bool:
    """The same samples at clients of the same names."""
    return (
        one.train.names == other.train.names
        and np.array_equal(one.train.x.numpy(), other.train.x.numpy())
        and np.array_equal(one.test.y.numpy(), other.test.y.numpy())
    )


def test_arrays_are_read_as_they_were(tmp_path: Path) -> None:
    write_clients(arrays(), tmp_path / "c")
    assert files(tmp_path / "c") == {f"{name}.npz" for name in NAMES}
    there = fedkin.from_folder(tmp_path / "c", seed=4)
    assert same(there, fedkin.from_clients({name: arrays()[name] for name in there.train.names}, seed=4))


@pytest.mark.parametrize("kind", ["pandas", "arrow", "lists"])
def test_frames_are_read_as_they_were(tmp_path: Path, kind: str) -> None:
    as_kind: dict[str, Any] = {
        "pandas": lambda frame: frame,
        "arrow": pyarrow.Table.from_pandas,
        "lists": lambda frame: frame.to_dict(orient="list"),
    }
    write_clients({name: as_kind[kind](frame) for name, frame in frames().items()}, tmp_path / "c")
    there = fedkin.from_folder(tmp_path / "c", target="died", seed=4)
    assert same(there, fedkin.from_clients({name: frames()[name] for name in there.train.names}, target="died", seed=4))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_clients_that_are_no_longer_there_are_removed(tmp_path: Path) -> None:
    write_clients(arrays(), tmp_path / "c")
    write_clients({name: frame for name, frame in frames().items() if name != "north"}, tmp_path / "c")
    assert files(tmp_path / "c") == {"St. Mary.parquet", "ward 10.parquet"}


def test_files_of_others_are_neither_mixed_with_ours_nor_removed(tmp_path: Path) -> None:
    """In a folder that was there before, and in ours; in the middle of a call, too."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "east.npz").write_text("precious")
    with pytest.raises(BadInput, match=r"holds east\.npz, which no comparison has written"):
        write_clients(arrays(), tmp_path / "theirs")
    assert files(tmp_path / "theirs") == {"east.npz"}
    write_clients(arrays(), tmp_path / "ours")
    (tmp_path / "ours" / "notes.txt").write_text("precious")
    with pytest.raises(BadInput, match=r"holds notes\.txt"):
        write_clients(frames(), tmp_path / "ours")
    assert files(tmp_path / "ours") == {*(f"{name}.npz" for name in NAMES), "notes.txt"}


def test_a_call_that_is_cut_off_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clients(arrays(), tmp_path / "c")
    whole, calls = write_atomically, iter(range(9))

    def cut_off(path: Path, content: bytes) -> None:
        if next(calls) == 2:  # the list and one client are written
            raise KeyboardInterrupt
        whole(path, content)

    monkeypatch.setattr(client_files, "write_atomically", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_clients(frames(), tmp_path / "c")
    monkeypatch.undo()
    write_clients(frames(), tmp_path / "c")
    assert files(tmp_path / "c") == {f"{name}.parquet" for name in NAMES}


@pytest.mark.parametrize("name", ["a/b", "..", "", " ", "a\0b", "what?"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot have a file of its name"):
        write_clients({"a": arrays()["north"], name: arrays()["north"]}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_what_a_comparison_takes(tmp_path: Path) -> None:
    """Settings, data in files, and clients in memory; not several of them."""
    assert federation_settings(None, None, None, tmp_path) is None
    assert federation_settings("mine.toml", None, None, tmp_path) == "mine.toml"
    assert federation_settings({"rounds": 3}, None, "y", tmp_path) == {"rounds": 3, "data": {"target": "y"}}
    assert federation_settings("wards.csv", None, "y", tmp_path) == {
        "name": "wards", "data": {"source": "wards.csv", "target": "y"},
    }  # fmt: skip
    folder = str(tmp_path / "wards-data")
    found = federation_settings({"name": "wards", "data": {"drop": "b"}}, frames(), "died", tmp_path)
    assert found == {"name": "wards", "data": {"drop": "b", "source": folder, "target": "died"}}
    for source, clients, words in (
        ("mine.toml", arrays(), "clients are given and mine.toml, too"),
        (None, {"north": arrays()["north"]}, "of two clients or more"),
        (None, list(arrays().values()), "a dictionary from names to data"),
        (None, {"a": (1, 2, 3), "b": (1, 2, 3)}, "client 'a' is not a pair"),
        (fedkin.from_clients(arrays()), None, "a Federation cannot be compared on"),
    ):
        with pytest.raises(BadInput, match=words):
            federation_settings(source, clients, None, tmp_path)  # type: ignore[arg-type]


def test_names_and_sections_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    for settings, words in (
        ({"name": "../x"}, "usable as the name of a folder"),
        ({"name": "x", "data": "digits"}, "data = 'digits' is not valid"),
    ):
        with pytest.raises(BadInput, match=words):
            federation_settings(settings, arrays(), "died", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_comparison_of_clients_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints as the answer, a notebook has the table, and it continues; changed clients are noticed."""
    given: dict[str, Any] = {"budget": Budget(1, 1), "algorithms": ["kin"], "out": tmp_path, "on": "process"}
    settings = {"name": "wards", "rounds": 1, "threads": 1}
    found = compare(settings, clients=frames(), target="died", **given)
    print(found)
    text = capsys.readouterr().out
    assert text.startswith(found.answer.headline[:60])
    assert "What could change this answer:" in text
    assert repr(found) == f"Comparison({tmp_path / 'wards-compared'}: {found.answer.headline})"
    html = found._repr_html_()
    assert "<td>Kin</td>" in html
    assert html.count("<table>") == html.count("</table>") == 1
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("wards-compared/*/rounds.jsonl")}
    compare(settings, clients=frames(), target="died", **given)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    changed = {**frames(), "north": frames()["north"].assign(a=1.5)}
    with pytest.raises(BadInput, match="data"):
        compare(settings, clients=changed, target="died", **given)
