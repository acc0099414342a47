"""The exception for invalid input."""

from collections.abc import Iterable
from difflib import get_close_matches


class BadInput(ValueError):  # noqa: N818 - the name of the public interface
    """Invalid input by the user. The message is one sentence that ends with how to fix it.

    The command line prints the message and exits with code 2. From Python it is a `ValueError`.
    """


def nearest(word: str, valid: Iterable[str]) -> str:
    """A suggestion for a misspelt word: the closest valid one, or else all of them.

    >>> nearest("betta", ["alpha", "beta"])
    " (did you mean 'beta'?)"
    """
    words = sorted(valid)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else f" (choose from: {', '.join(words)})"
