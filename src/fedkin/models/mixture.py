"""A mixture of models as a model: several of one form, each with a share in the prediction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.models.base import Model
from fedkin.models.losses import Loss, Squared


@dataclass(frozen=True)
class Mixture:
    """What is expected is Σₘ πₘ mean(zₘ): of classes the probabilities are mixed, of a number the predictions.

    Parameters are those of the M models one after another and then the shares π, M·P + M in all. Shares need not sum to
    1: they are divided by their sum, so that a penalty, which shrinks all of them alike, does not change them.
    """

    model: Model
    count: int

    @property
    def parallel(self) -> bool:
        return self.model.parallel

    @property
    def loss(self) -> Loss:
        return self.model.loss

    @property
    def size(self) -> int:
        """M·P + M."""
        return self.count * (self.model.size + 1)

    @property
    def activations(self) -> int:
        """Numbers in the largest layer for one sample."""
        return getattr(self.model, "activations", 0)

    def start(self, seed: int) -> Tensor:
        """Models of consecutive seeds, with equal shares."""
        return torch.cat([*(self.model.start(seed + m) for m in range(self.count)), torch.ones(self.count)])

    def parts(self, w: Tensor) -> tuple[list[Tensor], Tensor]:
        """The parameters of each model, (…, P), and the shares, (…, M)."""
        *models, shares = torch.split(w, [*[self.model.size] * self.count, self.count], dim=-1)
        return models, shares / shares.sum(-1, keepdim=True)

    def _scores(self, models: list[Tensor], x: Tensor) -> Tensor:
        return torch.stack([self.model.scores(w, x) for w in models])

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores z for which mean(z) is the mixture."""
        models, shares = self.parts(w)
        return self.loss.mixed(self._scores(models, x), shares)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Model m sees each sample with the probability that it is the one it comes from, qₘ ∝ πₘ exp(−ℓ(zₘ, y)).

        These are the exact gradients of ℓ = −log Σₘ πₘ exp(−ℓ(zₘ, y)). The squared loss ½(z̄ − y)² of a mean z̄ has the
        derivative πₘ(z̄ − y) by zₘ, that of a target y + zₘ − z̄ in place of y. Shares stay as they are.
        """
        models, shares = self.parts(w)
        z = self._scores(models, x)
        if isinstance(self.loss, Squared):
            targets = y + (z - self.loss.mixed(z, shares)).squeeze(-2)
            q = shares.movedim(-1, 0).unsqueeze(-1).expand_as(targets)
        else:
            targets = y.expand(len(z), *y.shape)
            q = self.responsibilities(z, shares, y)
        parts = [
            self.model.gradient(*each) for each in zip(models, [x] * len(z), targets, weight * q, strict=True)
        ]  # fmt: skip
        return torch.cat([*parts, torch.zeros_like(shares)], dim=-1)

    def responsibilities(self, z: Tensor, shares: Tensor, y: Tensor) -> Tensor:
        """The probabilities with which samples come from each model, given scores (M, …, K, B): (M, …, B)."""
        losses = torch.stack([self.loss.each(one, y.expand(*one.shape[:-2], -1)) for one in z])
        return torch.softmax(shares.log().movedim(-1, 0).unsqueeze(-1) - losses, dim=0)
