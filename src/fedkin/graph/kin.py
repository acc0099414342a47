"""Kin: for each client its k nearest, found from the data or from updates. A client is its own kin."""

from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array, eye_array

from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats, Integers


@lru_cache(maxsize=4)
def strongest(graph: SimilarityGraph, count: int) -> Integers:
    """The neighbours of each client with the strongest edges, strongest first, (C, count); −1 where there are fewer."""
    clients = len(graph)
    near = np.full((clients, count), -1, dtype=np.int64)
    if isinstance(graph.adjacency, csr_array):
        for i in range(clients):
            row = slice(graph.adjacency.indptr[i], graph.adjacency.indptr[i + 1])
            edges, others = graph.adjacency.data[row], graph.adjacency.indices[row]
            best = others[np.argsort(-edges, kind="stable")][:count]
            near[i, : len(best)] = best
        return near
    edges = graph.adjacency.copy()
    np.fill_diagonal(edges, -np.inf)
    k = min(count, clients - 1)
    near[:, :k] = np.argsort(-edges, axis=1, kind="stable")[:, :k]
    near[:, :k][np.take_along_axis(edges, near[:, :k], axis=1) <= 0] = -1
    return near


def in_both(near: Integers, other: Integers) -> Integers:
    """Two lists of nearest clients as one, (C, count): ordered by the sum of their ranks; −1 where there are fewer.

    A client that is missing in a list has the rank `count` there. Of clients with the same sum, the one that comes
    first in `near` comes first, so that the order does not depend on the clients' numbers.

    >>> in_both(np.array([[7, 8, 9]]), np.array([[9, 5, -1]])).tolist()  # 9: 2 + 0, 7: 0 + 3, 8: 1 + 3, 5: 3 + 1
    [[9, 7, 8]]
    """
    clients, count = near.shape
    names = np.concatenate([near, other], axis=1)
    # Ranks as two digits, their sum and that in `near`, of an entry whose client is missing in the other list.
    base, places = 2 * count, np.arange(count)
    keys = np.concatenate([(places + count) * base + places, (places + count) * base + count])
    keys = np.tile(keys, (clients, 1))
    order = np.argsort(names, axis=1, kind="stable")
    names, keys = np.take_along_axis(names, order, axis=1), np.take_along_axis(keys, order, axis=1)
    twice = (names[:, 1:] == names[:, :-1]) & (names[:, 1:] >= 0)  # a client in both lists: that of `near` is first
    sums = keys[:, :-1] // base + keys[:, 1:] // base - 2 * count
    keys[:, :-1] = np.where(twice, sums * base + keys[:, :-1] % base, keys[:, :-1])
    last = base * base
    keys[:, 1:][twice] = last
    keys[names < 0] = last
    order = np.argsort(keys, axis=1, kind="stable")[:, :count]
    names, keys = np.take_along_axis(names, order, axis=1), np.take_along_axis(keys, order, axis=1)
    return np.where(keys < last, names, -1)


def kin_rows(near: Integers, weights: Floats) -> csr_array:
    """Weights with which each client averages its kin, (n, n), rows summing to 1.

    near     (n, k)  the nearest of each client, −1 for none
    weights  (n,)    of the clients

    The kin of i are i itself, its k nearest, and the clients that have i among their k nearest. P_in ∝ weightₙ; the row
    of a client whose kin have no weight is 0.
    """
    clients, count = near.shape
    i, n = np.repeat(np.arange(clients), count), near.reshape(-1)
    known = n >= 0
    wanted = csr_array((np.ones(known.sum()), (i[known], n[known])), shape=(clients, clients))
    kin = ((wanted + wanted.T + eye_array(clients)) > 0).astype(np.float64)
    rows = csr_array(kin.multiply(weights))
    rows.eliminate_zeros()
    rows.data /= np.repeat(np.asarray(rows.sum(axis=1)).reshape(-1), np.diff(rows.indptr))
    return rows
