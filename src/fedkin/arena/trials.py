"""Trials: every method with the same number of settings, judged on validation samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedkin.arena.entrants import Entrant
from fedkin.experiments.data_sections import Settings
from fedkin.files import as_json, json_object, write_atomically
from fedkin.types import Record

EARLY = 5  # trials are judged after a fifth of the rounds, and the better half goes on
LEAST_ROUNDS = 20  # fewer rounds are not divided


@dataclass(frozen=True)
class Trial:
    """Settings of a method, and its loss on validation samples.

    settings  by dotted name
    early     loss after the first rounds; None: not yet known, infinite: diverged
    loss      loss after all rounds; None: not yet known, or stopped early
    """

    settings: Record
    early: float | None = None
    loss: float | None = None


@dataclass
class Trials:
    """The trials of all methods, by the method's number, kept in a file.

    problem  what they depend on: with another one they are done again
    """

    path: Path
    problem: Record
    trials: dict[int, list[Trial]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, problem: Record, every: Mapping[int, Sequence[Record]]) -> "Trials":
        """All trials, those that the file has with their losses."""
        old = json_object(path) or {}
        known: dict[str, Trial] = {}
        if old.get("problem") == problem:
            known = {
                f"{number} {as_json(one['settings'])}": Trial(one["settings"], _loss(one["early"]), _loss(one["loss"]))
                for number, trials in old.get("trials", {}).items()
                for one in trials
            }
        fresh = {
            number: [known.get(f"{number} {as_json(settings)}", Trial(settings)) for settings in settings_of]
            for number, settings_of in every.items()
        }
        return cls(path, problem, fresh)

    def write(self) -> None:
        """Write the file."""
        trials = {
            str(number): [
                asdict(one) | {"early": _written(one.early), "loss": _written(one.loss)} for one in trials
            ]
            for number, trials in self.trials.items()
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, as_json({"problem": self.problem, "trials": trials}, indent=1).encode())

    def early(self) -> list[tuple[int, int]]:
        """Trials, by method and place, without a loss after the first rounds."""
        return [(m, k) for m, trials in self.trials.items() for k, one in enumerate(trials) if one.early is None]

    def late(self, is_divided: bool) -> list[tuple[int, int]]:
        """The better half of each method's trials, of those that have no loss after all rounds."""
        found = []
        for m, trials in self.trials.items():
            order = sorted(range(len(trials)), key=lambda k: (trials[k].early, k))
            half = order[: math.ceil(len(order) / 2)] if is_divided else order
            found += [(m, k) for k in half if trials[k].loss is None and trials[k].early != math.inf]
        return found

    def learn(self, places: Sequence[tuple[int, int]], losses: Sequence[float], stage: str) -> None:
        """Add losses of trials."""
        for (m, k), loss in zip(places, losses, strict=True):
            one = self.trials[m][k]
            self.trials[m][k] = replace(one, early=loss) if stage == "early" else replace(one, loss=loss)
        self.write()

    def best(self, method: int) -> Trial | None:
        """The trial with the lowest loss after all rounds; None if all have diverged."""
        ended = [one for one in self.trials[method] if one.loss is not None and math.isfinite(one.loss)]
        return min(ended, key=lambda one: one.loss or 0.0) if ended else None


def early_rounds(rounds: int) -> int:
    """After how many rounds trials are judged for the first time."""
    return rounds if rounds < LEAST_ROUNDS else math.ceil(rounds / EARLY)


def tune(
    tuning: Trials, methods: Sequence[Entrant], rounds: int, losses: Callable[[list[Settings], int], list[float]]
) -> None:
    """Carry out all trials.

    losses  of tables of `[[algorithm]]` after some rounds, infinite where a run has diverged
    """

    def tables(places: Sequence[tuple[int, int]]) -> list[Settings]:
        return [methods[m].table(tuning.trials[m][k].settings) for m, k in places]

    first = early_rounds(rounds)
    if places := tuning.early():
        tuning.learn(places, losses(tables(places), first), "early")
    places = tuning.late(first < rounds)
    if places:
        tuning.learn(places, losses(tables(places), rounds), "loss")


def edges(search: Mapping[str, Any], trials: Sequence[Trial], best: Trial) -> dict[str, str]:
    """Numbers of the best trial that are the smallest or largest of those tried: setting and end."""
    found = {}
    for name in search:
        values = [one.settings[name] for one in trials]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(set(values)) > 1 and (value := best.settings[name]) in (min(values), max(values)):
            found[name] = "largest" if value == max(values) else "smallest"
    return found


def _written(loss: float | None) -> float | str | None:
    return "diverged" if loss == math.inf else loss


def _loss(written: float | str | None) -> float | None:
    return math.inf if isinstance(written, str) else written
