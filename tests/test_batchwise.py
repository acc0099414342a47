"""Gradients of one batch, found from products of its samples: against single clients in plain space."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkin.algorithms import PFedMe
from fedkin.engine.lanes import together
from fedkin.models import MLP, Linear, Logistic, Softmax, Squared

pytest.importorskip("numba")

from fedkin.engine import cohorts
from fedkin.engine.spaces import primal
from fedkin.engine.spaces.batchwise import Batchwise, pays
from fedkin.engine.spaces.batchwise_kernels import batchwise_round
from test_primal import LOCAL, SEVERAL_GRADIENTS, assert_plain, played, simulation


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do."""
    monkeypatch.setattr(cohorts, "MUCH", 0)


BY_BATCH = [name for name in SEVERAL_GRADIENTS if name.startswith(("pFedMe", "Per-FedAvg"))]


@pytest.mark.parametrize("name", BY_BATCH)
@pytest.mark.parametrize("batch", [1, 16, 33, 150])
def test_gradients_of_one_batch(name: str, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found from products of the batch's samples: the same as in plain space, for all losses and odd numbers."""
    played_by_batch: list[int] = []

    def counted(*given: Any) -> None:
        played_by_batch.append(1)
        batchwise_round(*given)

    monkeypatch.setattr(primal, "pays", lambda *_: True)
    monkeypatch.setattr(primal, "batchwise_round", counted)
    algorithm, local = SEVERAL_GRADIENTS[name]
    for model in (Softmax(37, 4), Linear(50, 1, Squared()), Linear(32, 1, Logistic())):
        played_by_batch.clear()
        changes: Any = {"step_size": 0.002, "inner_step": 0.01}  # a squared loss would diverge else
        small = replace(algorithm, **changes)
        assert_plain(simulation(small, replace(local, batch_size=batch), model, take_part=4))
        assert played_by_batch


def test_lanes_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primal, "pays", lambda *_: True)
    members = [PFedMe(step_size=0.01, pull=p, inner_step=s) for p, s in ((1.0, 0.1), (15.0, 0.06), (30.0, 0.03))]
    assert_plain(together([simulation(member, LOCAL, Softmax(37, 4)) for member in members]))


def test_what_is_not_of_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """APFL has two points without a common sum; with one gradient per step there is nothing to gain."""

    def never(*_: object) -> None:
        raise AssertionError("by batch")

    monkeypatch.setattr(primal, "pays", lambda *_: True)
    monkeypatch.setattr(primal, "batchwise_round", never)
    for name in set(SEVERAL_GRADIENTS) - set(BY_BATCH):
        algorithm, local = SEVERAL_GRADIENTS[name]
        played(simulation(algorithm, local, Softmax(37, 4)))
    algorithm, local = SEVERAL_GRADIENTS["pFedMe"]
    played(simulation(algorithm, replace(local, clip=0.3), Softmax(37, 4)))
    played(simulation(algorithm, local, MLP(37, 4, 16)))


def test_when_one_batch_pays() -> None:
    """Two points, six gradients, 784 features, ten classes: 94080 products per sample, or 23520 + (392 + 60) B."""
    empty = np.empty(0, dtype=np.float32)
    steps = Batchwise((0, 1), 1, np.empty((1, 1, 6, 2), dtype=np.float32), *[empty] * 4)
    assert [pays(steps, batch, 10, 784, 10) for batch in (32, 156, 157)] == [True, True, False]
    assert not pays(steps, 32, 10_000, 784, 10)  # memory
