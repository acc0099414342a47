"""Partition schemes: every sample is assigned once, and the imbalance is the one requested."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkin.data.apportion import largest_remainders
from fedkin.data.draws import log_dirichlet, log_normal_shares
from fedkin.data.partition import SCHEMES, federate, leftover_chance, split
from fedkin.data.sources import from_arrays, load
from fedkin.errors import BadInput
from fedkin.types import Integers
from small_data import counts_of, entropy, labels_of


def divide(labels: Integers, clients: int, a: float = 0, b: float = 0, scheme: str = "paper", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return split(labels, clients, class_imbalance=a, size_imbalance=b, scheme=scheme, rng=rng)


every_scheme = pytest.mark.parametrize("scheme", sorted(SCHEMES))
imbalance = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(0, 1e308))


@settings(deadline=None, max_examples=150)
@given(
    labels=st.lists(st.integers(0, 6), min_size=2, max_size=80),
    data=st.data(),
    a=imbalance,
    b=imbalance,
    scheme=st.sampled_from(sorted(SCHEMES)),
    seed=st.integers(0, 2**32),
)
def test_every_sample_is_assigned_once(
    labels: list[int], data: st.DataObject, a: float, b: float, scheme: str, seed: int
) -> None:
    clients = data.draw(st.integers(2, len(labels)))
    parts = divide(np.array(labels), clients, a, b, scheme, seed)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6), a=imbalance, data=st.data())
def test_paper_sizes_are_those_sampled(sizes: list[int], a: float, data: st.DataObject) -> None:
    """With b = 0 they are N/C, rounded down or up, whatever the class imbalance."""
    clients = data.draw(st.integers(2, sum(sizes)))
    got = [len(part) for part in divide(labels_of(*sizes), clients, a)]
    assert set(got) <= {sum(sizes) // clients, -(-sum(sizes) // clients)}


@every_scheme
def test_same_seed_same_split(scheme: str) -> None:
    labels = labels_of(50, 60, 70)
    one, again, other = (divide(labels, 6, 2, 0.5, scheme, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(one, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


# --- balanced ---


def test_paper_balanced_by_hand() -> None:
    """6 and 3 samples at 3 clients: 2 and 1 each.

    4 and 4 at 3 clients: sizes 3 3 2, wishes ⌊1.5⌋ = 1 or 1 of both classes; one sample of each class is left
    for the two clients of 3.
    """
    labels = labels_of(6, 3)
    assert counts_of(labels, divide(labels, 3)).tolist() == [[2, 1]] * 3
    labels = labels_of(4, 4)
    counts = counts_of(labels, divide(labels, 3)).tolist()
    assert sorted(counts[:2]) == [[1, 2], [2, 1]]
    assert counts[2] == [1, 1]


def test_paper_balanced_means_balanced() -> None:
    """Unequal classes, sizes that do not divide: every class is spread evenly, up to one sample."""
    labels = load("digits").y_train
    counts = counts_of(labels, divide(labels, 23))
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_published_balanced_by_hand() -> None:
    """Classes of 7, 6, 5 at 2 clients: n = 3 + 3 + 2 = 8, ⌊8/3⌋ = 2 of each class; 3 + 2 + 1 are left over.

    The samples stay in the order received: the three classes, then what was left over of them.
    """
    labels = labels_of(7, 6, 5)
    parts = divide(labels, 2, scheme="published")
    for part in parts:
        assert labels[part[:6]].tolist() == [0, 0, 1, 1, 2, 2]
        assert np.all(np.diff(labels[part[6:]]) >= 0)
    assert sum(len(part) for part in parts) == 18


def test_published_without_leftovers_is_exact() -> None:
    """20 of each of 3 classes at 4 clients: n = 15, 5 of each class, none left."""
    labels = labels_of(20, 20, 20)
    assert counts_of(labels, divide(labels, 4, scheme="published")).tolist() == [[5, 5, 5]] * 4


def test_published_shares_of_one_sample_are_not_lost_to_rounding() -> None:
    """49 classes of 2 at 2 clients: n = 49, and 49 · (1/49) is just below 1 in floating point."""
    labels = labels_of(*[2] * 49)
    assert counts_of(labels, divide(labels, 2, scheme="published")).tolist() == [[1] * 49] * 2


def test_samples_are_shuffled() -> None:
    labels = labels_of(100, 100)
    mixed, ordered = (divide(labels, 2, scheme=scheme)[0] for scheme in ("paper", "published"))
    assert np.any(np.diff(labels[mixed]) < 0)
    assert np.any(np.diff(ordered[:50]) < 0)  # which samples of a class is random, in both


# --- what is left over, in the published scheme ---


def test_leftover_chance_by_hand() -> None:
    """Client 0: 1 + (3 − 1) + ¼ (6 − 2) = 4. Client 1: 1 + 0 + ¼ max(0, 4 − 5) = 1."""
    chance = leftover_chance(np.array([3, 1]), np.array([1, 1]), np.array([6, 4]), np.array([2, 5]))
    assert chance.tolist() == [0.8, 0.2]


class Scripted:
    """Random numbers that are not: nothing is shuffled, client 0 is always drawn, the chances are kept."""

    def __init__(self) -> None:
        self.chances: list[list[float]] = []

    def permutation(self, values: Any) -> Any:
        return values

    def choice(self, clients: int, size: int, p: NDArray[np.float64]) -> Integers:
        self.chances.append(p.tolist())
        return np.zeros(size, dtype=np.int64)


def test_leftovers_by_hand() -> None:
    """Classes of 10, 2, 10 at 2 clients: n = 5 + 1 + 5 = 11, expected ⌊11/3⌋ = 3 of each, 9 together.

    Client 0 takes 3 2 3 (class 1 runs out), client 1 takes 3 0 3; 4 0 4 are left over.
    class 0: 1 + 0 + ¼ (9 − 8) = 1.25 against 1 + 0 + ¼ (9 − 6) = 1.75. All four go to client 0: 12 against 6.
    class 1: 1 + 1 + 0 = 2 against 1 + 3 + ¾ = 4.75
    class 2: 1 + 0 + 0 = 1 against 1.75
    """
    rng, labels = Scripted(), labels_of(10, 2, 10)
    parts = split(labels, 2, scheme="published", rng=cast(np.random.Generator, rng))
    assert [part.tolist() for part in parts] == [
        [0, 1, 2, 10, 11, 12, 13, 14, 6, 7, 8, 9, 18, 19, 20, 21],
        [3, 4, 5, 15, 16, 17],
    ]
    for got, weights in zip(rng.chances, ([1.25, 1.75], [2, 4.75], [1, 1.75]), strict=True):
        assert got == pytest.approx(np.array(weights) / sum(weights))


# --- imbalanced ---


@every_scheme
def test_larger_a_means_fewer_classes_a_client(scheme: str) -> None:
    labels = np.tile(np.arange(10), 300)
    mixes = [entropy(counts_of(labels, divide(labels, 20, a, scheme=scheme))) for a in (0, 0.1, 1, 10, 1000)]
    assert np.all(np.diff(mixes) < -0.02)
    assert mixes[0] == pytest.approx(np.log(10), abs=1e-3)
    assert mixes[-1] < 0.6


def test_labels_each_by_hand() -> None:
    """Clients 0 to 5 with two of three classes: 0 1, 1 2, 2 0 and again; each class has four clients."""
    labels = labels_of(8, 12, 6)
    parts = split(labels, 6, labels_each=2, rng=np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(26))
    counts = counts_of(labels, parts)
    assert (counts > 0).tolist() == [[True, True, False], [False, True, True], [True, False, True]] * 2
    assert sorted(counts[:, 0]) == [0, 0, 2, 2, 2, 2]
    assert sorted(counts[:, 1]) == [0, 0, 3, 3, 3, 3]
    assert sorted(counts[:, 2]) == [0, 0, 1, 1, 2, 2]


@given(st.integers(5, 30), st.integers(1, 5), st.sampled_from([0.0, 0.5, 3.0, 1e3]), st.integers(0, 99))
def test_labels_each_is_a_division(clients: int, each: int, b: float, seed: int) -> None:
    labels = labels_of(40, 60, 30, 35, 50)
    parts = split(labels, clients, labels_each=each, size_imbalance=b, rng=np.random.default_rng(seed))
    assert sorted(np.concatenate(parts)) == list(range(215))
    assert ((counts_of(labels, parts) > 0).sum(axis=1) == each).all()


def test_testing_clients_have_the_labels_of_their_training_clients() -> None:
    federation = federate(load("digits"), clients=20, labels_each=2, size_imbalance=0.5, seed=3)
    for client in range(20):
        here = [sorted(set(part.y[part.rows(client)].tolist())) for part in (federation.train, federation.test)]
        assert here[0] == here[1] == sorted([client % 10, (client + 1) % 10])


@every_scheme
def test_larger_b_means_more_unequal_sizes(scheme: str) -> None:
    labels = np.tile(np.arange(10), 300)
    spread = [np.std([len(part) for part in divide(labels, 20, 0, b, scheme)]) for b in (0, 0.2, 1, 3)]
    assert np.all(np.diff(spread) > 10)
    assert spread[0] == 0


def test_paper_clients_take_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients want class 0 alone, which lasts for one of them: not always for the same."""
    wanted = np.log([[1, 1e-20]] * 2)
    monkeypatch.setattr("fedkin.data.draws.log_dirichlet", lambda *_: wanted)
    labels = labels_of(10, 10)
    first = [counts_of(labels, divide(labels, 2, a=1, seed=seed))[0].tolist() for seed in range(20)]
    assert sorted({tuple(counts) for counts in first}) == [(0, 10), (10, 0)]


