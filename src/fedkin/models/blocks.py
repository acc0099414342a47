"""Modules whose normalisation, rectified units and pooling are computed in one pass; needs Numba (`fedkin[fast]`).

Between two convolutions these layers read and write all images several times, which takes as long as the convolutions
themselves. In the graph of what a module does, runs of them are replaced by a `LayerBlock`. `view` becomes `reshape`,
so that images can have the channels-last format.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional

from fedkin.models.layer_kernels import FEWEST_CHANNELS, WINDOWS, block_derivatives, block_values
from fedkin.models.tracing import traced

NO_IMAGES = np.empty((0, 0, 0, 0), dtype=np.float32)
Arguments = tuple[int, Tensor | None, Tensor | None, int, float, float]


class _Compiled(torch.autograd.Function):
    """y = max(floor, max over windows of a·x + b) of images in the channels-last format."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        size, gain, bias, groups, eps, floor = given
        x = x.contiguous(memory_format=torch.channels_last)
        n, channels, height, width = x.shape
        shape = (n, channels, height // size, width // size)
        y = torch.empty(shape, memory_format=torch.channels_last)
        ctx.which = np.empty((n, *shape[2:], channels), dtype=np.uint8)
        ctx.moments, ctx.given, ctx.shape = np.empty((n, groups, 2)), (size, groups), x.shape
        # Copies: the memory of the parameters may be used for something else before the way back.
        by, to = (
            np.full(channels, one, np.float32) if of is None else of.detach().numpy().copy()
            for of, one in ((gain, 1.0), (bias, 0.0))
        )
        block_values(images(x), size, by, to, groups, eps, floor, images(y), ctx.which, ctx.moments)
        ctx.gain = by
        if groups:
            ctx.save_for_backward(x)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *by_y: Tensor) -> tuple[Tensor | None, ...]:
        size, groups = ctx.given
        x = images(ctx.saved_tensors[0]) if groups else NO_IMAGES
        by_x = torch.empty(ctx.shape, memory_format=torch.channels_last)
        by_parameters = np.zeros((2, ctx.shape[1]))
        given = images(by_y[0].contiguous(memory_format=torch.channels_last))
        block_derivatives(x, size, ctx.gain, groups, given, ctx.which, ctx.moments, images(by_x), by_parameters)
        by_gain, by_bias = (
            torch.from_numpy(found) if needed else None
            for found, needed in zip(by_parameters.astype(np.float32), ctx.needs_input_grad[2:4], strict=True)
        )
        return by_x, None, by_gain, by_bias, None, None, None


def images(x: Tensor) -> NDArray[np.float32]:
    """Images (n, C, H, W) in the channels-last format as an array (n, H, W, C)."""
    n, channels, height, width = x.shape
    # Strides of an axis of length 1 may be any number.
    return x.detach().permute(0, 2, 3, 1).as_strided(
        (n, height, width, channels), (height * width * channels, width * channels, channels, 1)
    ).numpy()  # fmt: skip


class LayerBlock(nn.Module):
    """Layers that follow each other: [GroupNorm] [ReLU] [MaxPool2d], the last two in any order.

    layers  the same by PyTorch, for images that are not supported
    norm    the normalisation, which holds the parameters (None: none)
    relu    whether units are rectified
    size    k, of k × k windows (1: no pooling)
    """

    def __init__(self, layers: list[nn.Module], norm: nn.GroupNorm | None, relu: bool, size: int) -> None:
        super().__init__()
        self.layers, self.norm, self.relu, self.size = nn.Sequential(*layers), norm, relu, size

    def forward(self, x: Tensor) -> Tensor:
        if not self.supports(x):
            return torch.as_tensor(self.layers(x))
        floor = 0.0 if self.relu else -math.inf
        norm = self.norm
        given: Arguments = (self.size, None, None, 0, 0.0, floor)
        if norm is not None:
            given = (self.size, norm.weight, norm.bias, norm.num_groups, norm.eps, floor)
        y: Tensor = _Compiled.apply(x, *given)  # type: ignore[no-untyped-call]
        return y

    def supports(self, x: Tensor) -> bool:
        """Whether these images can be computed in one pass."""
        if x.dim() != 4 or x.dtype != torch.float32 or x.device.type != "cpu" or not x.numel():
            return False
        fits = self.norm is None or x.shape[1] == self.norm.num_channels
        return fits and x.shape[1] >= FEWEST_CHANNELS and min(x.shape[2:]) >= self.size


