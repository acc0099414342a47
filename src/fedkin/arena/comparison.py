"""Compare methods on one federation: trials on validation samples, then the best of each on fresh seeds."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedkin.arena.entrants import SEARCHED_STEP, Entrant, entrants, is_pooled
from fedkin.arena.federations import Source, federation_settings
from fedkin.arena.phases import Phase, Phases, Show, phases_watched
from fedkin.arena.trials import Trial, Trials, edges, rungs_of, sizes_of, tune
from fedkin.errors import BadInput, Unsuitable, nearest
from fedkin.experiments.data_sections import Settings
from fedkin.experiments.grid import Plan, plans, settings_with
from fedkin.experiments.places import CORES, Place, place_named
from fedkin.experiments.preparation import Preparation
from fedkin.experiments.results import COMPARISON_FILE, TRIALS_FILE, Result
from fedkin.experiments.run import run_plans
from fedkin.files import as_json, write_atomically
from fedkin.imports import modules_beside
from fedkin.reports.answer.contenders import field_of
from fedkin.reports.answer.sentences import Answer, answer_of
from fedkin.reports.privacy import spent_in
from fedkin.reports.report import conclusion_html, conclusion_text
from fedkin.reports.runs import collect
from fedkin.types import Record

HELD_OUT = 0.2  # share of the clients' training samples that is held out, unless the file has another
FINALS = "the best on fresh seeds"
LINE_WIDTH = 100  # characters of a line of the answer, where nobody knows how wide the place is
MOST_POINTS = 25  # of a curve, about; models of the clients' own take as long to measure as to train
# Durations of a round in each stage of trials and on fresh seeds, in rounds of the first: the fewer trials are left,
# the fewer share products. They are for the first estimates only; later ones are of the stage itself.
STAGE_COSTS, FINAL_COST = (1.0, 1.15, 1.3, 1.4), 1.8
# Settings that make a federation. A comparison has one.
FEDERATION = ("data", "partition", "model", "graph", "reading", "aggregation", "privacy")
NEVER_A_LIST = ("model", "shape")  # the section itself says how sizes are written


@dataclass(frozen=True)
class Budget:
    """What every method gets.

    trials  number of settings that are tried
    seeds   number of fresh seeds on which the best is run again
    """

    trials: int
    seeds: int

    def __post_init__(self) -> None:
        if self.trials < 1 or self.seeds < 1:
            raise BadInput("a method needs at least one trial and one seed: give at least 1")


BUDGETS = {"quick": Budget(4, 3), "standard": Budget(16, 5), "thorough": Budget(64, 10)}


@dataclass(frozen=True)
class Entry:
    """A method after its trials.

    trials  all of them
    best    the one with the lowest loss on validation samples; None if all have diverged
    runs    names of the runs of the best on fresh seeds
    """

    method: Entrant
    trials: Sequence[Trial]
    best: Trial | None
    runs: Sequence[str] = ()

    def record(self) -> Record:
        """For `comparison.json`."""
        best = self.best
        return {
            "method": self.method.label,
            "algorithm": self.method.algorithm,
            "trials": len(self.trials),
            "diverged": sum(one.diverged for one in self.trials),
            "searched": {_full(name): str(where) for name, where in self.method.search.items()},
            "chosen": {_full(name): value for name, value in best.settings.items()} if best else None,
            "edges": {_full(name): end for name, end in edges(self.method.search, self.trials, best).items()}
            if best
            else {},
            "validation_loss": best.losses[max(best.losses)] if best else None,
            "runs": list(self.runs),
        }


def _full(name: str) -> str:
    """A setting with its section."""
    return name if "." in name else f"algorithm.{name}"


@dataclass(frozen=True)
class Comparison:
    """What `compare` has found.

    folder   of the runs on fresh seeds, for `fedkin report`
    entries  the methods with their trials
    results  the runs on fresh seeds
    """

    folder: Path
    entries: Sequence[Entry]
    results: Sequence[Result]

    @property
    def answer(self) -> Answer:
        """The answer: `headline`, `details` and `cautions`, and the numbers behind them."""
        return answer_of(field_of(collect(self.folder)))

    def __str__(self) -> str:
        return conclusion_text(collect(self.folder), width=LINE_WIDTH)

    def __repr__(self) -> str:
        return f"Comparison({self.folder}: {self.answer.headline})"

    def _repr_html_(self) -> str:
        return conclusion_html(collect(self.folder))


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
    given = federation_settings(source, clients, target, Path(out))
    with phases_watched() if show is None else nullcontext(show) as shown:
        return _compared(given, algorithms, budget, overrides, Path(out), data, shown, fresh, on)


def _compared(
    source: Source,
    algorithms: Sequence[str],
    budget: str | Budget,
    overrides: Sequence[str],
    out: Path,
    data: Path | str | None,
    show: Show,
    fresh: bool,
    on: str | Place | None,
) -> Comparison:
    allowed = budget if isinstance(budget, Budget) else budget_of(budget)
    settings, beside = settings_with(source, overrides)
    _check_one_federation(settings)
    if isinstance(seeds := settings.get("seed"), list) and seeds:  # as `fedkin run` takes them
        settings = {**settings, "seed": seeds[0]}
    seed, rounds = int(settings.get("seed", 0)), int(settings.get("rounds", 100))
    name = f"{settings.get('name', 'experiment')}-compared"
    if source is None:  # the embedded experiment shows a few methods, with some of their settings
        settings = {key: value for key, value in settings.items() if key != "algorithm"}
    with modules_beside(beside):
        methods = entrants(settings, algorithms)
    left_out = {}
    if any(one.usual for one in methods):
        common = _common(settings, rounds, _private_runs(methods, allowed))
        left_out = _unfit(methods, common, seed, beside, Preparation(Path(data) if data else None))
        methods = [one for one in methods if one.label not in left_out]
    common = _common(settings, rounds, _private_runs(methods, allowed))
    works = _works(len(methods), allowed, rounds)
    phases = Phases(works, show)
    rungs = rungs_of(rounds)
    # A trial is judged where its run ends, for the time being or for good.
    trial = {"name": f"{name}-tuning", "evaluate_every": rounds, "evaluate": "test", "keep": "state"}
    folder = out / name
    tuning = Trials.of(
        out / f"{name}-tuning" / TRIALS_FILE,
        json.loads(as_json({**common, **trial})),
        [json.loads(as_json(method.fixed)) for method in methods],
        [method.trials(allowed.trials, seed) for method in methods],
    )
    if fresh:
        for trials in tuning.trials.values():
            trials[:] = [Trial(one.settings) for one in trials]

    first = fresh

    def losses(tables: list[Settings], until: int) -> list[float]:
        nonlocal first
        phases.next(works[rungs.index(until)].name)
        grid = {**trial, "rounds": until, "algorithm": tables}
        trials = [replace(plan, beside=beside) for plan in plans({**common, **grid}, beside=beside)]
        found = {_key(result.config): result.summary for result in carried_out(trials, fresh=first)}
        first = False  # later calls continue the runs of the first
        each = [plans({**common, **grid, "algorithm": [table]}, beside=beside)[0] for table in tables]
        return [_validation_loss(found[_key(plan.config.model_dump(mode="json", by_alias=True))]) for plan in each]

    with place_named(on) as place:
        carried_out = partial(run_plans, out=out, data=data, listener=phases, on=place)
        tune(tuning, methods, rounds, losses)
        chosen = [Entry(method, tuning.trials[m], tuning.best(m, rounds)) for m, method in enumerate(methods)]
        _check_any(chosen)
        seeds = [seed + k for k in range(1, allowed.seeds + 1)]
        phases.next(FINALS)
        entries, finals = [], []
        final = {"evaluate_every": max(1, rounds // MOST_POINTS), **common, "name": name, "seed": seeds}
        for entry in chosen:
            table = entry.best and entry.method.table(entry.best.settings)
            mine = plans({**final, "algorithm": [table]}, beside=beside) if table else []
            entries.append(replace(entry, runs=[plan.name for plan in mine]))
            finals += mine
        _write(folder / COMPARISON_FILE, entries, left_out, allowed, rounds, seed)
        results = carried_out(_by_seed(finals, beside), fresh=fresh)
    if spent := spent_in([out / f"{name}-tuning", folder]):
        _write(folder / COMPARISON_FILE, entries, left_out, allowed, rounds, seed, spent)
    return Comparison(folder, entries, results)


def _by_seed(found: Sequence[Plan], beside: Path | None) -> list[Plan]:
    """Runs of one federation are consecutive."""
    return [replace(plan, beside=beside) for plan in sorted(found, key=lambda plan: plan.config.seed)]


def budget_of(name: str, trials: int | None = None, seeds: int | None = None) -> Budget:
    """The budget of this name, with other numbers if they are given."""
    if name not in BUDGETS:
        raise BadInput(f"there is no budget '{name}'{nearest(name, BUDGETS)}")
    usual = BUDGETS[name]
    return Budget(usual.trials if trials is None else trials, usual.seeds if seeds is None else seeds)


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


def _unfit(
    methods: Sequence[Entrant], common: Settings, seed: int, beside: Path | None, preparation: Preparation
) -> dict[str, str]:
    """Of the usual methods, those that the settings do not allow, such as SCAFFOLD with Adam; with the reasons."""
    found = {}
    for one in methods:
        if one.usual:
            try:
                table = one.table(one.trials(1, seed)[0])
                preparation.simulation(plans({**common, "seed": seed, "algorithm": [table]}, beside=beside)[0].config)
            except Unsuitable as error:
                found[one.label] = str(error)
                warnings.warn(f"{one.label} is left out of the comparison: {error}", stacklevel=3)
    return found


def _check_one_federation(settings: Settings) -> None:
    for key in ("rounds", "take_part", "evaluate_every"):
        if isinstance(settings.get(key), list):
            raise BadInput(f"{key} has several values, and a comparison has one: choose it with --set {key}=…")
    for section in FEDERATION:
        table = settings.get(section, {})
        listed = [key for key, value in table.items() if isinstance(value, list)] if isinstance(table, dict) else [""]
        listed = [key for key in listed if (section, key) != NEVER_A_LIST]
        if listed:
            raise BadInput(
                f"{section}{'.' if listed[0] else ''}{listed[0]} has several values, which are several federations: "
                "compare one at a time, with --set"
            )
    listed = [key for key, value in settings.get("local", {}).items() if isinstance(value, list) and key != "step_size"]
    if listed:
        raise BadInput(
            f"local.{listed[0]} has several values: a comparison searches the step size and the numbers of "
            f"[[algorithm]]; put the list there, as local.{listed[0]}, or give one value"
        )


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def _validation_loss(summary: Record) -> float:
    loss = summary.get("final_validation_loss") if summary["status"] == "finished" else None
    return math.inf if loss is None else float(loss)


def _check_any(chosen: Sequence[Entry]) -> None:
    if all(entry.best is None for entry in chosen):
        raise BadInput("all trials of all methods diverged: give smaller step sizes, as local.step_size = [low, high]")


def _works(methods: int, budget: Budget, rounds: int) -> list[Phase]:
    """The phases: trials in stages, each with the better half of the one before, and the best on fresh seeds."""
    rungs = rungs_of(rounds)
    stages = zip([0, *rungs], rungs, sizes_of(budget.trials, len(rungs)), STAGE_COSTS, strict=False)
    return [
        *(Phase(f"trials, to round {end}", methods * size, end - start, cost) for start, end, size, cost in stages),
        Phase(FINALS, methods * budget.seeds, rounds, FINAL_COST),
    ]


def _write(
    path: Path,
    entries: Sequence[Entry],
    left_out: Mapping[str, str],
    budget: Budget,
    rounds: int,
    seed: int,
    spent: Record | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "trials": budget.trials,
        "seeds": budget.seeds,
        "rounds": rounds,
        "judged_after": rungs_of(rounds),
        "tuned_on_seed": seed,
        "methods": [entry.record() for entry in entries],
        "left_out": dict(left_out),
        **({"privacy": spent} if spent else {}),
    }
    write_atomically(path, as_json(record, indent=1).encode())
