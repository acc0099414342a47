"""FedAvg, FedProx and FedKin: one local step with three hyper-parameters.

    w ← w − γ · ( ∇fᵢ( β·w + (1−β)·uᵢ ) + α·(w − w̄) )

β = 1, α = 0 is FedAvg, β = 1, α > 0 is FedProx, β < 1, α = 0 is the paper's algorithm, here called FedKin.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from fedkin.algorithms.base import Algorithm, Gradient, Hyper, ServerState, Vector, Vectors, check_range
from fedkin.algorithms.local import Local
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.errors import BadInput
from fedkin.graph.similarity import mixed
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class FedKin(Algorithm):
    """w ← w − γ (∇fᵢ(β w + (1−β) uᵢ) + α (w − w̄)), where uᵢ = Σₙ (p_in/pᵢ) wₙ averages the neighbours' last models.

    beta    β ∈ (0, 1]; at 1 neighbours have no influence
    alpha   α ≥ 0, coefficient of the proximal term; 0 in the paper
    absent  model of a neighbour that was not sampled in the last round: `global`, or the `last` model it sent (the
            global model if it has not sent any)

    The server state `models` has the last models of clients. Missing neighbours are replaced by w̄ with the weight
    1 − Σₙ p_in/pᵢ over the others, so that Σ pᵢ uᵢ = w̄ (Lemma 1) for any sampled clients.
    """

    neutral = {"beta": 1.0, "alpha": 0.0}  # noqa: RUF012 - a constant
    beta: Hyper = 0.5
    alpha: Hyper = 0.0
    absent: str = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.beta, "beta", above=0, at_most=1)
        check_range(self.alpha, "alpha", at_least=0)
        if self.absent not in ("global", "last"):
            raise BadInput(f"unknown absent '{self.absent}': choose global or last")

    def start(self, model: Tensor, round: Round) -> ServerState:
        return {"model": model, "models": ClientRows(model)}  # no last models yet, so u = w̄

    def send(self, server: ServerState, round: Round) -> Tensors:
        got = super().send(server, round)
        if round.graph.has_edges:  # without edges u = w̄
            models: ClientRows = server["models"]
            rows = round.graph.mixing_rows(round.who, models.owners)
            anchor, rest = mixed(rows, models.values), 1 - rows.sum(axis=1)
            if abs(rest).max() > 1e-12:  # some neighbours are absent
                # In place: allocating a temporary tensor of this size is as slow as the sum.
                anchor.addcmul_(anchor.new_tensor(rest).unsqueeze(-1), server["model"])
            got["anchor"] = anchor
        return got

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        u = got.get("anchor", got["model"])
        pull = self.alpha * (w - got["model"])
        return w - self.step_size * (gradient(self.beta * w + (1 - self.beta) * u) + pull), memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        kept = server["models"] if self.absent == "last" else ClientRows(server["model"])
        return {**super().combine(server, replies, round), "models": kept.updated(round.who, replies["model"])}


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
