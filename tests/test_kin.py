"""κ and kin: clients that start at the average of those like them, and that find out by themselves who that is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tensors_of
from fedkin import FedAvg, Federation, FedKin, Kin, Local, Softmax, run
from fedkin.algorithms import Algorithm, Round
from fedkin.algorithms.kin import candidates, choose_start, is_choosing
from fedkin.algorithms.kinship import sketched
from fedkin.data.federation import from_rows
from fedkin.engine import cohorts
from fedkin.engine.lanes import parted, together
from fedkin.engine.own import own_models
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.graph.kin import kin_rows, strongest
from fedkin.graph.similarity import SimilarityGraph, build_graph

LOCAL = Local(epochs=3, batch_size=8, l2=0.01)
CLIENTS, CLASSES, FEATURES = 20, 4, 12


def in_kinds(kinds: int = 2, samples: int = 24, seed: int = 0) -> Federation:
    """The same blobs everywhere, but each kind has its own names for the classes; client i is of kind i mod kinds."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((CLASSES, FEATURES))

    def clients(count: int) -> Any:
        y = rng.integers(0, CLASSES, (CLIENTS, count))
        x = centres[y] + 0.7 * rng.standard_normal((CLIENTS, count, FEATURES)) + 3
        named = (y + np.arange(CLIENTS)[:, None] % kinds) % CLASSES
        rows = torch.tensor(x.reshape(-1, FEATURES), dtype=torch.float32), torch.tensor(named.reshape(-1))
        return from_rows(*rows, np.full(CLIENTS, count))

    plain = torch.zeros(FEATURES), torch.ones(FEATURES)
    made = Federation(clients(samples), clients(30), CLASSES, (FEATURES,), *plain, paired=True)
    return made.held_out(0.25, seed)


def simulation(algorithm: Algorithm, federation: Federation | None = None, **other: Any) -> Simulation:
    federation = federation or in_kinds()
    p = np.linspace(1, 2, CLIENTS) / 30
    settings = {"local": LOCAL, "seed": 3, **other}
    return Simulation(federation, Softmax(FEATURES, CLASSES), algorithm, build_graph(federation), p, **settings)


def played(run: Simulation, rounds: int = 3) -> State:
    state = run.start()
    for _ in range(rounds):
        state = run.advance(state)
    return state


def accuracy(run: Simulation, rounds: int = 16) -> float:
    (found,) = own_models(run, played(run, rounds))
    return float(found["own_test_accuracy"])


# -- who is kin --------------------------------------------------------------------------------------------------------


def test_kin_by_hand() -> None:
    """0 and 1 want each other, 2 wants 1, 3 wants nobody: kin {0, 1}, {0, 1, 2}, {1, 2}, {3}; weights 1, 2, 3, 4."""
    rows = kin_rows(np.array([[1], [0], [1], [-1]]), np.array([1.0, 2.0, 3.0, 4.0])).toarray()
    expected = [[1 / 3, 2 / 3, 0, 0], [1 / 6, 2 / 6, 3 / 6, 0], [0, 2 / 5, 3 / 5, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(rows, np.array(expected))


@pytest.mark.parametrize("sparse", [False, True])
def test_strongest_edges_by_hand(sparse: bool) -> None:
    graph = SimilarityGraph(np.array([[0.0, 1, 3], [1, 0, 0], [3, 0, 0]]))
    graph = SimilarityGraph.nearest(np.eye(3) + 1e-3, 2) if sparse else graph
    if sparse:  # all edges alike: ties by number
        assert strongest(graph, 2).tolist() == [[1, 2], [0, 2], [0, 1]]
    else:
        assert strongest(graph, 2).tolist() == [[2, 1], [0, -1], [0, -1]]


def test_sketches_keep_inner_products() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(30, 5000, generator=torch.Generator().manual_seed(0)))
    exact, short = vectors @ vectors.mT, sketched(vectors, 1024, seed=1)
    assert (short @ short.mT - exact).abs().max() < 6 / 1024**0.5
    assert sketched(vectors, 5000, seed=1) is vectors
    assert torch.equal(short, sketched(vectors, 1024, seed=1))
    assert not torch.equal(short, sketched(vectors, 1024, seed=2))


def test_kin_are_found_from_updates() -> None:
    run = simulation(FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="updates", neighbours=6))
    near = played(run, 1).server["nearest"].at(np.arange(CLIENTS)).numpy()[:, :6]
    assert (near % 2 == np.arange(CLIENTS)[:, None] % 2).mean() > 0.95


# -- identities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kin", ["graph", "data", "updates"])
def test_without_kappa_and_beta_it_is_fedavg_to_the_bit(kin: str) -> None:
    federation = in_kinds()
    average = played(simulation(FedAvg(step_size=0.1), federation))
    state = played(simulation(FedKin(step_size=0.1, beta=1.0, kin=kin), federation))
    assert torch.equal(state.model, average.model)


