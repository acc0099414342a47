"""The model of a federation by name, import path or object."""

import copy
from typing import Any

from torch import nn

from fedkin.data.federation import Federation
from fedkin.errors import BadInput, in_short, is_out_of_memory, nearest
from fedkin.imports import imported_object
from fedkin.models.base import Model
from fedkin.models.layered import MLP, Softmax
from fedkin.models.module import Module


def build_model(federation: Federation, kind: str | nn.Module = "softmax", **settings: Any) -> Model:
    """A model for a federation.

    kind  `softmax`; `mlp` (settings: hidden, default 128); `package.module:name`, which is imported and called with
          the settings; or a `torch.nn.Module` object
    """
    features, classes = federation.features, federation.classes
    if isinstance(kind, nn.Module):
        original = copy.deepcopy(kind)  # training starts from its present parameters and never changes the object
        return Module(lambda: copy.deepcopy(original), federation.shape, classes)
    if kind == "softmax":
        return Softmax(features, classes, **settings)
    if kind == "mlp":
        return MLP(features, classes, **settings)
    if ":" not in kind:
        names = nearest(kind, ["softmax", "mlp"])
        raise BadInput(
            f"unknown model '{kind}'{names}: give one of these, or an import path such as mypackage.models:Net"
        )
    factory = imported_object(kind, "model")

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

    return Module(built, federation.shape, classes)
