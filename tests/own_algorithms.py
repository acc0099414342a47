"""Algorithms as a user would write them, each in less than forty lines: for the tests of the hooks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Gradient, Hyper, Losses, Round, ServerState, Vector, Vectors
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
class IFCA(Algorithm):
    """k models: a client takes the one with the smallest loss on its samples; each is averaged over its clients."""

    groups: int = 2
    spread: Hyper = 0.1

    def start(self, model: Tensor, round: Round) -> ServerState:
        noise = round.random("centers").standard_normal((self.groups, model.shape[-1]))
        return {"model": model, "centers": model + self.spread * model.new_tensor(noise)}

    def remember(self, model: Tensor) -> Tensors:
        return {"choice": model.new_zeros(*model.shape[:-1], self.groups)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        centers = server["centers"].split(1, dim=-2)
        return {"model": round.spread(server["model"])} | {f"{j}": round.spread(c) for j, c in enumerate(centers)}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        each = torch.cat([losses.mean(got[f"{j}"]) for j in range(self.groups)], dim=-1)
        choice = torch.nn.functional.one_hot(each.argmin(-1), self.groups).to(got["model"])
        return {"model": self.own(got, {"choice": choice})}, {"choice": choice}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, "choice": memory["choice"]}, memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        share = replies["choice"].mT * replies["model"].new_tensor(round.weights)  # (…, k, m)
        mass = share.sum(-1, keepdim=True)
        averages = (share @ replies["model"]) / mass.clamp(min=1e-30)
        return {**super().combine(server, replies, round), "centers": averages.where(mass > 0, server["centers"])}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return sum(memory["choice"][..., j : j + 1] * got[f"{j}"] for j in range(self.groups))  # type: ignore[return-value]


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
