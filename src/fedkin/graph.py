"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

Each client sends one unit vector mᵢ, the first principal component of its data. From these alone the server knows
which clients are kin. Everything here is float64: misalignments of alike clients are about 1e-4, of which
(1 − mᵢ·mₙ)/2 in float32 would keep hardly a digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, eigvalsh
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from scipy.spatial.distance import pdist, squareform

from fedkin.errors import BadInput
from fedkin.federation import Federation

Floats = NDArray[np.float64]

# Below this misalignment two messages differ by no more than the rounding of the eigenvector.
SAME = 1e-24
# Below this many rows or columns a dense eigenproblem is quicker than an iterative one.
DENSE = 64


def message(x: ArrayLike) -> Floats:
    """The message m of a client: the first principal component of its samples x (n, D), uncentred and unscaled.

    m is the top eigenvector of xᵀx, a unit vector. Its sign is arbitrary, so it is chosen to point to the side
    of the client's mean sample, m·x̄ ≥ 0; should that be a tie, its largest entry is positive. The rule looks at
    this client alone.

    >>> message([[3.0, 0.0], [0.0, 1.0]])
    array([1., 0.])
    """
    x = np.asarray(x, dtype=np.float64)
    if not x.any():
        raise BadInput("a client whose samples are all zero has no principal component: leave that client out")
    m = x[0] if len(x) == 1 else _top_right_singular_vector(x)
    m = m / np.linalg.norm(m)
    mean = x.mean(axis=0)
    side = m @ mean
    if abs(side) <= 1e-9 * np.linalg.norm(mean):
        side = m[np.argmax(np.abs(m))]
    return np.asarray(m if side > 0 else -m)


def _top_right_singular_vector(x: Floats) -> Floats:
    n, features = x.shape
    if min(n, features) > DENSE:
        try:
            # xᵀx is never formed: a few products with x are enough. The start vector and the generator (for when the
            # iteration has to start again) are fixed, so that the result is the same on every call.
            gram = LinearOperator((features, features), matvec=lambda v: x.T @ (x @ v), dtype=np.float64)
            _, vectors = eigsh(gram, k=1, v0=x.mean(axis=0) + 1e-3, rng=np.random.default_rng(0))
            return np.asarray(vectors[:, 0])
        except ArpackError:
            pass  # top eigenvalues too close to tell apart by iteration: the dense solver always answers
    smaller = x @ x.T if n < features else x.T @ x
    _, vectors = eigh(smaller, subset_by_index=[len(smaller) - 1] * 2)
    return np.asarray(x.T @ vectors[:, 0] if n < features else vectors[:, 0])


def messages(federation: Federation, pixels: str = "raw") -> Floats:
    """The messages of all training clients, (C, D), from their raw features or the preprocessed ones."""
    clients = federation.train
    rows = []
    for i in range(len(clients)):
        x = federation.raw(i) if pixels == "raw" else clients.x[clients.rows(i)]
        try:
            rows.append(message(x.cpu().numpy()))
        except BadInput as error:
            raise BadInput(f"training client {i}: {error}") from None
    return np.stack(rows)


