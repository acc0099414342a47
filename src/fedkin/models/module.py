"""Any `torch.nn.Module` as a model."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput, in_short, is_out_of_memory
from fedkin.models.base import seeded
from fedkin.models.copies import Copy, largest_output, trained_parameters
from fedkin.models.dense import dense_form
from fedkin.models.layered import MLP, Linear
from fedkin.models.losses import CROSS_ENTROPY, Loss
from fedkin.models.stacks import at_once, one_by_one

# Several clients are computed at once with `torch.func.vmap`, which saves calls but runs slower kernels: it pays for
# more than FEW_CLIENTS clients whose batches have at most SMALL_BATCH numbers in the largest layer.
FEW_CLIENTS, SMALL_BATCH = 3, 1 << 15

# What a module does in blocks is compared with what it does on so many samples.
TRIED, AGREEMENT = 3, 1e-3


@dataclass(frozen=True)
class Module:
    """Any `torch.nn.Module` that maps samples to scores and whose buffers, if any, stay constant.

    make   builds the module; it is called under the seed, so its initial parameters are those of `start`
    shape  of one sample as the module expects it, without the batch axis
    dtype  of the samples as the module expects them: float32, or int64 for tokens, whose numbers are below 2²⁴ so
           that float32 holds them exactly

    Buffers (positional tables, masks) and frozen parameters (`requires_grad = False`) are constants: they are not
    among the P parameters of the model and keep the values that they have under seed 0. Tied parameters are trained as
    one.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    loss: Loss = CROSS_ENTROPY
    dtype: torch.dtype = torch.float32
    net: nn.Module = field(init=False, repr=False, compare=False)
    parallel: bool = field(init=False, repr=False, compare=False)
    activations: int = field(init=False, repr=False, compare=False)
    channels_last: bool = field(init=False, repr=False, compare=False)
    _shapes: dict[str, torch.Size] = field(init=False, repr=False, compare=False)
    _idle: list[Copy] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        net = self._built(0)
        like = torch.zeros if self.dtype == torch.int64 else torch.ones
        try:
            with torch.no_grad(), seeded(0):
                with largest_output(net) as largest:
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
        object.__setattr__(self, "net", net)
        object.__setattr__(self, "_shapes", {name: p.shape for name, p in trained_parameters(net).items()})
        object.__setattr__(self, "channels_last", self._can_have_channels_last())

    def _built(self, seed: int) -> nn.Module:
        with seeded(seed):
            net = self.make()
        if not isinstance(net, nn.Module):
            raise BadInput(f"the model factory returned a {type(net).__name__}: return a torch.nn.Module")
        if not any(True for _ in net.parameters()):
            raise BadInput("the module has no parameters: give one that can be trained")
        if not trained_parameters(net):
            raise BadInput("all parameters of the module are frozen: set requires_grad = True for those to be trained")
        return net.float()

    def _can_have_channels_last(self) -> bool:
        """Whether images can have the channels-last memory format, in which convolutions are up to twice as fast.

        A module that calls `view` on images may rely on the usual format.
        """
        if len(self.shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in self.net.modules()):
            return False
        w, x, y = self.start(0), torch.ones(2, math.prod(self.shape)), torch.zeros(2, dtype=torch.int64)
        try:
            with seeded(0), self._borrowed(w.device, training=True) as own:
                usual, other = (
                    self._gradient_of_one(own, own.net, last, w, x, y, torch.ones(2)) for last in (False, True)
                )
        except Exception as error:  # whatever the module raises
            if is_out_of_memory(error):
                raise
            return False
        return not self.parallel or torch.allclose(usual, other, rtol=1e-3, atol=1e-5)

    @cached_property
    def fused(self) -> bool:
        """Whether the module does the same in blocks (`fedkin.models.blocks`), with images in the channels-last format.

        It is tried with a few random images when it is needed: loading compiled code takes a second.
        """
        if not self.parallel or len(self.shape) != 3 or self.dtype != torch.float32:
            return False
        generator = torch.Generator().manual_seed(0)
        x = torch.rand(TRIED, math.prod(self.shape), generator=generator)
        w, y = self.start(0), torch.arange(TRIED) % max(2, self.outputs)
        pairs = []
        try:
            with self._borrowed(w.device, training=True) as own:
                if own.blocks is None:
                    return False
                both = ((own.net, False), (own.blocks, True))
                given = (w, x, y, torch.full((TRIED,), 1 / TRIED))
                pairs.append([self._gradient_of_one(own, *way, *given) for way in both])
                for training in (True, False):
                    own.prepare(w.device, training)
                    for count in (TRIED, 1):  # the path through the code may depend on the number
                        with torch.no_grad(), own.holding(w):
                            pairs.append([net(self._samples(x[:count], in_last)) for net, in_last in both])
        except Exception as error:  # whatever the module raises
            if is_out_of_memory(error):
                raise
            return False
        return all(bool((a - b).norm() <= AGREEMENT * a.norm()) for a, b in pairs)

    def _is_sample_by_sample(self) -> bool:
        """Whether the scores of a sample do not depend on others, as with statistics of the batch.

        If they do, batches of different lengths cannot be padded.
        """
        x = torch.arange(3.0)[:, None].expand(3, math.prod(self.shape))
        if self.dtype == torch.int64:
            x = torch.zeros_like(x)  # the only token that every module takes
        w = self.start(0)
        return torch.allclose(self.scores(w, x)[..., :2], self.scores(w, x[:2]), rtol=1e-3, atol=1e-5)

    @cached_property
    def stackable(self) -> bool:
        """Whether clients can be computed together: `torch.func.vmap` supports what the module does.

        It is tried with two clients when it is needed: PyTorch takes a second or more to import it.
        """
        if not self._is_sample_by_sample():
            return False
        w = torch.zeros(2, self.size)
        x, y, weight = torch.zeros(2, 2, math.prod(self.shape)), torch.zeros(2, 2, dtype=torch.int64), torch.ones(2, 2)
        try:
            with seeded(0), self._borrowed(w.device, training=True) as own:
                at_once(self._derivative(own), w, x, y, weight)
        except Exception as error:  # whatever the module or vmap raises
            if is_out_of_memory(error):
                raise
            return False
        return True

    @cached_property
    def dense(self) -> Linear | MLP | None:
        """The same function of the parameters as a model with hand-made gradients, if the module is one."""
        if not self.parallel or self.dtype != torch.float32:
            return None
        try:
            return dense_form(self, math.prod(self.shape), [tuple(shape) for shape in self._shapes.values()])
        except Exception as error:  # whatever the module raises at such samples
            if is_out_of_memory(error):
                raise
            return None

    def stacks(self, batch: int) -> bool:
        """Whether clients with batches of this length are computed together; else each on its own."""
        return batch * self.activations <= SMALL_BATCH and self.stackable

    @property
    def size(self) -> int:
        """P, over all parameters of the module that are not frozen."""
        return sum(map(math.prod, self._shapes.values()))

    def start(self, seed: int) -> Tensor:
        """The parameters with which the module is built under the seed."""
        return torch.cat([p.detach().reshape(-1) for p in trained_parameters(self._built(seed)).values()])

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector (P,) as the module's named parameters; of tied ones, the first name."""
        pieces = torch.split(w, list(map(math.prod, self._shapes.values())))
        return {name: piece.view(s) for (name, s), piece in zip(self._shapes.items(), pieces, strict=True)}

    @contextmanager
    def _borrowed(self, device: torch.device, training: bool) -> Iterator[Copy]:
        """A copy of the module that no other thread uses."""
        try:
            own = self._idle.pop()
        except IndexError:
            own = Copy(copy.deepcopy(self.net))
        own.prepare(device, training)
        try:
            yield own
        finally:
            self._idle.append(own)

    def _samples(self, x: Tensor, in_last: bool = False) -> Tensor:
        """Samples (B, D) as the module takes them."""
        samples = x.reshape(*x.shape[:-1], *self.shape).to(self.dtype)
        # `contiguous` would not convert images with a single channel.
        return samples.clone(memory_format=torch.channels_last) if in_last else samples

    def _scores(self, out: Tensor) -> Tensor:
        return (out.reshape(-1, 1) if self.outputs == 1 else out).mT

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """The module's output, in evaluation mode."""
        with self._borrowed(w.device, training=False) as own:

            def together() -> Tensor:
                return at_once(lambda w, x: self._scores(own.function(self.named(w), self._samples(x))), w, x)

            def of_one(w: Tensor, x: Tensor) -> Tensor:
                def scores(net: nn.Module, in_last: bool) -> Tensor:
                    with torch.no_grad(), own.holding(w):
                        return self._scores(net(self._samples(x, in_last)))

                return self._fastest(own, x, scores)

            if w.requires_grad:
                return together()
            return self._first_that_works(
                "stackable", self._is_small(w, x), lambda fast: together() if fast else one_by_one(of_one, w, x)
            )

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """By reverse-mode differentiation, with the module in training mode."""
        w = w.detach()
        with self._borrowed(w.device, training=True) as own:

            def of_one(*given: Tensor) -> Tensor:
                return self._fastest(own, x, lambda net, in_last: self._gradient_of_one(own, net, in_last, *given))

            def all_of(fast: bool) -> Tensor:
                if fast:
                    return at_once(self._derivative(own), w, x, y, weight)
                return one_by_one(of_one, w, x, y, weight)

            return self._first_that_works("stackable", self._is_small(w, x), all_of)

    def _fastest(self, own: Copy, x: Tensor, way: Callable[[nn.Module, bool], Tensor]) -> Tensor:
        """What is computed for one client, from the module to use and whether images are in the channels-last format.

        Blocks pay for the same batches that are not computed together with others.
        """

        def usual(in_last: bool) -> Tensor:
            return way(own.net, in_last)

        def fused(fast: bool) -> Tensor:
            if fast and own.blocks is not None:
                return way(own.blocks, True)
            return self._first_that_works("channels_last", self.channels_last, usual)

        large = x.device.type == "cpu" and x.shape[-2] * self.activations > SMALL_BATCH
        return self._first_that_works("fused", large and self.fused, fused)

    def _first_that_works(self, trait: str, fast: bool, way: Callable[[bool], Tensor]) -> Tensor:
        """The result of the fast way; where the module fails in it, the plain way's, now and from now on.

        A trial before the training has shown that the fast way works, but with other numbers of samples.
        """
        if fast:
            try:
                return way(True)
            except Exception as error:  # whatever the module or vmap raises
                if is_out_of_memory(error):
                    raise
                self.__dict__[trait] = False
        return way(False)

    def _is_small(self, w: Tensor, x: Tensor) -> bool:
        return math.prod(w.shape[:-1]) > FEW_CLIENTS and self.stacks(x.shape[-2])

    def _derivative(self, own: Copy) -> Callable[..., Tensor]:
        """The gradient at one client, as a function that can be mapped over clients."""

        def loss(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            z = self._scores(own.function(self.named(w), self._samples(x)))
            return (self.loss.each(z, y) * weight).sum()

        return torch.func.grad(loss)

    def _gradient_of_one(
        self, own: Copy, net: nn.Module, in_last: bool, w: Tensor, x: Tensor, y: Tensor, weight: Tensor
    ) -> Tensor:
        """The gradient at one client: with r the derivative of the loss by the scores z, ∇_w Σ r z with r constant.

        `torch.func.grad` would take formulas that can be differentiated again: for GroupNorm, twice the time.
        """
        with torch.enable_grad(), own.holding(w):
            z = self._scores(net(self._samples(x, in_last)))
            r = self.loss.residual(z.detach(), y, weight)
            parts = torch.autograd.grad((z * r).sum(), own.trained, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])