def test_without_kappa_it_is_the_papers_algorithm_to_the_bit() -> None:
    paper = played(simulation(FedKin(step_size=0.1, beta=0.5)))
    assert torch.equal(played(simulation(FedKin(step_size=0.1, beta=0.5, kappa=0.0, neighbours=3))).model, paper.model)


def test_if_all_are_kin_it_is_fedavg() -> None:
    """P_in = pₙ, so every start is w̄."""
    average = played(simulation(FedAvg(step_size=0.1)))
    state = played(simulation(FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="data", neighbours=CLIENTS - 1)))
    torch.testing.assert_close(state.model, average.model, rtol=1e-5, atol=1e-6)


def test_a_start_by_hand() -> None:
    """κ = 0.5, u₀ = 10 and 20 weighted 1 : 2 = 50/3, w̄ = (10 + 2·20 + 3·40)/6 = 170/6: start 22.5."""
    graph = SimilarityGraph(np.array([[0.0, 3, 1], [3, 0, 2], [1, 2, 0]]))
    fedkin, p = FedKin(beta=1.0, kappa=0.5, kin="data", neighbours=1), np.array([1.0, 2.0, 3.0])
    round = Round(0, np.arange(3), p / 6, graph, 3, shares=p)
    server = fedkin.combine(
        fedkin.start(torch.zeros(1, 1), round), {"model": torch.tensor([[10.0], [20.0], [40.0]])}, round
    )
    got = fedkin.send(server, round)
    assert float(got["model"][0]) == pytest.approx(0.5 * 50 / 3 + 0.5 * 170 / 6)
    assert "anchor" not in got, "without β < 1 nothing else is needed"
    whole = replace(fedkin, kappa=1.0, beta=0.5).send(server, round)
    assert set(whole) == {"model"}, "at κ = 1 the bytes of FedAvg"
    assert float(whole["model"][0]) == pytest.approx(50 / 3)


ALGORITHMS = [
    FedKin(step_size=0.1, beta=0.7, kappa=0.6, kin="data", neighbours=4),
    FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="updates", neighbours=4, absent="last"),
    Kin(step_size=0.1),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["data", "updates", "chosen"])
@pytest.mark.parametrize("take_part", [None, 8])
def test_fast_is_plain(algorithm: Algorithm, take_part: int | None) -> None:
    run = simulation(algorithm, take_part=take_part)
    quick, plain = played(run, 5), played(replace(run, stacked=False), 5)
    assert "plain" not in quick.spaces
    _assert_close(quick, plain)


def _assert_close(one: State, other: State) -> None:
    for name, value in tensors_of(other).items():
        torch.testing.assert_close(tensors_of(one)[name], value, rtol=1e-3, atol=1e-4)


def test_compiled_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(cohorts, "MUCH", 0)
    run = simulation(ALGORITHMS[0], in_kinds(samples=100), local=replace(LOCAL, batch_size=32, epochs=40))
    run = replace(run, model=Softmax(FEATURES, CLASSES))
    quick = played(run)
    _assert_close(quick, played(replace(run, stacked=False)))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["data", "updates", "chosen"])
def test_relabelling_changes_nothing(algorithm: Algorithm) -> None:
    order = np.random.default_rng(1).permutation(CLIENTS)
    run = simulation(algorithm)
    other = simulation(algorithm, run.federation.relabelled(order.tolist()))
    other = replace(other, weights=run.weights[order])
    torch.testing.assert_close(played(other, 5).model, played(run, 5).model, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("take_part", [None, 8])
def test_lanes(take_part: int | None) -> None:
    """Each lane has its own directions, kin and choice."""
    for kind in ALGORITHMS[1:]:
        alone = [simulation(replace(kind, step_size=g), take_part=take_part) for g in (0.1, 0.02)]
        for one, state in zip(alone, parted(played(together(alone), 5), alone), strict=True):
            _assert_close(state, played(one, 5))


# -- the choice --------------------------------------------------------------------------------------------------------


def test_a_choice_by_hand() -> None:
    """Of three starts the third has the lowest mean, 1.0. The first exceeds it by 0, 0.2, 0.4, 0.2: mean 0.2, standard
    error 0.163/2 = 0.082: worse. The second by 0.1, −0.1, 0.1, 0: mean 0.025, error 0.048: as good, and simpler than
    the third. Own models are better than the second by 0.2 everywhere: error 0, so they are used.
    """
    third = torch.tensor([1.0, 0.9, 1.1, 1.0])
    first, second = third + torch.tensor([0, 0.2, 0.4, 0.2]), third + torch.tensor([0.1, -0.1, 0.1, 0])
    losses = torch.stack([first, second, third, second - 0.2], dim=-1)
    choice, tuned = choose_start(losses)
    assert choice.tolist() == [[0, 1, 0]]
    assert tuned.tolist() == [[1]]
    assert choose_start(torch.stack([first, second, third, second + 0.1], dim=-1))[1].tolist() == [[0]]
    lanes = torch.stack([losses, losses.flip(-1)])
    assert choose_start(lanes)[0][0].tolist() == [[0, 1, 0]], "each lane chooses by itself"


def test_when_candidates_are_compared() -> None:
    assert [t for t in range(60) if is_choosing(t)] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]


