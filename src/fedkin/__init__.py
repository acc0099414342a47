"""Federated learning for clients whose data differ: clients learn from their kin."""

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx, FedSGD, Kin
from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.data.federation import Clients, Federation
from fedkin.data.partition import federate, from_clients
from fedkin.data.sources import Dataset, from_arrays, load
from fedkin.errors import BadInput
from fedkin.experiments.results import Result
from fedkin.experiments.run import run, train
from fedkin.graph.similarity import SimilarityGraph, build_graph, message
from fedkin.models import MLP, Model, Module, Softmax, build_model
from fedkin.reports.plotting import plot

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Algorithm",
    "BadInput",
    "Clients",
    "Dataset",
    "FedAvg",
    "FedKin",
    "FedProx",
    "FedSGD",
    "Federation",
    "Kin",
    "Local",
    "Model",
    "Module",
    "Result",
    "Schedule",
    "SimilarityGraph",
    "Softmax",
    "build_graph",
    "build_model",
    "federate",
    "from_arrays",
    "from_clients",
    "load",
    "message",
    "plot",
    "run",
    "train",
]
