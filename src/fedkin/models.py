"""Models: functions of one flat parameter vector.

A model says how many parameters it has, where they start, and gives class scores and gradients for stacks of
clients: parameters (…, P) against samples (…, B, D). Softmax regression and the one-hidden-layer network have
hand-derived gradients; any `torch.nn.Module` goes through `torch.func`.

Scores are (…, K, B), a row a class: products of few rows with many samples, W xᵀ and r x, are two to four times
faster than their transposes x Wᵀ and xᵀ r.
"""

import copy
import importlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput, nearest
from fedkin.federation import Federation

Scalar = Any  # a float, or a tensor that broadcasts


class Model(Protocol):
    """What the engine asks of a model."""

    @property
    def parallel(self) -> bool:
        """Whether several threads may use it at once."""

    @property
    def size(self) -> int:
        """P, the number of parameters."""

    def start(self, seed: int) -> Tensor:
        """Parameters to begin with, (P,), fixed by the seed."""

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Class scores z of samples x (…, B, D) under parameters w (…, P): (…, K, B)."""

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """∇_w Σ_b weight_b · ℓ(w; x_b, y_b) with ℓ the cross-entropy, (…, P).

        w (…, P), x (…, B, D), y and weight (…, B). The weights of a batch sum to 1.
        """


def residual(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """∂/∂z of the weighted cross-entropy: weight · (softmax(z) − onehot(y)), (…, K, B)."""
    r = torch.softmax(z, dim=-2)
    index = y.unsqueeze(-2).expand(*r.shape[:-2], 1, r.shape[-1])
    r.scatter_add_(-2, index, r.new_full((), -1.0).expand_as(index))
    return r.mul_(weight.unsqueeze(-2))


def linear_start(inputs: int, outputs: int) -> Tensor:
    """A layer's weights (outputs × inputs) and then its biases, flat, as `nn.Linear` begins: U(±1/√inputs)."""
    layer = nn.Linear(inputs, outputs, device="cpu")  # the same numbers whatever the device
    return torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])


@dataclass(frozen=True)
class Layer:
    """Where a linear layer z = W x + b lies in the flat vector: W (outputs, inputs) from `first` on, then b."""

    inputs: int
    outputs: int
    first: int = 0

    @property
    def end(self) -> int:
        """Where the next layer begins."""
        return self.first + (self.inputs + 1) * self.outputs

    def weight(self, w: Tensor) -> Tensor:
        """W, (…, outputs, inputs)."""
        cut = self.first + self.inputs * self.outputs
        return w[..., self.first : cut].view(*w.shape[:-1], self.outputs, self.inputs)

    def bias(self, w: Tensor) -> Tensor:
        """The column b, (…, outputs, 1)."""
        return w[..., self.end - self.outputs : self.end, None]

    def forward(self, w: Tensor, x: Tensor) -> Tensor:
        """W xᵀ + b of samples as rows x (…, B, inputs): (…, outputs, B)."""
        weight = self.weight(w)
        if x.dim() == 2 and weight.dim() > 2:
            # The same samples under several models, as those of lanes: one product with all their rows is faster.
            z = (weight.reshape(-1, self.inputs) @ x.mT).view(*weight.shape[:-1], len(x))
        else:
            z = weight @ x.mT
        return z.add_(self.bias(w))

    def backward(self, x: Tensor, r: Tensor, into: Tensor) -> None:
        """Write the gradient for r = ∂loss/∂z (…, outputs, B) into its place: ∂W = r x, ∂b = Σ r."""
        torch.matmul(r, x, out=self.weight(into))
        torch.sum(r, dim=-1, keepdim=True, out=self.bias(into))


class Layered:
    """A model that begins with a linear layer: the rest of it, `tail` (…, T), sees samples only through its scores."""

    first: Layer

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: Scalar) -> tuple[Tensor, Tensor]:
        """The gradients of the weighted cross-entropy with respect to z (…, outputs, B) and to the tail (…, T).

        z are the first layer's scores, onehot (…, K, B) the labels, and weight (…, 1, B) or a number.
        """
        raise TypeError(f"{type(self).__name__} has no first layer")


