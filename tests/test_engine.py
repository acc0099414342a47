"""The engine: stacked equals one client at a time, in every space; sampling; ragged steps; reproducibility."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import small_federation
from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Gradient, Vector, Vectors
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.data.federation import Federation
from fedkin.engine.cohorts import samples_pay
from fedkin.engine.metrics import measure
from fedkin.engine.simulation import Simulation
from fedkin.engine.spaces.samples import Samples
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.models import MLP, Model, Module, Softmax
from loops import played

ALGORITHMS = [FedAvg(step_size=0.3), FedProx(alpha=0.7, step_size=0.3), FedKin(beta=0.4, step_size=0.3)]


def simulation(federation: Federation, model: Model, algorithm: Algorithm, local: Local, **other: Any) -> Simulation:
    graph = build_graph(federation)
    return Simulation(federation, model, algorithm, graph, graph.degrees, local, seed=3, **other)


def assert_same(run: Simulation, rounds: int = 3) -> None:
    quick, plain = played(run, rounds), played(replace(run, stacked=False), rounds)
    torch.testing.assert_close(quick.model, plain.model, rtol=1e-4, atol=1e-6)
    if "models" in plain.server:
        torch.testing.assert_close(quick.server["models"].values, plain.server["models"].values, rtol=1e-4, atol=1e-6)


LOCALS = [
    Local(epochs=4, batch_size=4, l2=0.01, order="fixed"),
    Local(epochs=4, batch_size=4, l2=0.01, clip=0.3, order="fixed"),
    Local(epochs=3, batch_size=None, l2=0.0, order="fixed"),
    Local(epochs=4, batch_size=3, order="shuffled"),
    Local(steps=3, l2=0.1, order="fixed"),
    Local(steps=5, order="shuffled", clip=0.1),
]


def test_shuffled_clients_take_their_steps_together_unless_they_are_wide() -> None:
    """Batches of 16 of 48 samples: 15 steps in five epochs, whose calls cost each client 15 · 10⁶ in sample space.

    With 64 features and ten classes 2·5·48·64·10 ≈ 3 · 10⁵ products on parameters are fewer. With 20,000 features there
    are 10⁸ on parameters, of one client at a time, and 2 · 10⁷ in sample space. In fixed order calls do not count.
    """
    shuffled, fixed = (Local(epochs=5, batch_size=16, order=order) for order in ("shuffled", "fixed"))
    assert not samples_pay(shuffled, 48, Softmax(64, 10), kept=True)
    assert samples_pay(fixed, 48, Softmax(64, 10), kept=True)
    assert samples_pay(shuffled, 48, Softmax(20_000, 10), kept=True)
    # Five equal parts are steps of each client's own, too: 5 · 10⁶ against 1 · 48·64·2·10.
    assert not samples_pay(Local(steps=5, order="fixed"), 48, Softmax(64, 10), kept=True)


def test_lanes_share_a_gram_matrix() -> None:
    """Of n = 30 samples with D = 40: 36,000 products, beside 30·(30 + 80)·2 = 6,600 and 2·30·40·2 = 4,800 a lane."""
    once = Local(epochs=1, batch_size=30, order="fixed")
    assert not samples_pay(once, 30, Softmax(40, 2), kept=False, lanes=100)
    # With four epochs 30·(120 + 80)·2 = 12,000 and 19,200 a lane: the difference of five lanes is as much, of six more.
    four = Local(epochs=4, batch_size=30, order="fixed")
    assert [samples_pay(four, 30, Softmax(40, 2), kept=False, lanes=n) for n in (1, 5, 6)] == [False, False, True]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("local", LOCALS, ids=str)
@pytest.mark.parametrize("features", [5, 40], ids=["plain", "in sample space"])
def test_softmax_stacked_equals_single_clients(algorithm: Algorithm, local: Local, features: int) -> None:
    federation = small_federation(features=features)
    run = simulation(federation, Softmax(features, 3), algorithm, local)
    assert_same(run)
    assert_same(replace(run, take_part=3))


@dataclass(frozen=True, kw_only=True)
class Signs(Algorithm):
    """Steps of one length in every coordinate: no linear combination of anything."""

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * torch.sign(gradient(w)), memory


@dataclass(frozen=True, kw_only=True)
class Broken(Algorithm):
    """Asks for something that was never sent."""

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * got["momentum"], memory


@pytest.mark.parametrize("model", [Softmax(40, 3), MLP(40, 3, 4)], ids=["softmax", "mlp"])
def test_a_nonlinear_step_runs_in_plain_space(model: Model) -> None:
    run = simulation(small_federation(features=40), model, Signs(step_size=0.01), LOCALS[0])
    assert_same(run)
    assert not run._kept
    assert not torch.equal(played(run, 1).model, run.start().model)


def test_an_error_in_a_step_is_raised() -> None:
    run = simulation(small_federation(features=40), Softmax(40, 3), Broken(), LOCALS[0])
    with pytest.raises(KeyError, match="momentum"):
        played(run)


def test_every_space_is_used() -> None:
    """Of the cases above, those with many features run in sample space, those with few on parameters."""
    for features, expected in ((5, False), (40, True)):
        assert samples_pay(LOCALS[0], 9, Softmax(features, 3), kept=True) == expected
    assert samples_pay(LOCALS[0], 9, MLP(40, 3), kept=True)
    assert not samples_pay(LOCALS[0], 9, Module(lambda: nn.Linear(40, 3), (40,), 3), kept=True)
    run = simulation(small_federation(features=40), Softmax(40, 3), FedAvg(), LOCALS[0])
    algorithm = run.algorithm.at(0)
    round = run.sampled(algorithm, run.start())
    got = run.sent(algorithm, run.start(), round)
    cohorts = list(run._cohorts(algorithm, run.local, got, got.keys(), (), round.who))
    assert all(cohort.space is Samples for cohort in cohorts)
    assert sorted(int(p) for cohort in cohorts for p in cohort.places) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("local", LOCALS, ids=str)
@pytest.mark.parametrize("features", [5, 40], ids=["plain", "in sample space"])
def test_mlp_stacked_equals_single_clients(algorithm: Algorithm, local: Local, features: int) -> None:
    run = simulation(small_federation(features=features), MLP(features, 3, hidden=4), algorithm, local)
    assert_same(run)
    assert_same(replace(run, take_part=3))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_module_stacked_equals_single_clients(algorithm: Algorithm) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3))

    assert_same(simulation(small_federation(), Module(make, (5,), 3), algorithm, LOCALS[0]))


def test_a_large_penalty_in_sample_space() -> None:
    """The scale of the trail shrinks by 1 − γ(λ + α) ≈ 0.03 per step: it is multiplied in before precision is lost."""
    run = simulation(small_federation(features=40), Softmax(40, 3), FedProx(alpha=1.2, step_size=0.8), LOCALS[0])
    assert_same(run)


def test_equal_clients_are_stacked_without_a_copy() -> None:
    """Adjacent clients of equal size are a view of the samples."""
    federation = small_federation(sizes=(6, 6, 6, 6), features=40)
    run = simulation(federation, Softmax(40, 3), FedKin(step_size=0.3), Local(epochs=4, batch_size=4, order="fixed"))
    played(run, 1)
    (space,) = run._kept.values()
    assert space.ready.x.data_ptr() == federation.train.x.data_ptr()
    assert_same(run)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=8),
    batch=st.integers(1, 6),
    features=st.sampled_from([3, 30]),
    seed=st.integers(0, 100),
)
def test_any_sizes(sizes: list[int], batch: int, features: int, seed: int) -> None:
    federation = small_federation(sizes=[max(sizes), 6, *sizes], features=features, seed=seed)
    assert_same(
        simulation(federation, Softmax(features, 3), FedKin(step_size=0.2), Local(3, batch, order="fixed")), rounds=2
    )


def test_a_step_by_hand() -> None:
    """Two clients with one sample each, x = (1, 0) of class 0 and x = (0, 2) of class 1, w̄ = 0, one step, γ = 1.

    At 0 both classes have probability ½. Client 0: r = (−½, ½), so W = ((½, 0), (−½, 0)), b = (½, −½).
    Client 1: r = (½, −½), so W = ((0, −1), (0, 1)), b = (−½, ½). The average with weights ¼ and ¾ is
    W = ((⅛, −¾), (−⅛, ¾)), b = (−¼, ¼).
    """
    federation = small_federation(sizes=(3, 3), features=2, classes=2)
    x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    train = replace(federation.train, x=x, y=y, offsets=np.array([0, 1, 2]))

    class FromZero(Softmax):
        def start(self, seed: int) -> torch.Tensor:
            return torch.zeros(self.size)

    run = Simulation(
        replace(federation, train=train),
        FromZero(2, 2),
        FedAvg(step_size=1.0),
        SimilarityGraph.uniform(2),
        np.array([0.25, 0.75]),
        Local(epochs=1, l2=0.0, order="fixed"),
    )
    expected = [1 / 8, -3 / 4, -1 / 8, 3 / 4, -1 / 4, 1 / 4]
    assert played(run, 1).model.tolist() == pytest.approx(expected)


def test_clipping_by_hand() -> None:
    """Gradients with norms above G = 1e-3 are clipped: with γ = 1 each client moves by exactly 1e-3."""
    federation = small_federation(sizes=(1, 1), features=4)
    for model in (Softmax(4, 3), MLP(4, 3, 2)):
        run = simulation(federation, model, FedAvg(step_size=1.0), Local(epochs=1, l2=0.0, clip=1e-3, order="fixed"))
        start, state = run.start(), played(run, 1)
        moved = state.model - start.model
        # both clients move by exactly 1e-3, so their average by at most that
        assert 1e-4 < float(moved.norm()) <= 1e-3 * 1.0001


def clients_of(run: Simulation) -> list[tuple[int, ...]]:
    """The clients of 200 rounds."""
    state = run.start()
    return [tuple(run.sampled(run.algorithm.at(t), replace(state, round=t)).who.tolist()) for t in range(200)]


def test_selection() -> None:
    federation = small_federation()
    run = simulation(federation, Softmax(5, 3), FedAvg(), Local(order="fixed"), take_part=2)
    chosen = clients_of(run)
    assert all(len(set(who)) == 2 and list(who) == sorted(who) for who in chosen)
    assert len(set(chosen)) == 10, "every pair of five comes up"
    assert chosen == clients_of(run), "fixed by the seed and the round"
    assert chosen != clients_of(replace(run, seed=4))


def test_weights_are_renormalised_over_sampled_clients() -> None:
    """With negligible local steps, the average of equal models is that model for any number of sampled clients."""
    run = simulation(
        small_federation(), Softmax(5, 3), FedAvg(step_size=1e-12), Local(epochs=1, order="fixed"), take_part=2
    )
    start = run.start()
    torch.testing.assert_close(run.advance(start).model, start.model)


@pytest.mark.parametrize("take_part", [0, 6])
def test_take_part_out_of_range(take_part: int) -> None:
    with pytest.raises(BadInput, match=f"take_part = {take_part} is out of range: choose from 1 to all 5 clients"):
        simulation(small_federation(), Softmax(5, 3), FedAvg(), Local(order="fixed"), take_part=take_part)


@pytest.mark.parametrize("model", [Softmax(40, 3), MLP(40, 3, 8)], ids=["samples", "plain"])
def test_bitwise_reproducible_and_equal_up_to_rounding_with_other_threads(model: Model) -> None:
    federation = small_federation(sizes=(9, 12, 5, 7, 20, 3, 8), features=40)
    run = simulation(federation, model, FedKin(step_size=0.2), Local(epochs=4, batch_size=4, order="shuffled"))
    first = played(run).model
    assert torch.equal(first, played(replace(run)).model)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        other = played(replace(run)).model
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(first, other, rtol=1e-5, atol=1e-6)


def test_dropout_is_fixed_by_the_seed_and_differs_between_rounds() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))

    run = simulation(
        small_federation(), Module(make, (5,), 3), FedAvg(step_size=0.2), Local(epochs=1, order="fixed"), stacked=True
    )
    assert torch.equal(played(run).model, played(run).model)
    start = run.start()
    other_round = replace(start, round=5)
    assert not torch.equal(run.advance(start).model, run.advance(other_round).model)


@pytest.mark.parametrize("features", [5, 40], ids=["plain", "samples"])
@pytest.mark.parametrize("kind", [Softmax, MLP])
def test_device_is_honoured(features: int, kind: type[Model]) -> None:
    """The default device is `meta` here: tensors created without a device raise when combined with the federation's."""
    for local in LOCALS:
        run = simulation(small_federation(features=features), kind(features, 3), FedKin(absent="last"), local)  # type: ignore[call-arg]
        with torch.device("meta"):
            state = played(replace(run, take_part=3), 2)
            measured = measure(run.model, state.model[None], run.federation)
        assert state.model.device.type == "cpu"
        again = played(replace(run, take_part=3), 2).model[None]
        assert measured == measure(run.model, again, run.federation)


def test_ends_of_schedules() -> None:
    assert [round(Schedule(1.0, 0.01, 2, "geometric")(t), 6) for t in range(4)] == [1.0, 0.1, 0.01, 0.01]
    assert [Schedule(0.2, 0.8, 3, "step")(t) for t in range(5)] == [0.2, 0.2, 0.2, 0.8, 0.8]
    assert Schedule(0.0, 1.0, 2, "cosine")(1) == pytest.approx(0.5)
    assert Schedule(0.0, 1.0, 4, "cosine")(1) == pytest.approx((1 - np.cos(np.pi / 4)) / 2)
    for bad in (
        {"over": 0},
        {"over": 3, "shape": "wavy"},
        {"over": 3, "shape": "geometric"},
        {"over": 3, "end": float("nan")},
    ):
        with pytest.raises(BadInput):
            Schedule(**{"start": 0.0, "end": 1.0, **bad})  # type: ignore[arg-type]
