"""Sample space: against single clients in plain space, and the number of matrix products."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import small_federation, tensors_of
from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Gradient, Vector, Vectors
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation
from fedkin.engine.spaces.combination import Combination
from fedkin.engine.spaces.prepared import GramBatch, batches_of, prepare
from fedkin.engine.spaces.samples import Fresh, Samples
from fedkin.graph.similarity import build_graph
from fedkin.models import MLP, Model, Softmax
from fedkin.types import Tensors
from loops import played

pytestmark = pytest.mark.usefixtures("calls_for_nothing")

LOCAL = Local(epochs=4, batch_size=4, l2=0.05, order="fixed")
MODELS: list[Model] = [Softmax(40, 3), MLP(40, 3, 4)]


def simulation(algorithm: Algorithm, local: Local = LOCAL, model: Model = MODELS[0], **other: Any) -> Simulation:
    federation = small_federation(features=40, **other)
    graph = build_graph(federation)
    return Simulation(federation, model, algorithm, graph, graph.degrees, local, seed=3)


def assert_plain(run: Simulation, rounds: int = 3) -> None:
    """All rounds in sample space come to the same as plainly."""
    quick, plain = played(run, rounds), played(replace(run, stacked=False), rounds)
    assert run._kept, "no client was in sample space"
    assert tensors_of(quick).keys() == tensors_of(plain).keys()
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(quick)[name], value, rtol=1e-4, atol=2e-6)


@dataclass(frozen=True, kw_only=True)
class Wanderer(FedKin):
    """Two gradients a step, at different mixtures of w̄ and u, of which one is another in every step."""

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        here = gradient(0.5 * w + 0.5 * got["anchor"])
        w = 0.9 * w + 0.1 * got["anchor"]  # so the next step begins at another mixture
        return w - self.step_size * (0.7 * gradient(self.beta * w + (1 - self.beta) * got["anchor"]) + 0.3 * here), {}


MEMBERS = [
    FedAvg(step_size=0.3),
    FedProx(step_size=0.2, alpha=0.7),
    FedKin(step_size=0.3, beta=0.6),
    FedKin(step_size=0.1, beta=Schedule(0.3, 1.0, over=2)),
]
CHANGES: list[list[dict[str, Any]]] = [
    [{}, {}, {}, {}],
    [{}, {"l2": 0.3}, {"l2": 0.0}, {"l2": 0.1}],
    [{"clip": 0.2}, {"clip": 0.4}, {"clip": None}, {"clip": 0.1, "l2": 0.4}],
]


@pytest.mark.parametrize("model", MODELS, ids=["softmax", "mlp"])
@pytest.mark.parametrize("changes", CHANGES, ids=["same penalty", "penalties", "clipped"])
@pytest.mark.parametrize("order", ["fixed", "shuffled"])
def test_mixed_lanes(model: Model, changes: list[dict[str, Any]], order: str) -> None:
    local = replace(LOCAL, order=order)
    alone = [simulation(m, replace(local, **change), model) for m, change in zip(MEMBERS, changes, strict=True)]
    assert_plain(together(alone))


@pytest.mark.parametrize("model", MODELS, ids=["softmax", "mlp"])
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("algorithm", [*MEMBERS, Wanderer(step_size=0.2, beta=0.7)], ids=lambda a: type(a).__name__)
def test_one_run(algorithm: Algorithm, clip: float | None, model: Model) -> None:
    assert_plain(simulation(algorithm, replace(LOCAL, clip=clip), model))


def test_clipped_while_the_trail_is_scaled() -> None:
    """The trail's scale, 1 − γ(λ + α) ≈ 0.04 a step, is multiplied in; its norm must be updated."""
    assert_plain(simulation(FedProx(alpha=0.9, step_size=0.8), replace(LOCAL, l2=0.3, clip=0.5)))


