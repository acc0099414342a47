"""Compare methods on one federation: trials on validation samples, then the best of each on fresh seeds."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.arena.budget import Budget, budget_of
from fedkin.arena.federations import Source, federation_settings
from fedkin.arena.found import Comparison, Entry, write_comparison
from fedkin.arena.phases import Phase, Phases, Show, phases_watched
from fedkin.arena.question import Question, question_of
from fedkin.arena.trials import Trial, Trials, rungs_of, sizes_of, tune
from fedkin.errors import BadInput
from fedkin.experiments.data_sections import Settings
from fedkin.experiments.grid import Plan
from fedkin.experiments.places import CORES, Place, place_named
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.results import TRIALS_FILE, Result
from fedkin.experiments.run import run_plans
from fedkin.files import as_json
from fedkin.reports.privacy import spent_in
from fedkin.types import Record

FINALS = "the best on fresh seeds"
MOST_POINTS = 25  # of a curve, about; models of the clients' own take as long to measure as to train
# Durations of a round in each stage of trials and on fresh seeds, in rounds of the first: the fewer trials are left,
# the fewer share products. They are for the first estimates only; later ones are of the stage itself.
STAGE_COSTS, FINAL_COST = (1.0, 1.15, 1.3, 1.4), 1.8


def compare(
    source: Source = None,
    *,
    clients: Mapping[str, Any] | None = None,
    target: str | None = None,
    algorithms: Sequence[str] = (),
    budget: str | Budget = "standard",
    overrides: Sequence[str] = (),
    out: Path | str = "results",
    data: Path | str | None = None,
    show: Show | None = None,
    fresh: bool = False,
    on: str | Place | None = CORES,
) -> Comparison:
    """Compare methods on one federation. `print` shows the answer in words.

    source      an experiment as a TOML file or a dictionary of settings; or data: a folder with a file for each client,
                a table, the name of a data set; None: the embedded experiment
    clients     clients in memory, by name: a pair (features, labels) or a data frame each; other settings in `source`
    target      of tables: the column to be predicted
    algorithms  names of the methods (default: those of the file if there are several, else a dozen); each client alone,
                FedAvg, fine-tuned FedAvg and pooled samples are always among them
    budget      `quick`, `standard`, `thorough`, or a `Budget`: the same for all methods
    overrides   settings as `key=value`
    out         folder of the results: `NAME-compared-tuning` has the trials, `NAME-compared` the runs on fresh seeds
    on          where runs are carried out: on all `cores`, in this `process`, or as tasks on Ray, at this address
    show        called with what is being done, the share that is done and the estimated seconds that are left (None: a
                bar on a terminal and in a notebook)

    Every method has the same number of trials and rounds. The settings with the lowest loss on the clients' validation
    samples are run again on fresh seeds, whose test results are compared. Interrupted comparisons continue.
    """
    allowed = budget if isinstance(budget, Budget) else budget_of(budget)
    out = Path(out)
    preparation = Preparation(Path(data) if data else None)  # data are loaded once, for all stages
    given = federation_settings(source, clients, target, out)
    question = question_of(given, algorithms, allowed, overrides, preparation)
    folder, tuning_folder = out / question.name, out / f"{question.name}-tuning"
    with phases_watched() if show is None else nullcontext(show) as shown, place_named(on) as place:
        phases = Phases(_works(len(question.methods), allowed, question.rounds), shown)
        preparation.listener = phases
        carried_out = partial(run_plans, out=out, on=place, preparation=preparation)
        chosen = _tuned(question, allowed, tuning_folder, phases, carried_out, fresh)
        phases.next(FINALS)
        finals = [_finals(question, entry, allowed) for entry in chosen]
        entries = [replace(entry, runs=[plan.name for plan in own]) for entry, own in zip(chosen, finals, strict=True)]
        write_comparison(folder, question, entries, allowed)
        every = [plan for own in finals for plan in own]
        results = carried_out(sorted(every, key=lambda plan: plan.config.seed), fresh=fresh)  # federation by federation
    if spent := spent_in([tuning_folder, folder]):
        write_comparison(folder, question, entries, allowed, spent)
    return Comparison(folder, entries, results)


def _tuned(
    question: Question,
    budget: Budget,
    folder: Path,
    phases: Phases,
    carried_out: Callable[..., list[Result]],
    fresh: bool,
) -> list[Entry]:
    """All methods after their trials."""
    methods, rounds = question.methods, question.rounds
    # A trial is judged where its run ends, for the time being or for good.
    how: Settings = {"name": folder.name, "evaluate_every": rounds, "evaluate": "test", "keep": "state"}
    tuning = Trials.of(
        folder / TRIALS_FILE,
        json.loads(as_json({**question.common, **how})),
        [json.loads(as_json(method.fixed)) for method in methods],
        [method.trials(budget.trials, question.seed) for method in methods],
    )
    if fresh:
        for trials in tuning.trials.values():
            trials[:] = [Trial(one.settings) for one in trials]
    first = fresh  # later stages continue the runs of the first

    def losses(tables: list[Settings], until: int) -> list[float]:
        nonlocal first
        phases.next(_stage_name(until))
        done = carried_out(question.plans(tables, **how, rounds=until), fresh=first)
        first = False
        found = {_key(result.config): result.summary for result in done}
        each = [question.plans([table], **how, rounds=until)[0].config for table in tables]
        return [_validation_loss(found[_key(config.model_dump(mode="json", by_alias=True))]) for config in each]

    tune(tuning, methods, rounds, losses)
    entries = [Entry(method, tuning.trials[m], tuning.best(m, rounds)) for m, method in enumerate(methods)]
    if all(entry.best is None for entry in entries):
        raise BadInput("all trials of all methods diverged: give smaller step sizes, as local.step_size = [low, high]")
    return entries


def _finals(question: Question, entry: Entry, budget: Budget) -> list[Plan]:
    """The runs of a method's best trial on fresh seeds; none if all of its trials have diverged."""
    if entry.best is None:
        return []
    points = question.common.get("evaluate_every", max(1, question.rounds // MOST_POINTS))
    seeds = [question.seed + k for k in range(1, budget.seeds + 1)]
    table = entry.method.table(entry.best.settings)
    return question.plans([table], name=question.name, evaluate_every=points, seed=seeds)


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def _validation_loss(summary: Record) -> float:
    loss = summary.get("final_validation_loss") if summary["status"] == "finished" else None
    return math.inf if loss is None else float(loss)


def _stage_name(until: int) -> str:
    return f"trials, to round {until}"


def _works(methods: int, budget: Budget, rounds: int) -> list[Phase]:
    """The phases: trials in stages, each with the better half of the one before, and the best on fresh seeds."""
    rungs = rungs_of(rounds)
    stages = zip([0, *rungs], rungs, sizes_of(budget.trials, len(rungs)), STAGE_COSTS, strict=False)
    return [
        *(Phase(_stage_name(end), methods * size, end - start, cost) for start, end, size, cost in stages),
        Phase(FINALS, methods * budget.seeds, rounds, FINAL_COST),
    ]
