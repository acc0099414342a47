"""A federation of quadratics, fᵢ(w) = ½ (w − cᵢ)ᵀ Hᵢ (w − cᵢ): every constant of the theory is known exactly.

The engine trains it like any other federation: a client has one sample, the pair (cᵢ, Hᵢ), so its gradients are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedkin.data.federation import Federation, from_rows
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import CROSS_ENTROPY, Loss
from fedkin.paper.problem import Problem


@dataclass(frozen=True)
class Quadratic:
    """½ (w − c)ᵀ H (w − c): a sample x is c followed by the rows of H; labels are not used.

    begin  the first w̄, (d,)
    """

    begin: tuple[float, ...]
    parallel: bool = field(default=True, init=False, repr=False)
    loss: Loss = field(default=CROSS_ENTROPY, init=False, repr=False)  # of scores, which it does not have

    @property
    def size(self) -> int:
        """The dimension d of w."""
        return len(self.begin)

    def start(self, seed: int) -> Tensor:
        return torch.tensor(self.begin, dtype=torch.float32)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        raise TypeError("a quadratic has no classes to score")

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Σ_b weight_b · H_b (w − c_b)."""
        c, H = x[..., : self.size], x[..., self.size :].reshape(*x.shape[:-1], self.size, self.size)
        return torch.einsum("...b,...bij,...bj->...i", weight, H, w.unsqueeze(-2) - c)


def quadratic_problem(centres: ArrayLike, curvatures: ArrayLike, graph: SimilarityGraph, begin: ArrayLike) -> Problem:
    """Clients fᵢ(w) = ½ (w − cᵢ)ᵀ Hᵢ (w − cᵢ), with all constants exact.

    centres     cᵢ, (C, d)
    curvatures  Hᵢ, (C, d, d), symmetric. Some may be indefinite, and then μ = 0, as long as Σ pᵢ Hᵢ is positive.
    begin       the first w̄, (d,)
    """
    c, H = np.asarray(centres, dtype=np.float64), np.asarray(curvatures, dtype=np.float64)
    w0, p = np.asarray(begin, dtype=np.float64), graph.degrees
    clients, d = c.shape
    if H.shape != (clients, d, d) or w0.shape != (d,) or len(graph) != clients:
        raise BadInput(
            f"centres of shape {c.shape}, curvatures of shape {H.shape}, a start of shape {w0.shape} and a graph of "
            f"{len(graph)} clients do not fit: give (C, d), (C, d, d), (d,) and C"
        )
    eigenvalues = np.linalg.eigvalsh(H)
    mean = np.einsum("c,cij->ij", p, H)
    if not np.linalg.eigvalsh(mean)[0] > 0:
        raise BadInput("the mean curvature Σ pᵢ Hᵢ is not positive: the federation has no minimum")
    optimum = np.linalg.solve(mean, np.einsum("c,cij,cj->i", p, H, c))

    def value(w: np.ndarray) -> float:
        return float(np.einsum("c,ci,cij,cj->", p, w - c, H, w - c)) / 2

    samples = torch.as_tensor(np.concatenate([c, H.reshape(clients, d * d)], axis=1), dtype=torch.float32)
    rows = from_rows(samples, torch.zeros(clients, dtype=torch.int64), np.ones(clients, dtype=np.int64))
    width = samples.shape[1]
    federation = Federation(rows, rows, 1, (width,), torch.zeros(width), torch.ones(width), "quadratic")
    minimum = value(optimum)
    mu = max(float(eigenvalues.min()), 0.0)
    return Problem(
        federation,
        Quadratic(tuple(w0.tolist())),
        graph,
        0.0,
        float(np.abs(eigenvalues).max()),
        mu,
        max(minimum, 0.0) if eigenvalues.min() >= 0 else float("inf"),  # an indefinite fᵢ has no minimum
        optimum,
        minimum,
        value,
        lambda w: np.asarray(mean @ (w - optimum)),
        lambda points, E: 0.0,
    )


# -- the federation of the report --------------------------------------------------------------------------------------

# Two pairs of clients, one flat and one steep, with different centres. The graph determines the effect of β.
CURVATURES = np.array([0.1, 0.1, 1.0, 1.0])[:, None, None]
CENTRES = np.array([[-1.0], [-1.2], [1.0], [1.3]])
BEGIN = np.array([3.0])
PAIRS = {
    "kin": [(0, 1), (2, 3)],  # flat with flat, steep with steep
    "strangers": [(0, 2), (1, 3)],  # flat with steep
    "uniform": [(i, n) for i in range(4) for n in range(i)],
    "global": [],  # u = w̄
}


def two_pairs(graph: str) -> Problem:
    """The two pairs of clients, with a graph of `PAIRS`."""
    return quadratic_problem(CENTRES, CURVATURES, pairs_graph(PAIRS[graph]), BEGIN)


def pairs_graph(edges: Sequence[tuple[int, int]], clients: int = 4) -> SimilarityGraph:
    """A graph with the given edges, all of weight 1."""
    adjacency = np.zeros((clients, clients))
    for i, n in edges:
        adjacency[i, n] = adjacency[n, i] = 1.0
    return SimilarityGraph(adjacency)
