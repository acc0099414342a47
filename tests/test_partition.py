"""Partition: nothing lost, nothing twice, and as imbalanced as asked."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkin.data.partition import (
    SCHEMES,
    _log_dirichlet,
    _log_normal,
    _round,
    by_group,
    federate,
    from_clients,
    leftover_chance,
    split,
)
from fedkin.data.sources import Dataset, from_arrays, load
from fedkin.errors import BadInput

Labels = NDArray[np.int64]


def labels_of(*sizes: int) -> Labels:
    """Labels of classes of the given sizes: `labels_of(2, 1)` is 0 0 1."""
    return np.repeat(np.arange(len(sizes)), sizes)


def divide(labels: Labels, clients: int, a: float = 0, b: float = 0, scheme: str = "paper", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return split(labels, clients, class_imbalance=a, size_imbalance=b, scheme=scheme, rng=rng)


def counts_of(labels: Labels, parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Samples of each class at each client, (C, K)."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def entropy(counts: NDArray[np.int64]) -> float:
    """Mean entropy of the clients' class mixes: ln K when balanced, 0 with one class a client."""
    mix = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return float(-(mix * np.log(np.maximum(mix, 1e-300))).sum(axis=1).mean())


both = pytest.mark.parametrize("scheme", sorted(SCHEMES))
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
def test_nothing_lost_nothing_twice(
    labels: list[int], data: st.DataObject, a: float, b: float, scheme: str, seed: int
) -> None:
    clients = data.draw(st.integers(2, len(labels)))
    parts = divide(np.array(labels), clients, a, b, scheme, seed)
    assert len(parts) == clients
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(2, 40), min_size=1, max_size=6), a=imbalance, data=st.data())
def test_paper_sizes_come_out_as_drawn(sizes: list[int], a: float, data: st.DataObject) -> None:
    """With b = 0 they are N/C, rounded down or up, whatever the class imbalance."""
    clients = data.draw(st.integers(2, sum(sizes)))
    got = [len(part) for part in divide(labels_of(*sizes), clients, a)]
    assert set(got) <= {sum(sizes) // clients, -(-sum(sizes) // clients)}


@both
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

    def choice(self, clients: int, size: int, p: NDArray[np.float64]) -> NDArray[np.int64]:
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


@both
def test_larger_a_means_fewer_classes_a_client(scheme: str) -> None:
    labels = np.tile(np.arange(10), 300)
    mixes = [entropy(counts_of(labels, divide(labels, 20, a, scheme=scheme))) for a in (0, 0.1, 1, 10, 1000)]
    assert np.all(np.diff(mixes) < -0.02)
    assert mixes[0] == pytest.approx(np.log(10), abs=1e-3)
    assert mixes[-1] < 0.6


@both
def test_larger_b_means_more_unequal_sizes(scheme: str) -> None:
    labels = np.tile(np.arange(10), 300)
    spread = [np.std([len(part) for part in divide(labels, 20, 0, b, scheme)]) for b in (0, 0.2, 1, 3)]
    assert np.all(np.diff(spread) > 10)
    assert spread[0] == 0


def test_paper_clients_take_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients want class 0 alone, which lasts for one of them: not always for the same."""
    wanted = np.log([[1, 1e-20]] * 2)
    monkeypatch.setattr("fedkin.data.partition._log_dirichlet", lambda *_: wanted)
    labels = labels_of(10, 10)
    first = [counts_of(labels, divide(labels, 2, a=1, seed=seed))[0].tolist() for seed in range(20)]
    assert sorted({tuple(counts) for counts in first}) == [(0, 10), (10, 0)]


def test_dirichlet_draws_have_the_right_moments() -> None:
    """Dir((1/a)·1_K): mean 1/K, variance (1/K)(1 − 1/K) / (K/a + 1); K = 4: 0.1875 / (4/a + 1)."""
    for a in (0.5, 1, 100):
        draws = np.exp(_log_dirichlet(40_000, 4, a, np.random.default_rng(0)))
        assert draws.sum(axis=1) == pytest.approx(1)
        assert draws.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.01)
        assert draws.var(axis=0) == pytest.approx([0.1875 / (4 / a + 1)] * 4, rel=0.04)


@pytest.mark.parametrize("a", [5e-324, 1e-300, 1e300, 1.7e308])
def test_dirichlet_draws_at_the_extremes(a: float) -> None:
    draws = np.exp(_log_dirichlet(5, 3, a, np.random.default_rng(0)))
    wanted = np.full((5, 3), 1 / 3) if a < 1 else np.eye(3)[draws.argmax(axis=1)]
    assert draws == pytest.approx(wanted, abs=1e-5)


def test_sizes_are_log_normal() -> None:
    for b in (0.3, 2):
        shares = _log_normal(20_000, b, np.random.default_rng(0))
        assert shares.sum() == pytest.approx(1)
        assert np.std(np.log(shares)) == pytest.approx(b, rel=0.03)


def test_largest_remainders_are_rounded_up() -> None:
    assert _round(np.array([1.2, 0.7, 2.6, 0.5]), 5).tolist() == [1, 1, 3, 0]


@both
def test_federated_parts_are_as_imbalanced_as_asked(scheme: str) -> None:
    """Both knobs reach both parts."""
    data = load("digits")
    even = federate(data, clients=10, scheme=scheme)
    skewed = federate(data, clients=10, scheme=scheme, class_imbalance=20)
    unequal = federate(data, clients=10, scheme=scheme, size_imbalance=1)
    for part in ("train", "test"):
        clients = getattr(even, part)
        assert entropy(getattr(skewed, part).class_counts(10)) < entropy(clients.class_counts(10)) - 0.5
        assert np.std(getattr(unequal, part).sizes) > 2 * np.std(clients.sizes) + 5


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
    ],
)
def test_bad_input(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        split(labels_of(5, 5), rng=np.random.default_rng(0), **{"clients": 2} | change)
    with pytest.raises(BadInput, match=words):
        federate(from_arrays(np.eye(10), labels_of(5, 5), np.eye(10), labels_of(5, 5)), **{"clients": 2} | change)


def test_clients_without_samples_are_told() -> None:
    """359 testing digits at 100 clients: n = 0, so that chance alone decides and leaves some without."""
    with pytest.raises(BadInput, match="testing clients hold no sample"):
        federate(load("digits"), clients=100)


def test_testing_part_too_small() -> None:
    data = from_arrays(np.eye(10), labels_of(5, 5), np.eye(10)[:3], [0, 1, 1])
    with pytest.raises(BadInput, match="4 clients cannot share 3 samples"):
        federate(data, clients=4)


# --- by group ---


def written() -> Dataset:
    """Sample j has feature j / 10; writers 10, 2 and 7 in training, 3 and 10 in testing."""
    x = np.arange(6.0)[:, None] / 10
    groups = {"writer": np.array([10, 2, 7, 2, 10, 10]), "form": np.array(list("bababb"))}
    return from_arrays(x, [0, 1, 0, 1, 0, 1], x[:3], [1, 0, 1], groups=groups, groups_test={"writer": [10, 3, 3]})


def test_groups_in_the_order_of_their_values() -> None:
    """By value, so 2 comes before 10, and a group's samples keep their order."""
    found = by_group([10, 2, 7, 2, 10])
    assert [(name, part.tolist()) for name, part in found] == [("2", [1, 3]), ("7", [2]), ("10", [0, 4])]
    assert [name for name, _ in by_group(["b", "a", "b"])] == ["a", "b"]
    assert [name for name, _ in by_group(np.array([b"b", b"a"]))] == ["a", "b"]


def test_clients_are_the_writers() -> None:
    federation = federate(written(), group="writer", preprocess="none")
    assert federation.train.names == ("2", "7", "10")
    assert federation.test.names == ("3", "10")
    assert federation.train.x.ravel().tolist() == pytest.approx([0.1, 0.3, 0.2, 0, 0.4, 0.5])
    assert federation.train.y.tolist() == [1, 1, 0, 0, 0, 1]
    assert federation.train.offsets.tolist() == [0, 2, 3, 6]
    assert federation.test.x.ravel().tolist() == pytest.approx([0.1, 0.2, 0])
    assert federation.test.offsets.tolist() == [0, 2, 3]


@pytest.mark.parametrize(("samples", "clients", "sizes"), [(8, 3, [3, 3, 2]), (2, 2, [1, 1]), (1, 1, [1])])
def test_testing_part_without_groups_is_divided_evenly(samples: int, clients: int, sizes: list[int]) -> None:
    x, y = np.eye(8), np.arange(8) % 2
    data = from_arrays(x, y, x[:samples], y[:samples], groups={"client": np.arange(8) % 3})
    federation = federate(data, group="client")
    assert len(federation.train) == 3
    assert len(federation.test) == clients
    assert federation.test.sizes.tolist() == sizes
    assert federation.test.names == ()


def test_bad_groups() -> None:
    with pytest.raises(BadInput, match=r"no group 'writr'.*did you mean 'writer'"):
        federate(written(), group="writr")
    with pytest.raises(BadInput, match=r"no group 'zzz'.*choose from: form, writer"):
        federate(written(), group="zzz")
    with pytest.raises(BadInput, match="digits has no group 'writer': it has no groups at all"):
        federate(load("digits"), group="writer")
    with pytest.raises(BadInput, match=r"testing part of arrays has no group 'form'.*add form_test"):
        federate(written(), group="form")


# --- the federation made of it ---


def numbered(dtype: Any = np.float32) -> Dataset:
    """Sample j has the feature j and the label j mod 3: rows can be told apart after any shuffling."""
    j = np.arange(60)
    return from_arrays(j[:, None].astype(dtype), j % 3, j[:30, None].astype(dtype), j[:30] % 3)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_samples_keep_their_labels(scheme: str, dtype: Any) -> None:
    data = numbered(dtype)
    federation = federate(data, clients=4, class_imbalance=1, scheme=scheme, preprocess="half", seed=3)
    factor = 255 if dtype == np.uint8 else 1
    for clients, samples in ((federation.train, 60), (federation.test, 30)):
        j = np.round((clients.x.numpy().ravel() * 0.5 + 0.5) * factor)
        assert sorted(j.tolist()) == list(range(samples))
        assert np.array_equal(j % 3, clients.y.numpy())
    assert federation.classes == 3
    assert federation.shape == (1,)
    assert np.array_equal(data.x_train, numbered(dtype).x_train)  # the data set itself is left alone


def test_preprocessing_comes_from_the_training_part() -> None:
    """Training features 0 and 2: mean 1, deviation 1. The testing feature 5 becomes (5 − 1) / 1 = 4."""
    data = from_arrays([[0.0], [2.0], [0.0], [2.0]], [0, 1, 0, 1], [[5.0], [5.0]], [0, 1])
    federation = federate(data, clients=2, preprocess="standardise", scheme="paper")
    assert sorted(federation.train.x.ravel().tolist()) == [-1, -1, 1, 1]
    assert federation.test.x.ravel().tolist() == [4, 4]
    assert (federation.shift.tolist(), federation.scale.tolist()) == ([1], [1])
    assert sorted(np.concatenate([federation.raw(i).numpy() for i in (0, 1)]).ravel().tolist()) == [
        0,
        0,
        2,
        2,
    ]


def test_shape_of_images() -> None:
    data = from_arrays(np.zeros((8, 4, 5, 3), dtype=np.uint8), np.arange(8) % 2)
    data_test = from_arrays(data.x_train, data.y_train, data.x_train, data.y_train)
    federation = federate(data_test, clients=2, scheme="paper")
    assert federation.shape == (3, 4, 5)
    assert federation.features == 60


@both
def test_the_seed_fixes_both_parts_apart(scheme: str) -> None:
    """The same seed, the same federation; another testing part leaves the training clients as they are."""
    data, options = numbered(), {"clients": 4, "scheme": scheme, "preprocess": "none"}
    one, again, other = (federate(data, seed=seed, **options) for seed in (0, 0, 1))  # type: ignore[arg-type]
    for part in ("train", "test"):
        x = getattr(one, part).x
        assert x.equal(getattr(again, part).x)
        assert not x.equal(getattr(other, part).x)
    shorter = from_arrays(data.x_train, data.y_train, data.x_test[:20], data.y_test[:20])
    assert federate(shorter, **options).train.x.equal(one.train.x)  # type: ignore[arg-type]
    alike = from_arrays(data.x_train, data.y_train, data.x_train, data.y_train)
    twice = federate(alike, **options)  # type: ignore[arg-type]
    assert not twice.train.x.equal(twice.test.x)


# --- clients that are there already ---


def test_from_clients_by_hand() -> None:
    train = [([[0.0], [1.0]], [0, 1]), ([[0.5]], [2])]
    federation = from_clients(train, [([[1.0]], [0])], name="mine")
    assert federation.train.x.ravel().tolist() == [-1, 1, 0]
    assert federation.train.y.tolist() == [0, 1, 2]
    assert federation.train.offsets.tolist() == [0, 2, 3]
    assert federation.test.x.tolist() == [[1]]
    assert (federation.classes, federation.name) == (3, "mine")


def test_from_clients_bad_input() -> None:
    good = (np.eye(2), np.array([0, 1]))
    with pytest.raises(BadInput, match="training client 1 has features of shape"):
        from_clients([good, (np.eye(2), [0])], [good])
    with pytest.raises(BadInput, match="testing client 1 has float64 samples of shape"):
        from_clients([good, good], [good, (np.eye(3), [0, 1, 1])])
    with pytest.raises(BadInput, match="training client 1 has uint8 samples"):
        from_clients([good, (np.eye(2, dtype=np.uint8), [0, 1])], [good])
    with pytest.raises(BadInput, match="no testing clients"):
        from_clients([good, good], [])
    with pytest.raises(BadInput, match="1 of 2 training clients hold no sample"):
        from_clients([good, (np.zeros((0, 2)), np.zeros(0, dtype=int))], [good])
    with pytest.raises(BadInput, match="at least two training clients"):
        from_clients([good], [good])
