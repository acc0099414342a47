"""Algorithms whose clients keep something between rounds, for the engine and as hand-written loops."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkin.algorithms import Algorithm, Gradient, Hyper, Round, ServerState, Vector, Vectors
from fedkin.bench.loops import SliceLoop
from fedkin.bench.workloads import STEP_SIZE, Workload
from fedkin.data.federation import Federation
from fedkin.types import Tensors

PULL = 0.1  # μ of Ditto


@dataclass(frozen=True, kw_only=True)
class ControlVariates(Algorithm):
    """SCAFFOLD: w ← w − γ (∇fᵢ(w) + c − cᵢ); then cᵢ moves by δᵢ = (w̄ − w)/(Kγ) − c, and c by Σ δᵢ/C.

    After K steps (w̄ − w)/(Kγ) is the mean of ∇fᵢ(w) + c − cᵢ, so that cᵢ + δᵢ is the mean of ∇fᵢ(w).
    """

    plain_steps = True

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "drift": torch.zeros_like(model)}

    def remember(self, model: Tensor) -> Tensors:
        return {"mine": torch.zeros_like(model)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {"model": round.spread(server["model"]), "drift": round.spread(server["drift"])}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) + got["drift"] - memory["mine"]), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        moved = (got["model"] - w) / (steps * self.step_size) - got["drift"]
        return {"model": w, "moved": moved}, {"mine": memory["mine"] + moved}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        drift = server["drift"] + replies["moved"].sum(-2, keepdim=True) / round.clients
        return {"model": round.average(replies["model"]), "drift": drift}


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    """FedAvg, and v ← v − γ (∇fᵢ(v) + μ (v − w̄)) beside it: a model of the client's own, drawn to the global one.

    Only the global model is measured, as in the loop.
    """

    pull: Hyper = PULL

    def remember(self, model: Tensor) -> Tensors:
        return {"personal": model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v = memory["personal"]
        away = v - got["model"]
        return w - self.step_size * gradient(w), {"personal": v - self.step_size * (gradient(v) + self.pull * away)}


class ControlVariatesLoop(SliceLoop):
    """SCAFFOLD by hand: the correction c − cᵢ is added to every gradient."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        super().__init__(workload, federation)
        self.drift = [torch.zeros_like(p) for p in self.parameters]
        self.mine = [[torch.zeros_like(p) for p in self.parameters] for _ in self.samples]

    def round(self) -> None:
        self.moved = [torch.zeros_like(p) for p in self.parameters]
        super().round()
        torch._foreach_add_(self.drift, self.moved, alpha=1 / len(self.samples))

    def train(self, client: int) -> None:
        self.correction = torch._foreach_sub(self.drift, self.mine[client])
        super().train(client)
        with torch.no_grad():
            change = torch._foreach_sub(self.start, self.parameters)
            torch._foreach_div_(change, self.local.count(len(self.samples[client][1])) * STEP_SIZE)
            torch._foreach_sub_(change, self.drift)
            torch._foreach_add_(self.mine[client], change)
            torch._foreach_add_(self.moved, change)

    def adjust(self, gradients: list[Tensor]) -> None:
        super().adjust(gradients)
        torch._foreach_add_(gradients, list(self.correction))


class DittoLoop(SliceLoop):
    """Ditto by hand: a second module has the parameters of the client's own model."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        super().__init__(workload, federation)
        self.own = copy.deepcopy(self.net)
        self.own_parameters: list[Tensor] = list(self.own.parameters())
        self.own_optimizer = torch.optim.SGD(self.own_parameters, lr=STEP_SIZE, weight_decay=self.local.l2 + PULL)
        self.personal = [[p.detach().clone() for p in self.own_parameters] for _ in self.samples]

    def train(self, client: int) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.own_parameters, self.personal[client])
            self.towards = torch._foreach_mul(self.start, -PULL)  # μ (v − w̄), without μ v: the optimiser adds it
        super().train(client)
        with torch.no_grad():
            torch._foreach_copy_(self.personal[client], self.own_parameters)

    def step(self, x: Tensor, y: Tensor) -> None:
        super().step(x, y)
        self.own_optimizer.zero_grad(set_to_none=True)
        cross_entropy(self.own(x), y).backward()  # type: ignore[no-untyped-call]
        torch._foreach_add_([p.grad for p in self.own_parameters if p.grad is not None], list(self.towards))
        self.own_optimizer.step()


MEMORIES: dict[str, tuple[type[Algorithm], Callable[[Workload, Federation], SliceLoop]]] = {
    "SCAFFOLD": (ControlVariates, ControlVariatesLoop),
    "Ditto": (Ditto, DittoLoop),
}
