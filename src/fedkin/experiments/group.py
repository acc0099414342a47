"""Groups: runs of one federation that are executed together as lanes, each with its own folder.

Guarantee: the runs of one command give bitwise identical results however often they are interrupted, for any
`checkpoint_every`, and if some have finished or lost their folder. In another group, or alone, a run gives the same
numbers up to rounding, because larger matrix products sum in another order. Therefore a group is fixed when its runs
start (origin.json): a run that has to be repeated is executed together with the others of its group, even if those have
finished. A diverging run leaves the group after the round in which its loss is no longer finite.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.engine import lanes
from fedkin.engine.own import client_table, kin_graph
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments import records
from fedkin.experiments.grid import Plan
from fedkin.experiments.progress import Listener
from fedkin.experiments.results import Result
from fedkin.experiments.rounds import play
from fedkin.types import Record

CHECKPOINT_SECONDS = 30.0
# Maximum number of runs in a group: more rows make products no faster, and each run has an open lock file.
MOST_LANES = 256


@dataclass
class Lane:
    """A run of a group.

    done   records of the rounds so far
    ended  result of the run, or None; a run that had a result before is repeated without writing anything
    """

    plan: Plan
    folder: records.RunFolder
    settings: Record
    simulation: Simulation
    done: list[Record] = field(default_factory=list)
    ended: Result | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the run has a result, so that nothing is written any more."""
        return self.ended is not None

    def end(self, state: State, *, diverged: bool) -> None:
        """Write the result: what the clients' models achieve, who is kin, the summary, the global model."""
        summary = describe(self.plan, self.done, state.spaces)
        about = () if diverged else (client_table(self.simulation, state), kin_graph(self.simulation, state))
        self.folder.finish(summary, state.model, *about)
        self.ended = Result(self.plan.name, self.settings, self.done, summary, state.model, self.folder.path)

    def sound_rounds(self, rounds: int) -> set[int]:
        """Numbers of rounds after which the group can continue; any after this run has left the group."""
        sound = {0, *self.folder.sound_rounds()}
        if self.ended is not None and self.ended.summary["status"] == "diverged":
            sound |= set(range(len(self.ended.rounds), rounds + 1))
        return sound

    def takes_part(self, begin: int) -> bool:
        """Whether the run is still in the group after `begin` rounds."""
        return self.ended is None or self.ended.summary["status"] != "diverged" or len(self.ended.rounds) > begin


def kept_result(folder: records.RunFolder, plan: Plan, settings: Record) -> Result | None:
    """The result in the folder, if the run has ended and all files are intact."""
    if (found := folder.result()) is None:
        return None
    summary, done, model = found
    if summary["status"] == "finished" and len(done) != plan.config.rounds:
        return None
    return Result(plan.name, settings, done, summary, model, folder.path)


def run_group(group: Sequence[Lane], listener: Listener) -> None:
    """Run a group until all its runs have ended, continuing from the last common checkpoint."""
    config = group[0].plan.config
    rounds, every = config.rounds, config.checkpoint_every
    begin = max(set.intersection(*(lane.sound_rounds(rounds) for lane in group)))
    going = [lane for lane in group if lane.takes_part(begin)]
    states = [lane.folder.load(begin, lane.simulation.device) if begin else lane.simulation.start() for lane in going]
    for lane in going:
        if not lane.is_kept:
            lane.done = lane.folder.records()[:begin]
            lane.folder.keep_records(lane.done)
            lane.folder.begin([other.plan.name for other in group])
            listener.begin(lane.plan.name, rounds, begin)
    together = lanes.together([lane.simulation for lane in going])  # one object for all rounds, as it has caches
    state = lanes.joined(states, together)
    saved = time.monotonic()
    while going:
        if state.round < rounds:
            own = (state.round + 1) % config.evaluate_every == 0 or state.round + 1 == rounds
            state, new = play(together, [lane.simulation.local.l2 for lane in going], state, evaluate_own=own)
        else:
            new = []  # interrupted between the last checkpoint and the result
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
            # First the runs that continue: if a crash follows, they have checkpoints of the round in which a run left.
            if not (lane.is_kept or left):
                lane.folder.save(part)
        saved = time.monotonic()
        for lane, part, left in zip(going, parts, diverged, strict=True):
            if (over or left) and not lane.is_kept:
                lane.end(part, diverged=left)
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
