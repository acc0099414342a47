"""The cost of finding kin from updates, and of rounds that start at kin, measured in a process of its own.

`python -m fedkin.bench.kin_process CLIENTS FEATURES --threads N` prints one line of JSON.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from fedkin.algorithms import Kin, Local, Round
from fedkin.algorithms.kinship import learn_directions
from fedkin.bench.growth_process import SAMPLES, TAKE_PART, peak_memory, print_record
from fedkin.bench.workloads import CLASSES, SEED, synthetic_federation
from fedkin.data.federation import Federation, from_rows
from fedkin.engine.own import kin_graph
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import SimilarityGraph
from fedkin.models import Softmax

KINDS, ROUNDS = 20, 8


@dataclass(frozen=True)
class KinRecord:
    """Measurements for one number of clients. Memory is that of the whole process, in bytes.

    features  D, of a sample
    first     seconds of the first round, in which all clients train
    search    seconds from the updates of all clients to the nearest of each
    compared  seconds of rounds of the sampled clients in which candidates are compared
    rounds    seconds of other rounds of the sampled clients
    alike     share of the pairs of kin that are of one kind
    """

    clients: int
    features: int
    first: float
    search: float
    compared: tuple[float, ...]
    rounds: tuple[float, ...]
    alike: float
    before: int
    peak: int

    @property
    def seconds(self) -> float:
        """The median of all rounds of sampled clients."""
        return statistics.median((*self.compared, *self.rounds))


def kinds_federation(clients: int, features: int) -> Federation:
    """Clients in kinds: the same classes everywhere, but each kind has its own names for them."""
    random = torch.Generator().manual_seed(SEED)
    names = torch.stack([torch.randperm(CLASSES, generator=random) for _ in range(KINDS)])
    centres = torch.randn(CLASSES, features, generator=random)
    y = torch.randint(CLASSES, (clients, SAMPLES), generator=random)
    x = torch.randn(clients * SAMPLES, features, generator=random).mul_(0.5).add_(centres[y.view(-1)])
    named = names[torch.arange(clients)[:, None] % KINDS, y]
    held = from_rows(x, named.view(-1), np.full(clients, SAMPLES))
    return synthetic_federation(held, CLASSES, (features,), "kinds").held_out(0.2, SEED)


def measure_kin(clients: int, features: int) -> KinRecord:
    """Train all clients once, find their kin, and run rounds with some of them."""
    before, federation = peak_memory(), kinds_federation(clients, features)
    simulation = Simulation(
        federation=federation,
        model=Softmax(features, CLASSES),
        algorithm=Kin(step_size=0.1),
        graph=SimilarityGraph.edgeless(clients),
        weights=np.ones(clients),
        local=Local(epochs=5, batch_size=SAMPLES, order="fixed"),
        take_part=TAKE_PART,
        seed=SEED,
    )
    algorithm, state, everyone = simulation.algorithm.at(0), simulation.start(), simulation.available(0)
    began = time.perf_counter()
    memory = {name: rows.at(everyone.who) for name, rows in state.memory.items()}
    got = algorithm.send(state.server, everyone)
    replies, kept, _ = simulation.work(algorithm, simulation.local, everyone, got, memory)
    first = time.perf_counter() - began
    search = search_seconds(state, replies, everyone)
    server = algorithm.combine(state.server, replies, everyone)
    memory = {name: state.memory[name].updated(everyone.who, value) for name, value in kept.items()}
    state = State(server, memory, 1)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(1, 1 + ROUNDS):
        began = time.perf_counter()
        state = simulation.advance(state)
        seconds[number in (1, 2, 3, 4, 6, 8)].append(time.perf_counter() - began)
    found = kin_graph(simulation, state)
    alike = 0.0
    if found is not None:
        i, n = found.nonzero()
        alike = float((i % KINDS == n % KINDS)[i != n].mean())
    times = tuple(seconds[True]), tuple(seconds[False])
    return KinRecord(clients, features, first, search, *times, alike, before, peak_memory())


def search_seconds(state: State, replies: dict[str, torch.Tensor], everyone: Round) -> float:
    """Seconds from the updates of all clients to the nearest of each: sketches and search."""
    began = time.perf_counter()
    learn_directions(state.server, replies, everyone)
    return time.perf_counter() - began


if __name__ == "__main__":
    print_record(measure_kin, clients=int, features=int)
