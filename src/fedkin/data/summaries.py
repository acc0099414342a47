"""What leaves a client for the encoding of its table: a summary of each column, never a row.

    numbers, booleans, dates   count of values and of missing ones, mean, sum of squared deviations from the mean
    text                       counts, the number of different values, and the most frequent ones with their counts

The server combines the summaries of all clients; the result is that of all rows in one place.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedkin.data.columns import Column

MOST_CATEGORIES = 50  # of a column; a client sends at most so many values of a column of text
FEWEST_IDENTIFIERS = 20  # values, none of them twice, that are taken for identifiers


@dataclass(frozen=True)
class ColumnSummary:
    """A column of one client, or of all.

    count     of values that are not missing
    missing   of values that are
    mean      of the values
    squares   Σ (v − mean)²
    distinct  the number of different values of text; of several clients, the largest
    words     the most frequent values of text, with their counts
    unique    whether no value, of text or of whole numbers, occurs twice at a client
    """

    count: int
    missing: int
    mean: float = 0.0
    squares: float = 0.0
    distinct: int = 0
    words: dict[str, int] = field(default_factory=dict)
    unique: bool = False

    @property
    def deviation(self) -> float:
        """The standard deviation, √(squares / count)."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    @property
    def size(self) -> float:
        """The root mean square, √(mean² + deviation²): how large values are, whatever their sign."""
        return math.hypot(self.mean, self.deviation)

    @property
    def identifies(self) -> bool:
        """Whether values look like identifiers of rows: none occurs twice."""
        return self.unique and self.count >= FEWEST_IDENTIFIERS and max(self.words.values(), default=1) == 1


def summary_of(column: Column) -> ColumnSummary:
    """The summary that a client sends of a column."""
    known = column.values[~column.missing]
    count, missing = len(known), len(column) - len(known)
    if column.kind == "text":
        counts = np.bincount(known, minlength=len(column.words))
        present = np.flatnonzero(counts)
        # The most frequent first; equally frequent ones in alphabetical order, which is that of the words.
        chosen = present[np.argsort(-counts[present], kind="stable")][:MOST_CATEGORIES]
        words = {column.words[place]: int(counts[place]) for place in chosen}
        unique = count > 1 and len(present) == count
        return ColumnSummary(count, missing, distinct=len(present), words=words, unique=unique)
    if not count:
        return ColumnSummary(0, missing)
    mean = float(known.mean())
    whole = column.kind == "number" and count > 1 and bool((known == np.floor(known)).all())
    unique = whole and len(np.unique(known)) == count
    return ColumnSummary(count, missing, mean, float(np.square(known - mean).sum()), unique=unique)


def combined_summary(parts: Sequence[ColumnSummary]) -> ColumnSummary:
    """The summary of all clients' rows from those of each.

    n = Σ nᵢ,  mean = Σ nᵢ meanᵢ / n,  squares = Σ (squaresᵢ + nᵢ (meanᵢ − mean)²)
    """
    count = sum(part.count for part in parts)
    mean = math.fsum(part.count * part.mean for part in parts) / max(count, 1)
    words: Counter[str] = Counter()
    for part in parts:
        words.update(part.words)
    holders = [part for part in parts if part.count]
    return ColumnSummary(
        count,
        sum(part.missing for part in parts),
        mean,
        math.fsum(part.squares + part.count * (part.mean - mean) ** 2 for part in parts),
        max((part.distinct for part in parts), default=0),
        dict(words),
        bool(holders) and all(part.unique or part.count == 1 for part in holders) and any(p.unique for p in holders),
    )
