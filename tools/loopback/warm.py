"""Start Flower's app processes by fork from a process that has imported all modules already.

Flower starts a new Python process for every message a node receives, and importing PyTorch takes three seconds of a
core. That does not matter on separate machines; when five nodes share two cores, a round takes more than ten seconds.
`commands(folder)` writes replacements for Flower's commands. They come first on the PATH and send their arguments to
the process that `serve` runs, which forks and runs the command. The code that runs is Flower's own.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from loopback.keeper import end_with_parent

COMMANDS = ("flower-superexec", "flwr-clientapp", "flwr-serverapp")

# Waits until the process is ready, as the SuperLink is started at the same time; ends with the federation, whose folder
# is then removed.
REPLACEMENT = """#!/bin/sh
exec "{python}" -IS -c '
import json, os, socket, sys, time
while not os.path.exists("{address}"):
    if not os.path.isdir("{folder}"):
        sys.exit("the federation has ended")
    time.sleep(0.05)
with socket.socket(socket.AF_UNIX) as s:
    s.connect("{address}")
    s.sendall(json.dumps(sys.argv[1:]).encode())
' {name} "$@"
"""


def commands(folder: Path) -> Path:
    """Write the replacements; the folder to put first on the PATH."""
    places = folder / "bin"
    places.mkdir()
    for name in COMMANDS:
        text = REPLACEMENT.format(python=sys.executable, folder=folder, address=folder / "socket", name=name)
        (places / name).write_text(text, encoding="utf-8")
        (places / name).chmod(0o700)
    return places


def serve(folder: Path) -> None:
    """Import all modules, then fork a command for every request. Its child processes end with it."""
    found = {e.name: e for e in entry_points(group="console_scripts") if e.name in COMMANDS}
    loaded = {name: entry.load() for name, entry in found.items()}
    import fedkin.flower

    assert fedkin.flower
    started: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "binding"))
        listener.listen(64)
        (folder / "binding").rename(folder / "socket")  # exists only once it listens
        while True:
            connection, _ = listener.accept()
            with connection:
                words = json.loads(b"".join(iter(lambda c=connection: c.recv(65536), b"")))  # type: ignore[misc]
            started = [pid for pid in started if os.waitpid(pid, os.WNOHANG) == (0, 0)]
            assert threading.active_count() == 1, "a fork keeps only the thread that makes it"
            if pid := os.fork():
                started.append(pid)
                with (folder / "started").open("a", encoding="utf-8") as file:
                    file.write(f"{pid} {words[0]}\n")
            else:
                listener.close()
                become(loaded[words[0]], words)


def become(command: Callable[[], None], words: list[str]) -> None:
    """Run a command as a process of its own, and exit."""
    end_with_parent()
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    code = 0
    try:
        command()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def started(folder: Path, command: str) -> list[int]:
    """The ids of the processes that run or ran a command, oldest first."""
    file = folder / "started"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [int(pid) for pid, name in (line.split() for line in lines) if name == command]


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
