"""Federated learning for clients whose data differ: clients learn from their kin."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.algorithms import (
        APFL,
        CFL,
        IFCA,
        L2GD,
        MOCHA,
        MRMTL,
        SCAFFOLD,
        Algorithm,
        Alone,
        Ditto,
        FedAdagrad,
        FedAdam,
        FedAMP,
        FedAvg,
        FedAvgM,
        FedDyn,
        FedEM,
        FedKin,
        FedNova,
        FedProx,
        FedSGD,
        FedU,
        FedYogi,
        FineTuned,
        Kin,
        Krum,
        Median,
        PerFedAvg,
        PFedMe,
        PowerOfChoice,
        TrimmedMean,
    )
    from fedkin.algorithms.local import Local
    from fedkin.algorithms.schedules import Schedule
    from fedkin.arena.comparison import compare
    from fedkin.data.client_sources import from_clients, from_folder, from_table
    from fedkin.data.encoding import Encoding
    from fedkin.data.federation import Clients, Federation
    from fedkin.data.partition import federate
    from fedkin.data.sources import Dataset, from_arrays, load
    from fedkin.engine.privacy import Privacy
    from fedkin.errors import BadInput
    from fedkin.experiments.loading import load_run
    from fedkin.experiments.results import Result
    from fedkin.experiments.run import run, train
    from fedkin.graph.similarity import SimilarityGraph, build_graph, message
    from fedkin.models import MLP, Linear, Model, Module, Softmax, build_model
    from fedkin.reports.plotting import plot

__version__ = "0.1.0"

__all__ = [
    "APFL",
    "CFL",
    "IFCA",
    "L2GD",
    "MLP",
    "MOCHA",
    "MRMTL",
    "SCAFFOLD",
    "Algorithm",
    "Alone",
    "BadInput",
    "Clients",
    "Dataset",
    "Ditto",
    "Encoding",
    "FedAMP",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDyn",
    "FedEM",
    "FedKin",
    "FedNova",
    "FedProx",
    "FedSGD",
    "FedU",
    "FedYogi",
    "Federation",
    "FineTuned",
    "Kin",
    "Krum",
    "Linear",
    "Local",
    "Median",
    "Model",
    "Module",
    "PFedMe",
    "PerFedAvg",
    "PowerOfChoice",
    "Privacy",
    "Result",
    "Schedule",
    "SimilarityGraph",
    "Softmax",
    "TrimmedMean",
    "build_graph",
    "build_model",
    "compare",
    "federate",
    "from_arrays",
    "from_clients",
    "from_folder",
    "from_table",
    "load",
    "load_run",
    "message",
    "plot",
    "run",
    "train",
]

# The module of each public name, imported with its first use: PyTorch takes seconds, and `fedkin --help` needs none.
_MODULES = {
    "APFL": "algorithms",
    "Algorithm": "algorithms",
    "Alone": "algorithms",
    "BadInput": "errors",
    "CFL": "algorithms",
    "Clients": "data.federation",
    "Dataset": "data.sources",
    "Ditto": "algorithms",
    "Encoding": "data.encoding",
    "FedAMP": "algorithms",
    "FedAdagrad": "algorithms",
    "FedAdam": "algorithms",
    "FedAvg": "algorithms",
    "FedAvgM": "algorithms",
    "FedDyn": "algorithms",
    "FedEM": "algorithms",
    "FedKin": "algorithms",
    "FedNova": "algorithms",
    "FedProx": "algorithms",
    "FedSGD": "algorithms",
    "FedU": "algorithms",
    "FedYogi": "algorithms",
    "Federation": "data.federation",
    "FineTuned": "algorithms",
    "IFCA": "algorithms",
    "Kin": "algorithms",
    "Krum": "algorithms",
    "L2GD": "algorithms",
    "Linear": "models",
    "Local": "algorithms.local",
    "MLP": "models",
    "MOCHA": "algorithms",
    "MRMTL": "algorithms",
    "Median": "algorithms",
    "Model": "models",
    "Module": "models",
    "PFedMe": "algorithms",
    "PerFedAvg": "algorithms",
    "PowerOfChoice": "algorithms",
    "Privacy": "engine.privacy",
    "Result": "experiments.results",
    "SCAFFOLD": "algorithms",
    "Schedule": "algorithms.schedules",
    "SimilarityGraph": "graph.similarity",
    "Softmax": "models",
    "TrimmedMean": "algorithms",
    "build_graph": "graph.similarity",
    "build_model": "models",
    "compare": "arena.comparison",
    "federate": "data.partition",
    "from_arrays": "data.sources",
    "from_clients": "data.client_sources",
    "from_folder": "data.client_sources",
    "from_table": "data.client_sources",
    "load": "data.sources",
    "load_run": "experiments.loading",
    "message": "graph.similarity",
    "plot": "reports.plotting",
    "run": "experiments.run",
    "train": "experiments.run",
}
_FOLDERS = {"algorithms", "arena", "data", "engine", "experiments", "graph", "models", "reports"}


def __getattr__(name: str) -> Any:
    """A public name, or a folder of the package such as `fedkin.data`, imported when it is first used."""
    if name in _FOLDERS:
        return import_module(f"fedkin.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fedkin' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"fedkin.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS})
