"""Robust aggregation: median, trimmed mean and Krum, in the engine, from TOML and Python, and on Flower."""

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
from fedkin import BadInput, FedAdam, FedAvg, FedAvgM, FedKin, FedProx, Kin, Krum, Local, Median, TrimmedMean
from fedkin.algorithms import IFCA, SCAFFOLD, Algorithm, Averaging, FedNova, PowerOfChoice
from fedkin.algorithms.averaging import MEAN, SORTED_AT_ONCE
from fedkin.data.federation import Federation
from fedkin.engine import lanes
from fedkin.engine.simulation import Simulation
from fedkin.experiments.grid import plans
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Softmax
from flower_nodes import five, lead, tampered

LOCAL = Local(epochs=1, batch_size=16)
RULES: list[Averaging] = [Median(), TrimmedMean(0.2), Krum(attackers=1), Krum(attackers=1, keep=1)]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return fedkin.federate(fedkin.load("digits"), clients=8, class_imbalance=1, size_imbalance=1)


def column(*values: float) -> Tensor:
    return torch.tensor([float(value) for value in values])[:, None]


# -- numbers by hand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "weights", "median"),
    [
        ((3, 1, 2), (1, 1, 1), 2.0),
        ((4, 1, 2, 3), (1, 1, 1, 1), 2.5),  # even: the middle of the two in the middle
        ((1, 2, 10), (1, 1, 3), 10.0),  # 10 has three fifths of the weight
        ((1, 2, 10), (1, 2, 3), 6.0),  # {1, 2} has exactly half: between 2 and 10
        ((5, 0, 7, 1, 2, 9), (1, 1, 1, 1, 1, 1), 3.5),  # sums of sixths are rounded
    ],
)
def test_the_median_by_hand(values: tuple[float, ...], weights: tuple[float, ...], median: float) -> None:
    p = np.array(weights) / sum(weights)
    assert Median()(column(*values), p).item() == median


def test_a_weight_counts_as_so_many_equal_clients() -> None:
    values, copies = torch.randn(4, 7), [1, 3, 2, 4]
    repeated = values.repeat_interleave(torch.tensor(copies), dim=0)
    for rule in (Median(), TrimmedMean(0.25)):
        found, expected = rule(values, np.array(copies) / 10), rule(repeated, np.full(10, 0.1))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("trim", "weights", "mean"),
    [
        (0.25, (1, 1, 1, 1), 2.5),  # of 1, 2, 3, 100 the ends are left out
        (0.1, (1, 1, 1, 1), (0.15 * 1 + 0.25 * 2 + 0.25 * 3 + 0.15 * 100) / 0.8),  # 0.15 of the 0.25 of either end
        # Weights 0.1, 0.2, 0.3, 0.4; without 0.2 at either end there are 0.1 of 2, 0.3 of 3 and 0.2 of 100.
        (0.2, (1, 2, 3, 4), (0.1 * 2 + 0.3 * 3 + 0.2 * 100) / 0.6),
    ],
)
def test_the_trimmed_mean_by_hand(trim: float, weights: tuple[float, ...], mean: float) -> None:
    found = TrimmedMean(trim)(column(100, 1, 3, 2), np.array(weights)[[3, 0, 2, 1]] / sum(weights))
    assert found.item() == pytest.approx(mean, rel=1e-6)


def test_krum_by_hand() -> None:
    """Five models at 0, 1, 3, 4 and 50 on a line, f = 1: a score has the 5 − 1 − 2 = 2 nearest.

    0: 1 + 9 = 10; 1: 1 + 4 = 5; 3: 1 + 4 = 5; 4: 1 + 9 = 10; 50: 46² + 47². All distances of 1 are 1 + 4 + 9 + 49², of
    3 they are 9 + 4 + 1 + 47²: of the two with the same score 3 is closer to all.
    """
    values, p = column(50, 0, 1, 3, 4), np.array([0.1, 0.1, 0.2, 0.3, 0.3])
    assert Krum(1, keep=1)(values, p).item() == 3
    assert Krum(1, keep=2)(values, p).item() == pytest.approx((0.2 * 1 + 0.3 * 3) / 0.5)  # the weights of the kept
    assert Krum(1)(values, p).item() == pytest.approx((0.2 * 1 + 0.3 * 3 + 0.3 * 4) / 0.9)  # all but one


