"""Terminals, pipes and signals: whatever happens to what the command prints, runs end as they should."""

import contextlib
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from rich.console import Console

from command_line import COMMAND, RACE, Command, environment, is_one_sentence, started
from fedkin import cli
from fedkin.__main__ import start
from fedkin.experiments.progress import Bars, shown
from fedkin.experiments.run import run
from fedkin.files import write_atomically
from fedkin.output import say_error
from fedkin.reports.figures import federation_figure, save

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.is_char_device(), reason="there is no /dev/full")


def finished(folder: Path) -> int:
    return len(list(folder.rglob("summary.json")))


def redirected(redirection: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with a redirection of the shell."""
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment())


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of `RACE`."""
    out = tmp_path_factory.mktemp("raced") / "results"
    run(overrides=RACE[1::2], out=out)
    return out


# -- readers that leave, and streams that are closed -------------------------------------------------------------------


def test_a_reader_that_leaves_does_not_end_a_run(tmp_path: Path) -> None:
    """As `fedkin run | head -1`."""
    process = started("run", *RACE, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "5 runs\n"
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert finished(tmp_path) == 5


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&- <&-"])
def test_closed_streams(redirection: str, tmp_path: Path) -> None:
    assert redirected(redirection, "run", *RACE, cwd=tmp_path).returncode == 0
    assert finished(tmp_path) == 5


@pytest.mark.parametrize("redirection", ["2>&-", ">&- 2>&- <&-"])
def test_errors_where_streams_are_closed(redirection: str, tmp_path: Path) -> None:
    assert redirected(redirection, "run", "--set", "ronds=1", cwd=tmp_path).returncode == 2


@needs_full
def test_streams_without_space(tmp_path: Path) -> None:
    done = redirected(">/dev/full", "run", *RACE, cwd=tmp_path)
    assert done.returncode == 2
    assert is_one_sentence(done.stderr)
    assert "standard output: the disk is full" in done.stderr
    assert redirected("2>/dev/full", "run", "--set", "ronds=1", cwd=tmp_path).returncode == 2


# -- characters --------------------------------------------------------------------------------------------------------


def in_ascii(invoke: Command, *arguments: str, cwd: Path) -> str:
    """What the command prints to a stream without Unicode."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with contextlib.redirect_stdout(stream):
        done = invoke(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("ascii")


def test_a_terminal_without_unicode(raced: Path, tmp_path: Path, invoke: Command) -> None:
    """Similar characters stand for others, one for one, so that tables stay aligned."""
    report = in_ascii(invoke, "report", str(raced), "--out", "report", cwd=tmp_path)
    assert "FedKin b=0.5" in report
    assert "\\" not in report
    assert len({len(line) for line in report.splitlines() if line.startswith("|")}) == 1
    graph = in_ascii(invoke, "graph", *RACE, cwd=tmp_path)
    assert "####" in graph
    assert "\\" not in graph


def test_brackets_in_paths_are_no_markup(tmp_path: Path, invoke: Command) -> None:
    done = invoke("run", *RACE, "--out", "o[/red]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Results are in o[/red]/demo" in done.stdout
    report = invoke("report", "o[/red]", "--out", "[bold]", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "wrote [bold]/report.md" in report.stdout


def test_dollars_in_names_are_no_formulas(tmp_path: Path) -> None:
    """As in a title with the name of a data set; labels of logarithmic axes stay formulas."""
    figure = federation_figure([3, 2], [[1, 2], [1, 1]], [0.001, 10.0], [0.0, 1.0], title="data of $a_$, 2 clients")
    assert len(save(figure, tmp_path / "figure")) == 2
    ticks = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()]
    assert any("mathdefault" in text for text in ticks)
    assert all(label.get_parse_math() for axes in figure.axes for label in axes.get_xticklabels())


def test_errors_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_error("one\ntwo\x1b[31m\0[red]")
    assert capsys.readouterr().err == "fedkin: one\\ntwo\\x1b[31m\\x00[red]\n"


def test_a_warning_is_one_sentence_and_said_once(raced: Path, tmp_path: Path, invoke: Command) -> None:
    shutil.copytree(raced, tmp_path / "results")
    (tmp_path / "results/demo/fedavg/config.json").write_text("[" * 100_000)
    report = invoke("report", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert is_one_sentence(report.stderr)
    assert re.match(r"fedkin: warning: left out the run results/demo/fedavg: config\.json is not valid", report.stderr)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--set", "rounds=1000000"], "fedkin: stopped; the same command continues the runs\n"),
        (["theory", "--set", "rounds=1000000"], "fedkin: stopped\n"),
    ],
)
def test_interrupted(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    process = started(*arguments, cwd=tmp_path)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("building"):
        assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, sentence)


def interrupted(marker: str, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a run in a terminal, where Ctrl-C is typed after a first match of the marker."""
    shown, keys = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "fedkin", "run", "--set", "rounds=1000000"],
        cwd=cwd, env=environment(), stdin=keys, stdout=keys, stderr=keys, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(keys)
    out, typed = b"", False
    with contextlib.suppress(OSError):  # the terminal is closed when the process ends
        while data := os.read(shown, 1 << 16):
            out += data
            if not typed and re.search(marker.encode(), out):
                os.write(shown, b"\x03")
                typed = True
    os.close(shown)
    return process.wait(timeout=120), out.decode()


@pytest.mark.parametrize(
    ("marker", "sentence"),
    [
        (r"\| +typer\.models\r", "fedkin: stopped\r\n"),
        (r"\| +torch\.\w+\r", "fedkin: stopped; the same command continues the runs\r\n"),
        (r"accuracy", "fedkin: stopped; the same command continues the runs\r\n"),
    ],
    ids=["the command is imported", "PyTorch is imported", "rounds"],
)
def test_ctrl_c_at_a_terminal(marker: str, sentence: str, tmp_path: Path) -> None:
    code, said = interrupted(marker, tmp_path)
    assert sentence in said
    assert "Traceback" not in said
    # Python ends itself by the signal if it interrupted code that a string was compiled to, as in a dataclass.
    assert code in (130, -signal.SIGINT)


def test_an_interrupt_while_the_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "main", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        start()
    assert (ended.value.code, capsys.readouterr().err) == (130, "fedkin: stopped\n")


# -- bars --------------------------------------------------------------------------------------------------------------


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, markup=False, highlight=False)


