"""Run experiments: from a configuration to run folders, or from Python objects to a result."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedkin.algorithms import Algorithm, Local, label_of, name_of
from fedkin.algorithms.registry import settings_of
from fedkin.data.federation import Federation
from fedkin.engine import lanes
from fedkin.engine.simulation import Simulation
from fedkin.experiments import records
from fedkin.experiments.config import FORMER_DEFAULTS, Experiment
from fedkin.experiments.grid import Plan, plans
from fedkin.experiments.group import MOST_LANES, Lane, kept_result, run_group
from fedkin.experiments.preparation import Preparation, validation_share
from fedkin.experiments.progress import Listener, Silent
from fedkin.experiments.results import Result
from fedkin.experiments.rounds import play
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.models import Model, build_model
from fedkin.types import Record


def train(
    federation: Federation,
    algorithm: Algorithm,
    *,
    model: str | nn.Module | Model = "softmax",
    graph: str | SimilarityGraph = "similarity",
    weights: str = "adjacency",
    local: Local | None = None,
    rounds: int = 100,
    take_part: int | None = None,
    threshold: float = 0.75,
    seed: int = 0,
) -> Result:
    """Train a model on a federation in memory. No files are written.

    model      `softmax`, `mlp`, a `torch.nn.Module` or a `Model`
    graph      kind of the similarity graph, or a graph
    weights    averaging weights of the server: `adjacency`, `uniform` or `samples`
    local      local training (default: `Local()`)
    take_part  M, number of clients sampled per round (None: all)
    threshold  accuracy for which the number of rounds is reported

    Training stops early if the loss is no longer finite.
    """
    if isinstance(graph, str):
        graph = build_graph(federation, graph, seed=seed)
    if isinstance(model, str | nn.Module):
        model = build_model(federation, model)
    p = graph.weights(weights, federation.train.sizes)
    simulation = Simulation(federation, model, algorithm, graph, p, local or Local(), take_part, seed)
    done: list[Record] = []
    state = simulation.start()
    while state.round < rounds and not (done and done[-1]["train_loss"] is None):
        state, (record,) = play(simulation, [simulation.local.l2], state)
        done.append(record)
    name, hyper = name_of(algorithm), settings_of(algorithm)
    config = {"algorithm": {"name": name, **hyper}, "threshold": threshold, "rounds": rounds, "seed": seed}
    summary = {"algorithm": name, "hyperparameters": hyper, **records.summarise(done, threshold, state.spaces)}
    return Result(label_of(name), config, done, summary, state.model)


def run(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
    fresh: bool = False,
) -> list[Result]:
    """Run all runs of an experiment: a TOML file, a dictionary, or None for the embedded default.

    overrides  settings as `key=value`
    out        folder of the results
    data       directory of data sets
    fresh      whether to delete and repeat earlier runs

    Finished runs are kept and interrupted ones continue. A run that diverges ends; the others continue.
    """
    listener = listener or Silent()
    todo = plans(source, overrides)
    listener.grid(len(todo))
    preparation = Preparation(Path(data) if data else None, listener)
    results: dict[str, Result] = {}
    for alike in _of_one_federation(todo):
        results |= _Runs(alike, Path(out), preparation, fresh).carried_out()
    return [results[plan.name] for plan in todo]


def _of_one_federation(todo: Sequence[Plan]) -> list[list[Plan]]:
    """Group plans that share federation, graph and model."""
    groups: dict[str, list[Plan]] = {}
    for plan in todo:
        settings = plan.config.model_dump(mode="json", exclude={"algorithm": True, "threshold": True})
        for hyper in ("step_size", "l2", "clip"):
            del settings["local"][hyper]
        settings["validation"] = validation_share(plan.config)  # depends on the algorithm
        groups.setdefault(json.dumps(settings), []).append(plan)
    return list(groups.values())


class _Runs:
    """Runs of one federation. Finished ones are read from their folders, the others are executed in groups."""

    def __init__(self, todo: Sequence[Plan], out: Path, preparation: Preparation, fresh: bool) -> None:
        self.preparation, self.listener = preparation, preparation.listener
        self.plans = {plan.name: plan for plan in todo}
        self.folders = {plan.name: records.RunFolder(out / plan.config.name / plan.name) for plan in todo}
        self.data = preparation.data_digest(todo[0].config)
        former = Experiment.model_validate(FORMER_DEFAULTS)
        self.usual = former.model_dump(mode="json", by_alias=True, exclude={"name", "algorithm"})
        self.fresh = fresh

    def carried_out(self) -> dict[str, Result]:
        """The results of all runs, by name."""
        results: dict[str, Result] = {}
        for plan in self.plans.values():
            with self._opened(plan, fresh=self.fresh):
                if kept := kept_result(self.folders[plan.name], plan, self._settings(plan)):
                    results[plan.name] = kept
                    self.listener.end(plan.name, kept.summary, True)
        for group in self._groups() if len(results) < len(self.plans) else []:
            if not all(name in results for name in group):
                results |= self._together(group)
        for name, folder in self.folders.items():
            if folder.has_checkpoints():  # interrupted before they were removed
                with self._opened(self.plans[name]):
                    folder.remove_checkpoints()
        return results

    def _settings(self, plan: Plan) -> Record:
        return plan.config.model_dump(mode="json", by_alias=True)

    def _opened(self, plan: Plan, fresh: bool = False) -> contextlib.AbstractContextManager[None]:
        return self.folders[plan.name].opened(self._settings(plan), data=self.data, fresh=fresh, usual=self.usual)

    def _groups(self) -> list[list[str]]:
        """Names of runs that are executed together: earlier groups, then groups as large as memory allows."""
        groups: dict[tuple[str, ...], None] = {}
        begun: set[str] = set()
        for folder in self.folders.values():
            before = folder.lanes()
            if before and set(before) <= self.plans.keys() - begun:
                groups[before] = None
                begun |= set(before)
        waiting: dict[Any, list[Plan]] = {}
        for plan in self.plans.values():
            if plan.name not in begun:
                simulation = self._simulation(plan)
                waiting.setdefault(lanes.key(simulation) or plan.name, []).append(plan)
        for alike in waiting.values():
            at_once = min(MOST_LANES, lanes.most(self._simulation(alike[0])))
            for first in range(0, len(alike), at_once):
                groups[tuple(plan.name for plan in alike[first : first + at_once])] = None
        return [list(group) for group in groups]

    def _simulation(self, plan: Plan) -> Simulation:
        if plan.config.threads:
            torch.set_num_threads(plan.config.threads)
        return self.preparation.simulation(plan.config)

    def _together(self, names: Sequence[str]) -> dict[str, Result]:
        with contextlib.ExitStack() as held:
            group = []
            for name in names:
                plan, folder = self.plans[name], self.folders[name]
                held.enter_context(self._opened(plan))
                lane = Lane(plan, folder, self._settings(plan), self._simulation(plan))
                lane.ended = kept_result(folder, plan, lane.settings)
                group.append(lane)
            run_group(group, self.listener)
        return {lane.plan.name: lane.ended for lane in group if lane.ended is not None}
