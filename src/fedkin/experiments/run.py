"""Run experiments: from a configuration to run folders, or from Python objects to a result."""

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.algorithms import Algorithm, Averaging, Local, Tuning, averaging_rule, label_of, name_of
from fedkin.algorithms.registry import settings_of
from fedkin.data.card import DataCard
from fedkin.data.federation import Federation
from fedkin.engine import lanes
from fedkin.engine.metrics import has_diverged
from fedkin.engine.own import own_model
from fedkin.engine.privacy import Privacy, check_messages
from fedkin.engine.scores import predictions, score_summary
from fedkin.engine.simulation import Simulation, State
from fedkin.errors import BadInput
from fedkin.experiments import records
from fedkin.experiments.config import former_settings
from fedkin.experiments.grid import Plan, plans
from fedkin.experiments.group import MOST_LANES, Lane, kept_result, run_group
from fedkin.experiments.places import Place, place_named
from fedkin.experiments.preparation import Preparation, validation_share
from fedkin.experiments.progress import Listener, Silent
from fedkin.experiments.results import Result
from fedkin.experiments.rising import first_losses, growth_of, watched
from fedkin.experiments.round_bar import round_bar
from fedkin.experiments.rounds import is_evaluated, play
from fedkin.experiments.trained import Trained
from fedkin.files import json_object
from fedkin.graph.similarity import SimilarityGraph, build_graph
from fedkin.imports import modules_beside
from fedkin.models import Mixture, Model, build_model, loss_of
from fedkin.types import Record


def train(
    federation: Federation,
    algorithm: Algorithm,
    *,
    model: str | nn.Module | Model = "linear",
    graph: str | SimilarityGraph = "similarity",
    weights: str = "samples",
    local: Local | None = None,
    rounds: int = 100,
    take_part: int | None = None,
    aggregate: str | Averaging = "mean",
    privacy: Privacy | None = None,
    threshold: float | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    evaluate: str = "all",
    fine_tune: int = 0,
    fine_tune_step: float = 1.0,
    on_round: Callable[[Record], object] | None = None,
    progress: bool | None = None,
) -> Result:
    """Train a model on a federation in memory. No files are written.

    model           `linear` (softmax, logistic or linear regression, by what is predicted), `mlp`, a `torch.nn.Module`
                    or a `Model`
    graph           kind of the similarity graph, or a graph
    weights         averaging weights of the server: `samples`, `uniform`, or `adjacency` as in the paper
    local           local training (default: `Local()`)
    take_part       M, number of clients sampled per round (None: all)
    aggregate       how the server averages models: `mean`, `median`, `trimmed`, `krum`, or `fedkin.Krum(attackers=2)`
    privacy         how uploads are clipped and get noise, such as `fedkin.Privacy(clip=1.0, epsilon=3.0, delta=1e-3)`
    threshold       accuracy (default: 0.75) or mean squared error (default: none) for which the number of rounds is
                    reported
    evaluate_every  rounds between measurements; the last round is always measured
    evaluate        clients at which the global model is measured: `all`, or `test` ones only
    fine_tune       epochs of fine-tuning after which the model of each client is measured, too (0: it is not)
    fine_tune_step  its step size in units of that of the algorithm
    on_round        called with the record of every round
    progress        whether a bar is shown (None: on a terminal, if training takes longer than two seconds)

    Training stops early if the loss is no longer finite, and a loss that grows in the first rounds is a warning.
    """
    named_model = model if isinstance(model, str) else type(model).__name__
    kind = graph if isinstance(graph, str) else repr(graph)
    if isinstance(graph, str):
        if privacy is not None:
            check_messages(privacy, graph)
        graph = build_graph(federation, graph, message_noise=privacy.message_noise if privacy else 0.0, seed=seed)
    if isinstance(model, str | nn.Module):
        model = build_model(federation, model)
    elif model.loss != loss_of(federation.target):
        raise BadInput(
            f"the model has the loss {model.loss} but the federation needs {loss_of(federation.target)}: give the "
            "model that loss, or use fedkin.build_model"
        )
    p = graph.weights(weights, federation.train.sizes)
    local, rule = local or Local(), averaging_rule(aggregate)
    simulation = Simulation(federation, model, algorithm, graph, p, local, take_part, seed, aggregate=rule)
    if privacy is not None:
        simulation = replace(simulation, privacy=privacy)
        simulation = replace(simulation, privacy=privacy.found(rounds, simulation.rate))
    done: list[Record] = []
    state = simulation.start()
    if evaluate not in ("all", "test") or evaluate_every < 1:
        raise BadInput("evaluate is 'all' or 'test', and evaluate_every at least 1: choose one of these")
    tuning = Tuning(fine_tune, fine_tune_step) if fine_tune else None
    if caution := simulation.caution():
        warnings.warn(caution, stacklevel=2)
    first = first_losses(simulation, state.model, [simulation.local.l2])
    name, hyper = name_of(algorithm), settings_of(algorithm)
    with round_bar(label_of(name), rounds, progress) as shown:
        while state.round < rounds and not (done and has_diverged(done[-1])):
            measured, training = is_evaluated(state.round, evaluate_every, rounds), evaluate == "all"
            how: dict[str, Any] = {"evaluate": measured, "training": training, "tuning": tuning}
            state, (record,) = play(simulation, [simulation.local.l2], state, **how)
            done.append(record)
            if watched(state, rounds) and (said := growth_of(simulation, state, first, [done])[0]):
                record["warning"] = said
                warnings.warn(said, stacklevel=2)
            shown(record)
            if on_round is not None:
                on_round(record)
    threshold = model.loss.measure.usual if threshold is None else threshold
    config = {
        "algorithm": {"name": name, **hyper},
        "threshold": threshold,
        "rounds": rounds,
        "seed": seed,
        "take_part": "all" if take_part is None else take_part,
        "data": {"source": federation.name},
        "partition": {"clients": len(federation.train)},
        "model": {"kind": named_model, "parameters": model.size},
        "graph": {"kind": kind},
        "weights": weights,
        "aggregation": repr(rule),
        **({} if simulation.privacy is None else {"privacy": asdict(simulation.privacy)}),
        "local": asdict(simulation.local),
    }
    summary = {"algorithm": name, "hyperparameters": hyper, **records.summarise(done, threshold, state.spaces)}
    if simulation.privacy is not None:
        summary |= simulation.privacy.summary(simulation.releases(state.round))
    if summary["status"] == "finished":
        summary |= score_summary(simulation, predictions(simulation, state, tuning))
    return Result(label_of(name), config, done, summary, state.model, live=_trained(replace(simulation), state))


