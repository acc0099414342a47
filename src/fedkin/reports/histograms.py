"""Histograms: their bins, and as text for a terminal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedkin.types import Floats


def bin_edges(values: Floats, bins: int, log: bool) -> Floats:
    """Edges of a histogram's bins, equally wide or equally wide on a log axis, even if all values are equal."""
    low, high = float(values.min()), float(values.max())
    if log:
        if high < low * 1.001:
            low, high = low / 1.5, high * 1.5
        edges = np.geomspace(low, high, bins + 1)
    else:
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            margin = 0.5 * max(abs(low), 1e-300)
            low, high = (low - margin, high + margin) if low else (-0.5, 0.5)
        edges = np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # rounding must not exclude the extremes
    return edges


def sparkline(values: ArrayLike) -> str:
    """Values as a line of block characters; a value that is not finite is a blank.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    blocks = "▁▂▃▄▅▆▇█"
    numbers = np.asarray(values, dtype=float).ravel()
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return " " * numbers.size
    low, spread = finite.min(), np.ptp(finite)
    # Equal values are drawn at half height: they are neither low nor high.
    level = (numbers - low) / spread if spread > 0 else np.where(np.isfinite(numbers), 0.5, np.nan)
    return "".join(" " if np.isnan(x) else blocks[min(7, int(x * 7 + 0.5))] for x in level)


def histogram_text(values: ArrayLike, log: bool = False, bins: int = 8, width: int = 40) -> list[str]:
    """A histogram for the terminal, one line per bin: range, bar, count. Plain text, without markup.

    With `log` the bins are equally wide on a log axis, and zeros have a separate line.

    >>> for line in histogram_text([0, 0, 1, 1, 1, 1, 2, 2], bins=2, width=4):
    ...     print(line)
    0 – 1  █▍    2
    1 – 2  ████  6
    """
    numbers = np.asarray(values, dtype=float).ravel()
    lines: list[tuple[str, int]] = []
    finite = numbers[np.isfinite(numbers)]
    shown = finite[finite > 0] if log else finite
    if log and shown.size < finite.size:
        lines.append(("not above 0" if (finite < 0).any() else "exactly 0", int(finite.size - shown.size)))
    if shown.size and np.ptp(shown) <= 1e-9 * np.abs(shown).max():
        lines.append((f"{shown[0]:.3g}", int(shown.size)))
    elif shown.size:
        edges = bin_edges(shown, bins, log)
        counts, _ = np.histogram(shown, edges)
        names = _numbers(edges)
        lines += [(f"{a} – {b}", int(n)) for a, b, n in zip(names[:-1], names[1:], counts, strict=True)]
    if finite.size < numbers.size:
        lines.append(("not finite", int(numbers.size - finite.size)))
    if not lines:
        return []
    widest = max(len(name) for name, _ in lines)
    most = max(count for _, count in lines)
    digits = len(str(most))
    return [f"{name:>{widest}}  {_bar(n / most, width)}  {n:>{digits}}" for name, n in lines]


def _numbers(edges: Sequence[float] | Floats) -> list[str]:
    """Edges with as few digits as distinguish neighbours."""
    names: list[str] = []
    for digits in range(2, 9):
        names = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(names)) == len(names):
            break
    return names


def _bar(share: float, width: int) -> str:
    """A bar of block characters, to an eighth of a character; a share above 0 is always visible."""
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)
