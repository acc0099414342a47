"""The launcher of a federation on loopback: nothing outlives it, reasons are sentences, logs are kept."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedkin.experiments.progress import Lines, Silent
from flower_runs import APP, until
from loopback import keeper
from loopback.federation import Loopback
from loopback.following import EVERY, SOON, Run
from loopback.session import Session, _folder

ROOT = Path(__file__).parents[1]

# Starts an orphan in a session of its own that ignores SIGTERM, and goes on itself; each writes its id.
TREE = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork() and os._exit(0)
    os.setsid()
else:
    subprocess.run([sys.executable, "-IS", __file__, sys.argv[1], "again"])
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""

LAUNCHER = """
import sys, time
from loopback.keeper import kept
process = kept([sys.executable, "-IS", *sys.argv[1:]])
time.sleep(60)
"""


def running(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def tree(tmp_path: Path) -> tuple[list[str], Callable[[], list[int]]]:
    """A command that starts others, and the ids of all of them once they run."""
    script, ids = tmp_path / "tree.py", tmp_path / "ids"
    script.write_text(TREE)

    def pids() -> list[int]:
        until(lambda: ids.exists() and len(ids.read_text().splitlines()) == 2, "the start of the processes")
        return [int(line) for line in ids.read_text().splitlines()]

    return [str(script), str(ids)], pids


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start find the launcher, as they do with `make federation`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")


@needs_linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_no_process_outlives_the_launcher(number: int, tree: tuple[list[str], Callable[[], list[int]]]) -> None:
    """Killed, it cannot end anything itself, and one of the processes is an orphan that ignores SIGTERM."""
    command, pids = tree
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, *command])
    started = pids()
    launcher.send_signal(number)
    launcher.wait()
    until(lambda: not any(map(running, started)), "the end of the processes", 20)


@needs_linux
def test_a_keeper_that_is_killed_takes_its_command_with_it(
    tmp_path: Path, tree: tuple[list[str], Callable[[], list[int]]]
) -> None:
    """The command itself by the system; `stop` with SIGKILL ends all it has started, too."""
    command, pids = tree
    federation = Loopback(tmp_path)
    try:
        federation.start("tree", [sys.executable, "-IS", *command])
        orphan, own = sorted(pids(), key=lambda pid: os.getsid(pid) != pid)
        assert {orphan, own} <= set(keeper.descendants([federation.processes["tree"].pid]))
        federation.stop("tree", signal.SIGKILL)
        until(lambda: not any(map(running, (orphan, own))), "the end of the processes", 10)
        assert federation.processes == {}
    finally:
        federation.stop_all()


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    federation = Loopback(tmp_path)
    try:
        federation.start("three", [sys.executable, "-IS", "-c", "import sys; sys.exit('the disk is full')"])
        until(lambda: federation.ended() == {"three": 1}, "the end of the process")
        assert federation.last_word("three") == "the disk is full"
    finally:
        federation.stop_all()


class Scripted:
    """A federation that answers what it is told to."""

    def __init__(self, nodes: int = 2) -> None:
        self.codes: dict[str, int] = {}
        self.count, self.answers = 0, ["running"]
        self.nodes = nodes

    def status(self, run: str) -> tuple[str, str]:
        state = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return state, "ServerApp failed with exception: [Errno 28] No space left on device: 'x'\nmore"

    def failures(self) -> int:
        return self.count

    def connected(self) -> int:
        return self.nodes

    def ended(self) -> dict[str, int]:
        return self.codes

    def last_word(self, name: str) -> str:
        return f"what {name} said last"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only when told."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_failed_run_says_why_soon(tmp_path: Path, clock: list[float]) -> None:
    """An exception in the logs leads to a question for the status two seconds later, and again until it is there."""
    federation = Scripted()
    run = Run(federation, "7", tmp_path)
    clock[0] += EVERY - 1
    assert run.new() == []
    federation.count, federation.answers = 1, ["running", "finished:failed"]
    clock[0] += 0.5
    assert run.new() == []
    clock[0] += 2.1
    assert run.new() == []
    clock[0] += SOON + 0.1
    with pytest.raises(RuntimeError, match=r"^\[Errno 28\] No space left on device: 'x'$"):
        run.new()


def test_a_run_that_stands_still(tmp_path: Path, clock: list[float]) -> None:
    """The status is asked for after a minute without a round; a SuperLink that has ended is noticed at once."""
    federation = Scripted()
    run = Run(federation, "7", tmp_path, timeout=600)
    (tmp_path / "rounds.jsonl").write_text('{"round": 0}\n')
    clock[0] += EVERY + 1
    assert run.new() == [{"round": 0}]
    federation.answers = ["finished:stopped"]
    clock[0] += EVERY - 1
    assert run.new() == []
    clock[0] += 2
    with pytest.raises(RuntimeError, match="No space left"):
        run.new()
    federation.answers = ["running"]
    clock[0] += 600
    with pytest.raises(RuntimeError, match="round 2 is not done after 600 s"):
        run.new()
    federation.codes = {"superlink": 1}
    with pytest.raises(RuntimeError, match="'superlink' has ended: what superlink said last"):
        run.new()
    (tmp_path / "summary.json").write_text("{}")
    run.began = (tmp_path / "summary.json").stat().st_mtime_ns + 1
    with pytest.raises(RuntimeError):  # the summary is from before
        run.new()
    run.began -= 1
    assert run.new() == []
    assert run.is_done


def session(federation: Any, listener: Any, runs: dict[str, Run] | None = None) -> Session:
    """A session of two nodes and ten rounds."""
    return Session(federation, listener, federation.nodes, 10, runs or {}, {})


class Heard(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def warn(self, name: str, sentence: str) -> None:
        self.said.append((name, sentence))

    def doing(self, what: str) -> None:
        self.said.append(what)


def test_nodes_that_end_are_named() -> None:
    """Before all are connected, or with fewer than two left, there will be no round: a reason to stop."""
    federation, heard = Scripted(nodes=3), Heard()
    shown = session(federation, heard)
    shown._look_at_nodes()
    federation.codes = {"node-1": 9, "flwr": 0}
    for _ in range(2):
        shown._look_at_nodes()
    assert heard.said == [
        "3 of 3 nodes are connected",
        ("node-1", "has ended with code 9: what node-1 said last"),
    ]
    federation.codes["node-2"] = 1
    with pytest.raises(RuntimeError, match="node-2 has ended with code 1: what node-2 said last"):
        shown._look_at_nodes()
    early = session(Scripted(nodes=3), heard)
    early.nodes = 4
    early.federation.ended = lambda: {"node-0": 1}  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="node-0 has ended"):
        early._look_at_nodes()


def test_a_refusal_is_shown_once() -> None:
    heard = Heard()
    shown = session(Scripted(), heard)
    for number, refused in enumerate(({"4": "no reply in time"}, {"4": "no reply in time"}, {"4": "NaN"}, {})):
        shown._show("fedkin", {"round": number, "refused": refused})
    assert [text for _, text in heard.said] == [
        "round 1 without client 4: no reply in time",
        "round 3 without client 4: NaN",
    ]


def test_the_first_round_has_taken_time(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    """Runs begin when the nodes are connected, not with their first record: 9 more rounds of 6 s are 54 s."""
    from rich.console import Console

    lines = Lines(Console(width=200))
    shown = session(Scripted(), lines, {"fedkin": Run(Scripted(), "7", Path("nowhere"))})
    shown._look_at_nodes()
    clock[0] += 6
    shown._show("fedkin", {"round": 0})
    assert "fedkin: round 1/10, 0:00:54 left" in capsys.readouterr().out


def test_logs_are_kept_if_the_federation_fails(tmp_path: Path) -> None:
    """Beside the results; where they cannot be written, where they were. After success none are left."""
    folders: list[Path] = []

    def fail(out: Path, error: Exception) -> None:
        with _folder(out) as folder:
            folders.append(folder)
            (folder / "node-1.log").write_text("why")
            (folder / "keys").mkdir()
            raise error

    with pytest.raises(RuntimeError, match=r"it broke \(logs are in .*logs\)"):
        fail(tmp_path, RuntimeError("it broke"))
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["node-1.log"]
    assert not folders[0].exists()
    nowhere = tmp_path / "file"
    nowhere.touch()
    with pytest.raises(RuntimeError, match="it broke") as caught:
        fail(nowhere, OSError("it broke"))
    assert str(folders[1]) in str(caught.value)
    assert (folders[1] / "node-1.log").read_text() == "why"
    shutil.rmtree(folders[1])
    with _folder(tmp_path) as folder:
        (folder / "node-1.log").write_text("nothing")
    assert not folder.exists()


def test_ctrl_c_while_modules_are_imported_is_a_sentence(tmp_path: Path) -> None:
    """Before anything is started; and a second one while that is said."""
    hang = tmp_path / "fedkin"
    hang.mkdir()
    (hang / "__init__.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "tools")])
    command = [sys.executable, "-m", "loopback", str(APP), "--out", str(tmp_path / "out")]
    launcher = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "importing\n"
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=20)
    assert (errors, launcher.returncode) == ("stopped; the same command continues\n", 130)


@pytest.mark.first
def test_a_run_that_cannot_begin_says_why(tmp_path: Path) -> None:
    """The real thing: the folder of a run is locked. One sentence, the logs beside the results, no process left."""
    import fcntl

    (tmp_path / "fedavg").mkdir()
    command = [sys.executable, "-m", "loopback", str(APP), "--nodes", "2", "--algorithms", "fedavg"]
    with (tmp_path / "fedavg" / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    sentence = f"fedavg failed in round 1: another process is running {tmp_path}/fedavg"
    assert done.stderr.startswith(sentence), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f"(logs are in {tmp_path}/logs)\n")
    assert "BadInput" in (tmp_path / "logs" / "warm.log").read_text()
    assert done.returncode == 1
