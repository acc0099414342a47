"""Tables of reproductions: what came out beside what the paper prints."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

from fedkin.paper.reproduce import Part, Shown, Work
from fedkin.reports.runs import Run, speed_up, varying
from fedkin.reports.tables import NEVER, Cell, Table, measured, word

LOSS = {"softmax": "convex", "mlp": "nonconvex"}
CONFIDENCE = 0.95


def _kind(run: Run) -> str:
    return str(run.config["model"]["kind"])


def _in_order(found: Iterable[str], first: Sequence[str]) -> list[str]:
    """Distinct words, known ones first."""
    words = list(dict.fromkeys(found))
    return [w for w in first if w in words] + [w for w in words if w not in first]


def _methods(runs: Iterable[Run]) -> list[str]:
    """FedAvg, FedProx, FedKin by falling β: the order in which runs of a folder come."""
    words = list(dict.fromkeys(run.method for run in runs))
    rank = {"FedAvg": 0, "FedProx": 1, "FedKin": 2}
    return sorted(words, key=lambda word: rank.get(word.split()[0], 3))  # stable: within a rank as they came


# -- the main table ----------------------------------------------------------------------------------------------------


def main_table(work: Work) -> Shown:
    """The paper's layout: a row an algorithm and a loss, a column a data set; below each row what the paper prints."""
    printed = work.what.printed
    found = {part: {(_kind(run), run.method): run for run in work.runs(part)} for part in work.what.parts}
    everything = [run for runs in found.values() for run in runs.values()]
    kinds, methods = _in_order(map(_kind, everything), list(LOSS)), _methods(everything)
    rows, long = [], []
    for method in methods:
        for kind in kinds:
            ours, theirs = [], []
            for part, runs in found.items():
                run, base = runs.get((kind, method)), runs.get((kind, "FedAvg"))
                said = printed.get(part.name, {}).get(kind, {})
                ours.append(word(_result(run, base)))
                theirs.append(word(_said(said, method)))
                if run:
                    long.append(_long(part, run, base, said.get(method)))
            head = [word(method), word(LOSS.get(kind, kind))]
            rows.append((*head, word("here"), *ours))
            if any(cell.text for cell in theirs):
                rows.append((word(""), word(""), word("paper"), *theirs))
    columns = ("algorithm", "loss", "", *(part.label for part in work.what.parts))
    heads = (
        *("experiment", "loss", "algorithm", "status", "accuracy", "rounds", "speed-up", "seconds"),
        *("paper accuracy", "paper rounds", "accuracy − paper", "rounds − paper"),
    )
    goals = {part.label.split()[0]: part.settings.get("threshold", 0.75) for part in found}
    thresholds = ", ".join(f"{100 * threshold:g} % on {data}" for data, threshold in goals.items())
    goal = (
        f"A cell is the accuracy in percent after the last round / rounds to {thresholds}, counted from 0 (speed-up)."
    )
    return Shown(
        (Table(work.what.title, columns, tuple(rows)),),
        Table("", heads, tuple(long)),
        notes=(goal, *(_agreement(found, printed) if not work.quick else ())),
    )


def _result(run: Run | None, base: Run | None) -> str:
    if run is None:
        return "not run"
    if run.status != "finished":
        return run.state
    reached = f"{run.reached:g}" if math.isfinite(run.reached) else NEVER
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    faster = f" ({ratio:.1f}×)" if math.isfinite(ratio) else ""
    return f"{100 * run.final_accuracy:.2f} / {reached}{faster}"


def _said(said: Mapping[str, Any], method: str) -> str:
    if method not in said:
        return ""
    accuracy, rounds = said[method]
    ratio = speed_up(said["FedAvg"][1], rounds)
    return f"{accuracy:.2f} / {rounds} ({ratio:.1f}×)"


def _long(part: Part, run: Run, base: Run | None, said: Sequence[float] | None) -> tuple[Cell, ...]:
    accuracy, rounds = (said[0] / 100, float(said[1])) if said else (math.nan, math.nan)
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    return (
        word(part.name),
        word(LOSS.get(_kind(run), _kind(run))),
        word(run.method),
        word(run.state),
        measured("{:.4f}", run.final_accuracy),
        measured("{:g}", run.reached),
        measured("{:.2f}", ratio),
        measured("{:.1f}", run.seconds),
        measured("{:.4f}", accuracy),
        measured("{:g}", rounds),
        measured("{:.4f}", run.final_accuracy - accuracy),
        measured("{:g}", run.reached - rounds),
    )


