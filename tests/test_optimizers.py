"""Optimizers at the client: against PyTorch's own, against themselves in every space, and by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, Local
from fedkin.engine import lanes
from fedkin.engine.simulation import Simulation
from fedkin.errors import BadInput
from fedkin.experiments import run as experiments
from fedkin.graph.similarity import build_graph
from fedkin.models import MLP, Model, Module, Softmax
from loops import federation, played, simulation
from own_algorithms import Ditto
from scaffold import Scaffold

STEP, L2, DECAY = 0.05, 0.01, 0.3


def torch_optimizer(local: Local, net: nn.Module) -> torch.optim.Optimizer:
    """The same in PyTorch, without weight decay: its SGD has none that is decoupled."""
    if local.optimizer == "adam":
        return torch.optim.Adam(net.parameters(), lr=STEP)
    return torch.optim.SGD(net.parameters(), lr=STEP, momentum=local.momentum if local.optimizer == "momentum" else 0)


def by_pytorch(run: Simulation, net: nn.Module, client: int) -> Tensor:
    """The client's model after one round, by an ordinary loop in double precision."""
    train, local = run.federation.train, run.local
    x, y = train.x[train.rows(client)].double(), train.y[train.rows(client)]
    nn.utils.vector_to_parameters(run.start().model.double(), net.double().parameters())
    optimizer = torch_optimizer(local, net)
    for batch in [torch.as_tensor(b) for b in local.batches(len(y), np.random.default_rng(0))]:
        optimizer.zero_grad()
        penalty = torch.stack([(p**2).sum() for p in net.parameters()]).sum()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch]) + L2 / 2 * penalty
        loss.backward()  # type: ignore[no-untyped-call]
        before = [p.detach().clone() for p in net.parameters()]
        optimizer.step()
        with torch.no_grad():
            for p, w in zip(net.parameters(), before, strict=True):
                p.sub_(STEP * local.weight_decay * w)
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def bent() -> nn.Module:
    """A network that is computed as a module."""
    return nn.Sequential(nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 3))


NETS: dict[str, tuple[Model, Any]] = {
    "softmax": (Softmax(40, 3), lambda: nn.Linear(40, 3)),
    "mlp": (MLP(40, 3, hidden=6), lambda: nn.Sequential(nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 3))),
    "module": (Module(bent, (40,), 3), bent),
}


