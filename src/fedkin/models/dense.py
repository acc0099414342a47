"""Modules that are a linear model or a network with one hidden layer, whatever their code looks like.

For these the engine has gradients derived by hand and compiled rounds, several times as fast as a module.
"""

from typing import Protocol

import torch
from torch import Tensor

from fedkin.models.layered import MLP, Linear
from fedkin.models.losses import Loss, Squared

SAMPLES = 16
SCALES = (0.01, 1.0, 30.0)  # of the inputs that are tried: units that saturate or are clipped do so at one of these
AGREEMENT = 1e-4


class Function(Protocol):
    """What is compared: the scores and gradients of a module."""

    @property
    def outputs(self) -> int:
        """K."""

    @property
    def loss(self) -> Loss:
        """The loss of a sample."""

    def scores(self, w: Tensor, x: Tensor) -> Tensor:
        """Scores (K, B)."""

    def gradient(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The gradient (P,)."""


def dense_form(module: Function, features: int, shapes: list[tuple[int, ...]]) -> Linear | MLP | None:
    """The model with hand-made gradients that is the same function of the flat parameters; None if there is none.

    module    in whose training mode nothing is random
    features  D, of a sample
    shapes    of the trained parameters in their order

    The shapes say which model it can be. Then scores and gradients are compared at random parameters and samples:
    both functions are linear in pieces, so that another activation differs at most points.
    """
    form = _fitting(features, module.outputs, shapes, module.loss)
    return form if form is not None and all(_agree(module, form, scale) for scale in SCALES) else None


def _fitting(features: int, outputs: int, shapes: list[tuple[int, ...]], loss: Loss) -> Linear | MLP | None:
    match shapes:
        case [(rows, columns), (bias,)] if (rows, columns, bias) == (outputs, features, outputs):
            return Linear(features, outputs, loss=loss)
        case [(hidden, columns), (bias,), (rows, inner), (last,)] if (columns, bias, rows, inner, last) == (
            features,
            hidden,
            outputs,
            hidden,
            outputs,
        ):
            return MLP(features, outputs, hidden, loss=loss)
    return None


def _agree(module: Function, form: Linear | MLP, scale: float) -> bool:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(form.size, generator=generator) / form.features**0.5
    x = scale * torch.randn(SAMPLES, form.features, generator=generator)
    classes = torch.arange(SAMPLES) % max(2, form.outputs)
    y = classes.float() if isinstance(form.loss, Squared) else classes
    weight = torch.full((SAMPLES,), 1 / SAMPLES)
    pairs = (
        (module.scores(w, x), form.scores(w, x)),
        (module.gradient(w, x, y, weight), form.gradient(w, x, y, weight)),
    )
    return all(bool((a - b).abs().max() <= AGREEMENT * b.abs().max()) for a, b in pairs)
