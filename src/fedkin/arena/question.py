"""What a comparison is about: one federation, the methods, and the settings that all of their runs share."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedkin.arena.budget import Budget
from fedkin.arena.entrants import SEARCHED_STEP, Entrant, entrants, is_pooled
from fedkin.arena.federations import Source
from fedkin.errors import BadInput, Unsuitable
from fedkin.experiments.data_sections import Settings
from fedkin.experiments.grid import Plan, plans, settings_with
from fedkin.experiments.preparation import Preparation
from fedkin.imports import modules_beside

HELD_OUT = 0.2  # share of the clients' training samples that is held out, unless the file has another
# Settings that make a federation. A comparison has one.
FEDERATION = ("data", "partition", "model", "graph", "reading", "aggregation", "privacy")
NEVER_A_LIST = ("model", "shape")  # the section itself says how sizes are written


@dataclass(frozen=True)
class Question:
    """What is compared.

    name      of the folder of its results
    methods   those that are compared
    common    settings of all runs
    seed      of the trials; fresh ones follow it
    rounds    of a run
    beside    the folder of the file, in which modules of the user's own are looked for first
    left_out  methods that the settings do not allow, with the reasons
    """

    name: str
    methods: Sequence[Entrant]
    common: Settings
    seed: int
    rounds: int
    beside: Path | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def plans(self, tables: Sequence[Settings], **more: Any) -> list[Plan]:
        """Runs with these tables of `[[algorithm]]`; other settings take the place of the common ones."""
        return plans({**self.common, **more, "algorithm": list(tables)}, beside=self.beside)


def question_of(
    source: Source, names: Sequence[str], budget: Budget, overrides: Sequence[str], preparation: Preparation
) -> Question:
    """What a file or settings describe, with these methods (none: those of the file, or the usual ones).

    All settings but those of algorithms are checked first, with the words of `fedkin run`.

    preparation  for what settings allow
    """
    settings, beside = settings_with(source, overrides)
    name = f"{settings.get('name', 'experiment')}-compared"
    _check_one_federation(settings)
    plans({**{key: value for key, value in settings.items() if key != "algorithm"}, "name": name}, beside=beside)
    if isinstance(seeds := settings.get("seed"), list):  # as `fedkin run` takes them
        settings = {**settings, "seed": seeds[0]}
    if source is None:  # the embedded experiment shows a few methods, with some of their settings
        settings = {key: value for key, value in settings.items() if key != "algorithm"}
    with modules_beside(beside):
        methods = entrants(settings, names)
    seed, rounds = int(settings.get("seed", 0)), int(settings.get("rounds", 100))

    def with_methods(fit: Sequence[Entrant], left_out: Mapping[str, str]) -> Question:
        return Question(
            name, fit, _common(settings, rounds, _private_runs(fit, budget)), seed, rounds, beside, left_out
        )

    left_out = _unfit(with_methods(methods, {}), preparation)
    return with_methods([one for one in methods if one.label not in left_out], left_out)


def _unfit(question: Question, preparation: Preparation) -> dict[str, str]:
    """Of the usual methods, those that the settings do not allow, such as SCAFFOLD with Adam; with the reasons."""
    found = {}
    for one in question.methods:
        if one.usual:
            (point,) = one.trials(1, question.seed)
            try:
                preparation.simulation(question.plans([one.table(point)], seed=question.seed)[0].config)
            except Unsuitable as error:
                found[one.label] = str(error)
                warnings.warn(f"{one.label} is left out of the comparison: {error}", stacklevel=2)
    return found


def _check_one_federation(settings: Settings) -> None:
    for key in ("rounds", "take_part", "evaluate_every"):
        if isinstance(settings.get(key), list):
            raise BadInput(f"{key} has several values, and a comparison has one: choose it with --set {key}=…")
    for section in FEDERATION:
        table = settings.get(section, {})
        listed = [""] if isinstance(table, list) else [key for key in _lists(table) if (section, key) != NEVER_A_LIST]
        if listed:
            raise BadInput(
                f"{section}{'.' if listed[0] else ''}{listed[0]} has several values, which are several federations: "
                "compare one at a time, with --set"
            )
    if listed := [key for key in _lists(settings.get("local", {})) if key != "step_size"]:
        raise BadInput(
            f"local.{listed[0]} has several values: a comparison searches the step size and the numbers of "
            f"[[algorithm]]; put the list there, as local.{listed[0]}, or give one value"
        )


def _lists(table: Any) -> list[str]:
    """The keys of a section that have lists of values. What is no section is refused with its own words later."""
    return [key for key, value in table.items() if isinstance(value, list)] if isinstance(table, dict) else []


def _private_runs(methods: Sequence[Entrant], budget: Budget) -> int:
    """Number of runs in which clients send models that get noise, at most."""
    federated = [one for one in methods if one.algorithm != "alone" and not is_pooled(one.fixed)]
    return len(federated) * (budget.trials + budget.seeds)


def _common(settings: Settings, rounds: int, runs: int) -> Settings:
    """The settings of all runs: those of the file without algorithms, step size and seed, with validation samples.

    runs  with noise: an ε in the file is for all of them together
    """
    kept = {key: value for key, value in settings.items() if key not in ("algorithm", "name")}
    partition, local = dict(kept.get("partition", {})), dict(kept.get("local", {}))
    if partition.get("validation", "auto") == "auto":
        partition["validation"] = HELD_OUT
    local.pop(SEARCHED_STEP.partition(".")[2], None)
    privacy = kept.get("privacy", {})
    if isinstance(privacy, dict) and "epsilon" in privacy:
        kept["privacy"] = {"runs": runs, "rounds": rounds, **privacy}
    return {"seed": 0, **kept, "partition": partition, "local": local}
