"""One round and its measurements."""

import time
from collections.abc import Sequence

import torch

from fedkin.algorithms import Lanes, Tuning
from fedkin.algorithms.rows import lane_of
from fedkin.engine import metrics
from fedkin.engine.accounting import epsilon_of
from fedkin.engine.own import own_models
from fedkin.engine.simulation import Simulation, State
from fedkin.files import finite
from fedkin.threads import one_core
from fedkin.types import Record


def play(
    group: Simulation,
    l2: Sequence[float],
    state: State,
    *,
    evaluate: bool = True,
    training: bool = True,
    tuning: Tuning | None = None,
) -> tuple[State, list[Record]]:
    """Run one round of a group of runs. Returns the new state and the record of each run.

    l2        λ of each run, for the penalty in its loss
    evaluate  whether anything is measured; a model that is no longer finite always is
    training  whether training clients are measured, too
    tuning    fine-tuning after which the models that clients use are measured, too

    `seconds` in a record is the time of the round divided by the number of runs.
    """
    began, runs = time.perf_counter(), len(l2)
    state = group.advance(state)
    with one_core():
        measured = _measured(group, l2, state, evaluate, training, tuning)
    for lane, record in enumerate(measured):
        record |= notes_of(group, state, lane) | state.traffic[lane].record() | spent(group, state.round, lane)
    seconds = round((time.perf_counter() - began) / runs, 6)
    return state, [finite({"round": state.round - 1, **one, "seconds": seconds}) for one in measured]


def _measured(
    group: Simulation, l2: Sequence[float], state: State, evaluate: bool, training: bool, tuning: Tuning | None
) -> list[Record]:
    """What is measured after a round, for each run."""
    models = state.model.view(len(l2), -1)
    measured: list[Record] = [{} for _ in l2]
    if evaluate:
        measured = [*metrics.measure(group.computed_model, models, group.federation, l2, training=training)]
        for record, own in zip(measured, own_models(group, state, tuning), strict=False):
            record |= own
    else:
        for lane in torch.nonzero(~torch.isfinite(models).all(dim=1)).flatten().tolist():
            (record,) = metrics.measure(group.computed_model, models[[lane]], group.federation, training=training)
            measured[lane] |= record
    return measured


def spent(group: Simulation, rounds: int, lane: int) -> Record:
    """ε of a lane after so many rounds; nothing without noise."""
    privacy, releases = group.privacy_of(lane), group.releases(rounds, lane)
    return {"epsilon": round(epsilon_of(releases, privacy.delta), 6)} if privacy is not None and releases else {}


def is_evaluated(round: int, every: int, rounds: int) -> bool:
    """Whether a round (from 0) is measured: each `every`-th, and the last."""
    return (round + 1) % every == 0 or round + 1 == rounds


def unmeasured(record: Record, notes: Record) -> Record:
    """The record of a round without its measurements."""
    names = ("sampled", "bytes_down", "bytes_up", "asked_bytes_down", "asked_bytes_up", "epsilon", "seconds", "warning")
    kept = {key: record[key] for key in names if key in record}
    return finite({"round": record["round"], **notes, **kept})  # type: ignore[no-any-return]


def notes_of(group: Simulation, state: State, lane: int) -> Record:
    """What the algorithm of a lane has to say about the round."""
    algorithm = group.algorithm.at(state.round)
    stacked = isinstance(group.algorithm, Lanes)
    server = {name: lane_of(value, lane) for name, value in state.server.items()} if stacked else state.server
    return algorithm.notes(server, group.available(state.round))
