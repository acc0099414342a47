"""Algorithms: what clients and server compute in a round, as pure functions of stacked tensors.

base.py       `Algorithm`: the hooks, with FedAvg as the default
kin.py        Kin: FedKin that chooses by itself who is kin
personal.py   `Alone`, `FineTuned`, `IFCA`, `Ditto`, `APFL`, `PFedMe`, `PerFedAvg`: a model for every client
mixtures.py   `FedEM`: a mixture of shared models for every client
multitask.py  `L2GD`, `FedU`, `MOCHA`, `FedAMP`, `CFL`: a model for every client, coupled at the server
drift.py      `SCAFFOLD`, `FedNova`, `FedDyn`: one model, corrected for clients that drift apart
selection.py  `PowerOfChoice`: clients sampled by their losses
server_optimizers.py  `FedAvgM`, `FedAdagrad`, `FedAdam`, `FedYogi`
choosing.py   choices by validation losses, for all clients and for single ones
kinship.py    who is kin, and averages of their models
family.py     `FedAvg`, `FedProx`, `FedKin`, `FedSGD`
averaging.py  how models are averaged: mean, median, trimmed mean, Krum
rounds.py     `Round`: number, sampled clients, weights, graph and random numbers of a round
rows.py       `ClientRows`: per-client state, at the server or at the clients
local.py      `Local`: epochs, batches, L2 penalty and clipping of local training
schedules.py  `Schedule`: hyper-parameters that change over the rounds
lanes.py      `Lanes`: algorithms that differ in hyper-parameters, executed as one
search.py     where hyper-parameters are searched, and points there
registry.py   algorithms by name or import path
"""

from fedkin.algorithms.averaging import Averaging, Krum, Median, TrimmedMean, averaging_rule
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
from fedkin.algorithms.drift import SCAFFOLD, FedDyn, FedNova
from fedkin.algorithms.family import FedAvg, FedKin, FedProx, FedSGD
from fedkin.algorithms.kin import Kin
from fedkin.algorithms.lanes import Lanes
from fedkin.algorithms.local import Local
from fedkin.algorithms.mixtures import FedEM
from fedkin.algorithms.multitask import CFL, L2GD, MOCHA, MRMTL, FedAMP, FedU
from fedkin.algorithms.personal import APFL, IFCA, Alone, Ditto, FineTuned, PerFedAvg, PFedMe, Tuning
from fedkin.algorithms.registry import ALGORITHMS, algorithm_named, label_of, name_of
from fedkin.algorithms.rounds import Round
from fedkin.algorithms.rows import ClientRows
from fedkin.algorithms.schedules import Schedule
from fedkin.algorithms.selection import PowerOfChoice
from fedkin.algorithms.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi

__all__ = [
    "ALGORITHMS",
    "APFL",
    "CFL",
    "IFCA",
    "L2GD",
    "MOCHA",
    "MRMTL",
    "SCAFFOLD",
    "Algorithm",
    "Alone",
    "Averaging",
    "ClientRows",
    "Ditto",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedEM",
    "FedKin",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedU",
    "FedYogi",
    "FineTuned",
    "Gradient",
    "Hyper",
    "Kin",
    "Krum",
    "Lanes",
    "Local",
    "Losses",
    "Median",
    "PFedMe",
    "PerFedAvg",
    "PowerOfChoice",
    "Round",
    "Schedule",
    "ServerState",
    "TrimmedMean",
    "Tuning",
    "Vector",
    "Vectors",
    "algorithm_named",
    "averaging_rule",
    "check_range",
    "label_of",
    "name_of",
    "trial",
]
