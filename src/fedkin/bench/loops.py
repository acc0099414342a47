"""Who is measured: the engine, alone and in a sweep, and FedAvg as it is written by hand in PyTorch.

All compute the same: one round of FedAvg on a work, from the same model. `LOOPS` are what the engine is held against.
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
from fedkin.bench.works import SEED, STEP_SIZE, Work
from fedkin.data.federation import Federation
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats

# The runs of a sweep differ in β alone.
BETAS = (0.2, 0.4, 0.6, 0.8)

# A graph of all pairs is kept up to this many clients: 32 MB. Beyond, each client has so many neighbours.
DENSE_CLIENTS = 2000
NEIGHBOURS = 20


class Competitor(Protocol):
    """Somebody who can do a round after the other."""

    def round(self) -> None:
        """One round."""

    @property
    def global_model(self) -> Tensor:
        """The model after the rounds so far, (P,)."""


# -- the engine --------------------------------------------------------------------------------------------------------


class Engine:
    """`Simulation.advance`, of one run or of several after another."""

    def __init__(self, *simulations: Simulation) -> None:
        self.simulations = simulations
        self.states = [simulation.start() for simulation in simulations]

    def round(self) -> None:
        """One round of every run."""
        pairs = zip(self.simulations, self.states, strict=True)
        self.states = [simulation.advance(state) for simulation, state in pairs]

    @property
    def global_model(self) -> Tensor:
        """Of the first run."""
        return self.states[0].model


def engine(work: Work, federation: Federation) -> Competitor:
    """One run of FedAvg."""
    return Engine(work.simulation(federation))


def sweep(work: Work, federation: Federation) -> Competitor:
    """Four runs of FedKin that differ in β, a lane each, over a graph with edges."""
    # Kin are made up as well: who is whose neighbour does not change how long a round takes.
    random = np.random.default_rng(SEED).uniform(size=(len(federation.train), 8))
    graph = similarity_graph(random / np.linalg.norm(random, axis=1, keepdims=True))
    runs = [work.simulation(federation, FedKin(step_size=STEP_SIZE, beta=beta), graph) for beta in BETAS]
    return Engine(together(runs))


def similarity_graph(messages: Floats) -> SimilarityGraph:
    """The graph of clients with these messages (C, D): of all pairs if they are few, else of the nearest neighbours."""
    if len(messages) <= DENSE_CLIENTS:
        return SimilarityGraph.from_messages(messages, floor=1e-12)
    return SimilarityGraph.nearest(messages, NEIGHBOURS)


# -- loops written by hand ---------------------------------------------------------------------------------------------


def _start(work: Work, federation: Federation) -> nn.Module:
    """The net with the engine's first model in it."""
    net = work.net()
    net(torch.zeros(2, *work.shape))  # fills in the lazy layers
    vector_to_parameters(work.simulation(federation).start().model, net.parameters())
    return net


class DataLoaderLoop:
    """(a) The loop most researchers write: a `DataLoader` a client, a deep copy of the model, averaged state dicts."""

    def __init__(self, work: Work, federation: Federation) -> None:
        self.net, self.local = _start(work, federation), work.local
        train = federation.train
        images = train.x.view(-1, *work.shape)
        self.loaders = [
            DataLoader(TensorDataset(images[train.rows(i)], train.y[train.rows(i)]), self.local.batch_size)
            for i in range(len(train))
        ]
        self.weights = (train.sizes / train.sizes.sum()).tolist()

    def round(self) -> None:
        """Every client trains a copy; the server averages."""
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
        """Flat, in the engine's order."""
        return parameters_to_vector(self.net.parameters()).detach()


class SliceLoop:
    """(b) The same with care: batches are slices, cut once; one module and one optimiser serve all clients."""

    def __init__(self, work: Work, federation: Federation) -> None:
        self.net, self.local = _start(work, federation), work.local
        train, width = federation.train, work.batch_size
        images = train.x.view(-1, *work.shape)
        self.batches = [
            list(zip(torch.split(images[rows], width), torch.split(train.y[rows], width), strict=True))
            for rows in map(train.rows, range(len(train)))
        ]
        self.weights = (train.sizes / train.sizes.sum()).tolist()
        # Plain SGD keeps nothing between steps, so it need not be made anew.
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=STEP_SIZE, weight_decay=self.local.l2)
        self.net.train()

    def round(self) -> None:
        """Client after client in the same module; the average is summed up along the way."""
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
        """Flat, in the engine's order."""
        return parameters_to_vector(self.net.parameters()).detach()


LOOPS: dict[str, Callable[[Work, Federation], Competitor]] = {"loop": DataLoaderLoop, "slices": SliceLoop}
