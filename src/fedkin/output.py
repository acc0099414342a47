"""Safe output to the terminal."""

import io
import os
import sys
from typing import Any

from rich.console import Console


class UnbreakableStream(io.TextIOBase):
    """A text stream that discards its output once the reader has closed the pipe (`fedkin … | head -1`).

    Results are written to files, so a run continues without its output.
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
        """Encoding of the wrapped stream; Rich uses other characters on a terminal without Unicode."""
        return str(self.stream.encoding)


def prepare_streams() -> None:
    """Make standard output and standard error safe to write to if closed, broken or not Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as in `fedkin run >&-`
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, UnbreakableStream(stream))


def console() -> Console:
    """A console on standard output, without markup; 160 columns wide for tables if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False, emoji=False)


def say_error(sentence: str) -> None:
    """Print an error message on standard error."""
    Console(stderr=True, markup=False, highlight=False, emoji=False).print(f"fedkin: {sentence}", soft_wrap=True)
