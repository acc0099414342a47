"""The graph of what a module does, found while other threads use theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, fx, nn


class NoGraphError(Exception):
    """What a module does cannot be said as a graph of its layers."""


class _Tracer(fx.Tracer):
    """Parameters and buffers of a module are named in its graph; other tensors would be constants, and are refused."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.root, self.graph, self.tensor_attrs = net, fx.Graph(), {}
        self._own = {id(tensor) for tensor in [*net.parameters(), *net.buffers()]}

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and id(a) not in self._own:
            raise NoGraphError("a tensor that the module computes from its parameters, or keeps elsewhere")
        return super().create_arg(a)


def traced(net: nn.Module) -> fx.Graph:
    """The graph of a module of one argument. What the module's code raises at something that is no tensor is raised.

    `fx.Tracer.trace` would replace `nn.Module.__call__` of the whole process while it works: the modules of all other
    threads would become parts of the graph. Here nothing but the module itself is changed meanwhile.
    """
    tracer = _Tracer(net)
    x = tracer.create_proxy("placeholder", "x", (), {})
    with _recorded(tracer, net):
        y = net.forward(x)
    tracer.create_node("output", "output", (tracer.create_arg(y),), {})
    return tracer.graph


@contextmanager
def _recorded(tracer: fx.Tracer, net: nn.Module) -> Iterator[None]:
    """PyTorch's layers become nodes of the graph instead of being computed."""
    leaves = {name: layer for name, layer in net.named_modules() if name and tracer.is_leaf_module(layer, name)}
    if any("forward" in layer.__dict__ for layer in leaves.values()):
        raise NoGraphError("a layer with a `forward` of its own")
    try:
        for name, layer in leaves.items():
            layer.forward = partial(_node, tracer, name)
        yield
    finally:
        for layer in leaves.values():
            layer.__dict__.pop("forward", None)


def _node(tracer: fx.Tracer, name: str, *args: Any, **kwargs: Any) -> Any:
    return tracer.create_proxy("call_module", name, args, kwargs)