def in_blocks(net: nn.Module) -> nn.Module | None:
    """A module that does the same with the same parameters, in blocks; None if its code cannot be traced or has none.

    The result is to be compared: what a module does besides its graph is lost. Hooks would be, too.
    """
    if any(one._forward_hooks or one._forward_pre_hooks or one._backward_hooks for one in net.modules()):
        return None
    try:
        graph = traced(net)
    except Exception:  # whatever the module raises at what is no tensor
        return None
    named = dict(net.named_modules())
    found: dict[str, nn.Module] = {}
    for run in list(_runs(graph, named)):
        name = f"block_{len(found)}"
        found[name] = _block([step for _, step in run])
        first, last = run[0][0], run[-1][0]
        with graph.inserting_after(last):
            block = graph.call_module(name, (first.args[0],))
        last.replace_all_uses_with(block)
        for node, _ in reversed(run):
            graph.erase_node(node)
    if not found:
        return None
    for node in graph.nodes:
        if node.op == "call_method" and node.target == "view" and not any(map(_is_dtype, node.args)):
            node.target = "reshape"
    # The layers of blocks are in a module of their own: a graph module takes what its graph calls from there.
    return fx.GraphModule({**_called(graph, named), **found}, graph)


PlainLayer = nn.GroupNorm | nn.ReLU | nn.MaxPool2d


def _called(graph: fx.Graph, named: dict[str, nn.Module]) -> dict[str, Any]:
    """The modules and tensors of the net that a graph uses."""
    used: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op == "call_module" and node.target in named:
            used[node.target] = named[node.target]
        elif node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            used[node.target] = getattr(named[owner], name)
    return used


def _runs(graph: fx.Graph, named: dict[str, nn.Module]) -> Iterator[list[tuple[fx.Node, PlainLayer]]]:
    """Runs of layers that a block can replace."""
    taken: set[fx.Node] = set()
    for node in graph.nodes:
        run: list[tuple[fx.Node, PlainLayer]] = []
        following: fx.Node | None = node
        while following is not None and following not in taken:
            step = _step(following, named)
            kinds = [type(one) for _, one in run]
            if step is None or type(step) in kinds or (isinstance(step, nn.GroupNorm) and kinds):
                break
            run.append((following, step))
            users = list(following.users)
            following = users[0] if len(users) == 1 and users[0].args[:1] == (following,) else None
        if any(not isinstance(step, nn.ReLU) for _, step in run):  # PyTorch's rectified units alone are as fast
            taken |= {node for node, _ in run}
            yield run


def _step(node: fx.Node, named: dict[str, nn.Module]) -> PlainLayer | None:
    """The layer that a node computes, if a block can compute it."""
    given = (node.args[1:], node.kwargs)
    if node.op == "call_module":
        layer = named[str(node.target)]
        fits = type(layer) in (nn.GroupNorm, nn.ReLU) or (type(layer) is nn.MaxPool2d and _tiles(layer))
        return layer if fits and not node.kwargs else None  # type: ignore[return-value]
    if node.op == "call_method" and node.target in ("relu", "relu_") and given == ((), {}):
        return nn.ReLU()
    if node.op == "call_function" and node.target in (torch.relu, functional.relu, functional.relu_, torch.relu_):
        return nn.ReLU()
    if node.op == "call_function" and node.target in (functional.max_pool2d, torch.max_pool2d):
        try:
            layer = nn.MaxPool2d(*node.args[1:], **node.kwargs)  # type: ignore[arg-type]
        except TypeError:
            return None
        return layer if _tiles(layer) else None
    return None


def _tiles(pool: nn.MaxPool2d) -> bool:
    """Whether windows are squares of a supported size that do not overlap."""
    size = _one(pool.kernel_size)
    usual = (_one(pool.padding), _one(pool.dilation), pool.return_indices, pool.ceil_mode) == (0, 1, False, False)
    return usual and size in WINDOWS and _one(pool.stride) == size


def _one(number: Any) -> int | None:
    """The number of both axes of an image, if it is one."""
    if isinstance(number, int):
        return number
    return number[0] if isinstance(number, tuple) and set(number) == {number[0]} else None


def _is_dtype(argument: Any) -> bool:
    return isinstance(argument, torch.dtype)


def _block(steps: list[PlainLayer]) -> LayerBlock:
    norm = next((step for step in steps if isinstance(step, nn.GroupNorm)), None)
    pool = next((step for step in steps if isinstance(step, nn.MaxPool2d)), None)
    size = 1 if pool is None else _one(pool.kernel_size)
    assert size is not None
    return LayerBlock([*steps], norm, any(isinstance(step, nn.ReLU) for step in steps), size)
