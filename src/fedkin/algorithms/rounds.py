"""A round, as seen by the hooks of an algorithm."""

import zlib
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedkin.algorithms.averaging import MEAN, Averaging
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers

# Random numbers are keyed by (seed, purpose, …), so that no draw depends on earlier ones: a resumed run equals an
# uninterrupted one. These are the engine's purposes.
PURPOSES = {"select": 101, "batches": 102, "noise": 103, "shuffle": 104}


def random_numbers(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A random number generator for one purpose; equal arguments give equal generators."""
    return np.random.default_rng([seed, PURPOSES.get(purpose, zlib.crc32(purpose.encode())), *key])


@dataclass(frozen=True, eq=False)
class Round:
    """A round and its clients: the available ones in `start` and `select`, the sampled ones in all other hooks.

    number     index of the round, from 0
    who        indices of its clients in ascending order, (m,)
    weights    p, averaging weights of these clients, (m,), summing to 1
    graph      similarity graph of all clients
    clients    C, total number of clients
    take_part  M, number of clients to sample (None: all)
    seed       seed of the run
    shares     weights of all clients, (C,), not normalised (None: equal); 0 for newcomers, which are nobody's kin
    rule       how models are averaged
    """

    number: int
    who: Integers
    weights: Floats
    graph: SimilarityGraph
    clients: int
    take_part: int | None = None
    seed: int = 0
    shares: Floats | None = None
    rule: Averaging = MEAN

    def __len__(self) -> int:
        return len(self.who)

    def average(self, values: Tensor) -> Tensor:
        """Average over the clients by the rule of the run, Σ pᵢ xᵢ unless it has another: (…, m, q) → (…, 1, q)."""
        return self.rule(values, self.weights)

    def spread(self, value: Tensor) -> Tensor:
        """The same row for every client, as a view: (…, 1, q) → (…, m, q)."""
        return value.expand(*value.shape[:-2], len(self.who), -1)

    def random(self, purpose: str, *key: int) -> np.random.Generator:
        """A random number generator for a purpose of this round, determined by the seed of the run.

        Draw without an axis for lanes, so that a run has the same random numbers alone and as a lane.
        """
        return random_numbers(self.seed, purpose, self.number, *key)

    def of(self, who: Integers, weights: Floats) -> "Round":
        """The same round with other clients; their weights are normalised to sum to 1."""
        return replace(self, who=who, weights=weights / weights.sum() if len(who) else weights)