Left = list[dict[str, dict[str, Tensor]]]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Left:
    """What spaces hold when their clients leave them, one after the other: scores of all samples, received vectors."""
    held: Left = []
    lower = Samples.lower

    def noted(self: Samples, vectors: dict[str, Any], into: Tensor | None = None) -> Tensors:
        held.append({"scores": self.scores, "received": self.lasting})
        return lower(self, vectors, into)

    monkeypatch.setattr(Samples, "lower", noted)
    return held


def scored(left: Left, run: Simulation) -> set[str]:
    """Under which vectors all samples were scored in a round, at some client."""
    left.clear()
    played(run, 2)
    return {name for space in left for name in space["scores"]}


def test_one_product_converts_to_sample_space(left: Left) -> None:
    assert scored(left, simulation(FedAvg(step_size=0.3))) == {"model"}
    assert scored(left, simulation(FedProx(step_size=0.3))) == {"model"}
    assert scored(left, simulation(FedKin(step_size=0.3, beta=0.6))) == {"point 0"}
    every = scored(left, simulation(Wanderer(step_size=0.3)))
    assert every == {"point 0", "model", "anchor"}, "a product a vector, not a mixture"


def test_rounding_does_not_change_the_mixture(left: Left) -> None:
    """With α, w̄'s scalar goes through 1 − γα + γα in every step: in the lanes of a sweep it stays the same point."""
    alone = [simulation(FedProx(step_size=0.3, alpha=0.77)), simulation(FedKin(step_size=0.1, beta=0.6))]
    assert scored(left, together(alone)) == {"point 0"}


def test_nothing_is_scored_after_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of n steps has no trail, and no step computes scores beyond its own batch."""
    asked: list[Any] = []
    under_trail = Samples._under_trail

    def counted(self: Samples, trail: str, batch: GramBatch) -> Tensor:
        asked.append(batch.rows)
        return under_trail(self, trail, batch)

    monkeypatch.setattr(Samples, "_under_trail", counted)
    run = together([simulation(FedKin(step_size=0.3, beta=beta), sizes=(6, 6, 6)) for beta in (0.5, 0.6)])
    played(run, 1)
    (space,) = run._kept.values()
    assert space.counts == [8, 8, 8]
    assert asked == [slice(4, 6), *[slice(0, 4), slice(4, 6)] * 3]
    assert not space.ahead


def test_shared_rows_are_not_copied(left: Left) -> None:
    played(simulation(FedKin(step_size=0.3), sizes=(6, 2, 6, 5, 6)), 1)
    assert left
    assert all(space["received"]["model"].stride(0) == 0 for space in left)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_a_cached_space_has_no_models(clip: float | None) -> None:
    """Between rounds a cohort keeps samples and Gram matrix, nothing that grows with the number of lanes."""
    run = simulation(FedKin(step_size=0.3), replace(LOCAL, clip=clip))
    played(run, 2)
    for space in run._kept.values():
        for name, value in vars(space).items():
            values = value.values() if isinstance(value, dict) else [value]
            assert not any(isinstance(v, Tensor | Fresh) for v in values), name


@pytest.mark.parametrize("clip", [None, 0.2])
def test_threads_do_not_change_the_result(clip: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts on two threads in any order against one cohort after another: bitwise identical."""
    sizes, local = (9, 12, 5, 7, 20, 3, 8, 16, 30), replace(LOCAL, clip=clip)
    alone = [simulation(member, local, sizes=sizes) for member in MEMBERS]
    workers: set[threading.Thread] = set()
    space = Simulation._space

    def watched(*args: Any) -> Any:
        workers.add(threading.current_thread())
        return space(*args)

    monkeypatch.setattr(Simulation, "_space", watched)
    threads, models = torch.get_num_threads(), []
    try:
        for count in (1, 2, 2, 2):
            torch.set_num_threads(count)
            workers.clear()
            models.append(played(together(alone)).model)
            assert (threading.main_thread() in workers) == (count == 1)
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(models[0], other) for other in models[1:])


