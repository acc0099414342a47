"""Lanes: runs that differ only in γ, β, α, λ, clipping or the member of the family are executed together.

They share the data, the batches, the clients of each round and the graph. Their hyper-parameters become tensors with an
entry a lane, and the same `step` broadcasts over them; the products of all lanes with the same samples are one product
with more rows, which is why four lanes of softmax regression take about two thirds of the time of four runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, FedAvg, FedKin, FedProx
from fedkin.algorithms.local import Local
from fedkin.engine.simulation import Simulation, State
from fedkin.types import Tensors

FAMILY = (FedAvg, FedProx, FedKin)  # whose step is the family's, with knobs α and β

# A group of lanes keeps this many numbers in all its clients' models at the most (4 bytes each).
MOST_NUMBERS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Lanes(FedKin):
    """Several members of the family as one algorithm; tensors are (lanes, clients, parameters)."""

    members: tuple[Algorithm, ...] = ()

    def at(self, round: int) -> "Lanes":
        """The hyper-parameters of a round, side by side."""
        return _placed(self, tuple(member.at(round) for member in self.members))

    def start(self, model: Tensor, clients: int) -> Tensors:
        """Every lane from the same model."""
        return super().start(model.expand(len(self.members), -1).contiguous(), clients)


@lru_cache(maxsize=1)  # the same object as long as nothing changes, so that what was made for it can be kept
def _placed(lanes: Lanes, now: tuple[Algorithm, ...]) -> Lanes:
    knobs = {knob: side_by_side([getattr(m, knob) for m in now]) for knob in ("step_size", "beta")}
    placed = replace(lanes, **knobs)
    # α is a constant of the family, and a knob only here.
    object.__setattr__(placed, "alpha", side_by_side([m.alpha for m in now]))
    return placed


def side_by_side(values: Sequence[float]) -> Any:
    """One value a lane, (L, 1, 1), or simply the value if all lanes have the same."""
    if all(value == values[0] for value in values):
        return values[0]
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)


def key(simulation: Simulation) -> tuple[Any, ...] | None:
    """Equal for simulations of one federation that can share lanes; None for those that cannot."""
    algorithm, local = simulation.algorithm, simulation.local
    if type(algorithm) not in FAMILY:
        return None
    shared = replace(local, l2=0.0, clip=None)
    absent = algorithm.absent if isinstance(algorithm, FedKin) else FedKin.absent
    return (shared, absent, simulation.take_part, simulation.seed, simulation.stacked)


def together(simulations: Sequence[Simulation]) -> Simulation:
    """One simulation that carries out several, which share everything but hyper-parameters."""
    first = simulations[0]
    if len(simulations) == 1:
        return first
    kin = [s.algorithm.absent for s in simulations if isinstance(s.algorithm, FedKin)]
    algorithm = Lanes(members=tuple(s.algorithm for s in simulations), absent=[*kin, FedKin.absent][0])
    return replace(first, algorithm=algorithm, local=_locals([s.local for s in simulations]))


def _locals(locals: Sequence[Local]) -> Local:
    clips = [math.inf if local.clip is None else local.clip for local in locals]
    clip = None if all(map(math.isinf, clips)) else side_by_side(clips)
    made = replace(locals[0], l2=0.0, clip=None)
    # Checked one by one already; a tensor would not pass the same checks.
    object.__setattr__(made, "l2", side_by_side([local.l2 for local in locals]))
    object.__setattr__(made, "clip", clip)
    return made


def most(simulation: Simulation) -> int:
    """How many lanes fit into memory."""
    models = len(simulation.federation.train) * simulation.model.size
    return max(1, MOST_NUMBERS // models)


def joined(states: Sequence[State]) -> State:
    """The state of a group from those of its runs, all after the same round."""
    if len(states) == 1:
        return states[0]
    server = {"model": torch.stack([state.server["model"] for state in states])}
    kept = next((state.server for state in states if "models" in state.server), None)
    if kept is None:
        model = server["model"]
        kept = {"owners": torch.zeros(0, dtype=torch.int64), "models": model.new_zeros(0, model.shape[-1])}
    server["owners"] = kept["owners"]
    # Runs that keep no models do not use them either: their β is 1.
    server["models"] = torch.stack([state.server.get("models", torch.zeros_like(kept["models"])) for state in states])
    return State(server, {}, states[0].round)


def parted(state: State, simulations: Sequence[Simulation]) -> list[State]:
    """The states of the runs of a group."""
    if len(simulations) == 1:
        return [state]
    lanes = []
    for lane, simulation in enumerate(simulations):
        server = {"model": state.server["model"][lane]}
        if isinstance(simulation.algorithm, FedKin):
            server |= {"owners": state.server["owners"], "models": state.server["models"][lane]}
        lanes.append(State(server, {}, state.round))
    return lanes
