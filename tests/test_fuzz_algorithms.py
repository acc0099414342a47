"""Algorithms put together at random from the hooks: the fast ways equal the plain one, alone and as lanes."""

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import event, example, given
from hypothesis import strategies as st

from conftest import small_federation, tensors_of
from fedkin.algorithms import Algorithm, Local, Schedule
from fedkin.engine.lanes import parted, together
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import MLP, Softmax
from fuzz import examples
from loops import played
from random_algorithms import RandomAlgorithm, Recipe, alike

LOCALS = st.builds(
    Local,
    epochs=st.integers(1, 2),
    batch_size=st.sampled_from([2, 4, None]),
    steps=st.sampled_from([None, None, 1, 3]),
    order=st.sampled_from(["fixed", "shuffled"]),
    l2=st.sampled_from([0.0, 1e-4, 0.05]),
    clip=st.sampled_from([None, None, 0.2]),
)


def assert_close(found: State, expected: State) -> None:
    """Up to rounding: a gradient that is left out changes a thousand times as much."""
    assert tensors_of(found).keys() == tensors_of(expected).keys()
    for name, value in tensors_of(expected).items():
        got = tensors_of(found)[name]
        assert got.shape == value.shape, name
        off = float(torch.linalg.vector_norm(got - value) / (torch.linalg.vector_norm(value) + 0.01))
        assert off < 2e-5, f"{name} is off by {off:.1e}, in {found.spaces}"


def assert_fast_is_plain(runs: Sequence[Simulation], rounds: int = 3) -> None:
    plain = [played(replace(run, stacked=False), rounds) for run in runs]
    for run, expected in zip(runs, plain, strict=True):
        state = played(run, rounds)
        assert "plain" not in state.spaces
        event(", ".join(sorted(state.spaces)))
        assert_close(state, expected)
    if len(runs) > 1:
        for state, expected in zip(parted(played(together(runs), rounds), runs), plain, strict=True):
            assert_close(state, expected)


@given(
    algorithms=alike(),
    sizes=st.lists(st.integers(1, 14), min_size=2, max_size=6),
    features=st.sampled_from([5, 40]),
    layered=st.booleans(),
    local=LOCALS,
    take_part=st.sampled_from([None, None, 2]),
)
@examples(50)
def test_fast_is_plain(
    algorithms: list[Algorithm], sizes: list[int], features: int, layered: bool, local: Local, take_part: int | None
) -> None:
    federation = small_federation(sizes, features)
    model = MLP(features, 3, 4) if layered else Softmax(features, 3)
    weights, graph = np.array(sizes) / sum(sizes), SimilarityGraph.edgeless(len(sizes))
    assert_fast_is_plain(
        [Simulation(federation, model, one, graph, weights, local, take_part, seed=5) for one in algorithms]
    )


# One gradient a step in the first round, which is compiled, then two, which are not.
WIDENING = RandomAlgorithm(
    step_size=0.05,
    recipe=Recipe(
        gradients=((("w", 1.0, ""),), (("w", 0.5, ""),)),
        w=(("w", 1.0, ""), ("g0", -1.0, "step_size"), ("g1", -1.0, "step_size")),
    ),
    fewer=Schedule(1, 0, 1, "step"),
)


@example(algorithms=[WIDENING], sizes=[70, 70], l2=0.0)
@given(
    algorithms=alike(most=2),
    sizes=st.lists(st.integers(60, 80), min_size=2, max_size=3),
    l2=st.sampled_from([0.0, 0.05]),
)
@examples(20)
def test_compiled_is_plain(algorithms: list[Algorithm], sizes: list[int], l2: float) -> None:
    pytest.importorskip("numba")
    federation, graph = small_federation(sizes, 150, 4), SimilarityGraph.edgeless(len(sizes))
    weights, local = np.array(sizes) / sum(sizes), Local(2, 32, l2=l2, order="fixed")
    with mock.patch("fedkin.engine.cohorts.MUCH", 0):
        assert_fast_is_plain(
            [Simulation(federation, Softmax(150, 4), one, graph, weights, local, seed=5) for one in algorithms]
        )
