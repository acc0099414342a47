"""The similarity graph: messages → misalignment → adjacency → mixing weights and degrees.

Each client sends one unit vector mᵢ, the first principal component of its data. From these alone the server knows
which clients are kin. Everything here is float64: misalignments of alike clients are about 1e-4, of which
(1 − mᵢ·mₙ)/2 in float32 would keep hardly a digit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh, eigvalsh
from scipy.sparse import coo_array, csr_array, diags_array
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from scipy.spatial.distance import pdist, squareform

from fedkin.buffers import room
from fedkin.data.federation import Federation
from fedkin.errors import BadInput
from fedkin.types import Floats

Matrix = Any  # (C, C) float64, an array or a sparse csr_array

# Below this misalignment two messages differ by no more than the rounding of the eigenvector.
SAME = 1e-24
# Below this many rows or columns a dense eigenproblem is quicker than an iterative one.
DENSE = 64
# With more clients than this all pairs no longer fit into memory, nor a spectrum into patience.
MANY = 5_000
# Clients whose nearest are looked for at once.
ROWS = 512
# Numbers (4 bytes each) that a core's own cache holds; fewer columns than these are not worth a call.
CACHE_NUMBERS, FEWEST_COLUMNS = 1 << 18, 64


def message(x: ArrayLike, sign: str = "paper") -> Floats:
    """The message m of a client: the first principal component of its samples x (n, D), uncentred and unscaled.

    m is the top eigenvector of xᵀx, a unit vector. Its sign is arbitrary, so it is chosen to point to the side
    of the client's mean sample, m·x̄ ≥ 0; should that be a tie, its largest entry is positive. The rule looks at
    this client alone. With `sign = "published"` the sign is left to the singular value decomposition of x in single
    precision, as in the published code: kin can then come out opposite.

    >>> message([[3.0, 0.0], [0.0, 1.0]])
    array([1., 0.])
    """
    x = np.asarray(x, dtype=np.float64)
    if not x.any():
        raise BadInput("a client whose samples are all zero has no principal component: leave that client out")
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


def messages(federation: Federation, pixels: str = "raw", sign: str = "paper") -> Floats:
    """The messages of all training clients, (C, D), from their raw features or the preprocessed ones."""
    clients = federation.train
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
    mixing         p_in / pᵢ: the rows by which a client averages its neighbours' models. The row of a client without
                   neighbours is zero; whatever a row lacks to 1 is taken of the global model.
    laplacian      diag(A1) − A
    spectrum       the Laplacian's eigenvalues, ascending
    """

    adjacency: Matrix
    misalignment: Floats | None = None

    @classmethod
    def from_messages(cls, messages: ArrayLike, floor: float = 0.0) -> "SimilarityGraph":
        """The paper's graph: A_in = −ln mis(i, n) for i ≠ n, where mis(i, n) = (1 − mᵢ·mₙ)/2 = ‖mᵢ − mₙ‖²/4.

        Two clients with the same data have mis = 0 and would weigh infinitely. Unless a positive `floor` says what
        the smallest misalignment shall count as, that is an error.
        """
        m = np.asarray(messages, dtype=np.float64)
        if len(m) > MANY:
            raise BadInput(f"{len(m)} clients have too many pairs: set graph.neighbours to the number that shall count")
        pairs = np.clip(pdist(m, "sqeuclidean") / 4, 0.0, 1.0)
        if floor <= 0 and (pairs <= SAME).any():
            i, n = np.argwhere(squareform(pairs <= SAME, checks=False))[0]
            raise _identical(i, n)
        adjacency = squareform(similarity(pairs, floor))
        if not adjacency.any():
            raise BadInput("all clients' messages are opposite: no client has kin; use graph.kind = 'uniform'")
        return cls(adjacency, squareform(pairs))

    @classmethod
    def nearest(
        cls, messages: ArrayLike, neighbours: int, floor: float = 0.0, search: str = "exact"
    ) -> "SimilarityGraph":
        """The paper's graph with only the edges between a client and the `neighbours` most similar to it.

        An edge stays if either end counts the other among its nearest. The result is sparse: C·k numbers instead
        of C². Candidates are found in single precision, by comparing all pairs or with an approximate index; the
        nearest among them, and their misalignments, in double precision.
        """
        m = np.asarray(messages, dtype=np.float64)
        clients = len(m)
        k = min(neighbours, clients - 1)
        # Single precision is enough for distances from the mean message, not for the messages themselves: alike
        # clients differ only in their last digits.
        around = torch.as_tensor(m - m.mean(axis=0), dtype=torch.float32)
        look = {"exact": _compared, "approximate": _indexed}[search]
        near = look(around, min(2 * k + 8, clients - 1))
        rows, columns, values = [], [], []
        for first in range(0, clients, ROWS):
            mine = np.arange(first, min(first + ROWS, clients))
            mis = np.clip(((m[mine, None] - m[near[mine]]) ** 2).sum(axis=2) / 4, 0.0, 1.0)
            best = np.argsort(mis, axis=1, kind="stable")[:, :k]
            rows.append(np.repeat(mine, k))
            columns.append(np.take_along_axis(near[mine], best, axis=1).reshape(-1))
            values.append(np.take_along_axis(mis, best, axis=1).reshape(-1))
        i, n, pairs = map(np.concatenate, (rows, columns, values))
        if floor <= 0 and (same := pairs <= SAME).any():
            raise _identical(i[same][0], n[same][0])
        half = coo_array((similarity(pairs, floor), (i, n)), shape=(clients, clients)).tocsr()
        # An edge that both ends count is the same number twice: the larger of both is that number.
        return cls(half.maximum(half.T).tocsr())

    @classmethod
    def uniform(cls, clients: int) -> "SimilarityGraph":
        """All clients neighbours, all alike: u is the plain average of the others."""
        if clients > MANY:
            raise BadInput(f"the average of {clients} others is hardly different from the global model: use 'global'")
        return cls(np.ones((clients, clients)) - np.eye(clients))

    @classmethod
    def edgeless(cls, clients: int) -> "SimilarityGraph":
        """No neighbours at all, so u = w̄ for everyone: needs no message, and nothing extra is downloaded."""
        return cls(csr_array((clients, clients), dtype=np.float64))

    def tempered(self, temperature: float) -> "SimilarityGraph":
        """The same graph with edges (A_in / max A)^(1/temperature): a low temperature leaves only the strongest."""
        if temperature == 1 or not self.has_edges:
            return self
        sharper = (self.adjacency / self.adjacency.max()) ** (1 / temperature)
        return SimilarityGraph(sharper, self.misalignment)

    def relabelled(self, order: Sequence[int] | NDArray[np.int64]) -> "SimilarityGraph":
        """The same graph where client j takes the place of client `order[j]`."""
        places = np.asarray(order, dtype=np.int64)
        mis = None if self.misalignment is None else self.misalignment[np.ix_(places, places)]
        return SimilarityGraph(self.adjacency[places][:, places], mis)

    def __len__(self) -> int:
        return int(self.adjacency.shape[0])

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

    def mixing_rows(self, who: NDArray[np.int64], owners: NDArray[np.int64]) -> Matrix:
        """How much clients `who` take of the models of `owners`, (len(who), len(owners)); sparse as the graph is."""
        return self.mixing[who][:, owners]

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


