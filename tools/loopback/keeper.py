"""Run a command that ends with the process that started it, together with everything the command has started.

    python -IS keeper.py COMMAND …

Standard input is a lifeline: a pipe whose other end only the starter holds. The system closes it when the starter ends,
by SIGKILL too, and then the keeper ends the command. When the command ends, for whatever reason, the keeper ends what
the command has left: on Linux orphans become children of the keeper, also those with a session of their own. Should the
keeper itself be killed, the system kills the command. Only the standard library is used, so that it starts at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 3.0  # seconds between the request to end and the end
SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2)


def kept(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start a command with a keeper, whose lifeline is the standard input of the process that is returned.

    how  arguments of `subprocess.Popen`
    """
    words = [sys.executable, "-IS", __file__, *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **how)


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends. On Linux; elsewhere nothing happens."""
    _prctl(SET_PDEATHSIG, signal.SIGKILL)


def descendants(pids: Iterable[int]) -> list[int]:
    """The ids of all direct and indirect child processes."""
    roots, parents = set(pids), _parents()
    found = set(roots)
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return sorted(found - roots)


def kill(pids: Iterable[int]) -> None:
    """Kill processes, those that have ended already aside."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def keep(command: list[str]) -> int:
    """Run a command until it ends or must end; its exit code."""
    _prctl(SET_CHILD_SUBREAPER, 1)
    asked: list[int] = []
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
    codes: dict[int, int] = {}
    deadline = float("inf")
    watched = [0, reading]
    while process.pid not in codes and time.monotonic() < deadline:
        left = max(0.0, deadline - time.monotonic()) if deadline < float("inf") else None
        ready = select.select(watched, [], [], left)[0]
        if reading in ready:
            os.read(reading, 4096)
        if 0 in ready and not os.read(0, 4096):
            watched = [reading]
            asked.append(signal.SIGTERM)
        if asked and deadline == float("inf"):
            deadline = time.monotonic() + PATIENCE
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        codes |= _ended()
    while left_over := descendants([os.getpid()]):
        kill(left_over)
        time.sleep(0.01)
        codes |= _ended()
    code = codes.get(process.pid, -signal.SIGKILL)
    process.returncode = code
    return code if code >= 0 else 128 - code


def _ended() -> dict[int, int]:
    """The exit codes of the child processes that have ended since the last call."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            codes[found[0]] = os.waitstatus_to_exitcode(found[1])
    return codes


def _parents() -> dict[int, int]:
    """The parent of every process."""
    if not Path("/proc/self/stat").exists():
        with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split() for line in ps.communicate()[0].splitlines()]
        return {int(pid): int(parent) for pid, parent in rows if int(pid) != ps.pid}
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                after = (folder / "stat").read_text(errors="replace").rpartition(")")[2]  # a name may contain anything
                parents[int(folder.name)] = int(after.split()[1])
    return parents


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
