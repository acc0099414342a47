"""Differential privacy in the engine: clipping, noise, sampling, ε, and what is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor

import fedkin
from fedkin import BadInput, FedAvg, FedAvgM, FedKin, FedProx, Kin, Local, Privacy
from fedkin.algorithms import SCAFFOLD, Algorithm, Alone, Round
from fedkin.data.federation import Federation
from fedkin.engine.accounting import ALPHAS, Release, epsilon_of, noise_for
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments.grid import plans
from fedkin.graph.similarity import SimilarityGraph, build_graph, messages, noisy
from fedkin.models import Softmax

LOCAL = Local(epochs=1, batch_size=16)
N = 12


@pytest.fixture(scope="module")
def federation() -> Federation:
    return fedkin.federate(fedkin.load("digits"), clients=N, class_imbalance=1, size_imbalance=1)


def simulation(
    federation: Federation, privacy: Privacy | None, algorithm: Algorithm | None = None, **more: Any
) -> Simulation:
    graph = SimilarityGraph.edgeless(N)
    algorithm = algorithm or FedAvg(step_size=0.1)
    return Simulation(federation, Softmax(64, 10), algorithm, graph, np.ones(N), LOCAL, privacy=privacy, **more)


def played(one: Simulation, rounds: int = 2) -> State:
    state = one.start()
    for _ in range(rounds):
        state = one.advance(state)
    return state


def about(clients: int, number: int = 0, seed: int = 0) -> Round:
    graph = SimilarityGraph.edgeless(clients)
    return Round(number, np.arange(clients), np.full(clients, 1 / clients), graph, clients, seed=seed)


# -- clipping ----------------------------------------------------------------------------------------------------------


def test_clipping_by_hand() -> None:
    """From (1, 1): a move of (3, 4), of norm 5, is cut to norm 1, one of (0, 0.5) stays, and one of NaN is none."""
    starts = torch.ones(3, 2)
    models = starts + torch.tensor([[3.0, 4.0], [0.0, 0.5], [math.nan, 0.0]])
    found = Privacy(clip=1.0).uploads(models, starts, about(3), 3)
    torch.testing.assert_close(found, starts + torch.tensor([[0.6, 0.8], [0.0, 0.5], [0.0, 0.0]]))


def test_the_sum_is_divided_by_the_expected_number_of_clients() -> None:
    """Two clients of an expected four, with moves of 1 and 0.5: their mean is (1 + 0.5)/4, not (1 + 0.5)/2."""
    found = Privacy(clip=1.0).uploads(torch.tensor([[9.0], [0.5]]), torch.zeros(2, 1), about(2), 4)
    assert found.mean().item() == pytest.approx(1.5 / 4)
    everywhere = Privacy(clip=1.0, where="clients").uploads(
        torch.tensor([[9.0], [0.5]]), torch.zeros(2, 1), about(2), 4
    )
    assert everywhere.mean().item() == pytest.approx(1.5 / 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10), st.floats(-3, 8), st.integers(0, 4))
def test_one_client_changes_the_sum_by_at_most_the_clip(seed: int, clip: float, exponent: float, who: int) -> None:
    """M times the average with a client and without it differ by at most C, with any other model of it by 2C."""
    rng = np.random.default_rng(seed)
    starts = torch.from_numpy(np.tile(rng.standard_normal(4), (5, 1)))
    models = starts + torch.from_numpy(rng.standard_normal((5, 4)))
    privacy, expected = Privacy(clip=clip), 3

    def total(rows: Tensor) -> Tensor:
        count = len(rows)
        kept = privacy.uploads(rows, starts[:count], about(count), expected)
        return expected * about(count).average(kept - starts[:count])

    changed = models.clone()
    changed[who] += 10**exponent * torch.from_numpy(rng.standard_normal(4))
    without = torch.cat([changed[:who], changed[who + 1 :]])
    assert float((total(changed) - total(without)).norm()) <= clip * (1 + 1e-9)
    assert float((total(changed) - total(models)).norm()) <= 2 * clip * (1 + 1e-9)


def test_a_large_clip_without_noise_is_the_algorithm_to_the_bit(federation: Federation) -> None:
    for algorithm in (FedAvg(step_size=0.1), FedAvgM(step_size=0.1), FedKin(step_size=0.1)):
        plain = played(simulation(federation, None, algorithm)).model
        for privacy in (Privacy(), Privacy(clip=1e9), Privacy(clip=1e9, where="shares")):
            assert torch.equal(played(simulation(federation, privacy, algorithm)).model, plain)
        assert not torch.equal(played(simulation(federation, Privacy(clip=0.1), algorithm)).model, plain)


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "deviation"),
    [
        ("server", 3 * 0.5 / 10),  # σC/M
        ("shares", 3 * 0.5 / 8),  # of each client σC/√m, so of their mean σC/m
        ("clients", 3 * 0.5 / math.sqrt(8)),  # of each client σC
    ],
)
def test_noise_has_the_stated_standard_deviation(where: str, deviation: float) -> None:
    """Of the average of m = 8 uploads of an expected M = 10, σ = 3, C = 0.5; over 20,000 numbers to 2 %."""
    starts = torch.zeros(8, 20_000)
    found = Privacy(clip=0.5, noise=3.0, where=where).uploads(starts, starts, about(8), 10)
    mean = about(8).average(found)
    assert float(mean.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(mean.mean())) < 4 * deviation / math.sqrt(20_000)
    rows = torch.corrcoef(found)
    expected = torch.ones(8, 8) if where == "server" else torch.eye(8)
    assert_allclose(rows, expected, atol=0.03)  # by the server the same in all rows, by clients independent


def test_noise_depends_on_seed_and_round_alone() -> None:
    zeros, privacy = torch.zeros(3, 5), Privacy(clip=1.0, noise=1.0, where="clients")
    first = privacy.uploads(zeros, zeros, about(3), 3)
    assert torch.equal(first, privacy.uploads(zeros, zeros, about(3), 3))
    assert not torch.equal(first, privacy.uploads(zeros, zeros, about(3, number=1), 3))
    assert not torch.equal(first, privacy.uploads(zeros, zeros, about(3, seed=1), 3))
    two = about(3).of(np.array([0, 2]), np.ones(2))
    assert torch.equal(privacy.uploads(zeros[:2], zeros[:2], two, 3), first[[0, 2]])  # whoever else is sampled


def test_messages_have_noise_and_stay_unit_vectors(federation: Federation) -> None:
    known = messages(federation, "auto", "paper")
    changed = noisy(known[0], 0.1, np.random.default_rng(0))
    assert np.linalg.norm(changed) == pytest.approx(1)
    # Of 64 entries the noise has a norm of about 0.8: a cosine of 1/√(1 + 0.64).
    cosines = [known[0] @ noisy(known[0], 0.1, np.random.default_rng(seed)) for seed in range(200)]
    assert np.mean(cosines) == pytest.approx(1 / math.sqrt(1.64), rel=0.02)
    plain, noised = build_graph(federation), build_graph(federation, message_noise=0.1, seed=3)
    assert not np.allclose(plain.degrees, noised.degrees)
    assert_allclose(noised.degrees, build_graph(federation, message_noise=0.1, seed=3).degrees)


# -- sampling ----------------------------------------------------------------------------------------------------------


def test_clients_are_sampled_one_by_one(federation: Federation) -> None:
    """A Poisson sample: each client in q = 1/4 of the rounds, and sizes with the variance Nq(1 − q)."""
    one = simulation(federation, Privacy(clip=1.0), take_part=3)
    state = one.start()
    rounds = [one.sampled(one.algorithm.at(0), State(state.server, round=t)) for t in range(2000)]
    counts = np.bincount(np.concatenate([round.who for round in rounds]), minlength=N) / 2000
    assert_allclose(counts, 0.25, atol=0.04)
    sizes = np.array([len(round) for round in rounds])
    assert sizes.var() == pytest.approx(N * 0.25 * 0.75, rel=0.1)
    assert (sizes == 0).any()


def test_a_round_without_clients_is_noise_alone(federation: Federation) -> None:
    privacy = Privacy(clip=0.1, noise=2.0)
    one = simulation(federation, privacy, take_part=1)
    state = one.start()
    while len(one.sampled(one.algorithm.at(0), state)):
        state = one.advance(state)
    after = one.advance(state)
    assert after.round == state.round + 1
    assert after.traffic[0].clients == 0
    assert float((after.model - state.model).std()) == pytest.approx(2.0 * 0.1 / 1, rel=0.1)


# -- ε -----------------------------------------------------------------------------------------------------------------


def test_epsilon_is_that_of_the_library() -> None:
    from opacus.accountants import RDPAccountant

    for releases in ([Release(2.0, 1.0, 5)], [Release(1.1, 0.2, 40)], [Release(3.0, 0.5, 9), Release(4.0)]):
        accountant = RDPAccountant()
        accountant.history = list(releases)
        assert epsilon_of(releases, 1e-4) == pytest.approx(accountant.get_epsilon(1e-4, alphas=ALPHAS), rel=1e-12)
        assert epsilon_of(releases, 1e-4) == pytest.approx(accountant.get_epsilon(1e-4), rel=0.02)  # its own orders


def test_epsilon_of_one_gaussian_by_hand() -> None:
    """At order α a Gaussian release has α/2σ², so ε ≤ α/2σ² + ln((α − 1)/α) − (ln δ + ln α)/(α − 1) for every α."""
    alpha, sigma, delta = 9.0, 2.0, 1e-3
    bound = alpha / (2 * sigma**2) + math.log((alpha - 1) / alpha) - math.log(delta * alpha) / (alpha - 1)
    assert epsilon_of([Release(sigma)], delta) <= bound < 1.05 * epsilon_of([Release(sigma)], delta)
    assert epsilon_of([], delta) == 0
    assert epsilon_of([Release(0.0)], delta) == math.inf


@pytest.mark.parametrize(("rate", "times"), [(1.0, 30), (0.3, 100)])
def test_the_noise_of_an_epsilon_is_the_least(rate: float, times: int) -> None:
    noise = noise_for(2.0, 1e-4, rate, times)
    assert epsilon_of([Release(noise, rate, times)], 1e-4) <= 2.0
    assert epsilon_of([Release(noise * 0.9995, rate, times)], 1e-4) > 2.0
    with_message = noise_for(2.0, 1e-4, rate, times, [Release(4.0)])
    assert with_message > noise
    with pytest.raises(BadInput, match=r"as messages alone have ε = .*: choose a larger epsilon"):
        noise_for(2.0, 1e-4, rate, times, [Release(0.5)])


def test_who_is_protected_decides_what_is_counted() -> None:
    assert Privacy(clip=1.0, noise=4.0).releases(7, 0.25) == [Release(4.0, 0.25, 7)]
    assert Privacy(clip=1.0, noise=4.0, where="shares").releases(7, 0.25) == [Release(4.0, 1.0, 7)]
    local = Privacy(clip=1.0, noise=4.0, where="clients", message_noise=6.0)
    assert local.releases(7, 0.25) == [Release(2.0, 1.0, 7), Release(3.0)]
    assert Privacy(clip=1.0).releases(7, 0.25) == []


def test_epsilon_covers_all_runs_and_rounds() -> None:
    """The noise for 3 runs of 20 rounds is that for one of 60; with rounds = 20 a run of 5 has it, too."""
    target = Privacy(clip=1.0, epsilon=2.0, delta=1e-4)
    alone = target.found(60, 0.5)
    assert fedkin.Privacy(clip=1.0, epsilon=2.0, delta=1e-4, runs=3).found(20, 0.5).noise == alone.noise
    short = Privacy(clip=1.0, epsilon=2.0, delta=1e-4, runs=3, rounds=20).found(5, 0.5)
    assert short.noise == alone.noise
    for where in ("server", "shares", "clients"):
        found = Privacy(clip=1.0, epsilon=2.0, delta=1e-4, where=where, message_noise=0.0).found(10, 0.5)
        assert epsilon_of(found.releases(10, 0.5), 1e-4) == pytest.approx(2.0, rel=1e-3)


# -- runs --------------------------------------------------------------------------------------------------------------

TABLE: dict[str, Any] = {
    "rounds": 4,
    "take_part": 6,
    "checkpoint_every": 1,
    "partition": {"clients": N},
    "graph": {"kind": "global", "weights": "uniform"},
    "local": {"step_size": 0.1, "epochs": 1},
    "privacy": {"clip": 0.5, "noise": 2.0, "delta": 1e-3},
}


def test_records_have_the_epsilon_of_the_rounds_so_far(tmp_path: Path) -> None:
    (result,) = fedkin.run(TABLE, out=tmp_path)
    expected = [epsilon_of([Release(2.0, 0.5, t)], 1e-3) for t in range(1, 5)]
    assert_allclose(result.epsilon, expected, atol=1e-6)
    assert (np.diff(result.epsilon) > 0).all()
    assert result.summary["privacy"]["epsilon"] == pytest.approx(expected[-1])
    assert result.summary["privacy"]["releases"] == [[2.0, 0.5, 4]]


def test_an_interrupted_run_has_the_same_noise_and_epsilon(tmp_path: Path) -> None:
    (whole,) = fedkin.run(TABLE, out=tmp_path / "whole")
    fedkin.run({**TABLE, "rounds": 2}, out=tmp_path / "parts")
    (parts,) = fedkin.run(TABLE, out=tmp_path / "parts")
    assert torch.equal(whole.model, parts.model)
    assert_allclose(whole.epsilon, parts.epsilon)


def test_an_epsilon_of_the_whole_run_does_not_grow(tmp_path: Path) -> None:
    table = {**TABLE, "privacy": {"clip": 0.5, "epsilon": 5.0, "delta": 1e-3}}
    (result,) = fedkin.run({**table, "rounds": 2}, out=tmp_path)
    assert 4.9 < result.summary["privacy"]["epsilon"] <= 5.0
    with pytest.raises(BadInput, match="rounds was 2, now 4"):
        fedkin.run(table, out=tmp_path)


def test_lanes_with_different_clip_and_noise_are_the_runs_alone(tmp_path: Path) -> None:
    table = {**TABLE, "privacy": {"clip": [0.2, 0.5], "noise": [0.0, 2.0], "delta": 1e-3}}
    together = {result.name: result for result in fedkin.run(table, out=tmp_path / "grid")}
    assert len({len(r.summary["spaces"]) for r in together.values()}) == 1
    origin = (tmp_path / "grid" / "experiment" / "fedavg-clip=0.2-noise=2" / "origin.json").read_text()
    assert origin.count("fedavg-clip") == 4  # one group
    (alone,) = fedkin.run({**TABLE, "privacy": {"clip": 0.2, "noise": 2.0, "delta": 1e-3}}, out=tmp_path / "one")
    lane = together["fedavg-clip=0.2-noise=2"]
    assert_allclose(lane.test_loss, alone.test_loss, rtol=1e-5)
    assert_allclose(lane.epsilon, alone.epsilon)
    assert "privacy" not in together["fedavg-clip=0.5-noise=0"].summary


def test_from_python_and_with_nothing_exchanged(federation: Federation) -> None:
    privacy = Privacy(clip=0.5, epsilon=8.0, delta=1e-3)
    how: dict[str, Any] = {"graph": "global", "weights": "uniform", "local": LOCAL, "rounds": 3, "privacy": privacy}
    result = fedkin.train(federation, FedProx(step_size=0.1), **how)
    assert 7.9 < result.epsilon[-1] <= 8.0
    assert "privacy" not in fedkin.train(federation, Alone(step_size=0.1), **how).summary


def test_local_noise_protects_kin_too(federation: Federation) -> None:
    """With noise at the clients FedKin runs on the graph of noisy messages: all else follows from noisy uploads."""
    privacy = Privacy(clip=0.5, noise=0.5, where="clients", message_noise=1.0, delta=1e-3)
    result = fedkin.train(
        federation, FedKin(step_size=0.1), weights="adjacency", local=LOCAL, rounds=2, privacy=privacy
    )
    assert result.summary["privacy"]["releases"] == [[0.25, 1.0, 2], [0.5, 1.0, 1]]


@pytest.mark.parametrize(
    ("privacy", "how", "says"),
    [
        (Privacy(clip=1.0), {"algorithm": Kin()}, "uses more of what clients send than the average"),
        (Privacy(clip=1.0), {"algorithm": FedKin(), "graph": "uniform"}, "set graph.kind|graph.kind = 'global'"),
        (Privacy(clip=1.0, where="clients"), {"algorithm": SCAFFOLD()}, "clients of SCAFFOLD send more than"),
        (Privacy(clip=1.0), {"weights": "samples"}, "set graph.weights = 'uniform'"),
        (Privacy(clip=1.0, where="clients"), {"weights": "samples"}, "set graph.weights = 'uniform'"),
        (Privacy(clip=1.0, noise=1.0, delta=0.1), {}, "not below 1/12"),
        (Privacy(clip=1.0), {"aggregate": "median"}, "noise is measured for the mean"),
        (Privacy(clip=1.0, noise=1.0, where="clients"), {"graph": "similarity"}, "set privacy.message_noise, or set"),
        (Privacy(clip=1.0, noise=1.0, where="shares"), {"graph": "similarity"}, "protected: set graph.kind = 'global'"),
    ],
)
def test_what_is_not_covered_is_refused(
    federation: Federation, privacy: Privacy, how: dict[str, Any], says: str
) -> None:
    usual = {"algorithm": FedAvg(), "graph": "global", "weights": "uniform", "rounds": 1}
    with pytest.raises(BadInput, match=says):
        fedkin.train(federation, privacy=privacy, **{**usual, **how})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Privacy(clip=0.0), "clip = 0 is out of range"),
        (lambda: Privacy(clip=1.0, noise=1.0, epsilon=1.0), "leave out one of them"),
        (lambda: Privacy(noise=1.0), "set privacy.clip"),
        (lambda: Privacy(clip=1.0, message_noise=1.0), "set privacy.where = 'clients'"),
        (lambda: Privacy(clip=1.0, where="here"), "unknown where 'here': choose server, shares, clients"),
        (lambda: Privacy(clip=1.0, epsilon=1.0, rounds=3).found(4, 1.0), "raise it"),
        (lambda: plans({"privacy": {"epsilon": 3.0}}), "set privacy.clip"),
        (lambda: plans({"privacy": {"clipp": 3.0}}), "unknown key 'privacy.clipp'"),
        (lambda: plans({"privacy": {"delta": 1.0}}), "privacy.delta = 1.0 is out of range"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        call()