def _agreement(found: Mapping[Part, Mapping[tuple[str, str], Run]], printed: Mapping[str, Any]) -> list[str]:
    """How far from the paper, in words, a line for each data set and loss."""
    lines = []
    for part, runs in found.items():
        for kind, said in printed.get(part.name, {}).items():
            done = {m: runs[kind, m] for m in said if (kind, m) in runs and runs[kind, m].status == "finished"}
            if not done:
                continue
            points = max(abs(100 * run.final_accuracy - said[m][0]) for m, run in done.items())
            missed = [m for m, run in done.items() if not math.isfinite(run.reached)]
            apart = [(run.reached - said[m][1], said[m][1]) for m, run in done.items() if m not in missed]
            line = f"{part.label}, {LOSS.get(kind, kind)}, {len(done)} of {len(said)} cells: "
            if apart:
                most, of = max(apart, key=lambda pair: abs(pair[0]))
                share = max(abs(d) / r for d, r in apart)
                line += f"rounds at most {abs(most):g} from the paper's (of {of:g}; {share:.0%} at most), "
            line += f"accuracy at most {points:.2f} points from it"
            lines.append(line + (f"; {', '.join(missed)} did not reach the threshold" if missed else ""))
    return lines


# -- running times -----------------------------------------------------------------------------------------------------


