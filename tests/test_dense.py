"""Modules that are a linear model or a network with one hidden layer: recognised by what they compute."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedkin import FedAvg, Federation, FedKin, Local, Module, build_graph, federate, load
from fedkin.engine.simulation import Simulation
from fedkin.models import MLP, Linear, build_model


class Written(nn.Module):
    """As a user would write it: functions instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.relu(self.one(x.reshape(len(x), -1))))
        return out


class Swapped(nn.Module):
    """Its parameters are in another order than its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.two, self.one = nn.Linear(64, 10), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.relu(self.one(x.flatten(1))))
        return out


class Scaled(Written):
    """With a preprocessing of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


class Skipping(nn.Linear):
    """A linear model that ignores its last input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1) * torch.tensor([1.0] * 63 + [0.0]))


def between(activation: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 24), activation, nn.Linear(24, 10))


def module(make: Callable[[], nn.Module]) -> Module:
    return Module(make, (1, 8, 8), 10)


@pytest.mark.parametrize("make", [between(nn.ReLU()), Written])
def test_networks_with_one_hidden_layer(make: Callable[[], nn.Module]) -> None:
    assert module(make).dense == MLP(64, 10, hidden=24)


def test_linear_models() -> None:
    assert module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))).dense == Linear(64, 10)


@pytest.mark.parametrize(
    "make",
    [
        *map(between, (nn.Tanh(), nn.GELU(), nn.ReLU6(), nn.LeakyReLU(), nn.Identity(), nn.Softplus(40))),
        between(nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10).requires_grad_(False), nn.ReLU(), nn.Linear(10, 10)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10), nn.ReLU()),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)),
        Swapped,
        Scaled,
        lambda: Skipping(64, 10),
    ],
)  # fmt: skip
def test_others_stay_modules(make: Callable[[], nn.Module]) -> None:
    assert module(make).dense is None


def test_a_parameter_beside_the_layers_is_none_of_them() -> None:
    class More(Written):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Parameter(torch.zeros(3))

    assert module(More).dense is None


# -- in the engine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation() -> Federation:
    return federate(load("digits"), clients=5, class_imbalance=3, size_imbalance=0.5, seed=2)


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch_size=16, order="shuffled"),
        Local(epochs=2, batch_size=64, order="fixed", clip=0.5, l2=1e-2),
    ],
)
@pytest.mark.parametrize("take_part", [None, 3])
def test_rounds_are_those_of_the_module(federation: Federation, local: Local, take_part: int | None) -> None:
    """The reference computes the module itself, step by step, one client after the other."""
    graph, model = build_graph(federation), build_model(federation, Written())
    assert isinstance(model, Module)
    fast = Simulation(federation, model, FedKin(step_size=0.2), graph, graph.weights("samples", federation.train.sizes))
    fast = replace(fast, local=local, take_part=take_part)
    assert isinstance(fast.computed_model, MLP)
    ends = []
    for simulation in (fast, replace(fast, stacked=False)):
        state = simulation.start()
        for _ in range(3):
            state = simulation.advance(state)
        ends.append(state.model)
    start = fast.start().model
    assert torch.linalg.vector_norm(ends[0] - start) > 0.1
    assert torch.linalg.vector_norm(ends[0] - ends[1]) <= 1e-4 * torch.linalg.vector_norm(ends[1] - start)


def test_it_begins_with_the_parameters_of_the_module(federation: Federation) -> None:
    net = Written()
    graph = build_graph(federation, "uniform")
    simulation = Simulation(
        federation, build_model(federation, net), FedAvg(), graph, graph.weights("uniform", federation.train.sizes)
    )
    assert torch.equal(simulation.start().model.flatten(), torch.cat([p.detach().flatten() for p in net.parameters()]))
