"""Groups: runs of one federation that are executed together as lanes, each with its own folder.

Guarantee: the runs of one command give bitwise identical results however often they are interrupted, for any
`checkpoint_every`, and if some have finished or lost their folder. In another group, or alone, a run gives the same
numbers up to rounding, because larger matrix products sum in another order. Therefore a group is fixed when its runs
start (origin.json): a run that has to be repeated is executed together with the others of its group, even if those have
finished. A diverging run leaves the group after the round in which its loss is no longer finite.

The last checkpoint is kept, so that a run with more rounds continues. 60 rounds and then 100 give the bits of 100 at
once, in the same group.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedkin.data.card import DataCard
from fedkin.data.measure import measure_in
from fedkin.engine import lanes
from fedkin.engine.metrics import has_diverged
from fedkin.engine.own import kin_graph, models_of
from fedkin.engine.scores import client_table, predictions, score_summary
from fedkin.engine.simulation import Simulation, State
from fedkin.experiments import records
from fedkin.experiments.grid import Plan
from fedkin.experiments.model_files import OWN_FILE, is_kept
from fedkin.experiments.progress import Listener
from fedkin.experiments.results import Result
from fedkin.experiments.rising import WATCHED, first_losses, growth_of, watched
from fedkin.experiments.rounds import is_evaluated, notes_of, play, unmeasured
from fedkin.types import Record

CHECKPOINT_SECONDS = 30.0
# Maximum number of runs in a group: more rows make products no faster, and each run has an open lock file.
MOST_LANES = 256


@dataclass
class Lane:
    """A run of a group.

    done    records of the rounds so far
    first   training loss of the initial model
    ended   result of the run, or None; a run that had a result before is repeated without writing anything
    before  summary of a result with fewer rounds, or without the models of the clients
    """

    plan: Plan
    folder: records.RunFolder
    settings: Record
    simulation: Simulation
    done: list[Record] = field(default_factory=list)
    first: float = float("nan")
    ended: Result | None = None
    before: Record = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether the run has a result, so that nothing is written any more."""
        return self.ended is not None

    def end(self, state: State, *, diverged: bool) -> None:
        """Write the result: the clients' own models, what they achieve, who is kin, the global model, the summary."""
        spaces = state.spaces or (self.before.get("spaces") if self.before.get("rounds") == len(self.done) else None)
        summary, simulation = describe(self.plan, self.done, spaces or {}), self.simulation
        if simulation.privacy is not None:
            summary |= simulation.privacy.summary(simulation.releases(len(self.done)))
        table: list[Record] = []
        kin = None
        whole = not diverged and self.plan.config.keep != "state"
        if whole:
            found = predictions(simulation, state, self.plan.config.tuning)
            summary |= score_summary(simulation, found)
            table, kin = client_table(simulation, state, found), kin_graph(simulation, state)
        clients, size = len(simulation.federation.train), simulation.used_model.size
        personal = simulation.algorithm.at(state.round).is_personal and whole
        if personal and is_kept(self.plan.config.keep, clients * size):
            self.folder.write_own(((who, models[0]) for who, models in models_of(simulation, state)), clients, size)
        card = DataCard.of(simulation.federation, personal=personal)
        self.folder.finish(summary, state.model, table, kin, card)
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
    if summary["status"] == "finished" and (len(done) != plan.config.rounds or _lacks_models(folder, plan)):
        return None
    return Result(plan.name, settings, done, summary, model, folder.path)


def _lacks_models(folder: records.RunFolder, plan: Plan) -> bool:
    """Whether the clients' own models are missing although they are to be kept whatever their size."""
    if plan.config.keep != "all" or (folder.path / OWN_FILE).exists():
        return False
    return plan.config.algorithm.build(plan.config.local.step_size).is_personal


def run_group(group: Sequence[Lane], listener: Listener) -> None:
    """Run a group until all its runs have ended, continuing from the last common checkpoint."""
    running = RunningGroup(group, listener)
    while running.going:
        running.round()
    for lane in group:
        lane.folder.tidy(group[0].plan.config.keep)


