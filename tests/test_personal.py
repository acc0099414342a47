"""Training alone and fine-tuning, against loops in float64; federations of true kinds and pooled samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedkin import FedAvg
from fedkin.algorithms import Algorithm, Alone, FineTuned
from fedkin.engine.lanes import parted, together
from fedkin.engine.own import models_of, own_models
from fedkin.engine.scores import client_table, predictions
from fedkin.errors import BadInput
from fedkin.graph.similarity import build_graph
from fedkin.types import Floats
from loops import CLIENTS, Loop, played, simulation


def alone(loop: Loop, rounds: int) -> Floats:
    """Every client by itself, one batch after another."""
    own = np.tile(loop.w, (CLIENTS, 1))
    for i in range(CLIENTS):
        for rows in loop.batches(i) * rounds:
            own[i] = own[i] - loop.algorithm.step_size * loop.gradient(own[i], i, rows)
    return own


@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
def test_alone(features: int) -> None:
    run = simulation(Alone(step_size=0.2), features)
    own = played(run).memory["own"].at(np.arange(CLIENTS)).double().numpy()
    np.testing.assert_allclose(own, alone(Loop(run), 3), rtol=1e-5, atol=1e-6)


def test_alone_with_sampled_clients() -> None:
    """A client that is never sampled keeps the first model."""
    run = simulation(Alone(step_size=0.2), take_part=3)
    state, first = played(run, 2), run.start().model
    never = np.setdiff1d(np.arange(CLIENTS), state.memory["own"].owners)
    assert len(never) >= CLIENTS - 6
    assert torch.equal(state.memory["own"].at(never[:1])[0], first)


def test_fine_tuning() -> None:
    """w̄ of FedAvg, then one epoch at half the step size on a client's own samples."""
    run = simulation(FineTuned(step_size=0.2, tuning_epochs=1, tuning_step=0.5))
    state = played(run)
    assert torch.equal(state.model, played(simulation(FedAvg(step_size=0.2))).model), "training is FedAvg's"
    ((_, models),) = models_of(run, state)
    loop = Loop(run)
    for i in range(CLIENTS):
        w = state.model.double().numpy()
        for rows in loop.batches(i)[: len(loop.batches(i)) // 2]:  # of two epochs one
            w = w - 0.1 * loop.gradient(w, i, rows)
        np.testing.assert_allclose(models[0, i].double().numpy(), w, rtol=1e-5, atol=1e-6)


def test_lanes_of_fine_tuning() -> None:
    members = [FineTuned(step_size=0.2, tuning_step=s) for s in (0.5, 1.0)] + [FineTuned(step_size=0.1)]
    runs = [simulation(member) for member in members]
    state = played(together(runs))
    found = own_models(together(runs), state)
    for run, part, record in zip(runs, parted(state, runs), found, strict=True):
        (expected,) = own_models(run, part)
        assert record == pytest.approx(expected, rel=1e-4)
    assert found[0] != found[1]


@pytest.mark.parametrize("algorithm", [Alone(step_size=0.2), FedAvg(step_size=0.2)], ids=["alone", "fedavg"])
def test_the_table_of_clients(algorithm: Algorithm) -> None:
    """Its mean, weighted by testing samples, is what the record says."""
    run = simulation(algorithm)
    state = played(run, 2)
    table = client_table(run, state, predictions(run, state))
    sizes = run.federation.test.sizes
    assert [row["samples"] for row in table] == run.federation.train.sizes.tolist()
    own = sum(row["own_accuracy"] * n for row, n in zip(table, sizes, strict=True)) / sizes.sum()
    if algorithm.is_personal:
        (record,) = own_models(run, state)
        assert own == pytest.approx(record["own_test_accuracy"])
    else:
        assert all(row["own_accuracy"] == row["global_accuracy"] for row in table)
    unpaired = replace(run, federation=replace(run.federation, paired=False))
    assert client_table(unpaired, state, predictions(unpaired, state)) == []


def test_the_graph_of_true_kinds() -> None:
    run = simulation(FedAvg())
    with pytest.raises(BadInput, match="has no kinds"):
        build_graph(run.federation, "kinds")
    kinds = tuple(i % 4 for i in range(CLIENTS))
    graph = build_graph(replace(run.federation, kinds=kinds), "kinds")
    assert np.flatnonzero(graph.adjacency[1]).tolist() == [5, 9, 13, 17]


@pytest.mark.parametrize(
    ("settings", "says"), [({"tuning_epochs": 0}, "tuning_epochs = 0"), ({"tuning_step": 0.0}, "tuning_step = 0")]
)
def test_ranges(settings: dict[str, float], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        FineTuned(**settings)  # type: ignore[arg-type]