def _trained(simulation: Simulation, state: State) -> Trained:
    """The models of a run in memory; those of the clients are computed when they are asked for."""
    personal = simulation.algorithm.at(state.round).is_personal
    card = DataCard.of(simulation.federation, personal=personal)

    def own(client: int) -> Tensor:
        return own_model(simulation, state, client)

    count = simulation.algorithm.at(state.round).mixture
    used = None if count == 1 else Mixture(simulation.model, count)
    return Trained(simulation.model, card, state.model, own if card.personal else None, used)


def run(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
    fresh: bool = False,
    on: str | Place | None = None,
) -> list[Result]:
    """Run all runs of an experiment: a TOML file, a dictionary, or None for the embedded default.

    overrides  settings as `key=value`
    out        folder of the results
    data       directory of data sets
    fresh      whether to delete and repeat earlier runs
    on         where runs are carried out: see `place_named` (None: in this process)

    Finished runs are kept and interrupted ones continue. A run that diverges ends; the others continue.
    """
    return run_plans(plans(source, overrides), out=out, data=data, listener=listener, fresh=fresh, on=on)


def run_plans(
    todo: Sequence[Plan],
    *,
    out: Path | str = "results",
    data: Path | str | None = None,
    listener: Listener | None = None,
    fresh: bool = False,
    on: str | Place | None = None,
    preparation: Preparation | None = None,
) -> list[Result]:
    """Run all these runs; see `run`.

    preparation  with data that are loaded, and the listener, in place of both
    """
    out, preparation = Path(out), preparation or Preparation(Path(data) if data else None, listener or Silent())
    preparation.listener.grid(len(todo))
    _Runs(_of_one_federation(todo)[0], out, preparation, fresh)  # settings and data are known to be sound
    records.write_plan(out / todo[0].config.name, [plan.name for plan in todo])
    told: list[str] = []
    with place_named(on) as place:
        if place and (missing := _units(todo if fresh else [plan for plan in todo if not _has_ended(out, plan)])):
            told = place.carry_out(missing, out, preparation, fresh)
    results: dict[str, Result] = {}
    for unit in _units(todo) if place else [list(todo)]:  # the same company here and there: the same bits
        results |= carry_out(unit, out, preparation, fresh and unit[0].name not in told, told)
    return [results[plan.name] for plan in todo]


