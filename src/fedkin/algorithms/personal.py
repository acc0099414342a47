"""Algorithms with a model for every client, to compare with: training alone, fine-tuning, and IFCA."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Hyper, Losses, ServerState, check_range
from fedkin.algorithms.family import FedAvg
from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.search import Between, OneOf
from fedkin.errors import BadInput
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Alone(Algorithm):
    """wᵢ ← wᵢ − γ ∇fᵢ(wᵢ): every client trains its own model. What others send does not matter."""

    exchanges = False

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        return {"model": memory["own"]}, {}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w}, {"own": w}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True)
class Tuning:
    """Fine-tuning of any model on a client's own samples: w ← w − σγ ∇fᵢ(w) for a number of epochs.

    epochs  e ≥ 1
    step    σ, the step size in units of γ
    """

    epochs: int = 5
    step: Hyper = 1.0

    def __post_init__(self) -> None:
        check_range(self.step, "the step of fine-tuning", above=0)
        if self.epochs < 1:
            raise BadInput(f"{self.epochs} epochs of fine-tuning are out of range: give at least 1")

    def of(self, step_size: Hyper, local: Local) -> tuple[Algorithm, Local]:
        """The algorithm that tunes, and its local training, where clients train with step size γ."""
        tuning = object.__new__(FedAvg)  # in lanes the product is a tensor, which was checked entry by entry
        object.__setattr__(tuning, "step_size", step_size * self.step)
        return tuning, replace(local, epochs=self.epochs, steps=None, most_steps=None)


@dataclass(frozen=True, kw_only=True)
class FineTuned(FedAvg):
    """FedAvg; before it uses the global model, each client takes `tuning_epochs` epochs from it on its own samples.

    tuning_epochs  e ≥ 1
    tuning_step    step size of fine-tuning in units of γ
    """

    search = {  # noqa: RUF012 - a constant
        **Algorithm.search, "tuning_epochs": OneOf((1, 2, 5, 10)), "tuning_step": Between(0.1, 3.0),
    }  # fmt: skip
    tuning_epochs: int = 5
    tuning_step: Hyper = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.tuning_step, "tuning_step", above=0)
        if self.tuning_epochs < 1:
            raise BadInput(f"tuning_epochs = {self.tuning_epochs} is out of range: it must be at least 1")

    def adaptation(self, local: Local) -> tuple[Algorithm, Local]:
        return Tuning(self.tuning_epochs, self.tuning_step).of(self.step_size, local)


@dataclass(frozen=True, kw_only=True)
class IFCA(Algorithm):
    """k models: a client takes the one with the smallest loss on its samples; each is averaged over its clients.

    groups  k, the number of models (Ghosh et al. 2020)
    spread  the models start at w̄ plus Gaussian noise of this standard deviation
    """

    search = {**Algorithm.search, "groups": OneOf((2, 3, 4, 6))}  # noqa: RUF012 - a constant
    groups: int = 4
    spread: Hyper = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.spread, "spread", above=0)
        if self.groups < 1:
            raise BadInput(f"groups = {self.groups} is out of range: it must be at least 1")

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
        parts = [memory["choice"][..., j : j + 1] * got[f"{j}"] for j in range(self.groups)]
        return torch.stack(parts).sum(0)
