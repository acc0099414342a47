"""The cost of a round and of the graph for one number of clients, measured in a process of its own.

`python -m fedkin.bench.growth_process CLIENTS ABSENT --threads N` prints one line of JSON.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedkin.algorithms import FedKin, Local
from fedkin.bench.loops import similarity_graph
from fedkin.bench.workloads import CLASSES, SEED, STEP_SIZE, synthetic_federation
from fedkin.data.federation import Federation, from_rows
from fedkin.engine.simulation import Simulation, State
from fedkin.graph.similarity import messages
from fedkin.models import Softmax

ABSENT = ("global", "last")
TAKE_PART, SAMPLES, FEATURES, GROUPS = 100, 10, 64, 50
ROUNDS = 10


@dataclass(frozen=True)
class GrowthRecord:
    """Measurements for one number of clients. Memory is that of the whole process, in bytes.

    before    memory after all imports, before the federation is made
    peak      peak memory
    messages  seconds for the messages of all clients
    graph     seconds from messages to graph
    rounds    seconds of each round after the first
    """

    clients: int
    absent: str
    before: int = 0
    peak: int = 0
    messages: float = 0.0
    graph: float = 0.0
    rounds: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds) if self.rounds else float("nan")


def growth_federation(clients: int) -> Federation:
    """Clients in groups: a client's samples have the mean of its group plus a small deviation of its own."""
    generator = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    group = torch.randint(GROUPS, (clients,), generator=generator)
    own = random(GROUPS, FEATURES)[group] + 0.2 * random(clients, FEATURES)
    x = random(clients * SAMPLES, FEATURES).mul_(0.2)
    x.view(clients, SAMPLES, FEATURES).add_(own[:, None])
    y = torch.randint(CLASSES, (clients * SAMPLES,), generator=generator)
    return synthetic_federation(from_rows(x, y, np.full(clients, SAMPLES)), CLASSES, (FEATURES,), "growth")


def measure_clients(clients: int, absent: str) -> GrowthRecord:
    """Build a federation and its graph in this process, and run some rounds."""
    before = peak_memory()
    federation = growth_federation(clients)
    began = time.perf_counter()
    sent = messages(federation)
    messages_seconds = time.perf_counter() - began
    began = time.perf_counter()
    graph = similarity_graph(sent)
    simulation = Simulation(
        federation=federation,
        model=Softmax(FEATURES, CLASSES),
        algorithm=FedKin(step_size=STEP_SIZE, absent=absent),
        graph=graph,
        weights=graph.weights("samples", federation.train.sizes),
        local=Local(epochs=10, batch_size=256, order="fixed"),
        take_part=TAKE_PART,
        seed=SEED,
    )
    graph_seconds = time.perf_counter() - began
    state = simulation.start()
    if absent == "last":
        state = with_all_models(simulation, state)
    rounds = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        state = simulation.advance(state)
        rounds.append(time.perf_counter() - began)
    return GrowthRecord(clients, absent, before, peak_memory(), messages_seconds, graph_seconds, tuple(rounds[1:]))


def with_all_models(simulation: Simulation, state: State) -> State:
    """The state after a round of all clients, in which the server has a last model of every client.

    That is the largest state there is. With few clients per round it would take many rounds.
    """
    algorithm, round = simulation.algorithm.at(state.round), simulation.available(state.round)
    models = round.spread(state.server["model"]).clone()
    return State(algorithm.combine(state.server, {"model": models}, round), state.memory)


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        # On Linux, `getrusage` includes the memory of the parent process at the time of the fork.
        return int(found[1]) << 10
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def print_record(measure: Callable[..., Any], **arguments: type) -> None:
    """Measure with the arguments of the command line and print the record, a dataclass: all that a process does."""
    parser = argparse.ArgumentParser()
    for name, kind in arguments.items():
        parser.add_argument(name, type=kind)
    parser.add_argument("--threads", type=int, required=True)
    asked = vars(parser.parse_args())
    torch.set_num_threads(asked.pop("threads"))
    print(json.dumps(asdict(measure(**asked))))


if __name__ == "__main__":
    print_record(measure_clients, clients=int, absent=str)
