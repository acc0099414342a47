"""Graphs of modules: found without changing anything that another thread may be using."""

from threading import Thread

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkin.models.tracing import NoGraphError, traced


class Net(nn.Module):
    """Layers in a container, one of them used twice, a weight that is used directly, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.twice = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(2, 4))
        self.shift = nn.Buffer(torch.ones(2))

    def forward(self, x: Tensor, factor: float = 2.0) -> Tensor:
        return functional.linear(self.twice(self.twice.forward(self.body(x))), self.weight) * factor + self.shift


def test_layers_parameters_and_buffers_are_nodes() -> None:
    nodes = [(node.op, str(node.target)) for node in traced(Net()).nodes]
    assert [node for node in nodes if node[0] in ("call_module", "get_attr")] == [
        ("call_module", "body.0"),
        ("call_module", "body.1"),
        ("call_module", "twice"),
        ("call_module", "twice"),
        ("get_attr", "weight"),
        ("get_attr", "shift"),
    ]
    assert (nodes[0], nodes[-1]) == (("placeholder", "x"), ("output", "output"))


def test_the_graph_computes_what_the_module_does() -> None:
    net, x = Net(), torch.randn(3, 4)
    assert torch.equal(torch.fx.GraphModule(net, traced(net))(x), net(x))


def test_other_threads_may_use_their_modules_meanwhile() -> None:
    other, seen = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), list[Tensor]()

    class Beside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = Thread(target=lambda: seen.append(other(torch.ones(1, 4))))
            thread.start()
            thread.join()
            return torch.relu(x)

    assert [node.op for node in traced(Beside()).nodes] == ["placeholder", "call_function", "output"]
    assert torch.equal(seen[0], other(torch.ones(1, 4)))


class Computes(nn.Module):
    """What it computes from a parameter would be a constant in the graph, without a derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x) * self.weight.abs())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x) if x.sum() > 0 else x)


@pytest.mark.parametrize("net", [Computes(), Branches()])
def test_what_is_no_graph_is_refused_and_the_module_stays_as_it_was(net: nn.Module) -> None:
    before = [dict(one.__dict__) for one in net.modules()]
    with pytest.raises(Exception, match=r"computes from its parameters|control flow"):
        traced(net)
    assert [one.__dict__.keys() for one in net.modules()] == [one.keys() for one in before]
    assert net(torch.ones(1, 4)).shape == (1, 4)


def test_a_layer_with_a_forward_of_its_own_is_left_alone() -> None:
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].forward = torch.neg
    with pytest.raises(NoGraphError, match="of its own"):
        traced(net)
    assert torch.equal(net(torch.ones(1, 4)), -torch.ones(1, 4))