def test_tensors_and_arrays_times_combinations() -> None:
    """On either side; the scalars become arrays in double precision."""
    for scalar in (torch.tensor([[[2.0]], [[3.0]]]), torch.tensor([[[2.0]], [[3.0]]]).double().numpy()):
        for product in (scalar * Combination({"a": 1.0, "b": 0.5}), Combination({"a": 1.0, "b": 0.5}) * scalar):
            assert {name: np.asarray(own).tolist() for name, own in product.terms.items()} == {
                "a": [[[2.0]], [[3.0]]],
                "b": [[[1.0]], [[1.5]]],
            }
            assert all(isinstance(own, np.ndarray) and own.dtype == "float64" for own in product.terms.values())


def test_steps_are_traced_once_unless_the_algorithm_changes() -> None:
    """In lanes too, whose hyper-parameters are stacked in every round."""
    constant = together([simulation(FedKin(step_size=0.3, beta=beta)) for beta in (0.5, 0.6)])
    scheduled = together([simulation(member) for member in MEMBERS])
    for run, same in ((constant, True), (scheduled, False)):
        state = run.advance(run.start())
        (first,) = run.traces.scripts
        run.advance(state)
        assert (run.traces.scripts[0] is first) == same
        assert len(first.after) == max(space.counts[0] for space in run._kept.values()), "as far as anyone goes"


def test_repeated_batches_are_the_same_objects() -> None:
    """Two epochs of two batches: in the first epoch the trail is shorter, then everything repeats."""
    federation = small_federation(features=40, sizes=(6, 5))
    ready = prepare(federation.train, np.array([0, 1]), Softmax(40, 3))
    per_client = [Local(epochs=3, batch_size=4, order="fixed").batches(n, np.random.default_rng(0)) for n in (6, 5)]
    batches = batches_of(ready, per_client)
    assert [b.rows for b in batches] == [slice(0, 4), slice(4, 6)] * 3
    assert [b.reach for b in batches] == [0, 4, 6, 6, 6, 6]
    assert batches[2] is batches[4]
    assert batches[3] is batches[5]
    assert batches[0].weight == 1 / 4
    assert isinstance(batches[1].weight, torch.Tensor)
    assert batches[1].weight.flatten(1).tolist() == [[0.5, 0.5], [1.0, 0.0]]


def test_a_shuffled_batch_is_not_taken_for_consecutive_rows() -> None:
    """[3, 1, 4] and [3, 4] have the same ends."""
    federation = small_federation(features=40, sizes=(6, 6))
    ready = prepare(federation.train, np.array([0]), Softmax(40, 3))
    per_client = [[np.array(b) for b in ([0, 2], [3, 1, 4], [3, 4], [3, 5, 4])]]
    shuffled = batches_of(ready, per_client)
    assert [b.rows if isinstance(b.rows, slice) else b.rows.tolist() for b in shuffled] == [
        [0, 2],
        [3, 1, 4],
        slice(3, 5),
        [3, 5, 4],
    ]
    assert [b.weight for b in shuffled] == [1 / 2, 1 / 3, 1 / 2, 1 / 3]


def test_combinations_by_hand() -> None:
    v = Combination({"a": 1.0, "b": 0.5})
    assert (-v).terms == {"a": -1.0, "b": -0.5}
    assert (v / 2).terms == {"a": 0.5, "b": 0.25}
    assert (v - 2 * v).terms == {"a": -1.0, "b": -0.5}


@pytest.mark.parametrize(
    "operation",
    [
        torch.sign,
        lambda v: v * v,
        lambda v: torch.ones(2) + v,
        lambda v: torch.maximum(v, v),
        lambda v: torch.dot(v, v),
        lambda v: v.norm(),
    ],
    ids=["sign", "square", "sum with a tensor", "maximum", "dot", "norm"],
)
def test_unsupported_operations_raise(operation: Callable[[Any], Any]) -> None:
    """They are not mistaken for products."""
    with pytest.raises((TypeError, AttributeError)):
        operation(Combination({"a": 1.0}))
