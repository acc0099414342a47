"""Compare runs: a table and curves, written to files."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedkin.errors import BadInput
from fedkin.reports.curves import curves
from fedkin.reports.figures import save
from fedkin.reports.groups import (
    described,
    experiments,
    groups_of,
    key_of,
    problem_of,
    shown_hyper,
    speed_up,
    varying,
)
from fedkin.reports.labels import MISSING, comparable, is_number, is_seed, method_label, number, plain, title_of
from fedkin.reports.pages import write_pages
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from fedkin.reports.tables import NEVER, Cell, Table, escaped, text_cell


@dataclass(frozen=True)
class _Measure:
    """A column of results: the value of a run, its formats, and whether small or large is better."""

    title: str
    of: Callable[[Run], float]
    one: str  # format of a single value
    many: str  # format of a mean
    unit: str
    better: Callable[[Iterable[float]], float]


def table(runs: Sequence[Run]) -> Table:
    """Compare runs: one row per setting of the algorithm, over all runs that differ only in their seed.

    Speed-up is FedAvg's rounds to the threshold divided by the run's, as printed: 20 / 15 = 1.3×. FedAvg's
    run is the one that agrees in every other setting, its seed included. Best values are marked among the
    runs of one learning problem, and only finished runs compete.
    """
    if not runs:
        raise BadInput("there are no runs to compare: collect some first")
    several = len(experiments(runs)) > 1
    differing, shown = varying(runs), shown_hyper(runs)
    columns = [key for key in differing if not is_seed(key)]
    groups = groups_of(runs)
    repeats = len({key_of(group[0]) for group in groups}) < len(groups)
    seeded = any(len(group) > 1 for group in groups)
    unfinished = any(run.status != "finished" for run in runs)
    measures = _measures(runs)

    head = (
        ["experiment"] * several
        + ["algorithm"]
        + ["run"] * repeats
        + [title_of(key, columns) for key in columns]
        + ["seeds"] * seeded
        + [measure.title for measure in measures]
        + ["status"] * unfinished
    )
    rows = []
    for group in groups:
        first, settings = group[0], group[0].settings
        named = [settings.get(key, MISSING) for key in columns]
        rows.append(
            [text_cell(first.experiment)] * several
            + [text_cell(method_label(first.algorithm, first.hyperparameters, shown[first.algorithm]))]
            + [text_cell(first.name)] * repeats
            + [Cell(plain(value), number(value) if is_number(value) else plain(value)) for value in named]
            + [Cell(str(len(group)), len(group))] * seeded
            + [_summed(measure, group) for measure in measures]
            + [text_cell(_states(group))] * unfinished
        )
    _mark_best(rows, groups, measures, start=head.index(measures[0].title))
    names = ", ".join(dict.fromkeys(run.experiment for run in runs))
    title = f"{names}: {problem}" if (problem := described(runs)) else names
    return Table(title, tuple(head), tuple(tuple(row) for row in rows))


def _measures(runs: Sequence[Run]) -> list[_Measure]:
    thresholds = {run.threshold for run in runs if not math.isnan(run.threshold)}
    goal = f"{100 * thresholds.pop():g} %" if len(thresholds) == 1 else "threshold"
    percent = ("{:.1%}", "{:.1%}", " %", max)
    measures = [_Measure(f"rounds to {goal}", lambda run: run.reached, "{:g}", "{:.1f}", "", min)]
    if any(run.algorithm == "fedavg" for run in runs):
        speed_up = _speed_ups(runs)
        measures.append(_Measure("speed-up", lambda run: speed_up[run.folder], "{:.1f}", "{:.1f}", "×", max))
    measures.append(_Measure("final accuracy", lambda run: run.final_accuracy, *percent))
    measures.append(_Measure("best accuracy", lambda run: run.best_accuracy, *percent))
    if any(math.isfinite(run.worst_decile) for run in runs):
        measures.append(_Measure("worst decile", lambda run: run.worst_decile, *percent))
    measures.append(_Measure("seconds", lambda run: run.seconds, "{:.1f}", "{:.1f}", "", min))
    return measures


def _speed_ups(runs: Sequence[Run]) -> dict[Path, float]:
    """FedAvg's rounds to the threshold over each run's, NaN where either is missing or 0."""

    def key(run: Run, graph: bool) -> object:
        settings = run.settings.items()
        kept = {k: comparable(v) for k, v in settings if graph or k.split(".")[0] != "graph"}
        return run.folder.parent, graph, tuple(sorted(kept.items()))

    baseline: dict[object, float] = {}
    for run in runs:
        if run.algorithm == "fedavg":
            # FedAvg does not use the graph: without an exact match, a FedAvg run with any graph is the baseline.
            for graph in (True, False):
                baseline.setdefault(key(run, graph), run.reached)
    ratios = {}
    for run in runs:
        theirs = baseline.get(key(run, True), baseline.get(key(run, False), math.nan))
        ratios[run.folder] = speed_up(theirs, run.reached)
    return ratios


def _summed(measure: _Measure, group: Sequence[Run]) -> Cell:
    """One cell of a group: the value of its run, or mean and standard deviation over seeds."""
    values = [value for run in group if math.isfinite(value := measure.of(run))]
    if not values:
        return Cell(NEVER)
    mean = sum(values) / len(values)
    count = len(values) if len(values) < len(group) else None
    part = f" ({count} of {len(group)})" if count else ""
    if len(group) == 1:
        return Cell(_printed(measure.one, mean) + measure.unit, mean)
    if len(values) == 1:
        return Cell(_printed(measure.many, mean) + measure.unit + part, mean, None, count)
    # Divided by n − 1: seeds are a sample.
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    text = f"{_printed(measure.many, mean)} ± {_printed(measure.many, spread)}{measure.unit}"
    return Cell(text + part, mean, spread, count)


def _printed(form: str, value: float) -> str:
    return form.format(value).removesuffix("%")


def _states(group: Sequence[Run]) -> str:
    states = [run.state for run in group]
    if len(group) == 1 or set(states) == {"finished"}:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _mark_best(
    rows: list[list[Cell]], groups: Sequence[Sequence[Run]], measures: Sequence[_Measure], start: int
) -> None:
    problems: dict[object, list[int]] = {}
    for row, group in enumerate(groups):
        if all(run.status == "finished" for run in group):
            problems.setdefault((problem_of(group[0]), group[0].threshold), []).append(row)
    for column, measure in enumerate(measures, start):
        for members in problems.values():
            # A mean over some of the seeds cannot be compared with one over all seeds.
            values = {
                row: cell.value
                for row in members
                if isinstance((cell := rows[row][column]).value, float) and cell.count is None
            }
            printed = {row: _printed(measure.many, value) for row, value in values.items()}
            if len(set(printed.values())) < 2:
                continue  # a single value, or all equal: none is best
            top = _printed(measure.many, measure.better(values.values()))
            for row, text in printed.items():
                if text == top:  # equal as printed
                    rows[row][column] = replace(rows[row][column], best=True)


# -- the files ---------------------------------------------------------------------------------------------------------


def write(folder: Path | str, out: Path | str | None = None) -> list[Path]:
    """Write `report.md`, `report.csv`, `curves.png` and `curves.pdf`: the paths written.

    They are written to the folder, or to `out`. If the folder holds several experiments, there is a report for each,
    in its own folder, or in a folder of its name in `out`.
    """
    folder = Path(folder)
    groups = experiments(collect(folder))
    written = []
    for place, runs in groups.items():
        target = Path(out) if out is not None else folder
        if len(groups) > 1:
            target = place if out is None else target / place.relative_to(folder.absolute())
        try:
            compared = table(runs)
            written += write_pages(target, {"report.md": _page(runs, compared), "report.csv": compared.csv()})
            written += save(curves(runs), target / "curves")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadInput(f"the report cannot be written to {target} ({reason}): choose another folder") from None
    return written


def _page(runs: Sequence[Run], compared: Table) -> str:
    """The report as a Markdown page."""
    notes = ["Rounds are counted from 0; — means that there is no value, or that the threshold was never reached."]
    if "speed-up" in compared.columns:
        notes.append("Speed-up is FedAvg's number of rounds divided by the run's, with all other settings the same.")
    if "seeds" in compared.columns:
        notes.append("± is the standard deviation over seeds.")
    if any(cell.count is not None for row in compared.cells for cell in row):
        notes.append("(2 of 3) means that only two of three seeds have a value, and the mean is theirs.")
    paragraphs = [
        f"# {escaped(runs[0].experiment)}",
        escaped(described(runs)),
        compared.markdown().rstrip("\n"),
        " ".join(notes),
        "![Test accuracy and training loss over the rounds](curves.png)",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"
