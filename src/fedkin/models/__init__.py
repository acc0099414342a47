"""Models: functions of one flat parameter vector.

A model has a number of parameters and initial values, and computes class scores and gradients for stacks of clients:
parameters (…, P) with samples (…, B, D).

base.py     the interface that the engine uses
layered.py  softmax regression and a network with one hidden layer, with gradients derived by hand
module.py   any `torch.nn.Module`, through `torch.func`
build.py    the model of a federation by name, import path or object
"""

from fedkin.models.base import Model, seeded
from fedkin.models.build import build_model
from fedkin.models.layered import MLP, Layer, Layered, Softmax, residual
from fedkin.models.module import Module

__all__ = ["MLP", "Layer", "Layered", "Model", "Module", "Softmax", "build_model", "residual", "seeded"]
