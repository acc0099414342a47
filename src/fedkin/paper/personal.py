"""Tables of personal models: each client's model on its own testing samples, with methods tuned alike, over seeds."""

import math
from collections.abc import Mapping
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedkin.paper.controls import interval_cell
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.figures import FIGURE_WIDTH, MUTED, style
from fedkin.reports.run import Run
from fedkin.reports.selection import Method, client_values, methods
from fedkin.reports.tables import NEVER, NOT_RUN, Cell, Table, text_cell

BySeed = Mapping[int, Run]

# The columns: names of methods by algorithm and graph. `BASELINES` are what anybody could use without kin.
COLUMNS = {
    "kin": "Kin",
    "fedkin, kinds": "true kinds known",
    "fedkin, similarity": "nearest by data",
    "fedkin, shuffled": "shuffled graph",
    "ifca": "IFCA",
    "finetuned": "FedAvg, fine-tuned",
    "fedavg": "FedAvg",
    "alone": "alone",
}
REFERENCE = COLUMNS["kin"]
BASELINES = tuple(COLUMNS[name] for name in ("finetuned", "fedavg", "alone"))


def personal_tables(context: Context) -> Output:
    """A row per federation: accuracy of all methods, and the differences of `Kin` from them with their intervals.

    Of each method and seed it is the run with the lowest loss on the clients' validation samples. Differences are taken
    per seed; intervals are 95 % confidence intervals of their mean (Student's t).
    """
    places: dict[str, list[Run]] = {}
    for part in context.reproduction.parts:
        places.setdefault(part.label, []).extend(context.runs(part))
    found = {label: chosen_runs(runs) for label, runs in places.items()}
    titles = [title for title in COLUMNS.values() if any(title in of for of in found.values())]
    others = [title for title in titles if title != REFERENCE]
    accuracies, differences, clients = [], [], []
    for label, of in found.items():
        cells = [interval_cell(_points(of.get(title, {})), "{:.1f}") for title in titles]
        accuracies.append((text_cell(label), *_marked(cells)))
        differences.append((text_cell(label), *(_difference(of, title) for title in others), *_verdict(of)))
        clients.append((text_cell(label), *_client_cells(of)))
    heads = ("worst tenth: Kin", "best of the baselines", "better off alone: Kin", "fine-tuned")
    tables = (
        Table("Accuracy of each client's model on its own testing samples, %", ("federation", *titles), (*accuracies,)),
        Table("Kin minus the others, points", ("federation", *others, "best baseline", "Kin"), (*differences,)),
        Table("The clients that are served worst, %", ("federation", *heads), (*clients,)),
    )
    notes = (
        "± is half the width of a 95 % confidence interval over the seeds. Differences are taken per seed. Kin *pays* "
        "or *loses* if the interval of its difference from the best baseline (fine-tuned FedAvg, FedAvg or alone, "
        "whichever has the highest mean on the test) does not contain 0; else it *ties*.",
        "Every method has eight trials per seed, and the one with the lowest loss on the validation samples is tested.",
        "Worst tenth: mean accuracy of the tenth of the clients with the lowest. Better off alone: share of clients "
        "whose model trained alone is more accurate on their testing samples.",
    )
    return Output(tables, tables[0], {"": personal_figure(found)} if any(found.values()) else {}, notes)


def chosen_runs(runs: list[Run]) -> dict[str, dict[int, Run]]:
    """The chosen run of each seed, by the title of the method."""
    return {_title(method): {int(run.config["seed"]): run for run in method.chosen} for method in methods(runs)}


def _title(method: Method) -> str:
    run = method.chosen[0]
    name = run.algorithm
    return COLUMNS.get(name) or COLUMNS.get(f"{name}, {run.config['graph']['kind']}") or method.label


def _points(by_seed: BySeed) -> list[float]:
    return [100 * run.used_value for run in by_seed.values()]


def _marked(cells: list[Cell]) -> list[Cell]:
    """The same cells, with the highest accuracy marked."""
    highest = max((cell.value for cell in cells if isinstance(cell.value, float)), default=math.nan)
    return [Cell(c.text, c.value, c.spread, c.count, best=c.value == highest) for c in cells]


def _gaps(of: Mapping[str, BySeed], title: str) -> list[float]:
    """Accuracy of Kin minus that of another method, per seed, in points."""
    ours, theirs = of.get(REFERENCE, {}), of.get(title, {})
    return [100 * (ours[seed].used_value - theirs[seed].used_value) for seed in ours if seed in theirs]


def _difference(of: Mapping[str, BySeed], title: str) -> Cell:
    gaps = _gaps(of, title)
    return interval_cell(gaps, "{:+.2f}") if gaps else Cell(NEVER)


def best_baseline(of: Mapping[str, BySeed]) -> str | None:
    """The baseline with the highest mean accuracy on the test: the hardest to beat."""
    there = [title for title in BASELINES if of.get(title)]
    return max(there, key=lambda title: mean(_points(of[title])), default=None)


def _verdict(of: Mapping[str, BySeed]) -> tuple[Cell, Cell]:
    best = best_baseline(of)
    if best is None or not of.get(REFERENCE):
        return text_cell(NEVER), text_cell(NOT_RUN)
    gap = _difference(of, best)
    if not isinstance(gap.value, float) or gap.spread is None:
        return text_cell(best), text_cell("one seed")
    word = "ties" if abs(gap.value) <= gap.spread else "pays" if gap.value > 0 else "loses"
    return text_cell(best), text_cell(word)


def _client_cells(of: Mapping[str, BySeed]) -> list[Cell]:
    best = best_baseline(of)
    worst = [
        interval_cell([100 * run.used_worst_decile for run in of.get(title or "", {}).values()], "{:.1f}")
        for title in (REFERENCE, best)
    ]
    alone = of.get(COLUMNS["alone"], {})
    shares = []
    for title in (REFERENCE, COLUMNS["finetuned"]):
        pairs = [(run, alone[seed]) for seed, run in of.get(title, {}).items() if seed in alone]
        shares.append(interval_cell([100 * _better_alone(run, by_itself) for run, by_itself in pairs], "{:.0f}"))
    return [*worst, *shares]


def _better_alone(run: Run, alone: Run) -> float:
    ours, theirs = client_values(run), client_values(alone)
    both = [(ours[name], theirs[name]) for name in ours if name in theirs]
    return sum(mine < by_itself for mine, by_itself in both) / len(both) if both else math.nan


def personal_figure(found: Mapping[str, Mapping[str, BySeed]]) -> Figure:
    """Kin minus the best baseline for each federation, a dot per seed and a bar for the mean."""
    places = {label: gaps for label, of in found.items() if (best := best_baseline(of)) and (gaps := _gaps(of, best))}
    with style():
        figure = Figure(figsize=(FIGURE_WIDTH, 0.9 + 0.32 * len(places)), layout=ConstrainedLayoutEngine())
        axes = figure.subplots()
        axes.axvline(0, color=MUTED, linewidth=1)
        for place, gaps in enumerate(places.values()):
            axes.plot([mean(gaps)] * 2, [place - 0.35, place + 0.35], color="C0", linewidth=2.2)
            axes.scatter(gaps, [place] * len(gaps), s=14, color="C0", alpha=0.6, linewidths=0)
        axes.set_yticks(range(len(places)), list(places))
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("Kin minus the best of fine-tuned FedAvg,\nFedAvg and alone, points of accuracy")
    return figure
