"""An algorithm of one's own, whose clients keep something between rounds."""

from dataclasses import dataclass

from torch import Tensor

from fedkin.algorithms import Algorithm, Gradient, Hyper, Vector, Vectors
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Momentum(Algorithm):
    """m ← ρ m + ∇fᵢ(w), w ← w − γ m, with m kept from round to round."""

    rho: Hyper = 0.5

    def remember(self, model: Tensor) -> Tensors:
        return {"momentum": 0.0 * model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        m = self.rho * memory["momentum"] + gradient(w)
        return w - self.step_size * m, {"momentum": m}
