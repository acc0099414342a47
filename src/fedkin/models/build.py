"""The model of a federation by name, import path or object."""

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedkin.data.target import Target
from fedkin.errors import BadInput, in_short, is_out_of_memory, nearest
from fedkin.imports import imported_object
from fedkin.models.base import Model
from fedkin.models.layered import MLP, Linear
from fedkin.models.losses import loss_of
from fedkin.models.module import Module

MOST_EXACT = 1 << 24  # the largest number up to which float32 holds every integer


class Data(Protocol):
    """What a model must know of the data; a `Federation` has it."""

    @property
    def features(self) -> int:
        """D, the number of features of a sample."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""

    @property
    def outputs(self) -> int:
        """The number of outputs of a model."""

    @property
    def target(self) -> Target:
        """What is predicted."""

    @property
    def integers(self) -> Tensor | None:
        """The samples with the smallest and the largest number if all are unchanged integers, (2, D); else None."""


def build_model(
    data: Data,
    kind: str | nn.Module = "linear",
    *,
    sample_shape: Sequence[int] | None = None,
    beside: Path | None = None,
    **settings: Any,
) -> Model:
    """A model for a federation.

    kind          `linear` (also called `softmax`), which is softmax, logistic or linear regression, by the target
                  (settings: zero); `mlp` (settings: hidden, default 128); `package.module:name`, which is imported and
                  called with the settings; or a `torch.nn.Module` object
    sample_shape  of one sample as a module expects it (default: that of the data, (channels, height, width) for images)
    beside        a folder in which modules are looked for first

    A module gets samples as float32. If the data are integers that no preprocessing has changed (tokens) and the module
    takes int64, as one that begins with an embedding does, it gets int64.
    """
    if isinstance(kind, nn.Module):
        original = copy.deepcopy(kind)  # training starts from its present parameters and never changes the object
        return _module(lambda: copy.deepcopy(original), data, sample_shape)
    if kind in ("linear", "softmax", "mlp"):
        if sample_shape is not None:
            raise BadInput(f"the model '{kind}' takes flat samples of any shape: leave out model.shape")
        layered: type[Linear | MLP] = MLP if kind == "mlp" else Linear
        return layered(data.features, data.outputs, loss=loss_of(data.target), **settings)
    if ":" not in kind:
        names = nearest(kind, ["linear", "mlp"])
        raise BadInput(
            f"unknown model '{kind}'{names}: give one of these, or an import path such as mypackage.models:Net"
        )
    factory = imported_object(kind, "model", beside)

    def built() -> nn.Module:
        try:
            net: nn.Module = factory(**settings)
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            if is_out_of_memory(error):
                raise
            raise BadInput(
                f"the model '{kind}' cannot be built with {settings} ({in_short(error)}): change model.args"
            ) from error
        return net

    return _module(built, data, sample_shape)


def _module(make: Callable[[], nn.Module], data: Data, sample_shape: Sequence[int] | None) -> Module:
    loss = loss_of(data.target)
    shape = data.shape if sample_shape is None else tuple(sample_shape)
    if math.prod(shape) != data.features or min(shape, default=0) < 1:
        raise BadInput(
            f"model.shape = {shape} has {math.prod(shape)} numbers but a sample has {data.features}: "
            "give a shape with as many"
        )
    if data.integers is not None:
        try:
            tokens = Module(make, shape, data.outputs, loss, torch.int64)
        except BadInput:
            pass  # it takes float32, or says below why not
        else:
            _check_tokens(tokens, data.integers)
            return tokens
    try:
        return Module(make, shape, data.outputs, loss)
    except BadInput:
        if data.integers is None and _takes_integers(make, shape, data.outputs):
            raise BadInput(
                "the module takes integers and the features are not: store tokens as int32 or int64 and set "
                "data.preprocess = 'none'"
            ) from None
        raise


def _takes_integers(make: Callable[[], nn.Module], shape: tuple[int, ...], outputs: int) -> bool:
    try:
        Module(make, shape, outputs, dtype=torch.int64)
    except BadInput:
        return False
    return True


def _check_tokens(module: Module, extremes: Tensor) -> None:
    """Refuse tokens that the module or float32 cannot hold, before the training."""
    least, most = int(extremes.min()), int(extremes.max())
    if max(-least, most) >= MOST_EXACT:
        raise BadInput(f"the features hold the integer {most}, but tokens must be below 2²⁴: renumber them from 0")
    try:
        module.scores(module.start(0), extremes)
    except Exception as error:  # whatever the module raises
        if is_out_of_memory(error):
            raise
        raise BadInput(
            f"the module does not take integers from {least} to {most} ({in_short(error)}): "
            "give its embedding as many rows as there are tokens"
        ) from error