def last_frame(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue().rpartition("\r")[2])


def test_bars_do_not_keep_what_is_over() -> None:
    console = terminal()
    with shown(console) as listener:
        assert isinstance(listener, Bars)
        listener.grid(1)
        listener.doing("building [dim]the graph")
        listener.progress.refresh()
        assert "building [dim]the graph" in last_frame(console)
        listener.begin("run [bold]", 10, 0)
    assert "building" not in last_frame(console)
    assert "run [bold]" in last_frame(console)


def test_runs_that_are_executed_together_share_a_bar() -> None:
    """With their number, which falls as they end, and the range of their accuracies."""
    console, names = terminal(), [f"run-{i}" for i in range(35)]
    with shown(console) as listener:
        assert isinstance(listener, Bars)
        listener.grid(35)
        listener.together(names)
        for name in names:
            listener.begin(name, 10, 4)
        for i, name in enumerate(names):
            listener.round(name, {"round": 4, "test_accuracy": 0.5 + i / 100})
        listener.progress.refresh()
        bars = last_frame(console).splitlines()
        assert len(bars) == 2
        assert re.search(r"35 runs together .* 5/10 accuracy 50\.0 % to 84\.0 %", bars[1])
        listener.end(names[0], {"status": "diverged", "diverged_at": 4}, False)
        listener.progress.refresh()
        assert "34 runs together" in last_frame(console)
        for name in names[1:]:
            listener.end(name, {"status": "diverged", "diverged_at": 5}, False)
    assert last_frame(console).split()[0] == "runs"
    assert "together" not in last_frame(console)
    assert "35/35" in last_frame(console)


def test_the_upper_bar_keeps_no_old_text() -> None:
    """Neither what was done before a round or a kept run, nor the count of the experiment before."""
    console = terminal()
    with shown(console) as listener:
        assert isinstance(listener, Bars)
        for _ in range(2):  # as `fedkin reproduce` does
            listener.grid(2)
            listener.begin("run", 10, 0)
            listener.doing("building the graph")
            listener.round("run", {"round": 0, "test_accuracy": 0.5})
            listener.progress.refresh()
            assert "building" not in last_frame(console)
            listener.end("run", {"status": "diverged", "diverged_at": 1}, False)
            listener.doing("loading digits")
            listener.end("kept", {"status": "diverged", "diverged_at": 1}, True)
            listener.progress.refresh()
            assert "loading" not in last_frame(console)
            assert "2/2" in last_frame(console)


def test_without_runs_no_bar_is_left() -> None:
    console = terminal()
    with shown(console) as listener:
        listener.doing("loading digits")
    assert "runs" not in last_frame(console)


# -- files that are no files -------------------------------------------------------------------------------------------


def test_pipes_are_written_to_and_stay(tmp_path: Path) -> None:
    """As `fedkin bench --json /dev/stdout`."""
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"content")
    assert pipe.is_fifo()
    reader.join(timeout=10)
    assert found == [b"content"]
