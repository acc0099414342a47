"""Lanes: runs that differ only in hyper-parameters, λ, clipping or noise, executed together.

Lanes share the data, the batches, the sampled clients and the graph. The hooks broadcast over the hyper-parameters
(`fedkin.algorithms.lanes`). The products of all lanes with the same samples are one product with more rows: four lanes
of softmax regression take about two thirds of the time of four runs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fedkin.algorithms import ClientRows, Lanes, Local
from fedkin.algorithms.base import Algorithm
from fedkin.algorithms.lanes import lane_key, side_by_side
from fedkin.engine.privacy import stacked_privacy
from fedkin.engine.simulation import Simulation, State
from fedkin.engine.traffic import lane_parts

# Maximum size of the models of all clients in a group of lanes, in float32 numbers.
MOST_NUMBERS = 1 << 28


def key(simulation: Simulation) -> tuple[Any, ...] | None:
    """Equal for simulations of one federation that can be lanes of a group; None if a simulation cannot be a lane."""
    algorithm = lane_key(_general(simulation))
    if algorithm is None:
        return None
    shared = replace(simulation.local, l2=0.0, clip=None)
    server = simulation.aggregate, simulation.privacy and simulation.privacy.where
    return (*algorithm, shared, simulation.take_part, simulation.seed, simulation.stacked, *server)


def together(simulations: Sequence[Simulation]) -> Simulation:
    """One simulation that executes several, which differ only in hyper-parameters."""
    first = simulations[0]
    if len(simulations) == 1:
        return first
    given = [simulation.algorithm for simulation in simulations if isinstance(simulation.algorithm, Algorithm)]
    algorithm = Lanes([_general(simulation) for simulation in simulations], given)
    privacy = stacked_privacy([simulation.privacy for simulation in simulations])
    return replace(first, algorithm=algorithm, local=_locals([s.local for s in simulations]), privacy=privacy)


def _general(simulation: Simulation) -> Algorithm:
    assert isinstance(simulation.algorithm, Algorithm), "lanes within lanes"
    return simulation.algorithm.general()


def _locals(locals: Sequence[Local]) -> Local:
    clips = [math.inf if local.clip is None else local.clip for local in locals]
    clip = None if all(map(math.isinf, clips)) else side_by_side(clips)
    return replace(locals[0], l2=side_by_side([local.l2 for local in locals]), clip=clip)


def most(simulation: Simulation) -> int:
    """Number of lanes that fit into memory."""
    models = len(simulation.federation.train) * simulation.model.size
    return max(1, MOST_NUMBERS // models)


def joined(states: Sequence[State], group: Simulation) -> State:
    """The state of a group from the states of its runs after the same round.

    If a run lacks a value because its class does not use it (FedAvg in a group with FedKin), it gets that of another
    lane.
    """
    if len(states) == 1:
        return states[0]
    model = torch.stack([state.server["model"] for state in states])
    algorithm = group.algorithm.at(states[0].round)
    server, memory = algorithm.start(model, group.available(0)), algorithm.remember(model)
    return State(
        {name: _stacked([state.server.get(name) for state in states], value) for name, value in server.items()},
        {name: _stacked([state.memory.get(name) for state in states], ClientRows(memory[name])) for name in memory},
        states[0].round,
        states[0].spaces,
    )


def _stacked(values: Sequence[Any], otherwise: Any) -> Any:
    known = next((value for value in values if value is not None), None)
    if known is None:
        return otherwise
    lanes = [known if value is None else value for value in values]
    return ClientRows.stacked(lanes) if isinstance(known, ClientRows) else torch.stack(lanes)


def parted(state: State, simulations: Sequence[Simulation]) -> list[State]:
    """The states of the runs of a group: the inverse of `joined`."""
    if len(simulations) == 1:
        return [state]
    lanes = []
    for lane, simulation in enumerate(simulations):
        algorithm, first = simulation.algorithm.at(state.round), simulation.available(0)
        server, memory = lane_parts(algorithm, state.server, state.memory, first, lane)
        lanes.append(State(server, memory, state.round, state.spaces))
    return lanes