class RunningGroup:
    """A group between two rounds.

    going     the runs that have not ended
    together  their simulation: one object for all rounds, as it has caches
    state     their common state
    """

    def __init__(self, group: Sequence[Lane], listener: Listener) -> None:
        self.config, self.listener = group[0].plan.config, listener
        rounds, every = self.config.rounds, self.config.evaluate_every
        begin = max(set.intersection(*(lane.sound_rounds(rounds) for lane in group)))
        self.going = [lane for lane in group if lane.takes_part(begin)]
        states = [
            lane.folder.load(begin, lane.simulation.device) if begin else lane.simulation.start() for lane in self.going
        ]
        listener.together([lane.plan.name for lane in self.going if not lane.is_kept])
        for lane, state in zip(self.going, states, strict=True):
            if not lane.is_kept:
                lane.done = lane.folder.records()[:begin]
                if begin and not is_evaluated(begin - 1, every, rounds):
                    # It was measured as the last round, which it no longer is.
                    lane.done[-1] = unmeasured(lane.done[-1], notes_of(lane.simulation, state, 0))
                lane.folder.keep_records(lane.done)
                lane.before = lane.folder.begin([other.plan.name for other in group], lane.plan.beside)
                listener.about(lane.plan.name, lane.folder.path, lane.settings)
                listener.begin(lane.plan.name, rounds, begin)
        new = [lane for lane in self.going if not (begin or lane.is_kept)]
        cautions = ((lane.plan.name, lane.simulation.caution()) for lane in new)
        for name, sentence in itertools.islice(((name, said) for name, said in cautions if said), 1):  # once for all
            listener.warn(name, sentence)
        self._join(states)
        if begin < WATCHED:
            _measure_first(self.going, self.together)
        self.saved = time.monotonic()

    def _join(self, states: Sequence[State]) -> None:
        self.together = lanes.together([lane.simulation for lane in self.going])
        self.state = lanes.joined(states, self.together)

    def round(self) -> None:
        """Run one round: train, measure, write the records, and a checkpoint if one is due."""
        config, rounds = self.config, self.config.rounds
        new: list[Record] = []  # none if the group was interrupted between the last checkpoint and the result
        if self.state.round < rounds:
            self.state, new = play(
                self.together,
                [lane.simulation.local.l2 for lane in self.going],
                self.state,
                evaluate=is_evaluated(self.state.round, config.evaluate_every, rounds),
                training=config.evaluate == "all",
                tuning=config.tuning,
            )
        if new and watched(self.state, rounds):
            _warn_of_growth(self.going, self.together, self.state, new, self.listener)
        for lane, record in zip(self.going, new, strict=False):
            if not lane.is_kept:
                lane.folder.append(record)
                lane.done.append(record)
                self.listener.round(lane.plan.name, record)
        diverged = [has_diverged(record) for record in new] or [False] * len(self.going)
        due = self.state.round % config.checkpoint_every == 0 or time.monotonic() - self.saved > CHECKPOINT_SECONDS
        if due or any(diverged) or self.state.round >= rounds:
            self._checkpoint(diverged)

    def _checkpoint(self, diverged: Sequence[bool]) -> None:
        """Write the states of the runs that continue and the results of those that have ended, which leave."""
        over = self.state.round >= self.config.rounds
        parts = lanes.parted(self.state, [lane.simulation for lane in self.going])
        for lane, part, left in zip(self.going, parts, diverged, strict=True):
            # First the runs that continue: if a crash follows, they have checkpoints of the round in which a run left.
            if not (lane.is_kept or left):
                lane.folder.save(part)
        self.saved = time.monotonic()
        for lane, part, left in zip(self.going, parts, diverged, strict=True):
            if (over or left) and not lane.is_kept:
                lane.end(part, diverged=left)
                assert lane.ended is not None
                self.listener.end(lane.plan.name, lane.ended.summary, False)
        stay = [not (over or left) for left in diverged]
        if not all(stay):
            self.going = [lane for lane, on in zip(self.going, stay, strict=True) if on]
            if self.going:
                self._join([part for part, on in zip(parts, stay, strict=True) if on])


def _measure_first(going: Sequence[Lane], group: Simulation) -> None:
    """The loss of the initial model, which is the same in all lanes but for the penalty."""
    model = going[0].simulation.start().model
    losses = first_losses(group, model, [lane.simulation.local.l2 for lane in going])
    for lane, loss in zip(going, losses, strict=True):
        lane.first = loss


def _warn_of_growth(
    going: Sequence[Lane], group: Simulation, state: State, new: Sequence[Record], listener: Listener
) -> None:
    """Say so if the loss has grown in the first rounds, and put it into the record."""
    done = [[*lane.done, record] for lane, record in zip(going, new, strict=True)]
    said = growth_of(group, state, [lane.first for lane in going], done)
    for lane, record, sentence in zip(going, new, said, strict=True):
        if sentence and not lane.is_kept:
            record["warning"] = sentence
            listener.warn(lane.plan.name, sentence)


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
        **records.summarise(done, config.goal(measure_in(done[-1])), spaces),
    }
