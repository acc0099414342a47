"""A trained model as an `nn.Module` of plain PyTorch, with named parameters."""

import copy

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput
from fedkin.models.base import Model
from fedkin.models.layered import MLP, Layer, Linear
from fedkin.models.module import Module


def plain_module(model: Model, w: Tensor) -> nn.Module:
    """The module that computes a model's scores (B, K) of preprocessed samples with parameters w (P,).

    Softmax regression is an `nn.Linear`, the network an `nn.Sequential`; both take flat samples (B, D). A module of the
    user's own is a copy of it, and takes samples in its own shape.
    """
    w = w.detach().cpu()
    with torch.no_grad():
        match model:
            case Linear():
                return _linear(model.first, w)
            case MLP():
                hidden, output = model.layers
                return nn.Sequential(_linear(hidden, w), nn.ReLU(), _linear(output, w))
            case Module():
                net = copy.deepcopy(model.net).cpu().eval()
                parameters = dict(net.named_parameters())  # frozen ones stay as they are
                for name, piece in model.named(w).items():
                    parameters[name].copy_(piece)
                return net
    raise BadInput(f"{type(model).__name__} is no module of PyTorch: use its parameters, run.model, as they are")


def _linear(layer: Layer, w: Tensor) -> nn.Linear:
    made = nn.Linear(layer.inputs, layer.outputs)
    made.weight.copy_(layer.weight(w))
    made.bias.copy_(layer.bias(w)[..., 0])
    return made


def module_code(model: Model, otherwise: str = "MyNet()") -> str:
    """A line of Python that builds the module of `plain_module`, without its parameters."""
    match model:
        case Linear():
            return f"torch.nn.Linear({model.features}, {model.outputs})"
        case MLP():
            hidden = f"torch.nn.Linear({model.features}, {model.hidden})"
            return f"torch.nn.Sequential({hidden}, torch.nn.ReLU(), torch.nn.Linear({model.hidden}, {model.outputs}))"
    return otherwise


def input_shape(model: Model, features: int) -> tuple[int, ...]:
    """The shape of a sample as the module of `plain_module` takes it."""
    return model.shape if isinstance(model, Module) else (features,)
