"""Every system on six clients, for a single start of Flower's simulation: what its app runs, and the test expects."""

from dataclasses import replace

from fedkin.algorithms import IFCA, Algorithm, Alone
from fedkin.engine.simulation import Simulation
from fedkin.graph.similarity import build_graph
from fedkin.types import Floats
from loops import simulation
from own_algorithms import Scaffold
from test_systems import SEED, SELECTING, SYSTEMS

NODES, SAMPLED, ROUNDS = 6, 3, 3
# One of each class; their options are compared in `test_flower_systems.py`.
OPTIONS = ("apfl", "pfedme aggregated", "pfedme y", "perfedavg", "perfedavg hf", "powerofchoice stale")
ALGORITHMS: dict[str, Algorithm] = {
    "of a user": Scaffold(step_size=0.2, server_step=0.7),  # by its import path
    "ifca": IFCA(step_size=0.2, groups=2),
    **{name: members[0] for name, (members, _) in SYSTEMS.items() if name not in OPTIONS},
    **{name: algorithm for name, algorithm in SELECTING.items() if name not in OPTIONS},
    "alone": Alone(step_size=0.2),
}


def run_of(algorithm: Algorithm) -> Simulation:
    """The run of the engine on the first clients of `loops.py`, of which three are sampled."""
    run = simulation(algorithm, take_part=SAMPLED, seed=SEED)
    first = run.federation.train.reordered(list(range(NODES)))
    federation = replace(run.federation, train=first, test=first)
    return replace(run, federation=federation, weights=first.sizes / first.sizes.sum(), graph=build_graph(federation))


def expected_of(algorithm: Algorithm) -> tuple[Floats, float | None]:
    """The global model after the rounds, and the mean over the clients of ‖memory‖²; None if they keep nothing."""
    run = run_of(algorithm)
    state = run.start()
    for _ in range(ROUNDS):
        state = run.advance(state)
    squares = [float(rows.values.double().square().sum()) for rows in state.memory.values()]
    return state.model.double().numpy(), sum(squares) / NODES if squares else None
