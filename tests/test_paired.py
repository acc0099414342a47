"""The paired scheme: testing client i has the class mix and the share of samples of training client i."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data import Dataset, Federation, federate, from_arrays, load, split, split_like
from fedkin.data.apportion import counts_like, without_zeros
from fedkin.errors import BadInput
from fedkin.types import Floats, Integers
from small_data import counts_of, labels_of

label_lists = st.lists(st.integers(0, 5), min_size=4, max_size=80)
imbalance = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(0, 1e308))


def quotas(like: Integers, available: Integers) -> Floats:
    """qᵢₖ = Mₖ nᵢₖ / Σᵢ nᵢₖ, or Mₖ nᵢ / N for a class without training samples."""
    weights = np.where(like.sum(axis=0) > 0, like, like.sum(axis=1, keepdims=True))
    return np.asarray(available * weights / weights.sum(axis=0))


def numbered(train: Integers, test: Integers) -> Dataset:
    """Sample j has the feature j, so samples can be identified after they are divided."""
    return from_arrays(np.arange(len(train))[:, None] * 1.0, train, np.arange(len(test))[:, None] * 1.0, test)


def both_counts(federation: Federation) -> tuple[Integers, Integers]:
    return federation.train.class_counts(federation.classes), federation.test.class_counts(federation.classes)


# --- by hand ---


def test_quotas_that_are_whole_numbers_are_met() -> None:
    """Half as many testing samples of both classes: half of what each client has."""
    assert counts_like(np.array([[4, 0], [2, 2], [0, 6]]), np.array([3, 4])).tolist() == [[2, 0], [1, 1], [0, 3]]


def test_remainders_are_carried_over_to_the_next_class() -> None:
    """Four clients alike, two testing samples of each class: all quotas are ½.

    Clients 0 and 1 get class 0, so that they have −½ and the others ½. With class 1 that is 0 and 1: it goes to
    clients 2 and 3. By the remainders of each class alone, clients 0 and 1 would get both.
    """
    assert counts_like(np.ones((4, 2), dtype=np.int64), np.array([2, 2])).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]


def test_largest_remainders_first() -> None:
    """5, 3, 2 training samples, 4 testing samples: quotas 2, 1.2, 0.8, so that one is left for client 2."""
    assert counts_like(np.array([[5], [3], [2]]), np.array([4])).tolist() == [[2], [1], [1]]


def test_a_client_without_samples_gets_one_of_its_largest_class() -> None:
    """8 and 1 samples of class 0, 3 of class 1; testing: 3 and 1. Quotas of class 0: 2⅔ and ⅓, rounded to 3 and 0.

    Client 1 then gets one sample of class 0 from client 0.
    """
    assert counts_like(np.array([[8, 0], [1, 0], [0, 3]]), np.array([3, 1])).tolist() == [[2, 0], [1, 0], [0, 1]]


def test_the_client_that_keeps_most_of_its_quota_gives() -> None:
    """Quotas 8.4, 5.4, 0.1, 0.1 are rounded to 9, 5, 0, 0. Client 0 would keep 8/8.4, client 1 only 4/5.4.

    For the second empty client it is 7/8.4 against 4/5.4, so client 0 gives again.
    """
    counts = counts_like(np.array([[84], [54], [1], [1]]), np.array([14]))
    assert counts.tolist() == [[7], [5], [1], [1]]


def test_a_class_without_training_samples_is_divided_by_size() -> None:
    """Training sizes 6 and 2: of four testing samples of class 1, three and one."""
    assert counts_like(np.array([[6, 0], [2, 0]]), np.array([4, 4])).tolist() == [[3, 3], [1, 1]]


def test_training_sizes_without_zeros() -> None:
    assert without_zeros(np.array([0, 5, 3, 0])).tolist() == [1, 3, 3, 1]
    assert without_zeros(np.array([0, 1, 1])).tolist() == [0, 1, 1], "too few for all"


# --- properties ---


@settings(deadline=None, max_examples=200)
@given(
    like=st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=2, max_size=12).filter(
        lambda rows: all(map(sum, rows))
    ),
    available=st.lists(st.integers(0, 30), min_size=4, max_size=4),
)
def test_counts_stay_within_one_sample_of_the_quota(like: list[list[int]], available: list[int]) -> None:
    """|m − q| < 1 after rounding. Of `single` clients with one sample each may have got it from another client."""
    n, m = np.array(like), np.array(available)
    if m.sum() < len(n):
        return
    counts = counts_like(n, m)
    assert counts.sum(axis=0).tolist() == available
    assert (counts >= 0).all()
    assert (counts.sum(axis=1) >= 1).all()
    error, single = counts - quotas(n, m), int((counts.sum(axis=1) == 1).sum())
    assert error.max() <= 1
    assert error.min() > -1 - single - 1e-9
    if (quotas(n, m).sum(axis=1) >= n.shape[1]).all():  # then rounding leaves no client without samples
        assert np.abs(error).max() < 1


@settings(deadline=None, max_examples=150)
@given(train=label_lists, test=label_lists, data=st.data(), a=imbalance, b=imbalance, seed=st.integers(0, 2**32))
def test_every_sample_once_and_every_client_served(
    train: list[int], test: list[int], data: st.DataObject, a: float, b: float, seed: int
) -> None:
    clients = data.draw(st.integers(2, min(len(train), len(test))))
    train[:2] = [0, 1]  # a data set has at least two classes
    dataset = numbered(np.array(train), np.array(test))
    federation = federate(dataset, clients=clients, class_imbalance=a, size_imbalance=b, preprocess="none", seed=seed)
    assert federation.paired
    for part, labels in ((federation.train, dataset.y_train), (federation.test, dataset.y_test)):
        rows = part.x.ravel().numpy().astype(int)
        assert sorted(rows.tolist()) == list(range(len(labels)))
        assert np.array_equal(labels[rows], part.y.numpy())
        assert len(part) == clients
        assert part.sizes.min() >= 1
    n, m = both_counts(federation)
    assert np.array_equal(m, counts_like(n, np.bincount(dataset.y_test, minlength=federation.classes)))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(20, 60), min_size=2, max_size=5), times=st.integers(1, 4), a=imbalance, data=st.data()
)
def test_class_mixes_agree(sizes: list[int], times: int, a: float, data: st.DataObject) -> None:
    """With 1/s of each class in the testing part, qᵢₖ = nᵢₖ/s and qᵢ = nᵢ/s. Where |mᵢₖ − qᵢₖ| < 1, the mixes differ by

    |mᵢₖ/mᵢ − nᵢₖ/nᵢ| ≤ (|mᵢₖ − qᵢₖ| + (nᵢₖ/nᵢ)·|mᵢ − qᵢ|) / mᵢ < (1 + |mᵢ − qᵢ|) / mᵢ.
    """
    train, test = labels_of(*(times * size for size in sizes)), labels_of(*sizes)
    clients = data.draw(st.integers(2, len(test) // (len(sizes) + 1)))  # qᵢ ≥ K: no client needs a sample of another
    n, m = both_counts(federate(numbered(train, test), clients=clients, class_imbalance=a))
    received, quota = m.sum(axis=1, keepdims=True), n.sum(axis=1, keepdims=True) / times
    difference = np.abs(m / received - n / n.sum(axis=1, keepdims=True))
    assert (difference < (1 + np.abs(received - quota)) / received).all()
    assert (m[n == 0] == 0).all(), "no testing samples of a class that the client does not train on"
    if times == 1:
        assert np.array_equal(n, m)


@pytest.mark.parametrize("seed", [0, 1, 41])
def test_shares_agree_to_one_sample(seed: int) -> None:
    """On real digits every testing client is less than one sample away from its quota, for every seed."""
    digits = load("digits", seed=seed)
    for clients, a, b in product((10, 20, 50), (0, 1, 10, 100), (0, 0.5)):
        n, m = both_counts(federate(digits, clients=clients, class_imbalance=a, size_imbalance=b, seed=seed))
        quota = quotas(n, np.bincount(digits.y_test)).sum(axis=1)
        assert np.abs(m.sum(axis=1) - quota).max() < 1, (clients, a, b)


@pytest.mark.parametrize("seed", [0, 1])
def test_testing_client_i_is_training_client_i(seed: int) -> None:
    """Of the testing clients, number i has the class mix that is nearest to that of training client i."""
    federation = federate(load("digits"), clients=10, class_imbalance=10, size_imbalance=0.5, seed=seed)
    n, m = (counts / counts.sum(axis=1, keepdims=True) for counts in both_counts(federation))
    distance = np.abs(n[:, None] - m[None]).sum(axis=2)
    assert distance.argmin(axis=1).tolist() == list(range(10))


def test_many_clients_of_very_unequal_sizes() -> None:
    """359 testing digits for 100 clients: every one has at least one, which no other scheme manages."""
    federation = federate(load("digits"), clients=100, class_imbalance=100, size_imbalance=2)
    assert federation.train.sizes.min() == federation.test.sizes.min() == 1
    with pytest.raises(BadInput, match=r"hold no sample.*the scheme 'paired'"):
        federate(load("digits"), clients=100, class_imbalance=100, size_imbalance=2, scheme="paper")


def test_clusters_have_the_same_classes_in_both_parts() -> None:
    federation = federate(load("digits"), clients=20, clusters=5, class_imbalance=1, size_imbalance=1)
    for i, (n, m) in enumerate(zip(*both_counts(federation), strict=True)):
        assert set(np.flatnonzero(m)) <= set(np.flatnonzero(n)) <= {i % 5, i % 5 + 5}


# --- what else holds ---


def test_paired_is_the_default_and_the_others_are_not_paired() -> None:
    digits = load("digits")
    usual, named = federate(digits, clients=5), federate(digits, clients=5, scheme="paired")
    assert usual.paired
    assert usual.train.x.equal(named.train.x)
    assert usual.test.x.equal(named.test.x)
    for scheme in ("paper", "published"):
        assert not federate(digits, clients=5, scheme=scheme).paired


@pytest.mark.parametrize("paired", [True, False])
def test_relabelled_clients_stay_paired(paired: bool) -> None:
    options: dict[str, Any] = {} if paired else {"scheme": "published"}
    federation = federate(load("digits"), clients=6, class_imbalance=10, size_imbalance=1, **options)
    order = [3, 0, 5, 1, 4, 2]
    moved = federation.relabelled(order)
    (n, m), (n_moved, m_moved) = both_counts(federation), both_counts(moved)
    assert np.array_equal(n_moved, n[order])
    assert np.array_equal(m_moved, m[order] if paired else m)
    assert moved.paired == paired


def test_unequal_numbers_of_clients_cannot_be_paired() -> None:
    federation = federate(load("digits"), clients=3)
    with pytest.raises(BadInput, match="3 training and 2 testing clients cannot be paired"):
        Federation(
            federation.train,
            federation.test.reordered([0, 1]),
            federation.classes,
            federation.shape,
            federation.shift,
            federation.scale,
            paired=True,
        )


def test_which_samples_are_drawn_at_random() -> None:
    labels, like = labels_of(40, 40), np.array([[30, 10], [10, 30]])
    one, again, other = (split_like(like, labels, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert counts_of(labels, one).tolist() == [[30, 10], [10, 30]]
    assert np.array_equal(one[0], again[0])
    assert not np.array_equal(np.sort(one[0]), np.sort(other[0]))


def test_paired_training_clients_are_those_of_the_paper_s_scheme() -> None:
    """Where no client would be empty, `split` divides one part as the scheme `paper` does."""
    labels = load("digits").y_train
    for one, other in zip(
        *(split(labels, 8, class_imbalance=5, scheme=s, rng=np.random.default_rng(0)) for s in ("paired", "paper")),
        strict=True,
    ):
        assert np.array_equal(one, other)
