"""The paper's family: FedAvg, FedProx and FedKin are one local rule with four knobs.

    start   wᵢ ← κ·uᵢ + (1−κ)·w̄
    step    w ← w − γ · ( ∇fᵢ( β·w + (1−β)·uᵢ ) + α·(w − start) )

β = 1, α = κ = 0 is FedAvg; α > 0 is FedProx; β < 1 is the paper's algorithm, which we call FedKin: clients learn from
their kin. With κ = 1 a client starts its rounds at the average of its kin, and has a model of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Hyper, ServerState, Vector, Vectors, check_range
from fedkin.algorithms.kinship import (
    KIN_SOURCES,
    kin_average,
    kin_weights,
    learn_directions,
    no_directions,
    place_newcomers,
    renewed_kin,
)
from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.algorithms.schedules import Schedule
from fedkin.algorithms.search import Between
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Tensors

SAFE_BETA = 0.9  # no measurable loss with momentum or Adam on a small network: `fedkin reproduce momentum`


@dataclass(frozen=True, kw_only=True)
class FedKin(Algorithm):
    """w ← w − γ (∇fᵢ(β w + (1−β) uᵢ) + α (w − start)) from start = κ uᵢ + (1−κ) w̄, where uᵢ averages i's kin.

    beta        β ∈ (0, 1]; 1 leaves the kin out of the gradients, 0.5 is the lowest of the paper
    alpha       α ≥ 0 holds clients near their start; 0 is the paper's algorithm
    kappa       κ ∈ [0, 1]; 0 is the paper's algorithm, 1 starts at the kin: then the model a client uses is uᵢ
    kin         whose last models uᵢ averages. `graph`: the neighbours in the graph, uᵢ = Σₙ (p_in/pᵢ) wₙ, as in the
                paper; `data`: the clients with the strongest edges of the graph; `updates`: those whose first update
                has the most similar direction, which takes no message; `both`: the nearest by the sum of their ranks in
                these two. In the last three a client is its own kin.
    neighbours  k, how many nearest count with `data`, `updates` and `both`, from either side
    renew       with `updates` and `both`: rounds after which the nearest are found anew, by the directions of the
                clients' last models from w̄ (0: never)
    absent      what a neighbour that was not in the last round counts as: the `global` model, or the `last` model it
                sent (the global one until it has sent any)

    What a client's kin lack in models is taken of the new w̄, so that with the paper's graph Σ pᵢ uᵢ = w̄ holds (Lemma 1)
    however few clients are sampled.
    """

    neutral = {"beta": 1.0, "alpha": 0.0, "kappa": 0.0}  # noqa: RUF012 - a constant
    search = {**Algorithm.search, "beta": Between(0.3, 1.0, linear=True)}  # noqa: RUF012 - a constant
    beta: Hyper = SAFE_BETA
    alpha: Hyper = 0.0
    kappa: Hyper = 0.0
    kin: str = "graph"
    neighbours: int = 24
    renew: int = 0
    absent: str = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.beta, "beta", above=0, at_most=1)
        check_range(self.alpha, "alpha", at_least=0)
        check_range(self.kappa, "kappa", at_least=0, at_most=1)
        if self.kin not in KIN_SOURCES:
            raise BadInput(f"unknown kin '{self.kin}': choose {', '.join(KIN_SOURCES)}")
        if self.neighbours < 1:
            raise BadInput(f"neighbours = {self.neighbours} is out of range: a client has at least 1 as its kin")
        if self.renew < 0:
            raise BadInput(f"renew = {self.renew} is out of range: give a number of rounds, or 0 for never")
        if self.absent not in ("global", "last"):
            raise BadInput(f"unknown absent '{self.absent}': choose global or last")

    @property
    def _learns(self) -> bool:
        """Whether kin are found from updates."""
        return self.kin in ("updates", "both")

    @property
    def is_personal(self) -> bool:
        return not _is(self.kappa, 0.0)

    def caution(self, local: Local) -> str | None:
        if local.optimizer == "sgd" or _lowest(self.beta) >= SAFE_BETA:
            return None
        return (
            f"beta below {SAFE_BETA} with {local.optimizer}: clients go far in a round, and overshoot their minimum "
            f"by up to 1/beta: set beta to {SAFE_BETA} or more, or local.optimizer = 'sgd'"
        )

    def start(self, model: Tensor, round: Round) -> ServerState:
        server: ServerState = {"model": model, "models": ClientRows(model)}  # no models yet: every u starts as w̄
        return {**server, **no_directions(model, round.clients)} if self._learns else server

    def send(self, server: ServerState, round: Round) -> Tensors:
        got = super().send(server, round)
        if self.kin == "graph" and not round.graph.has_edges:  # u = w̄, and need not be sent
            return got
        among = server["models"].owners
        u = kin_average(server, kin_weights(server, round, self.kin, self.neighbours, among))
        if not _is(self.kappa, 0.0):
            got["model"] = u if _is(self.kappa, 1.0) else got["model"] + self.kappa * (u - got["model"])
        if not (_is(self.kappa, 1.0) or (self.is_personal and _is(self.beta, 1.0))):
            got["anchor"] = u
        return got

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        u = got.get("anchor", got["model"])
        pull = self.alpha * (w - got["model"])
        return w - self.step_size * (gradient(self.beta * w + (1 - self.beta) * u) + pull), memory

    def needs_only_average(self, graph: SimilarityGraph) -> bool:
        """Without edges there is no kin, and the models that the server keeps are not used."""
        return self.sends_only_model and self.kin == "graph" and not graph.has_edges

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        kept = server["models"] if self.absent == "last" else ClientRows(server["model"])
        new: ServerState = {
            **super().combine(server, replies, round),
            "models": kept.updated(round.who, replies["model"]),
        }
        if not self._learns:
            return new
        new |= learn_directions(server, replies, round)
        is_due = self.renew and (round.number + 1) % self.renew == 0
        return {**new, "nearest": renewed_kin(new, round)} if is_due else new

    def kin_weights(self, server: ServerState, round: Round) -> csr_array | None:
        if not self.is_personal or (self.kin == "graph" and not round.graph.has_edges):
            return None
        return csr_array(kin_weights(server, round, self.kin, self.neighbours, np.arange(round.clients))[0])

    def invite(self, server: ServerState, round: Round) -> Tensors | None:
        return self.send(self.start(server["first"], round), round) if self._learns else None

    def welcome(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        return place_newcomers(server, replies, round)


def _lowest(knob: Hyper) -> float:
    """The lowest value of a knob, in all rounds or lanes."""
    if isinstance(knob, Schedule):
        return min(knob.values)
    return float(knob.min()) if isinstance(knob, torch.Tensor) else float(knob)


def _is(knob: Hyper, value: float) -> bool:
    """Whether a knob has this value, in all lanes."""
    return bool((knob == value).all()) if isinstance(knob, torch.Tensor) else knob == value


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """w ← w − γ ∇fᵢ(w), then w̄ ← Σ pᵢ wᵢ."""

    def general(self) -> Algorithm:
        return FedKin(step_size=self.step_size, beta=1.0) if type(self) is FedAvg else self


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """w ← w − γ (∇fᵢ(w) + α (w − w̄)), the gradient step on fᵢ(w) + α/2 ‖w − w̄‖².

    alpha  α ≥ 0, coefficient of the proximal term; 0 is FedAvg
    """

    neutral = {"alpha": 0.0}  # noqa: RUF012 - a constant
    search = {**Algorithm.search, "alpha": Between(1e-3, 1.0)}  # noqa: RUF012 - a constant
    alpha: Hyper = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.alpha, "alpha", at_least=0)

    def general(self) -> Algorithm:
        return FedKin(step_size=self.step_size, beta=1.0, alpha=self.alpha) if type(self) is FedProx else self

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (gradient(w) + self.alpha * (w - got["model"])), memory


@dataclass(frozen=True, kw_only=True)
class FedSGD(Algorithm):
    """w̄ ← w̄ − γ Σ pᵢ ∇fᵢ(w̄): one full-batch step per round. Epochs and batch size have no effect."""

    def work(self, local: Local) -> Local:
        return replace(local, epochs=1, steps=1, batch_size=None)
