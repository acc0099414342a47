"""The interface between the engine and a model."""

from typing import Protocol

import torch
from torch import Tensor

from fedkin.models.losses import Loss


class Model(Protocol):
    """The interface that the engine uses."""

    @property
    def parallel(self) -> bool:
        """Whether several threads may use the model at the same time."""

    @property
    def loss(self) -> Loss:
        """The loss ℓ of a sample, by what is predicted."""

    @property
    def size(self) -> int:
        """P, the number of parameters."""

    def start(self, seed: int) -> Tensor:
        """Initial parameters, (P,), determined by the seed."""

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Outputs z for samples x (…, B, D) under parameters w (…, P), such as a score for each class: (…, K, B)."""

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """∇_w Σ_b weight_b · ℓ(w; x_b, y_b), (…, P).

        w (…, P), x (…, B, D), y and weight (…, B). The weights of a batch sum to 1, or less if samples count less.
        """


class seeded:  # noqa: N801 - used as a context manager, like a function
    """Seed PyTorch's global random number generator inside the block, and restore its state afterwards."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> None:
        self.before = torch.random.get_rng_state()
        if torch.cuda.is_available():
            torch.manual_seed(self.seed)
        else:  # it would take two milliseconds to note where it was called, for devices that are not there
            torch.default_generator.manual_seed(self.seed)

    def __exit__(self, *_: object) -> None:
        torch.random.set_rng_state(self.before)
