"""A learning problem whose constants are known, so that the theorems' bounds can be evaluated for runs on it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedkin.data.federation import Federation
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Model
from fedkin.types import Floats

Notify = Callable[[str], None]  # called with what is being computed


@dataclass(frozen=True, eq=False)
class Problem:
    """A federation with its constants; P parameters, C clients.

    optimum   w*, (P,), and minimum F* = F(w*)
    value     w (P,) → F(w) = Σ pᵢ fᵢ(w), with the graph's degrees p
    gradient  w (P,) → ∇F(w), (P,)
    variance  points (n, C, P), E → the largest E‖g − ∇fᵢ‖² there, if the client's samples are partitioned at random
              into E batches
    """

    federation: Federation
    model: Model
    graph: SimilarityGraph
    l2: float
    L: float
    mu: float
    Gamma: float
    optimum: Floats
    minimum: float
    value: Callable[[Floats], float]
    gradient: Callable[[Floats], Floats]
    variance: Callable[[Tensor, int], float]

    @property
    def p(self) -> Floats:
        """The weights of the clients, (C,)."""
        return self.graph.degrees
