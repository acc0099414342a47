"""Dividing a data set among clients: by two measures of imbalance, or by who the samples come from.

The class imbalance a ≥ 0 and the size imbalance b ≥ 0 are the paper's: a = b = 0 gives every client the same
class mix and the same number of samples; larger a, fewer classes a client; larger b, more unequal sizes.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedkin.data.federation import Clients, Federation, from_rows
from fedkin.data.sources import Array, Dataset, from_arrays, pixels, preprocessing, sample_shape, stream
from fedkin.errors import BadInput, nearest
from fedkin.types import Floats

Indices = NDArray[np.int64]
Random = np.random.Generator | np.random.RandomState
Parts = tuple[tuple[str, ...], list[Indices]]  # the clients' names, or none, and the samples of each


def split(
    labels: ArrayLike,
    clients: int,
    *,
    class_imbalance: float = 0.0,
    size_imbalance: float = 0.0,
    scheme: str = "published",
    mixes: str | None = None,
    clusters: int = 0,
    rng: Random,
) -> list[Indices]:
    """The samples of each of C clients, as indices into `labels`; every sample goes to exactly one client.

    paper      the paper's text: sizes and class mixes are drawn client by client
    published  the authors' published code: class mixes come from a draw over the clients for each class

    `mixes` draws the class mixes in the other way than the scheme does. With `clusters`, client i is in cluster
    i mod clusters, which has the classes k with k mod clusters the same, and divides them as the scheme says.

    A client can end up without samples where clients are many or the imbalance is large.
    """
    for given in (scheme, mixes or scheme):
        if given not in SCHEMES:
            raise BadInput(f"there is no partition scheme '{given}'{nearest(given, SCHEMES)}")
    for letter, what, value in (("a", "class", class_imbalance), ("b", "size", size_imbalance)):
        if not (math.isfinite(value) and value >= 0):
            raise BadInput(f"the {what} imbalance {letter} is {value}: it must be finite and 0 or more")
    y = np.asarray(labels)
    if clients < 2:
        raise BadInput(f"the number of clients is {clients}: a federation needs at least two")
    if clients > len(y):
        raise BadInput(f"{clients} clients cannot share {len(y)} samples: use at most {len(y)} clients")
    kinds, of_kind = np.unique(y, return_inverse=True)
    pools = [np.flatnonzero(of_kind == k) for k in range(len(kinds))]
    if clusters > min(len(pools), clients // 2):
        raise BadInput(
            f"{clusters} clusters of {clients} clients with classes of their own are too many for {len(pools)} "
            "classes: each needs a class and two clients"
        )
    deal, draw = SCHEMES[scheme], MIXES[mixes or scheme]
    found: list[Indices] = [np.empty(0, dtype=np.int64)] * clients
    for cluster in range(max(clusters, 1)):
        members = range(cluster, clients, max(clusters, 1))
        parts = deal(pools[cluster :: max(clusters, 1)], len(members), class_imbalance, size_imbalance, draw, rng)
        for i, part in zip(members, parts, strict=True):
            found[i] = part
    return found


def _mixes_by_client(clients: int, classes: int, a: float, rng: Random) -> Floats:
    """qᵢ ~ Dir((1/a)·1_K): for each client a draw over the classes, (C, K)."""
    return np.asarray(np.exp(_log_dirichlet(clients, classes, a, rng)))


def _mixes_by_class(clients: int, classes: int, a: float, rng: Random) -> Floats:
    """For each class a draw Dir((1/a)·1_C) over the clients, (C, K); rows in proportion, not yet summing to 1."""
    over_clients = rng.dirichlet(np.full(clients, max(1 / a, 1e-300)), size=classes).T
    if not (over_clients.sum(axis=1) > 0).all():
        # A client's draws have all underflowed (or all of a class's, to NaN): as logarithms they cannot.
        over_clients = np.exp(_normalised(_log_dirichlet(classes, clients, a, rng).T))
    return np.asarray(over_clients)


Mixes = Callable[[int, int, float, Random], Floats]
MIXES: dict[str, Mixes] = {"paper": _mixes_by_client, "published": _mixes_by_class}


def _paper(pools: list[Indices], clients: int, a: float, b: float, draw: Mixes, rng: Random) -> list[Indices]:
    """Divide as the paper's text says; the client sizes come out as drawn.

    sizes   nᵢ from a log-normal with median N/C and deviation b, rescaled to sum to N, rounded
    mixes   qᵢ as drawn; the classes' shares of all samples when a = 0
    first   in random order, client i takes ⌊nᵢ qᵢₖ⌋ of each class k, as far as the class lasts
    then    in random order, client i fills up to nᵢ from what is left, r: class k in proportion to qᵢₖ rₖ
    """
    pools = [rng.permutation(pool) for pool in pools]
    left = np.array([len(pool) for pool in pools])
    sizes = _round(_log_normal(clients, b, rng) * left.sum(), int(left.sum()))
    balanced = np.tile(left / left.sum(), (clients, 1))
    mixes = balanced if a == 0 else draw(clients, len(pools), a, rng)
    mixes /= mixes.sum(axis=1, keepdims=True)
    counts = np.zeros((clients, len(pools)), dtype=np.int64)
    for i in rng.permutation(clients):
        counts[i] = np.minimum(_floor(sizes[i] * mixes[i]), left)
        left -= counts[i]
    for i in rng.permutation(clients):
        while missing := int(sizes[i] - counts[i].sum()):
            wish = mixes[i] * left
            if wish.sum() == 0:  # nothing is left of all the classes this client has a share in
                wish = left.astype(np.float64)
            taken = np.minimum(_round(wish / wish.sum() * missing, missing), left)
            counts[i] += taken
            left -= taken
    pieces = _deal(pools, counts)
    return [rng.permutation(np.concatenate(of_client)) for of_client in pieces]


def _published(pools: list[Indices], clients: int, a: float, b: float, draw: Mixes, rng: Random) -> list[Indices]:
    """Divide as the published code does; a client's samples stay in the order in which it received them.

    sizes     nᵢ from a log-normal with median n = Σₖ ⌊Nₖ / C⌋ and deviation b, rescaled to sum to n C, cut to
              whole numbers
    mixes     qᵢ as drawn; all classes alike when a = 0
    expected  eᵢₖ = ⌊nᵢ qᵢₖ⌋
    first     client after client, class after class: client i takes min(eᵢₖ, what is left of class k)
    then      class after class: each sample left goes to a client drawn with probability
              ∝ 1 + (eᵢₖ − received of class k) + ¼ max(0, Σₖ eᵢₖ − received so far)

    Random numbers are drawn in the same order as there (sizes, mixes, the order of each class, takers), so that from
    NumPy's older generator, `RandomState(seed)`, come the very clients of the published runs.
    """
    each = sum(len(pool) // clients for pool in pools)
    sizes = np.full(clients, each) if b == 0 else _floor(_log_normal(clients, b, rng) * each * clients)
    mixes = np.full((clients, len(pools)), 1 / len(pools)) if a == 0 else draw(clients, len(pools), a, rng)
    pools = [rng.permutation(pool) for pool in pools]
    # No guard against rounding error here: whole numbers that it cuts short are cut short in the published runs too.
    expected = np.floor(sizes[:, None] * mixes / mixes.sum(axis=1, keepdims=True)).astype(np.int64)
    # min(expected, left), in order: the running total of a class, cut off at its number of samples.
    running = np.minimum(np.cumsum(expected, axis=0), [len(pool) for pool in pools])
    counts = np.diff(running, axis=0, prepend=0)
    pieces = _deal(pools, counts)
    received = counts.sum(axis=1)
    for k, pool in enumerate(pools):
        rest = pool[counts[:, k].sum() :]
        chance = leftover_chance(expected[:, k], counts[:, k], expected.sum(axis=1), received)
        taker = rng.choice(clients, size=len(rest), p=chance)
        for i in np.unique(taker):
            pieces[i].append(rest[taker == i])
        received = received + np.bincount(taker, minlength=clients)
    return [np.concatenate(of_client) for of_client in pieces]


SCHEMES: dict[str, Callable[[list[Indices], int, float, float, Mixes, Random], list[Indices]]] = {
    "paper": _paper,
    "published": _published,
}


def leftover_chance(expected: Indices, received: Indices, expected_total: Indices, received_total: Indices) -> Floats:
    """Chance of each client to get a sample left over of a class, in the published scheme.

    ∝ 1 + (expected − received) of the class + ¼ max(0, expected − received) of all classes
    """
    weight = 1 + (expected - received) + 0.25 * np.maximum(0, expected_total - received_total)
    return np.asarray(weight / weight.sum())


def _deal(pools: list[Indices], counts: Indices) -> list[list[Indices]]:
    """Hand out the first samples of every class: `counts[i, k]` of class k to client i, clients in order."""
    pieces: list[list[Indices]] = [[] for _ in counts]
    for k, pool in enumerate(pools):
        for i, end in enumerate(np.cumsum(counts[:, k])):
            pieces[i].append(pool[end - counts[i, k] : end])
    return pieces


def _floor(values: Floats) -> Indices:
    """Whole parts; what is short of a whole number only by rounding error (49 · (1/49) < 1) counts as it."""
    return np.floor(values + 1e-9).astype(np.int64)


def _round(values: Floats, total: int) -> Indices:
    """Whole numbers that sum to `total`, as the values do: the largest remainders are rounded up."""
    whole = _floor(values)
    up = np.argsort(whole - values, kind="stable")[: total - whole.sum()]
    whole[up] += 1
    return whole


def _log_normal(clients: int, b: float, rng: Random) -> Floats:
    """Shares of the clients, summing to 1, log-normal with deviation b (the median cancels in the sum)."""
    exponent = min(b, 1e6) * rng.standard_normal(clients)  # beyond, one client has everything anyway
    shares = np.exp(exponent - exponent.max())
    return np.asarray(shares / shares.sum())


def _log_dirichlet(draws: int, width: int, a: float, rng: Random) -> Floats:
    """Logarithms of draws from Dir((1/a)·1), one a row.

    A gamma variate of a tiny shape s underflows, its logarithm does not: Gamma(s) = Gamma(s + 1) · U^(1/s).
    """
    shape = min(max(1 / a, 1e-12), 1e12)  # beyond, a draw is one class alone, or perfectly even
    grown = np.log(rng.standard_gamma(shape + 1, size=(draws, width)))
    return _normalised(grown + np.log(1 - rng.uniform(size=(draws, width))) / shape)


def _normalised(logs: Floats) -> Floats:
    """Logarithms of rows brought to sum 1."""
    logs = logs - logs.max(axis=1, keepdims=True)
    return np.asarray(logs - np.log(np.exp(logs).sum(axis=1, keepdims=True)))


def by_group(groups: ArrayLike) -> list[tuple[str, Indices]]:
    """The samples of each group with its name, in the order of the groups' values."""
    values, member = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(member, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(member, minlength=len(values)))[:-1])
    return [(_word(value), part) for value, part in zip(values, parts, strict=True)]


