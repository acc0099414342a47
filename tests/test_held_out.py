"""Validation samples held out, at most so many samples of a client, and newcomers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.algorithms import FedAvg
from fedkin.data import Clients, Federation, federate, from_arrays, from_clients, load
from fedkin.data.apportion import stratified
from fedkin.errors import BadInput
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from small_data import labels_of

some_labels = st.lists(st.integers(0, 4), min_size=1, max_size=40)


def of_labels(*labels: list[int]) -> Federation:
    """A client for each list; sample j of all has the feature j."""
    parts = np.split(np.arange(sum(map(len, labels))), np.cumsum([len(y) for y in labels])[:-1])
    clients = [(1.0 * rows[:, None], y) for rows, y in zip(parts, labels, strict=True)]
    return from_clients(clients, clients, preprocess="none")


def numbers(clients: Clients, client: int) -> list[int]:
    return [int(x) for x in clients.x[clients.rows(client), 0]]


def held(federation: Federation) -> Clients:
    assert federation.validation is not None
    return federation.validation


# --- stratified draws ---


def test_stratified_by_hand() -> None:
    """4 of 5, 4 and 1 samples of 10: quotas 2, 1.6, 0.4, so that class 1 is rounded up."""
    labels = labels_of(5, 4, 1)
    for seed in range(5):
        found = stratified(labels, 4, np.random.default_rng(seed))
        assert np.bincount(labels[found], minlength=3).tolist() == [2, 2, 0]


def test_equal_remainders_prefer_no_class() -> None:
    """One sample of each of four classes, one is drawn: each class about equally often."""
    rng = np.random.default_rng(0)
    drawn = np.bincount([int(stratified(np.arange(4), 1, rng)[0]) for _ in range(400)], minlength=4)
    assert drawn.min() > 70


@settings(deadline=None)
@given(labels=some_labels, data=st.data(), seed=st.integers(0, 999))
def test_stratified_draws(labels: list[int], data: st.DataObject, seed: int) -> None:
    y = np.array(labels)
    number = data.draw(st.integers(0, len(y)))
    found = stratified(y, number, np.random.default_rng(seed))
    assert len(set(found.tolist())) == len(found) == number
    assert (np.diff(found) > 0).all()
    difference = np.bincount(y[found], minlength=5) - np.bincount(y, minlength=5) * number / len(y)
    assert np.abs(difference).max() < 1


# --- validation samples ---


def test_held_out_by_hand() -> None:
    """A fifth of ten samples: two, one of each class; one of two; none of one."""
    federation = of_labels([0] * 5 + [1] * 5, [0, 1], [1]).held_out(0.2)
    assert federation.train.sizes.tolist() == [8, 1, 1]
    assert held(federation).sizes.tolist() == [2, 1, 0]
    assert federation.train.class_counts(2)[0].tolist() == [4, 4]
    assert held(federation).class_counts(2)[0].tolist() == [1, 1]
    assert sorted(numbers(federation.train, 1) + numbers(held(federation), 1)) == [10, 11]
    assert numbers(federation.train, 2) == [12]


@settings(deadline=None)
@given(
    labels=st.lists(some_labels, min_size=2, max_size=6),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
    seed=st.integers(0, 99),
)
def test_nothing_is_lost_and_nothing_twice(labels: list[list[int]], share: float, seed: int) -> None:
    labels[0][0] = 1
    labels[1][0] = 0  # a data set has at least two classes
    plain = of_labels(*labels)
    federation = plain.held_out(share, seed)
    for i, y in enumerate(labels):
        kept, out = numbers(federation.train, i), numbers(held(federation), i)
        assert sorted(kept + out) == numbers(plain.train, i)
        assert kept == sorted(kept), "in the same order as before"
        assert len(kept) >= 1
        assert (len(out) >= 1) == (len(y) >= 2)
        if 1 <= round(share * len(y)) < len(y):
            assert len(out) == round(share * len(y))
    joined = torch.cat([federation.train.y, held(federation).y])
    order = torch.cat([federation.train.x, held(federation).x]).ravel().long()
    assert torch.equal(joined, plain.train.y[order]), "samples keep their labels"
    assert torch.equal(federation.test.x, plain.test.x)


def test_a_seed_draws_validation_samples_again() -> None:
    federation = federate(load("digits"), clients=5)
    one, again, other = (federation.held_out(0.2, seed) for seed in (0, 0, 1))
    assert torch.equal(held(one).x, held(again).x)
    assert not torch.equal(held(one).x, held(other).x)
    assert torch.equal(held(one).x, held(federate(load("digits"), clients=5, validation=0.2)).x)


@pytest.mark.parametrize("share", [-0.1, 1, 2, float("nan")])
def test_shares_out_of_range(share: float) -> None:
    federation = of_labels([0, 1], [0, 1], [0, 1])
    with pytest.raises(BadInput, match=r"validation samples is .*: it must be 0 or more and less than 1"):
        federation.held_out(share)
    with pytest.raises(BadInput, match=r"newcomers is .*: it must be 0 or more and less than 1"):
        federation.with_newcomers(share)


def test_validation_samples_are_held_out_once() -> None:
    federation = of_labels([0, 1, 0], [0, 1, 1])
    assert federation.held_out(0) is federation
    with pytest.raises(BadInput, match="has validation samples already"):
        federation.held_out(0.3).held_out(0.3)


def test_validation_samples_are_checked() -> None:
    federation = of_labels([0, 1, 0], [0, 1, 1]).held_out(0.3)
    validation = held(federation)
    with pytest.raises(BadInput, match="validation features contain NaN"):
        replace(federation, validation=replace(validation, x=validation.x * torch.nan))
    with pytest.raises(BadInput, match="validation labels run from 5 to 6"):
        replace(federation, validation=replace(validation, y=validation.y + 5))
    with pytest.raises(BadInput, match="validation is given for 1 clients but there are 2"):
        replace(federation, validation=validation.reordered([0]))


@pytest.mark.parametrize(
    ("given", "validates", "share"), [("auto", True, 0.2), ("auto", False, 0), (0, True, 0), (0.5, False, 0.5)]
)
def test_auto_depends_on_the_algorithm(
    monkeypatch: pytest.MonkeyPatch, given: float | str, validates: bool, share: float
) -> None:
    monkeypatch.setattr(FedAvg, "validates", validates, raising=False)
    (plan,) = plans({"partition": {"clients": 4, "samples": 50, "validation": given}, "algorithm": "fedavg"})
    preparation = Preparation()
    federation, graph = preparation.federation(plan.config), preparation.graph(plan.config)
    assert set(federation.train.sizes) == {50 - 50 * share}
    assert (federation.validation is None) == (share == 0)
    # An algorithm that differs in this gets a federation and a graph of its own, from the same preparation.
    monkeypatch.setattr(FedAvg, "validates", not validates, raising=False)
    other = preparation.federation(plan.config)
    assert (other.validation is None) == ((share == 0) != (given == "auto"))
    assert np.array_equal(preparation.graph(plan.config).degrees, graph.degrees) == (given != "auto")


@pytest.mark.parametrize("given", [1, -0.1, "some", True])
def test_bad_settings_of_validation(given: Any) -> None:
    with pytest.raises(BadInput, match=r"^partition\.validation = "):
        plans({"partition": {"validation": given}})


# --- few samples ---


@pytest.mark.parametrize("scheme", ["paired", "paper", "published"])
def test_at_most_so_many_samples(scheme: str) -> None:
    digits = load("digits")
    options: dict[str, Any] = {"clients": 10, "class_imbalance": 2, "size_imbalance": 1, "scheme": scheme, "seed": 1}
    usual, few = federate(digits, **options), federate(digits, samples=50, **options)
    assert few.train.sizes.tolist() == np.minimum(usual.train.sizes, 50).tolist()
    assert few.train.sizes.tolist() != usual.train.sizes.tolist()
    assert torch.equal(usual.test.x, few.test.x)
    for i in range(10):
        all_of, some = (clients.x[clients.rows(i)].tolist() for clients in (usual.train, few.train))
        places = [all_of.index(sample) for sample in some]
        assert places == sorted(set(places)), "samples of the client, each once"
    n, m = usual.train.class_counts(10), few.train.class_counts(10)
    assert np.abs(m - n * (m.sum(axis=1) / n.sum(axis=1))[:, None]).max() < 1, "with the client's class mix"


def test_samples_count_training_and_validation_together() -> None:
    federation = federate(load("digits"), clients=10, samples=50, validation=0.2)
    assert set(federation.train.sizes) == {40}
    assert set(held(federation).sizes) == {10}


def test_a_seed_draws_the_samples_again() -> None:
    """Clients by origin are the same for every seed; which of their samples are used is not."""
    x, y, origin = np.arange(40.0)[:, None], np.tile([0, 1], 20), {"w": np.repeat([0, 1], 20)}
    data = from_arrays(x, y, x, y, groups=origin, groups_test=origin)
    one, again, other = (federate(data, group="w", samples=6, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.x, again.train.x)
    assert not torch.equal(one.train.x, other.train.x)
    assert one.train.sizes.tolist() == other.train.sizes.tolist() == [6, 6]


# --- newcomers ---


def test_newcomers_are_spread_over_the_kinds() -> None:
    """A fifth of 20 clients in kinds of 10, 5 and 5: two, one and one."""
    federation = federate(load("digits"), clients=20, kind_shares=[2, 1, 1], newcomers=0.2)
    assert federation.kinds is not None
    assert np.bincount([federation.kinds[i] for i in federation.newcomers]).tolist() == [2, 1, 1]
    assert len(federation.train) == len(federation.test) == 20
    usual = federate(load("digits"), clients=20, kind_shares=[2, 1, 1])
    assert usual.newcomers == ()
    assert torch.equal(usual.train.x, federation.train.x), "newcomers have their data"
    chosen = {usual.with_newcomers(0.2, seed).newcomers for seed in range(5)}
    assert federation.newcomers in chosen
    assert len(chosen) > 1


def test_numbers_of_newcomers() -> None:
    federation = of_labels(*[[0, 1]] * 10)
    assert [len(federation.with_newcomers(share).newcomers) for share in (0, 0.01, 0.24, 0.8)] == [0, 1, 2, 8]
    with pytest.raises(BadInput, match="9 newcomers among 10 clients leave fewer than two for training"):
        federation.with_newcomers(0.9)
    for wrong in ((10,), (-1,), tuple(range(10))):
        with pytest.raises(BadInput, match="give numbers from 0 to 9"):
            replace(federation, newcomers=wrong)


# --- what belongs to a client moves along ---


def test_relabelled_clients_keep_what_is_theirs() -> None:
    options: dict[str, Any] = {"kinds": 3, "class_imbalance": 3, "validation": 0.2, "newcomers": 0.4}
    federation = federate(load("digits"), clients=6, **options)
    order = [3, 0, 5, 1, 4, 2]
    moved = federation.relabelled(order)
    assert federation.kinds is not None
    assert federation.angles is not None
    assert moved.kinds == (0, 0, 2, 1, 1, 2)
    assert moved.angles == (0, 0, 240, 120, 120, 240)
    assert {order[new] for new in moved.newcomers} == set(federation.newcomers)
    assert moved.newcomers == tuple(sorted(moved.newcomers))
    for part in ("train", "validation", "test"):
        before, after = getattr(federation, part), getattr(moved, part)
        for new, old in enumerate(order):
            assert torch.equal(after.x[after.rows(new)], before.x[before.rows(old)])
            assert torch.equal(after.y[after.rows(new)], before.y[before.rows(old)])


def test_moved_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Federation, "_check_samples", lambda *_: None)  # this device has no values to check
    federation = federate(load("digits"), clients=4, kinds=2, validation=0.2, newcomers=0.3).to("meta")
    assert held(federation).x.device.type == "meta"
    assert federation.kinds == (0, 1, 0, 1)
    assert len(federation.newcomers) == 1
