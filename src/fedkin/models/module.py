"""Any `torch.nn.Module` as a model."""

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput, in_short, is_out_of_memory
from fedkin.models.base import seeded
from fedkin.models.losses import CROSS_ENTROPY, Loss

# Several clients are computed at once with `torch.func.vmap`, which saves calls but runs slower kernels: it pays for
# more than FEW_CLIENTS clients whose batches have at most SMALL_BATCH numbers in the largest layer.
FEW_CLIENTS, SMALL_BATCH = 3, 1 << 15


@dataclass(frozen=True)
class Module:
    """Any `torch.nn.Module` that maps samples to scores and whose buffers, if any, stay constant.

    make   builds the module; it is called under the seed, so its initial parameters are those of `start`
    shape  of one sample as the module expects it, without the batch axis
    dtype  of the samples as the module expects them: float32, or int64 for tokens, whose numbers are below 2²⁴ so
           that float32 holds them exactly

    Buffers (positional tables, masks) are not trained and keep the values that they have under seed 0. Tied parameters
    are trained as one.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    loss: Loss = CROSS_ENTROPY
    dtype: torch.dtype = torch.float32
    parallel: bool = field(init=False, repr=False, compare=False)
    activations: int = field(init=False, repr=False, compare=False)
    channels_last: bool = field(init=False, repr=False, compare=False)
    stackable: bool = field(init=False, repr=False, compare=False)
    _copies: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        net = self._built(0)
        if not any(True for _ in net.parameters()):
            raise BadInput("the module has no parameters: give one that can be trained")
        self._copies.net = net
        like = torch.zeros if self.dtype == torch.int64 else torch.ones
        try:
            with torch.no_grad(), seeded(0):
                with _largest_output(net) as largest:
                    out = net.eval()(torch.zeros(2, *self.shape, dtype=self.dtype))
                before = {name: buffer.clone() for name, buffer in net.named_buffers()}
                first, again = (net.train()(like(2, *self.shape, dtype=self.dtype)) for _ in range(2))
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            if is_out_of_memory(error):
                raise
            kind = "integers" if self.dtype == torch.int64 else "samples"
            raise BadInput(
                f"the module does not take {kind} of shape {self.shape} ({in_short(error)}): change its first layer, "
                "or give the shape it expects as model.shape"
            ) from error
        changed = [name for name, buffer in net.named_buffers() if not torch.equal(buffer, before[name])]
        if changed:
            raise BadInput(
                f"the module changes its buffer '{changed[0]}' in training, and running statistics are not parameters "
                "that can be averaged: use GroupNorm or LayerNorm instead of BatchNorm"
            )
        if tuple(out.shape) != (2, self.outputs) and not (self.outputs == 1 and tuple(out.shape) == (2,)):
            wanted = "a single output" if self.outputs == 1 else "one output per class"
            raise BadInput(
                f"the module gives {tuple(out.shape[1:])} scores per sample instead of ({self.outputs},): "
                f"its last layer must have {wanted}"
            )
        # With dropout, for example, threads would share one random number generator, in no fixed order.
        object.__setattr__(self, "parallel", torch.equal(first, again))
        object.__setattr__(self, "activations", max(largest[0] // 2, math.prod(self.shape)))
        object.__setattr__(self, "channels_last", self._can_have_channels_last())
        object.__setattr__(self, "stackable", self._can_be_stacked())

    def _built(self, seed: int) -> nn.Module:
        with seeded(seed):
            net = self.make()
        if not isinstance(net, nn.Module):
            raise BadInput(f"the model factory returned a {type(net).__name__}: return a torch.nn.Module")
        return net.float()

    def _can_have_channels_last(self) -> bool:
        """Whether images can have the channels-last memory format, in which convolutions are up to twice as fast.

        A module that calls `view` on images may rely on the usual format.
        """
        if len(self.shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in self.net.modules()):
            return False
        w, x, y = self.start(0), torch.ones(2, math.prod(self.shape)), torch.zeros(2, dtype=torch.int64)
        try:
            with seeded(0):
                usual, other = (self._gradient_of_one(w, x, y, torch.ones(2), last) for last in (False, True))
        except Exception as error:  # whatever the module raises
            if is_out_of_memory(error):
                raise
            return False
        return not self.parallel or torch.allclose(usual, other, rtol=1e-3, atol=1e-5)

    def _can_be_stacked(self) -> bool:
        """Whether `torch.func.vmap` supports what the module does, tried with two clients."""
        w = torch.zeros(2, self.size)
        x, y, weight = torch.zeros(2, 2, math.prod(self.shape)), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)
        try:
            with seeded(0):
                self._at_once(self._derivative(), w, x, y, weight)
        except Exception as error:  # whatever the module or vmap raises
            if is_out_of_memory(error):
                raise
            warnings.warn(
                f"the module cannot be computed for several clients at once ({in_short(error)[:120]}), so small "
                "clients take longer: nothing has to be changed",
                stacklevel=2,
            )
            return False
        return True

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
        """The flat vector (P,) as the module's named parameters; of tied ones, the first name."""
        shapes = {name: p.shape for name, p in self.net.named_parameters()}
        pieces = torch.split(w, [math.prod(s) for s in shapes.values()])
        return {name: piece.view(s) for (name, s), piece in zip(shapes.items(), pieces, strict=True)}

    def _apply(self, named: dict[str, Tensor], x: Tensor, in_last: bool = False) -> Tensor:
        samples = x.reshape(*x.shape[:-1], *self.shape).to(self.dtype)
        if in_last:
            samples = channels_last(samples)
            named = {name: channels_last(piece) if piece.dim() == 4 else piece for name, piece in named.items()}
        constants = {name: buffer.to(x.device) for name, buffer in self.net.named_buffers()}
        out: Tensor = torch.func.functional_call(self.net, {**constants, **named}, (samples,))
        return out.reshape(-1, 1) if self.outputs == 1 else out

    def _mode(self, training: bool) -> None:
        if self.net.training != training:
            self.net.train(training)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """The module's output, in evaluation mode."""
        self._mode(training=False)
        if self._is_small(w, x):
            return self._at_once(lambda w, x: self._apply(self.named(w), x).mT, w, x)
        return self._one_by_one(lambda w, x: self._apply(self.named(w), x, self.channels_last).mT, w, x)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """By reverse-mode differentiation, with the module in training mode."""
        self._mode(training=True)
        if self._is_small(w, x):
            return self._at_once(self._derivative(), w, x, y, weight)
        return self._one_by_one(partial(self._gradient_of_one, in_last=self.channels_last), w, x, y, weight)

    def _loss_of(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (self.loss.each(out.mT, y) * weight).sum()

    def _derivative(self) -> Callable[..., Tensor]:
        """The gradient at one client, as a function that can be mapped over clients."""

        def loss(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return self._loss_of(self._apply(self.named(w), x), y, weight)

        return torch.func.grad(loss)

    def _gradient_of_one(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, in_last: bool) -> Tensor:
        """The gradient at one client by PyTorch's own differentiation.

        `torch.func.grad` would take formulas that can be differentiated again: for GroupNorm, twice the time.
        """
        with torch.enable_grad():
            leaves = {name: piece.detach().requires_grad_() for name, piece in self.named(w.detach()).items()}
            loss = self._loss_of(self._apply(leaves, x, in_last), y, weight)
            parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    def _is_small(self, w: Tensor, x: Tensor) -> bool:
        """Whether clients are computed at once; not if they are few, or large, or if the module does not support it."""
        clients = math.prod(w.shape[:-1])
        return self.stackable and clients > FEW_CLIENTS and x.shape[-2] * self.activations <= SMALL_BATCH

    def _one_by_one(self, function: Callable[..., Tensor], w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
        """A function of one client's (P,), (B, D), (B,)… for all clients; x and the rest may be shared by clients."""
        lead = w.shape[:-1]
        flat = w.reshape(-1, w.shape[-1])
        others = [t.expand(*lead, *t.shape[t.dim() - own :]) for t, own in _with_trailing(x, rest)]
        samples = [t.reshape(len(flat), *t.shape[len(lead) :]) for t in others]
        each = [function(flat[i], *(t[i] for t in samples)) for i in range(len(flat))]
        return torch.stack(each).view(*lead, *each[0].shape) if len(each) > 1 else each[0].view(*lead, *each[0].shape)

    def _at_once(self, function: Callable[..., Tensor], w: Tensor, x: Tensor, *rest: Tensor) -> Tensor:
        """The same, for all clients in one call of `torch.func.vmap` for every leading axis of w."""
        lead = w.shape[:-1]
        for axis in reversed(range(len(lead))):
            # x and the rest may lack leading axes, or have length 1 there: then all clients share them.
            dims = [_mapped(t, axis, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
            function = torch.func.vmap(function, in_dims=(0, *dims), randomness="different")
        squeezed = [_squeezed(t, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
        return function(w, *squeezed)


@contextmanager
def _largest_output(net: nn.Module) -> Iterator[list[int]]:
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