@dataclass(frozen=True)
class Softmax(Layered):
    """Softmax regression: z = W x + b. With an L2 penalty its loss is strongly convex."""

    features: int
    classes: int
    parallel: bool = field(default=True, init=False, repr=False)
    first: Layer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", Layer(self.features, self.classes))

    @property
    def size(self) -> int:
        """(D + 1)·K."""
        return self.first.end

    def start(self, seed: int) -> Tensor:
        """As `nn.Linear` begins."""
        with seeded(seed):
            return linear_start(self.features, self.classes)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """The layer's output."""
        return self.first.forward(w, x)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With r the residual: ∂W = r x, ∂b = Σ r."""
        g = torch.empty_like(w, memory_format=torch.contiguous_format)
        self.first.backward(x, residual(self.scores(w, x), y, weight), into=g)
        return g

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: Scalar) -> tuple[Tensor, Tensor]:
        """The residual; there is no tail, so its gradient is as empty."""
        return torch.softmax(z, dim=-2).sub_(onehot).mul_(weight), tail


@dataclass(frozen=True)
class MLP(Layered):
    """A network with one hidden layer of rectified linear units: z = W₂·max(0, W₁x + b₁) + b₂."""

    features: int
    classes: int
    hidden: int = 128
    parallel: bool = field(default=True, init=False, repr=False)
    first: Layer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadInput(f"hidden = {self.hidden} is out of range: it must be at least 1")
        object.__setattr__(self, "first", Layer(self.features, self.hidden))

    @property
    def layers(self) -> tuple[Layer, Layer]:
        """First the hidden layer, then the output."""
        return self.first, Layer(self.hidden, self.classes, self.first.end)

    @property
    def size(self) -> int:
        """(D + 1)·H + (H + 1)·K."""
        return self.layers[1].end

    def start(self, seed: int) -> Tensor:
        """Both layers as `nn.Linear` begins."""
        with seeded(seed):
            return torch.cat([linear_start(self.features, self.hidden), linear_start(self.hidden, self.classes)])

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Forward pass."""
        hidden, output = self.layers
        return output.forward(w, hidden.forward(w, x).relu_().mT)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With h the hidden units, r the residual and s = (W₂ᵀ r)·[h > 0]: ∂W₂ = r hᵀ, ∂W₁ = s x."""
        hidden, output = self.layers
        h = hidden.forward(w, x).relu_()
        r = residual(output.forward(w, h.mT), y, weight)
        s = (output.weight(w).mT @ r).mul_(h > 0)
        g = torch.empty_like(w, memory_format=torch.contiguous_format)
        output.backward(h.mT, r, into=g)
        hidden.backward(x, s, into=g)
        return g

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: Scalar) -> tuple[Tensor, Tensor]:
        """As `gradient`, from the hidden layer's scores on: s, and the output layer's gradient."""
        output = Layer(self.hidden, self.classes)
        h = z.relu()
        r = torch.softmax(output.forward(tail, h.mT), dim=-2).sub_(onehot).mul_(weight)
        g = torch.empty_like(tail)
        output.backward(h.mT, r, into=g)
        return (output.weight(tail).mT @ r).mul_(h > 0), g


@dataclass(frozen=True)
class Module:
    """Any `torch.nn.Module` without buffers (so without batch normalisation) that maps samples to class scores.

    make   builds the module; called once, with the seed in force, so its initial parameters are the start
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
                f"the module keeps running statistics ({stateful[0]}), which clients cannot average as parameters: "
                "use GroupNorm or LayerNorm instead of BatchNorm"
            )
        if not any(True for _ in net.parameters()):
            raise BadInput("the module has no parameters to train")
        self._copies.net = net
        try:
            out = net.eval()(torch.zeros(2, *self.shape))
            # With dropout and the like, threads would draw from one source of random numbers in any order.
            with torch.no_grad():
                first, again = (net.train()(torch.ones(2, *self.shape)) for _ in range(2))
            object.__setattr__(self, "parallel", torch.equal(first, again))
        except Exception as error:
            raise BadInput(f"the module does not take samples of shape {self.shape}: {error}") from error
        if tuple(out.shape) != (2, self.classes):
            raise BadInput(
                f"the module gives {tuple(out.shape[1:])} scores a sample instead of ({self.classes},): "
                "its last layer must have one output a class"
            )

    def _built(self, seed: int) -> nn.Module:
        with seeded(seed):
            net = self.make()
        if not isinstance(net, nn.Module):
            raise BadInput(f"the model factory returned a {type(net).__name__} instead of a torch.nn.Module")
        return net.float()

    @property
    def net(self) -> nn.Module:
        """The module; a copy of its own in every thread, for a call puts parameters into it for a moment."""
        if not hasattr(self._copies, "net"):
            self._copies.net = self._built(0)
        return self._copies.net  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """Over all parameters of the module."""
        return sum(p.numel() for p in self.net.parameters())

    def start(self, seed: int) -> Tensor:
        """As the module initialises itself under the seed."""
        return torch.cat([p.detach().reshape(-1) for p in self._built(seed).parameters()])

    def named(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector (P,) as the module's named parameters."""
        shapes = {name: p.shape for name, p in self.net.named_parameters()}
        pieces = torch.split(w, [math.prod(s) for s in shapes.values()])
        return {name: piece.view(s) for (name, s), piece in zip(shapes.items(), pieces, strict=True)}

    def _apply(self, w: Tensor, x: Tensor, alone: bool) -> Tensor:
        samples, named = x.reshape(*x.shape[:-1], *self.shape), self.named(w)
        if alone and len(self.shape) == 3:
            # Images of one client: convolutions and pooling are about twice as fast with the channels last in memory.
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
        """Map a function of one client's (P,), (B, D), (B,)… over the leading axes that w has, if it is not alone."""
        lead = w.shape[:-1]
        function = make(math.prod(lead) == 1)
        if math.prod(lead) == 1:
            one = function(w.reshape(-1), x.reshape(x.shape[-2:]), *(r.reshape(-1) for r in rest))
            return one.reshape(*lead, *one.shape)
        for axis in reversed(range(len(lead))):
            # x and the rest may lack leading axes, or have them with length 1: then all share them.
            dims = [_mapped(t, axis, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
            function = torch.func.vmap(function, in_dims=(0, *dims), randomness="different")
        squeezed = [_squeezed(t, len(lead), trailing) for t, trailing in _with_trailing(x, rest)]
        return function(w, *squeezed)


def channels_last(t: Tensor) -> Tensor:
    """The same tensor (…, channels, height, width) in another order in memory; `contiguous` spares single channels."""
    return t.clone(memory_format=torch.channels_last)


def _with_trailing(x: Tensor, rest: tuple[Tensor, ...]) -> list[tuple[Tensor, int]]:
    return [(x, 2), *((r, 1) for r in rest)]


def _mapped(t: Tensor, axis: int, leading: int, trailing: int) -> int | None:
    own = axis - (leading - (t.dim() - trailing))
    return 0 if own >= 0 and t.shape[own] > 1 else None


def _squeezed(t: Tensor, leading: int, trailing: int) -> Tensor:
    return t.reshape(*(n for n in t.shape[: t.dim() - trailing] if n > 1), *t.shape[t.dim() - trailing :])


class seeded:  # noqa: N801 - used as a context manager, like a function
    """Run PyTorch's random numbers from a seed inside the block, and leave them as they were outside."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> None:
        self.before = torch.random.get_rng_state()
        torch.manual_seed(self.seed)

    def __exit__(self, *_: object) -> None:
        torch.random.set_rng_state(self.before)


def build_model(federation: Federation, kind: str | nn.Module = "softmax", **settings: Any) -> Model:
    """A model for a federation.

    kind  `softmax`; `mlp` (settings: hidden, default 128); `package.module:name`, which is imported and called with
          the settings; or a `torch.nn.Module` object
    """
    features, classes = federation.features, federation.classes
    if isinstance(kind, nn.Module):
        begun = copy.deepcopy(kind)  # training starts from the parameters it has now, and never changes it
        return Module(lambda: copy.deepcopy(begun), federation.shape, classes)
    if kind == "softmax":
        return Softmax(features, classes, **settings)
    if kind == "mlp":
        return MLP(features, classes, **settings)
    if ":" not in kind:
        names = nearest(kind, ["softmax", "mlp"])
        raise BadInput(f"unknown model '{kind}'{names}: or give an import path such as mypackage.models:Net")
    where, name = kind.split(":", 1)
    try:
        factory = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise BadInput(f"the model '{kind}' cannot be imported ({error}): check the path and PYTHONPATH") from None
    try:
        return Module(lambda: factory(**settings), federation.shape, classes)
    except TypeError as error:
        raise BadInput(f"the model '{kind}' cannot be built with {settings}: {error}") from None
