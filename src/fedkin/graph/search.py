"""Nearest neighbours of points: by comparing all pairs, or approximately with an index."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from fedkin.errors import BadInput
from fedkin.types import Floats, Integers

SEARCH_BLOCK = 512  # rows that are compared with all others at once


def nearest_neighbours(points: ArrayLike, count: int, search: str = "exact") -> tuple[Integers, Floats]:
    """The nearest others of each point (n, D), nearest first, (n, k) with k = min(count, n − 1); and squared distances.

    Candidates are found in single precision, by comparing all pairs (`exact`) or with an `approximate` index; the
    nearest among them and their distances are computed in double precision.
    """
    m = np.asarray(points, dtype=np.float64)
    rows, k = len(m), min(count, len(m) - 1)
    # Single precision is enough for differences from the mean, not for the points themselves: messages of similar
    # clients differ only in their last digits.
    around = torch.as_tensor(m - m.mean(axis=0), dtype=torch.float32)
    candidates = {"exact": _compared, "approximate": _indexed}[search](around, min(2 * k + 8, rows - 1))
    near, squares = np.empty((rows, k), dtype=np.int64), np.empty((rows, k))
    for first in range(0, rows, SEARCH_BLOCK):
        mine = np.arange(first, min(first + SEARCH_BLOCK, rows))
        apart = ((m[mine, None] - m[candidates[mine]]) ** 2).sum(axis=2)
        best = np.argsort(apart, axis=1, kind="stable")[:, :k]
        near[mine] = np.take_along_axis(candidates[mine], best, axis=1)
        squares[mine] = np.take_along_axis(apart, best, axis=1)
    return near, squares


def _compared(around: torch.Tensor, count: int) -> Integers:
    """The rows nearest to each, (C, count), from the distances of all pairs, a block at a time."""
    half_squares = (around**2).sum(dim=1) / 2
    near = np.empty((len(around), count), dtype=np.int64)
    block = around.new_empty(min(SEARCH_BLOCK, len(around)), len(around))  # reused, because it is large
    for first in range(0, len(around), SEARCH_BLOCK):
        mine = np.arange(first, min(first + SEARCH_BLOCK, len(around)))
        alike = torch.matmul(around[mine], around.T, out=block[: len(mine)]).sub_(half_squares)  # larger is nearer
        alike[np.arange(len(mine)), mine] = -np.inf  # a client is not its own neighbour
        near[mine] = torch.topk(alike, count, dim=1, sorted=False).indices.numpy()
    return near


def _indexed(around: torch.Tensor, count: int) -> Integers:
    """As `_compared`, approximately, with a navigable small-world index: a query visits a few hundred rows."""
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
    # A client is not its own neighbour. If a query did not find the client itself, its farthest result is dropped.
    own = found == np.arange(len(rows))[:, None]
    own[~own.any(axis=1), -1] = True
    near: Integers = found[~own].reshape(len(rows), count).astype(np.int64)
    # A query that finds too few leaves -1. This happens only with very few rows, which are quick to compare.
    return near if (near >= 0).all() else _compared(around, count)
