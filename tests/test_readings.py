"""Readings: each switch has the effect of the published code, and no other."""

from typing import Any

import numpy as np
import pytest
import torch

from conftest import small_federation
from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Round
from fedkin.algorithms.local import Local
from fedkin.data.partition import split
from fedkin.engine.local_work import batches_of_client
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments.config import Experiment, Reading
from fedkin.experiments.grid import plans
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.readings import PermutedSimulation, permutation, read_as
from fedkin.graph.similarity import SimilarityGraph, build_graph, message
from fedkin.models import Softmax

LOCAL = Local(epochs=2, batch_size=4, l2=0.05, order="fixed")
SWITCHES = list(Reading.model_fields)


def simulation(algorithm: Algorithm, **switches: Any) -> Simulation:
    federation = small_federation()
    graph = build_graph(federation)
    run = Simulation(federation, Softmax(5, 3), algorithm, graph, graph.degrees, LOCAL, seed=3)
    return read_as(run, Reading(**switches))


def played(run: Simulation, rounds: int = 3) -> torch.Tensor:
    state = run.start()
    for _ in range(rounds):
        state = run.advance(state)
    return state.model


def walked(run: Simulation, beta: float, l2: float, anchors: bool, averaging: bool) -> torch.Tensor:
    """The published code's rounds, walked through client by client: the list is shuffled, its companions are not."""
    train, graph, model, step_size = run.federation.train, run.graph, run.model, run.algorithm.at(0).step_size
    w = model.start(run.seed)
    clients = len(train)
    u = [w] * clients
    for round in range(3):
        order = permutation(run.available(round))
        updates = [w] * clients
        for j, i in enumerate(order):
            local, anchor = w.clone(), u[j] if anchors else u[i]
            x, y = train.x[train.rows(i)], train.y[train.rows(i)]
            for batch in batches_of_client(LOCAL, len(y), run.seed, round, int(i)):
                point = beta * local + (1 - beta) * anchor
                weight = torch.full((1, len(batch)), 1 / len(batch))
                gradient = model.gradient(point[None], x[None, batch], y[None, batch], weight)[0]
                local = local - step_size * (gradient + l2 * point)
            updates[i] = local
        weights = graph.degrees[order] if averaging else graph.degrees
        w = torch.stack([float(p) * v for p, v in zip(weights, updates, strict=True)]).sum(0)
        u = [
            torch.stack([float(graph.mixing[i, n]) * updates[n] for n in range(clients) if n != i]).sum(0)
            for i in range(clients)
        ]
    return w


