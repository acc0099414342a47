"""The exception for invalid input."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):  # noqa: N818 - the name of the public interface
    """Invalid input by the user. The message is one sentence that ends with how to fix it.

    The command line prints the message and exits with code 2. From Python it is a `ValueError`.

    Messages quote what the user gave. It may be long, have several lines or characters that a terminal obeys, so a
    message is made one line of printable characters, of which the middle is left out if there are too many.
    """

    def __init__(self, sentence: str) -> None:
        line = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in sentence)
        half = MOST_CHARACTERS // 2
        super().__init__(line if len(line) <= MOST_CHARACTERS else f"{line[:half]} … {line[-half:]}")


class Unsuitable(BadInput):
    """An algorithm and settings that do not go together, each of which may be used with others."""


MOST_CHARACTERS = 380  # of a message: four lines of a terminal


def nearest(word: str, valid: Iterable[str]) -> str:
    """A suggestion for a misspelt word: the closest valid one, or else all of them.

    >>> nearest("betta", ["alpha", "beta"])
    " (did you mean 'beta'?)"
    """
    words = sorted(valid)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (choose from: {', '.join(words)})"


TOO_LARGE = "this does not fit into memory: use a smaller model or fewer clients, or close other programs"


def in_short(error: BaseException) -> str:
    """What kind of error, and the first line of what it says.

    >>> in_short(KeyError("beta"))
    "KeyError: 'beta'"
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory could not be had; PyTorch raises a RuntimeError then."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
