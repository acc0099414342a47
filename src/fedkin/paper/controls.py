"""Tables of the control experiments: methods over several seeds, with confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from scipy.stats import t as student

from fedkin.paper.reproduce import Context, Output
from fedkin.reports.groups import varying
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, Cell, Table, text_cell

CONFIDENCE = 0.95


def control_tables(context: Context) -> Output:
    """A table per federation: each method with its settings, over seeds, and its difference from the reference.

    Intervals are 95 % confidence intervals of the mean (Student's t over the seeds). Differences are taken per seed, so
    that an effect of the seed common to all methods cancels.
    """
    places: dict[str, list[Run]] = {}
    for part in context.reproduction.parts:
        # An unfinished run has no final accuracy yet and would bias the mean.
        done = [run for run in context.runs(part) if run.status != "running"]
        places.setdefault(part.label, []).extend(done)
    tables, long = [], []
    for label, runs in places.items():
        if not runs:
            continue
        groups: dict[str, dict[int, Run]] = {}
        keys = [key for key in varying(runs) if key != "seed" and key != "rounds"]
        usual = min(float(run.config["local"]["step_size"]) for run in runs)
        for run in runs:
            groups.setdefault(_method_label(run, keys, usual), {})[int(run.config["seed"])] = run
        reference = groups.get(context.reproduction.reference, {})
        rows = []
        for name, by_seed in groups.items():
            row = (
                text_cell(name),
                Cell(str(len(by_seed)), len(by_seed)),
                interval_cell([run.reached for run in by_seed.values()], "{:.1f}"),
                interval_cell([100 * run.final_value for run in by_seed.values()], "{:.2f}"),
                *([Cell("")] * 2 if by_seed is reference else _difference_cells(by_seed, reference)),
            )
            rows.append(row)
            long.append((text_cell(label), *row))
        threshold = f"{100 * runs[0].threshold:g} %"
        last = runs[0].config["rounds"]
        columns = (
            *("method", "seeds", f"rounds to {threshold}", f"accuracy after {last} rounds, %"),
            *("rounds − reference", "accuracy − reference, points"),
        )
        tables.append(Table(label, columns, tuple(rows)))
        tables += _at_equal_steps(label, runs)
    heads = (
        *("federation", "method", "seeds", "rounds", "accuracy, %", "rounds − reference"),
        "accuracy − reference, points",
    )
    notes = (
        f"The reference is {context.reproduction.reference} at the paper's settings: similarity graph, the smallest γ.",
        "± is half the width of a 95 % confidence interval (Student's t over the seeds). Differences from the "
        "reference are taken per seed; one whose interval contains 0 is not significant.",
        "The server averages with uniform weights in all of them, so that graphs affect u only.",
    )
    return Output(tuple(tables), Table("", heads, tuple(long)), notes=notes)


def _at_equal_steps(label: str, runs: Sequence[Run]) -> list[Table]:
    """FedKin with the similarity graph minus FedAvg, per seed: at the same step size, and at half of FedAvg's."""
    found: dict[tuple[str, float], dict[int, Run]] = {}
    for run in runs:
        if run.config["graph"]["kind"] == "similarity" or run.algorithm == "fedavg":
            key = (run.algorithm, float(run.config["local"]["step_size"]))
            found.setdefault(key, {})[int(run.config["seed"])] = run
    steps = sorted(step for algorithm, step in found if algorithm == "fedavg")
    rows = []
    for step in steps if len(steps) > 1 else []:
        cells = []
        for ours in (step, step / 2):
            kin, average = found.get(("fedkin", ours), {}), found["fedavg", step]
            cells += _difference_cells(kin, average)
        rows.append((Cell(f"{step:g}", step), *cells))
    columns = (
        "FedAvg's γ",
        *("FedKin at γ: rounds", "accuracy, points"),
        *("FedKin at γ/2: rounds", "accuracy, points"),
    )
    return [Table(f"{label}: FedKin minus FedAvg", columns, tuple(rows))] if rows else []


def _method_label(run: Run, keys: Sequence[str], step_size: float) -> str:
    """A method and the settings in which it differs from the paper's."""
    usual = {"graph.kind": "similarity", "local.step_size": step_size, "graph.neighbours": 0, "graph.temperature": 1.0}
    words = {"local.step_size": "γ = {:g}", "graph.neighbours": "{} nearest", "graph.temperature": "temperature {:g}"}
    parts = []
    for key in keys:
        section, _, leaf = key.partition(".")
        value = run.config[section][leaf] if leaf else run.config[section]
        # FedAvg does not use the graph.
        if value != usual.get(key) and not (run.algorithm == "fedavg" and section == "graph"):
            parts.append(words.get(key, f"{{}} {section if leaf == 'kind' else leaf}").format(value))
    return ", ".join([run.method, *parts])


def _difference_cells(ours: Mapping[int, Run], theirs: Mapping[int, Run]) -> list[Cell]:
    """Differences per seed in rounds to the threshold, and in final accuracy in points."""
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return [
        interval_cell([one.reached - other.reached for one, other in pairs], "{:+.1f}"),
        interval_cell([100 * (one.final_value - other.final_value) for one, other in pairs], "{:+.2f}"),
    ]


def interval_cell(values: Sequence[float], form: str) -> Cell:
    """Mean and half the width of its confidence interval; missing values are left out and counted."""
    there = [v for v in values if math.isfinite(v)]
    count = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    if not there:
        return Cell(NEVER)
    middle = mean(there)
    if len(there) == 1:
        return Cell(form.format(middle) + count, middle)
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(there) - 1)) * stdev(there) / math.sqrt(len(there))
    return Cell(f"{form.format(middle)} ± {form.format(half).lstrip('+')}{count}", middle, half)
