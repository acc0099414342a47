"""A round, as the hooks of an algorithm see it."""

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers

# Every draw is keyed by (seed, purpose, …), so that no draw depends on how many came before it. That is what makes a
# resumed run equal an uninterrupted one. These are the engine's own purposes.
PURPOSES = {"select": 101, "batches": 102, "noise": 103, "shuffle": 104}


def random_numbers(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator of random numbers for one purpose, the same for the same key."""
    return np.random.default_rng([seed, PURPOSES.get(purpose, zlib.crc32(purpose.encode())), *key])


@dataclass(frozen=True, eq=False)
class Round:
    """What a round is.

    number     from 0
    who        the clients it is about, ascending, (m,): those available in `select`, then the sampled ones
    weights    p, by which the server averages them, (m,), summing to 1
    graph      who is similar to whom, of all clients
    clients    C, how many clients there are in all
    take_part  M, how many of them are to be sampled (None: all)
    seed       of the run
    shares     the weights of all clients, (C,), not normalised (None: all alike)
    """

    number: int
    who: Integers
    weights: Floats
    graph: SimilarityGraph
    clients: int
    take_part: int | None = None
    seed: int = 0
    shares: Floats | None = None

    def __len__(self) -> int:
        return len(self.who)

    def average(self, values: Tensor) -> Tensor:
        """Σ pᵢ xᵢ over the clients: (…, m, q) to (…, 1, q)."""
        p = torch.as_tensor(self.weights, dtype=values.dtype, device=values.device)
        return (p @ values).unsqueeze(-2)

    def spread(self, value: Tensor) -> Tensor:
        """The same for every client, without a copy: (…, 1, q) to (…, m, q)."""
        return value.expand(*value.shape[:-2], len(self.who), -1)

    def random(self, purpose: str, *key: int) -> np.random.Generator:
        """Random numbers for a purpose of this round, fixed by the seed.

        Draw without an axis for lanes, so that a run gives the same numbers alone and as a lane.
        """
        return random_numbers(self.seed, purpose, self.number, *key)

    def of(self, who: Integers, weights: Floats) -> "Round":
        """The same round about other clients; their weights need not sum to 1."""
        return replace(self, who=who, weights=weights / weights.sum())
