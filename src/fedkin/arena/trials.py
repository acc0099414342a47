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

    problem  what all of them depend on: with another one they are done again
    methods  tables of the methods, without what is searched
    others   trials in the file that are not asked for this time: of other methods, or of a larger budget
    """

    path: Path
    problem: Record
    methods: Sequence[Record]
    trials: dict[int, list[Trial]] = field(default_factory=dict)
    others: list[Record] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path, problem: Record, methods: Sequence[Record], every: Sequence[Sequence[Record]]) -> "Trials":
        """The trials with these settings of each method, those that the file has with their losses."""
        old = json_object(path) or {}
        written = old["trials"] if old.get("problem") == problem else []
        known = {_key_of(one["method"], one["settings"]): one for one in written}
        fresh: dict[int, list[Trial]] = {}
        for number, (method, settings_of) in enumerate(zip(methods, every, strict=True)):
            each = [(settings, known.get(_key_of(method, settings), {"losses": {}})) for settings in settings_of]
            fresh[number] = [Trial(settings, _losses(one["losses"])) for settings, one in each]
        asked = {_key_of(methods[m], one.settings) for m, trials in fresh.items() for one in trials}
        return cls(path, problem, methods, fresh, [one for key, one in known.items() if key not in asked])

    def write(self) -> None:
        """Write the file."""
        trials = [
            {"method": self.methods[m], "settings": one.settings, "losses": _written(one.losses)}
            for m, own in self.trials.items()
            for one in own
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"problem": self.problem, "trials": [*trials, *self.others]}
        write_atomically(self.path, as_json(content, indent=1).encode())

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


def _key_of(method: Record, settings: Record) -> str:
    return as_json({"method": method, "settings": settings})


def _written(losses: Mapping[int, float]) -> dict[str, float | str]:
    return {str(rounds): "diverged" if loss == math.inf else loss for rounds, loss in losses.items()}


def _losses(written: Mapping[str, float | str]) -> dict[int, float]:
    return {int(rounds): math.inf if isinstance(loss, str) else loss for rounds, loss in written.items()}
