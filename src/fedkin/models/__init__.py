"""Models: functions of one flat parameter vector.

A model says how many parameters it has, where they start, and gives class scores and gradients for stacks of
clients: parameters (…, P) against samples (…, B, D). Softmax regression and the network with one hidden layer have
gradients derived by hand; any `torch.nn.Module` goes through `torch.func`.
"""

from fedkin.models.base import Model, seeded
from fedkin.models.build import build_model
from fedkin.models.layered import MLP, Layer, Layered, Softmax, residual
from fedkin.models.module import Module

__all__ = ["MLP", "Layer", "Layered", "Model", "Module", "Softmax", "build_model", "residual", "seeded"]
