"""Runs chosen on validation samples: for each method and seed the run with the lowest validation loss.

Numbers of the algorithm, of local training and of the graph are tuned: step size, epochs, β, number of neighbours, …
Runs that differ in nothing else are candidates of one method; words, such as the kind of a graph, distinguish methods.
Test results are read of the chosen runs only.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from typing import Any

from fedkin.algorithms import ALGORITHMS
from fedkin.data.measure import ACCURACY
from fedkin.experiments.results import COMPARISON_FILE
from fedkin.files import json_object
from fedkin.reports.groups import described, experiments, problem_of
from fedkin.reports.labels import (
    MISSING,
    comparable,
    differing,
    is_number,
    is_problem,
    is_seed,
    main_hyper,
    method_label,
    number,
    plain,
    setting_text,
    short,
    sortable,
    title_of,
)
from fedkin.reports.measures import ResultColumn, mark_best, measures_of, value_column
from fedkin.reports.run import Run
from fedkin.reports.tables import Cell, Table, text_cell
from fedkin.types import Record

# Values beyond which there is nothing to try.
_LIMITS = {
    "algorithm.beta": (1.0,),
    "algorithm.kappa": (0.0, 1.0),
    "algorithm.alpha": (0.0,),
    "algorithm.groups": (1.0,),
    "algorithm.tuning_epochs": (1.0,),
    "local.epochs": (1.0,),
    "local.l2": (0.0,),
}
ALONE = "alone"  # the algorithm in which every client trains by itself


@dataclass(frozen=True)
class Method:
    """An algorithm whose numbers are chosen on validation samples.

    label    the algorithm and what distinguishes it from other methods of the experiment
    problem  settings of its learning problem that differ in the experiment
    tuned    values of the settings in which its candidates differ, as chosen: `γ=0.3`, `γ=0.1 or 0.3`
    chosen   the chosen run of each seed
    tried    number of its candidates for a seed
    edges    settings whose chosen value is the smallest or largest of those that were tried
    """

    label: str
    problem: dict[str, Any]
    tuned: str
    chosen: tuple[Run, ...]
    tried: int = 1
    edges: tuple["Edge", ...] = ()


@dataclass(frozen=True)
class Edge:
    """A tuned setting whose chosen value is the smallest or the largest of the values that were tried."""

    setting: str
    value: float
    largest: bool


def methods(runs: Sequence[Run]) -> list[Method]:
    """The methods of an experiment of which a run has finished with a validation loss, best test results first.

    In a comparison the settings were chosen before, in trials: its file says what belongs together.
    """
    found: list[Method] = []
    for folder, members in experiments(runs).items():
        entries = (json_object(folder / COMPARISON_FILE) or {}).get("methods")
        found += _candidates_of(members) if entries is None else _compared(members, entries)

    def order(method: Method) -> tuple[Any, ...]:
        value = sum(run.used_value for run in method.chosen) / len(method.chosen)
        worse = -value if method.chosen[0].measure.higher else value
        return method.chosen[0].folder.parent, sortable(method.problem.values()), worse

    return sorted(found, key=order)


def how_chosen(runs: Sequence[Run]) -> str:
    """How the settings of runs on one federation were chosen, in a sentence."""
    record = json_object(runs[0].folder.parent / COMPARISON_FILE) if runs else None
    if record is None:
        return "For each method and seed the setting with the lowest loss on the clients' validation samples was chosen"
    *judged, _ = [*map(str, record["judged_after"])]
    half = f" (after {', '.join(judged[:-1])} and {judged[-1]} rounds the better half went on)" if judged else ""
    return (
        f"Every method had {record['trials']} trials on one seed{half}; the setting with the lowest loss on the "
        "clients' validation samples was run again on fresh seeds"
    )


def _compared(runs: Sequence[Run], entries: Sequence[Record]) -> list[Method]:
    """The methods of a comparison, as its file describes them."""
    by_name = {run.folder.name: run for run in runs if math.isfinite(run.validation_loss)}
    found = []
    for entry in entries:
        chosen = tuple(by_name[name] for name in entry["runs"] if name in by_name)
        settings = entry["chosen"] or {}
        edges = [
            Edge(key, settings[key], end == "largest")
            for key, end in entry["edges"].items()
            if settings[key] not in _LIMITS.get(key, ())
        ]
        words = ", ".join(f"{short(key)}={plain(value)}" for key, value in settings.items())
        found += [Method(entry["method"], {}, words, chosen, entry["trials"], tuple(edges))] if chosen else []
    return found


def _candidates_of(runs: Sequence[Run]) -> list[Method]:
    """The methods of an experiment: runs that differ in numbers only are candidates of one."""
    usable = [run for run in runs if math.isfinite(run.validation_loss)]
    tuned = _tuned(usable)
    groups: dict[object, list[Run]] = {}
    for run in usable:
        groups.setdefault((run.folder.parent, run.algorithm, comparable(_fixed(run, tuned))), []).append(run)
    unshared = differing([_fixed(group[0], tuned) for group in groups.values()])
    candidates: dict[object, list[Run]] = {key: [] for key in groups}  # diverged and unfinished ones, too
    for run in runs:
        candidates.get((run.folder.parent, run.algorithm, comparable(_fixed(run, tuned))), []).append(run)
    found = []
    for key, group in groups.items():
        best: dict[str, Run] = {}
        for run in group:
            seed = seed_of(run)
            if seed not in best or run.validation_loss < best[seed].validation_loss:
                best[seed] = run
        peers = [_fixed(other[0], tuned) for other in groups.values() if other[0].algorithm == group[0].algorithm]
        fixed, chosen = _fixed(group[0], tuned), tuple(best[seed] for seed in sorted(best))
        found.append(
            Method(
                _label(group, fixed, differing(peers), unshared),
                {key: fixed.get(key, MISSING) for key in unshared if is_problem(key)},
                _values_of(chosen, differing([_numbers(run, tuned) for run in group]), tuned),
                chosen,
                max(Counter(map(seed_of, candidates[key])).values()),
                _edges(chosen, candidates[key], tuned),
            )
        )
    return found


def chosen_table(runs: Sequence[Run]) -> Table | None:
    """The chosen runs of each method: main measure on their clients' testing samples, and comparison with `alone`.

    Values are those of the models that clients use on their own testing samples. Over several seeds there is the
    mean and its standard error. None if no run has been validated.
    """
    found = methods(runs)
    if not found:
        return None
    columns = list(dict.fromkeys(key for method in found for key in method.problem))
    several = len(experiments(runs)) > 1
    seeded = any(len(method.chosen) > 1 for method in found)
    measures = []
    kinds = measures_of(run for method in found for run in method.chosen)
    personal = any(math.isfinite(run.own_value) for method in found for run in method.chosen)
    for measure in kinds:
        of_which = f" by {measure.name}" if len(kinds) > 1 else ""
        whose = f"{measure.name} of clients' models" if personal else measure.name
        measures.append(value_column(measure, whose, lambda run: run.used_value))
        measures.append(value_column(measure, f"worst tenth{of_which}", lambda run: run.used_worst_decile))
    marked = len(measures)
    measures += _against_alone(found)
    head = (
        ["experiment"] * several
        + [title_of(key, columns) for key in columns]
        + ["method", "chosen settings"]
        + ["seeds"] * seeded
        + [measure.title for measure in measures]
    )
    rows = []
    for method in found:
        values = [method.problem.get(key, MISSING) for key in columns]
        rows.append(
            [text_cell(method.chosen[0].experiment)] * several
            + [Cell(plain(value), number(value) if is_number(value) else plain(value)) for value in values]
            + [text_cell(method.label), text_cell(method.tuned)]
            + [Cell(str(len(method.chosen)), len(method.chosen))] * seeded
            + [measure.cell(method.chosen, standard_error=True) for measure in measures]
        )
    mark_best(rows, [method.chosen for method in found], measures[:marked], start=len(head) - len(measures))
    names = ", ".join(dict.fromkeys(run.experiment for run in runs))
    title = ": ".join(filter(None, [f"{names}, chosen on validation", described(runs)]))
    return Table(title, tuple(head), tuple(tuple(row) for row in rows), spread="standard error")


# -- methods -----------------------------------------------------------------------------------------------------------


def _sections(run: Run) -> dict[str, Any]:
    """Settings that may be tuned, with the defaults of the algorithm's hyper-parameters; a schedule is one value."""
    known = ALGORITHMS.get(run.algorithm)
    usual = {f.name: f.default for f in fields(known) if f.default is not NO_DEFAULT} if known else {}
    usual.pop("step_size", None)
    tables = {"algorithm": {**usual, **run.hyperparameters}}
    tables |= {name: run.config[name] for name in ("local", "graph") if isinstance(run.config.get(name), dict)}
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}


