"""Algorithms: what clients and server compute in a round, as small pure hooks over stacked tensors.

base.py       the hooks, with FedAvg's behaviour in each
family.py     FedAvg, FedProx, FedKin: one local rule with three knobs
rounds.py     a round: its number, its clients, their weights, the graph, random numbers
rows.py       rows kept for clients, at the server or by themselves
local.py      the local work: epochs, batches, penalty, clipping
schedules.py  hyper-parameters that change over the rounds
lanes.py      algorithms that differ in hyper-parameters as one
registry.py   algorithms by name or import path
"""

from fedkin.algorithms.base import (
    Algorithm,
    Gradient,
    Hyper,
    Losses,
    ServerState,
    Vector,
    Vectors,
    check_range,
    trial,
)
from fedkin.algorithms.family import FedAvg, FedKin, FedProx, FedSGD
from fedkin.algorithms.lanes import Lanes
from fedkin.algorithms.local import Local
from fedkin.algorithms.registry import ALGORITHMS, algorithm_named, label_of, name_of
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.algorithms.schedules import Schedule

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientRows",
    "FedAvg",
    "FedKin",
    "FedProx",
    "FedSGD",
    "Gradient",
    "Hyper",
    "Lanes",
    "Local",
    "Losses",
    "Round",
    "Schedule",
    "ServerState",
    "Vector",
    "Vectors",
    "algorithm_named",
    "check_range",
    "label_of",
    "name_of",
    "trial",
]
