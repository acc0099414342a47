"""Algorithms with a model for every client, which it trains itself: alone, from the global model, or beside it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms.base import (
    Algorithm,
    Gradient,
    Hyper,
    Losses,
    ServerState,
    Vector,
    Vectors,
    check_range,
)
from fedkin.algorithms.family import FedAvg
from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.search import Between, OneOf
from fedkin.algorithms.server_optimizers import beyond
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class Alone(Algorithm):
    """wᵢ ← wᵢ − γ ∇fᵢ(wᵢ): every client trains its own model. What others send does not matter."""

    def exchanges(self, round: Round) -> tuple[bool, bool]:
        return False, False

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        return {"model": memory["own"]}, {}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w}, {"own": w}

    @property
    def sends_only_model(self) -> bool:
        return True  # not even that

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
        **Algorithm.search, "tuning_epochs": OneOf((1, 3, 10, 30)), "tuning_step": Between(0.1, 3.0),
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
    warm    rounds of FedAvg before that, with which groups that form are less a matter of chance
    """

    search = {**Algorithm.search, "groups": OneOf((2, 3, 4, 6))}  # noqa: RUF012 - a constant
    groups: int = 4
    spread: Hyper = 0.1
    warm: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.spread, "spread", above=0)
        if self.warm < 0:
            raise BadInput(f"warm = {self.warm} is out of range: it must be at least 0")
        if self.groups < 1:
            raise BadInput(f"groups = {self.groups} is out of range: it must be at least 1")

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "centers": self.centers(model, round)}

    def centers(self, model: Tensor, round: Round) -> Tensor:
        """Models around one, (…, k, P)."""
        noise = round.random("centers").standard_normal((self.groups, model.shape[-1]))
        return model + self.spread * model.new_tensor(noise)

    def remember(self, model: Tensor) -> Tensors:
        return {"choice": model.new_zeros(*model.shape[:-1], self.groups)}

    def send(self, server: ServerState, round: Round) -> Tensors:
        got = {"model": round.spread(server["model"])}
        if round.number < self.warm:
            return got
        return got | {f"{j}": round.spread(c) for j, c in enumerate(server["centers"].split(1, dim=-2))}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        if "0" not in got:
            return got, memory
        each = torch.cat([losses.mean(got[f"{j}"]) for j in range(self.groups)], dim=-1)
        choice = torch.nn.functional.one_hot(each.argmin(-1), self.groups).to(got["model"])
        return {"model": self.own(got, {"choice": choice})}, {"choice": choice}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        return {"model": w, "choice": memory["choice"]}, memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        share = replies["choice"].mT * replies["model"].new_tensor(round.weights)  # (…, k, m)
        mass = share.sum(-1, keepdim=True)
        averages = (share @ replies["model"]) / mass.clamp(min=1e-30)
        new = {**super().combine(server, replies, round), "centers": averages.where(mass > 0, server["centers"])}
        return {**new, "centers": self.centers(new["model"], round)} if round.number + 1 == self.warm else new

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        if "0" not in got:
            return got["model"]
        parts = [memory["choice"][..., j : j + 1] * got[f"{j}"] for j in range(self.groups)]
        return torch.stack(parts).sum(0)


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    """FedAvg for x; beside it every client has vᵢ, with v ← v − γ (∇fᵢ(v) + λ (v − x)) (Li et al. 2021).

    pull  λ ≥ 0, which draws a client's own model to the global one; at 0 it trains alone
    """

    search = {**Algorithm.search, "pull": Between(1e-3, 3.0)}  # noqa: RUF012 - a constant
    pull: Hyper = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.pull, "pull", at_least=0)

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v = memory["own"]
        v = v - self.step_size * (gradient(v) + self.pull * (v - got["model"]))
        return w - self.step_size * gradient(w), {"own": v}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm):
    """FedAvg for x; a client uses v̄ = a v + (1−a) x, with v ← v − γ a ∇fᵢ(a v + (1−a) w) (Deng et al. 2020).

    w is the client's copy of the global model, which takes its own steps w ← w − γ ∇fᵢ(w), as in Algorithm 1 of the
    publication: the global model is that of FedAvg, whatever the shares. (With both stepped by the gradient at v̄, as
    the rule is told at times, the global model would depend on what clients keep to themselves.) Both gradients are at
    the models before the step; the authors' code takes that at v̄ after w has moved.

    share     a in [0, 1]; 0 is FedAvg
    adaptive  whether each client adapts its a in every step, a ← a − γ ⟨v − w, ∇fᵢ(v̄)⟩, limited to [0, 1]. It takes an
              inner product, so that steps are computed on parameters, in the slower space.
    """

    search = {**Algorithm.search, "share": Between(0.1, 0.9, linear=True)}  # noqa: RUF012 - a constant
    neutral = {"share": 0.0}  # noqa: RUF012 - a constant
    share: Hyper = 0.5
    adaptive: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.share, "share", at_least=0, at_most=1)

    def remember(self, model: Tensor) -> Tensors:
        share = {"share": model.new_zeros(*model.shape[:-1], 1) + self.share} if self.adaptive else {}
        return {"own": model, **share}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        v: Any = memory["own"]
        a: Any = memory["share"] if self.adaptive else self.share
        g: Any = gradient(a * v + (1 - a) * w)
        changed = {"own": v - self.step_size * a * g}
        if self.adaptive:
            slope = ((v - w) * g).sum(-1, keepdim=True)
            changed["share"] = (a - self.step_size * slope).clamp(0, 1)
        return w - self.step_size * gradient(w), changed

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        a = memory["share"] if self.adaptive else self.share
        return a * memory["own"] + (1 - a) * got["model"]


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm):
    """θ ≈ argmin fᵢ(θ) + λ/2 ‖θ − y‖², then y ← y − γλ (y − θ), in every step from y = x (Dinh et al. 2020).

    θ takes a few steps on the batch, θ ← θ − σ (∇fᵢ(θ) + λ (θ − y)), from x in the first step of a round and else from
    the last θ. The server has x ← (1−b) x + b Σ pᵢyᵢ, and a client uses θ.

    pull         λ > 0
    inner_step   σ > 0
    inner_steps  how many steps θ takes
    server_step  b > 0
    aggregated   number of clients of a round whose y are averaged, drawn at random, as in the published code, where all
                 clients train in every round (0: all that train)
    uses         what a client uses: `theta`, or `y`, which the published code measures: it writes y over its θ first
    """

    search = {  # noqa: RUF012 - a constant
        **Algorithm.search,
        "step_size": Between(1e-3, 0.1),
        "pull": Between(1.0, 30.0),
        "inner_step": Between(3e-3, 0.3),
    }
    pull: Hyper = 15.0
    inner_step: Hyper = 0.05
    inner_steps: int = 5
    server_step: Hyper = 1.0
    aggregated: int = 0
    uses: str = "theta"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses not in ("theta", "y"):
            raise BadInput(f"uses = '{self.uses}' is no model of pFedMe's clients: choose theta or y")
        check_range(self.pull, "pull", above=0)
        check_range(self.inner_step, "inner_step", above=0)
        check_range(self.server_step, "server_step", above=0)
        if self.inner_steps < 1:
            raise BadInput(f"inner_steps = {self.inner_steps} is out of range: it must be at least 1")
        if self.aggregated < 0:
            raise BadInput(f"aggregated = {self.aggregated} is out of range: it must be at least 0")

    def remember(self, model: Tensor) -> Tensors:
        return {"own": model}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        return got, {"own": got["model"]}

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        theta = memory["own"]
        for _ in range(self.inner_steps):
            theta = theta - self.inner_step * (gradient(theta) + self.pull * (theta - w))
        return w - self.step_size * self.pull * (w - theta), {"own": theta}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        sent, kept = super().reply(w, got, memory, steps)
        return sent, {**kept, "own": w} if self.uses == "y" else kept

    def needs_only_average(self, graph: SimilarityGraph) -> bool:
        return self.sends_only_model and not self.aggregated

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        models = replies["model"]
        if 0 < self.aggregated < len(round):
            drawn = np.sort(round.random("aggregated").choice(len(round), self.aggregated, replace=False))
            round, models = round.of(round.who[drawn], round.weights[drawn]), models[..., drawn, :]
        average = round.average(models)
        update = average - server["model"]
        return {"model": beyond(average, update, self.server_step * update)}

    def own(self, got: Tensors, memory: Tensors) -> Tensor:
        return memory["own"]


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm):
    """y ← y − γ (I − a ∇²fᵢ(y)) g with g = ∇fᵢ(y − a ∇fᵢ(y)); a client uses x after one step (Fallah et al. 2020).

    That step has size a, on all samples of the client.

    inner_step  a ≥ 0; 0 is FedAvg
    variant     `fo`: first order, without the Hessian ∇²fᵢ; `hf`: Hessian-free, with
                ∇²fᵢ(y) g ≈ (∇fᵢ(y + δg) − ∇fᵢ(y − δg))/2δ
    delta       δ > 0 of `hf`; a small δ loses digits in single precision
    separate    whether the three derivatives are of batches of their own, as published: ∇fᵢ(y) of the current batch, g
                of the next, the Hessian of the one after it. Then steps are computed on parameters, in the slower
                space; else all are of the current batch.
    """

    search = {**Algorithm.search, "inner_step": Between(1e-3, 1.0)}  # noqa: RUF012 - a constant
    neutral = {"inner_step": 0.0}  # noqa: RUF012 - a constant
    inner_step: Hyper = 0.01
    variant: str = "fo"
    delta: Hyper = 0.01
    separate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.inner_step, "inner_step", at_least=0)
        check_range(self.delta, "delta", above=0)
        if self.variant not in ("fo", "hf"):
            raise BadInput(f"unknown variant '{self.variant}': choose fo or hf")

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        second, third = ((1,), (2,)) if self.separate else ((), ())
        g = gradient(w - self.inner_step * gradient(w), *second)
        if self.variant == "hf":
            ahead, behind = gradient(w + self.delta * g, *third), gradient(w - self.delta * g, *third)
            g = g - self.inner_step * (ahead - behind) / (2 * self.delta)
        return w - self.step_size * g, memory

    def adaptation(self, local: Local) -> tuple[Algorithm, Local]:
        tuning, _ = Tuning(1).of(self.inner_step, local)
        plain = replace(local, optimizer="sgd", weight_decay=0.0)
        return tuning, replace(plain, epochs=1, steps=1, batch_size=None)
