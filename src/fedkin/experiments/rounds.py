"""One round and its measurements."""

import time
from collections.abc import Sequence

from fedkin.algorithms import Lanes
from fedkin.engine import metrics
from fedkin.engine.lanes import lane_of
from fedkin.engine.own import own_models
from fedkin.engine.simulation import Simulation, State
from fedkin.files import finite
from fedkin.types import Record


def play(
    group: Simulation, l2: Sequence[float], state: State, *, evaluate_own: bool = True
) -> tuple[State, list[Record]]:
    """Run one round of a group of runs. Returns the new state and the record of each run.

    l2            λ of each run, for the penalty in its loss
    evaluate_own  whether the models that clients use are measured too

    `seconds` in a record is the time of the round divided by the number of runs.
    """
    began, runs = time.perf_counter(), len(l2)
    state = group.advance(state)
    measured = metrics.measure(group.model, state.model.view(runs, -1), group.federation, l2)
    for record, own in zip(measured, own_models(group, state) if evaluate_own else [], strict=False):
        record |= own
    for lane, record in enumerate(measured):
        record |= _notes(group, state, lane)
    seconds = round((time.perf_counter() - began) / runs, 6)
    return state, [finite({"round": state.round - 1, **one, "seconds": seconds}) for one in measured]


def _notes(group: Simulation, state: State, lane: int) -> Record:
    """What the algorithm of a lane has to say about the round."""
    algorithm = group.algorithm.at(state.round)
    stacked = isinstance(group.algorithm, Lanes)
    server = {name: lane_of(value, lane) for name, value in state.server.items()} if stacked else state.server
    return algorithm.notes(server, group.available(state.round))