def mixed(rows: Matrix, models: torch.Tensor) -> torch.Tensor:
    """Σₙ rows_in·wₙ of models (…, n, P), for every row i: (…, i, P). Where rows are sparse, so is the work."""
    out = room(models, *models.shape[:-2], rows.shape[0], models.shape[-1])
    if not isinstance(rows, csr_array):
        return torch.matmul(models.new_tensor(rows), models, out=out)
    if not rows.nnz:
        return out.zero_()
    index, first = (
        torch.as_tensor(part, dtype=torch.int64, device=models.device) for part in (rows.indices, rows.indptr)
    )
    by, (count, size) = models.new_tensor(rows.data), models.shape[-2:]
    # Models that are read again and again are taken so many columns at a time that those stay in the cache.
    width = max(FEWEST_COLUMNS, CACHE_NUMBERS // count) if rows.nnz > 2 * count else size
    for lane, into in zip(models.view(-1, count, size), out.view(-1, *out.shape[-2:]), strict=True):
        for start in range(0, size, width):
            columns = slice(start, start + width)
            into[:, columns] = torch.nn.functional.embedding_bag(
                index, lane[:, columns].contiguous(), first, mode="sum", per_sample_weights=by, include_last_offset=True
            )
    return out


def _compared(around: torch.Tensor, count: int) -> NDArray[np.int64]:
    """The rows nearest to each, (C, count), from the distances of all pairs, a block at a time."""
    half_squares = (around**2).sum(dim=1) / 2
    near = np.empty((len(around), count), dtype=np.int64)
    block = around.new_empty(min(ROWS, len(around)), len(around))  # used again, as it is large
    for first in range(0, len(around), ROWS):
        mine = np.arange(first, min(first + ROWS, len(around)))
        alike = torch.matmul(around[mine], around.T, out=block[: len(mine)]).sub_(half_squares)  # larger is nearer
        alike[np.arange(len(mine)), mine] = -np.inf  # nobody is their own neighbour
        near[mine] = torch.topk(alike, count, dim=1, sorted=False).indices.numpy()
    return near


def _indexed(around: torch.Tensor, count: int) -> NDArray[np.int64]:
    """The same, approximately, from a navigable graph of rows: each look-up visits a few hundred of them."""
    try:
        import faiss
    except ImportError:
        raise BadInput(
            "graph.search = 'approximate' needs an index: pip install 'fedkin[neighbours]', or use 'exact'"
        ) from None
    rows = around.numpy()
    index = faiss.IndexHNSWFlat(rows.shape[1], 32)
    index.hnsw.efConstruction = 80
    index.hnsw.efSearch = max(64, 3 * count)
    index.add(rows)
    _, found = index.search(rows, count + 1)
    # Nobody is their own neighbour; who was not found among their own nearest gives up the farthest.
    own = found == np.arange(len(rows))[:, None]
    own[~own.any(axis=1), -1] = True
    near: NDArray[np.int64] = found[~own].reshape(len(rows), count).astype(np.int64)
    # A look-up that ends before it has found enough leaves -1, as among very few rows: those are compared quickly.
    return near if (near >= 0).all() else _compared(around, count)


def similarity(misalignment: Floats, floor: float = 0.0) -> Floats:
    """−ln mis, where nothing counts as less than the floor."""
    # a misalignment of 1 gives −ln 1 = −0.0: adding zero makes it a plain zero
    return np.asarray(-np.log(np.maximum(misalignment, max(floor, SAME))) + 0.0)


def _identical(i: int, n: int) -> BadInput:
    return BadInput(
        f"training clients {i} and {n} hold the same data, up to scale, so their similarity is infinite: merge "
        "them, set graph.floor to the smallest misalignment that shall count (1e-6, say), or use another graph"
    )


def build_graph(
    federation: Federation,
    kind: str = "similarity",
    *,
    neighbours: int = 0,
    search: str = "exact",
    temperature: float = 1.0,
    pixels: str = "raw",
    sign: str = "paper",
    floor: float = 0.0,
    seed: int = 0,
) -> SimilarityGraph:
    """The graph of a federation.

    similarity  the paper's, from the clients' messages
    shuffled    the same graph with the clients relabelled at random: as uneven, but blind
    uniform     all neighbours alike
    global      no neighbours: u = w̄ for everyone

    The first two can be made sparse: then only the edges to so many nearest `neighbours` stay (0: all), found by an
    `exact` or an `approximate` search. A `temperature` below 1 sharpens them: edges are raised to the power of its
    inverse.
    """
    clients = len(federation.train)
    match kind:
        case "uniform":
            return SimilarityGraph.uniform(clients)
        case "global":
            return SimilarityGraph.edgeless(clients)
        case "similarity" | "shuffled":
            m = messages(federation, pixels, sign)
            if neighbours:
                graph = SimilarityGraph.nearest(m, neighbours, floor, search)
            else:
                graph = SimilarityGraph.from_messages(m, floor)
            graph = graph.tempered(temperature)
            if kind == "shuffled":
                graph = graph.relabelled(np.random.default_rng([seed, 0x5AFF1E]).permutation(clients))
            return graph
    raise BadInput(f"unknown graph '{kind}': choose similarity, uniform, shuffled or global")
