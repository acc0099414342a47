"""Training loops of the user's own: `Work` derives the point and the direction from the algorithm's step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import fedkin
from fedkin import Algorithm, FedAvg, FedProx, Local
from fedkin.algorithms import IFCA, Gradient, Vector, Vectors
from fedkin.errors import BadInput
from fedkin.flower import Strategy, Work, introduce
from fedkin.flower.own_loop import direction_of
from fedkin.flower.wire import ORDER, VECTORS, Order, pack
from flower_grid import Direct
from flower_nodes import FEDERATION, KIN, LOCAL, MODEL, Momentum, data, lead, loader
from own_algorithms import APFL, Ditto, PerFedAvg, Scaffold


@dataclass(frozen=True, kw_only=True)
class Halved(FedProx):
    """FedProx with half of the gradient, at a point beyond w: no algorithm, but a step of its own kind."""

    beta: float = 7.0  # a field that the step does not use

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * (0.5 * gradient(1.5 * w - 0.5 * got["model"]) - self.alpha * got["model"]), memory


ALGORITHMS: list[Algorithm] = [
    FedAvg(step_size=0.05),
    FedProx(step_size=0.05, alpha=0.5),
    KIN,
    Scaffold(step_size=0.05, server_step=0.9),
    Halved(step_size=0.05, alpha=0.1),
]


def own_loop() -> ClientApp:
    """Plain SGD around `gradient_point`, on two epochs of batches in their order."""
    app = ClientApp()
    introduce(app, data)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        net = nn.Linear(64, 10)
        work = Work(msg, net, context)
        optimizer = torch.optim.SGD(net.parameters(), lr=work.step_size)
        for _ in range(2):
            for x, y in loader(context, 32):
                optimizer.zero_grad()
                with work.gradient_point():
                    nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return work.reply(samples=1)

    return app


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("take_part", [None, 3])
def test_plain_sgd_takes_the_steps_of_the_algorithm(algorithm: Algorithm, take_part: int | None) -> None:
    """Three rounds give the engine's model (without the L2 penalty, which is not part of the loop)."""
    local = Local(epochs=2, batch_size=32, l2=0.0, order="fixed")
    expected = fedkin.train(FEDERATION, algorithm, local=local, rounds=3, take_part=take_part).model
    strategy = Strategy(algorithm, local, min_nodes=5, take_part=take_part, own_loops=True)
    lead(Direct(own_loop(), range(5)), strategy=strategy)
    start = MODEL.start(0)
    assert float((strategy._state.model - expected).norm()) < 1e-5 * float((expected - start).norm())


def test_directions() -> None:
    """The terms of point and pull, written out."""
    size = torch.zeros(1, 3)
    kin = direction_of(fedkin.FedKin(step_size=0.1, beta=0.7, alpha=0.2), {"model": size, "anchor": size}, {})
    assert kin.point.terms == pytest.approx({"w": 0.7, "got anchor": 0.3})
    assert kin.pull.terms == pytest.approx({"w": 0.2, "got model": -0.2})
    scaffold = direction_of(Scaffold(step_size=0.1), {"model": size, "control": size}, {"control": size})
    assert scaffold.point.terms == {"w": 1.0}
    assert scaffold.pull.terms == pytest.approx({"got control": 1.0, "memory control": -1.0})
    halved = direction_of(Halved(step_size=0.1, alpha=0.2), {"model": size}, {})
    assert halved.scale == pytest.approx(0.5)


@dataclass(frozen=True, kw_only=True)
class Signs(Algorithm):
    """w ← w − γ sign(∇f): more than a linear combination."""

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        return w - self.step_size * torch.sign(torch.as_tensor(gradient(w))), memory


@pytest.mark.parametrize(
    ("algorithm", "memory", "reason"),
    [
        (PerFedAvg(), (), "takes 2 gradients"),
        (Ditto(), ("own",), "takes 2 gradients"),
        (APFL(), ("own",), "changes what its clients remember"),
        (Momentum(), ("velocity",), "changes what its clients remember"),
        (Signs(), (), "more than a linear combination"),
    ],
    ids=["two gradients", "two vectors", "shared gradient", "velocity", "sign"],
)
def test_steps_that_do_not_fit_are_refused(algorithm: Algorithm, memory: tuple[str, ...], reason: str) -> None:
    size = torch.zeros(1, 3)
    with pytest.raises(BadInput, match=f"{reason}.*use client_app"):
        direction_of(algorithm, {"model": size}, dict.fromkeys(memory, size))


def message(algorithm: Algorithm, **vectors: Any) -> tuple[Message, Context]:
    """What the server sends to a node in a first round."""
    (context,) = Direct(ClientApp(), [0]).nodes.values()
    content = RecordDict(
        {VECTORS: pack({"model": MODEL.start(0), **vectors}), ORDER: Order(algorithm, LOCAL, 0, 0, 0).pack()}
    )
    return Message(content, 1000, "train"), context


def test_what_a_loop_cannot_give_is_refused() -> None:
    """Memory without a context, losses before the steps, a model of another size, a reply without steps."""
    net, zeros = nn.Linear(64, 10), torch.zeros(650)
    with pytest.raises(BadInput, match=r"Scaffold keep a memory.*Work\(msg, net, context\)"):
        Work(message(Scaffold(), control=zeros)[0], net)
    msg, context = message(IFCA(groups=2), **{"0": zeros, "1": zeros})
    with pytest.raises(BadInput, match=r"IFCA compute losses.*use client_app"):
        Work(msg, net, context)
    with pytest.raises(BadInput, match="650 parameters where this node's model has 33"):
        Work(message(KIN)[0], nn.Linear(10, 3))
    with pytest.raises(BadInput, match=r"took no step.*work.gradient_point"):
        Work(message(KIN)[0], net).reply(samples=1)


def test_parameters_that_the_loss_does_not_reach_are_pulled_too() -> None:
    """Their gradient is zero, not missing; parameters that are not trained stay without one."""
    used, unused = nn.Linear(64, 5), nn.Linear(64, 5)
    net = nn.ModuleList([used, unused])
    used.bias.requires_grad_(False)
    work = Work(message(FedProx(alpha=0.5))[0], net)
    with torch.no_grad():
        unused.weight += 1.0
    with work.gradient_point():
        used(torch.ones(1, 64)).sum().backward()
    assert unused.weight.grad is not None
    np.testing.assert_allclose(unused.weight.grad, 0.5, atol=1e-6)
    assert used.bias.grad is None
