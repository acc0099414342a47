"""Compare runs: a table and curves, written to files."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from fedkin.data.measure import ACCURACY, Measure
from fedkin.errors import BadInput
from fedkin.markup import concatenated, tag
from fedkin.reports.answer.contenders import federation_title, fields_of
from fedkin.reports.answer.costs import cost_notes, cost_table
from fedkin.reports.answer.sentences import Answer, answer_of
from fedkin.reports.chosen import chosen_figure
from fedkin.reports.curves import curves
from fedkin.reports.figures import save
from fedkin.reports.groups import described, experiments, groups_of, key_of, shown_hyper, speed_up, varying
from fedkin.reports.labels import MISSING, comparable, is_number, is_seed, method_label, number, plain, title_of
from fedkin.reports.measures import ResultColumn, mark_best, measures_of, value_column
from fedkin.reports.page.document import can_make_page, page_of
from fedkin.reports.pages import machine, with_section, write_pages
from fedkin.reports.run import Run
from fedkin.reports.runs import collect
from fedkin.reports.selection import chosen_table, how_chosen, methods
from fedkin.reports.tables import Cell, Table, escaped, text_cell


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
            + [measure.cell(group) for measure in measures]
            + [text_cell(_states(group))] * unfinished
        )
    mark_best(rows, groups, measures, start=head.index(measures[0].title))
    names = ", ".join(dict.fromkeys(run.experiment for run in runs))
    title = f"{names}: {problem}" if (problem := described(runs)) else names
    return Table(title, tuple(head), tuple(tuple(row) for row in rows))


def _measures(runs: Sequence[Run]) -> list[ResultColumn]:
    goals = {run.measure.goal(run.threshold) for run in runs if not math.isnan(run.threshold)}
    goal = goals.pop() if len(goals) == 1 else "threshold"
    measures = []
    if any(not math.isnan(run.threshold) for run in runs) or ACCURACY in measures_of(runs):
        measures = [ResultColumn(f"rounds to {goal}", lambda run: run.reached, "{:g}", "{:.1f}", "", min)]
    if measures and any(run.algorithm == "fedavg" for run in runs):
        speed_up = _speed_ups(runs)
        measures.append(ResultColumn("speed-up", lambda run: speed_up[run.folder], "{:.1f}", "{:.1f}", "×", max))
    for measure in measures_of(runs):
        measures += _values(measure, runs)
    measures.append(ResultColumn("seconds", lambda run: run.seconds, "{:.1f}", "{:.1f}", "", min))
    return measures


def _values(measure: Measure, runs: Sequence[Run]) -> list[ResultColumn]:
    """The columns of a main measure."""
    of_which = f" by {measure.name}" if len(measures_of(runs)) > 1 else ""
    columns: list[tuple[str, Callable[[Run], float]]] = [
        (f"final {measure.name}", lambda run: run.final_value),
        (f"best {measure.name}", lambda run: run.best_value),
        (f"worst decile{of_which}", lambda run: run.worst_decile),
        (f"own {measure.name}", lambda run: run.own_value),
        (f"own worst decile{of_which}", lambda run: run.own_worst_decile),
        (f"tuned {measure.name}", lambda run: run.tuned_value),
        (f"tuned worst decile{of_which}", lambda run: run.tuned_worst_decile),
    ]
    found = [value_column(measure, title, of) for title, of in columns]
    return found[:2] + [column for column in found[2:] if any(math.isfinite(column.of(run)) for run in runs)]


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


def _states(group: Sequence[Run]) -> str:
    states = [run.state for run in group]
    if len(group) == 1 or set(states) == {"finished"}:
        return states[0]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


# -- the files ---------------------------------------------------------------------------------------------------------


def conclusions(runs: Sequence[Run]) -> list[tuple[str, Answer]]:
    """The answers of an experiment: one for each federation, with what distinguishes it from others."""
    found = fields_of(runs)
    return [(federation_title(part.runs[0], runs) if len(found) > 1 else "", answer_of(part)) for part in found]


def conclusion_text(runs: Sequence[Run], width: int) -> str:
    """The answers of an experiment for a terminal."""

    def wrapped(text: str, first: str = "", rest: str = "") -> str:
        return textwrap.fill(text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False)

    parts = []
    for title, answer in conclusions(runs):
        lines = [wrapped(f"{title}: {answer.headline}" if title else answer.headline)]
        lines += [wrapped(sentence, "  ", "  ") for sentence in answer.details]
        lines += ["What could change this answer:"] if answer.cautions else []
        lines += [wrapped(sentence, "- ", "  ") for sentence in answer.cautions]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def conclusion_html(runs: Sequence[Run]) -> str:
    """The answers of an experiment and the table of its methods, as a notebook shows them."""
    parts = []
    for title, answer in conclusions(runs):
        parts.append(tag("p", tag("b", f"{title}: {answer.headline}" if title else answer.headline)))
        parts += [tag("p", sentence) for sentence in answer.details]
        if answer.cautions:
            parts.append(tag("p", "What could change this answer:"))
            parts.append(tag("ul", *(tag("li", sentence) for sentence in answer.cautions)))
    for shown in shown_tables(runs):
        head = tag("tr", *(tag("th", column) for column in shown.columns))
        rows = [tag("tr", *(tag("td", cell) for cell in row)) for row in shown.rows]
        parts.append(tag("table", tag("thead", head), tag("tbody", *rows)))
    return concatenated(parts)


def _conclusion_page(runs: Sequence[Run]) -> str:
    """The answers of an experiment in Markdown."""
    parts = []
    for title, answer in conclusions(runs):
        parts.append(f"**{escaped(f'{title}: {answer.headline}' if title else answer.headline)}**")
        parts += [escaped(" ".join(answer.details))] if answer.details else []
        if answer.cautions:
            parts.append("What could change this answer:\n\n" + "\n".join(f"- {escaped(c)}" for c in answer.cautions))
    return "\n\n".join(parts)


def shown_tables(runs: Sequence[Run]) -> list[Table]:
    """The tables of an experiment for the terminal: of all runs, and of those chosen on validation.

    If every run that has ended was validated, only the second: test results are for chosen runs.
    """
    chosen = chosen_table(runs)
    validated = all(math.isfinite(run.validation_loss) or run.status == "diverged" for run in runs)
    return [*([] if chosen and validated else [table(runs)]), *([chosen] if chosen else [])]


def cost_tables(runs: Sequence[Run]) -> list[tuple[Table, str]]:
    """Costs and fairness of the methods whose settings were chosen on validation, for each federation; with notes."""
    if not methods(runs):
        return []
    found = []
    for title, answer in conclusions(runs):
        if answer.ranking is not None and len(answer.ranking.order) > 1:
            one = cost_table(answer.ranking)
            found.append((replace(one, title=": ".join(filter(None, [one.title, title]))), cost_notes(answer.ranking)))
    return found


def report_views(folder: Path | str, width: int) -> list[Any]:
    """For the terminal, for each experiment in a folder: the answer in words, and the tables."""
    found: list[Any] = []
    for peers in experiments(collect(folder)).values():
        tables = [*shown_tables(peers), *(one for one, _ in cost_tables(peers))]
        found += [conclusion_text(peers, width), *tables]
    return found


def write(folder: Path | str, out: Path | str | None = None) -> list[Path]:
    """Write `report.md`, `report.csv`, `curves.png` and `curves.pdf`: the paths written.

    If runs have been validated, there are also `chosen.csv`, `chosen.png` and `chosen.pdf`. If the packages of the page
    are installed (`fedkin[page]`), `report.html` is the first.

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
            compared, chosen = table(runs), chosen_table(runs)
            html = {"report.html": page_of(runs)} if can_make_page() else {}
            pages = html | {"report.md": _page(runs, compared, chosen), "report.csv": compared.csv()}
            written += write_pages(target, pages | ({"chosen.csv": chosen.csv()} if chosen else {}))
            written += save(curves(runs), target / "curves")
            written += save(chosen_figure(runs), target / "chosen") if chosen else []
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadInput(f"the report cannot be written to {target} ({reason}): choose another folder") from None
    return written


