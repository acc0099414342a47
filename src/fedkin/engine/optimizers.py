"""Local optimizers: how a client moves, given the step of its algorithm.

An algorithm's step proposes the move Δ = step(w) − w; for FedAvg that is −γ ∇fᵢ(w), for FedKin
−γ (∇fᵢ(β w + (1−β) uᵢ) + α (w − start)). With μ = `local.momentum` and δ = `local.weight_decay`:

    sgd       w ← w + Δ − γδ w
    momentum  v ← μ v + Δ,   w ← w + v − γδ w
    adam      d = −Δ/γ,   m ← β₁ m + (1−β₁) d,   s ← β₂ s + (1−β₂) d²
              w ← w − γ m̂/(√ŝ + ε) − γδ w,   m̂ = m/(1−β₁ᵏ), ŝ = s/(1−β₂ᵏ) in the k-th step

v, m and s are 0 at the beginning of every round. What clients remember (Ditto's personal model) keeps its own rule.
The decay is decoupled: it does not enter Δ, the clipped gradient, v, m or s, as λ does.

sgd and momentum are linear combinations of vectors, and run in every space. Adam takes squares and roots, and runs on
parameters (`Fused`).
"""

from typing import Any

import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Lanes, Local
from fedkin.engine.spaces.combination import is_zero
from fedkin.engine.spaces.script import HIDDEN
from fedkin.errors import Unsuitable

VELOCITY = f"{HIDDEN}velocity"
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam, as in `torch.optim.Adam`


class LocalOptimizer:
    """sgd: the algorithm's own step, and weight decay."""

    def __init__(self, algorithm: Algorithm, local: Local) -> None:
        self.step_size, self.local = algorithm.step_size, local

    def start(self, w: Any) -> dict[str, Any]:
        """Vectors of its own that change over the steps, at the beginning of a round."""
        return {}

    def moved(self, space: Any, w: Any, new: Any, vectors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The next w and the optimizer's vectors, given w and the algorithm's step from it."""
        return self._decayed(w, new), {}

    def _decayed(self, w: Any, new: Any) -> Any:
        return new if is_zero(self.local.weight_decay) else new - self.step_size * self.local.weight_decay * w


class Momentum(LocalOptimizer):
    """v ← μ v + Δ, w ← w + v."""

    def start(self, w: Any) -> dict[str, Any]:
        return {VELOCITY: 0.0 * w}

    def moved(self, space: Any, w: Any, new: Any, vectors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        inertia = self.local.momentum * vectors[VELOCITY]
        return self._decayed(w, new + inertia), {VELOCITY: inertia + (new - w)}


class Adam(LocalOptimizer):
    """w ← w − γ m̂/(√ŝ + ε). The averages m and s are tensors, not vectors of the space."""

    def start(self, w: Any) -> dict[str, Any]:
        self.mean: Tensor | None = None
        self.square: Tensor | None = None
        self.steps = 0
        return {}

    def moved(self, space: Any, w: Any, new: Any, vectors: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        d: Tensor = space.value((w - new) / self.step_size)
        if self.mean is None or self.square is None:
            self.mean, self.square = torch.zeros_like(d), torch.zeros_like(d)
        self.mean.lerp_(d, 1 - BETA_1)
        self.square.mul_(BETA_2).addcmul_(d, d, value=1 - BETA_2)
        self.steps += 1
        root = self.square.sqrt().div_((1 - BETA_2**self.steps) ** 0.5).add_(EPSILON)
        direction = self.mean.div(1 - BETA_1**self.steps).div_(root)
        return self._decayed(w, w - self.step_size * space.adopted(direction)), {}


LOCAL_OPTIMIZERS: dict[str, type[LocalOptimizer]] = {"sgd": LocalOptimizer, "momentum": Momentum, "adam": Adam}


def optimizer_of(algorithm: Algorithm, local: Local) -> LocalOptimizer:
    """The optimizer of a client's round."""
    return LOCAL_OPTIMIZERS[local.optimizer](algorithm, local)


def check_optimizer(algorithm: Algorithm | Lanes, local: Local) -> None:
    """Refuse an optimizer with an algorithm that counts on the length of its own steps."""
    one = algorithm.members[0] if isinstance(algorithm, Lanes) else algorithm
    usual = local.optimizer == "sgd" and is_zero(local.weight_decay)
    if one.plain_steps and not usual:
        raise Unsuitable(
            f"{type(one).__name__} counts on steps of its own, which another optimizer or weight decay "
            "changes: set local.optimizer = 'sgd' and local.weight_decay = 0"
        )


def refuse_adam(algorithm: Algorithm) -> None:
    """Raise because a step is more than a linear combination."""
    raise Unsuitable(
        f"adam needs a step that only adds vectors and multiplies them by numbers, and that of "
        f"{type(algorithm).__name__} does more: set local.optimizer = 'sgd' or 'momentum'"
    )