@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "one by one"])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("model", NETS)
def test_fedavg_is_pytorch_at_every_client(model: str, optimizer: str, decay: float, stacked: bool) -> None:
    local = Local(epochs=3, batch_size=4, order="fixed", l2=L2, optimizer=optimizer, momentum=0.8, weight_decay=decay)
    made = simulation(FedAvg(step_size=STEP), local=local, stacked=stacked)
    made = replace(made, model=NETS[model][0])
    state, round = made.start(), made.available(0)
    got = made.algorithm.at(0).send(state.server, round)
    replies, _, spaces = made.work(made.algorithm.at(0), made.local, round, got, {})
    assert ("samples" in spaces) == (stacked and optimizer != "adam" and model != "module"), spaces
    for client in (0, 3, 4):
        expected = by_pytorch(made, NETS[model][1](), client)
        torch.testing.assert_close(replies["model"][client].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("algorithm", [FedProx(step_size=0.1, alpha=0.5), FedKin(step_size=0.1), Ditto(step_size=0.1)])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_every_space_gives_the_same(algorithm: Algorithm, optimizer: str, clip: float | None) -> None:
    local = Local(epochs=2, batch_size=4, order="fixed", l2=L2, clip=clip, optimizer=optimizer, weight_decay=DECAY)
    graph = build_graph(federation(40))
    fast = replace(simulation(algorithm, local=local), graph=graph)
    slow = replace(fast, stacked=False)
    torch.testing.assert_close(played(fast).model, played(slow).model, rtol=1e-4, atol=2e-6)
    plain = replace(fast, local=Local(epochs=2, batch_size=4, order="fixed", l2=L2, clip=clip))
    assert float((played(plain).model - played(fast).model).abs().max()) > 1e-3


def test_lanes_give_the_same() -> None:
    for optimizer in ("momentum", "adam"):
        local = Local(epochs=2, batch_size=4, order="fixed", optimizer=optimizer, weight_decay=DECAY)
        members = [simulation(FedKin(step_size=g, beta=b), local=local) for g, b in ((0.1, 0.5), (0.05, 0.9))]
        together = lanes.together(members)
        found = played(together, 2)
        for lane, member in enumerate(members):
            torch.testing.assert_close(found.model[lane], played(member, 2).model, rtol=1e-4, atol=2e-6)


def test_momentum_by_hand_with_fedkin() -> None:
    """Two full-batch steps of FedKin in the first round, where u = w₀.

    v₁ = −γ g(βw₀ + (1−β)u), w₁ = w₀ + v₁; v₂ = μv₁ − γ g(βw₁ + (1−β)u), w₂ = w₁ + v₂.
    """
    local = Local(epochs=2, batch_size=None, l2=0.0, optimizer="momentum", momentum=0.7)
    run = simulation(FedKin(step_size=0.3, beta=0.4), local=local)
    run = replace(run, graph=build_graph(federation(40)))
    state, round = run.start(), run.available(0)
    replies, _, _ = run.work(run.algorithm.at(0), local, round, run.algorithm.at(0).send(state.server, round), {})
    train, w0 = run.federation.train, state.model
    x, y = train.x[train.rows(2)], train.y[train.rows(2)]

    def g(w: Tensor) -> Tensor:
        return run.model.gradient(w, x, y, torch.full((len(y),), 1 / len(y)))

    v = -0.3 * g(w0)
    w = w0 + v
    v = 0.7 * v - 0.3 * g(0.4 * w + 0.6 * w0)
    torch.testing.assert_close(replies["model"][2], w + v, rtol=1e-5, atol=1e-6)


def test_momentum_zero_is_sgd() -> None:
    for model in ("softmax", "module"):
        runs = [
            replace(simulation(FedAvg(step_size=0.1), local=local), model=NETS[model][0])
            for local in (Local(epochs=2), Local(epochs=2, optimizer="momentum", momentum=0.0))
        ]
        torch.testing.assert_close(*(played(run, 2).model for run in runs), rtol=1e-6, atol=1e-7)


class SignStep(FedAvg):
    def step(self, w: Any, got: Any, memory: Any, gradient: Any) -> Any:
        return w - self.step_size * torch.sign(gradient(w)), memory


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(BadInput, match=r"Scaffold counts on steps of its own.*local.optimizer = 'sgd'"):
        simulation(Scaffold(step_size=0.1), local=Local(optimizer="momentum"))
    with pytest.raises(BadInput, match="weight_decay = 0"):
        simulation(Scaffold(step_size=0.1), local=Local(weight_decay=0.1))
    with pytest.raises(BadInput, match=r"that of SignStep does more: set local.optimizer = 'sgd' or 'momentum'"):
        played(simulation(SignStep(step_size=0.01), local=Local(optimizer="adam")), 1)
    assert played(simulation(SignStep(step_size=0.01), local=Local(optimizer="momentum")), 1).spaces == {"plain": 20}
    for bad in ({"optimizer": "rmsprop"}, {"momentum": 1.0}, {"weight_decay": -1.0}):
        with pytest.raises(BadInput, match=r"choose|out of range"):
            Local(**bad)


def test_settings_reach_the_clients(tmp_path: Any) -> None:
    small = {"rounds": 2, "partition": {"clients": 4}, "name": "o"}
    found = [
        experiment[0].test_loss[-1]
        for more in ({}, {"optimizer": "adam"}, {"optimizer": "momentum"}, {"weight_decay": 0.5})
        for experiment in [experiments.run({**small, "local": {"step_size": 0.01, **more}}, out=tmp_path / str(more))]
    ]
    assert len(set(found)) == 4
