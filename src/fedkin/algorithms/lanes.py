"""Lanes: several algorithms of one class, stacked into one.

Hyper-parameters that differ become tensors (L, 1, 1), and the hooks broadcast over them.
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import torch

from fedkin.algorithms.base import Algorithm, Hyper, is_hyper


class Lanes:
    """Algorithms of one class that differ in hyper-parameters; tensors are (lanes, rows, columns).

    given  the algorithms as they were before `Algorithm.general`; alone, they may exchange less than in lanes
    """

    def __init__(self, members: Sequence[Algorithm], given: Sequence[Algorithm] | None = None) -> None:
        self.members = tuple(members)
        self.given = self.members if given is None else tuple(given)

    def __len__(self) -> int:
        return len(self.members)

    def at(self, round: int) -> Algorithm:
        """One algorithm with the stacked hyper-parameters of a round."""
        return _stacked(self, tuple(member.at(round) for member in self.members))


@lru_cache(maxsize=2)  # the same object while no value changes: the engine caches by it
def _stacked(lanes: Lanes, now: tuple[Algorithm, ...]) -> Algorithm:
    made: Algorithm = object.__new__(type(now[0]))  # without __post_init__: the members have checked their values
    for f in fields(made):
        values = [getattr(member, f.name) for member in now]
        object.__setattr__(made, f.name, side_by_side(values) if is_hyper(type(made), f.name) else values[0])
    return made


def side_by_side(values: Sequence[Hyper]) -> Any:
    """Values of lanes as a tensor (L, 1, 1), or the value itself if it is the same in all lanes."""
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def lane_key(algorithm: Algorithm) -> tuple[Any, ...] | None:
    """Equal for algorithms that can share lanes; None for an algorithm that overrides `select`."""
    kind = type(algorithm)
    if kind.select is not Algorithm.select:
        return None
    return kind, *(getattr(algorithm, f.name) for f in fields(algorithm) if not is_hyper(kind, f.name))
