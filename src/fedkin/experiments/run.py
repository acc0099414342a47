"""Carry out experiments: from a configuration to run folders, or from Python objects to a result."""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedkin.algorithms import Algorithm, label_of, name_of
from fedkin.algorithms.local import Local
from fedkin.algorithms.registry import settings_of
from fedkin.data import sources as datasets
from fedkin.data.federation import Federation
from fedkin.data.partition import federate
from fedkin.engine import lanes, metrics
from fedkin.engine.own import own_models
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.experiments import records
from fedkin.experiments.config import Experiment, Plan, plans
from fedkin.experiments.progress import Listener, Silent
from fedkin.experiments.readings import read_as
from fedkin.files import finite
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.models import Model, build_model
from fedkin.types import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Result:
    """A finished run: its rounds as arrays, what they come to, and the global model w̄ (P,)."""

    name: str
    config: Record = field(repr=False)
    rounds: list[Record] = field(repr=False)
    summary: Record
    model: Tensor = field(repr=False)
    folder: Path | None = None

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        """Any measured quantity over the rounds: `run.test_accuracy`, `run.train_loss`, …"""
        if name.startswith("_") or not self.rounds or name not in self.rounds[0]:
            raise AttributeError(name)
        return np.array([np.nan if r[name] is None else r[name] for r in self.rounds], dtype=np.float64)

    def rounds_to(self, threshold: float) -> int | None:
        """The first round after which the testing accuracy is at least the threshold."""
        return metrics.rounds_to(threshold, self.test_accuracy)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Accuracy and loss over the rounds, saved if a path is given."""
        from fedkin.reports.plotting import plot  # reports depend on experiments, not the reverse

        return plot([self], path)


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
    """Train a model on a federation held in memory, and keep everything in memory."""
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


def play(group: Simulation, l2: Sequence[float], state: State) -> tuple[State, list[Record]]:
    """One round of runs that are executed together, and the record of each.

    l2  λ of each run, which is part of its loss

    `seconds` is a run's share of the time.
    """
    began, runs = time.perf_counter(), len(l2)
    state = group.advance(state)
    measured = metrics.measure(group.model, state.model.view(runs, -1), group.federation, l2)
    for record, own in zip(measured, own_models(group, state), strict=False):
        record |= own
    seconds = round((time.perf_counter() - began) / runs, 6)
    return state, [finite({"round": state.round - 1, **one, "seconds": seconds}) for one in measured]


def run(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
    fresh: bool = False,
) -> list[Result]:
    """Carry out all runs of an experiment: a TOML file, a dictionary, or None for the embedded default.

    Finished runs are kept and interrupted ones continue. A run that diverges ends; the others go on.
    """
    listener = listener or Silent()
    todo = plans(source, overrides)
    listener.grid(len(todo))
    preparation = Preparation(Path(data) if data else None, listener)
    results: dict[str, Result] = {}
    for group in _groups(todo):
        results |= _run(group, Path(out), preparation, fresh)
    return [results[plan.name] for plan in todo]


def _groups(todo: Sequence[Plan]) -> list[list[Plan]]:
    """Plans that differ only in what lanes can differ in, so that one preparation serves them all."""
    groups: dict[str, list[Plan]] = {}
    for plan in todo:
        settings = plan.config.model_dump(mode="json", exclude={"algorithm": True, "threshold": True})
        for hyper in ("step_size", "l2", "clip"):
            del settings["local"][hyper]
        groups.setdefault(json.dumps(settings), []).append(plan)
    return list(groups.values())


@dataclass
class _Lane:
    """A run on its way: its plan, its folder, what it simulates and the records so far."""

    plan: Plan
    folder: records.RunFolder
    settings: Record
    simulation: Simulation | None = None
    done: list[Record] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        return bool(self.done) and self.done[-1]["train_loss"] is None


def _run(group: Sequence[Plan], out: Path, preparation: "Preparation", fresh: bool) -> dict[str, Result]:
    """Carry out runs of one federation, as many together as can be."""
    results: dict[str, Result] = {}
    with contextlib.ExitStack() as held:
        waiting: dict[Any, list[_Lane]] = {}
        for plan in group:
            config = plan.config
            folder = records.RunFolder(out / config.name / plan.name)
            settings = config.model_dump(mode="json", by_alias=True)
            usual = Experiment().model_dump(mode="json", by_alias=True, exclude={"name", "algorithm"})
            held.enter_context(folder.opened(settings, fresh=fresh, usual=usual))
            if kept := _kept(folder, config, plan.name, settings):
                preparation.listener.end(plan.name, kept.summary, True)
                results[plan.name] = kept
                continue
            if config.threads:
                torch.set_num_threads(config.threads)
            simulation = preparation.simulation(config)
            key = lanes.key(simulation) or plan.name
            waiting.setdefault(key, []).append(_Lane(plan, folder, settings, simulation))
        for alike in waiting.values():
            assert alike[0].simulation is not None
            at_once = lanes.most(alike[0].simulation)
            for first in range(0, len(alike), at_once):
                results |= _run_together(alike[first : first + at_once], preparation.listener)
    return results


def _run_together(group: list[_Lane], listener: Listener) -> dict[str, Result]:
    """Rounds until all are done; a run whose loss is no longer finite ends earlier.

    All runs of a group continue from the same round after a crash, so that the group, and with it every bit of the
    result, is what it would have been. That is also why a run that has diverged stays until the next checkpoint.
    """
    config = group[0].plan.config
    simulations = [lane.simulation for lane in group if lane.simulation is not None]
    common = set.intersection(*(lane.folder.sound_rounds() for lane in group))
    begin = max(common, default=0)
    states = [
        lane.folder.load(begin, s.device) if begin else s.start() for lane, s in zip(group, simulations, strict=True)
    ]
    for lane in group:
        lane.done = lane.folder.records()[:begin]
        lane.folder.keep_records(lane.done)
        listener.begin(lane.plan.name, config.rounds, begin)
    together = lanes.together(simulations)  # once: what it makes for a round serves the next
    state = lanes.joined(states, together)
    results: dict[str, Result] = {}
    saved = time.monotonic()
    while group:
        if state.round < config.rounds:
            state, new = play(together, [s.local.l2 for s in simulations], state)
            for lane, record in zip(group, new, strict=True):
                if not lane.diverged:
                    lane.folder.append(record)
                    lane.done.append(record)
                    listener.round(lane.plan.name, record)
        over = state.round >= config.rounds or all(lane.diverged for lane in group)
        due = state.round % config.checkpoint_every == 0 or time.monotonic() - saved > CHECKPOINT_SECONDS
        if not (over or due):
            continue
        parts = lanes.parted(state, simulations)
        for lane, part in zip(group, parts, strict=True):
            if not lane.diverged:
                lane.folder.save(part)
        saved = time.monotonic()
        for lane, part in zip(group, parts, strict=True):
            if over or lane.diverged:
                summary, model = describe(lane.plan, lane.done, state.spaces), part.model
                lane.folder.finish(summary, model)
                listener.end(lane.plan.name, summary, False)
                results[lane.plan.name] = Result(
                    lane.plan.name, lane.settings, lane.done, summary, model, lane.folder.path
                )
        going = [not (over or lane.diverged) for lane in group]
        if not all(going):
            simulations = [s for s, on in zip(simulations, going, strict=True) if on]
            group = [lane for lane, on in zip(group, going, strict=True) if on]
            if group:
                together = lanes.together(simulations)
                state = lanes.joined([part for part, on in zip(parts, going, strict=True) if on], together)
    return results


def _kept(folder: records.RunFolder, config: Experiment, name: str, settings: Record) -> Result | None:
    """The result in the folder, if the run has ended and everything of it is sound."""
    summary, done, model = (
        folder.summary(),
        folder.records(),
        records.read_tensors(folder.path / "model.safetensors"),
    )
    if summary is None or model is None or len(done) != summary.get("rounds"):
        return None
    if summary["status"] == "finished" and len(done) != config.rounds:
        return None
    return Result(name, settings, done, summary, model[0]["model"], folder.path)


def describe(plan: Plan, done: list[Record], spaces: Mapping[str, int]) -> Record:
    """The content of summary.json."""
    config = plan.config
    return {
        "experiment": config.name,
        "run": plan.name,
        "algorithm": config.algorithm.name,
        "hyperparameters": {
            "step_size": config.local.model_dump(mode="json", by_alias=True)["step_size"],
            **(config.algorithm.model_extra or {}),
        },
        **records.summarise(done, config.threshold, spaces),
    }


class Preparation:
    """What runs need, made from their configurations. Runs of a grid that follow each other share what they can."""

    def __init__(self, data: Path | None = None, listener: Listener | None = None) -> None:
        self.data = data
        self.listener = listener or Silent()
        # One of each is kept: CIFAR-10 is 700 MB, and runs that share a federation follow each other.
        self._federation: tuple[Any, Federation] | None = None
        self._graph: tuple[Any, SimilarityGraph] | None = None

    def simulation(self, config: Experiment) -> Simulation:
        """Everything a run needs."""
        federation, graph = self.federation(config), self.graph(config)
        section = config.model
        settings = {"mlp": {"hidden": section.hidden}, "softmax": {}}.get(section.kind, section.args)
        simulation = Simulation(
            federation,
            build_model(federation, section.kind, **settings),
            config.algorithm.build(config.local.step_size),
            graph,
            graph.weights(config.graph.weights, federation.train.sizes),
            config.local.work(),
            None if config.take_part == "all" else config.take_part,
            config.seed,
        )
        return read_as(simulation, config.reading)

    def federation(self, config: Experiment) -> Federation:
        """The clients' data, on the device."""
        key = (config.data, config.partition, config.seed, config.device)
        if self._federation is None or self._federation[0] != key:
            self._federation = None  # let go of the old one before the new one is made
            self._federation = (key, self._make_federation(config))
        return self._federation[1]

    def _make_federation(self, config: Experiment) -> Federation:
        self.listener.doing(f"loading {config.data.source}")
        dataset = datasets.load(config.data.source, self.data, seed=config.seed)
        split = config.partition
        federation = federate(
            dataset,
            clients=split.clients,
            class_imbalance=split.class_imbalance,
            size_imbalance=split.size_imbalance,
            scheme=split.scheme,
            mixes=split.mixes,
            clusters=split.clusters,
            group=split.group,
            preprocess=config.data.preprocess,
            seed=config.seed,
        )
        try:
            return federation.to(config.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"device = '{config.device}' cannot be used here ({reason}): use device = 'cpu'") from None

    def graph(self, config: Experiment) -> SimilarityGraph:
        """Who is kin to whom."""
        federation = self.federation(config)
        section = config.graph
        section = section.model_copy(update={"weights": "adjacency"})
        key = (config.data, config.partition, config.seed, section, config.reading.sign)
        if self._graph is None or self._graph[0] != key:
            self.listener.doing(f"building the {section.kind} graph of {len(federation.train)} clients")
            graph = build_graph(
                federation,
                section.kind,
                neighbours=section.neighbours,
                search=section.search,
                temperature=section.temperature,
                pixels=section.pixels,
                sign=config.reading.sign,
                floor=section.floor,
                seed=config.seed,
            )
            self._graph = (key, graph)
        return self._graph[1]
