"""SCAFFOLD (Karimireddy et al. 2020, option II) as an algorithm from outside the package."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Gradient, Hyper, Round, ServerState, Vector, Vectors
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    """y ← y − γ (∇f(y) − cᵢ + c), cᵢ⁺ = cᵢ − c + (x − y)/(Kγ); x ← x + η Σ pᵢ(yᵢ − x), c ← c + Σ (cᵢ⁺ − cᵢ)/N."""

    plain_steps = True  # (x − y)/(Kγ) is a mean gradient only if steps have their usual length
    server_step: Hyper = 1.0

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "control": torch.zeros_like(model)}

    def remember(self, model: Tensor) -> Tensors:
        return {"control": torch.zeros_like(model)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {name: round.spread(value) for name, value in server.items()}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) - memory["control"] + got["control"]), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        control = memory["control"] - got["control"] + (got["model"] - w) / (steps * self.step_size)
        return {"model": w, "change": control - memory["control"]}, {"control": control}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        change = replies["change"].sum(-2, keepdim=True) / round.clients
        moved = round.average(replies["model"] - server["model"])
        return {"model": server["model"] + self.server_step * moved, "control": server["control"] + change}