# -- identities and properties -----------------------------------------------------------------------------------------


def test_nothing_trimmed_is_the_mean_to_the_bit() -> None:
    values, p = torch.randn(3, 9, 5), np.random.default_rng(0).dirichlet(np.ones(9))
    assert torch.equal(TrimmedMean(0.0)(values, p), MEAN(values, p))


@settings(max_examples=40, deadline=None)
@given(st.integers(5, 9), st.integers(0, 2**32 - 1))
def test_relabelling_and_moving_the_clients(m: int, seed: int) -> None:
    """The order of the clients does not matter, and x + c has the average of x, plus c."""
    rng = np.random.default_rng(seed)
    values, p, order = torch.from_numpy(rng.standard_normal((m, 3))), rng.dirichlet(np.ones(m)), rng.permutation(m)
    for rule in RULES:
        torch.testing.assert_close(rule(values[order], p[order]), rule(values, p))
        torch.testing.assert_close(rule(values + 3.0, p), rule(values, p) + 3.0)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_lanes_and_chunks_of_columns_do_not_matter(rule: Averaging, monkeypatch: pytest.MonkeyPatch) -> None:
    values, p = torch.randn(2, 7, 11), np.random.default_rng(1).dirichlet(np.ones(7))
    each = torch.stack([rule(lane, p) for lane in values])
    assert values.numel() < SORTED_AT_ONCE
    monkeypatch.setattr("fedkin.algorithms.averaging.SORTED_AT_ONCE", 30)
    torch.testing.assert_close(rule(values, p), each)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("bad", [1e6, -1e6, float("inf")])
def test_one_attacker_cannot_move_the_average_beyond_the_others(rule: Averaging, bad: float) -> None:
    honest = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    found = rule(torch.cat([honest, torch.full((1, 4), bad)]), np.full(7, 1 / 7))
    assert bool((found >= honest.amin(0)).all() and (found <= honest.amax(0)).all())


# -- runs --------------------------------------------------------------------------------------------------------------


class Attacked(Simulation):
    """A simulation in which the last client sends −10⁶, 0 and 10⁶ in turn."""

    def work(self, *given: Any) -> Any:
        replies, kept, spaces = super().work(*given)
        replies["model"][..., -1, :] = 1e6 * (torch.arange(self.model.size) % 3 - 1)
        return replies, kept, spaces


