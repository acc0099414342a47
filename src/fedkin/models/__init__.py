"""Models: functions of one flat parameter vector.

A model has a number of parameters and initial values, and computes scores and gradients for stacks of clients:
parameters (…, P) with samples (…, B, D).

base.py     the interface that the engine uses
losses.py   the loss of a target: classes, one of two classes, or a number
layered.py  softmax, logistic or linear regression and a network with one hidden layer, with gradients derived by hand
mixture.py  a mixture of models
module.py   any `torch.nn.Module`
copies.py   its copies, one for each thread
blocks.py   layers of a module that are computed in one pass; needs Numba and is imported on demand
layer_kernels.py  the same compiled
tracing.py  the graph of what a module does
dense.py    modules that are one of those two, whatever their code looks like
stacks.py   a function of one client, computed for a stack of clients
build.py    the model of a federation by name, import path or object
plain.py    a trained model as an `nn.Module` of plain PyTorch
"""

from fedkin.models.base import Model, seeded
from fedkin.models.build import Data, build_model
from fedkin.models.layered import MLP, Layer, Layered, Linear, Softmax
from fedkin.models.losses import CROSS_ENTROPY, CrossEntropy, Logistic, Loss, Squared, loss_for, loss_of
from fedkin.models.mixture import Mixture
from fedkin.models.module import Module
from fedkin.models.plain import plain_module

__all__ = [
    "CROSS_ENTROPY",
    "MLP",
    "CrossEntropy",
    "Data",
    "Layer",
    "Layered",
    "Linear",
    "Logistic",
    "Loss",
    "Mixture",
    "Model",
    "Module",
    "Softmax",
    "Squared",
    "build_model",
    "loss_for",
    "loss_of",
    "plain_module",
    "seeded",
]