def _tuned(runs: Sequence[Run]) -> set[str]:
    """Settings that are numbers or schedules in some run; a word in another run ("all") is one of their values."""
    return {key for run in runs for key, value in _sections(run).items() if is_number(value) or isinstance(value, dict)}


def _numbers(run: Run, tuned: set[str]) -> Record:
    return {key: value for key, value in _sections(run).items() if key in tuned}


def _fixed(run: Run, tuned: set[str]) -> Record:
    """All settings that are not tuned, and no seeds."""
    others = {key: value for key, value in run.settings.items() if key.split(".")[0] not in ("local", "graph")}
    together = {**others, **_sections(run)}
    return {key: value for key, value in together.items() if key not in tuned and not is_seed(key)}


def _label(group: Sequence[Run], fixed: Record, among_algorithm: Sequence[str], among_all: Sequence[str]) -> str:
    run, main = group[0], main_hyper(group[0].algorithm)
    hyper = {key.removeprefix("algorithm."): value for key, value in _sections(run).items() if "algorithm." in key}
    main_key = f"algorithm.{main[0]}" if main else ""
    is_common = not differing([{main_key: _sections(one).get(main_key)} for one in group])
    shown = [main[0]] if main and is_common else []
    shown += [key.removeprefix("algorithm.") for key in among_algorithm if key.startswith("algorithm.")]
    rest = [key for key in among_all if not is_problem(key) and not key.startswith("algorithm.") and key in fixed]
    words = [method_label(run.algorithm, hyper, shown), *(setting_text(key, fixed[key]) for key in rest)]
    return ", ".join(filter(None, words))