def _word(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def federate(
    dataset: Dataset,
    *,
    clients: int = 100,
    class_imbalance: float = 0.0,
    size_imbalance: float = 0.0,
    scheme: str = "published",
    mixes: str | None = None,
    clusters: int = 0,
    group: str | None = None,
    preprocess: str = "half",
    seed: int = 0,
) -> Federation:
    """Divide a data set among clients.

    The training and the testing part are each split into `clients` clients, independently of each other; the
    same seed gives the same split everywhere. See `split` for the imbalances and schemes, and
    `datasets.preprocessing` for `preprocess`.

    With `group` the clients are the groups of that name instead (the writers, say), of the training and the
    testing part, in the order of the groups' values. Where the testing part has no groups at all, it is
    divided evenly among as many testing clients as there are training clients, or as samples, if fewer.
    """
    train: Parts
    test: Parts
    if group is None:
        # The published runs draw both parts from one generator, begun anew in between only for seeds other than 0.
        older = np.random.RandomState(seed)

        def divided(labels: NDArray[np.int64], part: str) -> Parts:
            rng: Random = stream(seed, f"{part} clients")
            if scheme == "published":
                rng = older if seed == 0 else np.random.RandomState(seed)
            parts = split(
                labels,
                clients,
                class_imbalance=class_imbalance,
                size_imbalance=size_imbalance,
                scheme=scheme,
                mixes=mixes,
                clusters=clusters,
                rng=rng,
            )
            return (), parts

        train, test = divided(dataset.y_train, "training"), divided(dataset.y_test, "testing")
    else:
        if group not in dataset.groups_train:
            known = nearest(group, dataset.groups_train) if dataset.groups_train else ": it has no groups at all"
            raise BadInput(f"{dataset.name} has no group '{group}'{known}")
        train = _named(dataset.groups_train[group])
        if group in dataset.groups_test:
            test = _named(dataset.groups_test[group])
        elif dataset.groups_test:
            raise BadInput(
                f"the testing part of {dataset.name} has no group '{group}'"
                f"{nearest(group, dataset.groups_test)}: add {group}_test to the data"
            )
        else:
            fit = min(len(train[1]), len(dataset.y_test))
            rng = stream(seed, "testing clients")
            everything = [np.arange(len(dataset.y_test))]
            test = (), split(dataset.y_test, fit, scheme="paper", rng=rng) if fit > 1 else everything
    return _federation(dataset, train, test, preprocess)


def from_clients(
    train: Sequence[tuple[ArrayLike, ArrayLike]],
    test: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    preprocess: str = "half",
    name: str = "clients",
) -> Federation:
    """A federation of clients whose samples are already apart: one pair (features, labels) a client.

    Features and labels are as in `from_arrays`, of the same shape and type at all clients.
    """
    (x, y, parts), (x_test, y_test, parts_test) = _joined(train, "training"), _joined(test, "testing")
    return _federation(from_arrays(x, y, x_test, y_test, name=name), ((), parts), ((), parts_test), preprocess)


def _joined(clients: Sequence[tuple[ArrayLike, ArrayLike]], part: str) -> tuple[Array, Array, list[Indices]]:
    """Features and labels of all clients, one after the other, and where each client's lie."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in clients]
    for i, (x, y) in enumerate(pairs):
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise BadInput(
                f"{part} client {i} has features of shape {x.shape} and labels of shape {y.shape}: "
                "each sample needs one label"
            )
        if x.shape[1:] != pairs[0][0].shape[1:] or x.dtype != pairs[0][0].dtype:
            raise BadInput(
                f"{part} client {i} has {x.dtype} samples of shape {x.shape[1:]} but client 0 has "
                f"{pairs[0][0].dtype} samples of shape {pairs[0][0].shape[1:]}: bring them to the same form"
            )
    if not pairs:
        raise BadInput(f"there are no {part} clients: give a pair (features, labels) for each")
    parts = np.split(np.arange(sum(len(y) for _, y in pairs)), np.cumsum([len(y) for _, y in pairs])[:-1])
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]), parts


def _named(groups: Array) -> Parts:
    found = by_group(groups)
    return tuple(name for name, _ in found), [part for _, part in found]


def _federation(dataset: Dataset, train: Parts, test: Parts, preprocess: str) -> Federation:
    """Lay the samples out client after client and preprocess them."""
    raw_train = pixels(dataset.x_train[np.concatenate(train[1])])
    shift, scale = preprocessing(preprocess, raw_train)

    def clients(raw: NDArray[np.float32], y: NDArray[np.int64], parts: Parts) -> Clients:
        raw -= shift  # in place, because a copy of the training part can be the largest thing in memory
        raw /= scale
        sizes = np.array([len(part) for part in parts[1]])
        return from_rows(torch.from_numpy(raw), torch.from_numpy(y[np.concatenate(parts[1])]), sizes, parts[0])

    return Federation(
        train=clients(raw_train, dataset.y_train, train),
        test=clients(pixels(dataset.x_test[np.concatenate(test[1])]), dataset.y_test, test),
        classes=dataset.classes,
        shape=sample_shape(dataset.x_train),
        shift=torch.from_numpy(shift),
        scale=torch.from_numpy(scale),
        name=dataset.name,
    )
