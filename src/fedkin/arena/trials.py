"""Trials: every method with the same number of settings, judged on validation samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedkin.arena.entrants import Entrant
from fedkin.experiments.data_sections import Settings
from fedkin.files import as_json, json_object, write_atomically
from fedkin.types import Record

SHARES = (0.1, 0.2, 0.5)  # of the rounds, after which the better half of the trials goes on
LEAST_ROUNDS = 20  # fewer rounds are not divided
FEWEST_TRIALS = 2  # trials of each method that go on in any case


@dataclass(frozen=True)
class Trial:
    """Settings of a method, and its loss on validation samples.

    settings  by dotted name
    losses    by the number of rounds after which they were measured; infinite: diverged
    """

    settings: Record
    losses: Mapping[int, float] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        """Whether its run diverged."""
        return math.inf in self.losses.values()


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
                f"{number} {as_json(one['settings'])}": Trial(one["settings"], _losses(one["losses"]))
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
                {"settings": one.settings, "losses": {str(k): _written(v) for k, v in one.losses.items()}}
                for one in trials
            ]
            for number, trials in self.trials.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, as_json({"problem": self.problem, "trials": trials}, indent=1).encode())

    def going_on(self, rungs: Sequence[int]) -> dict[int, list[int]]:
        """The trials of each method, by their places, that go on after these numbers of rounds: the better half each.

        Those that diverged do not, and at least two of the others do.
        """
        found = {}
        for m, trials in self.trials.items():
            places = list(range(len(trials)))
            for rounds in rungs:
                places = sorted(places, key=lambda k: (trials[k].losses[rounds], k))
                places = places[: max(FEWEST_TRIALS, math.ceil(len(places) / 2))]
                places = [k for k in places if not trials[k].diverged]
            found[m] = places
        return found

    def learn(self, places: Sequence[tuple[int, int]], losses: Sequence[float], rounds: int) -> None:
        """Add losses of trials after so many rounds."""
        for (m, k), loss in zip(places, losses, strict=True):
            one = self.trials[m][k]
            self.trials[m][k] = replace(one, losses={**one.losses, rounds: loss})
        self.write()

    def best(self, method: int, rounds: int) -> Trial | None:
        """The trial with the lowest loss after all rounds; None if all have diverged."""
        ended = [one for one in self.trials[method] if math.isfinite(one.losses.get(rounds, math.inf))]
        return min(ended, key=lambda one: one.losses[rounds]) if ended else None


def rungs_of(rounds: int) -> list[int]:
    """After how many rounds trials are judged.

    >>> rungs_of(50), rungs_of(19)
    ([5, 10, 25, 50], [19])
    """
    return [rounds] if rounds < LEAST_ROUNDS else [*(math.ceil(share * rounds) for share in SHARES), rounds]


def sizes_of(trials: int, rungs: int) -> list[int]:
    """How many trials of a method take part in each stage, if none diverges.

    >>> sizes_of(16, 4), sizes_of(3, 4)
    ([16, 8, 4, 2], [3, 2, 2, 2])
    """
    sizes = [trials]
    while len(sizes) < rungs:
        sizes.append(min(sizes[-1], max(FEWEST_TRIALS, math.ceil(sizes[-1] / 2))))
    return sizes


def tune(
    tuning: Trials, methods: Sequence[Entrant], rounds: int, losses: Callable[[list[Settings], int], list[float]]
) -> None:
    """Carry out all trials.

    losses  of tables of `[[algorithm]]` after some rounds, infinite where a run has diverged
    """
    rungs = rungs_of(rounds)
    for stage, until in enumerate(rungs):
        going_on = tuning.going_on(rungs[:stage])
        places = [(m, k) for m, own in going_on.items() for k in own if until not in tuning.trials[m][k].losses]
        if places:
            tables = [methods[m].table(tuning.trials[m][k].settings) for m, k in places]
            tuning.learn(places, losses(tables, until), until)


def edges(search: Mapping[str, Any], trials: Sequence[Trial], best: Trial) -> dict[str, str]:
    """Numbers of the best trial that are the smallest or largest of those tried: setting and end."""
    found = {}
    for name in search:
        values = [one.settings[name] for one in trials]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(set(values)) > 1 and (value := best.settings[name]) in (min(values), max(values)):
            found[name] = "largest" if value == max(values) else "smallest"
    return found


def _written(loss: float) -> float | str:
    return "diverged" if loss == math.inf else loss


def _losses(written: Mapping[str, float | str]) -> dict[int, float]:
    return {int(rounds): math.inf if isinstance(loss, str) else loss for rounds, loss in written.items()}
