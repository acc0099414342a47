"""Algorithms as a user would write them, each in less than forty lines: for the tests of the hooks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Gradient, Hyper, Round, ServerState, Vector, Vectors
from fedkin.types import Tensors
from scaffold import Scaffold as Scaffold


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    """FedAvg for x, and beside it a personal model vᵢ ← vᵢ − γ (∇fᵢ(vᵢ) + λ (vᵢ − x))."""

    pull: Hyper = 0.1

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v = memory["own"]
        v = v - self.step_size * (gradient(v) + self.pull * (v - got["model"]))
        return w - self.step_size * gradient(w), {"own": v}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm):
    """w ← w − γ ∇fᵢ(w − a ∇fᵢ(w)), first order; a client uses x after one step of size a."""

    inner: Hyper = 0.05

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * gradient(w - self.inner * gradient(w)), memory


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm):
    """v̄ = a·v + (1−a)·y; both are stepped with ∇f(v̄)."""

    share: Hyper = 0.3

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        g = gradient(self.share * memory["own"] + (1 - self.share) * w)
        v = memory["own"] - self.step_size * self.share * g
        return w - self.step_size * (1 - self.share) * g, {"own": v}


@dataclass(frozen=True, kw_only=True)
class Swapped(Algorithm):
    """Two vectors that become mixtures of each other in every step: the most difficult case for trails."""

    def remember(self, model: Tensor) -> Tensors:
        return {"other": 0.5 * model, "constant": 0.1 * model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v = memory["other"]
        new = 0.6 * v + 0.3 * w - self.step_size * gradient(w + memory["constant"])
        return new, {**memory, "other": 0.7 * w + 0.2 * v - self.step_size * gradient(0.5 * v + 0.5 * w)}


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Algorithm):
    """Of d candidates sampled by weight, the M with the largest loss at x are selected."""

    candidates: int = 10

    def select(self, server: ServerState, round: Round, losses):  # type: ignore[no-untyped-def]
        who = round.random("candidates").choice(round.who, self.candidates, replace=False, p=round.weights)
        order = losses(server["model"], who).flatten().argsort(descending=True)
        return torch.as_tensor(who)[order[: round.take_part]].sort().values.numpy()
