"""The local work of a round: how a client's samples are dealt into batches, and what its gradients undergo."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.errors import BadInput

ORDERS = ("fixed", "shuffled")


@dataclass(frozen=True)
class Local:
    """What every client does in a round, whatever the algorithm.

    epochs      E passes over the client's samples, in batches of
    batch_size  B samples, the last one smaller (None: all samples at once);
    steps       or instead E steps, each on one of E batches into which the samples are dealt (the paper's
                Algorithm 1); then epochs and batch_size play no part
    order       batches in `fixed` order, or `shuffled` anew for each epoch
    l2          λ, the coefficient of the penalty λ/2 ‖w‖² on all parameters, weights and biases
    clip        G, the largest norm a stochastic gradient may have (None: any)
    """

    epochs: int = 10
    batch_size: int | None = 256
    steps: int | None = None
    order: str = "fixed"
    l2: float = 1e-4
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} = {value} is out of range: it must be at least 1")
        if self.order not in ORDERS:
            raise BadInput(f"unknown order '{self.order}': choose {' or '.join(ORDERS)}")
        # Tensors are of lanes, whose values were checked one by one.
        if not isinstance(self.l2, Tensor) and not (math.isfinite(self.l2) and self.l2 >= 0):
            raise BadInput(f"l2 = {self.l2:g} is out of range: it must be at least 0")
        if self.clip is not None and not isinstance(self.clip, Tensor) and not self.clip > 0:
            raise BadInput(f"clip = {self.clip:g} is out of range: it must be above 0")

    def batches(self, samples: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """The batches of one client's round, as positions among its samples.

        >>> Local(epochs=1, batch_size=2).batches(3, np.random.default_rng(0))
        [array([0, 1]), array([2])]
        """
        dealt = []
        for _ in range(1 if self.steps else self.epochs):
            order = rng.permutation(samples) if self.order == "shuffled" else np.arange(samples)
            if self.steps:
                dealt += np.array_split(order, min(self.steps, samples))
            else:
                width = self.width(samples)
                dealt += np.split(order, range(width, samples, width))
        return dealt

    def count(self, samples: int) -> int:
        """How many steps a client takes. One with fewer samples than `steps` takes as many as it has samples."""
        return min(self.steps, samples) if self.steps else self.epochs * -(-samples // self.width(samples))

    def width(self, samples: int) -> int:
        """How many samples the largest batch of a client has."""
        return -(-samples // self.steps) if self.steps else min(self.batch_size or samples, samples)