def test_candidates() -> None:
    edgeless = Round(0, np.arange(9), np.full(9, 1 / 9), SimilarityGraph.edgeless(9), 9)
    assert candidates(edgeless) == [("global", 0), ("updates", 4), ("updates", 2)]
    with_graph = replace(edgeless, graph=SimilarityGraph.uniform(9))
    assert candidates(with_graph)[1:3] == [("updates", 4), ("data", 4)]


def test_kin_pay_where_clients_come_in_kinds() -> None:
    federation = in_kinds()
    kin, average = simulation(Kin(step_size=0.1), federation), simulation(FedAvg(step_size=0.1), federation)
    state = played(kin, 16)
    assert "nearest by updates" in kin.algorithm.at(0).notes(state.server, kin.available(16))["start"]
    test = federation.test
    right = (average.model.scores(played(average, 16).model[None], test.x).argmax(-2) == test.y).float().mean()
    assert accuracy(kin) > float(right) + 0.2


def test_nothing_is_lost_where_clients_are_alike() -> None:
    """The global model is chosen, so it is FedAvg to the bit."""
    federation = in_kinds(kinds=1)
    run = simulation(Kin(step_size=0.1), federation)
    state = played(run, 10)
    assert run.algorithm.at(0).notes(state.server, run.available(10)) == {"start": "global", "uses": "start"}
    assert torch.equal(state.model, played(simulation(FedAvg(step_size=0.1), federation), 10).model)


def test_without_validation_samples_there_is_no_choice() -> None:
    federation = replace(in_kinds(), validation=None)
    with pytest.raises(BadInput, match=r"has none: use federation.held_out\(0.2\)"):
        played(simulation(Kin(step_size=0.1), federation))


def test_own_models_are_used_where_they_are_better(monkeypatch: pytest.MonkeyPatch) -> None:
    run = simulation(Kin(step_size=0.1))
    state = played(run, 4)
    own = state.memory["own"].at(np.arange(CLIENTS))
    for tuned, expected in ((1.0, own), (0.0, None)):
        server = {**state.server, "tuned": torch.full((1, 1), tuned)}
        round = run.available(4)
        got = run.algorithm.at(4).send(server, round)
        used = run.algorithm.at(4).own(got, {"own": own})
        assert torch.equal(used, got["model"] if expected is None else expected)


# -- from a file -------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "name": "kin",
    "rounds": 7,
    "checkpoint_every": 2,
    "partition": {"clients": 12, "kinds": 2, "differ": "permuted", "newcomers": 0.2},
    "local": {"step_size": [0.05, 0.02], "epochs": 2, "batch_size": 16},
    "algorithm": ["fedavg", "kin", {"name": "fedkin", "beta": 1.0, "kappa": 1.0, "kin": "updates", "neighbours": 4}],
}


def test_runs_in_folders(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen is on record, newcomers are not sampled, and a crash changes nothing."""
    from test_experiment import Crash, crash_after, rounds

    whole = {r.name: r for r in run(SETTINGS, out=tmp_path / "whole")}
    kin = whole["kin-step_size=0.05"]
    assert kin.rounds[0]["start"] == "global"
    assert any("nearest by updates" in record["start"] for record in kin.rounds)
    assert kin.summary["final_own_test_accuracy"] == kin.rounds[-1]["own_test_accuracy"]
    assert "own_test_accuracy" not in whole["fedavg-step_size=0.05"].rounds[0]
    with monkeypatch.context() as patch:
        crash_after(patch, 5)
        with pytest.raises(Crash):
            run(SETTINGS, out=tmp_path)
    for result in run(SETTINGS, out=tmp_path):
        assert result.folder is not None
        assert rounds(result.folder) == rounds(tmp_path / "whole" / "kin" / result.name)


def test_newcomers_are_not_sampled() -> None:
    federation = replace(in_kinds(), newcomers=(2, 7))
    run = simulation(Kin(step_size=0.1), federation)
    assert sorted({2, 7} & set(run.sampled(run.algorithm.at(0), run.start()).who.tolist())) == []
    with pytest.raises(BadInput, match="all 18 clients"):
        replace(run, take_part=19)
    models: Tensor = played(run, 3).server["models"].values
    assert len(models) == 18
