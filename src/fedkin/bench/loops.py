"""The competitors: the engine, with one run and with a sweep, and FedAvg written by hand in PyTorch.

All compute the same: a round of FedAvg on a workload, from the same model. `LOOPS` are the hand-written ones.
"""

import copy
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from fedkin.algorithms import FedKin
from fedkin.bench.workloads import SEED, STEP_SIZE, Workload
from fedkin.data.federation import Federation
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats

# The runs of a sweep differ in β only.
SWEEP_BETAS = (0.2, 0.4, 0.6, 0.8)

# Up to this many clients the graph has all pairs, which takes 32 MB; beyond, each client has so many neighbours.
DENSE_CLIENTS = 2000
NEIGHBOURS = 20


class Competitor(Protocol):
    """An implementation of FedAvg."""

    def round(self) -> None:
        """Execute one round."""

    @property
    def global_model(self) -> Tensor:
        """The model after the rounds so far, (P,)."""


# -- the engine --------------------------------------------------------------------------------------------------------


class Engine:
    """`Simulation.advance` of one or more simulations."""

    def __init__(self, *simulations: Simulation) -> None:
        self.simulations = simulations
        self.states = [simulation.start() for simulation in simulations]

    def round(self) -> None:
        pairs = zip(self.simulations, self.states, strict=True)
        self.states = [simulation.advance(state) for simulation, state in pairs]

    @property
    def global_model(self) -> Tensor:
        return self.states[0].model


def engine_run(workload: Workload, federation: Federation) -> Competitor:
    """One run of FedAvg."""
    return Engine(workload.simulation(federation))


def engine_sweep(workload: Workload, federation: Federation) -> Competitor:
    """Runs of FedKin that differ in β, executed as lanes, with a graph that has edges."""
    # Random messages: the neighbours do not affect the duration of a round.
    random = np.random.default_rng(SEED).uniform(size=(len(federation.train), 8))
    graph = similarity_graph(random / np.linalg.norm(random, axis=1, keepdims=True))
    runs = [workload.simulation(federation, FedKin(step_size=STEP_SIZE, beta=beta), graph) for beta in SWEEP_BETAS]
    return Engine(together(runs))


def similarity_graph(messages: Floats) -> SimilarityGraph:
    """The graph of clients with messages (C, D): of all pairs if they are few, else of nearest neighbours."""
    if len(messages) <= DENSE_CLIENTS:
        return SimilarityGraph.from_messages(messages, floor=1e-12)
    return SimilarityGraph.nearest(messages, NEIGHBOURS)


# -- hand-written loops ------------------------------------------------------------------------------------------------


def plain_start(workload: Workload, federation: Federation) -> nn.Module:
    """The net with the parameters of the engine's first model."""
    net = workload.net()
    net(torch.zeros(2, *workload.shape))  # initialises the lazy layers
    vector_to_parameters(workload.simulation(federation).start().model, net.parameters())
    return net


class DataLoaderLoop:
    """(a) The usual loop: a `DataLoader` per client, deep copies of the model, averaged state dicts."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        self.net, self.local = plain_start(workload, federation), workload.local
        train = federation.train
        images = train.x.view(-1, *workload.shape)
        self.loaders = [
            DataLoader(TensorDataset(images[train.rows(i)], train.y[train.rows(i)]), self.local.batch_size)
            for i in range(len(train))
        ]
        self.weights = (train.sizes / train.sizes.sum()).tolist()

    def round(self) -> None:
        states = []
        for loader in self.loaders:
            model = copy.deepcopy(self.net)
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=STEP_SIZE, weight_decay=self.local.l2)
            for _ in range(self.local.epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
            states.append(model.state_dict())
        average = {
            name: sum(weight * state[name] for weight, state in zip(self.weights, states, strict=True))
            for name in states[0]
        }
        self.net.load_state_dict(average)

    @property
    def global_model(self) -> Tensor:
        return parameters_to_vector(self.net.parameters()).detach()


class SliceLoop:
    """(b) The same, optimised: batches are slices made once; all clients share a module and an optimiser."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        self.net, self.local = plain_start(workload, federation), workload.local
        train, width = federation.train, workload.batch_size
        images = train.x.view(-1, *workload.shape)
        self.batches = [
            list(zip(torch.split(images[rows], width), torch.split(train.y[rows], width), strict=True))
            for rows in map(train.rows, range(len(train)))
        ]
        self.weights = (train.sizes / train.sizes.sum()).tolist()
        # SGD without momentum has no state, so that clients can share the optimiser.
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=STEP_SIZE, weight_decay=self.local.l2)
        self.net.train()

    def round(self) -> None:
        parameters = list(self.net.parameters())
        start = [p.detach().clone() for p in parameters]
        average = [torch.zeros_like(p) for p in start]
        for weight, batches in zip(self.weights, self.batches, strict=True):
            with torch.no_grad():
                for p, first in zip(parameters, start, strict=True):
                    p.copy_(first)
            for _ in range(self.local.epochs):
                for x, y in batches:
                    self.optimizer.zero_grad(set_to_none=True)
                    cross_entropy(self.net(x), y).backward()  # type: ignore[no-untyped-call]
                    self.optimizer.step()
            with torch.no_grad():
                for p, total in zip(parameters, average, strict=True):
                    total.add_(p, alpha=weight)
        with torch.no_grad():
            for p, total in zip(parameters, average, strict=True):
                p.copy_(total)

    @property
    def global_model(self) -> Tensor:
        return parameters_to_vector(self.net.parameters()).detach()


LOOPS: dict[str, Callable[[Workload, Federation], Competitor]] = {"loop": DataLoaderLoop, "slices": SliceLoop}
