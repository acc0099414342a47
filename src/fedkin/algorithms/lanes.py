"""Lanes: algorithms of one class that differ in hyper-parameters, as one algorithm.

Hyper-parameters that differ become tensors (L, 1, 1) with an entry a lane, and the same hooks broadcast over them.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch

from fedkin.algorithms.base import Algorithm, Hyper, is_hyper


class Lanes:
    """Several algorithms of one class, in tensors (lanes, rows, columns). `at` gives the hooks of a round."""

    def __init__(self, members: Sequence[Algorithm]) -> None:
        self.members = tuple(members)

    def __len__(self) -> int:
        return len(self.members)

    def at(self, round: int) -> Algorithm:
        """The hyper-parameters of a round, side by side."""
        return _stacked(self, tuple(member.at(round) for member in self.members))


@lru_cache(maxsize=2)  # the same object as long as nothing changes, so that what was made for it can be kept
def _stacked(lanes: Lanes, now: tuple[Algorithm, ...]) -> Algorithm:
    made: Algorithm = object.__new__(type(now[0]))  # the members' values were checked one by one
    for f in fields(made):
        values = [getattr(member, f.name) for member in now]
        object.__setattr__(made, f.name, side_by_side(values) if is_hyper(type(made), f.name) else values[0])
    return made


def side_by_side(values: Sequence[Hyper]) -> Any:
    """One value a lane, (L, 1, 1), or simply the value if all lanes have the same."""
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def lane_key(algorithm: Algorithm) -> tuple[Any, ...] | None:
    """Equal for algorithms that can be lanes together; None for one that cannot, as it chooses its own clients."""
    kind = type(algorithm)
    if kind.select is not Algorithm.select:
        return None
    return kind, *(getattr(algorithm, f.name) for f in fields(algorithm) if not is_hyper(kind, f.name))
