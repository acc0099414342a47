"""Local training of a round: batches of a client's samples, L2 penalty and gradient clipping."""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.errors import BadInput

ORDERS = ("fixed", "shuffled")
OPTIMIZERS = ("sgd", "momentum", "adam")


@dataclass(frozen=True)
class Local:
    """Local training of every client in a round, independent of the algorithm.

    epochs        E ≥ 1, number of passes over a client's samples
    batch_size    B ≥ 1, samples per batch (None: all samples); the last batch of an epoch may be smaller
    steps         if given, each client takes this many steps, on batches into which its samples are divided once (the
                  paper's Algorithm 1); epochs and batch_size are then ignored
    most_steps    if given, a client stops after so many steps, within an epoch or in the middle of it
    order         order of the samples: `shuffled` for each epoch, or `fixed`
    l2            λ ≥ 0, coefficient of the penalty λ/2 ‖w‖² on all parameters, including biases
    clip          G > 0, maximum norm of a stochastic gradient including the penalty (None: no clipping)
    optimizer     how a client moves: `sgd` takes the algorithm's own steps, `momentum` and `adam` change them
                  (`fedkin.engine.optimizers`); outside the paper's theory
    momentum      μ in [0, 1), the share of the last move that `momentum` repeats
    weight_decay  δ ≥ 0: each step also subtracts γδ w, apart from the gradient

    A gradient is ∇fᵢ(w) = ∇(mean loss on the batch) + λ w, scaled by min(1, G/‖∇fᵢ(w)‖).

    >>> Local(epochs=2, batch_size=32).count(100)  # 4 batches per epoch
    8
    >>> Local(epochs=2, batch_size=32, most_steps=5).ends(100)
    array([  0,  32,  64,  96, 100, 132])
    """

    epochs: int = 10
    batch_size: int | None = 32
    steps: int | None = None
    most_steps: int | None = None
    order: str = "shuffled"
    l2: float = 1e-4
    clip: float | None = None
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps", "most_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} = {value} is out of range: it must be at least 1")
        if self.order not in ORDERS:
            raise BadInput(f"unknown order '{self.order}': choose {' or '.join(ORDERS)}")
        # Tensors are the values of lanes, which have been checked one by one.
        if not isinstance(self.l2, Tensor) and not (math.isfinite(self.l2) and self.l2 >= 0):
            raise BadInput(f"l2 = {self.l2:g} is out of range: it must be at least 0")
        if self.clip is not None and not isinstance(self.clip, Tensor) and not self.clip > 0:
            raise BadInput(f"clip = {self.clip:g} is out of range: it must be above 0")

        if self.optimizer not in OPTIMIZERS:
            raise BadInput(f"unknown optimizer '{self.optimizer}': choose {', '.join(OPTIMIZERS)}")
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum = {self.momentum:g} is out of range: it must be at least 0 and below 1")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise BadInput(f"weight_decay = {self.weight_decay:g} is out of range: it must be at least 0")

    def batches(self, samples: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Batches of one client in a round, as positions among its samples.

        >>> Local(epochs=1, batch_size=2, order="fixed").batches(3, np.random.default_rng(0))
        [array([0, 1]), array([2])]
        """
        order, ends = self.order_of(samples, rng), self.ends(samples).tolist()
        return [order[start:end] for start, end in pairwise(ends)]

    def order_of(self, samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Positions among a client's samples in the order of a round, all epochs one after another."""
        end = self.ends(samples)[-1]
        passes = -(-end // samples)  # those that are begun
        if self.order == "fixed":
            return np.tile(np.arange(samples), passes)[:end]
        return np.concatenate([rng.permutation(samples) for _ in range(passes)])[:end]

    def ends(self, samples: int) -> NDArray[np.int64]:
        """Where the batches begin and end in the order of a round, (T + 1,)."""
        if self.steps:
            return _equal_parts(samples, min(self.steps, samples))[: self.count(samples) + 1].copy()
        return _passes(samples, self.width(samples), self.epochs)[: self.count(samples) + 1].copy()

    def count(self, samples: int) -> int:
        """Number of local steps of a client with this many samples; at most one per sample if `steps` is given."""
        count = min(self.steps, samples) if self.steps else self.epochs * -(-samples // self.width(samples))
        return count if self.most_steps is None else min(count, self.most_steps)

    def passes(self, samples: int) -> float:
        """How often a sample is used in a round, on average."""
        whole = 1 if self.steps else self.epochs
        return whole if self.most_steps is None else min(whole, self.most_steps * self.width(samples) / samples)

    def width(self, samples: int) -> int:
        """Size of the largest batch of a client with this many samples."""
        return -(-samples // self.steps) if self.steps else min(self.batch_size or samples, samples)


# Every client asks for its batches in every round, and few numbers of samples are different.
@lru_cache(maxsize=4096)
def _equal_parts(samples: int, count: int) -> NDArray[np.int64]:
    """Where parts begin and end that are as equal as possible, the longer ones first."""
    return np.arange(count + 1) * (samples // count) + np.minimum(np.arange(count + 1), samples % count)


@lru_cache(maxsize=4096)
def _passes(samples: int, width: int, epochs: int) -> NDArray[np.int64]:
    """Where the batches of some epochs begin and end."""
    ends = np.append(np.arange(width, samples, width), samples)
    return np.append(0, (np.arange(epochs)[:, None] * samples + ends).ravel())
