"""The paper's family: FedAvg, FedProx, FedKin and FedSGD are one local rule with three knobs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedkin.algorithms.base import Algorithm, Hyper, Who, average, check_range
from fedkin.algorithms.local import Local
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph, mixed
from fedkin.types import Tensors


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """w ← w − γ ∇fᵢ(w), then w̄ ← Σ pᵢ wᵢ."""


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    """w ← w − γ (∇fᵢ(w) + α (w − w̄)): clients are held near the global model.

    alpha  α ≥ 0; 0 is FedAvg
    """

    neutral = {"alpha": 0.0}  # noqa: RUF012
    alpha: Hyper = 0.1  # type: ignore[misc]  # a knob here, fixed in the family

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.alpha, "alpha", at_least=0)


@dataclass(frozen=True, kw_only=True)
class FedKin(Algorithm):
    """w ← w − γ ∇fᵢ(β w + (1−β) uᵢ), where uᵢ = Σₙ (p_in/pᵢ) wₙ averages the last models of i's neighbours.

    beta    β ∈ (0, 1]; 1 is FedAvg
    absent  what a neighbour that was not in the last round counts as: the `global` model, or the `last` model it
            sent (the global one until it has sent any)

    The server keeps the models it may still need: `owners` says whose they are. What a client's neighbourhood lacks
    in it is taken of the new w̄, so that Σ pᵢ uᵢ = w̄ holds (Lemma 1) however few took part.
    """

    neutral = {"beta": 1.0}  # noqa: RUF012
    beta: Hyper = 0.5  # type: ignore[misc]  # a knob here, fixed in the family
    absent: str = "global"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self.beta, "beta", above=0, at_most=1)
        if self.absent not in ("global", "last"):
            raise BadInput(f"unknown absent '{self.absent}': choose global or last")

    def start(self, model: Tensor, clients: int) -> Tensors:
        """w̄, and nobody's last model yet: every u starts as w̄."""
        nobody = torch.zeros(0, dtype=torch.int64, device="cpu")
        return {
            "model": model,
            "owners": nobody,
            "models": model.new_zeros(*model.shape[:-1], 0, model.shape[-1]),
        }

    def send(self, server: Tensors, graph: SimilarityGraph, who: Who) -> Tensors:
        """w̄, and each client's own uᵢ unless the graph has no edges (then u = w̄ and need not be sent)."""
        got = super().send(server, graph, who)
        if graph.has_edges:
            rows = graph.mixing_rows(who, server["owners"].numpy())
            anchor, rest = mixed(rows, server["models"]), 1 - rows.sum(axis=1)
            if abs(rest).max() > 1e-12:  # somebody's neighbour is absent
                # In place: temporary tensors of this size would be fetched from the system page by page.
                anchor.addcmul_(anchor.new_tensor(rest).unsqueeze(-1), server["model"].unsqueeze(-2))
            got["anchor"] = anchor
        return got

    def combine(self, server: Tensors, replies: Tensors, who: Who, p: Tensor) -> Tensors:
        """Average, and keep the models sent, in the order of their owners' numbers (`who` ascends)."""
        owners, models = torch.as_tensor(who, device="cpu"), replies["model"]
        if self.absent == "last":
            kept = ~torch.isin(server["owners"], owners)
            owners = torch.cat([server["owners"][kept], owners])
            models = torch.cat([server["models"][..., kept, :], models], dim=-2)
            order = torch.argsort(owners)
            owners, models = owners[order], models[..., order, :]
        return {"model": average(p, replies["model"]), "owners": owners, "models": models}


@dataclass(frozen=True, kw_only=True)
class FedSGD(Algorithm):
    """One gradient step a round on all of the client's data: w̄ ← w̄ − γ Σ pᵢ ∇fᵢ(w̄). Epochs and batches play no part."""

    def work(self, local: Local) -> Local:
        """A single step on a single batch."""
        return replace(local, epochs=1, steps=1, batch_size=None)
