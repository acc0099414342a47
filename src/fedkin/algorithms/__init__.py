"""Algorithms: what clients and server compute in a round, as pure functions of stacked tensors.

base.py       `Algorithm`: the hooks, with FedAvg as the default
kin.py        Kin: FedKin that chooses by itself who is kin
personal.py   `Alone`, `FineTuned`, `IFCA`: a model for every client, to compare with
choosing.py   choices by validation losses, for all clients and for single ones
kinship.py    who is kin, and averages of their models
family.py     `FedAvg`, `FedProx`, `FedKin`, `FedSGD`
rounds.py     `Round`: number, sampled clients, weights, graph and random numbers of a round
rows.py       `ClientRows`: per-client state, at the server or at the clients
local.py      `Local`: epochs, batches, L2 penalty and clipping of local training
schedules.py  `Schedule`: hyper-parameters that change over the rounds
lanes.py      `Lanes`: algorithms that differ in hyper-parameters, executed as one
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
from fedkin.algorithms.kin import Kin
from fedkin.algorithms.lanes import Lanes
from fedkin.algorithms.local import Local
from fedkin.algorithms.personal import IFCA, Alone, FineTuned, Tuning
from fedkin.algorithms.registry import ALGORITHMS, algorithm_named, label_of, name_of
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.algorithms.schedules import Schedule

__all__ = [
    "ALGORITHMS",
    "IFCA",
    "Algorithm",
    "Alone",
    "ClientRows",
    "FedAvg",
    "FedKin",
    "FedProx",
    "FedSGD",
    "FineTuned",
    "Gradient",
    "Hyper",
    "Kin",
    "Lanes",
    "Local",
    "Losses",
    "Round",
    "Schedule",
    "ServerState",
    "Tuning",
    "Vector",
    "Vectors",
    "algorithm_named",
    "check_range",
    "label_of",
    "name_of",
    "trial",
]
