"""Algorithms by name: one of ours, or `package.module:Class` for one of your own."""

from dataclasses import fields
from typing import Any

from fedkin.algorithms.base import Algorithm
from fedkin.algorithms.family import FedAvg, FedKin, FedProx, FedSGD
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput, nearest
from fedkin.imports import imported_object

# In the order in which reports list them.
ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedkin": FedKin,
    "fedsgd": FedSGD,
}


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of an algorithm, by its name in lower case or by its import path."""
    if ":" in name:
        return _imported(name)
    try:
        return ALGORITHMS[name]
    except KeyError:
        names = nearest(name, ALGORITHMS)
        raise BadInput(f"unknown algorithm '{name}'{names}: or give an import path such as mine:FedMine") from None


def name_of(algorithm: Algorithm) -> str:
    """The name under which an algorithm can be found again: the inverse of `algorithm_named`."""
    kind = type(algorithm)
    known = next((name for name, known in ALGORITHMS.items() if known is kind), None)
    return known or f"{kind.__module__}:{kind.__qualname__}"


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """The fields of an algorithm as they are written in a configuration."""
    return {f.name: _written(getattr(algorithm, f.name)) for f in fields(algorithm)}


def _written(value: Any) -> Any:
    if isinstance(value, Schedule):
        return {"from": value.start, "to": value.end, "over": value.over, "shape": value.shape}
    return value


def label_of(name: str) -> str:
    """An algorithm's name for people: `FedKin` for `fedkin`, `FedMine` for `mypackage.mine:FedMine`.

    Reports may show runs of algorithms that are not installed here, so nothing is imported.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name].__name__
    last = name.rpartition(":")[2]
    return "Fed" + last[3:].capitalize() if last.startswith("fed") else last


def _imported(path: str) -> type[Algorithm]:
    found = imported_object(path, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise BadInput(f"'{path}' is not a subclass of fedkin.Algorithm: give the path of one")
    return found
