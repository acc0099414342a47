"""Processes that keep cores busy, and end with the process that started them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

# It ends with its parent, even if that is killed, and even before this begins.
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"


class BusyProcesses:
    """Processes that keep cores busy while they are let go. They end with the `with` block, whatever happens in it."""

    def __init__(self, count: int) -> None:
        self.count, self.held = count, contextlib.ExitStack()

    def __enter__(self) -> "BusyProcesses":
        with contextlib.ExitStack() as begun:  # if one cannot be started, the others end
            self.all = [_ended_after(begun) for _ in range(self.count)]
            self._send(signal.SIGSTOP)
            self.held = begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def _send(self, what: signal.Signals) -> None:
        for process in self.all:
            process.send_signal(what)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the processes go."""
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)


def _ended_after(held: contextlib.ExitStack) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())], stdin=subprocess.DEVNULL)
    held.callback(process.wait)
    held.callback(process.kill)  # called before `wait`; it also ends a stopped process
    return process
