"""Copies of a module: each thread computes with one of its own, whose parameters are views of a flat vector."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from fedkin.compiler.loading import if_compiled


class Copy:
    """A copy of a module for one thread. While it computes, its parameters are views of a flat vector.

    net      the module
    blocks   the same in blocks, with the same parameters (None: it has none)
    trained  its parameters that are not frozen
    """

    def __init__(self, net: nn.Module) -> None:
        self.net, self.device = net, torch.device("cpu")
        self.trained = list(trained_parameters(net).values())
        self._shapes = [p.shape for p in self.trained]
        self._sizes = [p.numel() for p in self.trained]

    @cached_property
    def blocks(self) -> nn.Module | None:
        make = block_maker()
        return None if make is None else make(self.net)

    def prepare(self, device: torch.device, training: bool) -> None:
        """Set the mode and move the constants to a device."""
        if self.device != device:
            self.net.to(device)
            self.device = device
        if self.net.training != training:
            self.net.train(training)

    @contextmanager
    def holding(self, w: Tensor) -> Iterator[None]:
        """With parameters w (P,). Afterwards the copy holds none: the memory of w may be used for something else."""
        for p, shape, piece in zip(self.trained, self._shapes, torch.split(w, self._sizes), strict=True):
            p.data = piece.view(shape)
        try:
            yield
        finally:
            for p in self.trained:
                p.data = w.new_empty(0)

    def function(self, named: dict[str, Tensor], samples: Tensor) -> Tensor:
        """The output as a function of the parameters, for `torch.func`."""
        out: Tensor = torch.func.functional_call(self.net, named, (samples,))
        return out


@cache
def block_maker() -> Callable[[nn.Module], nn.Module | None] | None:
    """`in_blocks`; None if Numba is not installed or does not work."""

    def load() -> Callable[[nn.Module], nn.Module | None]:
        from fedkin.models.blocks import in_blocks

        return in_blocks

    return if_compiled(load)


def trained_parameters(net: nn.Module) -> dict[str, Tensor]:
    """The parameters that are not frozen, by name; of tied ones, the first name."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


@contextmanager
def largest_output(net: nn.Module) -> Iterator[list[int]]:
    """The size of the largest output of a layer inside the block, as the only entry of a list."""
    largest = [0]

    def count(layer: nn.Module, given: object, out: object) -> None:
        if isinstance(out, Tensor):
            largest[0] = max(largest[0], out.numel())

    hooks = [layer.register_forward_hook(count) for layer in net.modules()]
    try:
        yield largest
    finally:
        for hook in hooks:
            hook.remove()
