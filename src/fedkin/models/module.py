"""Any `torch.nn.Module` as a model, through `torch.func`."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput, in_short, is_out_of_memory
from fedkin.models.base import seeded


@dataclass(frozen=True)
class Module:
    """Any `torch.nn.Module` without buffers (so without batch normalisation) that maps samples to class scores.

    make   builds the module; it is called under the seed, so its initial parameters are those of `start`
    shape  of one sample as the module expects it, without the batch axis
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    parallel: bool = field(init=False, repr=False, compare=False)
    _copies: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        net = self._built(0)
        if stateful := [name for name, _ in net.named_buffers()]:
            raise BadInput(
                f"the module keeps running statistics ({stateful[0]}), which are not parameters that can be averaged: "
                "use GroupNorm or LayerNorm instead of BatchNorm"
            )
        if not any(True for _ in net.parameters()):
            raise BadInput("the module has no parameters: give one that can be trained")
        self._copies.net = net
        try:
            out = net.eval()(torch.zeros(2, *self.shape))
            # With dropout, for example, threads would share one random number generator, in no fixed order.
            with torch.no_grad():
                first, again = (net.train()(torch.ones(2, *self.shape)) for _ in range(2))
            object.__setattr__(self, "parallel", torch.equal(first, again))
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            if is_out_of_memory(error):
                raise
            raise BadInput(
                f"the module does not take samples of shape {self.shape} ({in_short(error)}): change its first layer"
            ) from error
        if tuple(out.shape) != (2, self.classes):
            raise BadInput(
                f"the module gives {tuple(out.shape[1:])} scores per sample instead of ({self.classes},): "
                "its last layer must have one output per class"
            )

    def _built(self, seed: int) -> nn.Module:
        with seeded(seed):
            net = self.make()
        if not isinstance(net, nn.Module):
            raise BadInput(f"the model factory returned a {type(net).__name__}: return a torch.nn.Module")
        return net.float()

    @property
    def net(self) -> nn.Module:
        """The module, with a copy per thread: a call replaces its parameters temporarily."""
        if not hasattr(self._copies, "net"):
            self._copies.net = self._built(0)
        return self._copies.net  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """P, over all parameters of the module."""
        return sum(p.numel() for p in self.net.parameters())

    def start(self, seed: int) -> Tensor:
        """The parameters with which the module is built under the seed."""
        return torch.cat([p.detach().reshape(-1) for p in self._built(seed).parameters()])

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector (P,) as the module's named parameters."""
        shapes = {name: p.shape for name, p in self.net.named_parameters()}
        pieces = torch.split(w, [math.prod(s) for s in shapes.values()])
        return {name: piece.view(s) for (name, s), piece in zip(shapes.items(), pieces, strict=True)}

    def _apply(self, w: Tensor, x: Tensor, alone: bool) -> Tensor:
        samples, named = x.reshape(*x.shape[:-1], *self.shape), self.named(w)
        if alone and len(self.shape) == 3:
            # Images of one client: convolutions and pooling are about twice as fast in the channels-last memory format.
            samples = channels_last(samples)
            named = {name: channels_last(piece) if piece.dim() == 4 else piece for name, piece in named.items()}
        return torch.func.functional_call(self.net, named, (samples,))  # type: ignore[no-any-return]

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """The module's output, in evaluation mode."""
        self.net.eval()
        return self._stacked(lambda alone: lambda w, x: self._apply(w, x, alone).mT, w, x)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """By reverse-mode differentiation, with the module in training mode."""
        self.net.train()

        def derivative(alone: bool) -> Callable[..., Tensor]:
            def loss(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
                each = nn.functional.cross_entropy(self._apply(w, x, alone), y, reduction="none")
                return (each * weight).sum()

            return torch.func.grad(loss)

        return self._stacked(derivative, w, x, y, weight)

    def _stacked(self, make: Callable[[bool], Callable[..., Tensor]], w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
        """Map a function of one client's (P,), (B, D), (B,)… over the leading axes of w, if it has several clients."""
        lead = w.shape[:-1]
        function = make(math.prod(lead) == 1)
        if math.prod(lead) == 1:
            one = function(w.reshape(-1), x.reshape(x.shape[-2:]), *(r.reshape(-1) for r in rest))
            return one.reshape(*lead, *one.shape)
        for axis in reversed(range(len(lead))):
            # x and the rest may lack leading axes, or have length 1 there: then all clients share them.
            dims = [_mapped(t, axis, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
            function = torch.func.vmap(function, in_dims=(0, *dims), randomness="different")
        squeezed = [_squeezed(t, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
        return function(w, *squeezed)


def channels_last(t: Tensor) -> Tensor:
    """The tensor in the channels-last memory format. `contiguous` would not convert tensors with a single channel."""
    return t.clone(memory_format=torch.channels_last)


def _with_trailing(x: Tensor, rest: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    return [(x, 2), *((r, 1) for r in rest)]


def _mapped(t: Tensor, axis: int, leading: int, trailing: int) -> int | None:
    own = axis - (leading - (t.dim() - trailing))
    return 0 if own >= 0 and t.shape[own] > 1 else None


def _squeezed(t: Tensor, leading: int, trailing: int) -> Tensor:
    return t.reshape(*(n for n in t.shape[: t.dim() - trailing] if n > 1), *t.shape[t.dim() - trailing :])