@dataclass(frozen=True, eq=False)
class SimilarityGraph:
    """An undirected weighted graph over the C clients, given by its adjacency matrix A (C, C).

    pair_weights   p_in = A_in / Σ A
    degrees        pᵢ = Σₙ p_in, which sum to 1
    mixing         p_in / pᵢ: the rows by which a client averages its neighbours' models. The row of a client without
                   neighbours is zero; whatever a row lacks to 1 is taken of the global model.
    laplacian      diag(A1) − A
    spectrum       the Laplacian's eigenvalues, ascending
    """

    adjacency: Floats
    misalignment: Floats | None = None

    @classmethod
    def from_messages(cls, messages: ArrayLike, floor: float = 0.0) -> "SimilarityGraph":
        """The paper's graph: A_in = −ln mis(i, n) for i ≠ n, where mis(i, n) = (1 − mᵢ·mₙ)/2 = ‖mᵢ − mₙ‖²/4.

        Two clients with the same data have mis = 0 and would weigh infinitely. Unless a positive `floor` says what
        the smallest misalignment shall count as, that is an error.
        """
        m = np.asarray(messages, dtype=np.float64)
        pairs = np.clip(pdist(m, "sqeuclidean") / 4, 0.0, 1.0)
        if floor <= 0 and (pairs <= SAME).any():
            same = squareform(pairs <= SAME, checks=False)
            i, n = np.argwhere(same)[0]
            raise BadInput(
                f"training clients {i} and {n} hold the same data, up to scale, so their similarity is infinite: merge "
                "them, set graph.floor to the smallest misalignment that shall count (1e-6, say), or use another graph"
            )
        # a misalignment of 1 gives −ln 1 = −0.0: adding zero makes it a plain zero
        adjacency = squareform(-np.log(np.maximum(pairs, max(floor, SAME))) + 0.0)
        if not adjacency.any():
            raise BadInput("all clients' messages are opposite: no client has kin; use graph.kind = 'uniform'")
        return cls(adjacency, squareform(pairs))

    @classmethod
    def uniform(cls, clients: int) -> "SimilarityGraph":
        """All clients neighbours, all alike: u is the plain average of the others."""
        return cls(np.ones((clients, clients)) - np.eye(clients))

    @classmethod
    def edgeless(cls, clients: int) -> "SimilarityGraph":
        """No neighbours at all, so u = w̄ for everyone: needs no message, and nothing extra is downloaded."""
        return cls(np.zeros((clients, clients)))

    def relabelled(self, order: Sequence[int] | NDArray[np.int64]) -> "SimilarityGraph":
        """The same graph where client j takes the place of client `order[j]`."""
        places = np.asarray(order, dtype=np.int64)
        pick = np.ix_(places, places)
        mis = None if self.misalignment is None else self.misalignment[pick]
        return SimilarityGraph(self.adjacency[pick], mis)

    def __len__(self) -> int:
        return len(self.adjacency)

    @cached_property
    def has_edges(self) -> bool:
        """Whether any client has a neighbour."""
        return bool(self.adjacency.any())

    @cached_property
    def pair_weights(self) -> Floats:
        """p_in = A_in / 1ᵀA1, symmetric, (C, C)."""
        return self.adjacency / (self.adjacency.sum() or 1.0)

    @cached_property
    def degrees(self) -> Floats:
        """pᵢ = Σₙ p_in, (C,); uniform in a graph without edges."""
        return self.pair_weights.sum(axis=1) if self.has_edges else np.full(len(self), 1 / len(self))

    @cached_property
    def mixing(self) -> Floats:
        """p_in / pᵢ, rows that sum to 1, or to 0 for a client without neighbours, (C, C)."""
        strength = self.adjacency.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(self.adjacency, strength, out=np.zeros_like(self.adjacency), where=strength > 0))

    @property
    def laplacian(self) -> Floats:
        """diag(A1) − A, (C, C)."""
        return np.diag(self.adjacency.sum(axis=1)) - self.adjacency

    @cached_property
    def spectrum(self) -> Floats:
        """Eigenvalues of the Laplacian, ascending, the first one 0, (C,)."""
        return np.asarray(eigvalsh(self.laplacian))

    def mixing_rows(self, who: NDArray[np.int64], owners: NDArray[np.int64]) -> Floats:
        """How much clients `who` take of the models of clients `owners`, (len(who), len(owners))."""
        return self.mixing[np.ix_(who, owners)]

    def weights(self, scheme: str, sizes: NDArray[np.int64]) -> Floats:
        """The weights by which the server averages, (C,), summing to 1.

        adjacency   pᵢ, the degrees (the paper's)
        uniform     1/C
        samples     Nᵢ/N
        """
        match scheme:
            case "adjacency":
                return self.degrees
            case "uniform":
                return np.full(len(self), 1 / len(self))
            case "samples":
                return np.asarray(sizes / sizes.sum())
        raise BadInput(f"unknown weights '{scheme}': choose adjacency, uniform or samples")


def build_graph(
    federation: Federation,
    kind: str = "similarity",
    *,
    pixels: str = "raw",
    floor: float = 0.0,
    seed: int = 0,
) -> SimilarityGraph:
    """The graph of a federation.

    similarity  the paper's, from the clients' messages
    shuffled    the same graph with the clients relabelled at random: as uneven, but blind
    uniform     all neighbours alike
    global      no neighbours: u = w̄ for everyone
    """
    clients = len(federation.train)
    match kind:
        case "uniform":
            return SimilarityGraph.uniform(clients)
        case "global":
            return SimilarityGraph.edgeless(clients)
        case "similarity" | "shuffled":
            graph = SimilarityGraph.from_messages(messages(federation, pixels), floor)
            if kind == "shuffled":
                graph = graph.relabelled(np.random.default_rng([seed, 0x5AFF1E]).permutation(clients))
            return graph
    raise BadInput(f"unknown graph '{kind}': choose similarity, uniform, shuffled or global")
