"""What a simulation keeps from earlier rounds about local steps: their traces, and what is done with models before use.

Tracing takes longer than the steps of small clients. Several kinds of local work alternate, each with an algorithm
and settings of its own, so the last traces of each are kept.
"""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch

from fedkin.algorithms import Algorithm, Local, Tuning
from fedkin.engine.local_work import script_of, two_steps, without_roots
from fedkin.engine.spaces.script import Script

ALTERNATING = 3  # training, the algorithm's adaptation, fine-tuning
Kept = TypeVar("Kept")
Names = Collection[str]


class Traces:
    """Traces by algorithm, settings and names; a schedule changes the algorithm, and then they are made anew."""

    def __init__(self) -> None:
        self._tried: list[tuple[Any, Any, Script | None]] = []
        self.scripts: list[Script] = []
        self._adapted: list[tuple[Any, Any, tuple[Algorithm, Local] | None]] = []

    def two_steps(
        self, algorithm: Algorithm, local: Local, device: torch.device, received: Names, memory: Names
    ) -> Script | None:
        """The trace of two steps, see `two_steps`."""
        names = set(received), set(memory), without_roots(local)
        return recent(
            self._tried,
            lambda one: one[0] is algorithm and one[1] == names,
            lambda: (algorithm, names, two_steps(algorithm, local, device, received, memory)),
        )[2]

    def script(
        self, algorithm: Algorithm, local: Local, device: torch.device, received: Names, memory: Names, steps: int
    ) -> Script:
        """The trace of at least so many steps."""
        return recent(
            self.scripts,
            lambda one: one.fits(algorithm, local, received, memory, steps),
            lambda: script_of(algorithm, local, device, received, memory, steps),
        )

    def adaptations(self, algorithm: Algorithm, local: Local, tuning: Tuning | None) -> list[tuple[Algorithm, Local]]:
        """What is done with a client's model before it is used: the algorithm's own adaptation, and fine-tuning."""
        every = [self._adaptation(algorithm, local, None), tuning and self._adaptation(algorithm, local, tuning)]
        return [one for one in every if one]

    def _adaptation(self, algorithm: Algorithm, local: Local, tuning: Tuning | None) -> tuple[Algorithm, Local] | None:
        """One of them: the same objects every time, because traces are found by them."""
        return recent(
            self._adapted,
            lambda one: one[0] is algorithm and one[1] == tuning,
            lambda: (
                algorithm,
                tuning,
                tuning.of(algorithm.step_size, local) if tuning else algorithm.adaptation(local),
            ),
        )[2]


def recent(kept: list[Kept], fits: Callable[[Kept], bool], make: Callable[[], Kept]) -> Kept:
    """Of those that are kept the one that fits, or a new one, for which the oldest is forgotten.

    >>> kept = [1, 2, 3]
    >>> recent(kept, lambda one: one == 2, lambda: 4), recent(kept, lambda one: one == 4, lambda: 4), kept
    (2, 4, [4, 1, 2])
    """
    for one in kept:
        if fits(one):
            return one
    kept[:] = [make(), *kept[: ALTERNATING - 1]]
    return kept[0]
