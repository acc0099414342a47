"""Safe output to the terminal."""

import codecs
import contextlib
import io
import logging
import os
import re
import sys
import unicodedata
import warnings
from functools import cache
from typing import Any

from rich.console import Console


class UnbreakableStream(io.TextIOBase):
    """A text stream that discards its output once the reader has closed the pipe (`fedkin … | head -1`).

    Results are written to files, so a run continues without its output.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self.stream, self.title = stream, name

    def write(self, text: str) -> int:
        with self._unbroken():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._unbroken():
            self.stream.flush()

    @contextlib.contextmanager
    def _unbroken(self) -> Any:
        try:
            yield
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        except OSError as error:  # a full disk, if the stream is redirected to a file
            error.filename = self.title
            raise

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def isatty(self) -> bool:
        return bool(self.stream.isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the wrapped stream; Rich uses other characters on a terminal without Unicode."""
        return str(self.stream.encoding)


def prepare_streams() -> None:
    """Make standard output and errors safe to write to: closed, broken, or without the characters we use."""
    codecs.register_error("fedkin", _encodable)
    for name, title in (("stdout", "standard output"), ("stderr", "standard error")):
        stream = getattr(sys, name)
        if stream is None:  # closed, as in `fedkin run >&-`
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fedkin")
        setattr(sys, name, UnbreakableStream(stream, title))


def _encodable(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that a terminal lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_substitute(c) for c in error.object[error.start : error.end]), error.end


# One character for one, so that tables stay aligned: dashes, signs, blocks of histograms, the spinner.
SUBSTITUTES = [
    ("[‐-―−─-╿]", "-"),
    ("[▀-▟]", "#"),
    ("[⠀-⣿·]", "*"),
    ("[×✗]", "x"),
    ("[±✓]", "+"),
    ("≤", "<"),
    ("≥", ">"),
]


def _substitute(character: str) -> str:
    """A similar ASCII character: `b` for `β`. Others are escaped, such as bytes of a path that are no text."""
    if greek := re.match(r"GREEK (SMALL|CAPITAL) LETTER (\w)", unicodedata.name(character, "")):
        return greek[2].lower() if greek[1] == "SMALL" else greek[2]
    if (simple := unicodedata.normalize("NFKD", character)).isascii():  # `2` for `₂`
        return simple[0]
    return next((to for pattern, to in SUBSTITUTES if re.match(pattern, character)), _escaped(character))


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()


def console() -> Console:
    """A console on standard output, without markup; 160 columns wide for tables if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False, emoji=False)


def error_console() -> Console:
    """A console on standard error, without markup."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def say_error(sentence: str) -> None:
    """One sentence on standard error, on one line whatever characters are in it."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in sentence)
    with contextlib.suppress(OSError):  # it cannot be said: the exit code still tells
        error_console().print(f"fedkin: {line}", soft_wrap=True)


def show_warnings() -> None:
    """Show warnings as sentences too, each once, without the place in the source that raised them."""

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            say_warning(str(message))
        else:
            usual(message, category, *place, **more)

    usual = warnings.showwarning
    warnings.showwarning = show


class Sentences(logging.Handler):
    """Show what modules of this package log as sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        say_error(record.getMessage())


def show_messages() -> None:
    """Show what this package has to say while it works, such as why something takes longer the first time."""
    log = logging.getLogger("fedkin")
    log.setLevel(logging.INFO)
    log.handlers = [Sentences()]
    log.propagate = False


@cache
def say_warning(sentence: str) -> None:
    """One sentence on standard error, the first time."""
    say_error(f"warning: {sentence}")
