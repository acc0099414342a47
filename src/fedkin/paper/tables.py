"""Tables of reproductions: results next to the paper's values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from fedkin.paper.reproduce import Context, Output, Part
from fedkin.reports.groups import speed_up
from fedkin.reports.run import Run
from fedkin.reports.tables import NEVER, NOT_RUN, Cell, Table, number_cell, text_cell

LOSS = {"softmax": "convex", "mlp": "nonconvex"}


def _kind(run: Run) -> str:
    return str(run.config["model"]["kind"])


def _in_order(found: Iterable[str], first: Sequence[str]) -> list[str]:
    """Distinct words, those of `first` first."""
    words = list(dict.fromkeys(found))
    return [w for w in first if w in words] + [w for w in words if w not in first]


def _methods(runs: Iterable[Run]) -> list[str]:
    """FedAvg, FedProx, then FedKin by decreasing β, which is the order of runs in a folder."""
    words = list(dict.fromkeys(run.method for run in runs))
    rank = {"FedAvg": 0, "FedProx": 1, "FedKin": 2}
    return sorted(words, key=lambda word: rank.get(word.split()[0], 3))  # stable: the order within a rank is kept


# -- the main table ----------------------------------------------------------------------------------------------------


def main_table(context: Context) -> Output:
    """The paper's layout: a row per algorithm and loss, a column per data set; below each row the paper's values."""
    printed = context.reproduction.printed
    found = {part: {(_kind(run), run.method): run for run in context.runs(part)} for part in context.reproduction.parts}
    everything = [run for runs in found.values() for run in runs.values()]
    kinds, methods = _in_order(map(_kind, everything), list(LOSS)), _methods(everything)
    rows, long = [], []
    for method in methods:
        for kind in kinds:
            ours, theirs = [], []
            for part, runs in found.items():
                run, base = runs.get((kind, method)), runs.get((kind, "FedAvg"))
                values = printed.get(part.name, {}).get(kind, {})
                ours.append(text_cell(_result_text(run, base)))
                theirs.append(text_cell(_printed_text(values, method)))
                if run:
                    long.append(_csv_row(part, run, base, values.get(method)))
            head = [text_cell(method), text_cell(LOSS.get(kind, kind))]
            rows.append((*head, text_cell("here"), *ours))
            if any(cell.text for cell in theirs):
                rows.append((text_cell(""), text_cell(""), text_cell("paper"), *theirs))
    columns = ("algorithm", "loss", "", *(part.label for part in context.reproduction.parts))
    heads = (
        *("experiment", "loss", "algorithm", "status", "accuracy", "rounds", "speed-up", "seconds"),
        *("paper accuracy", "paper rounds", "accuracy − paper", "rounds − paper"),
    )
    goals = {part.data: part.settings.get("threshold", 0.75) for part in found}
    thresholds = ", ".join(f"{100 * threshold:g} % on {data}" for data, threshold in goals.items())
    goal = (
        f"A cell is the accuracy in percent after the last round / rounds to {thresholds}, counted from 0 (speed-up)."
    )
    return Output(
        (Table(context.reproduction.title, columns, tuple(rows)),),
        Table("", heads, tuple(long)),
        notes=(goal, *(_agreement(found, printed) if not context.quick else ())),
    )


def _result_text(run: Run | None, base: Run | None) -> str:
    if run is None:
        return NOT_RUN
    if run.status != "finished":
        return run.state
    reached = f"{run.reached:g}" if math.isfinite(run.reached) else NEVER
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    faster = f" ({ratio:.1f}×)" if math.isfinite(ratio) else ""
    return f"{100 * run.final_value:.2f} / {reached}{faster}"


def _printed_text(values: Mapping[str, Any], method: str) -> str:
    if method not in values:
        return ""
    accuracy, rounds = values[method]
    ratio = speed_up(values["FedAvg"][1], rounds)
    return f"{accuracy:.2f} / {rounds} ({ratio:.1f}×)"


def _csv_row(part: Part, run: Run, base: Run | None, values: Sequence[float] | None) -> tuple[Cell, ...]:
    accuracy, rounds = (values[0] / 100, float(values[1])) if values else (math.nan, math.nan)
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    return (
        text_cell(part.name),
        text_cell(LOSS.get(_kind(run), _kind(run))),
        text_cell(run.method),
        text_cell(run.state),
        number_cell("{:.4f}", run.final_value),
        number_cell("{:g}", run.reached),
        number_cell("{:.2f}", ratio),
        number_cell("{:.1f}", run.seconds),
        number_cell("{:.4f}", accuracy),
        number_cell("{:g}", rounds),
        number_cell("{:.4f}", run.final_value - accuracy),
        number_cell("{:g}", run.reached - rounds),
    )


def _agreement(found: Mapping[Part, Mapping[tuple[str, str], Run]], printed: Mapping[str, Any]) -> list[str]:
    """The largest differences from the paper's values, a line per data set and loss."""
    lines = []
    for part, runs in found.items():
        for kind, values in printed.get(part.name, {}).items():
            done = {m: runs[kind, m] for m in values if (kind, m) in runs and runs[kind, m].status == "finished"}
            if not done:
                continue
            points = max(abs(100 * run.final_value - values[m][0]) for m, run in done.items())
            missed = [m for m, run in done.items() if not math.isfinite(run.reached)]
            differences = [(run.reached - values[m][1], values[m][1]) for m, run in done.items() if m not in missed]
            line = f"{part.label}, {LOSS.get(kind, kind)}, {len(done)} of {len(values)} cells: "
            if differences:
                most, of = max(differences, key=lambda pair: abs(pair[0]))
                share = max(abs(d) / r for d, r in differences)
                line += f"rounds at most {abs(most):g} from the paper's (of {of:g}; {share:.0%} at most), "
            line += f"accuracy at most {points:.2f} points from it"
            lines.append(line + (f"; {', '.join(missed)} did not reach the threshold" if missed else ""))
    return lines


