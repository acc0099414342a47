"""What is worth a look in the tables of clients, in sentences: identifiers, units, clients without variety."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedkin.data.encoding import Encoding
from fedkin.data.summaries import MOST_CATEGORIES, ColumnSummary, combined_summary
from fedkin.types import Integers

# Values of one client that are so many times larger, or farther away in deviations within clients, have other units.
FACTOR, DEVIATIONS = 10.0, 8.0
FEWEST = 5  # values of a client by which its units are judged

Summaries = Mapping[str, Sequence[ColumnSummary]]


def remarks_on_columns(encoding: Encoding, summaries: Summaries, names: Sequence[str]) -> list[str]:
    """Sentences about columns, from the summaries of the clients with these names."""
    said = [f"column '{name}' is left out: {reason}" for name, reason in sorted(encoding.left_out.items())]
    said += remarks_on_names(names)
    for step in encoding.steps:
        parts = summaries[step.column]
        whole = combined_summary(parts)
        if whole.distinct > MOST_CATEGORIES or len(whole.words) > MOST_CATEGORIES:
            said.append(
                f"column '{step.column}' has {max(whole.distinct, len(whole.words)):,} or more categories: the "
                f"{MOST_CATEGORIES} most frequent become features, and the others count as one"
            )
        if step.kind == "number" and whole.identifies:
            said.append(
                f"column '{step.column}' holds whole numbers of which none occurs twice at a client: if it is an "
                f"identifier, leave it out with data.drop = '{step.column}'"
            )
        said += [
            f"client '{client}' has no value of column '{step.column}'"
            for client, part in zip(names, parts, strict=True)
            if not part.count
        ]
        if step.kind == "number":
            said += remarks_on_units(step.column, parts, names)
    return said


def remarks_on_names(names: Sequence[str]) -> list[str]:
    """Clients that may be one, written in two ways.

    >>> remarks_on_names(["North", "south", "north"])
    ["clients 'North' and 'north' differ in capital letters only: if they are one, give them one name"]
    """
    first: dict[str, str] = {}
    return [
        f"clients '{other}' and '{name}' differ in capital letters only: if they are one, give them one name"
        for name in names
        if (other := first.setdefault(name.casefold(), name)) != name
    ]


def remarks_on_units(column: str, parts: Sequence[ColumnSummary], names: Sequence[str]) -> list[str]:
    """Whether the values of a client are of another size than those of the others, or far from them."""
    said = []
    judged = [(client, part) for client, part in zip(names, parts, strict=True) if part.count >= FEWEST]
    if len(judged) < 2:
        return []
    # The lower median: of two clients that differ, one is the reference and the other one is named.
    usual = sorted(part.size for _, part in judged)[(len(judged) - 1) // 2]
    centre = sorted(part.mean for _, part in judged)[(len(judged) - 1) // 2]
    within = math.sqrt(sum(part.squares for _, part in judged) / sum(part.count for _, part in judged))
    for client, part in judged:
        ratio = part.size / usual if usual and part.size else 1.0
        if ratio >= FACTOR or ratio <= 1 / FACTOR:
            more = "larger" if ratio > 1 else "smaller"
            said.append(
                f"column '{column}' is about {max(ratio, 1 / ratio):,.0f} times {more} at client '{client}' than "
                "elsewhere: do the units agree?"
            )
        elif part.deviation and within and abs(part.mean - centre) > DEVIATIONS * max(within, part.deviation):
            said.append(
                f"column '{column}' is around {part.mean:.4g} at client '{client}' but around {centre:.4g} elsewhere: "
                "do the units agree?"
            )
    return said


def remarks_on_classes(counts: Integers, classes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Clients that have rows of one class only; `counts` are the rows of each client and class, (C, K)."""
    return [
        f"client '{client}' has rows of one class only ('{classes[int(np.argmax(row))]}')"
        for client, row in zip(names, counts, strict=True)
        if (row > 0).sum() == 1 < len(classes)
    ]