@pytest.mark.parametrize(
    ("anchors", "averaging", "penalty"),
    [(True, True, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_rounds_against_a_literal_loop_of_the_published_code(anchors: bool, averaging: bool, penalty: bool) -> None:
    say = {True: "published", False: "paper"}
    run = simulation(
        FedKin(beta=0.4, step_size=0.3), anchors=say[anchors], averaging=say[averaging], penalty=say[penalty]
    )
    expected = walked(run, 0.4, 0.0 if penalty else LOCAL.l2, anchors, averaging)
    torch.testing.assert_close(played(run), expected, rtol=1e-5, atol=1e-6)


def test_few_clients_receive_their_own_anchor() -> None:
    everyone, p = np.arange(100), np.full(100, 0.01)
    rounds = [Round(number, everyone, p, SimilarityGraph.uniform(100), clients=100) for number in range(200)]
    own = [(permutation(round) == everyone).sum() for round in rounds]
    assert 0.8 < np.mean(own) < 1.2
    assert (permutation(rounds[7]) == permutation(rounds[7])).all()  # whenever it is asked


def test_only_the_permuted_weights_affect_fedavg() -> None:
    plain = played(simulation(FedAvg(step_size=0.3)))
    for switch in SWITCHES:
        same = torch.equal(plain, played(simulation(FedAvg(step_size=0.3), **{switch: "published"})))
        assert same == (switch != "averaging"), switch


def test_published_fedprox_is_fedavg_for_every_alpha() -> None:
    fedavg = played(simulation(FedAvg(step_size=0.3)))
    for alpha in (0.1, 3.0):
        assert torch.equal(played(simulation(FedProx(step_size=0.3, alpha=alpha), proximal="published")), fedavg)
        assert not torch.equal(played(simulation(FedProx(step_size=0.3, alpha=alpha))), fedavg)


def test_published_penalty_is_missing_for_fedkin_only() -> None:
    assert simulation(FedKin(), penalty="published").local.l2 == 0
    assert simulation(FedAvg(), penalty="published").local.l2 == LOCAL.l2
    assert simulation(FedProx(), penalty="published").local.l2 == LOCAL.l2


def test_published_sign_is_that_of_the_decomposition() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(20):
        x = rng.uniform(0, 1, (6, 4)).astype(np.float32)
        free, ruled = message(x, "published"), message(x)
        np.testing.assert_allclose(np.abs(free), np.abs(ruled))
        first = torch.linalg.svd(torch.from_numpy(x), full_matrices=False).Vh[0].numpy()
        np.testing.assert_allclose(free, first, atol=1e-4)
        seen.add(bool(free @ ruled > 0))
    assert False in seen  # the rule matters


def test_in_a_file() -> None:
    (one,) = plans({"reading": "published"})
    assert one.config.reading == Reading.model_validate(dict.fromkeys(SWITCHES, "published"))
    (other,) = plans({"reading": {"anchors": "published"}})
    assert other.config.reading == Reading(anchors="published")
    both = plans({"reading": ["paper", "published"]})
    assert [p.name for p in both] == ["fedavg-reading=paper", "fedavg-reading=published"]
    with pytest.raises(BadInput, match="reading"):
        plans({"reading": "mine"})
    run = Preparation().simulation(Experiment.model_validate({"reading": "published", "partition": {"clients": 5}}))
    assert isinstance(run, PermutedSimulation)
    assert (run.anchors, run.averaging) == (True, True)


def test_mixes_are_sampled_independently_of_the_scheme() -> None:
    labels = np.repeat(np.arange(5), 400)
    counts = {}
    for scheme in ("paper", "published"):
        for mixes in ("paper", "published"):
            parts = split(labels, 10, class_imbalance=20, scheme=scheme, mixes=mixes, rng=np.random.default_rng(0))
            assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
            counts[scheme, mixes] = [len(np.unique(labels[part])) for part in parts]
        own = split(labels, 10, class_imbalance=20, scheme=scheme, rng=np.random.default_rng(0))
        given = split(labels, 10, class_imbalance=20, scheme=scheme, mixes=scheme, rng=np.random.default_rng(0))
        assert all((a == b).all() for a, b in zip(own, given, strict=True))
    assert counts["published", "paper"] != counts["published", "published"]
    assert counts["paper", "paper"] != counts["paper", "published"]


def test_clusters_share_no_class() -> None:
    labels = np.tile(np.arange(10), 60)
    parts = split(labels, 12, clusters=3, rng=np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    for i, part in enumerate(parts):
        assert set((labels[part] % 3).tolist()) == {i % 3}
    with pytest.raises(BadInput, match="too many"):
        split(labels, 12, clusters=7, rng=np.random.default_rng(0))


def test_temperature_sharpens_the_graph() -> None:
    graph = build_graph(small_federation())
    sharp, flat = graph.tempered(0.1), graph.tempered(100)
    strongest = graph.adjacency.argmax(1)
    rows = np.arange(len(graph))
    assert (sharp.mixing[rows, strongest] > graph.mixing[rows, strongest]).all()
    off = ~np.eye(len(graph), dtype=bool)
    np.testing.assert_allclose(flat.mixing[off], 1 / 4, atol=0.01)
    # a ratio of 2:1 becomes 4:1 at temperature 1/2
    ratio = graph.mixing[0, 1] / graph.mixing[0, 2]
    half = graph.tempered(0.5).mixing
    np.testing.assert_allclose(half[0, 1] / half[0, 2], ratio**2)
    assert graph.tempered(1) is graph
