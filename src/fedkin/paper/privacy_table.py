"""What privacy costs: accuracy for several ε, over seeds."""

import math
from collections.abc import Mapping

from fedkin.paper.controls import interval_cell
from fedkin.paper.reproduce import Context, Output
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell, Table, number_cell, text_cell

PLAIN = "neither clipping nor noise"


def privacy_tables(context: Context) -> Output:
    """A row for each part and ε: the noise, what a run has spent, its accuracy, and what that costs per seed."""
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for part in context.reproduction.parts:
        for run in context.runs(part):
            if run.status == "finished":
                found.setdefault((part.label, _budget(run)), {})[int(run.config["seed"])] = run
    plain = next((runs for (_, budget), runs in found.items() if budget == PLAIN), {})
    rows, labels = [], [part.label for part in context.reproduction.parts]
    for (label, budget), runs in sorted(found.items(), key=lambda item: (labels.index(item[0][0]), _order(item[1]))):
        first = next(iter(runs.values()))
        spent = first.summary.get("privacy", {})
        rows.append(
            (
                text_cell(label),
                text_cell(budget),
                Cell(str(len(runs)), len(runs)),
                number_cell("{:.2f}", spent.get("noise")),
                number_cell("{:.2f}", spent.get("epsilon")),
                interval_cell([100 * run.final_value for run in runs.values()], "{:.1f}"),
                Cell(NEVER) if runs is plain else interval_cell(_costs(runs, plain), "{:+.1f}"),
            )
        )
    columns = ("noise", "planned", "seeds", "σ", "ε of a run", "accuracy, %", "difference, points")
    every = [run for runs in found.values() for run in runs.values()]
    clients = _listed({f"{run.config['partition']['clients']:,}" for run in every})
    deltas = _listed({f"{run.summary['privacy']['delta']:g}" for run in every if "privacy" in run.summary})
    notes = (
        f"{clients} clients, δ = {deltas}. Neighbours differ in one client with all its samples.",
        "± is half the width of a 95 % confidence interval over the seeds; differences are taken per seed. ε is of one "
        "run. Step size and clip were fixed beforehand on another seed: a choice among runs would have to be paid for.",
    )
    table = Table("", columns, tuple(rows))
    return Output((table,), table, notes=notes)


def _order(runs: Mapping[int, Run]) -> tuple[bool, float]:
    """Runs without privacy first, then those that are protected less."""
    section = next(iter(runs.values())).config["privacy"]
    epsilon = section["epsilon"] if section["epsilon"] is not None else math.inf
    return section["clip"] is not None and math.isfinite(section["clip"]), -float(epsilon)


def _listed(values: set[str]) -> str:
    return " or ".join(sorted(values))


def _budget(run: Run) -> str:
    """What was asked for, in words."""
    section = run.config["privacy"]
    epsilon, clip = (float(section[key]) if section[key] is not None else math.inf for key in ("epsilon", "clip"))
    if math.isfinite(epsilon):
        return f"ε ≤ {epsilon:g}"
    return "clipping alone" if math.isfinite(clip) else PLAIN


def _costs(runs: Mapping[int, Run], plain: Mapping[int, Run]) -> list[float]:
    """Accuracy minus that without privacy, per seed, in points."""
    return [100 * (runs[seed].final_value - plain[seed].final_value) for seed in runs if seed in plain]
