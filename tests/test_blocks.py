"""Layers of a module that are computed in one pass: by hand, as by PyTorch, and in modules as users write them."""

import builtins
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("numba")

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkin import FedAvg, Federation, FedKin, Local, federate, from_arrays
from fedkin.engine.lanes import joined, together
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Module, copies
from fedkin.models.blocks import LayerBlock, in_blocks

# -- layers ------------------------------------------------------------------------------------------------------------

LAST = torch.channels_last


def block_of(*layers: nn.Module) -> LayerBlock:
    found = in_blocks(nn.Sequential(*layers))
    assert found is not None
    (block,) = (one for one in found.modules() if isinstance(one, LayerBlock))
    return block


def derivative(layer: Callable[[Tensor], Tensor], x: Tensor, by: Tensor) -> Tensor:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    return torch.autograd.grad((layer(x) * by).sum(), x)[0]


def derivatives(layer: nn.Module, x: Tensor, by: Tensor) -> tuple[Tensor, ...]:
    """By the layer's parameters."""
    parameters = list(layer.parameters())
    return torch.autograd.grad((layer(x) * by).sum(), parameters) if parameters else ()


def test_pooling_by_hand() -> None:
    """Windows (1 −2; 3 0), all negative, and a tie, which goes to the first; their derivatives go to one pixel."""
    rows = torch.tensor([[1.0, -2.0, -1.0, -1.0, 5.0, 5.0], [3.0, 0.0, -4.0, -2.0, 5.0, 5.0]])
    x = rows.expand(1, 8, 2, 6).clone(memory_format=LAST)
    block = block_of(nn.ReLU(), nn.MaxPool2d(2))
    assert block(x)[0, 7].tolist() == [[3.0, 0.0, 5.0]]
    found = derivative(block, x, torch.tensor([10.0, 20.0, 30.0]))
    assert found[0, 3].tolist() == [[0, 0, 0, 0, 30, 0], [10, 0, 0, 0, 0, 0]]
    without = block_of(nn.MaxPool2d(2))
    assert without(x)[0, 7].tolist() == [[3.0, -1.0, 5.0]]
    found = derivative(without, x, torch.tensor([10.0, 20.0, 30.0]))
    assert found[0, 3].tolist() == [[0, 0, 20, 0, 30, 0], [10, 0, 0, 0, 0, 0]]


def test_normalisation_by_hand() -> None:
    """Two groups of four channels with 1 and 3, and with −5 and 5: means 2 and 0, variances 1 and 25."""
    x = torch.tensor([[1.0, 3.0]] * 4 + [[-5.0, 5.0]] * 4).view(1, 8, 1, 2).clone(memory_format=LAST)
    norm = nn.GroupNorm(2, 8, eps=0.0)
    nn.init.constant_(norm.weight, 2.0)
    nn.init.constant_(norm.bias, 0.5)
    y = block_of(norm, nn.ReLU())(x)
    torch.testing.assert_close(y.view(8, 2), torch.tensor([[0.0, 2.5]] * 8))
    # Of Σ y only the active pixel has g = 1: mean(g) = 1/2 and mean(g·x̂) = 1/2, which leaves 1 − 1/2 − x̂/2 = 0 there
    # and 0 − 1/2 + 1/2 = 0 at the other pixel.
    torch.testing.assert_close(derivative(block_of(norm, nn.ReLU()), x, torch.ones(1)), torch.zeros(1, 8, 1, 2))
    # With the derivative in the first channel alone: mean(g) = mean(g·x̂) = 1/8, so gain·(1 − 1/8 − 1/8) and −gain/4.
    by = torch.zeros(1, 8, 1, 2)
    by[0, 0] = 1
    found = derivative(block_of(norm, nn.ReLU()), x, by)
    expected = torch.tensor([[0.0, 1.5]] + [[0.0, -0.5]] * 3 + [[0.0, 0.0]] * 4).view(1, 8, 1, 2)
    torch.testing.assert_close(found, expected)


