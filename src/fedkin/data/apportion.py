"""Apportionment: real-valued shares as whole numbers of samples, with the sums kept."""

import numpy as np

from fedkin.data.streams import Random
from fedkin.types import Floats, Integers


def floored(values: Floats) -> Integers:
    """⌊values⌋, where a value below a whole number only by rounding error (49 · (1/49) < 1) counts as that number."""
    return np.floor(values + 1e-9).astype(np.int64)


def largest_remainders(values: Floats, total: int) -> Integers:
    """Whole numbers that sum to `total`, as the values do: those with the largest remainders are rounded up.

    >>> largest_remainders(np.array([1.2, 0.7, 2.6, 0.5]), 5)
    array([1, 1, 3, 0])
    """
    whole = floored(values)
    up = np.argsort(whole - values, kind="stable")[: total - whole.sum()]
    whole[up] += 1
    return whole


def without_zeros(sizes: Integers) -> Integers:
    """The same sizes with every 0 raised to 1 at the cost of the largest, if the sum is large enough for that.

    >>> without_zeros(np.array([0, 5, 3, 0]))
    array([1, 3, 3, 1])
    """
    sizes = sizes.copy()
    if sizes.sum() >= len(sizes):
        for i in np.flatnonzero(sizes == 0):
            sizes[np.argmax(sizes)] -= 1
            sizes[i] = 1
    return sizes


def counts_like(like: Integers, available: Integers) -> Integers:
    """Divide Mₖ samples of each class k among clients that hold nᵢₖ others, (C, K): with the same mixes and shares.

    Client i has the quota qᵢₖ = Mₖ nᵢₖ / Σᵢ nᵢₖ of class k, or Mₖ nᵢ / Σᵢ nᵢ if no client holds that class.

    first  client i gets ⌊qᵢₖ⌋ samples of class k
    then   class after class, the samples that are left go to the clients whose quota was cut, one sample at most to
           each, in the order of their remainders. Remainders are carried over: Σ_{j ≤ k} qᵢⱼ − received so far.
    last   a client without any sample gets one, if possible of the class it holds most of, from the client with two
           or more that then still has the largest part of its quota, (mᵢ − 1) / qᵢ

    So |mᵢₖ − qᵢₖ| < 1, unless the last step is needed. Without the carry-over, clients whose remainders are small in
    every class would miss up to K samples; with it they miss about one.

    like       n, (C, K)
    available  M, (K,), at least C in total
    """
    sizes = like.sum(axis=1)
    weights = np.where(like.sum(axis=0) > 0, like, sizes[:, None])
    totals = weights.sum(axis=0)
    counts, cut = np.divmod(weights * available, totals)
    carried = np.zeros(len(like))
    for k, fraction in enumerate((cut / totals).T):
        carried += fraction
        candidates = np.flatnonzero(fraction)
        order = np.argsort(-carried[candidates], kind="stable")
        up = candidates[order[: available[k] - counts[:, k].sum()]]
        counts[up, k] += 1
        carried[up] -= 1
    _share_with_empty(counts, like, (weights * available / totals).sum(axis=1))
    return np.asarray(counts)


def _share_with_empty(counts: Integers, like: Integers, quotas: Floats) -> None:
    """The last step of `counts_like`, in place."""
    sizes = counts.sum(axis=1)
    for i in np.flatnonzero(sizes == 0):
        for k in np.argsort(-like[i], kind="stable"):
            givers = np.flatnonzero((sizes > 1) & (counts[:, k] > 0))
            if givers.size:
                giver = givers[np.argmax((sizes[givers] - 1) / quotas[givers])]
                counts[[giver, i], k] += [-1, 1]
                sizes[[giver, i]] += [-1, 1]
                break


def stratified(labels: Integers | Floats, number: int, rng: Random) -> Integers:
    """Positions of `number` of the samples, drawn at random with the class mix of all of them, in ascending order.

    Of nₖ samples of class k, number · nₖ / n are drawn, by largest remainders. Equal remainders are ordered at random,
    so that no class is preferred. Numbers have no classes and are one stratum: with one for each value, the most
    frequent values would be drawn.
    """
    labels = np.zeros(len(labels), dtype=np.int64) if labels.dtype.kind == "f" else labels
    values, classes = np.unique(labels, return_inverse=True)
    counts, order = np.bincount(classes, minlength=len(values)), rng.permutation(len(values))
    wanted = np.empty(len(values), dtype=np.int64)
    wanted[order] = largest_remainders(np.asarray(counts[order] * number / len(labels)), number)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_class[rank < np.repeat(wanted, counts)])


def assigned(pools: list[Integers], counts: Integers) -> list[list[Integers]]:
    """The samples of each client, class by class: `counts[i, k]` samples of class k for client i, clients in order."""
    pieces: list[list[Integers]] = [[] for _ in counts]
    for k, pool in enumerate(pools):
        for i, end in enumerate(np.cumsum(counts[:, k])):
            pieces[i].append(pool[end - counts[i, k] : end])
    return pieces