def carry_out(
    todo: Sequence[Plan], out: Path, preparation: Preparation, fresh: bool, told: Sequence[str] = ()
) -> dict[str, Result]:
    """The results of these runs by name, of which those that are not in their folders yet are executed here.

    told  names of runs that the listener knows to have ended
    """
    results: dict[str, Result] = {}
    with modules_beside(todo[0].beside):  # another process than that of the command has not imported them yet
        for alike in _of_one_federation(todo):
            results |= _Runs(alike, out, preparation, fresh, told).carried_out()
    return results


def _has_ended(out: Path, plan: Plan) -> bool:
    """Whether a run has its result: of all its rounds, as it may have been begun with fewer."""
    summary = json_object(out / plan.config.name / plan.name / "summary.json") or {}
    return summary.get("status") == "diverged" or summary.get("rounds") == plan.config.rounds


def _units(todo: Sequence[Plan]) -> list[list[Plan]]:
    """Tasks: the runs of one algorithm on one federation, which share lanes."""
    units: dict[tuple[int, str], list[Plan]] = {}
    for place, alike in enumerate(_of_one_federation(todo)):
        for plan in alike:
            units.setdefault((place, plan.config.algorithm.name), []).append(plan)
    return list(units.values())


def _of_one_federation(todo: Sequence[Plan]) -> list[list[Plan]]:
    """Group plans that share federation, graph and model."""
    groups: dict[str, list[Plan]] = {}
    for plan in todo:
        settings = plan.config.model_dump(mode="json", exclude={"algorithm": True, "threshold": True})
        for hyper in ("step_size", "l2", "clip"):
            del settings["local"][hyper]
        for number in ("clip", "noise", "epsilon", "delta", "runs", "rounds"):
            del settings["privacy"][number]
        settings["validation"] = validation_share(plan.config)  # depends on the algorithm
        groups.setdefault(json.dumps(settings), []).append(plan)
    return list(groups.values())


class _Runs:
    """Runs of one federation. Finished ones are read from their folders, the others are executed in groups."""

    def __init__(
        self, todo: Sequence[Plan], out: Path, preparation: Preparation, fresh: bool, told: Sequence[str] = ()
    ) -> None:
        self.preparation, self.listener = preparation, preparation.listener
        self.plans = {plan.name: plan for plan in todo}
        self.folders = {plan.name: records.RunFolder(out / plan.config.name / plan.name) for plan in todo}
        self.data = preparation.data_digest(todo[0].config)
        self.usual = former_settings()
        self.fresh, self.told = fresh, set(told)

    def carried_out(self) -> dict[str, Result]:
        """The results of all runs, by name."""
        results: dict[str, Result] = {}
        for plan in self.plans.values():
            with self._opened(plan, fresh=self.fresh):
                if kept := kept_result(self.folders[plan.name], plan, self._settings(plan)):
                    results[plan.name] = kept
                    if plan.name not in self.told:
                        self.listener.end(plan.name, kept.summary, True)
        for group in self._groups() if len(results) < len(self.plans) else []:
            if not all(name in results for name in group):
                results |= self._together(group)
        for name, folder in self.folders.items():
            if not folder.is_tidy(keep := self.plans[name].config.keep):  # interrupted before checkpoints were removed
                with self._opened(self.plans[name]):
                    folder.tidy(keep)
        return results

    def _settings(self, plan: Plan) -> Record:
        return plan.config.model_dump(mode="json", by_alias=True)

    def _opened(self, plan: Plan, fresh: bool = False) -> contextlib.AbstractContextManager[None]:
        return self.folders[plan.name].opened(
            self._settings(plan),
            data=self.data,
            fresh=fresh,
            usual=self.usual,
            grows=not plan.config.privacy.depends_on_rounds,
        )

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
        selecting: list[str] = []  # runs that cannot be lanes
        for plan in self.plans.values():
            if plan.name not in begun:
                key = lanes.key(self._simulation(plan))
                selecting += [plan.name] if key is None else []
                waiting.setdefault(key or plan.name, []).append(plan)
        if len(selecting) > 1:
            others = f"{len(selecting)} runs, of which this is the first,"
            self.listener.warn(selecting[0], f"{others} select clients of their own, and go one after another")
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
                if (encoding := lane.simulation.federation.encoding) is not None:
                    folder.keep_encoding(encoding)
                group.append(lane)
            run_group(group, self.listener)
        return {lane.plan.name: lane.ended for lane in group if lane.ended is not None}