def times(work: Work) -> Shown:
    """Seconds of each run, mean and deviation over the balanced and the imbalanced case, and the paper's hours."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    for part in work.what.parts:
        for run in work.runs(part):
            if run.status == "finished":
                source = str(run.config["data"]["source"])
                taken.setdefault((source, _kind(run), run.method), []).append(run.seconds)
    rows = []
    order = list(LOSS)
    for (source, kind, method), seconds in sorted(
        taken.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
    ):
        said = work.what.printed.get(source, {}).get(kind, {}).get(method)
        hours = [_seconds(text) for text in said] if said else []
        middle = mean(seconds)
        spread = stdev(seconds) if len(seconds) > 1 else None
        rows.append(
            (
                word(source),
                word(LOSS.get(kind, kind)),
                word(method),
                Cell(_duration(middle) + (f" ± {_duration(spread)}" if spread is not None else ""), middle, spread),
                Cell(f"{said[0].replace(':', 'h')}m ± {said[1].replace(':', 'h')}m", hours[0]) if said else Cell(NEVER),
                measured("{:.0f}×", hours[0] / middle) if said else Cell(NEVER),
            )
        )
    columns = ("data", "loss", "algorithm", "here", "paper", "ratio")
    table = Table(work.what.title, columns, tuple(rows))
    notes = (
        "A run's time is its share of the time where runs were carried out together.",
        "The paper's times are those of a laptop with a small graphics card; its digits are FEMNIST's, 5.5 times as "
        "many as MNIST's: the ratios on digits are to be read with that.",
    )
    return Shown((table,), table, notes=notes)


def _seconds(text: str) -> float:
    hours, minutes = map(int, text.split(":"))
    return 3600.0 * hours + 60 * minutes


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# -- variants ----------------------------------------------------------------------------------------------------------


def variants(work: Work) -> Shown:
    """A row a variant, a column an algorithm: rounds to the threshold (speed-up over FedAvg in the same row)."""
    found = {part: {run.method: run for run in work.runs(part)} for part in work.what.parts}
    methods = _methods(run for runs in found.values() for run in runs.values())
    rows, long = [], []
    (said,) = work.what.printed.values()
    base = said["FedAvg"]
    rows.append(
        (
            word("the paper prints"),
            *(word(f"{said[m]} ({base / said[m]:.1f}×)" if m in said else "") for m in methods),
        )
    )
    for part, runs in found.items():
        cells = []
        for method in methods:
            run = runs.get(method)
            cells.append(word(_rounds(run, runs.get("FedAvg"))))
            if run:
                long.append(
                    (
                        word(part.name),
                        word(part.label),
                        word(method),
                        word(run.state),
                        measured("{:g}", run.reached),
                        measured("{:.4f}", run.final_accuracy),
                    )
                )
        rows.append((word(part.label), *cells))
    note = "Rounds to the threshold, counted from 0, and FedAvg's rounds over them (speed-up)."
    return Shown(
        (Table(work.what.title, ("variant", *methods), tuple(rows)),),
        Table("", ("experiment", "variant", "algorithm", "status", "rounds", "final accuracy"), tuple(long)),
        notes=(note,),
    )


def _rounds(run: Run | None, base: Run | None) -> str:
    if run is None:
        return "not run"
    if not math.isfinite(run.reached):
        return NEVER if run.status == "finished" else run.state
    ratio = speed_up(base.reached, run.reached) if base else math.nan
    return f"{run.reached:g}" + (f" ({ratio:.1f}×)" if math.isfinite(ratio) else "")


# -- controls ----------------------------------------------------------------------------------------------------------


def controls(work: Work) -> Shown:
    """A table a federation: each method with its settings, over seeds, and its distance from the reference's.

    Intervals hold the mean with 95 % confidence (Student's t over the seeds). The distance is taken seed by seed, so
    that what a seed does to all methods alike cancels.
    """
    places: dict[str, list[Run]] = {}
    for part in work.what.parts:
        # A run on its way has no last round yet: counted in, it would pull the mean down.
        done = [run for run in work.runs(part) if run.status != "running"]
        places.setdefault(part.label, []).extend(done)
    tables, long = [], []
    for label, runs in places.items():
        if not runs:
            continue
        groups: dict[str, dict[int, Run]] = {}
        keys = [key for key in varying(runs) if key != "seed" and key != "rounds"]
        usual = min(float(run.config["local"]["step_size"]) for run in runs)
        for run in runs:
            groups.setdefault(_named(run, keys, usual), {})[int(run.config["seed"])] = run
        reference = groups.get(work.what.reference, {})
        rows = []
        for name, by_seed in groups.items():
            row = (
                word(name),
                Cell(str(len(by_seed)), len(by_seed)),
                _interval([run.reached for run in by_seed.values()], "{:.1f}"),
                _interval([100 * run.final_accuracy for run in by_seed.values()], "{:.2f}"),
                Cell("") if by_seed is reference else _interval(_apart(by_seed, reference, "reached", 1), "{:+.1f}"),
                Cell("")
                if by_seed is reference
                else _interval(_apart(by_seed, reference, "final_accuracy", 100), "{:+.2f}"),
            )
            rows.append(row)
            long.append((word(label), *row))
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
        f"The reference is {work.what.reference} at the paper's settings: similarity graph, the smallest γ.",
        "± is half the width of a 95 % confidence interval (Student's t over the seeds); distances from the reference "
        "are taken seed by seed. One whose interval contains 0 is not told from none.",
        "The server averages with uniform weights in all of them, so that graphs differ in u alone.",
    )
    return Shown(tuple(tables), Table("", heads, tuple(long)), notes=notes)


def _at_equal_steps(label: str, runs: Sequence[Run]) -> list[Table]:
    """FedKin with the similarity graph minus FedAvg, seed by seed: at the same step size, and at half of FedAvg's."""
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
            cells += [
                _interval(_apart(kin, average, "reached", 1), "{:+.1f}"),
                _interval(_apart(kin, average, "final_accuracy", 100), "{:+.2f}"),
            ]
        rows.append((Cell(f"{step:g}", step), *cells))
    columns = (
        "FedAvg's γ",
        *("FedKin at γ: rounds", "accuracy, points"),
        *("FedKin at γ/2: rounds", "accuracy, points"),
    )
    return [Table(f"{label}: FedKin minus FedAvg", columns, tuple(rows))] if rows else []


def _named(run: Run, keys: Sequence[str], step_size: float) -> str:
    """A method and what sets it apart from the paper's settings."""
    usual = {"graph.kind": "similarity", "local.step_size": step_size, "graph.neighbours": 0, "graph.temperature": 1.0}
    words = {"local.step_size": "γ = {:g}", "graph.neighbours": "{} nearest", "graph.temperature": "temperature {:g}"}
    parts = []
    for key in keys:
        section, _, leaf = key.partition(".")
        value = run.config[section][leaf] if leaf else run.config[section]
        # FedAvg looks at no graph.
        if value != usual.get(key) and not (run.algorithm == "fedavg" and section == "graph"):
            parts.append(words.get(key, f"{{}} {section if leaf == 'kind' else leaf}").format(value))
    return ", ".join([run.method, *parts])


def _apart(ours: Mapping[int, Run], theirs: Mapping[int, Run], quantity: str, factor: float) -> list[float]:
    return [factor * (getattr(ours[s], quantity) - getattr(theirs[s], quantity)) for s in ours if s in theirs]


def _interval(values: Sequence[float], form: str) -> Cell:
    """Mean and half the width of its confidence interval; values that are missing are counted, not guessed."""
    there = [v for v in values if math.isfinite(v)]
    count = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    if not there:
        return Cell(NEVER)
    middle = mean(there)
    if len(there) == 1:
        return Cell(form.format(middle) + count, middle)
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(there) - 1)) * stdev(there) / math.sqrt(len(there))
    return Cell(f"{form.format(middle)} ± {form.format(half).lstrip('+')}{count}", middle, half)
