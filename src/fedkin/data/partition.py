"""Partition of a data set among clients: by two measures of imbalance, or by the origin of the samples.

The class imbalance a ≥ 0 and the size imbalance b ≥ 0 are the paper's: with a = b = 0 all clients have the same class
mix and the same number of samples; a larger a means fewer classes per client, a larger b more unequal sizes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedkin.data.apportion import assigned, counts_like, floored, largest_remainders, stratified, without_zeros
from fedkin.data.assembly import Parts, assembled
from fedkin.data.dataset import Array, Dataset
from fedkin.data.draws import Mixes, log_normal_shares, mixes_by_class, mixes_by_client
from fedkin.data.federation import Federation
from fedkin.data.kinds import in_kinds, kind_of_each, require_paired
from fedkin.data.own_clients import OwnClients
from fedkin.data.streams import Random, stream
from fedkin.errors import BadInput, nearest
from fedkin.types import Floats, Integers


def split(
    labels: ArrayLike,
    clients: int,
    *,
    class_imbalance: float = 0.0,
    size_imbalance: float = 0.0,
    scheme: str = "paired",
    mixes: str | None = None,
    clusters: int = 0,
    cluster_of: Integers | None = None,
    labels_each: int = 0,
    rng: Random,
) -> list[Integers]:
    """The samples of each of C clients, as indices into `labels`; every sample is assigned to exactly one client.

    paper      as the paper's text: sizes and class mixes are drawn client by client
    paired     the same with at least one sample per client; see `split_like` for the testing part
    published  as the authors' published code: class mixes come from a draw over the clients for each class

    `mixes` (`paper` or `published`) replaces the scheme's way to draw class mixes. With `clusters`, client i is in
    cluster i mod clusters, or `cluster_of[i]`. It has the classes k with k mod clusters the same, and divides them by
    the scheme.

    With `labels_each` = l, client i has the l classes i, i + 1, …, i + l − 1 modulo their number, and each class is
    divided among its clients in proportion to log-normal shares of deviation b.

    With `paper` and `published` a client can end up without samples if there are many clients or large imbalances.
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
    values, of_value = np.unique(y, return_inverse=True)
    pools = [np.flatnonzero(of_value == k) for k in range(len(values))]
    number = max(clusters, 1)
    of = np.arange(clients) % number if cluster_of is None else cluster_of
    if clusters and (clusters > len(pools) or np.bincount(of, minlength=clusters).min() < 2):
        raise BadInput(
            f"{clusters} clusters of {clients} clients with classes of their own are too many for {len(pools)} "
            "classes: each needs a class and two clients"
        )
    if labels_each:
        if class_imbalance or clusters or mixes:
            raise BadInput("labels_each says which classes a client has: leave out class_imbalance, clusters and mixes")
        return _of_few_classes(pools, clients, labels_each, size_imbalance, rng)
    divide, draw = SCHEMES[scheme], MIXES[mixes or scheme]
    found: list[Integers] = [np.empty(0, dtype=np.int64)] * clients
    for cluster in range(number):
        members = np.flatnonzero(of == cluster)
        parts = divide(pools[cluster::number], len(members), class_imbalance, size_imbalance, draw, rng)
        for i, part in zip(members, parts, strict=True):
            found[i] = part
    return found


def _of_few_classes(pools: list[Integers], clients: int, each: int, b: float, rng: Random) -> list[Integers]:
    """Client i has the classes i, …, i + each − 1 modulo K; a class is divided by the shares of its clients."""
    classes = len(pools)
    if not 1 <= each <= classes:
        raise BadInput(f"labels_each = {each} is out of range: choose from 1 to {classes} classes")
    has = (np.arange(classes) - np.arange(clients)[:, None]) % classes < each  # (C, K)
    if not has.any(axis=0).all():
        raise BadInput(f"{clients} clients with {each} of {classes} classes leave classes out: use more clients")
    shares = log_normal_shares(clients, b, rng)
    counts = np.zeros((clients, classes), dtype=np.int64)
    for k, pool in enumerate(pools):
        holders = np.flatnonzero(has[:, k])
        if len(holders) > len(pool):
            raise BadInput(f"{len(holders)} clients cannot share {len(pool)} samples of a class: use fewer clients")
        mine = shares[holders] if shares[holders].sum() > 0 else np.ones(len(holders))  # 0 by rounding: all alike
        quotas = mine / mine.sum() * len(pool)
        counts[holders, k] = without_zeros(largest_remainders(quotas, len(pool)))
    pools = [rng.permutation(pool) for pool in pools]
    return [rng.permutation(np.concatenate(of_client)) for of_client in assigned(pools, counts)]