def loss_of(federation: Federation, algorithm: Algorithm, aggregate: Averaging) -> float:
    graph = SimilarityGraph.edgeless(8)
    simulation = Attacked(federation, Softmax(64, 10), algorithm, graph, np.ones(8), LOCAL, aggregate=aggregate)
    state = simulation.start()
    for _ in range(10):
        state = simulation.advance(state)
    (scores,) = fedkin.engine.measure(simulation.model, state.model[None], federation)
    return float(scores["test_loss"])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(step_size=0.1),
        FedProx(step_size=0.1),
        FedKin(step_size=0.1),
        FedAvgM(step_size=0.1, server_momentum=0.5),
        FedAdam(step_size=0.1, server_step=0.1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_an_attacker_spoils_the_mean_and_not_the_others(federation: Federation, algorithm: Algorithm) -> None:
    assert not loss_of(federation, algorithm, MEAN) < 4
    for rule in RULES:
        assert loss_of(federation, algorithm, rule) < 1.5, rule


def test_from_python_the_rule_is_used_and_recorded(federation: Federation) -> None:
    def run(rule: str | Averaging) -> fedkin.Result:
        return fedkin.train(federation, FedAvg(step_size=0.1), local=LOCAL, rounds=2, aggregate=rule)

    mean, median, trimmed = run("mean"), run("median"), run(TrimmedMean(0.0))
    assert torch.equal(mean.model, trimmed.model)
    assert not torch.equal(mean.model, median.model)
    assert median.config["aggregation"] == "Median()"


def test_from_toml_as_a_grid_and_as_lanes(tmp_path: Path) -> None:
    """A run is the same as a lane of two and alone, and each rule gives another result."""
    table = {
        "rounds": 2,
        "partition": {"clients": 6, "class_imbalance": 1.0},
        "local": {"step_size": [0.1, 0.2], "epochs": 1},
        "aggregation": [{"rule": ["mean", "median", "krum"]}, {"rule": "trimmed", "trim": 0.3}],
    }
    together = {result.name: result for result in fedkin.run(table, out=tmp_path / "grid")}
    assert len(together) == 8
    assert len({float(result.test_loss[-1]) for result in together.values()}) == 8
    name = "fedavg-step_size=0.2-rule=krum"
    alone = {**table, "local": {"step_size": 0.2, "epochs": 1}, "aggregation": "krum"}
    (single,) = fedkin.run(alone, out=tmp_path / "single")
    assert_allclose(single.test_loss, together[name].test_loss, rtol=1e-5)


def test_lanes_have_one_rule(federation: Federation) -> None:
    def simulation(rule: Averaging, step_size: float) -> Simulation:
        graph = SimilarityGraph.edgeless(8)
        return Simulation(federation, Softmax(64, 10), FedAvg(step_size=step_size), graph, np.ones(8), aggregate=rule)

    assert lanes.key(simulation(Median(), 0.1)) == lanes.key(simulation(Median(), 0.2))
    assert lanes.key(simulation(Median(), 0.1)) != lanes.key(simulation(MEAN, 0.1))


@pytest.mark.parametrize("algorithm", [Kin(), FedKin(), SCAFFOLD(), FedNova(), IFCA(), PowerOfChoice()], ids=repr)
def test_algorithms_that_use_more_than_the_average_are_refused(federation: Federation, algorithm: Algorithm) -> None:
    with pytest.raises(BadInput, match="uses more of what clients send than the average of their models"):
        fedkin.train(federation, algorithm, rounds=1, aggregate="median")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: TrimmedMean(0.5), "trim = 0.5 is out of range"),
        (lambda: Krum(-1), "attackers = -1 is out of range"),
        (lambda: Krum(2).check(6), "needs at least 7 clients in a round, and there are 6: sample more"),
        (lambda: Krum(0, keep=4).check(3), "lower keep"),
        (lambda: fedkin.algorithms.averaging_rule("medain"), "did you mean 'median'"),
        (lambda: plans({"aggregation": "medain"}), "aggregation.rule = 'medain' is not valid"),
        (lambda: plans({"aggregation": {"trimm": 0.1}}), "unknown key 'aggregation.trimm'"),
        (lambda: lead(five(), FedAvg(), 1, aggregate=Krum(1)), "Krum with 1 attackers needs at least 5 clients"),
        (lambda: lead(five(), FedKin(), 1, aggregate="median"), "graph.kind = 'global'"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        call()


def test_on_flower_an_attacker_spoils_the_mean_and_not_the_median() -> None:
    """A round that the mean has spoiled is rolled back, again and again if all five replies are to count."""

    def losses(rule: str | Krum) -> list[float]:
        grid = five()
        grid.faults[3] = tampered(lambda w: w + np.float32(1e6))
        settings: Any = {"graph": "global", "weights": "uniform", "aggregate": rule, "min_replies": 5, "max_norm": None}
        found: list[float] = lead(grid, FedKin(step_size=0.05), **settings)[1]
        return found

    with pytest.raises(RuntimeError, match="rolled back"):
        losses("mean")
    assert max(losses("median")[-1], losses(Krum(1))[-1]) < 2.3  # below ln 10, that of guessing
