"""Clients in kinds: groups that differ, with the same transform for all samples of a client."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import rotate

from fedkin.data import Dataset, Federation, federate, from_arrays, from_clients, in_kinds, kind_of_each, load
from fedkin.errors import BadInput
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from small_data import labels_of

SHAPES = [(4, 4), (5, 5, 3), (7,)]  # as MNIST, as CIFAR, plain features


def random_data(*shape: int, samples: int = 60, classes: int = 3, seed: int = 0) -> Dataset:
    """Images of bytes, or features in [0, 1]."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (2 * samples, *shape), dtype=np.uint8)
    y = rng.permutation(np.arange(2 * samples) % classes)
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:])


def images(federation: Federation, part: str, client: int) -> Any:
    """Raw samples of a client, (n, *shape)."""
    clients = getattr(federation, part)
    raw = clients.x[clients.rows(client)] * federation.scale + federation.shift
    return raw.numpy().reshape(-1, *federation.shape)


# --- who is of which kind ---


def test_equal_kinds_take_turns() -> None:
    assert kind_of_each(7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_shares_by_largest_remainders() -> None:
    """7 clients by 0.5, 0.3, 0.2: quotas 3.5, 2.1, 1.4, so that the seventh goes to kind 0."""
    found = kind_of_each(7, shares=[0.5, 0.3, 0.2])
    assert np.bincount(found).tolist() == [4, 2, 1]
    assert kind_of_each(7, 3, [5, 3, 2]).tolist() == found.tolist(), "shares are relative"
    assert any(kind_of_each(7, shares=[0.5, 0.3, 0.2], seed=seed).tolist() != found.tolist() for seed in range(1, 4))


def test_every_kind_has_a_client() -> None:
    assert sorted(kind_of_each(3, shares=[1000, 1, 1])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("clients", "options", "says"),
    [
        (4, {"kinds": 5}, "4 clients cannot form 5 kinds: use from 1 to 4"),
        (4, {"kinds": 0}, "cannot form 0 kinds"),
        (4, {"kinds": 3, "shares": [0.5, 0.5]}, "3 kinds but 2 shares: give one share for each"),
        (4, {"shares": [1, 0]}, "give finite numbers above 0"),
        (4, {"shares": [1, float("nan")]}, "give finite numbers above 0"),
    ],
)
def test_impossible_kinds(clients: int, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        kind_of_each(clients, **options)


# --- how they differ ---


def test_rotation_by_hand() -> None:
    """A quarter turn counter-clockwise: the right column becomes the top row."""
    x = np.array([[[1, 2], [3, 4]]], dtype=np.uint8).repeat(4, axis=0)
    one = (x, np.array([0, 1, 0, 1]))
    turned = in_kinds(from_clients([one] * 4, [one] * 4, preprocess="none"), 4)
    expected = [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    for i in range(4):
        for part in ("train", "test"):
            assert np.array_equal(np.rint(255 * images(turned, part, i)[0].ravel()), expected[i])
    assert turned.kinds == (0, 1, 2, 3)
    assert turned.angles == (0, 90, 180, 270)


@pytest.mark.parametrize("shape", [(4, 4), (5, 5, 3)], ids=str)
@pytest.mark.parametrize("preprocess", ["half", "standardise", "none"])
def test_images_of_a_kind_are_rotated_in_raw_units(shape: tuple[int, ...], preprocess: str) -> None:
    """By 60° and its multiples as scipy does, by 180° exactly; for training, validation and testing samples."""
    plain = federate(random_data(*shape), clients=7, preprocess=preprocess, class_imbalance=1, validation=0.3)
    turned = in_kinds(plain, 6)
    for part in ("train", "validation", "test"):
        for i in range(7):
            before, after = images(plain, part, i), images(turned, part, i)
            angle = i % 6 * 60
            expected = rotate(before, angle, axes=(2, 3), reshape=False, order=1)
            np.testing.assert_allclose(after, expected, atol=2e-5)
            if angle in (60, 240):
                assert after[..., 0, 0] == pytest.approx(0, abs=2e-5), "the background is 0 in raw units"
        assert torch.equal(getattr(turned, part).y, getattr(plain, part).y)


def test_an_image_that_is_not_square() -> None:
    """Half a turn is exact; a quarter turn keeps the shape and fills with 0."""
    turned = in_kinds(plain := federate(random_data(2, 4), clients=4), 4)
    np.testing.assert_allclose(images(turned, "train", 2), np.rot90(images(plain, "train", 2), 2, axes=(2, 3)))
    assert np.abs(images(turned, "train", 1)[..., 0]).max() < 1e-6
    assert np.abs(images(turned, "train", 1)[..., 1:3]).max() > 0.1


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_four_quarter_turns_are_the_identity(shape: tuple[int, ...]) -> None:
    plain = turned = federate(random_data(*shape), clients=5)
    for _ in range(4):
        turned = in_kinds(turned, 4)
    assert torch.equal(turned.train.x, plain.train.x)
    assert torch.equal(turned.test.x, plain.test.x)
    assert turned.angles == (0,) * 5


@pytest.mark.parametrize("preprocess", ["half", "standardise"])
def test_features_of_a_kind_have_an_order_of_their_own(preprocess: str) -> None:
    plain = federate(random_data(7), clients=6, preprocess=preprocess, validation=0.3)
    other = in_kinds(plain, 3)
    orders: list[tuple[int, ...]] = []
    for i in range(6):
        found = set()
        for part in ("train", "validation", "test"):
            before, after = images(plain, part, i), images(other, part, i)
            # Feature j comes from the feature that is the same in all samples.
            found.add(tuple(int(np.abs(before - after[:, [j]]).max(axis=0).argmin()) for j in range(7)))
            assert np.abs(after - before[:, list(min(found))]).max() < 1e-5
        assert len(found) == 1
        orders += found
    assert orders[0] == tuple(range(7))
    assert len(set(orders)) == 3
    assert orders[:3] == orders[3:]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_labels_are_permuted(shape: tuple[int, ...]) -> None:
    """A bijection, the same for all samples of a client and all clients of a kind, different for every kind."""
    plain = federate(random_data(*shape), clients=10, validation=0.3)
    other = in_kinds(plain, 5, differ="permuted")
    maps: list[set[tuple[int, int]]] = [set() for _ in range(5)]
    for part in ("train", "validation", "test"):
        before, after = getattr(plain, part), getattr(other, part)
        assert torch.equal(before.x, after.x)
        for i in range(10):
            rows = before.rows(i)
            maps[i % 5] |= set(zip(before.y[rows].tolist(), after.y[rows].tolist(), strict=True))
    assert maps[0] == {(k, k) for k in range(3)}
    for pairs in maps:
        assert sorted(k for k, _ in pairs) == sorted(k for _, k in pairs) == [0, 1, 2]
    assert len({frozenset(pairs) for pairs in maps}) == 5
    assert other.angles is None


def test_kinds_with_classes_are_clusters() -> None:
    """To the bit, and with the kinds recorded; with shares the kinds have different sizes."""
    digits = load("digits")
    clusters = federate(digits, clients=12, clusters=3, class_imbalance=1)
    kinds = federate(digits, clients=12, kinds=3, differ="classes", class_imbalance=1)
    assert torch.equal(clusters.train.x, kinds.train.x)
    assert torch.equal(clusters.test.x, kinds.test.x)
    assert clusters.kinds == kinds.kinds == (0, 1, 2) * 4
    unequal = federate(digits, clients=12, kind_shares=[0.5, 0.3, 0.2], differ="classes")
    assert unequal.kinds is not None
    assert Counter(unequal.kinds) == {0: 6, 1: 4, 2: 2}
    for part in (unequal.train, unequal.test):
        for kind, counts in zip(unequal.kinds, part.class_counts(10), strict=True):
            assert set(np.flatnonzero(counts) % 3) == {kind}


def test_angles() -> None:
    """One for each client, which is what its images are rotated by."""
    plain = federate(random_data(6, 6), clients=40, samples=3)
    turned = in_kinds(plain, differ="angles")
    assert turned.kinds is None
    assert turned.angles is not None
    assert len(set(turned.angles)) == 40
    assert Counter(int(angle // 180) for angle in turned.angles).keys() == {0, 1}
    for part in ("train", "test"):
        expected = rotate(images(plain, part, 3), turned.angles[3], axes=(2, 3), reshape=False, order=1)
        np.testing.assert_allclose(images(turned, part, 3), expected, atol=1e-6)


# --- in combination ---


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({}, "a8def06644f34fa9"),
        ({"clients": 20, "clusters": 5, "class_imbalance": 1, "size_imbalance": 1}, "cb3899cf1c247a35"),
        ({"clients": 10, "scheme": "published", "class_imbalance": 3, "seed": 2}, "766b1290eeac1f17"),
    ],
    ids=str,
)
def test_federations_without_kinds_are_as_before(options: dict[str, Any], digest: str) -> None:
    """To the bit: the digests are those of the version before kinds."""
    federation, found = federate(load("digits"), **options), sha256()
    for part in (federation.train, federation.test):
        for array in (part.x.numpy(), part.y.numpy(), part.offsets):
            found.update(array.tobytes())
    assert found.hexdigest()[:16] == digest


@settings(deadline=None, max_examples=40)
@given(
    shape=st.sampled_from(SHAPES),
    kinds=st.integers(1, 6),
    differ=st.sampled_from(["rotated", "permuted"]),
    options=st.fixed_dictionaries({"class_imbalance": st.floats(0, 9), "size_imbalance": st.floats(0, 2)}),
    seed=st.integers(0, 99),
)
def test_federate_divides_and_then_transforms(
    shape: tuple[int, ...], kinds: int, differ: str, options: dict[str, Any], seed: int
) -> None:
    data = random_data(*shape)
    plain = federate(data, clients=8, seed=seed, **options)
    before = plain.train.x.clone(), plain.test.y.clone()
    other = in_kinds(plain, kinds, differ=differ, seed=seed)
    assert torch.equal(before[0], plain.train.x), "the federation given is not changed"
    assert torch.equal(before[1], plain.test.y)
    at_once = federate(data, clients=8, seed=seed, kinds=kinds, differ=differ, **options)
    for part in ("train", "test"):
        one, same = getattr(other, part), getattr(at_once, part)
        assert torch.equal(one.x, same.x)
        assert torch.equal(one.y, same.y)
        assert np.array_equal(one.offsets, getattr(plain, part).offsets)
    assert other.kinds == at_once.kinds == tuple(i % kinds for i in range(8))


@pytest.mark.parametrize(
    "change",
    [
        {"kinds": 2},
        {"kinds": 4},
        {"kind_shares": [3, 1]},
        {"kinds": 2, "differ": "permuted"},
        {"kinds": 2, "differ": "classes"},
        {"differ": "angles"},
        {"samples": 5},
        {"validation": 0.3},
    ],
    ids=str,
)
def test_every_setting_changes_the_samples(change: dict[str, Any]) -> None:
    """And `in place` changes nothing but the federation's own copy of the data."""
    data = random_data(4, 4)
    before = data.x_train.copy(), data.y_train.copy()
    usual, changed = federate(data, clients=6), federate(data, clients=6, **change)
    assert not (
        torch.equal(usual.train.x[: len(changed.train.x)], changed.train.x)
        and torch.equal(usual.train.y[: len(changed.train.y)], changed.train.y)
    )
    assert np.array_equal(before[0], data.x_train)
    assert np.array_equal(before[1], data.y_train)


@pytest.mark.parametrize("options", [{"differ": "permuted", "kinds": 3}, {"differ": "angles"}, {"kind_shares": [2, 1]}])
def test_the_seed_draws_again(options: dict[str, Any]) -> None:
    plain = federate(random_data(4, 4, classes=5), clients=6)
    kinds, shares = options.get("kinds", 0), options.get("kind_shares", ())
    one, again, other = (
        in_kinds(plain, kinds, shares=shares, differ=options.get("differ", "rotated"), seed=seed) for seed in (0, 0, 2)
    )
    assert torch.equal(one.train.x, again.train.x)
    assert torch.equal(one.train.y, again.train.y)
    assert not (torch.equal(one.train.x, other.train.x) and torch.equal(one.train.y, other.train.y))


def test_writers_in_kinds() -> None:
    writers = np.repeat(["a", "b", "c"], 20)
    x, y = np.random.default_rng(0).uniform(size=(60, 4, 4)), np.tile(labels_of(10, 10), 3)
    data = from_arrays(x, y, x, y, groups={"writer": writers}, groups_test={"writer": writers})
    federation = federate(data, group="writer", kinds=2)
    assert federation.kinds == (0, 1, 0)
    assert federation.train.names == ("a", "b", "c")
    assert np.array_equal(images(federation, "train", 1), images(federation, "test", 1))
    with pytest.raises(BadInput, match="cannot get classes of their own: use federate"):
        federate(data, group="writer", kinds=2, differ="classes")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kinds": 2, "scheme": "paper"}, "use the scheme 'paired'"),
        ({"kinds": 2, "scheme": "published", "differ": "classes"}, "use the scheme 'paired'"),
        ({"differ": "angles", "scheme": "paper"}, "use the scheme 'paired'"),
        ({"differ": "permuted"}, "cannot form 0 kinds"),
        ({"differ": "rotatd", "kinds": 2}, "differ by 'rotatd' (did you mean 'rotated'?)"),
        ({"differ": "angles", "kinds": 2}, "there are no kinds: leave out kinds"),
        ({"differ": "classes", "kinds": 2, "clusters": 2}, "leave out clusters"),
        ({"differ": "classes", "kinds": 3}, "each needs a class and two clients"),
        ({"differ": "permuted", "kinds": 3}, "2 classes have fewer than 3 different orders: use fewer kinds"),
        ({"differ": "angles"}, "have no angle: use differ = 'rotated'"),
        ({"samples": -1}, "samples = -1 is out of range"),
    ],
    ids=str,
)
def test_what_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as error:
        federate(random_data(5, classes=2), clients=4, **options)
    assert says in str(error.value)


def test_kinds_for_another_number_of_clients() -> None:
    with pytest.raises(BadInput, match="kinds is given for 2 clients but there are 4"):
        replace(federate(random_data(5), clients=4), kinds=(0, 1))


# --- as settings ---


def prepared(**partition: Any) -> Federation:
    (plan,) = plans({"partition": {"clients": 6, **partition}})
    return Preparation().federation(plan.config)


def test_settings_reach_the_federation() -> None:
    federation = prepared(kind_shares="0.5, 0.3, 0.2", differ="permuted", samples=20, validation=0.25, newcomers=0.3)
    assert federation.kinds is not None
    assert sorted(federation.kinds) == [0, 0, 0, 1, 1, 2]
    assert federation.validation is not None
    assert set(federation.train.sizes) == {15}
    assert set(federation.validation.sizes) == {5}
    assert len(federation.newcomers) == 2
    assert prepared(kinds=4).angles == (0, 90, 180, 270, 0, 90)
    assert prepared().kinds is None


@pytest.mark.parametrize("given", [[0.5, 0.5], "0.5 0.5", "half", 3])
def test_shares_are_one_string(given: Any) -> None:
    with pytest.raises(BadInput, match="write all shares in one string"):
        plans({"partition": {"kind_shares": given}})
