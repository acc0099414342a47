"""Modules as they are on Flower: constants, tied parameters, batches by name, devices, loops that stay as they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

import fedkin
from fedkin import FedAvg, FedKin, FedProx, Local
from fedkin.errors import BadInput
from fedkin.flower import Strategy, Work, arrays, client_app, initial_arrays, introduce
from fedkin.flower.layout import Layout
from fedkin.flower.wire import ORDER, VECTORS, Order, pack
from fedkin.models import Module
from flower_grid import Direct, recorded
from flower_nodes import five, lead
from own_algorithms import Scaffold

LOCAL = Local(epochs=1, batch_size=8, order="fixed", l2=0.0)


class Odd(nn.Module):
    """Constants of all kinds: a float and an integer buffer, a frozen layer, and a weight under two names."""

    scale: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("order", torch.tensor([1, 0, 3, 2]))
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.square = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.square.weight
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.frozen(x[:, self.order] * self.scale))
        return torch.as_tensor(self.out(self.tied(torch.tanh(self.square(x)))))


TRAINED = 4 * 4 + 4 + 3 * 4 + 3
STATE = 4 + (16 + 4) + (16 + 4) + 16 + 15  # without the integers


def data(context: Context) -> tuple[Tensor, Tensor]:
    """Two classes that differ in mean, and a third that no node has."""
    own = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    y = torch.arange(24) % 2
    return torch.randn(24, 4, generator=own) + y[:, None], y


def own_loop(net: Callable[[], nn.Module], hooked: bool) -> ClientApp:
    """Plain SGD on batches of eight in their order."""
    app = ClientApp()
    introduce(app, data)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = net()
        work = Work(msg, model, context)
        work = work.hooked() if hooked else work
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=work.step_size)
        x, y = data(context)
        for batch in range(3):
            rows = slice(8 * batch, 8 * batch + 8)
            optimizer.zero_grad()
            if hooked:
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            else:
                with work.gradient_point():
                    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return work.reply(24, {"mine": 1.0})

    return app


def started(net: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(5)
    return net()


@pytest.mark.parametrize("algorithm", [FedKin(step_size=0.1, beta=0.6, alpha=0.1), Scaffold(step_size=0.1)])
def test_constants_stay_and_tied_weights_remain_one(algorithm: fedkin.Algorithm) -> None:
    """client_app, a loop with `gradient_point` and one with hooks take the same steps, from the whole state.

    The constants are those of the server, not the ones that a node would draw. Sending the trained parameters alone is
    another way to begin, with constants of the nodes' own.
    """
    first = started(Odd)
    found = []
    for app, own in ((client_app(Odd, data), False), (own_loop(Odd, False), True), (own_loop(Odd, True), True)):
        strategy = Strategy(algorithm, LOCAL, min_nodes=2, graph="uniform", own_loops=own)
        result = strategy.start(Direct(app, range(2)), ArrayRecord(first.state_dict()), 2, 5.0)
        found.append(result.arrays.to_torch_state_dict())
    for state in found:
        for name, value in first.state_dict().items():
            constant = name.startswith(("scale", "order", "frozen"))
            assert torch.equal(state[name], value) == constant, name
        assert torch.equal(state["square.weight"], state["tied.weight"])
        for name, value in state.items():
            np.testing.assert_allclose(value, found[0][name], atol=1e-6, rtol=0, err_msg=name)
        Odd().load_state_dict(state)


def test_layouts() -> None:
    """By the size of what is sent: the trained parameters, all, or the state; another size is no fit."""
    net = Odd()
    assert Layout.of(net, TRAINED).places is None
    for size in (TRAINED + 20, STATE):
        layout = Layout.of(net, size)
        v = torch.randn(1, TRAINED)
        model = torch.randn(1, size)
        placed = layout.placed({"model": v, "other": v, "count": torch.ones(1, 1)}, model)
        assert {name: value.shape[-1] for name, value in placed.items()} == {"model": size, "other": size, "count": 1}
        back = layout.taken(placed)
        assert torch.equal(back["model"], v)
        assert torch.equal(back["other"], v)
        assert int((placed["model"] == model).sum()) == size - TRAINED - (16 if size == STATE else 0)
    with pytest.raises(BadInput, match=f"sent 7 parameters where this node's model has {TRAINED}"):
        Layout.of(net, 7)


def test_running_statistics_are_refused_at_the_server() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(BadInput, match=r"1\.running_mean.*GroupNorm or LayerNorm instead of BatchNorm"):
        initial_arrays(net)


def test_a_module_is_tried_at_the_server() -> None:
    """With samples of the given shape; the trained parameters are returned."""
    assert sum(np.prod(array.shape) for array in initial_arrays(Odd(), shape=(4,)).values()) == TRAINED
    with pytest.raises(BadInput, match=r"does not take samples of shape \(3,\) \(.*: change its layers"):
        initial_arrays(Odd(), shape=(3,))


def test_an_app_that_fails_everywhere_ends_the_run_at_once() -> None:
    """Once, with the sentence of the nodes, and not after ten attempts."""
    app = client_app(lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), data)
    grid = Direct(app, range(2))
    with pytest.raises(RuntimeError, match=r"the app of every node failed in round 1 \(.+\): mend it") as caught:
        Strategy(FedAvg(), LOCAL, min_nodes=2, graph="uniform").start(
            grid, ArrayRecord(nn.Linear(4, 3).state_dict()), 2, 5.0
        )
    assert sum(question.metadata.message_type == "train" for question in grid.questions) == 2
    assert "<class" not in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [
        {"img": 0, "label": 1},
        {"label": 1, "img": 0},
        {"fine_labels": 1, "x": 0},
        {"Target": 1, "features": 0},
        {"y": 1, "x": 0},
        {"a": 1, "b": 0},
    ],
)
def test_batches_by_name(batch: dict[str, int]) -> None:
    """In any order; without telling names, the vector is the labels."""
    parts = (torch.randn(6, 2), torch.arange(6))
    x, y, _ = arrays([{name: parts[which] for name, which in batch.items()}])
    assert torch.equal(x, parts[0])
    assert torch.equal(y, parts[1])


@pytest.mark.parametrize("batch", [{"img": 0, "fine_label": 1, "coarse_label": 1}, {"a": 1, "b": 1}, {"a": 0, "b": 0}])
def test_batches_that_could_be_read_in_two_ways(batch: dict[str, int]) -> None:
    parts = (torch.randn(6, 2), torch.arange(6))
    with pytest.raises(BadInput, match=r"not clear which are the samples .*: let load_data give batches \(x, y\)"):
        arrays([{name: parts[which] for name, which in batch.items()}])


def test_the_module_may_move_after_the_work_has_begun() -> None:
    """Vectors follow it to its device: here one without numbers, on which mixing devices is an error all the same."""
    net = nn.Linear(4, 3)
    order = Order(FedProx(alpha=0.5), LOCAL, 0, 0, 0).pack()
    (context,) = Direct(ClientApp(), [0]).nodes.values()
    content = RecordDict({VECTORS: pack({"model": torch.zeros(15)}), ORDER: order})
    work = Work(Message(content, 1000, "train"), net, context)
    net.to("meta")
    with work.gradient_point():
        net(torch.ones(2, 4, device="meta")).sum().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.device.type == "meta"


def hooked_work(algorithm: fedkin.Algorithm, net: nn.Module, w: Tensor) -> Work:
    content = RecordDict({VECTORS: pack({"model": w}), ORDER: Order(algorithm, LOCAL, 0, 0, 0).pack()})
    return Work(Message(content, 1000, "train"), net).hooked()


def test_hooks_leave_other_calls_and_other_optimizers_alone() -> None:
    """FedProx with α = 0.5 from w̄ = 0: after w = 1 the direction of f = 3w is 3 + 0.5."""
    net = nn.Linear(1, 1, bias=False)
    work = hooked_work(FedProx(alpha=0.5), net, torch.zeros(1))
    with torch.no_grad():
        net.weight.fill_(1.0)
        net(torch.ones(1, 1))
    other = nn.Linear(1, 1)
    torch.optim.SGD(other.parameters(), lr=1.0).step()
    assert work._steps == 0
    (net(torch.full((1, 1), 3.0))).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert net.weight.item() == pytest.approx(1 - 0.1 * 3.5)
    assert work._steps == 1
    work.reply(1)
    net(torch.ones(1, 1)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    assert work._steps == 1


def test_an_optimizer_with_gradients_of_its_own_is_refused() -> None:
    net = nn.Linear(1, 1, bias=False)
    work = hooked_work(FedAvg(), net, torch.zeros(1))
    optimizer = torch.optim.LBFGS(net.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (net(torch.ones(1, 1)) - 1).square().sum()
        loss.backward()
        return torch.as_tensor(loss)

    with pytest.raises(BadInput, match="LBFGS computes gradients within its step"):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert work._w is None


def test_what_a_loop_of_ones_own_did_is_on_record(tmp_path: Path) -> None:
    """Neither epochs nor batches nor a step size that was not used, but the nodes' own numbers."""
    net = nn.Linear(4, 3)
    strategy = Strategy(FedAvg(step_size=0.3), min_nodes=2, graph="uniform", own_loops=True, out=tmp_path / "run")
    grid = Direct(own_loop(lambda: nn.Linear(4, 3), True), range(2))
    strategy.start(grid, ArrayRecord(net.state_dict()), 2, 5.0)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["local"] == {"own_loops": True}
    assert "step_size" not in json.dumps(json.loads((tmp_path / "run" / "summary.json").read_text())["hyperparameters"])
    for record in recorded(tmp_path / "run"):
        assert record["train_metrics"] == pytest.approx({"mine": 1.0, "steps": 3.0, "step_size": 0.3})


