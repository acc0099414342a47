"""Newcomers: clients that were never sampled get the model of their kin, and do not change the training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import tensors_of
from fedkin import Federation, FedKin, Kin, run
from fedkin.algorithms import Algorithm, Round, Schedule
from fedkin.algorithms.kin import ALONE, OWN, START
from fedkin.algorithms.personal import IFCA, Alone, FineTuned
from fedkin.engine.lanes import together
from fedkin.engine.metrics import score
from fedkin.engine.own import _welcomed, kin_graph, models_of, own_models
from fedkin.engine.scores import client_table, predictions
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments.rounds import play
from fedkin.experiments.tensor_files import read_tensors
from fedkin.graph.similarity import SimilarityGraph
from loops import played
from test_kin import CLIENTS, LOCAL, in_kinds, simulation

NEWCOMERS = (2, 7, 11, 16)
BY_UPDATES = FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="updates", neighbours=4)


def with_newcomers(kinds: int = 2) -> Federation:
    return replace(in_kinds(kinds), newcomers=NEWCOMERS)


# -- by hand -----------------------------------------------------------------------------------------------------------


def a_round(who: list[int], shares: list[float], edges: Any = None) -> Round:
    graph = SimilarityGraph(np.array(edges, dtype=float)) if edges else SimilarityGraph.edgeless(len(shares))
    p = np.array(shares)
    return Round(0, np.array(who), p[who] / max(p[who].sum(), 1), graph, len(p), shares=p)


def test_kin_by_data_by_hand() -> None:
    """2 is new. The nearest of 0 and 3 is 2, which has no model, so that the next takes its place: 0 wants 1, 1 wants
    0, 2 wants 1, 3 wants 0. The kin of 0 are 0, 1, 3 with shares 1 : 2 : 3, of 1 they are 0 and 1, of 2 only 1.
    """
    edges = [[0, 3, 4, 2], [3, 0, 2, 1], [4, 5, 0, 3], [2, 1, 3, 0]]
    algorithm = FedKin(beta=1.0, kappa=1.0, kin="data", neighbours=1)
    everyone = a_round([0, 1, 2, 3], [1, 2, 0, 3], edges)
    trained = a_round([0, 1, 3], [1, 2, 0, 3], edges)
    server = algorithm.combine(
        algorithm.start(torch.zeros(1, 1), everyone), {"model": torch.tensor([[10.0], [20.0], [40.0]])}, trained
    )
    starts = algorithm.send(server, everyone)["model"].flatten().tolist()
    assert starts == pytest.approx([170 / 6, 50 / 3, 20, (10 + 3 * 40) / 4])
    weights = algorithm.kin_weights(server, everyone)
    assert weights is not None
    np.testing.assert_allclose(weights.toarray()[[0, 2]], np.array([[1 / 6, 2 / 6, 0, 3 / 6], [0, 1, 0, 0]]))


def test_kin_by_updates_by_hand() -> None:
    """Updates (3, 0), (0, 3), (0, 0) from w̄₀ = (5, 5) have the mean (1, 1). The newcomer's update (2.9, 0.2) less that
    is (1.9, −0.8), most like (2, −1): client 0. Its reply is not among the models.
    """
    first = torch.tensor([[5.0, 5.0]])
    trained, new = a_round([0, 1, 2], [1, 1, 1, 0]), a_round([3], [1, 1, 1, 0])
    algorithm = replace(BY_UPDATES, neighbours=1)
    replies = {"model": first + torch.tensor([[3.0, 0], [0, 3], [0, 0]])}
    server = algorithm.combine(algorithm.start(first, trained), replies, trained)
    got = algorithm.invite(server, new)
    assert got is not None
    assert torch.equal(got["model"], first), "later rounds have another w̄"
    welcomed = algorithm.welcome(server, {"model": first + torch.tensor([[2.9, 0.2]])}, new)
    assert algorithm.send(welcomed, new)["model"].tolist() == [[8, 5]]
    assert torch.equal(algorithm.send(server, new)["model"], server["model"]), "before, it has no kin"
    assert algorithm.send(welcomed, trained)["model"].equal(algorithm.send(server, trained)["model"])


def test_a_newcomer_does_the_work_of_the_first_round() -> None:
    """Whoever was in the first round gets the direction it has: it is its own nearest."""
    moving = replace(BY_UPDATES, step_size=Schedule(0.1, 0.01, over=3))
    run = simulation(moving, with_newcomers(), local=replace(LOCAL, order="shuffled"))
    state = played(run, 4)
    known = run.trained_clients[:6]
    nearest = _welcomed(run, state, known)["nearest"].at(known)
    assert nearest[:, 0].tolist() == known.tolist()


# -- in a federation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [BY_UPDATES, Kin(step_size=0.1)], ids=["updates", "chosen"])
def test_newcomers_get_the_model_of_their_kind(algorithm: Algorithm) -> None:
    run = simulation(algorithm, with_newcomers())
    state = played(run, 16)
    (record,) = own_models(run, state)
    assert record["newcomer_test_accuracy"] > record["newcomer_global_accuracy"] + 0.2
    assert record["newcomer_test_accuracy"] > record["own_test_accuracy"] - 0.05
    kin = kin_graph(run, state)
    assert kin is not None
    assert kin.shape == (CLIENTS, CLIENTS)
    dense = kin.toarray()
    np.testing.assert_allclose(dense.sum(axis=1), 1)
    assert not dense[:, NEWCOMERS].any(), "they are nobody's kin"
    same = np.arange(CLIENTS) % 2 == np.array(NEWCOMERS)[:, None] % 2
    assert dense[list(NEWCOMERS)][same].sum() > 0.95 * len(NEWCOMERS)


def test_newcomers_by_data() -> None:
    """Kinds of `in_kinds` share their features, so kin by data are anybody; but they are trained clients."""
    run = simulation(FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="data", neighbours=4), with_newcomers())
    kin = kin_graph(run, played(run, 2))
    assert kin is not None
    assert not kin.toarray()[:, NEWCOMERS].any()
    assert (np.diff(kin.indptr) >= 4).all()


def test_without_kin_there_is_no_graph() -> None:
    run = simulation(replace(BY_UPDATES, kappa=0.0), with_newcomers())
    assert kin_graph(run, run.start()) is None
    chosen = simulation(Kin(step_size=0.1), with_newcomers())
    assert kin_graph(chosen, chosen.start()) is None, "the global model is the start"


@pytest.mark.parametrize("take_part", [None, 8])
@pytest.mark.parametrize("algorithm", [BY_UPDATES, Kin(step_size=0.1)], ids=["updates", "chosen"])
def test_measuring_does_not_change_the_training(algorithm: Algorithm, take_part: int | None) -> None:
    def trained(measured: bool) -> tuple[Simulation, State]:
        run = simulation(algorithm, with_newcomers(), take_part=take_part)
        state = run.start()
        for _ in range(5):
            state, _ = play(run, [0.01], state, evaluate=measured)
        return run, state

    (run, measured), (_, plain) = trained(True), trained(False)
    for name, value in tensors_of(plain).items():
        assert torch.equal(tensors_of(measured)[name], value), name
    assert not set(NEWCOMERS) & set(measured.server["models"].owners.tolist())
    assert own_models(run, measured)[0]["newcomer_test_accuracy"] > 0


def test_newcomers_are_measured_apart() -> None:
    run = simulation(BY_UPDATES, with_newcomers())
    state = played(run, 6)
    (record,), table = own_models(run, state), client_table(run, state, predictions(run, state))
    assert [row["client"] for row in table if row.get("newcomer")] == [str(i) for i in NEWCOMERS]
    for new, key in ((True, "newcomer_test_accuracy"), (False, "own_test_accuracy")):
        each = [row["own_accuracy"] for row in table if row.get("newcomer", False) is new]
        assert record[key] == pytest.approx(np.mean(each)), "testing clients have the same size"
    (of_all,) = score(run.model, state.model[None], run.federation.test)
    assert record["newcomer_global_accuracy"] == pytest.approx(of_all.values[list(NEWCOMERS)].mean())
    average = simulation(FedKin(step_size=0.1, beta=1.0), with_newcomers())
    (record,) = own_models(average, played(average, 1))
    assert "newcomer_global_accuracy" in record
    assert "newcomer_test_accuracy" not in record


@pytest.mark.parametrize("algorithm", [Alone(step_size=0.1), IFCA(step_size=0.1, groups=2), FineTuned(step_size=0.1)])
def test_newcomers_of_other_algorithms_work_one_round(algorithm: Algorithm) -> None:
    run = simulation(algorithm, with_newcomers())
    (record,) = own_models(run, played(run, 12))
    assert record["newcomer_test_accuracy"] > 0.4, "a model that was never trained has 0.25"


def test_an_own_model_is_used_only_after_work() -> None:
    """If clients use their own models, a newcomer uses the one it gets by working one round from its kin's average."""
    run = simulation(Kin(step_size=0.1), with_newcomers())
    state = played(run, 6)
    common = state.server["common"][..., 0].item()
    used = []
    for use in (START, OWN, ALONE):
        server = {**state.server, "common": torch.tensor([[common, use]])}
        *_, (who, models) = models_of(run, replace(state, server=server))
        assert who.tolist() == list(NEWCOMERS)
        used.append(models)
    starts, models, instead = used
    assert torch.equal(instead, models), "a newcomer has not trained alone"
    distance = (models - starts).norm(dim=-1)
    assert bool((distance > 0).all())
    assert bool((distance < (starts - run.start().model).norm(dim=-1)).all())


