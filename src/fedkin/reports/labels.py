"""Settings and values in words: for labels, titles and column heads, without runs."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedkin.algorithms import ALGORITHMS, label_of
from fedkin.reports.tables import NEVER

MISSING = object()  # a setting that the configuration does not have, as opposed to one that is null
PROBLEM = ("partition.clients", "partition.class_imbalance", "partition.size_imbalance")
_LETTERS = {
    "alpha": "α",
    "beta": "β",
    "kappa": "κ",
    "gamma": "γ",
    "step_size": "γ",
    "l2": "λ",
    "penalty": "λ",
    "epochs": "E",
    "class_imbalance": "a",
    "size_imbalance": "b",
}


# -- values ------------------------------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a value of a configuration or record is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: object) -> float:
    """A value as a number, NaN if it is not one."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.nan


def comparable(value: object) -> str:
    """Equal for equal values, and hashable for every value: 1 and 1.0 are the same setting."""
    if value is MISSING:
        return "missing"
    return json.dumps(number(value) if is_number(value) else value, sort_keys=True)


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({comparable(table.get(key, MISSING)) for table in tables}) > 1]


def sortable(values: Iterable[object]) -> tuple[tuple[bool, float, str], ...]:
    """A sort key for values of any type: numbers first."""
    return tuple((False, number(value), "") if is_number(value) else (True, 0.0, plain(value)) for value in values)


def plain(value: object) -> str:
    """A value of the configuration in a label; a schedule as `linear(start 1, end 0.5)`."""
    if value is MISSING:
        return NEVER
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return " ".join(plain(entry) for entry in value)
    if isinstance(value, dict):
        rest = dict(value)
        kind = next((str(rest.pop(key)) for key in ("kind", "name", "schedule") if key in rest), "")
        return f"{kind}({', '.join(f'{key} {plain(entry)}' for key, entry in rest.items())})"
    return str(value)


# -- settings ----------------------------------------------------------------------------------------------------------


def is_seed(setting: str) -> bool:
    """Whether a setting is a seed."""
    return setting.split(".")[-1] == "seed"


def is_problem(setting: str) -> bool:
    """Whether a setting belongs to the learning problem. Curves of two problems are not drawn in one panel.

    Pooled samples are another way to learn for the same testing clients.
    """
    return setting.split(".")[0] in ("data", "partition", "model") and setting != "partition.pooled"


def short(setting: str) -> str:
    """A setting in a label: the paper's letter if there is one."""
    section, _, last = setting.rpartition(".")
    if last in ("kind", "name", "source") and section:
        return section.split(".")[-1]
    return _LETTERS.get(last, last.replace("_", " "))


def setting_text(setting: str, value: object) -> str:
    """A setting with its value in a label: `γ=0.1`; `pooled` for what is true, and nothing for what is false."""
    if isinstance(value, bool):
        return short(setting) if value else ""
    return f"{short(setting)}={plain(value)}"


def title_of(setting: str, among: Sequence[str]) -> str:
    """A setting as the title of a column, with its section if two would have the same title."""
    section, _, last = setting.rpartition(".")
    words = short(setting) if last in ("kind", "name", "source") else last.replace("_", " ")
    if sum(short(other) == short(setting) for other in among) > 1 and section:
        words = f"{section.split('.')[-1]} {last.replace('_', ' ')}"
    letter = _LETTERS.get(last, "")
    return f"{words} {letter}".strip() if letter != words else words


def problem_part(setting: str, value: object) -> str:
    """A setting of the learning problem in words: `100 clients`, `by writer`, `a = 10`."""
    if setting == "partition.clients":
        return f"{plain(value)} clients"
    if setting == "partition.group":
        return f"by {plain(value)}"
    if setting in ("data.source", "model.kind"):
        return plain(value).rstrip("/").split("/")[-1]  # the last component of a path
    return f"{short(setting)} = {plain(value)}"


# -- algorithms --------------------------------------------------------------------------------------------------------


def main_hyper(algorithm: str) -> tuple[str, float] | None:
    """The main hyper-parameter of an algorithm, and the value at which it is FedAvg; None if it has none."""
    known = ALGORITHMS.get(algorithm)
    return next(iter(known.neutral.items()), None) if known else None


def method_label(algorithm: str, hyperparameters: Mapping[str, Any], shown: Iterable[str]) -> str:
    """An algorithm with some of its hyper-parameters: `FedKin β=0.5`."""
    parts = [setting_text(key, hyperparameters[key]) for key in shown if key in hyperparameters]
    return f"{label_of(algorithm)} {', '.join(filter(None, parts))}".strip()


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