def _edges(chosen: Sequence[Run], candidates: Sequence[Run], tuned: set[str]) -> tuple[Edge, ...]:
    """Settings of which most seeds have chosen the smallest or the largest number that was tried."""
    found = []
    for key in sorted(tuned):
        values = {number(value) for run in candidates if is_number(value := _numbers(run, tuned).get(key))}
        if len(values) < 2:
            continue
        picked = Counter(number(_numbers(run, tuned).get(key)) for run in chosen)
        found += [
            Edge(key, end, end == max(values))
            for end in (min(values), max(values))
            if 2 * picked[end] > len(chosen) and end not in _LIMITS.get(key, ())
        ]
    return tuple(found)


def _values_of(chosen: Sequence[Run], keys: Sequence[str], tuned: set[str]) -> str:
    words = []
    for key in sorted(keys, key=lambda key: key != "local.step_size"):  # the step size first
        values = {comparable(value): value for run in chosen if (value := _numbers(run, tuned).get(key)) is not None}
        ordered = sorted(values.values(), key=lambda value: sortable([value]))
        words.append(f"{short(key)}={' or '.join(plain(value) for value in ordered)}")
    return ", ".join(words)


# -- measures ----------------------------------------------------------------------------------------------------------


def client_values(run: Run) -> dict[str, float]:
    """The main measure of each client's model on its own testing samples, by name; empty if it was not recorded."""
    try:
        return {str(entry["client"]): number(entry[f"own_{run.measure.name}"]) for entry in run.clients}
    except KeyError:
        return {}


def _against_alone(found: Sequence[Method]) -> list[ResultColumn]:
    """Gain over training alone, and the share of clients with a better model alone; none without a run of `alone`."""
    alone: dict[object, Run] = {}
    for run in (run for method in found for run in method.chosen if run.algorithm == ALONE):
        if (key := _same_data(run)) not in alone or run.validation_loss < alone[key].validation_loss:
            alone[key] = run
    if not alone:
        return []

    def base(run: Run) -> Run | None:
        return alone.get(_same_data(run)) if run.algorithm != ALONE else None

    def gain(run: Run) -> float:
        return run.measure.gain(run.used_value, other.used_value) if (other := base(run)) else math.nan

    def better_alone(run: Run) -> float:
        if (other := base(run)) is None:
            return math.nan
        mine, theirs = client_values(run), client_values(other)
        gains = [run.measure.gain(mine[name], theirs[name]) for name in mine if name in theirs]
        return sum(gain < 0 for gain in gains) / len(gains) if gains else math.nan

    in_percent = ACCURACY in measures_of(run for method in found for run in method.chosen)
    form, unit = ("{:+.1%}", " pp") if in_percent else ("{:+.3g}", "")
    return [
        ResultColumn("gain over alone", gain, form, form, unit, max),
        ResultColumn("better off alone", better_alone, "{:.0%}", "{:.0%}", " %", min),
    ]


def _same_data(run: Run) -> tuple[object, ...]:
    """Equal for runs on the same samples of the same clients."""
    return *problem_of(run), seed_of(run)


def seed_of(run: Run) -> str:
    """Equal for runs with the same seeds."""
    return comparable({key: value for key, value in run.settings.items() if is_seed(key)})
