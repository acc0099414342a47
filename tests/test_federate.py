"""Federations from data sets, groups and existing clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin.data.client_sources import from_clients
from fedkin.data.partition import SCHEMES, by_group, federate
from fedkin.data.sources import Dataset, from_arrays, load
from fedkin.errors import BadInput
from fedkin.experiments.config import Experiment, validated
from small_data import entropy, labels_of

every_scheme = pytest.mark.parametrize("scheme", sorted(SCHEMES))


@every_scheme
def test_federated_parts_are_as_imbalanced_as_asked(scheme: str) -> None:
    """Both settings affect both parts."""
    data = load("digits")
    even = federate(data, clients=10, scheme=scheme)
    skewed = federate(data, clients=10, scheme=scheme, class_imbalance=20)
    unequal = federate(data, clients=10, scheme=scheme, size_imbalance=1)
    for part in ("train", "test"):
        clients = getattr(even, part)
        assert entropy(getattr(skewed, part).class_counts(10)) < entropy(clients.class_counts(10)) - 0.5
        assert np.std(getattr(unequal, part).sizes) > 2 * np.std(clients.sizes) + 5


def test_clients_without_samples_are_reported() -> None:
    """359 testing digits at 100 clients: n = 0, so all samples are assigned at random, none to some clients."""
    with pytest.raises(BadInput, match="testing clients hold no sample"):
        federate(load("digits"), clients=100, scheme="published")


def test_testing_part_too_small() -> None:
    data = from_arrays(np.eye(10), labels_of(5, 5), np.eye(10)[:3], [0, 1, 1])
    with pytest.raises(BadInput, match="4 clients cannot share 3 testing samples: use at most 3 clients"):
        federate(data, clients=4)
    with pytest.raises(BadInput, match="4 clients cannot share 3 samples"):
        federate(data, clients=4, scheme="published")
    assert federate(data, clients=3).test.sizes.tolist() == [1, 1, 1]


def test_features_must_be_finite_and_may_be_large() -> None:
    """A sum that overflows is no reason to refuse samples; infinite ones of both signs have no sum at all."""
    large = np.full((4, 2), 3e38, dtype=np.float32)
    assert from_clients([(large, [0, 1, 0, 1])] * 2, test=0.5, preprocess="none").train.x.max() == 3e38
    clients = from_clients([(np.ones((4, 2)), [0, 1, 0, 1])] * 2, test=0.5, preprocess="none")
    clients.train.x[:2, 1] = torch.tensor([np.inf, -np.inf])
    with pytest.raises(BadInput, match="the first is feature 1 of sample 0 of client"):
        replace(clients)


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
    assert not federation.paired
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
    assert not federation.paired


def test_groups_are_paired_by_name() -> None:
    """As numbers 2 comes before 10, as strings after it: the testing groups follow the training groups."""
    x, writers = np.arange(4.0)[:, None], np.array([10, 2, 2, 10])
    tests = {"strings": np.array(["10", "2", "10", "2"]), "fewer": np.array([2, 2, 2, 2])}
    for groups, names, paired in (("strings", ("2", "10"), True), ("fewer", ("2",), False)):
        data = from_arrays(x, [0, 1, 0, 1], x, [0, 1, 0, 1], groups={"w": writers}, groups_test={"w": tests[groups]})
        federation = federate(data, group="w", preprocess="none")
        assert federation.train.names == ("2", "10")
        assert (federation.test.names, federation.paired) == (names, paired)
        if paired:
            assert federation.test.x.ravel().tolist() == [1, 3, 0, 2]


def test_the_first_groups_divide_their_own_samples(tmp_path: Path) -> None:
    """Writers 2 and 7 of 2, 7 and 10; a quarter of their samples is for testing, none of the file's part."""
    writers = np.array([10, 2, 7, 7] * 4)
    x, y = np.arange(16.0)[:, None], np.arange(16) % 2
    arrays: dict[str, Any] = {"x_train": x, "y_train": y, "writer_train": writers, "hand_train": np.arange(16)}
    np.savez(tmp_path / "forms.npz", x_test=-x, y_test=y, writer_test=writers + 1, **arrays)
    data = load("forms", tmp_path, within="writer", groups=2, own_test=True, test=0.25)
    federation = federate(data, group="writer", preprocess="none")
    assert federation.paired
    assert federation.train.names == federation.test.names == ("2", "7")
    assert (federation.train.sizes.tolist(), federation.test.sizes.tolist()) == ([3, 6], [1, 2])
    found = [
        np.concatenate([part.x[part.rows(i)].ravel() for part in (federation.train, federation.test)]) for i in (0, 1)
    ]
    assert [sorted(own.tolist()) for own in found] == [[1, 5, 9, 13], [2, 3, 6, 7, 10, 11, 14, 15]]
    assert (data.groups_test["hand"] == data.x_test.ravel()).all(), "other groups go along"
    np.savez(tmp_path / "chosen.npz", **{key[:-6]: array[writers < 10] for key, array in arrays.items()})
    same = load("chosen", tmp_path, within="writer", test=0.25)
    assert np.array_equal(same.x_test, data.x_test), "as if the file had only these samples"


def test_the_first_groups_of_both_parts(tmp_path: Path) -> None:
    """The testing part keeps the samples of the same groups, whether they are numbers or text; that of others stays."""
    x, y, writers = np.arange(6.0)[:, None], np.arange(6) % 2, np.array([10, 2, 7, 10, 2, 7])
    for name, tested, kept in (("same", writers.astype(str), [1, 2, 4, 5]), ("others", writers + 20, [*range(6)])):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y, w_train=writers, w_test=tested)
        data = load(name, tmp_path, within="w", groups=2)
        assert data.x_train.ravel().tolist() == [1, 2, 4, 5]
        assert data.x_test.ravel().tolist() == kept
    with pytest.raises(BadInput, match=r"same has 3 groups by w: lower partition.groups = 4"):
        load("same", tmp_path, within="w", groups=4)
    with pytest.raises(BadInput, match=r"partition.own_test is about clients by a group .*: set partition.group"):
        validated(Experiment, {"partition": {"own_test": True}})


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
    """Sample j has the feature j and the label j mod 3: rows can be identified after shuffling."""
    j = np.arange(60)
    return from_arrays(j[:, None].astype(dtype), j % 3, j[:30, None].astype(dtype), j[:30] % 3)


@every_scheme
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


@every_scheme
def test_the_parts_depend_on_the_seed_independently(scheme: str) -> None:
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
    assert not federation.paired
    assert from_clients(train, [([[1.0]], [0])] * 2).paired


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
