"""Models that begin with a linear layer, with gradients derived by hand: softmax regression and one hidden layer.

Scores are (…, K, B), one row per class: products of few rows with many samples, W xᵀ and r x, are two to four times
faster than their transposes x Wᵀ and xᵀ r.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput
from fedkin.models.base import seeded


def residual(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """∂/∂z of the weighted cross-entropy: weight · (softmax(z) − onehot(y)), (…, K, B)."""
    r = torch.softmax(z, dim=-2)
    index = y.unsqueeze(-2).expand(*r.shape[:-2], 1, r.shape[-1])
    r.scatter_add_(-2, index, r.new_full((), -1.0).expand_as(index))
    return r.mul_(weight.unsqueeze(-2))


def linear_start(inputs: int, outputs: int) -> Tensor:
    """Initial weights (outputs × inputs) and biases of a layer, flat, as in `nn.Linear`: U(±1/√inputs)."""
    layer = nn.Linear(inputs, outputs, device="cpu")  # the same numbers whatever the device
    return torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])


@dataclass(frozen=True)
class Layer:
    """The place of a linear layer z = W x + b in the flat vector: W (outputs, inputs) from index `first` on, then b."""

    inputs: int
    outputs: int
    first: int = 0

    @property
    def end(self) -> int:
        """Index of the next layer."""
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
            # The same samples for several models, as in lanes: one product with the rows of all models is faster.
            z = (weight.reshape(-1, self.inputs) @ x.mT).view(*weight.shape[:-1], len(x))
        else:
            z = weight @ x.mT
        return z.add_(self.bias(w))

    def backward(self, x: Tensor, r: Tensor, into: Tensor) -> None:
        """Write the gradient for r = ∂loss/∂z (…, outputs, B) to the layer's place in `into`: ∂W = r x, ∂b = Σ r."""
        torch.matmul(r, x, out=self.weight(into))
        torch.sum(r, dim=-1, keepdim=True, out=self.bias(into))


class Layered:
    """A model that begins with a linear layer: the remaining parameters, `tail` (…, T), see samples only through it."""

    first: Layer

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the weighted cross-entropy with respect to z (…, outputs, B) and to the tail (…, T).

        z are the outputs of the first layer, onehot (…, K, B) the labels, and weight (…, 1, B) or a number.
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
        with seeded(seed):
            return linear_start(self.features, self.classes)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        return self.first.forward(w, x)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With r the residual: ∂W = r x, ∂b = Σ r."""
        g = torch.empty_like(w, memory_format=torch.contiguous_format)
        self.first.backward(x, residual(self.scores(w, x), y, weight), into=g)
        return g

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """The residual, and the empty tail as its own gradient."""
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
        """The hidden layer and the output layer."""
        return self.first, Layer(self.hidden, self.classes, self.first.end)

    @property
    def size(self) -> int:
        """(D + 1)·H + (H + 1)·K."""
        return self.layers[1].end

    def start(self, seed: int) -> Tensor:
        with seeded(seed):
            return torch.cat([linear_start(self.features, self.hidden), linear_start(self.hidden, self.classes)])

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
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

    def backward(self, z: Tensor, tail: Tensor, onehot: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """As in `gradient`, from the outputs of the hidden layer on: s, and the gradient of the output layer."""
        output = Layer(self.hidden, self.classes)
        h = z.relu()
        r = torch.softmax(output.forward(tail, h.mT), dim=-2).sub_(onehot).mul_(weight)
        g = torch.empty_like(tail)
        output.backward(h.mT, r, into=g)
        return (output.weight(tail).mT @ r).mul_(h > 0), g
