"""A run of an app, followed by the records that it writes into its folder."""

import json
import time
from pathlib import Path
from typing import Any, Protocol

PREFIX = "ServerApp failed with exception: "  # how Flower begins the reason of a failure
# Seconds without a record until the status is asked for, and after an exception. A question takes seconds of a core.
EVERY, SOON = 60.0, 5.0


class Federation(Protocol):
    """What is asked of a federation: see `loopback.federation.Loopback`."""

    def status(self, run: str) -> tuple[str, str]: ...

    def failures(self) -> int: ...

    def ended(self) -> dict[str, int]: ...

    def last_word(self, name: str) -> str: ...


class Run:
    """A run with its folder.

    began    nanoseconds at which it was started. A summary from before counts once the run has confirmed it, which
             renews its time: the folder may have been finished with other settings
    timeout  the longest that a round may take, in seconds
    done     the number of rounds on record when the run is first looked at; `new` gives them too
    """

    def __init__(self, federation: Federation, run: str, out: Path, began: int = 0, timeout: float = 600.0) -> None:
        self.federation, self.id, self.out, self.began, self.timeout = federation, run, out, began, timeout
        self.is_done = False
        self.seen, self.done = 0, len(self._lines())
        self._moved = self._looked = time.monotonic()
        self._due, self._failures = self._moved + EVERY, 0

    def _lines(self) -> list[str]:
        try:
            return (self.out / "rounds.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        except OSError:
            return []

    def new(self) -> list[dict[str, Any]]:
        """The records since the last call. Raises if there will be no more of them although the run is not done."""
        self.is_done = self._has_summary()  # checked first: the last round is recorded by then
        lines, now = self._lines(), time.monotonic()
        found = [json.loads(line) for line in lines[self.seen :]]
        self.seen = max(self.seen, len(lines))
        if found:
            self._moved, self._due = now, now + EVERY
        if not self.is_done:
            self._check(now)
        return found

    def _has_summary(self) -> bool:
        try:
            return (self.out / "summary.json").stat().st_mtime_ns >= self.began
        except OSError:
            return False

    def _check(self, now: float) -> None:
        for name in ("superlink", "warm"):
            if name in self.federation.ended():
                raise RuntimeError(f"the process '{name}' has ended: {self.federation.last_word(name)}")
        if now - self._moved > self.timeout:
            raise RuntimeError(f"round {self.seen + 1} is not done after {self.timeout:g} s")
        if now > self._looked + 1:
            self._looked, failures = now, self.federation.failures()
            if failures > self._failures:  # of this run or of another; its status follows a moment later
                self._failures, self._due = failures, min(self._due, now + 2)
        if now > self._due:
            status, details = self.federation.status(self.id)
            self._due = time.monotonic() + (SOON if self._failures else EVERY)
            if status.startswith("finished") and not self._has_summary():
                raise RuntimeError(reason(status, details))


def reason(status: str, details: str) -> str:
    """Why a run has ended, in one line.

    >>> reason("finished:failed", "ServerApp failed with exception: [Errno 28] No space left on device: 'rounds.jsonl'")
    "[Errno 28] No space left on device: 'rounds.jsonl'"
    >>> reason("finished:stopped", "N/A")
    'the run is finished:stopped'
    """
    lines = details.removeprefix(PREFIX).strip().splitlines()
    return f"the run is {status}" if details in ("", "N/A") or not lines else lines[0]
