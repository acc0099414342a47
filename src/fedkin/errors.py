"""The one error a user is meant to read."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):  # noqa: N818 - reads as what it is: bad input
    """Something the user gave cannot be used; the message says what, and the way out, in one sentence.

    The command line prints the message and exits with code 2. From Python it is a `ValueError`.

    Messages quote what the user gave. It may be long, have several lines or characters that a terminal obeys, so a
    message is made one line of printable characters, of which the middle is left out if there are too many.
    """

    def __init__(self, sentence: str) -> None:
        line = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in sentence)
        half = MOST_CHARACTERS // 2
        super().__init__(line if len(line) <= MOST_CHARACTERS else f"{line[:half]} … {line[-half:]}")


MOST_CHARACTERS = 380  # of a message: four lines of a terminal


def nearest(word: str, valid: Iterable[str]) -> str:
    """Say which of the valid words was probably meant: `" (did you mean 'beta'?)"`, or list them all.

    >>> nearest("betta", ["alpha", "beta"])
    " (did you mean 'beta'?)"
    """
    words = sorted(valid)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (choose from: {', '.join(words)})"
