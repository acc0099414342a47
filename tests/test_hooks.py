"""The hooks, against explicit loops in float64: single runs, lanes, and sampled clients."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import small_federation, tensors_of
from fedkin.algorithms import IFCA, Algorithm, FedAvg, Gradient, Local, Vector, Vectors
from fedkin.engine.lanes import parted, together
from fedkin.engine.own import models_of, own_models
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP, Model, Softmax
from loops import CASES, CLASSES, CLIENTS, L2, SIZES, Loop, assert_loop, played, simulation
from own_algorithms import APFL, Ditto, PerFedAvg, PowerOfChoice, Scaffold, Swapped


@pytest.mark.parametrize(("members", "loop"), CASES, ids=["scaffold", "ditto", "ifca"])
@pytest.mark.parametrize("take_part", [None, 5])
@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "plain"])
def test_loops(members: list[Algorithm], loop: Any, take_part: int | None, features: int, stacked: bool) -> None:
    """In fused form with few features, in sample space with many."""
    run = simulation(members[0], features, take_part, stacked=stacked)
    state = played(run)
    assert set(state.spaces) <= ({"samples", "fused"} if stacked else {"plain"}), "memory stays a linear combination"
    assert_loop(state, loop(run).rounds(3))


@pytest.mark.parametrize(("members", "loop"), CASES, ids=["scaffold", "ditto", "ifca"])
@pytest.mark.parametrize("take_part", [None, 5])
@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
def test_lanes(members: list[Algorithm], loop: Any, take_part: int | None, features: int) -> None:
    alone = [simulation(member, features, take_part) for member in members]
    group = together(alone)
    for run, state in zip(alone, parted(played(group), alone), strict=True):
        assert_loop(state, loop(run).rounds(3))


@pytest.mark.parametrize("algorithm", [Scaffold, Ditto, IFCA])
def test_a_new_algorithm_is_small(algorithm: type[Algorithm]) -> None:
    """Lines of code, without the docstring and the checks of ranges."""
    code, checks = inspect.getsource(algorithm), inspect.getsource(algorithm.__post_init__)
    lines = [line for line in code.replace(checks, "").splitlines() if line.strip()]
    assert len(lines) - len((algorithm.__doc__ or "").splitlines()) < 40


# -- every space, every shape of step ----------------------------------------------------------------------------------

STEPS = [Scaffold(step_size=0.2), Ditto(step_size=0.2), IFCA(step_size=0.2, groups=2), APFL(step_size=0.3),
         PerFedAvg(step_size=0.2, inner=0.3), Swapped(step_size=0.2)]  # fmt: skip
LOCALS = [
    Local(epochs=2, batch_size=4, l2=0.05, order="fixed"),
    Local(epochs=2, batch_size=4, l2=0.0, order="fixed"),
    Local(epochs=2, batch_size=4, l2=0.05, order="shuffled"),
    Local(epochs=2, batch_size=4, l2=0.05, clip=0.2, order="fixed"),
]


@pytest.mark.usefixtures("calls_for_nothing")
@pytest.mark.parametrize("algorithm", STEPS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("local", LOCALS, ids=["penalty", "none", "shuffled", "clipped"])
@pytest.mark.parametrize("features", [5, 40], ids=["narrow", "wide"])
@pytest.mark.parametrize("make", [Softmax, lambda d, k: MLP(d, k, 4)], ids=["softmax", "mlp"])
def test_fast_spaces_equal_plain(algorithm: Algorithm, local: Local, features: int, make: Callable[..., Model]) -> None:
    run = replace(simulation(algorithm, features, local=local), model=make(features, CLASSES))
    quick, plain = played(run, 2), played(replace(run, stacked=False), 2)
    assert "plain" not in quick.spaces, "only linear combinations are taken"
    assert quick.spaces.get("samples", 0) > 0 or features == 5
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(quick)[name], value, rtol=2e-4, atol=3e-6)


def test_compiled_equals_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that change by themselves, as Ditto's, are compiled one by one."""
    pytest.importorskip("numba")
    monkeypatch.setattr("fedkin.engine.cohorts.MUCH", 0)
    made = small_federation(sizes=[80] * 4, features=150, classes=4)
    members: list[list[Algorithm]] = [
        [Scaffold(step_size=0.02), Scaffold(step_size=0.01)],
        [Ditto(step_size=0.02), Ditto(step_size=0.01, pull=0.9)],
    ]
    for alike in members:
        runs = [
            Simulation(
                made,
                Softmax(150, 4),
                m,
                SimilarityGraph.uniform(4),
                np.full(4, 0.25),
                Local(4, 32, order="fixed"),
                seed=1,
            )
            for m in alike
        ]
        for run in (*runs, together(runs)):
            quick, plain = played(run), played(replace(run, stacked=False))
            assert quick.spaces == {"compiled": 4}
            for name, value in tensors_of(plain).items():
                torch.testing.assert_close(tensors_of(quick)[name], value, rtol=2e-4, atol=3e-6)


