"""Algorithms: what clients and server compute in a round, as small pure hooks over stacked tensors."""

from fedkin.algorithms.base import Algorithm, Hyper, Vector, average, check_range
from fedkin.algorithms.family import FedAvg, FedKin, FedProx, FedSGD
from fedkin.algorithms.local import Local
from fedkin.algorithms.registry import ALGORITHMS, algorithm_named, label_of, name_of
from fedkin.algorithms.schedules import Schedule

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "FedAvg",
    "FedKin",
    "FedProx",
    "FedSGD",
    "Hyper",
    "Local",
    "Schedule",
    "Vector",
    "algorithm_named",
    "average",
    "check_range",
    "label_of",
    "name_of",
]
