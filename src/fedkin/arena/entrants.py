"""The methods that are compared: what of them is fixed, and what is searched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkin.algorithms import algorithm_named, label_of
from fedkin.algorithms.search import Between, OneOf, Search, points
from fedkin.errors import BadInput
from fedkin.experiments.config import knobs
from fedkin.experiments.data_sections import Settings
from fedkin.types import Record

SEARCHED_STEP = "local.step_size"
ADAM_STEPS = Between(1e-4, 0.1)  # of every method, as Adam's steps do not shrink with the gradient
POOLED: Settings = {"name": "fedavg", "partition": {"pooled": True}, "local": {"epochs": 1}}
# What a comparison always has: without them nobody can say whether a method is worth its trouble.
ALWAYS: tuple[Settings, ...] = ({"name": "alone"}, {"name": "fedavg"}, {"name": "finetuned"}, POOLED)
USUAL = (
    "fedprox", "fedavgm", "fedadam", "scaffold", "ditto", "pfedme", "ifca", "fedkin", "kin",
)  # fmt: skip


@dataclass(frozen=True)
class Entrant:
    """A method in a comparison.

    fixed   its table of `[[algorithm]]`, without what is searched
    search  where its settings are searched, by their dotted name; those without a section are the algorithm's
    usual   whether nobody has asked for it: it is left out where other settings do not allow it
    """

    fixed: Settings
    search: Mapping[str, Search]
    usual: bool = False

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.fixed["name"])

    @property
    def label(self) -> str:
        """Its name in tables, with the settings that the user has fixed."""
        if self.fixed == POOLED:
            return "FedAvg, pooled"
        rest = [
            f"{key}={value}"
            for key, value in _flat(self.fixed).items()
            if key != "name" and not isinstance(value, bool)
        ]
        return " ".join([label_of(self.algorithm), *rest])

    def trials(self, count: int, seed: int) -> list[Record]:
        """Points of its space: settings by dotted name."""
        return points(self.search, count, seed)

    def table(self, point: Mapping[str, Any]) -> Settings:
        """Its table of `[[algorithm]]` with the settings of a point."""
        table: Settings = {key: dict(value) if isinstance(value, dict) else value for key, value in self.fixed.items()}
        for name, value in point.items():
            section, _, leaf = name.rpartition(".")
            (table.setdefault(section, {}) if section else table)[leaf] = value
        return table


def entrants(settings: Settings, names: Sequence[str]) -> list[Entrant]:
    """The methods of a comparison: those named, or of the file, or the usual ones; and always the baselines.

    A number that the file has for an algorithm is fixed. A list is searched, and so is what the class names as its
    search space. Step sizes are searched for every method: between the ends of a list, or in the class's range.
    """
    given = _tables(settings.get("algorithm"))
    if names:
        tables = [next((one for one in given if one["name"] == name), {"name": name}) for name in names]
    else:
        tables = given if len(given) > 1 else [{"name": name} for name in USUAL]
    found = [replace(_entrant(table, settings), usual=not names and len(given) < 2) for table in tables]
    for table in ALWAYS:
        own = [one for one in found if one.algorithm == table["name"] and is_pooled(one.fixed) == is_pooled(table)]
        found += [] if own else [_entrant(table, settings)]
    return sorted(found, key=lambda one: _place(one.fixed))


def _place(table: Settings) -> int:
    """Baselines first, pooled last; the others as they are given."""
    first = [base["name"] for base in ALWAYS[:-1]]
    return len(first) + 1 if is_pooled(table) else first.index(table["name"]) if table["name"] in first else len(first)


def is_pooled(table: Settings) -> bool:
    """Whether a method has all samples in one place."""
    section = table.get("partition", {})
    return bool(isinstance(section, dict) and section.get("pooled"))


def _tables(given: Any) -> list[Settings]:
    """What a file has as `algorithm`: a name, a table, or a list of these; a list of names in a table is several."""
    entries = given if isinstance(given, list) else [given] if given else []
    tables: list[Settings] = []
    for entry in entries:
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict):
            raise BadInput(f"algorithm = {entry!r} is not valid: give a name, a table, or a list of these")
        names = table.get("name", "fedavg")
        tables += [{**table, "name": name} for name in (names if isinstance(names, list) else [names])]
    return tables


def _entrant(table: Settings, settings: Settings) -> Entrant:
    kind, name = algorithm_named(table["name"]), table["name"]
    if not isinstance(own := table.get("local", {}), dict):
        raise BadInput(f"local of the algorithm '{name}' must be a table of keys, not {own!r}")
    is_adam = {**settings.get("local", {}), **own}.get("optimizer") == "adam"
    known = set(knobs(name))
    fixed: Settings = {}
    search: dict[str, Search] = {}
    for key, value in table.items():
        if isinstance(value, dict) and key not in known:
            fixed[key] = {leaf: one for leaf, one in value.items() if not isinstance(one, list)}
            search |= {f"{key}.{leaf}": _listed(one) for leaf, one in value.items() if isinstance(one, list)}
        elif isinstance(value, list):
            search[key] = _listed(value)
        else:
            fixed[key] = value
    for key, usual in kind.search.items():
        where = SEARCHED_STEP if key == "step_size" else key
        if key not in fixed and where not in search:
            search[where] = ADAM_STEPS if is_adam and where == SEARCHED_STEP else usual
    general = settings.get("local", {}).get("step_size")
    if isinstance(general, list) and "step_size" not in own:
        numbers = [float(one) for one in general if isinstance(one, int | float)]
        search[SEARCHED_STEP] = Between(min(numbers), max(numbers)) if len(numbers) > 1 else _listed(general)
    if isinstance(fixed.get("local"), dict) and "step_size" in fixed["local"]:
        search.pop(SEARCHED_STEP, None)
    first = {SEARCHED_STEP: search[SEARCHED_STEP]} if SEARCHED_STEP in search else {}
    return Entrant(fixed, {**first, **search})  # γ is the first coordinate of every method


def _listed(values: list[Any]) -> OneOf:
    if not values:
        raise BadInput("a list of settings is empty: give at least one value")
    return OneOf(tuple(values))


def _flat(table: Settings) -> Record:
    return {
        name: value
        for key, entry in table.items()
        for name, value in (entry.items() if isinstance(entry, dict) else [(key, entry)])
    }
