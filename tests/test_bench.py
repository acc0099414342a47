"""The benchmark: all competitors compute the same, operations are counted and turns timed correctly."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench_tools import TINY, Clock
from fedkin.algorithms import Lanes
from fedkin.bench.loops import (
    LOOPS,
    SWEEP_BETAS,
    Competitor,
    DataLoaderLoop,
    Engine,
    SliceLoop,
    engine_run,
    engine_sweep,
)
from fedkin.bench.timing import Options, Pace, Product, Spread, Times, interleaved, ratio
from fedkin.bench.workloads import WORKLOADS, Workload
from fedkin.threads import torch_threads


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Tests run side by side: threads that wait for each other on busy cores are slow."""
    with torch_threads(1):
        yield


def difference(workload: Workload, loop: Callable[[Workload, Any], Competitor], rounds: int = 1) -> float:
    """Of the loop's global model from the engine's, relative to how far the engine's has moved."""
    federation = workload.federation()
    mine, theirs = engine_run(workload, federation), loop(workload, federation)
    start = mine.global_model.clone()
    assert torch.equal(start, theirs.global_model)
    for _ in range(rounds):
        mine.round()
        theirs.round()
    gap: Tensor = (theirs.global_model - mine.global_model).norm() / (mine.global_model - start).norm()
    return float(gap)


# -- all compute the same ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_loops_and_engine_agree_after_a_round(workload: str, loop: str) -> None:
    # Rounding moves maxima and signs of units: more so in a network of several layers that has hardly moved.
    most = 1e-3 if workload == "groupnorm" else 1e-4
    assert difference(replace(WORKLOADS[workload].quick(), clients=2), LOOPS[loop]) < most


@pytest.mark.parametrize("loop", LOOPS.values())
def test_they_agree_on_clients_of_different_sizes_for_several_rounds(loop: Any) -> None:
    assert len(set(TINY.federation().train.sizes)) > 3
    assert difference(TINY, loop, rounds=3) < 1e-4


def test_a_wrong_loop_is_detected() -> None:
    """Without the penalty, or with equal weights, the difference is far above what rounding makes of it."""

    def without_penalty(workload: Workload, federation: Any) -> SliceLoop:
        loop = SliceLoop(workload, federation)
        loop.optimizer.param_groups[0]["weight_decay"] = 0.0
        return loop

    def equal_weights(workload: Workload, federation: Any) -> DataLoaderLoop:
        loop = DataLoaderLoop(workload, federation)
        loop.weights = [1 / len(loop.weights)] * len(loop.weights)
        return loop

    assert difference(WORKLOADS["mnist-softmax"].quick(), without_penalty) > 1e-3
    assert difference(TINY, without_penalty) > 1e-3
    assert difference(TINY, equal_weights) > 1e-3


# -- workloads ---------------------------------------------------------------------------------------------------------


def test_sizes_of_the_workloads() -> None:
    sizes = {}
    for name, workload in WORKLOADS.items():
        train = replace(workload, shape=(2,)).federation().train  # sizes do not depend on it
        sizes[name] = (len(train), int(train.sizes.min()), int(train.sizes.max()), len(train.y))
    imbalanced = sizes.pop("cifar-imbalanced")
    assert sizes == {
        "mnist-softmax": (100, 600, 600, 60_000),
        "cifar-softmax": (100, 500, 500, 50_000),
        "mnist-mlp": (100, 600, 600, 60_000),
        "many-tiny": (3000, 20, 20, 60_000),
        "module": (50, 200, 200, 10_000),
        "groupnorm": (5, 100, 100, 500),
    }
    assert imbalanced[0] == 100
    assert imbalanced[3] == 50_000
    # b = 1: of 100 log-normal clients the largest has many times what the smallest has
    assert imbalanced[2] > 20 * imbalanced[1]
    assert {w.features for w in WORKLOADS.values()} == {784, 3072}


def test_the_same_data_come_every_time() -> None:
    one, other = TINY.federation().train, TINY.federation().train
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)


def test_arithmetic_by_hand() -> None:
    """E·N samples, each 2·|W|·o operations a layer: twice for the first layer, three times for the others.

    The convolutions are applied at 24×24 and 8×8 places and have 8·25 and 16·8·25 weights.
    """
    assert WORKLOADS["mnist-softmax"].arithmetic() == 10 * 60_000 * 4 * 784 * 10
    assert WORKLOADS["cifar-imbalanced"].arithmetic() == 10 * 50_000 * 4 * 3072 * 10
    assert WORKLOADS["mnist-mlp"].arithmetic() == 10 * 60_000 * (4 * 784 * 128 + 6 * 128 * 10)
    module = 4 * 200 * 24 * 24 + 6 * (3200 * 8 * 8 + 256 * 10)
    assert WORKLOADS["module"].arithmetic() == 10 * 10_000 * module


