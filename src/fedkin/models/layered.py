"""Models that begin with a linear layer, with gradients derived by hand: a linear model and one hidden layer.

Scores are (…, K, B), one row per output: products of few rows with many samples, W xᵀ and r x, are two to four times
faster than their transposes x Wᵀ and xᵀ r.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput
from fedkin.models.base import seeded
from fedkin.models.losses import CROSS_ENTROPY, Loss


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
    outputs: int
    loss: Loss

    def backward(self, z: Tensor, tail: Tensor, coded: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the weighted loss with respect to z (…, outputs, B) and to the tail (…, T).

        z are the outputs of the first layer, coded (…, K, B) the targets in the form of scores (`Loss.coded`), and
        weight (…, 1, B) or a number.
        """
        raise TypeError(f"{type(self).__name__} has no first layer")


@dataclass(frozen=True)
class Linear(Layered):
    """Scores z = W x + b: softmax, logistic or linear regression, by the loss. With an L2 penalty strongly convex.

    zero  whether it starts at 0 instead of random parameters
    """

    features: int
    outputs: int
    loss: Loss = CROSS_ENTROPY
    zero: bool = False
    parallel: bool = field(default=True, init=False, repr=False)
    first: Layer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", Layer(self.features, self.outputs))

    @property
    def size(self) -> int:
        """(D + 1)·K."""
        return self.first.end

    def start(self, seed: int) -> Tensor:
        if self.zero:
            return torch.zeros(self.size, device="cpu")
        with seeded(seed):
            return linear_start(self.features, self.outputs)

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        return self.first.forward(w, x)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With r the derivative of the loss: ∂W = r x, ∂b = Σ r."""
        g = torch.empty_like(w, memory_format=torch.contiguous_format)
        self.first.backward(x, self.loss.residual(self.scores(w, x), y, weight), into=g)
        return g

    def backward(self, z: Tensor, tail: Tensor, coded: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """The derivative of the loss, and the empty tail as its own gradient."""
        return self.loss.derivative(z, coded, weight), tail


Softmax = Linear  # the name of the default: one score per class, cross-entropy


@dataclass(frozen=True)
class MLP(Layered):
    """A network with one hidden layer of rectified linear units: z = W₂·max(0, W₁x + b₁) + b₂."""

    features: int
    outputs: int
    hidden: int = 128
    loss: Loss = CROSS_ENTROPY
    parallel: bool = field(default=True, init=False, repr=False)
    first: Layer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadInput(f"hidden = {self.hidden} is out of range: it must be at least 1")
        object.__setattr__(self, "first", Layer(self.features, self.hidden))

    @property
    def layers(self) -> tuple[Layer, Layer]:
        """The hidden layer and the output layer."""
        return self.first, Layer(self.hidden, self.outputs, self.first.end)

    @property
    def size(self) -> int:
        """(D + 1)·H + (H + 1)·K."""
        return self.layers[1].end

    def start(self, seed: int) -> Tensor:
        with seeded(seed):
            return torch.cat([linear_start(self.features, self.hidden), linear_start(self.hidden, self.outputs)])

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        hidden, output = self.layers
        return output.forward(w, hidden.forward(w, x).relu_().mT)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With h the hidden units, r the derivative of the loss and s = (W₂ᵀ r)·[h > 0]: ∂W₂ = r hᵀ, ∂W₁ = s x."""
        hidden, output = self.layers
        h = hidden.forward(w, x).relu_()
        r = self.loss.residual(output.forward(w, h.mT), y, weight)
        s = (output.weight(w).mT @ r).mul_(h > 0)
        g = torch.empty_like(w, memory_format=torch.contiguous_format)
        output.backward(h.mT, r, into=g)
        hidden.backward(x, s, into=g)
        return g

    def backward(self, z: Tensor, tail: Tensor, coded: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
        """As in `gradient`, from the outputs of the hidden layer on: s, and the gradient of the output layer."""
        output = Layer(self.hidden, self.outputs)
        h = z.relu()
        r = self.loss.derivative(output.forward(tail, h.mT), coded, weight)
        g = torch.empty_like(tail)
        output.backward(h.mT, r, into=g)
        return (output.weight(tail).mT @ r).mul_(h > 0), g