def test_lanes() -> None:
    for kind in (BY_UPDATES, Kin(step_size=0.1)):
        alone = [simulation(replace(kind, step_size=g), with_newcomers()) for g in (0.1, 0.02)]
        group = together(alone)
        for lane, one in zip(own_models(group, played(group, 5)), alone, strict=True):
            (expected,) = own_models(one, played(one, 5))
            assert lane == pytest.approx(expected, abs=1e-2)


def test_from_a_file(tmp_path: Path) -> None:
    settings = {
        "name": "kin",
        "rounds": 20,
        "partition": {"clients": 20, "kinds": 2, "differ": "permuted", "newcomers": 0.2},
        "local": {"step_size": [0.1, 0.05], "epochs": 5, "batch_size": 16},
        "algorithm": [{"name": "fedkin", "beta": 1.0, "kappa": 1.0, "kin": "updates", "neighbours": 4}, "fedavg"],
    }
    for result in run(settings, out=tmp_path):
        assert result.folder is not None
        saved = read_tensors(result.folder / "kin.safetensors")
        if "fedavg" in result.name:
            assert saved is None
            assert "newcomer_test_accuracy" not in result.rounds[-1]
            continue
        last = result.rounds[-1]
        assert result.summary["final_newcomer_test_accuracy"] == last["newcomer_test_accuracy"]
        assert last["newcomer_test_accuracy"] > last["newcomer_global_accuracy"] + 0.1
        clients = [json.loads(line) for line in (result.folder / "clients.jsonl").read_text().splitlines()]
        new = [i for i, client in enumerate(clients) if client.get("newcomer")]
        assert len(new) == 4
        assert saved is not None
        tensors, _ = saved
        assert len(tensors["offsets"]) == 21
        assert not set(tensors["clients"].tolist()) & set(new)
        for i in new:
            of = slice(*tensors["offsets"][i : i + 2].tolist())
            assert {clients[n]["kind"] for n in tensors["clients"][of].tolist()} == {clients[i]["kind"]}
            assert float(tensors["weights"][of].sum()) == pytest.approx(1)
