"""The terminal: where it can be written to, and what goes wrong with it."""

import io
import os
import sys
from typing import Any

from rich.console import Console


class UnbreakableStream(io.TextIOBase):
    """A text stream whose reader may leave (`fedkin … | head -1`): from then on its text is dropped.

    A run writes its results to files, so it goes on when nobody reads what it says.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self.stream.write(text))
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def isatty(self) -> bool:
        return bool(self.stream.isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's own: on a terminal without Unicode, Rich draws with other characters."""
        return str(self.stream.encoding)


def prepare_streams() -> None:
    """Make standard output and errors safe to write to: closed, broken, or without the characters we use."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by `fedkin run >&-`
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, UnbreakableStream(stream))


def console() -> Console:
    """Standard output, wide enough for a table when it is not a terminal. Text is printed as it is, without markup."""
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False, emoji=False)


def say_error(sentence: str) -> None:
    """One sentence on standard error."""
    Console(stderr=True, markup=False, highlight=False, emoji=False).print(f"fedkin: {sentence}", soft_wrap=True)
