"""Lanes at work: runs of one federation that are executed together, each in a folder of its own.

What is promised, and tested: runs of one command end with the same bits however often they are interrupted, whatever
`checkpoint_every` is, whichever of them have ended or have lost their folder. In other company, or alone, a run gives
the same numbers up to rounding, because products of matrices with more rows are summed in another order. So a group
stays the one it was when its runs began (origin.json): a run that has to be computed again is computed together with
the others of its group, also if those have ended. A run that diverges leaves the group after the round in which its
loss is no longer finite.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedkin.engine import lanes
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments import records
from fedkin.experiments.grid import Plan
from fedkin.experiments.progress import Listener
from fedkin.experiments.results import Result
from fedkin.experiments.rounds import play
from fedkin.types import Record

CHECKPOINT_SECONDS = 30.0
# Runs of a group at the most: beyond, more rows make products no faster, and every folder is held open.
MOST_LANES = 256


@dataclass
class Lane:
    """A run on its way.

    done   the records so far
    ended  its result, once it has one; a run that had one before is computed along, but nothing is written
    """

    plan: Plan
    folder: records.RunFolder
    settings: Record
    simulation: Simulation
    done: list[Record] = field(default_factory=list)
    ended: Result | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the folder holds its result: nothing is written any more."""
        return self.ended is not None

    def end(self, state: State, model: Tensor) -> None:
        """Write the result."""
        summary = describe(self.plan, self.done, state.spaces)
        self.folder.finish(summary, model)
        self.ended = Result(self.plan.name, self.settings, self.done, summary, model, self.folder.path)

    def sound_rounds(self, rounds: int) -> set[int]:
        """After which rounds the group can continue, as far as this run is concerned: it may have left before."""
        sound = {0, *self.folder.sound_rounds()}
        if self.ended is not None and self.ended.summary["status"] == "diverged":
            sound |= set(range(len(self.ended.rounds), rounds + 1))
        return sound

    def takes_part(self, begin: int) -> bool:
        """Whether the group still computes it after so many rounds."""
        return self.ended is None or self.ended.summary["status"] != "diverged" or len(self.ended.rounds) > begin


def kept_result(folder: records.RunFolder, plan: Plan, settings: Record) -> Result | None:
    """The result in the folder, if the run has ended and everything of it is sound."""
    if (found := folder.result()) is None:
        return None
    summary, done, model = found
    if summary["status"] == "finished" and len(done) != plan.config.rounds:
        return None
    return Result(plan.name, settings, done, summary, model, folder.path)


def run_group(group: Sequence[Lane], listener: Listener) -> None:
    """Rounds until all runs have ended."""
    rounds, every = group[0].plan.config.rounds, group[0].plan.config.checkpoint_every
    begin = max(set.intersection(*(lane.sound_rounds(rounds) for lane in group)))
    going = [lane for lane in group if lane.takes_part(begin)]
    states = [lane.folder.load(begin, lane.simulation.device) if begin else lane.simulation.start() for lane in going]
    for lane in going:
        if not lane.is_kept:
            lane.done = lane.folder.records()[:begin]
            lane.folder.keep_records(lane.done)
            lane.folder.begin([other.plan.name for other in group])
            listener.begin(lane.plan.name, rounds, begin)
    together = lanes.together([lane.simulation for lane in going])  # once: what it makes for a round serves the next
    state = lanes.joined(states, together)
    saved = time.monotonic()
    while going:
        if state.round < rounds:
            state, new = play(together, [lane.simulation.local.l2 for lane in going], state)
        else:
            new = []  # a crash came between the last checkpoint and the result
        for lane, record in zip(going, new, strict=False):
            if not lane.is_kept:
                lane.folder.append(record)
                lane.done.append(record)
                listener.round(lane.plan.name, record)
        over = state.round >= rounds
        diverged = [record["train_loss"] is None for record in new] or [False] * len(going)
        if not (over or any(diverged) or state.round % every == 0 or time.monotonic() - saved > CHECKPOINT_SECONDS):
            continue
        parts = lanes.parted(state, [lane.simulation for lane in going])
        for lane, part, left in zip(going, parts, diverged, strict=True):
            # First those that go on: a crash after a run has left finds the others where it left them.
            if not (lane.is_kept or left):
                lane.folder.save(part)
        saved = time.monotonic()
        for lane, part, left in zip(going, parts, diverged, strict=True):
            if (over or left) and not lane.is_kept:
                lane.end(state, part.model)
                assert lane.ended is not None
                listener.end(lane.plan.name, lane.ended.summary, False)
        stay = [not (over or left) for left in diverged]
        if not all(stay):
            going = [lane for lane, on in zip(going, stay, strict=True) if on]
            if going:
                together = lanes.together([lane.simulation for lane in going])
                state = lanes.joined([part for part, on in zip(parts, stay, strict=True) if on], together)
    for lane in group:
        lane.folder.remove_checkpoints()


def describe(plan: Plan, done: list[Record], spaces: Mapping[str, int]) -> Record:
    """The content of summary.json."""
    config = plan.config
    return {
        "experiment": config.name,
        "run": plan.name,
        "algorithm": config.algorithm.name,
        "hyperparameters": {
            "step_size": config.local.model_dump(mode="json", by_alias=True)["step_size"],
            **(config.algorithm.model_extra or {}),
        },
        **records.summarise(done, config.threshold, spaces),
    }