@pytest.mark.parametrize("own", [False, True])
def test_loops_that_are_not_those_on_record(own: bool) -> None:
    app: Any = client_app(lambda: nn.Linear(4, 3), data) if own else own_loop(lambda: nn.Linear(4, 3), True)
    strategy = Strategy(FedAvg(step_size=0.3), LOCAL, min_nodes=2, graph="uniform", own_loops=own)
    with pytest.raises(BadInput, match=f"every node .*: set own_loops = {not own}, or use"):
        strategy.start(Direct(app, range(2)), ArrayRecord(nn.Linear(4, 3).state_dict()), 2, 5.0)


class Fickle(nn.Module):
    """Fails under `vmap`, or with channels last, but only for more samples than a trial has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return torch.as_tensor(self.out(x.view(-1, 8) if len(x) > 3 else x.flatten(1)))


class Peeking(Fickle):
    """Looks at its samples, which `vmap` does not support, if there are more than in a trial."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3 and float(x.sum()) > 1e9:
            x = x / 2
        return torch.as_tensor(self.out(self.conv(x).flatten(1)))


@pytest.mark.parametrize("net", [Fickle, Peeking])
def test_a_module_that_fails_in_the_fast_way_after_all_takes_the_plain_one(net: type[nn.Module]) -> None:
    """With six samples at five clients, and at one: scores and gradients are those of one client at a time."""
    model = Module(net, (1, 4, 4), 3)
    assert model.stackable
    w = model.start(0) + 0.1 * torch.randn(5, model.size, generator=torch.Generator().manual_seed(0))
    x, y, weight = torch.randn(5, 6, 16), torch.randint(3, (5, 6)), torch.full((5, 6), 1 / 6)
    alone = Module(net, (1, 4, 4), 3)
    alone.__dict__.update(stackable=False, channels_last=False)
    for some in (slice(5), slice(1)):
        given = w[some], x[some], y[some], weight[some]
        np.testing.assert_allclose(model.scores(*given[:2]), alone.scores(*given[:2]), atol=1e-5)
        np.testing.assert_allclose(model.gradient(*given), alone.gradient(*given), atol=1e-5)
    assert (model.stackable, model.channels_last) != (True, True)


def test_messages_in_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two of five messages are on their way at once, as in a simulation of hundreds of nodes."""
    _, expected = lead(five(), rounds=2)
    for module in ("transport", "nodes"):
        monkeypatch.setattr(f"fedkin.flower.{module}.window", lambda grid: 2)
    grid, sizes = five(), []
    push = grid.push_messages

    def counted(messages: Any) -> Any:
        sizes.append(len(list(messages)))
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", counted)
    _, found = lead(grid, rounds=2, timeout=5.0)
    assert found == expected
    assert max(sizes) == 2
    assert sum(sizes) == 5 * 3
