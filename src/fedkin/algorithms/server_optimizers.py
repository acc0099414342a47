"""FedAvg with an optimizer at the server, which takes the mean update of the clients as its gradient."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Hyper, ServerState, check_range
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.search import Between
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(Algorithm):
    """x ← x + η d, where the direction d follows from the mean update Δ = Σ pᵢ(yᵢ − x) and the server's state."""

    server_step: Hyper = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.server_step, "server_step", above=0)

    @abstractmethod
    def direction(self, update: Tensor, server: ServerState) -> tuple[Tensor, ServerState]:
        """The direction d, and the state of the optimizer after it."""

    def needs_only_average(self, graph: SimilarityGraph) -> bool:
        return self.sends_only_model

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        average = round.average(replies["model"])
        update = average - server["model"]
        direction, state = self.direction(update, server)
        return {"model": beyond(average, update, self.server_step * direction), **state}


def beyond(average: Tensor, update: Tensor, move: Tensor) -> Tensor:
    """X + move, where average = x + update; the average itself, to the bit, if the move is the update."""
    return average + (move - update)


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """v ← μ v + Δ, then x ← x + η v, where Δ = Σ pᵢ(yᵢ − x) (Hsu, Qi and Brown 2019).

    server_step      η > 0
    server_momentum  μ in [0, 1); 0 with η = 1 is FedAvg
    """

    search = {**Algorithm.search, "server_step": Between(0.1, 3.0), "server_momentum": Between(0.5, 0.95, linear=True)}  # noqa: RUF012 - a constant
    neutral = {"server_momentum": 0.0, "server_step": 1.0}  # noqa: RUF012 - a constant
    server_momentum: Hyper = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.server_momentum, "server_momentum", at_least=0, below=1)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "velocity": torch.zeros_like(model)}

    def direction(self, update: Tensor, server: ServerState) -> tuple[Tensor, ServerState]:
        velocity = self.server_momentum * server["velocity"] + update
        return velocity, {"velocity": velocity}


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(ServerOptimizer):
    """v ← v + Δ², then x ← x + η Δ/(√v + τ), where Δ = Σ pᵢ(yᵢ − x) (Reddi et al. 2021). v starts at τ².

    server_step  η > 0
    tau          τ > 0, the degree of adaptivity: steps of parameters that have moved little are at most ηΔ/τ
    """

    search = {**Algorithm.search, "server_step": Between(1e-3, 1.0), "tau": Between(1e-4, 0.1)}  # noqa: RUF012 - a constant
    server_step: Hyper = 0.01
    tau: Hyper = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.tau, "tau", above=0)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "square": torch.zeros_like(model) + self.tau * self.tau}

    def direction(self, update: Tensor, server: ServerState) -> tuple[Tensor, ServerState]:
        square = server["square"] + update**2
        return update / (square.sqrt() + self.tau), {"square": square}


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedAdagrad):
    """m ← β₁ m + (1−β₁) Δ, v ← β₂ v + (1−β₂) Δ², x ← x + η m/(√v + τ), Δ = Σ pᵢ(yᵢ − x) (Reddi et al. 2021).

    server_step  η > 0
    tau          τ > 0; v starts at τ², and neither m nor v is corrected for its start
    beta1        β₁ in [0, 1)
    beta2        β₂ in [0, 1)
    """

    beta1: Hyper = 0.9
    beta2: Hyper = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.beta1, "beta1", at_least=0, below=1)
        check_range(self.beta2, "beta2", at_least=0, below=1)

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {**super().start(model, round), "mean": torch.zeros_like(model)}

    def direction(self, update: Tensor, server: ServerState) -> tuple[Tensor, ServerState]:
        mean = self.beta1 * server["mean"] + (1 - self.beta1) * update
        square = self.next_square(server["square"], update**2)
        return mean / (square.sqrt() + self.tau), {"square": square, "mean": mean}

    def next_square(self, square: Tensor, new: Tensor) -> Tensor:
        """V after a round with Δ² = new."""
        return self.beta2 * square + (1 - self.beta2) * new


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedAdam):
    """FedAdam with v ← v − (1−β₂) Δ² sign(v − Δ²), which changes by at most (1−β₂) Δ² (Reddi et al. 2021).

    server_step  η > 0
    tau          τ > 0; v starts at τ²
    beta1        β₁ in [0, 1)
    beta2        β₂ in [0, 1)
    """

    def next_square(self, square: Tensor, new: Tensor) -> Tensor:
        return square - (1 - self.beta2) * new * torch.sign(square - new)
