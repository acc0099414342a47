"""Compiled steps: every product against PyTorch, and whole rounds against single clients in plain space."""

import builtins
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from conftest import small_federation, tensors_of
from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Gradient, Vector, Vectors
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.engine import cohorts
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation
from fedkin.engine.spaces.samples import Samples
from fedkin.graph.similarity import build_graph
from fedkin.models import MLP, Layer, Model, Softmax
from fedkin.types import Tensors

pytest.importorskip("numba")

from fedkin.engine.spaces import kernels
from fedkin.engine.spaces.compiled import Compiled
from loops import played

# Some below what is worth it, some that fill their batches and panels, some that do not.
SIZES = (70, 130, 64, 64, 20, 101)
LOCAL = Local(epochs=3, batch_size=48, l2=0.05, order="fixed")
SHAPES = [(1, 3, 16, 5), (1, 9, 16, 16), (3, 3, 50, 40), (1, 13, 65, 100), (4, 9, 37, 300)]  # lanes, K − 1, n, D


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do."""
    monkeypatch.setattr(cohorts, "MUCH", 0)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def simulation(algorithm: Algorithm, local: Local = LOCAL, classes: int = 4, **other: Any) -> Simulation:
    federation = small_federation(SIZES, features=150, classes=classes)
    graph = build_graph(federation)
    return Simulation(federation, Softmax(150, classes), algorithm, graph, graph.degrees, local, seed=3, **other)


def spaces(run: Simulation) -> set[type]:
    """Where clients with enough samples were."""
    return {type(space) for space in run._kept.values() if space.ready.x.shape[1] >= 64}


def assert_plain(run: Simulation) -> None:
    quick, plain = played(run), played(replace(run, stacked=False))
    assert spaces(run) == {Compiled}
    assert tensors_of(quick).keys() == tensors_of(plain).keys()
    for name, value in tensors_of(plain).items():
        torch.testing.assert_close(tensors_of(quick)[name], value, rtol=1e-4, atol=2e-6)


# -- products ----------------------------------------------------------------------------------------------------------


def test_panels_by_hand() -> None:
    """Two rows of twenty columns: sixteen, and four with padding."""
    panels = kernels.panels(torch.arange(40.0).view(1, 2, 20))
    assert panels.shape == (1, 2, 2, 16)
    assert panels[0, 0].tolist() == [list(range(16)), list(range(20, 36))]
    assert panels[0, 1].tolist() == [[16, 17, 18, 19] + 12 * [0], [36, 37, 38, 39] + 12 * [0]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_weights(shape: tuple[int, ...]) -> None:
    """Of two received vectors, the first of which all lanes share."""
    lanes, others, _, features = shape
    layer = Layer(features, others + 1)
    received = [drawn(1, 1, layer.end).expand(lanes, -1, -1), drawn(lanes, 1, layer.end, seed=1)]
    by, (one, other) = drawn(lanes, 2, seed=2), received
    mixture = by[:, :1] * one[:, 0] + by[:, 1:] * other[:, 0]
    weight = torch.cat([layer.weight(mixture), layer.bias(mixture)], dim=-1)
    less, whole = torch.empty(lanes * others, features + 1), torch.empty(others + 1, features + 1)
    kernels.mixed_weights(starts(received), by.numpy(), whole.numpy(), less.numpy())
    torch.testing.assert_close(less, (weight[:, :-1] - weight[:, -1:]).flatten(0, 1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores(shape: tuple[int, ...]) -> None:
    lanes, others, samples, features = shape
    x, weight = drawn(samples, features), drawn(lanes * others, features + 1)
    room, panel = torch.full((lanes * others, samples + 16), 7.0), torch.empty(features + 1, 16)
    kernels.scores(weight.numpy(), x.numpy(), panel.numpy(), room.numpy())
    expected = weight[:, :-1] @ x.mT + weight[:, -1:]
    torch.testing.assert_close(room[:, :samples], expected, rtol=1e-5, atol=1e-4)
    assert (room[:, samples:] == 7).all(), "nothing else was touched"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_models(shape: tuple[int, ...]) -> None:
    """Mixtures of received vectors plus products of rows, relative to the last, with samples; biases with ones."""
    lanes, others, samples, features = shape
    layer = Layer(features, others + 1)
    a, x = drawn(lanes, others + 1, samples), drawn(samples, features)
    a -= a.mean(1, keepdim=True)  # those of a lane sum to zero
    received, by = [drawn(lanes, 1, layer.end), drawn(lanes, 1, layer.end, seed=1)], drawn(lanes, 2, seed=2)
    scale = torch.arange(1.0, lanes + 1).repeat_interleave(others)
    expected = by[:, :1] * received[0][:, 0] + by[:, 1:] * received[1][:, 0]
    layer.weight(expected).add_(scale[::others, None, None] * (a @ x))
    layer.bias(expected).add_(scale[::others, None, None] * a.sum(-1, keepdim=True))
    room = torch.full((lanes, 2, layer.end), 7.0)
    kernels.models(
        *(((a[:, :-1] - a[:, -1:]).flatten(0, 1).numpy()), scale.numpy(), x.numpy(), starts(received), by.numpy()),
        *(
            kernels.addresses(room, layer.end)[0],
            np.empty((lanes * others + 1, 256), dtype=np.float32),
        ),
    )
    torch.testing.assert_close(room[:, 0], expected, rtol=1e-4, atol=2e-4)
    assert (room[:, 1] == 7).all(), "the next client's was not touched"


def starts(received: list[Tensor]) -> NDArray[np.int64]:
    """Where received vectors of one client begin, (L, S)."""
    return np.stack([kernels.addresses(vector, vector.shape[-1])[0] for vector in received], axis=-1)


# -- one step ----------------------------------------------------------------------------------------------------------


def residual(z: Tensor, label: int = 0) -> Tensor:
    """The residual r = softmax(z) − onehot of samples with scores z (K, n), by one compiled step."""
    classes, samples = z.shape
    known = torch.zeros(1, classes - 1, samples + 16)
    known[0, :, :samples] = z[:-1] - z[-1]
    onehot, less = torch.zeros(classes, samples + 16), torch.zeros(classes - 1, samples)
    onehot[label] = 1
    one = torch.ones(1, 1)
    join = float(samples) * one  # a step takes the mean over its batch
    batches, panels = torch.tensor([[0, samples, 0, 0]]), kernels.panels(torch.eye(samples)[None])[0]
    given = (known, one[None], one, one, join, batches, panels, onehot, less)
    kernels.softmax_steps(*(t.numpy() for t in given))
    last = -less.sum(0, keepdim=True) / classes
    return torch.cat([less + last, last])


def test_residual_by_hand() -> None:
    """Scores ln 1, ln 2, ln 3, ln 4: probabilities are tenths."""
    z = torch.tensor([1.0, 2.0, 3.0, 4.0]).log()[:, None].expand(4, 5)
    expected = torch.tensor([0.1 - 1, 0.2, 0.3, 0.4])[:, None].expand(4, 5)
    torch.testing.assert_close(residual(z), expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_residual_of_any_scores(scale: float) -> None:
    z = scale * drawn(5, 203)
    expected = torch.softmax(z.double(), 0)
    expected[0] -= 1
    torch.testing.assert_close(residual(z).double(), expected, rtol=1e-5, atol=3e-7)


def test_nan_is_kept_and_does_not_spread() -> None:
    z = drawn(4, 40)
    z[1, 3], z[2, 17] = float("nan"), float("inf")
    r = residual(z)
    assert r[:, [3, 17]].isnan().all()
    assert np.isfinite(np.delete(r.numpy(), [3, 17], axis=1)).all()


# -- whole rounds ------------------------------------------------------------------------------------------------------

MEMBERS = [
    FedAvg(step_size=0.02),
    FedProx(step_size=0.02, alpha=7.0),
    FedKin(step_size=0.02, beta=0.6),
    FedKin(step_size=0.01, beta=Schedule(0.3, 1.0, over=2)),
]


@dataclass(frozen=True, kw_only=True)
class Drifter(FedKin):
    """Asks for gradients at another mixture of w̄ and u in every step, so both have to be scored."""

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        w = 0.9 * w + 0.1 * got["anchor"]
        return w - self.step_size * gradient(w), memory


@pytest.mark.parametrize("algorithm", [*MEMBERS, Drifter(step_size=0.02)], ids=lambda a: type(a).__name__)
def test_one_run(algorithm: Algorithm) -> None:
    assert_plain(simulation(algorithm))


@pytest.mark.parametrize("penalties", [(0.05,) * 4, (0.0, 0.3, 0.1, 60.0)], ids=["one penalty", "penalties"])
def test_lanes(penalties: tuple[float, ...]) -> None:
    """Two classes are enough for lanes; with a penalty of 60 the trail shrinks so much that it has to be rescaled."""
    for classes in (2, 5):
        runs = [simulation(m, replace(LOCAL, l2=l2), classes) for m, l2 in zip(MEMBERS, penalties, strict=True)]
        assert_plain(together(runs))


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch_size=None, order="fixed"),
        Local(steps=5, order="fixed"),
        Local(epochs=1, batch_size=16, order="fixed"),
    ],
    ids=str,
)
def test_other_batches(local: Local) -> None:
    run = simulation(FedKin(step_size=0.02, beta=0.6), local)
    quick, plain = played(run), played(replace(run, stacked=False))
    torch.testing.assert_close(quick.model, plain.model, rtol=1e-4, atol=2e-6)


def test_a_diverging_lane_does_not_change_the_others() -> None:
    calm = simulation(FedKin(step_size=0.02, beta=0.6))
    wild = replace(calm, algorithm=FedAvg(step_size=1e30))
    both, alone = played(together([calm, wild])), played(calm)
    assert not both.model[1].isfinite().all()
    torch.testing.assert_close(both.model[0], alone.model, rtol=1e-5, atol=1e-7)


def test_rounds_are_the_same_with_any_number_of_threads() -> None:
    models, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            models.append(played(simulation(FedKin(step_size=0.02)), rounds=1).server["models"].values)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*models)


def test_a_large_client_does_not_delay_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled client uses one core, so others run concurrently."""
    sizes = (190, 64, 20, 20, 20, 20)
    run = replace(simulation(FedAvg(step_size=0.02)), federation=small_federation(sizes, features=150, classes=4))
    threads, play = set(), Compiled.play

    def noted(self: Compiled, *given: Any) -> Tensors:
        threads.add(threading.current_thread())
        return play(self, *given)

    monkeypatch.setattr(Compiled, "play", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        played(run, 1)
    finally:
        torch.set_num_threads(before)
    assert spaces(run) == {Compiled}
    assert threading.main_thread() not in threads


# -- when it is used ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "classes"),
    [
        ({"local": replace(LOCAL, clip=0.5)}, 4),
        ({"local": replace(LOCAL, order="shuffled")}, 4),
        ({"take_part": 4}, 4),
        ({}, 3),  # two rows: too few for a tile
    ],
    ids=["clipped", "shuffled", "not all present", "few rows"],
)
def test_unsupported_settings(change: dict[str, Any], classes: int) -> None:
    """They need no Gram matrix, or are not compiled."""
    run = simulation(FedKin(step_size=0.02), classes=classes, **change)
    quick, plain = played(run), played(replace(run, stacked=False))
    assert quick.spaces.keys() == ({"primal"} if change else {"samples"})
    torch.testing.assert_close(quick.model, plain.model, rtol=1e-4, atol=2e-6)


def test_networks_keep_gram_matrices() -> None:
    model: Model = MLP(150, 4, hidden=8)
    run = replace(simulation(FedAvg(step_size=0.1)), model=model)
    played(run, 1)
    assert spaces(run) == {Samples}


def test_short_rounds_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "MUCH", 1e9)
    run = simulation(FedAvg(step_size=0.1))
    played(run, 1)
    assert spaces(run) == {Samples}


def test_without_numba_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(simulation(FedKin(step_size=0.02)))
    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name == "fedkin.engine.spaces.compiled":
            raise ImportError(name)
        return real(name, *others)

    cohorts.compiled_spaces.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        run = simulation(FedKin(step_size=0.02))
        state = played(run)
    finally:
        cohorts.compiled_spaces.cache_clear()
    assert spaces(run) == {Samples}
    torch.testing.assert_close(state.model, expected.model, rtol=1e-4, atol=2e-6)
