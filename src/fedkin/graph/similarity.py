"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

Each client sends one unit vector mᵢ, the first principal component of its data. From these vectors alone the server
computes which clients are kin. All values are float64: the misalignment of similar clients is about 1e-4, for which
(1 − mᵢ·mₙ)/2 in float32 has hardly a correct digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.linalg import eigh, eigvalsh
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from scipy.spatial.distance import pdist, squareform

from fedkin.data.federation import Federation
from fedkin.errors import BadInput
from fedkin.graph.search import nearest_neighbours
from fedkin.types import Floats, Integers

Matrix = Any  # (C, C) float64, an array or a sparse csr_array

# Two messages with a smaller misalignment differ only by the rounding error of the eigenvector.
SAME = 1e-24
# With fewer rows or columns a dense eigenproblem is faster than an iterative one.
DENSE = 64
# With more clients all pairs do not fit into memory, and the spectrum takes too long.
MANY = 5_000


def message(x: ArrayLike, sign: str = "paper") -> Floats:
    """The message m of a client: the first principal component of its samples x (n, D), uncentred and unscaled.

    m is the top eigenvector of xᵀx, a unit vector. Its sign is arbitrary and chosen so that m·x̄ ≥ 0 for the client's
    mean sample x̄; in case of a tie its largest entry is positive. The rule uses this client's data only. With
    `sign = "published"` the sign is that of the singular value decomposition of x in single precision, as in the
    published code: similar clients can then have opposite messages.

    >>> message([[3.0, 0.0], [0.0, 1.0]])
    array([1., 0.])
    """
    x = np.asarray(x, dtype=np.float64)
    if not x.any():
        raise BadInput("a client whose samples are all zero has no principal component: remove that client")
    m = x[0] if len(x) == 1 else _top_right_singular_vector(x)
    m = m / np.linalg.norm(m)
    if sign == "published":
        decomposed = torch.linalg.svd(torch.as_tensor(x, dtype=torch.float32), full_matrices=False)
        return np.asarray(m if m @ decomposed.Vh[0].double().numpy() > 0 else -m)
    mean = x.mean(axis=0)
    side = m @ mean
    if abs(side) <= 1e-9 * np.linalg.norm(mean):
        side = m[np.argmax(np.abs(m))]
    return np.asarray(m if side > 0 else -m)


def _top_right_singular_vector(x: Floats) -> Floats:
    n, features = x.shape
    if min(n, features) > DENSE:
        try:
            # xᵀx is never formed: a few products with x are enough. The start vector and the generator (for restarts of
            # the iteration) are fixed, so the result is the same on every call.
            gram = LinearOperator((features, features), matvec=lambda v: x.T @ (x @ v), dtype=np.float64)
            _, vectors = eigsh(gram, k=1, v0=x.mean(axis=0) + 1e-3, rng=np.random.default_rng(0))
            return np.asarray(vectors[:, 0])
        except ArpackError:
            pass  # the top eigenvalues are too close for the iteration: the dense solver always succeeds
    smaller = x @ x.T if n < features else x.T @ x
    _, vectors = eigh(smaller, subset_by_index=[len(smaller) - 1] * 2)
    return np.asarray(x.T @ vectors[:, 0] if n < features else vectors[:, 0])


def messages(federation: Federation, pixels: str = "auto", sign: str = "paper") -> Floats:
    """The messages of all training clients, (C, D), from their raw or preprocessed features.

    `auto`: raw pixels; features that were brought to a common scale, each in its own way, as preprocessed. In their raw
    units the one with the largest numbers would be the message.
    """
    clients = federation.train
    if pixels == "auto":
        pixels = "preprocessed" if federation.has_own_scales else "raw"
    rows = []
    for i in range(len(clients)):
        x = federation.raw(i) if pixels == "raw" else clients.x[clients.rows(i)]
        try:
            rows.append(message(x.cpu().numpy(), sign))
        except BadInput as error:
            raise BadInput(f"training client {i}: {error}") from None
    return np.stack(rows)