def test_dirichlet_draws_have_the_right_moments() -> None:
    """Dir((1/a)·1_K): mean 1/K, variance (1/K)(1 − 1/K) / (K/a + 1); K = 4: 0.1875 / (4/a + 1)."""
    for a in (0.5, 1, 100):
        draws = np.exp(log_dirichlet(40_000, 4, a, np.random.default_rng(0)))
        assert draws.sum(axis=1) == pytest.approx(1)
        assert draws.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.01)
        assert draws.var(axis=0) == pytest.approx([0.1875 / (4 / a + 1)] * 4, rel=0.04)


@pytest.mark.parametrize("a", [5e-324, 1e-300, 1e300, 1.7e308])
def test_dirichlet_draws_at_the_extremes(a: float) -> None:
    draws = np.exp(log_dirichlet(5, 3, a, np.random.default_rng(0)))
    wanted = np.full((5, 3), 1 / 3) if a < 1 else np.eye(3)[draws.argmax(axis=1)]
    assert draws == pytest.approx(wanted, abs=1e-5)


def test_sizes_are_log_normal_shares() -> None:
    for b in (0.3, 2):
        shares = log_normal_shares(20_000, b, np.random.default_rng(0))
        assert shares.sum() == pytest.approx(1)
        assert np.std(np.log(shares)) == pytest.approx(b, rel=0.03)


def test_largest_remainders_are_rounded_up() -> None:
    assert largest_remainders(np.array([1.2, 0.7, 2.6, 0.5]), 5).tolist() == [1, 1, 3, 0]


# --- bad input ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 11}, "11 clients cannot share 10 samples"),
        ({"clients": 1}, "at least two"),
        ({"clients": 0}, "at least two"),
        ({"class_imbalance": -1.0}, "class imbalance a is -1.0"),
        ({"size_imbalance": -0.5}, "size imbalance b is -0.5"),
        ({"class_imbalance": float("inf")}, "class imbalance a is inf"),
        ({"size_imbalance": float("nan")}, "size imbalance b is nan"),
        ({"scheme": "papper"}, "did you mean 'paper'"),
        ({"labels_each": 3}, "labels_each = 3 is out of range"),
        ({"labels_each": 1, "class_imbalance": 1.0}, "leave out class_imbalance"),
    ],
)
def test_bad_input(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        split(labels_of(5, 5), rng=np.random.default_rng(0), **{"clients": 2} | change)
    with pytest.raises(BadInput, match=words):
        federate(from_arrays(np.eye(10), labels_of(5, 5), np.eye(10), labels_of(5, 5)), **{"clients": 2} | change)