def write_section(folder: Path | str, page: Path | None, command: str) -> list[Path]:
    """Write the answer and the table of one comparison into a Markdown page, if there is one: the paths written.

    It replaces what is between `<!-- compare NAME -->` and `<!-- end NAME -->`, or is appended.
    """
    if page is None:
        return []
    runs = collect(folder)
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    tables = [one.markdown().rstrip() for one in shown_tables(runs)]
    costs = [text for one, notes in cost_tables(runs) for text in (one.markdown().rstrip(), notes)]
    origin = f"Written on {date.today().isoformat()} by `{command}` on {machine()}."
    content = "\n\n".join([_conclusion_page(runs), *tables, f"{how_chosen(runs)}.", *costs, origin])
    return write_pages(page.parent, {page.name: with_section(text, Path(folder).name, content, "compare")})


def _page(runs: Sequence[Run], compared: Table, chosen: Table | None) -> str:
    """The report as a Markdown page."""
    notes = ["Rounds are counted from 0; — means that there is no value, or that the threshold was never reached."]
    if "speed-up" in compared.columns:
        notes.append("Speed-up is FedAvg's number of rounds divided by the run's, with all other settings the same.")
    if "seeds" in compared.columns:
        notes.append("± is the standard deviation over seeds.")
    if any(cell.count is not None for row in compared.cells for cell in row):
        notes.append("(2 of 3) means that only two of three seeds have a value, and the mean is theirs.")
    titles = " and ".join(measure.title for measure in measures_of(runs))
    paragraphs = [
        f"# {escaped(runs[0].experiment)}",
        escaped(described(runs)),
        _conclusion_page(runs),
        compared.markdown().rstrip("\n"),
        " ".join(notes),
        f"![Test {titles} and training loss over the rounds](curves.png)",
        *(_section(runs, chosen, measures_of(runs)) if chosen else []),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _section(runs: Sequence[Run], chosen: Table, measures: Sequence[Measure]) -> list[str]:
    """The runs chosen on validation, as paragraphs of the page."""
    titles, is_accuracy = " and ".join(measure.title for measure in measures), ACCURACY in measures
    notes = [
        f"{how_chosen(runs)}.",
        f"{titles.capitalize()} is that of the models that clients use (their own, or the global one) on their own "
        f"testing samples; worst tenth is its mean over the tenth of the clients with the "
        f"{'lowest' if is_accuracy else 'highest'}.",
    ]
    if "gain over alone" in chosen.columns:
        notes.append(
            f"Gain is {'in percentage points' if is_accuracy else 'the decrease'} over training alone; better off "
            "alone is the share of clients for which the model trained alone is better."
        )
    if "seeds" in chosen.columns:
        notes.append("± is the standard error of the mean over seeds.")
    costs = [(f"### {escaped(one.title)}", one.markdown().rstrip(), notes) for one, notes in cost_tables(runs)]
    return [
        "## Chosen on validation",
        chosen.markdown().rstrip("\n"),
        " ".join(notes),
        *(paragraph for parts in costs for paragraph in parts),
        f"![{titles.capitalize()} of every client's model, and its mean over the rounds](chosen.png)",
    ]
