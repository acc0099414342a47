"""Growth: what a round and the graph cost as clients become many while few of them take part.

Each number of clients is measured in a process of its own, so that its peak memory is its own. Run as a module, this
file measures one and prints a line of JSON.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from fedkin.algorithms import FedKin
from fedkin.algorithms.local import Local
from fedkin.bench.loops import similarity_graph
from fedkin.bench.works import CLASSES, SEED, STEP_SIZE, made_up
from fedkin.data.federation import Federation, from_rows
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.graph.similarity import messages
from fedkin.models import Softmax
from fedkin.reports.figures import ACCENT, MUTED, WIDTH, style

CLIENTS = (100, 1_000, 10_000, 100_000)
QUICK_CLIENTS = (100, 200)
ABSENT = ("global", "last")
TAKE_PART, SAMPLES, FEATURES, GROUPS = 100, 10, 64, 50
ROUNDS = 10
MIB = 1 << 20


@dataclass(frozen=True)
class Grown:
    """What was measured with so many clients. Memory is in bytes, and all of the process.

    before    memory once everything is imported, before there is a federation
    peak      the most memory at any time
    messages  seconds the clients took for their messages
    graph     seconds from messages to graph
    rounds    seconds of each round, after a first one
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
        """Of a round, the median."""
        return statistics.median(self.rounds) if self.rounds else float("nan")


def federation(clients: int) -> Federation:
    """Clients in groups of kin: samples scatter around the direction of the group, and a little around the client's."""
    generator = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    group = torch.randint(GROUPS, (clients,), generator=generator)
    own = random(GROUPS, FEATURES)[group] + 0.2 * random(clients, FEATURES)
    x = random(clients * SAMPLES, FEATURES).mul_(0.2)
    x.view(clients, SAMPLES, FEATURES).add_(own[:, None])
    y = torch.randint(CLASSES, (clients * SAMPLES,), generator=generator)
    return made_up(from_rows(x, y, np.full(clients, SAMPLES)), CLASSES, (FEATURES,), "growth")


def measure(clients: int, absent: str) -> Grown:
    """In this process: build the federation and its graph, and do some rounds."""
    before = peak_memory()
    made = federation(clients)
    began = time.perf_counter()
    sent = messages(made)
    messages_seconds = time.perf_counter() - began
    began = time.perf_counter()
    graph = similarity_graph(sent)
    simulation = Simulation(
        federation=made,
        model=Softmax(FEATURES, CLASSES),
        algorithm=FedKin(step_size=STEP_SIZE, absent=absent),
        graph=graph,
        weights=graph.weights("samples", made.train.sizes),
        local=Local(epochs=10),
        take_part=TAKE_PART,
        seed=SEED,
    )
    graph_seconds = time.perf_counter() - began
    state = simulation.start()
    if absent == "last":
        state = everyone_has_sent(simulation, state)
    rounds = []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        state = simulation.advance(state)
        rounds.append(time.perf_counter() - began)
    return Grown(clients, absent, before, peak_memory(), messages_seconds, graph_seconds, tuple(rounds[1:]))


def everyone_has_sent(simulation: Simulation, state: State) -> State:
    """The state after so many rounds that everyone took part once: the server has a last model of every client.

    That is as large as the state becomes, and a run would take long to get there.
    """
    clients = len(simulation.federation.train)
    p = torch.full((clients,), 1 / clients)
    models = state.model.expand(clients, -1).clone()
    return State(simulation.algorithm.combine(state.server, {"model": models}, np.arange(clients), p), state.memory)


def peak_memory() -> int:
    """The most memory this process has had, in bytes."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        # Not what `getrusage` says: on Linux that starts from the memory of the process that started this one.
        return int(found[1]) << 10
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def measured(quick: bool, threads: int, doing: Callable[[str], None]) -> Iterator[Grown]:
    """One after the other, each in a process of its own."""
    for clients in QUICK_CLIENTS if quick else CLIENTS:
        for absent in ABSENT:
            doing(f"growth: {clients:,} clients, absent = {absent}")
            command = [sys.executable, "-m", __name__, str(clients), absent, "--threads", str(threads)]
            # The same package must be found there as here.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
                raise BadInput(f"measuring {clients:,} clients failed ({last}): there may be too little memory")
            values: dict[str, Any] = json.loads(done.stdout)
            yield Grown(**{**values, "rounds": tuple(values["rounds"])})


def figure(grown: list[Grown]) -> Figure:
    """Seconds a round and peak memory over the number of clients, both axes logarithmic."""
    with style():
        drawn = Figure(figsize=(WIDTH, 3.4), layout=ConstrainedLayoutEngine())
        left, right = drawn.subplots(1, 2)
        for absent, color in zip(ABSENT, (ACCENT, MUTED), strict=True):
            own = [g for g in grown if g.absent == absent]
            clients = [g.clients for g in own]
            label = f'absent = "{absent}"'
            left.plot(clients, [g.seconds for g in own], "o-", color=color, label=label)
            right.plot(clients, [g.peak / MIB for g in own], "o-", color=color, label=label)
        _axes(left, "seconds a round", f"M = {TAKE_PART} take part")
        _axes(right, "peak memory, MiB", f"{SAMPLES} samples a client, D = {FEATURES}, K = {CLASSES}")
        left.legend()
    return drawn


def _axes(axes: Axes, quantity: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel=quantity)
    axes.set_title(title, loc="left")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        axis.set_minor_formatter(NullFormatter())


def main() -> None:
    """Measure one number of clients and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", type=int)
    parser.add_argument("absent", choices=ABSENT)
    parser.add_argument("--threads", type=int, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(json.dumps(asdict(measure(asked.clients, asked.absent))))


if __name__ == "__main__":
    main()
