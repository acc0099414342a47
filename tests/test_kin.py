"""κ and kin: clients that start at the average of those like them, and that find out by themselves who that is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array
from torch import Tensor

from conftest import tensors_of
from fedkin import FedAvg, Federation, FedKin, Kin, Local, Softmax, run
from fedkin.algorithms import Algorithm, ClientRows, Round
from fedkin.algorithms.kin import ALONE, OWN, START, Candidate, candidates, first_offers, further_offers, is_choosing
from fedkin.algorithms.kinship import kin_average, sketched
from fedkin.algorithms.personal import Alone
from fedkin.data.federation import from_rows
from fedkin.engine import cohorts
from fedkin.engine.lanes import parted, together
from fedkin.engine.own import own_models
from fedkin.engine.scores import client_table, predictions
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.graph.kin import in_both, kin_rows, strongest
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.types import Floats
from loops import played

LOCAL = Local(epochs=3, batch_size=8, l2=0.01, order="fixed")
CLIENTS, CLASSES, FEATURES = 20, 4, 12
KIN, LONE = Kin(step_size=0.1), Alone(step_size=0.1)


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


def test_in_both_by_hand() -> None:
    """Ranks in lists of three, 3 where missing. Client 0: 4 has 1 + 0, 5 has 0 + 2, 6 has 2 + 3, 7 has 3 + 1.

    Client 1 has a single neighbour, in one list; client 2 none.
    """
    near, other = np.array([[5, 4, 6], [-1, -1, -1], [-1, -1, -1]]), np.array([[4, 7, 5], [2, -1, -1], [-1, -1, -1]])
    assert in_both(near, other).tolist() == [[4, 5, 7], [2, -1, -1], [-1, -1, -1]]
    tied = np.array([[5, 4, 6]]), np.array([[4, 5, 7]])
    assert in_both(*tied).tolist() == [[5, 4, 6]], "ties by the first list, whatever the numbers"
    assert in_both(*reversed(tied)).tolist() == [[4, 5, 7]]


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


def test_kin_are_found_anew_from_models() -> None:
    """Directions of first updates that say nothing (a single tiny step) are replaced by those of the models."""
    fixed = FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="updates", neighbours=6, renew=0)
    for kin in ("updates", "both"):
        run = simulation(replace(fixed, kin=kin, renew=3))
        before = played(run, 2).server["nearest"].at(np.arange(CLIENTS))
        assert torch.equal(
            played(simulation(replace(fixed, kin=kin)), 3).server["nearest"].at(np.arange(CLIENTS)), before
        )
        after = played(run, 3).server["nearest"].at(np.arange(CLIENTS))
        assert not torch.equal(before, after)
        assert (after[:, :6] % 2 == torch.arange(CLIENTS)[:, None] % 2).double().mean() > 0.99


# -- identities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kin", ["graph", "data", "updates", "both"])
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
    FedKin(step_size=0.1, beta=1.0, kappa=1.0, kin="both", neighbours=4, absent="last", renew=2),
    Kin(step_size=0.1),
]
IDS = ["data", "updates", "both", "chosen"]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=IDS)
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


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=IDS)
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


def test_when_candidates_are_compared() -> None:
    assert [t for t in range(60) if is_choosing(t)] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]


def test_candidates() -> None:
    """The simplest first; at first w̄ and every other k of the two sources, then what differs from the best in one."""
    edgeless = Round(0, np.arange(9), np.full(9, 1 / 9), SimilarityGraph.edgeless(9), 9)
    every = candidates(edgeless)
    assert every == [Candidate(), *(Candidate("updates", k, kappa) for k in (4, 2) for kappa in (0.5, 1.0))]
    assert [str(every[place]) for place in first_offers(every)] == ["global", "4 nearest by updates"]
    several = candidates(replace(edgeless, graph=SimilarityGraph.uniform(9)))
    assert len(several) == 1 + 2 * 2 * 3
    best = several.index(Candidate("data", 4, 1.0))
    in_use = several.index(Candidate("updates", 2, 0.5))
    assert {str(several[place]) for place in further_offers(several, best, [in_use])} == {
        *("global", "4 nearest by data", "2 nearest by data", "half way to 4 nearest by data", "4 nearest by updates"),
        *("4 nearest by both", "half way to 2 nearest by updates"),
    }


def test_kin_pay_where_clients_come_in_kinds() -> None:
    federation = in_kinds()
    kin, average = simulation(Kin(step_size=0.1), federation), simulation(FedAvg(step_size=0.1), federation)
    state = played(kin, 16)
    assert "nearest by updates" in kin.algorithm.at(0).notes(state.server, kin.available(16))["start"]
    test = federation.test
    right = (average.model.scores(played(average, 16).model[None], test.x).argmax(-2) == test.y).float().mean()
    assert accuracy(kin) > float(right) + 0.2


def test_nothing_is_lost_where_clients_are_alike() -> None:
    """The global model is chosen, so it is FedAvg, up to the rounding of a product with more columns."""
    federation = in_kinds(kinds=1)
    run = simulation(Kin(step_size=0.1), federation)
    state = played(run, 10)
    notes = run.algorithm.at(0).notes(state.server, run.available(10))
    assert (notes["start"], notes["uses"]) == ("global", "start")
    average = played(simulation(FedAvg(step_size=0.1), federation), 10).model
    torch.testing.assert_close(state.model, average, rtol=1e-5, atol=1e-6)


def test_nothing_is_lost_where_nobody_is_kin() -> None:
    """Four clients, four kinds: each uses the model that it trained alone, which is that of `Alone` to the bit."""
    whole = in_kinds(kinds=4, samples=60)
    federation = replace(
        whole, **{part: getattr(whole, part).reordered(range(4)) for part in ("train", "test", "validation")}
    )
    graph = build_graph(federation)
    runs = [replace(simulation(a, whole), federation=federation, graph=graph, weights=np.ones(4)) for a in (KIN, LONE)]
    run, alone = (replace(one, local=replace(LOCAL, epochs=10)) for one in runs)
    state = played(run, 13)
    assert run.algorithm.at(0).notes(state.server, run.available(13))["uses"] == "alone"
    torch.testing.assert_close(
        state.memory["alone"].at(np.arange(4)), played(alone, 13).memory["own"].at(np.arange(4)), rtol=1e-5, atol=1e-6
    )
    (mine,), (theirs,) = own_models(run, state), own_models(alone, played(alone, 13))
    assert mine["own_test_accuracy"] == theirs["own_test_accuracy"]


def test_a_client_of_no_kind_differs_from_the_common_choice() -> None:
    """One client of twenty has labels of its own: it uses its model alone, the others start at their kin."""
    made = in_kinds(kinds=2, samples=80)

    def odd(clients: Any) -> Any:
        y = clients.y.clone()
        y[clients.rows(5)] = 3 - y[clients.rows(5)]
        return replace(clients, y=y)

    assert made.validation is not None
    federation = replace(made, train=odd(made.train), test=odd(made.test), validation=odd(made.validation))
    run = simulation(Kin(step_size=0.1), federation)
    state = played(run, 17)
    chosen = run.algorithm.at(17).client_notes(state.server, run.available(17))
    assert chosen[5]["uses"] in ("own", "alone")
    assert sum(one["uses"] == "start" for one in chosen) >= 15
    assert "others" in run.algorithm.at(17).notes(state.server, run.available(17))
    table = client_table(run, state, predictions(run, state))
    assert table[5]["uses"] == chosen[5]["uses"], "the table of clients has it too"


def test_without_validation_samples_there_is_no_choice() -> None:
    federation = replace(in_kinds(), validation=None)
    with pytest.raises(BadInput, match=r"has none: use federation.held_out\(0.2\)"):
        played(simulation(Kin(step_size=0.1), federation))


def test_the_model_a_client_uses() -> None:
    run = simulation(Kin(step_size=0.1))
    state, everyone = played(run, 4), np.arange(CLIENTS)
    memory = {name: rows.at(everyone) for name, rows in state.memory.items()}
    algorithm, round = run.algorithm.at(4), run.available(4)
    choices = state.server["choices"].updated(everyone, torch.tensor([[0, use % 3] for use in everyone]))
    got = algorithm.send({**state.server, "choices": choices}, round)
    used = algorithm.own(got, memory)
    for use, models in ((START, got["model"]), (OWN, memory["own"]), (ALONE, memory["alone"])):
        assert torch.equal(used[use::3], models[use::3])


def test_few_of_many_clients_have_the_same_averages() -> None:
    """Models that lie in several blocks are averaged where they lie, as if they were put together."""
    rng = np.random.default_rng(0)
    for lanes in ((), (2,)):
        models = ClientRows(torch.zeros(*lanes, 1, 3))
        for who in (np.arange(30), np.array([3, 17]), np.array([5, 17, 29])):
            models = models.updated(who, torch.from_numpy(rng.standard_normal((*lanes, len(who), 3))).float())
        assert len(list(models.blocks())) == 3
        weights = [csr_array(random_array((4, 30), density=0.3, rng=rng)) for _ in range(max(1, *lanes, 0))]
        server = {"models": models, "model": torch.ones(*lanes, 1, 3)}
        u = kin_average(server, weights)
        for lane, own in zip(u.reshape(-1, 4, 3), weights, strict=True):
            values = models.values.reshape(-1, 30, 3)[0 if not lanes else [w is own for w in weights].index(True)]
            rest: Floats = np.asarray(1 - own.sum(axis=1))
            expected = own @ values.numpy() + rest[:, None]
            np.testing.assert_allclose(lane.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_starts_of_several_clients_by_hand() -> None:
    """Candidates of clients 0, 1, 2: w̄; half way to its kin; its kin. The nearest by data are 0-1, 1-0, 2-1.

    Weights 1, 2, 3, models 10, 20, 40: w̄ = 170/6, u₁ = (10 + 2·20 + 3·40)/6 = 170/6, u₂ = (2·20 + 3·40)/5 = 32.
    """
    graph = SimilarityGraph(np.array([[0.0, 3, 0, 0], [3, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]]))
    p = np.array([1.0, 2.0, 3.0, 0.0])
    kin, round = Kin(), Round(0, np.arange(3), p[:3] / 6, graph, 4, shares=p)
    every = candidates(round)
    starts = [0, every.index(Candidate("data", 2, 0.5)), every.index(Candidate("data", 2, 1.0))]
    server = kin.start(torch.zeros(1, 1), round)
    server["models"] = server["models"].updated(np.arange(3), torch.tensor([[10.0], [20.0], [40.0]]))
    server["model"] = torch.tensor([[170 / 6]])
    server["choices"] = server["choices"].updated(np.arange(3), torch.tensor([[start, -1] for start in starts]))
    got = kin.send(server, round)
    assert got["model"].flatten().tolist() == pytest.approx([170 / 6, 170 / 6, 32])
    weights = kin.kin_weights(server, round)
    assert weights is not None
    np.testing.assert_allclose(weights.toarray()[1:, :3], [[1 / 12, 2 / 12, 3 / 12], [0, 2 / 5, 3 / 5]])


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