def split_like(like: Integers, labels: ArrayLike, rng: Random) -> list[Integers]:
    """Divide samples among clients that hold others, so that each keeps its class mix and its share of all samples.

    Every sample is assigned to exactly one client and every client gets at least one. How many samples of each class
    a client gets is fixed by `counts_like`; which ones is drawn at random.

    like    samples of each class that each client holds, (C, K)
    labels  the classes of the samples to divide, from 0 to K − 1
    """
    y, (clients, classes) = np.asarray(labels), like.shape
    if clients > len(y):
        raise BadInput(
            f"{clients} clients cannot share {len(y)} testing samples: use at most {len(y)} clients, "
            "or a data set with a larger testing part"
        )
    pools = [rng.permutation(np.flatnonzero(y == k)) for k in range(classes)]
    counts = counts_like(like, np.array([len(pool) for pool in pools]))
    return [np.concatenate(of_client) for of_client in assigned(pools, counts)]


def _paper(
    pools: list[Integers], clients: int, a: float, b: float, draw: Mixes, rng: Random, smallest: int = 0
) -> list[Integers]:
    """Divide as the paper's text says; the client sizes are exactly those drawn.

    sizes   nᵢ from a log-normal with median N/C and deviation b, rescaled to sum to N, rounded; with `smallest` = 1
            none is 0
    mixes   qᵢ as drawn; the classes' shares of all samples when a = 0
    first   in random order, client i takes ⌊nᵢ qᵢₖ⌋ of each class k, as far as the class lasts
    then    in random order, client i fills up to nᵢ from what is left, r: class k in proportion to qᵢₖ rₖ
    """
    pools = [rng.permutation(pool) for pool in pools]
    left = np.array([len(pool) for pool in pools])
    sizes = largest_remainders(log_normal_shares(clients, b, rng) * left.sum(), int(left.sum()))
    if smallest:
        sizes = without_zeros(sizes)
    balanced = np.tile(left / left.sum(), (clients, 1))
    mixes = balanced if a == 0 else draw(clients, len(pools), a, rng)
    mixes /= mixes.sum(axis=1, keepdims=True)
    counts = np.zeros((clients, len(pools)), dtype=np.int64)
    for i in rng.permutation(clients):
        counts[i] = np.minimum(floored(sizes[i] * mixes[i]), left)
        left -= counts[i]
    for i in rng.permutation(clients):
        while missing := int(sizes[i] - counts[i].sum()):
            wish = mixes[i] * left
            if wish.sum() == 0:  # no sample is left of the classes in this client's mix
                wish = left.astype(np.float64)
            taken = np.minimum(largest_remainders(wish / wish.sum() * missing, missing), left)
            counts[i] += taken
            left -= taken
    return [rng.permutation(np.concatenate(of_client)) for of_client in assigned(pools, counts)]


