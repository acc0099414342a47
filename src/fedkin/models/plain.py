"""A trained model as an `nn.Module` of plain PyTorch, with named parameters."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedkin.errors import BadInput
from fedkin.models.base import Model
from fedkin.models.layered import MLP, Layer, Linear
from fedkin.models.losses import Loss
from fedkin.models.mixture import Mixture
from fedkin.models.module import Module


class MixtureModule(nn.ModuleList):
    """Several modules of one form, whose predictions are mixed by their `shares`."""

    def __init__(self, nets: Sequence[nn.Module], shares: Tensor, loss: Loss) -> None:
        super().__init__(nets)
        self.register_buffer("shares", shares)
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B, K)."""
        each = [net(x) for net in self]
        z = torch.stack([out.mT if out.dim() == 2 else out.unsqueeze(0) for out in each])  # a number may have no axis
        return self.loss.mixed(z, self.shares).mT  # type: ignore[arg-type]


def plain_module(model: Model, w: Tensor) -> nn.Module:
    """The module that computes a model's scores (B, K) of preprocessed samples with parameters w (P,).

    Softmax regression is an `nn.Linear`, the network an `nn.Sequential`; both take flat samples (B, D). A module of the
    user's own is a copy of it, and takes samples in its own shape. A mixture is a list of such modules with `shares`.
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
            case Mixture():
                parts, shares = model.parts(w)
                return MixtureModule([plain_module(model.model, part) for part in parts], shares, model.loss)
    raise BadInput(f"{type(model).__name__} is no module of PyTorch: use its parameters, run.model, as they are")


def _linear(layer: Layer, w: Tensor) -> nn.Linear:
    made = nn.Linear(layer.inputs, layer.outputs)
    made.weight.copy_(layer.weight(w))
    made.bias.copy_(layer.bias(w)[..., 0])
    return made


def module_code(model: Model, otherwise: str = "MyNet()") -> str:
    """A line of Python that builds the module of `plain_module`, without its parameters; of a mixture its modules."""
    match model:
        case Linear():
            return f"torch.nn.Linear({model.features}, {model.outputs})"
        case MLP():
            hidden = f"torch.nn.Linear({model.features}, {model.hidden})"
            return f"torch.nn.Sequential({hidden}, torch.nn.ReLU(), torch.nn.Linear({model.hidden}, {model.outputs}))"
        case Mixture():
            return f"torch.nn.ModuleList([{module_code(model.model, otherwise)} for _ in range({model.count})])"
    return otherwise


def input_shape(model: Model, features: int) -> tuple[int, ...]:
    """The shape of a sample as the module of `plain_module` takes it."""
    return model.shape if isinstance(model, Module) else (features,)
