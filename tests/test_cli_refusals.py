"""Input that cannot be used: one sentence and exit code 2, before any work is done."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import RACE, Refusal, fedkin, is_one_sentence
from fedkin.errors import BadInput
from fedkin.experiments import preparation
from fedkin.experiments.records import RunFolder
from fedkin.experiments.run import run
from fedkin.memory import available_memory, check_memory
from fedkin.paper import theory_report

SMALL = "rounds = 2\npartition.clients = 5\nlocal.epochs = 1\n"


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDKIN_DATA", raising=False)


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No federation is made, and no run of the theory begins."""

    def worked(*_: Any, **__: Any) -> Any:
        raise AssertionError("the work was begun")

    monkeypatch.setattr(preparation, "federate", worked)
    monkeypatch.setattr(theory_report, "trajectory_of", worked)


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (f"seed={2**32}", "seed = 4294967296 is out of range"),
        (f"rounds={2**63}", "rounds = 9223372036854775808 is out of range"),
        (f"rounds={'9' * 5000}", "--set rounds: the value cannot be read"),
        (f"rounds={'[' * 3000}{']' * 3000}", "--set rounds: the value cannot be read"),
        ("threads=100000", "threads = 100000 is out of range"),
        ("step_size=1e400", "step_size = inf is out of range"),
        ("temperature=1e-308", "graph.temperature = 1e-308"),
        ("source=~nouser/x.npz", "the home directory in ~nouser/x.npz is unknown"),
        ("name=a\nb", "is not valid"),
        ("device=meta", "device = 'meta' cannot be used here"),
    ],
)
def test_extreme_values(setting: str, says: str, refused: Refusal) -> None:
    if setting == "name=a\nb":  # a name that is allowed; the sentence about its folder is still one line
        Path("results").write_text("")
    assert says in refused("run", *RACE, "--set", setting)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("algorithm = 5", "algorithm = 5 is not valid"),
        ('algorithm = [5, "fedavg"]', "algorithm = 5 is not valid"),
        (f"rounds = {'9' * 5000}", "cannot be read"),
        (f"rounds = {'[' * 3000}{']' * 3000}", "nested too deeply"),
        ('name = "a\\u0000b"', "name = 'a\\x00b' holds characters that cannot be written"),
        ('model.args = {"a\\u0000b" = 1}', "holds characters that cannot be written"),
        ('data.source = "a\\u0000b.npz"', "holds characters that cannot be written"),
    ],
)
def test_extreme_files(text: str, says: str, refused: Refusal) -> None:
    Path("file.toml").write_text(text)
    assert says in refused("run", "file.toml", *(["--set", "beta=0.5"] if "algorithm" in text else []))


@pytest.mark.parametrize(
    "arguments",
    [
        [b"run", b"--set", b"name=\xff"],
        [b"run", b"--set", b"device=\xff"],
        [b"run", b"--set", b"algorithm.name=\xff:a"],
        [b"run", b"--set", b"\xff=1"],
        [b"run", b"\xff.toml"],
        [b"report", b"\xff"],
        [b"bench", b"\xff"],
    ],
)
def test_arguments_that_are_no_text(arguments: list[bytes], refused: Refusal) -> None:
    assert "\\udcff" in refused(*map(os.fsdecode, arguments))


def test_a_process_with_arguments_that_are_no_text(tmp_path: Path) -> None:
    done = fedkin(b"report", b"\xff", cwd=tmp_path)
    assert done.returncode == 2
    assert is_one_sentence(done.stderr)
    assert "\\udcff" in done.stderr


def test_data_in_the_home_of_nobody(refused: Refusal) -> None:
    assert "the home directory in ~nouser is unknown" in refused("run", "--set", "source=mnist", "--data", "~nouser")


# -- the user's own modules --------------------------------------------------------------------------------------------

MODULE = """
import torch
from fedkin import FedAvg

def exits(): raise SystemExit("bye")
def fails(): raise ValueError("one\\ntwo")
def huge(): return torch.nn.Linear(64, 10**13)
class Picky(torch.nn.Linear):
    def __init__(self): super().__init__(1, 1)
    def forward(self, x): raise SystemExit("no")
class Mine(FedAvg):
    def __post_init__(self): raise KeyError("mine")
number = 3
"""


