"""Algorithms by name: a built-in one, or `package.module:Class` for any other."""

from dataclasses import fields
from typing import Any

from fedkin.algorithms.base import Algorithm
from fedkin.algorithms.drift import SCAFFOLD, FedDyn, FedNova
from fedkin.algorithms.family import FedAvg, FedKin, FedProx, FedSGD
from fedkin.algorithms.kin import Kin
from fedkin.algorithms.mixtures import FedEM
from fedkin.algorithms.multitask import CFL, L2GD, MOCHA, MRMTL, FedAMP, FedU
from fedkin.algorithms.personal import APFL, IFCA, Alone, Ditto, FineTuned, PerFedAvg, PFedMe
from fedkin.algorithms.schedules import Schedule
from fedkin.algorithms.selection import PowerOfChoice
from fedkin.algorithms.server_optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedkin.errors import BadInput, nearest
from fedkin.imports import imported_object

# In the order in which reports list them.
ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedkin": FedKin,
    "kin": Kin,
    "fedsgd": FedSGD,
    "alone": Alone,
    "finetuned": FineTuned,
    "ifca": IFCA,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "powerofchoice": PowerOfChoice,
    "ditto": Ditto,
    "apfl": APFL,
    "mrmtl": MRMTL,
    "l2gd": L2GD,
    "pfedme": PFedMe,
    "perfedavg": PerFedAvg,
    "fedu": FedU,
    "mocha": MOCHA,
    "cfl": CFL,
    "fedamp": FedAMP,
    "fedem": FedEM,
}
LABELS = {"mrmtl": "MR-MTL", "powerofchoice": "Power-of-Choice", "pfedme": "pFedMe", "perfedavg": "Per-FedAvg"}


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of an algorithm, from its name in lower case or its import path."""
    if ":" in name:
        return _imported(name)
    try:
        return ALGORITHMS[name]
    except KeyError:
        names = nearest(name, ALGORITHMS)
        raise BadInput(
            f"unknown algorithm '{name}'{names}: or give an import path such as package.module:Class"
        ) from None


def name_of(algorithm: Algorithm) -> str:
    """The name or import path of an algorithm: the inverse of `algorithm_named`."""
    kind = type(algorithm)
    known = next((name for name, known in ALGORITHMS.items() if known is kind), None)
    return known or f"{kind.__module__}:{kind.__qualname__}"


def settings_of(algorithm: Algorithm) -> dict[str, Any]:
    """The fields of an algorithm, as in a configuration."""
    return {f.name: _written(getattr(algorithm, f.name)) for f in fields(algorithm)}


def _written(value: Any) -> Any:
    if isinstance(value, Schedule):
        return {"from": value.start, "to": value.end, "over": value.over, "shape": value.shape}
    return value


def label_of(name: str) -> str:
    """Display name of an algorithm: `FedKin` for `fedkin`, `FedMine` for `mypackage.mine:FedMine`.

    Nothing is imported: reports may show runs of algorithms that are not installed.
    """
    if name in ALGORITHMS:
        return LABELS.get(name, ALGORITHMS[name].__name__)
    last = name.rpartition(":")[2]
    return "Fed" + last[3:].capitalize() if last.startswith("fed") else last


def _imported(path: str) -> type[Algorithm]:
    found = imported_object(path, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise BadInput(f"'{path}' is not a subclass of fedkin.Algorithm: give the path of one")
    return found
