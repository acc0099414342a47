"""One global model, corrected for clients that drift apart: SCAFFOLD, FedNova, FedDyn."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Hyper, ServerState, Vector, Vectors, check_range
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.search import Between
from fedkin.algorithms.server_optimizers import beyond
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(Algorithm):
    """y ← y − γ (∇fᵢ(y) − cᵢ + c) from x; then cᵢ moves by δᵢ = (x − y)/(Kγ) − c, x by η Σ pᵢ(yᵢ − x), c by Σ δᵢ/N.

    After K steps (x − y)/(Kγ) is the mean of ∇fᵢ(y) − cᵢ + c, so that cᵢ + δᵢ is the mean of ∇fᵢ(y): option II of
    Karimireddy et al. 2020. The sum is over the sampled clients, N is the number of all clients: c stays the mean of
    all cᵢ, in which clients count alike whatever their weights pᵢ.

    server_step  η > 0
    """

    plain_steps = True
    server_step: Hyper = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.server_step, "server_step", above=0)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "control": torch.zeros_like(model)}

    def remember(self, model: Tensor) -> Tensors:
        return {"control": torch.zeros_like(model)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {name: round.spread(value) for name, value in server.items()}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) - memory["control"] + got["control"]), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        change = (got["model"] - w) / (steps * self.step_size) - got["control"]
        return {"model": w, "change": change}, {"control": memory["control"] + change}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        average = round.average(replies["model"])
        update = average - server["model"]
        control = server["control"] + replies["change"].sum(-2, keepdim=True) / round.clients
        return {"model": beyond(average, update, self.server_step * update), "control": control}


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    """FedAvg whose updates count per step: x ← x + τ Σ pᵢ(yᵢ − x)/τᵢ after τᵢ steps, τ = Σ pᵢτᵢ (Wang et al. 2020).

    With as many steps at every client it is FedAvg. Of the published forms this is the one for plain SGD at the client.
    """

    plain_steps = True

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, "steps": steps.expand(*w.shape[:-1], 1)}, memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        steps = replies["steps"]
        most = steps.amax(-2, keepdim=True)
        effective = most + round.average(steps - most)  # so that it is the number itself if all are the same
        correction = round.average((effective / steps - 1) * (replies["model"] - server["model"]))
        return {"model": round.average(replies["model"]) + correction}


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    """y ← y − γ (∇fᵢ(y) − hᵢ + α (y − x)) from x, then hᵢ ← hᵢ − α (y − x) (Acar et al. 2021).

    The server has h ← h − α/N Σ (yᵢ − x), and x ← mean(yᵢ) − h/α. Sum and mean are over the sampled clients, N is the
    number of all clients; clients count alike whatever their weights.

    alpha  α > 0
    """

    search = {**Algorithm.search, "alpha": Between(1e-3, 1.0)}  # noqa: RUF012 - a constant
    alpha: Hyper = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.alpha, "alpha", above=0)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "gradient": torch.zeros_like(model)}

    def remember(self, model: Tensor) -> Tensors:
        return {"gradient": torch.zeros_like(model)}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        pull = self.alpha * (w - got["model"])
        return w - self.step_size * (gradient(w) - memory["gradient"] + pull), memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w}, {"gradient": memory["gradient"] - self.alpha * (w - got["model"])}

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        mean = replies["model"].mean(-2, keepdim=True)
        h = server["gradient"] - self.alpha * (len(round) / round.clients) * (mean - server["model"])
        return {"model": mean - h / self.alpha, "gradient": h}