def _published(pools: list[Integers], clients: int, a: float, b: float, draw: Mixes, rng: Random) -> list[Integers]:
    """Divide as the published code does; a client's samples stay in the order in which it received them.

    sizes     nᵢ from a log-normal with median n = Σₖ ⌊Nₖ / C⌋ and deviation b, rescaled to sum to n C, truncated to
              whole numbers
    mixes     qᵢ as drawn; the same for all classes when a = 0
    expected  eᵢₖ = ⌊nᵢ qᵢₖ⌋
    first     client by client, class by class: client i takes min(eᵢₖ, what is left of class k)
    then      class by class: each sample left goes to a client drawn with probability
              ∝ 1 + (eᵢₖ − received of class k) + ¼ max(0, Σₖ eᵢₖ − received so far)

    Random numbers are drawn in the same order as in the published code (sizes, mixes, the order of each class,
    clients for samples left over), so `RandomState(seed)` gives exactly the clients of the published runs.
    """
    each = sum(len(pool) // clients for pool in pools)
    sizes = np.full(clients, each) if b == 0 else floored(log_normal_shares(clients, b, rng) * each * clients)
    mixes = np.full((clients, len(pools)), 1 / len(pools)) if a == 0 else draw(clients, len(pools), a, rng)
    pools = [rng.permutation(pool) for pool in pools]
    # No guard against rounding error here: the published runs truncate in the same way.
    expected = np.floor(sizes[:, None] * mixes / mixes.sum(axis=1, keepdims=True)).astype(np.int64)
    # min(expected, left), in order: the running total of a class, limited to its number of samples.
    running = np.minimum(np.cumsum(expected, axis=0), [len(pool) for pool in pools])
    counts = np.diff(running, axis=0, prepend=0)
    pieces = assigned(pools, counts)
    received = counts.sum(axis=1)
    for k, pool in enumerate(pools):
        rest = pool[counts[:, k].sum() :]
        chance = leftover_chance(expected[:, k], counts[:, k], expected.sum(axis=1), received)
        taker = rng.choice(clients, size=len(rest), p=chance)
        for i in np.unique(taker):
            pieces[i].append(rest[taker == i])
        received = received + np.bincount(taker, minlength=clients)
    return [np.concatenate(of_client) for of_client in pieces]


Divide = Callable[[list[Integers], int, float, float, Mixes, Random], list[Integers]]
SCHEMES: dict[str, Divide] = {"paired": partial(_paper, smallest=1), "paper": _paper, "published": _published}
MIXES: dict[str, Mixes] = {"paired": mixes_by_client, "paper": mixes_by_client, "published": mixes_by_class}


def leftover_chance(
    expected: Integers, received: Integers, expected_total: Integers, received_total: Integers
) -> Floats:
    """Probability of each client to get a sample left over of a class, in the published scheme.

    ∝ 1 + (expected − received) of the class + ¼ max(0, expected − received) of all classes
    """
    weight = 1 + (expected - received) + 0.25 * np.maximum(0, expected_total - received_total)
    return np.asarray(weight / weight.sum())


def by_group(groups: ArrayLike) -> list[tuple[str, Integers]]:
    """The samples of each group with its name, in the order of the groups' values."""
    values, member = np.unique(np.asarray(groups), return_inverse=True)
    order = np.argsort(member, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(member, minlength=len(values)))[:-1])
    return [(_text(value), part) for value, part in zip(values, parts, strict=True)]


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def federate(
    dataset: Dataset | OwnClients,
    *,
    clients: int = 100,
    class_imbalance: float = 0.0,
    size_imbalance: float = 0.0,
    scheme: str = "paired",
    mixes: str | None = None,
    clusters: int = 0,
    labels_each: int = 0,
    group: str | None = None,
    kinds: int = 0,
    kind_shares: Sequence[float] = (),
    differ: str = "rotated",
    samples: int = 0,
    test: float = 0.2,
    validation: float = 0.0,
    newcomers: float = 0.0,
    pooled: bool = False,
    preprocess: str = "auto",
    scale_target: str = "standardise",
    seed: int = 0,
) -> Federation:
    """Divide a data set among clients, or the samples of clients that are there already.

    Training and testing part are each divided into `clients` clients; the same seed gives the same federation
    everywhere. See `split` for the imbalances and schemes, `features.preprocessing` for `preprocess`, and
    `Target.scaled` for `scale_target`, the scaling of a number that is predicted.

    paired            testing client i has the class mix and the share of samples of training client i, as closely as
                      whole numbers allow, so what it measures is how well a model serves that client
    paper, published  both parts are divided independently: testing client i has nothing to do with training client i

    With `group` the clients are the groups of that name instead (the writers, for example), in the order of the
    groups' values. They are paired if the same groups occur in both parts. A testing part without any groups is
    divided evenly among as many testing clients as there are training clients, or samples if those are fewer.

    Clients that are there already (`OwnClients`) keep their samples, and each divides its own.

    kinds, kind_shares, differ  clients in groups that differ, see `in_kinds`; with differ = `classes` the groups are
                                clusters, see `split`
    labels_each                 number of classes of each client, see `split` (0: all, by the class imbalance)
    samples                     at most so many training samples of each client, with its class mix; testing samples
                                stay (0: all)
    test                        of clients that are there already: share of each client's samples for testing
    validation                  share of each client's training samples that is held out, see `Federation.held_out`
    newcomers                   share of the clients that are never sampled, see `Federation.with_newcomers`
    pooled                      all training samples in one place, see `Federation.pooled`
    """
    imbalance: dict[str, Any] = {"class_imbalance": class_imbalance, "size_imbalance": size_imbalance}
    imbalance |= {"clusters": clusters, "labels_each": labels_each}
    if isinstance(dataset, OwnClients):
        unused = {**imbalance, "mixes": mixes, "group": group}
        if wrong := next((what for what, given in unused.items() if given), None):
            raise BadInput(f"the clients of {dataset.name} are given with their samples: leave out partition.{wrong}")
        federation = dataset.federation(
            test=test,
            validation=validation,
            samples=samples,
            preprocess=preprocess,
            scale_target=scale_target,
            seed=seed,
        )
    else:
        if class_imbalance or clusters or labels_each or differ in ("permuted", "classes"):
            dataset.require_classes("class_imbalance, clusters, labels_each and differ")
        of: Integers | None = None  # the cluster of each client
        if group is not None:
            train, tested = _by_origin(dataset, group, seed)
            paired = train[0] == tested[0]
        else:
            paired = scheme == "paired"
            if differ == "classes":
                require_paired(paired)
                if clusters:
                    raise BadInput("kinds that differ in their classes are clusters: leave out clusters, or differ")
                of = kind_of_each(clients, kinds, kind_shares, seed=seed)
                imbalance["clusters"] = int(of.max()) + 1
            elif clusters > 0:
                of = np.arange(clients) % clusters
            how = {"clients": clients, "mixes": mixes, "cluster_of": of, **imbalance}
            train, tested = _divided(dataset, seed, scheme, **how)
        if samples:
            train = _limited(train, dataset.strata[0], samples, seed)
        kind = "none" if preprocess == "by client" else preprocess
        federation = assembled(dataset, train, tested, kind, scale_target, paired=paired)
        federation = federation if of is None else replace(federation, kinds=tuple(of.tolist()))
    in_classes = differ == "classes" and federation.kinds is not None
    if not in_classes and (kinds or len(kind_shares) or differ != "rotated"):
        federation = in_kinds(federation, kinds, shares=kind_shares, differ=differ, seed=seed, copy=False)
    if federation.validation is None:
        federation = federation.held_out(validation, seed)
    federation = federation.with_newcomers(newcomers, seed)
    if preprocess == "by client" and isinstance(dataset, Dataset):
        federation = federation.standardised_by_client()
    return federation.pooled(seed) if pooled else federation


