"""Division within clients: which of its samples a client trains on, holds out for validation, and tests with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkin.data.apportion import stratified
from fedkin.data.streams import stream
from fedkin.errors import BadInput
from fedkin.types import Integers


def held_out_rows(labels: Integers, share: float, seed: int, purpose: str, *, keep: int = 1) -> Integers:
    """The rows of one client that are held out: a share of them, stratified by label, drawn for a purpose.

    Of n rows, share · n are held out, rounded, but at least one, and at least `keep` stay; none if n ≤ keep.
    """
    n = len(labels)
    if share == 0 or n <= keep:
        return np.empty(0, dtype=np.int64)
    return stratified(labels, min(max(round(share * n), 1), n - keep), stream(seed, purpose))


def divided_within(
    labels: Sequence[Integers],
    *,
    test: float,
    validation: float = 0.0,
    samples: int = 0,
    seed: int = 0,
    names: Sequence[str] = (),
) -> list[tuple[Integers, Integers, Integers]]:
    """The rows of each client for training, validation and testing, stratified by label and redrawn by each seed.

    First the testing rows are drawn, then, of the others, at most `samples`, and of these the validation rows. A client
    with three or more rows has at least one of each, as far as they are asked for; one with two has no validation rows.
    """
    if not 0 <= test < 1:
        raise BadInput(f"the share of testing samples is {test}: it must be 0 or more and less than 1")
    if samples < 0:
        raise BadInput(f"samples = {samples} is out of range: give 1 or more for each client, or 0 for all")
    parts = []
    for i, y in enumerate(labels):
        if test and len(y) < 2:
            who = f"client '{names[i]}'" if names else f"client {i}"
            raise BadInput(
                f"{who} has {len(y) or 'no'} sample{'s' * (len(y) != 1)}, too few for training and testing: give it at "
                "least two, or leave it out"
            )
        keep = 2 if validation and len(y) > 2 else 1
        tested = held_out_rows(y, test, seed, f"testing samples of {i}", keep=keep)
        rest = _without(np.arange(len(y)), tested)
        if samples and len(rest) > samples:
            rest = rest[stratified(y[rest], samples, stream(seed, f"samples of client {i}"))]
        held = rest[held_out_rows(y[rest], validation, seed, f"validation samples of {i}")]
        parts.append((_without(rest, held), held, tested))
    return parts


def _without(rows: Integers, others: Integers) -> Integers:
    left: NDArray[np.bool_] = ~np.isin(rows, others)
    return rows[left]