# -- running times -----------------------------------------------------------------------------------------------------


def times_table(context: Context) -> Output:
    """Time of a run, mean and standard deviation over the balanced and imbalanced case, and the paper's."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    for part in context.reproduction.parts:
        for run in context.runs(part):
            if run.status == "finished":
                source = str(run.config["data"]["source"])
                taken.setdefault((source, _kind(run), run.method), []).append(run.seconds)
    rows = []
    order = list(LOSS)
    for (source, kind, method), seconds in sorted(
        taken.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    ):
        values = context.reproduction.printed.get(source, {}).get(kind, {}).get(method)
        hours = [_seconds_of(text) for text in values] if values else []
        middle = mean(seconds)
        spread = stdev(seconds) if len(seconds) > 1 else None
        rows.append(
            (
                text_cell(source),
                text_cell(LOSS.get(kind, kind)),
                text_cell(method),
                Cell(_duration(middle) + (f" ± {_duration(spread)}" if spread is not None else ""), middle, spread),
                Cell(f"{values[0].replace(':', 'h')}m ± {values[1].replace(':', 'h')}m", hours[0])
                if values
                else Cell(NEVER),
                number_cell("{:.0f}×", hours[0] / middle) if values else Cell(NEVER),
            )
        )
    columns = ("data", "loss", "algorithm", "here", "paper", "ratio")
    table = Table(context.reproduction.title, columns, tuple(rows))
    notes = (
        "Where several runs were executed together, the time of a run is its share.",
        "The paper's times are from a laptop with a small graphics card. Its digits are FEMNIST's, 5.5 times as many "
        "as MNIST's, which has to be considered in the ratios on digits.",
    )
    return Output((table,), table, notes=notes)


def _seconds_of(text: str) -> float:
    hours, minutes = map(int, text.split(":"))
    return 3600.0 * hours + 60 * minutes


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# -- variants ----------------------------------------------------------------------------------------------------------


def variants_table(context: Context) -> Output:
    """A row per variant, a column per algorithm: rounds to the threshold (speed-up over FedAvg of the same row)."""
    found = {part: {run.method: run for run in context.runs(part)} for part in context.reproduction.parts}
    methods = _methods(run for runs in found.values() for run in runs.values())
    rows, long = [], []
    (values,) = context.reproduction.printed.values()
    base = values["FedAvg"]
    rows.append(
        (
            text_cell("paper"),
            *(text_cell(f"{values[m]} ({base / values[m]:.1f}×)" if m in values else "") for m in methods),
        )
    )
    for part, runs in found.items():
        cells = []
        for method in methods:
            run = runs.get(method)
            cells.append(text_cell(_rounds_text(run, runs.get("FedAvg"))))
            if run:
                long.append(
                    (
                        text_cell(part.name),
                        text_cell(part.label),
                        text_cell(method),
                        text_cell(run.state),
                        number_cell("{:g}", run.reached),
                        number_cell("{:.4f}", run.final_value),
                    )
                )
        rows.append((text_cell(part.label), *cells))
    note = "Rounds to the threshold, counted from 0, and FedAvg's rounds over them (speed-up)."
    return Output(
        (Table(context.reproduction.title, ("variant", *methods), tuple(rows)),),
        Table("", ("experiment", "variant", "algorithm", "status", "rounds", "final accuracy"), tuple(long)),
        notes=(note,),
    )


def _rounds_text(run: Run | None, base: Run | None) -> str:
    if run is None:
        return NOT_RUN
    if not math.isfinite(run.reached):
        return NEVER if run.status == "finished" else run.state
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    return f"{run.reached:g}" + (f" ({ratio:.1f}×)" if math.isfinite(ratio) else "")