@dataclass(frozen=True, eq=False)
class SimilarityGraph:
    """An undirected weighted graph over the C clients, given by its adjacency matrix A (C, C), dense or sparse.

    pair_weights   p_in = A_in / Σ A
    degrees        pᵢ = Σₙ p_in, which sum to 1
    mixing         p_in / pᵢ: the weights with which client i averages its neighbours' models. The row of a client
                   without neighbours is zero; the global model has the weight by which a row falls short of 1.
    laplacian      diag(A1) − A
    spectrum       the Laplacian's eigenvalues, ascending
    """

    adjacency: Matrix
    misalignment: Floats | None = None

    @classmethod
    def from_messages(cls, messages: ArrayLike, floor: float = 0.0) -> "SimilarityGraph":
        """The paper's graph: A_in = −ln mis(i, n) for i ≠ n, where mis(i, n) = (1 − mᵢ·mₙ)/2 = ‖mᵢ − mₙ‖²/4.

        Two clients with the same data have mis = 0 and an infinite weight. This is an error unless a positive `floor`
        limits the misalignment from below.
        """
        m = np.asarray(messages, dtype=np.float64)
        if len(m) > MANY:
            raise BadInput(
                f"{len(m)} clients have too many pairs: set graph.neighbours to keep only the nearest neighbours"
            )
        pairs = np.clip(pdist(m, "sqeuclidean") / 4, 0.0, 1.0)
        if floor <= 0 and (pairs <= SAME).any():
            i, n = np.argwhere(squareform(pairs <= SAME, checks=False))[0]
            raise _identical(i, n)
        adjacency = squareform(similarity(pairs, floor))
        if not adjacency.any():
            raise BadInput("all clients' messages are opposite, so no client has kin: use graph.kind = 'uniform'")
        return cls(adjacency, squareform(pairs))

    @classmethod
    def nearest(
        cls, messages: ArrayLike, neighbours: int, floor: float = 0.0, search: str = "exact"
    ) -> "SimilarityGraph":
        """The paper's graph with only the edges between a client and the `neighbours` most similar to it.

        An edge is kept if either client is among the nearest of the other. The result is sparse: C·k numbers instead
        of C². Candidates are found in single precision, by comparing all pairs or with an approximate index; the
        nearest among them and their misalignments are computed in double precision.
        """
        clients = len(np.asarray(messages))
        near, squares = nearest_neighbours(messages, neighbours, search)
        i, n = np.repeat(np.arange(clients), near.shape[1]), near.reshape(-1)
        pairs = np.clip(squares.reshape(-1) / 4, 0.0, 1.0)
        if floor <= 0 and (same := pairs <= SAME).any():
            raise _identical(i[same][0], n[same][0])
        half = coo_array((similarity(pairs, floor), (i, n)), shape=(clients, clients)).tocsr()
        # An edge found from both ends has the same weight twice: the maximum is that weight.
        return cls(half.maximum(half.T).tocsr())

    @classmethod
    def uniform(cls, clients: int) -> "SimilarityGraph":
        """All pairs of clients with the same weight: u is the mean of the other clients' models."""
        if clients > MANY:
            raise BadInput(f"the mean of {clients} other models is almost the global model: use 'global'")
        return cls(np.ones((clients, clients)) - np.eye(clients))

    @classmethod
    def edgeless(cls, clients: int) -> "SimilarityGraph":
        """No neighbours, so u = w̄ for all clients: needs no messages and no extra download."""
        return cls(csr_array((clients, clients), dtype=np.float64))

    def tempered(self, temperature: float) -> "SimilarityGraph":
        """The same graph with edges (A_in / max A)^(1/temperature): a low temperature keeps only the strongest."""
        if temperature == 1 or not self.has_edges:
            return self
        sharper = SimilarityGraph((self.adjacency / self.adjacency.max()) ** (1 / temperature), self.misalignment)
        lost = (self.strengths > 0) & (sharper.strengths < np.finfo(np.float64).tiny)
        if lost.any():
            raise BadInput(
                f"graph.temperature = {temperature:g} leaves {lost.sum()} of {len(self)} clients without neighbours "
                f"(the first is client {np.argmax(lost)}), as their edges come to 0: raise it"
            )
        return sharper

    def relabelled(self, order: Sequence[int] | Integers) -> "SimilarityGraph":
        """The same graph with the clients in another order: new client j is old client `order[j]`."""
        places = np.asarray(order, dtype=np.int64)
        mis = None if self.misalignment is None else self.misalignment[np.ix_(places, places)]
        return SimilarityGraph(self.adjacency[places][:, places], mis)

    def __len__(self) -> int:
        return int(self.adjacency.shape[0])

    def __repr__(self) -> str:
        edges = int((self.adjacency > 0).sum()) // 2
        kept = "sparse" if isinstance(self.adjacency, csr_array) else "dense"
        return f"SimilarityGraph({len(self):,} clients, {edges:,} edges, {kept})"

    @property
    def strengths(self) -> Floats:
        """A1, the sums of the rows, (C,)."""
        return np.asarray(self.adjacency.sum(axis=1)).reshape(-1)

    @cached_property
    def has_edges(self) -> bool:
        """Whether any client has a neighbour."""
        return bool(self.strengths.any())

    @cached_property
    def pair_weights(self) -> Matrix:
        """p_in = A_in / 1ᵀA1, symmetric, (C, C)."""
        return self.adjacency / (self.strengths.sum() or 1.0)

    @cached_property
    def degrees(self) -> Floats:
        """pᵢ = Σₙ p_in, (C,); uniform in a graph without edges."""
        strengths = self.strengths
        return np.asarray(strengths / strengths.sum() if self.has_edges else np.full(len(self), 1 / len(self)))

    @cached_property
    def mixing(self) -> Matrix:
        """p_in / pᵢ, rows that sum to 1, or to 0 for a client without neighbours, (C, C)."""
        inverse = np.divide(1.0, self.strengths, out=np.zeros(len(self)), where=self.strengths > 0)
        if isinstance(self.adjacency, csr_array):
            return (diags_array(inverse) @ self.adjacency).tocsr()
        return inverse[:, None] * self.adjacency

    @property
    def laplacian(self) -> Floats:
        """diag(A1) − A, (C, C)."""
        dense = self.adjacency.toarray() if isinstance(self.adjacency, csr_array) else self.adjacency
        return np.asarray(np.diag(self.strengths) - dense)

    @cached_property
    def spectrum(self) -> Floats:
        """Eigenvalues of the Laplacian, ascending, the first one 0, (C,)."""
        if len(self) > MANY:
            raise BadInput(f"the spectrum of {len(self)} clients takes too long: look at {MANY} clients at the most")
        return np.asarray(eigvalsh(self.laplacian))

    def mixing_rows(self, who: Integers, owners: Integers) -> Matrix:
        """Weights of the models of `owners` for the clients `who`, (len(who), len(owners)); sparse if the graph is."""
        return self.mixing[who][:, owners]

    def weights(self, scheme: str, sizes: Integers) -> Floats:
        """The weights with which the server averages, (C,), summing to 1.

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


def noisy(m: Floats, deviation: float, random: np.random.Generator) -> Floats:
    """A message with Gaussian noise of this standard deviation in each entry, as a unit vector again."""
    changed = m + deviation * random.standard_normal(m.shape)
    return np.asarray(changed / np.linalg.norm(changed))


def similarity(misalignment: Floats, floor: float = 0.0) -> Floats:
    """−ln max(mis, floor)."""
    # a misalignment of 1 gives −ln 1 = −0.0: adding zero makes it +0.0
    return np.asarray(-np.log(np.maximum(misalignment, max(floor, SAME))) + 0.0)


def _identical(i: int, n: int) -> BadInput:
    return BadInput(
        f"training clients {i} and {n} hold the same data, up to scale, so their similarity is infinite: merge "
        "them, set graph.floor to a lower limit of the misalignment (such as 1e-6), or use another graph"
    )


def build_graph(
    federation: Federation,
    kind: str = "similarity",
    *,
    neighbours: int = 0,
    search: str = "exact",
    temperature: float = 1.0,
    pixels: str = "auto",
    sign: str = "paper",
    floor: float = 0.0,
    message_noise: float = 0.0,
    seed: int = 0,
) -> SimilarityGraph:
    """The graph of a federation.

    similarity  the paper's, from the clients' messages
    shuffled    the same graph with the clients permuted at random: the same weights, without their meaning
    uniform     all pairs with the same weight
    global      no neighbours: u = w̄ for all clients
    kinds       all pairs of the same kind with the same weight: the true groups, where a federation knows them

    The first two can be made sparse: only the edges to the nearest `neighbours` are kept (0: all), found by an `exact`
    or an `approximate` search. A `temperature` below 1 sharpens them: edges are raised to the power 1/temperature.
    With `message_noise` every client adds Gaussian noise of this standard deviation to its message.
    """
    clients = len(federation.train)
    match kind:
        case "uniform":
            return SimilarityGraph.uniform(clients)
        case "global":
            return SimilarityGraph.edgeless(clients)
        case "kinds":
            if federation.kinds is None:
                raise BadInput("this federation has no kinds: set partition.kinds, or use another graph")
            kind_of = np.array(federation.kinds)
            return SimilarityGraph((kind_of[:, None] == kind_of) - np.eye(clients))
        case "similarity" | "shuffled":
            m = messages(federation, pixels, sign)
            if message_noise:
                m = np.stack(
                    [noisy(one, message_noise, np.random.default_rng([seed, 0x4015E, i])) for i, one in enumerate(m)]
                )
            if neighbours:
                graph = SimilarityGraph.nearest(m, neighbours, floor, search)
            else:
                graph = SimilarityGraph.from_messages(m, floor)
            graph = graph.tempered(temperature)
            if kind == "shuffled":
                graph = graph.relabelled(np.random.default_rng([seed, 0x5AFF1E]).permutation(clients))
            return graph
    raise BadInput(f"unknown graph '{kind}': choose similarity, uniform, shuffled, global or kinds")
