"""Measurements after every round: loss and accuracy at all clients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data.federation import Clients, Federation
from fedkin.models import Model

# Samples scored at once: large enough for efficient products, small enough that scores of many classes fit.
ROWS = 4096


@dataclass(frozen=True)
class Scores:
    """Loss and accuracy at each client, and number of samples: (C,) each."""

    losses: NDArray[np.float64]
    accuracies: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @property
    def loss(self) -> float:
        """Σ (Nᵢ/N) fᵢ(w)."""
        return float(self.losses @ self.sizes / self.sizes.sum())

    @property
    def accuracy(self) -> float:
        """Σ (Nᵢ/N) accuracyᵢ, the paper's accuracy."""
        return float(self.accuracies @ self.sizes / self.sizes.sum())

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the tenth of the clients (at least one) with the lowest accuracy."""
        worst = np.sort(self.accuracies)[: max(1, len(self.accuracies) // 10)]
        return float(worst.mean())


def score(model: Model, w: Tensor, clients: Clients, l2: Sequence[float] = (0.0,)) -> list[Scores]:
    """Loss (cross-entropy plus λ/2 ‖w‖²) and accuracy at every client, for each model of w (L, P)."""
    lanes, samples = len(w), len(clients.y)
    loss, right = torch.empty(2, lanes, samples, device="cpu")
    for first in range(0, samples, ROWS):
        rows = slice(first, first + ROWS)
        z, y = model.scores(w, clients.x[rows]), clients.y[rows].expand(lanes, -1)
        loss[:, rows] = torch.nn.functional.cross_entropy(z, y, reduction="none").cpu()
        right[:, rows] = (z.argmax(dim=-2) == y).float().cpu()
    starts, sizes = clients.offsets[:-1], clients.sizes
    penalties = np.array(l2) / 2 * (w.double() ** 2).sum(dim=1).cpu().numpy()
    mean_loss = np.add.reduceat(loss.double().numpy(), starts, axis=1) / sizes + penalties[:, None]
    accuracy = np.add.reduceat(right.double().numpy(), starts, axis=1) / sizes
    return [Scores(mean_loss[lane], accuracy[lane], sizes) for lane in range(lanes)]


def measure(model: Model, w: Tensor, federation: Federation, l2: Sequence[float] = (0.0,)) -> list[dict[str, float]]:
    """The record of a round for each model of w (L, P): losses, accuracies and the worst decile of testing clients."""
    pairs = zip(score(model, w, federation.train, l2), score(model, w, federation.test, l2), strict=True)
    return [
        {
            "train_loss": train.loss,
            "test_loss": test.loss,
            "train_accuracy": train.accuracy,
            "test_accuracy": test.accuracy,
            "worst_decile": test.worst_decile,
        }
        for train, test in pairs
    ]


def rounds_to(threshold: float, accuracy: Sequence[float] | NDArray[np.float64]) -> int | None:
    """The first round after which the accuracy is at least the threshold, or None.

    Rounds count from 0, as in the paper's published results.

    >>> rounds_to(0.5, [0.1, 0.5, 0.7])
    1
    """
    return next((t for t, a in enumerate(accuracy) if not math.isnan(a) and a >= threshold), None)