# -- what used to be wrong ---------------------------------------------------------------------------------------------


def test_another_federation_or_model_starts_without_caches() -> None:
    run = simulation(FedAvg(step_size=0.2))
    played(run, 2)
    other = small_federation(sizes=SIZES, features=40, seed=9)
    swapped = replace(run, federation=other)
    fresh = Simulation(other, run.model, run.algorithm, run.graph, run.weights, run.local, seed=5)
    assert torch.equal(played(swapped).model, played(fresh).model)
    network = replace(run, model=MLP(40, CLASSES, 4))
    assert torch.equal(played(network).model, played(replace(network)).model)


def test_fields_of_a_subclass_do_not_change_the_step_of_the_base() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Algorithm):
        beta: float = 0.3
        alpha: float = 7.0

    assert torch.equal(played(simulation(Mine(step_size=0.2))).model, played(simulation(FedAvg(step_size=0.2))).model)


def test_a_step_in_place_is_an_error() -> None:
    """If it is nonlinear; for combinations, w -= … creates a new vector."""

    @dataclass(frozen=True, kw_only=True)
    class InPlace(Algorithm):
        plainly: bool = False

        def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
            w -= self.step_size * (torch.as_tensor(gradient(w)) if self.plainly else gradient(w))
            return w, memory

    same = played(simulation(FedAvg(step_size=0.2))).model
    assert torch.equal(played(simulation(InPlace(step_size=0.2))).model, same)
    with pytest.raises(BadInput, match="in place"):
        played(simulation(InPlace(step_size=0.2, plainly=True), stacked=False))


def test_only_the_rows_of_sampled_clients_are_copied() -> None:
    run = simulation(Ditto(step_size=0.2), take_part=5)
    first = played(run, 3)
    second = run.advance(first)
    who = run.sampled(run.algorithm.at(3), first).who
    others = np.setdiff1d(first.memory["own"].owners, who)
    assert len(others)
    for client in others:
        before, after = (state.memory["own"].at(np.array([client])) for state in (first, second))
        assert before.data_ptr() == after.data_ptr()


# -- the other hooks ---------------------------------------------------------------------------------------------------


def test_own_models() -> None:
    """Ditto's are measured, each on its client's samples; FedAvg has none."""
    run = simulation(Ditto(step_size=0.3))
    state = played(run, 3)
    (found,) = own_models(run, state)
    own, test = state.memory["own"].values, run.federation.test
    right = sum(
        int((run.model.scores(own[i], test.x[test.rows(i)]).argmax(-2) == test.y[test.rows(i)]).sum())
        for i in range(CLIENTS)
    )
    assert found["own_test_accuracy"] == pytest.approx(right / sum(SIZES))
    assert found["own_test_accuracy"] > 0.34
    assert own_models(simulation(FedAvg()), state) == []
    alone = replace(run, federation=replace(run.federation, paired=False))
    assert own_models(alone, state) == [], "testing clients are other clients"


def test_adaptation_takes_steps_from_the_own_model() -> None:
    class Tuned(FedAvg):
        def adaptation(self, local: Local) -> tuple[Algorithm, Local]:
            return FedAvg(step_size=0.5), replace(local, epochs=1, batch_size=None)

    run = simulation(Tuned(step_size=0.2))
    state = played(run, 1)
    ((_, models),) = models_of(run, state)
    train, w = run.federation.train, state.model
    x, y = train.x[train.rows(3)], train.y[train.rows(3)]
    g = run.model.gradient(w, x, y, torch.full((len(y),), 1 / len(y))) + L2 * w
    torch.testing.assert_close(models[0, 3], w - 0.5 * g)


def test_selection_by_loss() -> None:
    """Of ten candidates the five with the largest losses."""
    run = simulation(PowerOfChoice(step_size=0.2), take_part=5)
    state = played(run, 1)
    round = run.sampled(run.algorithm.at(1), state)
    available = run.available(1)
    candidates = available.random("candidates").choice(CLIENTS, 10, replace=False, p=available.weights)
    loop = Loop(run)
    losses = {int(i): loop.loss(state.model.double().numpy(), i) for i in candidates}
    assert round.who.tolist() == sorted(sorted(losses, key=lambda i: -losses[i])[:5])


def test_losses_of_samples() -> None:
    """Per sample, padded with zeros; the mean is over each client's own samples."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Looking(FedAvg):
        def begin(self, got: Any, memory: Any, losses: Any) -> Any:
            seen.append((losses(got["model"]), losses.mean(got["model"])))
            return got, memory

    run = simulation(Looking(step_size=0.2), stacked=False)
    played(run, 1)
    loop = Loop(run)
    for i, (each, mean) in enumerate(seen[1:]):  # the first is a trial without samples
        assert each.shape == (1, SIZES[i])
        assert float(mean) == pytest.approx(float(each.mean())) == pytest.approx(loop.loss(loop.w, i), rel=1e-5)
