"""Cohorts: clients that are processed together, so many that they fit the cache.

One large client at a time, many tiny ones stacked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkin.local import Local
from fedkin.samples import Samples, cost
from fedkin.spaces import Plain

# A cohort holds at most this many numbers (4 bytes each) that every step goes through, so that they stay in the cache:
# a core's own for a batch of samples, its share of the common one for Gram matrices.
BATCH_NUMBERS = 1 << 18
GRAM_NUMBERS = 2 << 20

Where = type[Plain] | type[Samples]


@dataclass(frozen=True)
class Cohort:
    """Clients that are processed together: their places among those present, where they work, and how long about.

    steps  how many the one with the most samples takes
    """

    places: NDArray[np.int64]
    space: Where
    steps: int
    cost: float


def cohorts_of(
    sizes: Sequence[int], spaces: Mapping[int, Where], local: Local, features: int, outputs: int
) -> Iterator[Cohort]:
    """Group clients by size. `spaces` says where clients of a size work, `outputs` are the first layer's."""
    group: list[int] = []

    def gathered() -> Cohort:
        most = sizes[group[0]]
        work = len(group) * cost(local, most, features, issubclass(spaces[most], Samples))
        return Cohort(np.array(group), spaces[most], local.count(most), work)

    def room(most: int, n: int, place: int) -> int:
        """For how many clients, if the first has the most samples and the next has n."""
        if not issubclass(spaces[most], Samples):
            return BATCH_NUMBERS // (local.width(most) * features)
        # In sample space their batches must lie in the same places, which takes some filling up.
        aligned = local.order == "fixed" and not local.steps
        aligned = aligned and local.count(n) == local.count(most) and 4 * n >= 3 * most
        if spaces[most] is not Samples:
            # Compiled, they gain little: not worth filling up, nor copying what those apart have received.
            aligned = n == most and place == group[-1] + 1
        return GRAM_NUMBERS // (most**2 + 3 * most * outputs) if aligned else 1

    for place in np.argsort([-n for n in sizes], kind="stable").tolist():
        n = sizes[place]
        # Sizes fall, so the first client of a group has the most samples and the widest batch.
        if group and (len(group) >= room(sizes[group[0]], n, place) or spaces[n] is not spaces[sizes[group[0]]]):
            yield gathered()
            group = []
        group.append(place)
    yield gathered()