RUNS: dict[str, Callable[[int], list[nn.Module]]] = {
    "relu pool": lambda _: [nn.ReLU(), nn.MaxPool2d(2)],
    "pool relu": lambda _: [nn.MaxPool2d(3), nn.ReLU(inplace=True)],
    "pool": lambda _: [nn.MaxPool2d((2, 2), stride=2)],
    "norm": lambda c: [nn.GroupNorm(c, c)],
    "norm relu": lambda c: [nn.GroupNorm(1, c, eps=0.1), nn.ReLU()],
    "norm pool": lambda c: [nn.GroupNorm(c // 4 if c % 4 == 0 else 1, c), nn.MaxPool2d(2)],
    "norm relu pool": lambda c: [nn.GroupNorm(c // 4 if c % 4 == 0 else 1, c), nn.ReLU(), nn.MaxPool2d(2)],
    "norm pool relu": lambda c: [nn.GroupNorm(1, c, affine=False), nn.MaxPool2d(3), nn.ReLU()],
}


@pytest.mark.parametrize("channels", [4, 6, 8, 9, 16, 20, 33])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 5), (3, 11)])
@pytest.mark.parametrize("run", RUNS)
def test_layers_are_those_of_pytorch(run: str, channels: int, height: int, width: int) -> None:
    """Values and derivatives, with channels that do not fill vectors and pixels in no window; far from 0, too."""
    generator = torch.Generator().manual_seed(channels + height)
    layers = nn.Sequential(*RUNS[run](channels))
    for p in layers.parameters():
        nn.init.normal_(p, generator=generator)
    block = block_of(*layers)
    for offset, scale in ((0.0, 1.0), (100.0, 1.0), (-3.0, 1e-3)):
        x = offset + scale * torch.randn(3, channels, height, width, generator=generator)
        given, usual = x.clone(memory_format=LAST), x.double()
        exact = nn.Sequential(*RUNS[run](channels)).double()
        exact.load_state_dict(layers.state_dict())
        by = torch.randn(exact(usual).shape, generator=generator)
        tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5 * max(1.0, abs(offset) / scale / 10)}
        torch.testing.assert_close(block(given).double(), exact(usual), **tolerance)
        found, expected = derivative(block, given, by).double(), derivative(exact, usual, by.double())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=float(2e-4 * expected.abs().max()))
        for one, other in zip(derivatives(block, given, by), derivatives(exact, usual, by.double()), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=float(1e-3 * other.abs().max()))


def test_nan_and_infinity_stay() -> None:
    """A model that has diverged is to be seen."""
    x = torch.ones(2, 8, 4, 4).clone(memory_format=LAST)
    x[0, 2, 1, 1], x[1, 3, 0, 0] = math.nan, math.inf
    y = block_of(nn.ReLU(), nn.MaxPool2d(2))(x)
    assert y[0, 2, 0, 0].isnan()
    assert y[1, 3, 0, 0].isinf()
    assert (~y.isfinite()).sum() == 2
    normed = block_of(nn.GroupNorm(1, 8), nn.ReLU(), nn.MaxPool2d(2))(x)
    assert normed.isnan().flatten(1).any(1).all()


def test_images_that_are_not_supported_are_left_to_pytorch() -> None:
    """Few channels, double precision, no height, or another format."""
    pool = block_of(nn.ReLU(), nn.MaxPool2d(2))
    for x in (torch.randn(2, 3, 4, 4), torch.randn(2, 8, 4, 4, dtype=torch.float64), torch.randn(8, 4, 4)):
        torch.testing.assert_close(pool(x), functional.max_pool2d(x.relu(), 2))
    x = torch.randn(2, 8, 4, 4)  # in the usual format
    torch.testing.assert_close(pool(x), functional.max_pool2d(x.relu(), 2))
    with pytest.raises(RuntimeError, match="too small"):
        pool(torch.randn(2, 8, 1, 4))
    torch.testing.assert_close(block_of(nn.GroupNorm(2, 8))(torch.ones(2, 8)), torch.zeros(2, 8))


# -- modules as users write them ---------------------------------------------------------------------------------------


class Written(nn.Module):
    """Functions instead of layers, and `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 20, 3, padding=1)
        self.norm, self.out = nn.GroupNorm(4, 20), nn.Linear(20 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        y = torch.relu(self.norm(self.two(x)))
        out: Tensor = self.out(functional.max_pool2d(y, kernel_size=2).view(x.size(0), -1))
        return out


class Joined(nn.Module):
    """What a layer gives is used twice: only runs in which nothing else is used can be one block."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.out = nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Linear(16 * 49, 3)
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        y = self.norm(x).relu() * self.weight + x
        out: Tensor = self.out(torch.flatten(torch.max_pool2d(y, 2), 1))
        return out


class InPlace(Joined):
    """Units are rectified where they are, and seen by others: not what a block does."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        y = torch.relu_(x)
        out: Tensor = self.out(torch.flatten(functional.max_pool2d(y, 2) + functional.max_pool2d(x, 2), 1))
        return out


class Learning(Joined):
    """It does something else in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.training else 2 * x)


class Looking(Joined):
    """Its path depends on the values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.sum()) > 0 else -x)


class Counting(Joined):
    """It changes from call to call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x * self.calls)