def _limited(train: Parts, labels: Integers, samples: int, seed: int) -> Parts:
    """At most so many samples of each client, with its class mix."""
    if samples < 0:
        raise BadInput(f"samples = {samples} is out of range: give 1 or more for each client, or 0 for all")
    rng = stream(seed, "samples of clients")
    return train[0], [
        part[stratified(labels[part], samples, rng)] if len(part) > samples else part for part in train[1]
    ]


def _divided(dataset: Dataset, seed: int, scheme: str, **settings: Any) -> tuple[Parts, Parts]:
    """Training and testing clients by a scheme."""
    y_train, y_test = dataset.strata
    if scheme == "paired":
        train = split(y_train, scheme=scheme, rng=stream(seed, "paired training clients"), **settings)
        counts = np.array([np.bincount(y_train[part], minlength=dataset.classes) for part in train])
        return ((), train), ((), split_like(counts, y_test, stream(seed, "paired testing clients")))
    rngs: tuple[Random, Random] = stream(seed, "training clients"), stream(seed, "testing clients")
    if scheme == "published":
        # The published runs use one generator for both parts and seed it again in between, except for seed 0.
        older = np.random.RandomState(seed)
        rngs = older, older if seed == 0 else np.random.RandomState(seed)
    train, test = (split(y, scheme=scheme, rng=rng, **settings) for y, rng in zip((y_train, y_test), rngs, strict=True))
    return ((), train), ((), test)


def _by_origin(dataset: Dataset, group: str, seed: int) -> tuple[Parts, Parts]:
    """Training and testing clients by a group key of the samples."""
    if group not in dataset.groups_train:
        known = nearest(group, dataset.groups_train) if dataset.groups_train else ": it has no groups at all"
        raise BadInput(f"{dataset.name} has no group '{group}'{known}")
    train = _named(dataset.groups_train[group])
    if group in dataset.groups_test:
        names, parts = _named(dataset.groups_test[group])
        by_name = dict(zip(names, parts, strict=True))
        if set(train[0]) == set(names) and len(by_name) == len(names):
            # The same names in the same order: numbers in one part and strings in the other sort differently.
            names, parts = train[0], [by_name[name] for name in train[0]]
        return train, (names, parts)
    if dataset.groups_test:
        raise BadInput(
            f"the testing part of {dataset.name} has no group '{group}'"
            f"{nearest(group, dataset.groups_test)}: add {group}_test to the data"
        )
    fit = min(len(train[1]), len(dataset.y_test))
    if fit == 1:
        return train, ((), [np.arange(len(dataset.y_test))])
    return train, ((), split(dataset.strata[1], fit, scheme="paper", rng=stream(seed, "testing clients")))


def _named(groups: Array) -> Parts:
    found = by_group(groups)
    return tuple(name for name, _ in found), [part for _, part in found]