@pytest.mark.parametrize("name", ["mnist-mlp", "module"])
def test_arithmetic_is_what_pytorch_counts(name: str) -> None:
    workload = WORKLOADS[name]
    net, x = workload.net(), torch.zeros(4, *workload.shape)
    net(x)
    with FlopCounterMode(display=False) as counted:
        net(x).sum().backward()
    assert counted.get_total_flops() / 4 == workload.arithmetic() / (10 * workload.clients * workload.samples)


# -- timing ------------------------------------------------------------------------------------------------------------


def timed(rounds: dict[str, Callable[[], None]], repeat: int) -> dict[str, Times]:
    return interleaved(rounds, Options(repeat, threads=1), lambda _: None, lambda _: None)


def test_competitors_take_turns_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed({"a": clock.round("a", 9.0, 1.0), "b": clock.round("b", 5.0, 2.0)}, repeat=3)
    assert "".join(clock.order) == "ab" + "ab" + "ba" + "ab"
    assert times == {"a": Times(9.0, [1.0, 1.0, 1.0]), "b": Times(5.0, [2.0, 2.0, 2.0])}


def test_short_rounds_are_timed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round of 1 s, then 0.125 s each: three of them make 0.3 s full."""
    clock = Clock(monkeypatch)
    times = timed({"a": clock.round("a", 1.0, 0.125, 0.125, 0.25, 0.375)}, repeat=2)
    assert len(clock.order) == 1 + 1 + 3 + 3
    assert times["a"] == Times(1.0, [0.25, 0.375])


def test_slow_competitors_get_fewer_turns_but_two(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    times = timed({"slow": clock.round("slow", 50.0), "fast": clock.round("fast", 1.0)}, repeat=4)
    assert times["slow"].turns == [50.0, 50.0, None, None]
    assert times["fast"].turns == [1.0] * 4


def test_a_long_first_round_is_a_turn_only_of_what_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine compiles and prepares in its first round: what users wait for is the next."""
    clock = Clock(monkeypatch)
    rounds = {"loop": clock.round("l", 9.0), "engine": clock.round("e", 8.0, 1.0), "short": clock.round("s", 0.5)}
    pace = Pace(least_turns=1, block=0.0, long=2.0, unprepared=("loop",))
    times = interleaved(rounds, Options(3, threads=1), lambda _: None, lambda _: None, pace)
    assert times["loop"].turns == [9.0, None, None]
    assert times["engine"].turns == [1.0, None, None]
    assert times["short"].turns == [0.5] * 3
    assert clock.order.count("l") == 1


def test_ratios_are_taken_within_a_turn() -> None:
    slow, fast = Times(0.0, [2.0, 40.0, None]), Times(0.0, [1.0, 10.0, 1.0])
    assert ratio(slow, fast) == Spread(3.0, 2.0, 4.0)
    assert ratio(slow, fast.each(4)) == Spread(12.0, 8.0, 16.0)
    assert Spread(3.0, 2.0, 4.0).text() == "3 (2–4)"


def test_the_limit_is_the_best_product(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(size=10)
    ticks = iter([0.0, 4.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    for _ in range(3):
        product.round()
    assert product.rate == 2 * 10**3 / 2.0


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_four_lanes_that_differ_in_beta() -> None:
    runs = engine_sweep(TINY, TINY.federation())
    assert isinstance(runs, Engine)
    for _ in range(2):
        runs.round()
    (simulation,), (state,) = runs.simulations, runs.states
    assert isinstance(simulation.algorithm, Lanes)
    assert [getattr(member, "beta", None) for member in simulation.algorithm.members] == list(SWEEP_BETAS)
    ends = state.model
    assert all(not torch.equal(ends[i], ends[j]) for i in range(4) for j in range(i))


# -- the engine --------------------------------------------------------------------------------------------------------


MODULES = [name for name, workload in WORKLOADS.items() if not workload.sweep]  # convolutions: slow, never compiled


@pytest.mark.parametrize(
    ("workload", "compiled"), [(name, compiled) for name in WORKLOADS for compiled in {False, name not in MODULES}]
)
def test_the_engine_equals_its_plain_path_after_three_rounds(
    workload: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client at a time, plainly, is the oracle; 1e-4 of the parameters' length is allowed."""
    monkeypatch.setattr("fedkin.engine.cohorts.MUCH", 0 if compiled else math.inf)
    few = replace(WORKLOADS[workload].quick(), clients=3)
    few = replace(few, samples=30) if workload in MODULES else few
    run = few.simulation(few.federation())
    states = []
    for simulation in (run, replace(run, stacked=False)):
        state = simulation.start()
        for _ in range(3):
            state = simulation.advance(state)
        states.append(state.model)
    quick, plain = states
    assert float((quick - plain).norm() / plain.norm()) < 1e-4
    assert float((plain - run.start().model).norm() / plain.norm()) > 1e-3, "something was learnt"