def hooked() -> nn.Module:
    net = Written()
    net.norm.register_forward_hook(lambda layer, given, out: 2 * out)
    return net


def frozen() -> nn.Module:
    net = Written()
    net.norm.requires_grad_(False)
    return net


def without_layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * 36, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "functions": (Written, True),
    "frozen": (frozen, True),
    "joined": (Joined, True),
    "in place": (InPlace, False),
    "other in training": (Learning, False),
    "looks at values": (Looking, False),
    "counts": (Counting, False),
    "hooks": (hooked, False),
    "no such layers": (without_layers, False),
}
SIDE = 14


def module(make: Callable[[], nn.Module]) -> Module:
    return Module(make, (1, SIDE, SIDE), 3)


def plain(model: Module) -> Module:
    """The same without blocks."""
    found = replace(model)
    found.__dict__["fused"] = False
    return found


@pytest.mark.parametrize("name", NETS)
def test_modules(name: str) -> None:
    """Recognised or not, their scores and gradients are those of the module; for one client, and for five."""
    make, fused = NETS[name]
    model = module(make)
    assert model.fused is fused
    samples = 40
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, samples, SIDE**2, generator=generator)
    y, weight = torch.randint(0, 3, (5, samples), generator=generator), torch.full((5, samples), 1 / samples)
    w = torch.stack([model.start(seed) for seed in range(5)])
    if name == "counts":
        return  # it has no gradient that could be compared
    for one, other in (
        (model.scores(w, x), plain(model).scores(w, x)),
        (model.gradient(w, x, y, weight), plain(model).gradient(w, x, y, weight)),
        (model.gradient(w[0], x[0], y[0], weight[0]), plain(model).gradient(w[0], x[0], y[0], weight[0])),
    ):
        assert (one - other).norm() < 1e-5 * other.norm()


def test_view_does_not_keep_images_from_the_faster_format() -> None:
    model = module(Written)
    assert not model.channels_last
    assert model.fused


def test_what_is_random_is_left_as_it_is() -> None:
    assert not module(lambda: nn.Sequential(Written(), nn.Dropout(0.5))).fused


def test_small_batches_do_not_load_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "block_maker", lambda: pytest.fail("looked for"))
    model = module(Written)
    w, x = model.start(0), torch.randn(2, SIDE**2)
    model.gradient(w, x, torch.zeros(2, dtype=torch.int64), torch.ones(2))
    model.scores(w, x)


# -- rounds ------------------------------------------------------------------------------------------------------------


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (150,), generator=generator)
    x = torch.randn(150, 1, SIDE, SIDE, generator=generator) + y.view(-1, 1, 1, 1)
    return federate(from_arrays(x.numpy(), y.numpy(), seed=0), clients=3)


def simulation(model: Module, step_size: float = 0.05) -> Simulation:
    made = federation()
    graph = SimilarityGraph.uniform(3)
    local = Local(epochs=2, batch_size=20)
    return Simulation(made, model, FedKin(step_size=step_size, beta=0.7), graph, graph.degrees, local, seed=1)


def played(run: Simulation) -> Tensor:
    state = run.start()
    for _ in range(2):
        state = run.advance(state)
    return state.model


def test_rounds_are_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit; and those without blocks to rounding, also as lanes and without Numba."""
    expected = played(simulation(plain(module(Written))))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (2, 3):
            torch.set_num_threads(threads)
            found.append(played(simulation(module(Written))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    assert not torch.equal(found[0], expected)  # so they were computed in another way
    assert (found[0] - expected).norm() < 1e-5 * expected.norm()

    lanes = [simulation(module(Written), step_size) for step_size in (0.05, 0.02)]
    group = together(lanes)
    state = joined([one.start() for one in lanes], group)
    for _ in range(2):
        state = group.advance(state)
    assert (state.model[0] - expected).norm() < 1e-5 * expected.norm()

    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name == "fedkin.models.blocks":
            raise ImportError(name)
        return real(name, *others)

    copies.block_maker.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        model = module(Written)
        again = played(simulation(model))
    finally:
        copies.block_maker.cache_clear()
    assert not model.fused
    assert torch.equal(again, expected)


def test_an_algorithm_with_a_proximal_term_in_blocks() -> None:
    run = simulation(module(Written))
    other = replace(run, algorithm=FedAvg(step_size=0.05), model=module(Joined))
    plain_one = replace(other, model=plain(module(Joined)))
    assert (played(other) - played(plain_one)).norm() < 1e-5 * played(plain_one).norm()
