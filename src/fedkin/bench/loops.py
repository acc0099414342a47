"""The competitors: the engine, with one run and with a sweep, and FedAvg written by hand in PyTorch.

All compute the same: a round of FedAvg on a workload, from the same model. `LOOPS` are the hand-written ones.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from fedkin.algorithms import FedAvg, FedKin
from fedkin.algorithms.rounds import random_numbers
from fedkin.bench.workloads import SEED, STEP_SIZE, Workload
from fedkin.data.federation import Federation
from fedkin.engine.lanes import together
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Floats

# The runs of a sweep differ in β only.
SWEEP_BETAS = (0.2, 0.4, 0.6, 0.8)

# Up to this many clients the graph has all pairs, which takes 32 MB; beyond, each client has so many neighbours.
DENSE_CLIENTS = 2000
NEIGHBOURS = 20

CHUNK = 500  # samples that a hand-written loop scores at once


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
    """(b) The same, optimised: batches are slices made once; all clients share a module and an optimiser.

    Shuffled samples are gathered once per epoch, and its batches are slices of them. The sampled clients and the order
    of their samples are those of the engine, so that both compute the same.

    only  the clients that work although all are sampled (None: all), to time a part of a round
    """

    def __init__(self, workload: Workload, federation: Federation, only: Sequence[int] | None = None) -> None:
        self.net, self.local = plain_start(workload, federation), workload.local
        self.run, self.number, self.only = workload.simulation(federation), 0, only
        self.evaluated = [(part.x.view(-1, *workload.shape), part.y) for part in (federation.train, federation.test)]
        images, labels = self.evaluated[0]
        self.samples = [(images[rows], labels[rows]) for rows in map(federation.train.rows, range(workload.clients))]
        self.slices = [list(self._cut(x, y)) for x, y in self.samples]
        self.parameters: list[Tensor] = list(self.net.parameters())
        # SGD without momentum has no state, so that clients can share the optimiser. A gradient is clipped with its
        # penalty, which the optimiser would add only afterwards.
        decay = self.local.l2 if self.local.clip is None else 0.0
        self.optimizer = torch.optim.SGD(self.parameters, lr=STEP_SIZE, weight_decay=decay)
        self.net.train()

    def _cut(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        width = self.local.width(len(y))
        return zip(torch.split(x, width), torch.split(y, width), strict=True)

    def round(self) -> None:
        now = self.run.sampled(FedAvg(), State({}, round=self.number))
        self.start = [p.detach().clone() for p in self.parameters]
        average = [torch.zeros_like(p) for p in self.start]
        for client, weight in zip(now.who.tolist(), now.weights.tolist(), strict=True):
            if self.only is None or client in self.only:
                with torch.no_grad():
                    torch._foreach_copy_(self.parameters, self.start)
                self.train(client)
                with torch.no_grad():
                    torch._foreach_add_(average, self.parameters, alpha=weight)
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, average)
        self.number += 1

    def train(self, client: int) -> None:
        """The local epochs of a client."""
        for x, y in self.batches(client):
            self.step(x, y)

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of a client in this round."""
        (x, y), rng = self.samples[client], random_numbers(SEED, "batches", self.number, client)
        for _ in range(self.local.epochs):
            if self.local.order == "fixed":
                yield from self.slices[client]
            else:
                order = torch.from_numpy(rng.permutation(len(y)))
                yield from self._cut(x.index_select(0, order), y.index_select(0, order))

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of gradient descent."""
        self.optimizer.zero_grad(set_to_none=True)
        cross_entropy(self.net(x), y).backward()  # type: ignore[no-untyped-call]
        self.adjust([p.grad for p in self.parameters if p.grad is not None])
        self.optimizer.step()

    def adjust(self, gradients: list[Tensor]) -> None:
        """Clip the gradient, if it is to be clipped."""
        if self.local.clip is not None:
            with torch.no_grad():
                torch._foreach_add_(gradients, self.parameters, alpha=self.local.l2)
            clip_grad_norm_(self.parameters, self.local.clip)

    def evaluate(self) -> list[tuple[float, float]]:
        """Mean loss and accuracy on all training and on all testing samples."""
        return [plain_scores(self.net, x, y) for x, y in self.evaluated]

    @property
    def global_model(self) -> Tensor:
        return parameters_to_vector(self.net.parameters()).detach()


def plain_scores(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy of a module."""
    total, right = 0.0, 0
    net.eval()
    with torch.no_grad():
        for images, labels in zip(torch.split(x, CHUNK), torch.split(y, CHUNK), strict=True):
            z = net(images)
            total += float(cross_entropy(z, labels, reduction="sum"))
            right += int((z.argmax(1) == labels).sum())
    net.train()
    return total / len(y), right / len(y)


LOOPS: dict[str, Callable[[Workload, Federation], Competitor]] = {"loop": DataLoaderLoop, "slices": SliceLoop}
