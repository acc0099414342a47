"""Private files of a federation: keys are not overwritten unasked, and no file is readable by everybody."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkin.errors import BadInput
from fedkin.flower import keys
from flower_nodes import five, lead


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.lstat().st_mode)) for path in folder.iterdir()}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022


def test_keys_are_not_overwritten_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even one of them: registered nodes could not connect any more. More nodes than before is no other case."""
    keys.make(tmp_path / "keys", 1)
    before = {path: path.read_bytes() for path in (tmp_path / "keys").iterdir()}
    for nodes in (1, 2):
        with pytest.raises(BadInput, match=r"ca\.pem exists already: choose another folder, or .* --replace"):
            keys.make(tmp_path / "keys", nodes)
    assert {path: path.read_bytes() for path in (tmp_path / "keys").iterdir()} == before
    monkeypatch.setattr(sys, "argv", ["keys", str(tmp_path / "keys"), "--nodes", "1"])
    with pytest.raises(SystemExit, match="exists already"):
        keys.main()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--replace"])
    keys.main()
    assert "wrote certificates and 1 key pairs" in capsys.readouterr().out
    assert all(path.read_bytes() != content for path, content in before.items())


def test_private_files_are_private_whatever_they_were(tmp_path: Path, usual_umask: None) -> None:
    """A former file may be readable by everybody, or a link to one."""
    (tmp_path / "node-0").touch(mode=0o644)
    (tmp_path / "elsewhere").touch(mode=0o644)
    (tmp_path / "superlink.key").symlink_to(tmp_path / "elsewhere")
    keys.make(tmp_path, 1, replace=True)
    assert (tmp_path / "elsewhere").read_bytes() == b""
    (tmp_path / "elsewhere").unlink()
    assert set(modes(tmp_path).values()) == {"0o600"}
    assert b"PRIVATE KEY" in (tmp_path / "superlink.key").read_bytes()


def test_results_are_for_the_group(tmp_path: Path, usual_umask: None) -> None:
    """Records, checkpoints and models of a run on Flower; a folder of the user's own keeps its mode."""
    out = tmp_path / "flower" / "run"
    lead(five(), rounds=1, out=out)
    assert set(modes(out).values()) == {"0o640"}
    assert {"rounds.jsonl", "model.safetensors", "summary.json"} <= set(modes(out))
    assert modes(tmp_path) == {"flower": "0o750"}