@pytest.mark.parametrize(
    ("kind", "path", "says"),
    [
        ("model.kind", "exits_on_import:Net", "cannot be imported (SystemExit: 3)"),
        ("model.kind", "no_python:Net", "cannot be imported (SyntaxError"),
        ("model.kind", "raises:Net", "cannot be imported (ValueError: one)"),
        ("model.kind", ":Net", "cannot be imported (ValueError"),
        ("model.kind", "own:exits", "cannot be built with {} (SystemExit: bye)"),
        ("model.kind", "own:fails", "cannot be built with {} (ValueError: one)"),
        ("model.kind", "own:number", "cannot be built with {} (TypeError"),
        ("model.kind", "own:huge", "does not fit into memory"),
        ("model.kind", "own:Picky", "does not take samples of shape (1, 8, 8) (SystemExit: no)"),
        ("algorithm.name", "exits_on_import:Mine", "cannot be imported (SystemExit: 3)"),
        ("algorithm.name", "raises:Mine", "cannot be imported (ValueError: one)"),
        ("algorithm.name", "own:Mine", "cannot be built (KeyError: 'mine')"),
        ("algorithm.name", "own:number", "is not a subclass of fedkin.Algorithm"),
    ],
)
def test_modules_that_raise(
    kind: str, path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refusal
) -> None:
    texts = {"own": MODULE, "exits_on_import": "raise SystemExit(3)", "no_python": "def x(:"}
    for name, text in {**texts, "raises": "raise ValueError('one\\ntwo')"}.items():
        Path(f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("small.toml").write_text(SMALL)
    assert says in refused("run", "small.toml", "--set", f"{kind}={path}")


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["run"], ["graph"], ["theory"], ["theory", "--quadratic"], ["reproduce", "table"]])
@pytest.mark.parametrize("out", ["file", "file/deeper", "loop", "/dev/null", "/proc/none"])
@pytest.mark.usefixtures("no_work")
def test_results_cannot_be_written_there(command: list[str], out: str, refused: Refusal) -> None:
    Path("file").write_text("")
    Path("loop").symlink_to("loop")
    said = refused(*command, "--out", out)
    assert f"cannot write to {out}" in said
    assert "choose another folder with --out" in said


@pytest.mark.usefixtures("no_work")
def test_a_file_stands_in_the_place_of_the_experiment(refused: Refusal) -> None:
    Path("results").mkdir()
    Path("results/demo").write_text("")
    assert "cannot write to results/demo" in refused("graph", *RACE)


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_benchmark_that_cannot_be_written(option: str, monkeypatch: pytest.MonkeyPatch, refused: Refusal) -> None:
    from fedkin.bench import command

    monkeypatch.setattr(command, "seconds_of", None)  # measuring would fail otherwise
    Path("file").write_text("")
    Path("folder").mkdir()
    assert f"choose another folder with {option}" in refused("bench", option, "file/x")
    assert f"give the name of a file to {option}" in refused("bench", option, "folder")


def test_full_disks_are_named(monkeypatch: pytest.MonkeyPatch, refused: Refusal) -> None:
    """Whichever file it is that finds no space; and the next command continues."""
    left = 0

    def full(_: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    overrides = [*RACE[1::2], "checkpoint_every=1", "rounds=4"]
    settings = [word for override in overrides for word in ("--set", override)]
    expected = [result.model for result in run(overrides=overrides, out="whole")]
    named = set()
    for space in (1, 8, 16, 27, 61):
        left, out = space, f"space-{space}"
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            said = refused("run", *settings, "--out", out)
        assert "the disk is full; what was written before is sound" in said
        place = Path(said.split()[1].rstrip(":"))
        assert place.parent.parent == Path(out, "demo")
        assert not list(Path(out).rglob("*.tmp"))
        named.add(place.name.partition("-")[0])
        assert all(map(torch.equal, expected, (result.model for result in run(overrides=overrides, out=out))))
    assert named == {"origin.json", "config.json", "rounds.jsonl", "checkpoint"}


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_a_round_that_finds_no_space_is_named(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*/rounds\.jsonl'"):
        RunFolder(tmp_path).append({"round": 0})


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_network_that_does_not_fit(refused: Refusal) -> None:
    said = refused("run", *RACE, "--set", "model.kind=mlp", "--set", "model.hidden=1000000000")
    assert "does not fit into memory: use a smaller model" in said


def test_memory_of_containers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkin.memory.MEMORY_FILES", (str(tmp_path / "max"), str(tmp_path / "limit")))
    machine = available_memory()
    assert machine > 1 << 28
    (tmp_path / "max").write_text("max\n")
    assert available_memory() > 1 << 28
    (tmp_path / "limit").write_text(f"{1 << 28}\n")
    assert available_memory() == 1 << 28
    check_memory(1 << 26)
    with pytest.raises(BadInput, match="take 1 GiB, and this does not fit into memory"):
        check_memory(1 << 28)
