"""Tables and curves of finished runs, from nothing but the files they left. Nothing here trains.

A run is a folder with `config.json`, `rounds.jsonl` and, once it has ended, `summary.json`.
Runs side by side in a folder are an experiment: they are compared with each other.
"""

import csv
import io
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.table
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from rich.text import Text

from fedkin.errors import BadInput, nearest
from fedkin.figures import INK, MUTED, WIDTH, replacing, save, style
from fedkin.records import IMMATERIAL

Floats = NDArray[np.float64]

NEVER = "—"
_NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedkin": "FedKin", "fedsgd": "FedSGD"}
_ASIDE = {"name", "algorithm", *IMMATERIAL}  # not settings that tell two results apart
_KNOB = {"fedprox": "alpha", "fedkin": "beta"}  # the one hyper-parameter that makes the algorithm what it is
_LETTERS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "step_size": "γ",
    "l2": "λ",
    "penalty": "λ",
    "epochs": "E",
    "class_imbalance": "a",
    "size_imbalance": "b",
}
_MISSING = object()  # a setting the configuration does not have, as opposed to one that is null


# ------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Run:
    """One run, as its folder tells it.

    rounds    a series a recorded quantity, `round` among them; NaN where the value was not finite
    status    "finished", "diverged", or "running" for a run that has no summary yet
    shown     hyper-parameters worth naming: the algorithm's own knob, and those that differ in the experiment
    settings  settings other than the algorithm that differ in the experiment, by their dotted name
    """

    folder: Path
    experiment: str
    name: str
    config: dict[str, Any]
    rounds: dict[str, Floats]
    summary: dict[str, Any]
    status: str
    shown: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        """The algorithm's name as the configuration spells it."""
        return str(self.config["algorithm"]["name"])

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """What the algorithm was set to; a schedule is a nested table."""
        return {key: value for key, value in self.config["algorithm"].items() if key != "name"}

    @property
    def method(self) -> str:
        """The algorithm with its hyper-parameters: `FedKin β=0.5`."""
        return _method(self, self.shown)

    @property
    def label(self) -> str:
        """The method, and whatever else sets this run apart in its experiment: `FedKin β=0.5, γ=0.01`."""
        return ", ".join([self.method, *(f"{_short(k)}={_plain(v)}" for k, v in self.settings.items())])

    @property
    def threshold(self) -> float:
        """The test accuracy that counts as converged; NaN if the run had none."""
        return _number(self.summary.get("threshold", self.config.get("threshold")))

    @property
    def reached(self) -> float:
        """The first round whose test accuracy is at least the threshold; NaN if there is none (yet)."""
        if "rounds_to_threshold" in self.summary:
            return _number(self.summary["rounds_to_threshold"])
        hits = np.flatnonzero(self.series("test_accuracy") >= self.threshold)
        return float(self.rounds["round"][hits[0]]) if hits.size else math.nan

    @property
    def final_accuracy(self) -> float:
        """Test accuracy after the last round."""
        return self._last("final_test_accuracy", "test_accuracy")

    @property
    def best_accuracy(self) -> float:
        """The highest test accuracy of any round."""
        if "best_test_accuracy" in self.summary:
            return _number(self.summary["best_test_accuracy"])
        accuracy = self.series("test_accuracy")
        return float(np.nanmax(accuracy)) if np.isfinite(accuracy).any() else math.nan

    @property
    def worst_decile(self) -> float:
        """Accuracy of the worst tenth of the clients after the last round, where it was recorded."""
        return self._last("worst_decile", "worst_decile")

    @property
    def seconds(self) -> float:
        """How long the run took; so far, for one that is still running."""
        if "seconds" in self.summary:
            return _number(self.summary["seconds"])
        return float(np.nansum(self.series("seconds"))) if "seconds" in self.rounds else math.nan

    @property
    def state(self) -> str:
        """The status in words: `diverged at round 7`, `running, round 12 of 60`."""
        if self.status == "diverged" and (at := _number(self.summary.get("diverged_at"))) == at:
            return f"diverged at round {at:g}"
        if self.status == "running" and len(done := self.series("round")):
            return f"running, round {done[-1]:g} of {_plain(self.config.get('rounds', '?'))}"
        return self.status

    def series(self, quantity: str) -> Floats:
        """A quantity over the rounds, NaN throughout where it was not recorded."""
        return self.rounds.get(quantity, np.full(len(self.rounds["round"]), np.nan))

    def _last(self, in_summary: str, in_rounds: str) -> float:
        if in_summary in self.summary:
            return _number(self.summary[in_summary])
        values = self.series(in_rounds)
        return float(values[-1]) if values.size else math.nan


def collect(folder: Path | str) -> list[Run]:
    """All runs in a folder, at any depth, in the order in which they are shown.

    A damaged run is left out with a warning that names it: the others are still worth a table.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise BadInput(f"{folder} {what}: give the folder a run was written to, such as results/demo")
    files = ("config.json", "rounds.jsonl", "summary.json")
    found = {path.parent for name in files for path in folder.rglob(name)}
    runs = []
    for place in sorted(found):
        try:
            run = _read(place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"left out the run {place}: {error}", stacklevel=2)
        else:
            runs += [run] if run else []
    if not runs:
        raise BadInput(
            f"there are no usable runs in {folder}: give the folder that 'fedkin run' wrote, or run an experiment first"
        )
    apart = [run for peers in experiments(runs).values() for run in told_apart(peers)]
    return sorted(apart, key=lambda run: (run.folder.parent, _order(run)))


def told_apart(peers: Sequence[Run]) -> list[Run]:
    """The runs of an experiment, each knowing in what it differs from the others."""
    differing, shown = varying(peers), _shown(peers)
    return [
        replace(
            run,
            shown=shown[run.algorithm],
            settings={key: value for key, value in _settings(run).items() if key in differing},
        )
        for run in peers
    ]


def experiments(runs: Iterable[Run]) -> dict[Path, list[Run]]:
    """Runs by the experiment they belong to, under the experiment's folder."""
    groups: dict[Path, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.folder.parent, []).append(run)
    return groups


def _read(folder: Path) -> Run | None:
    """A run from its folder; None for a folder that only looks like one."""
    config_file, rounds_file, summary_file = (folder / name for name in ("config.json", "rounds.jsonl", "summary.json"))
    if not config_file.exists():
        raise ValueError("config.json is missing")
    config = _object(config_file)
    if not isinstance(algorithm := config.get("algorithm"), dict) or "name" not in algorithm:
        if not rounds_file.exists():
            return None  # `config.json` is a common name: another program's file is no damaged run
        raise ValueError("config.json names no algorithm")
    summary = _object(summary_file) if summary_file.exists() else {}
    if summary and not rounds_file.exists():
        raise ValueError("rounds.jsonl is missing")
    return Run(
        # Absolute, because a run's experiment is the folder above, which "." does not show.
        folder=folder.absolute(),
        experiment=str(summary.get("experiment") or config.get("name") or folder.absolute().parent.name),
        name=str(summary.get("run") or folder.absolute().name),
        config=config,
        rounds=_series(rounds_file.read_text(encoding="utf-8")) if rounds_file.exists() else _series(""),
        summary=summary,
        status=str(summary.get("status", "finished")) if summary else "running",
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no table of names and values")
    return content


def _series(text: str) -> dict[str, Floats]:
    """Round records as one array a quantity."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    records: list[dict[str, Any]] = []
    for position, (number, line) in enumerate(lines):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                raise ValueError("no round number")
        except ValueError as error:
            if position == len(lines) - 1:
                break  # the run was killed in the middle of writing this line
            raise ValueError(f"line {number} of rounds.jsonl is damaged ({error})") from None
        records.append(record)
    quantities = dict.fromkeys(
        key for record in records for key, value in record.items() if value is None or _is_number(value)
    )
    return {
        key: np.array([_number(record.get(key)) for record in records], dtype=np.float64)
        for key in ({"round": None} | quantities)
    }


# ---------------------------------------------------------------------- what sets runs apart, in words


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _settings(run: Run) -> dict[str, Any]:
    """All settings other than the algorithm, by their dotted name."""
    return _flat({key: value for key, value in run.config.items() if key not in _ASIDE})


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) and value else {above + key: value}
    return flat


def _same(value: object) -> str:
    """Equal for equal values, and hashable whatever the value: 1 and 1.0 are the same setting."""
    if value is _MISSING:
        return "missing"
    return json.dumps(_number(value) if _is_number(value) else value, sort_keys=True)


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({_same(table.get(key, _MISSING)) for table in tables}) > 1]


def varying(runs: Sequence[Run]) -> list[str]:
    """Settings that are not the same in all runs."""
    return _differing([_settings(run) for run in runs])


def _shown(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """For each algorithm, the hyper-parameters to name: its knob, and those in which its runs differ."""
    shown = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        tables = [run.hyperparameters for run in runs if run.algorithm == algorithm]
        knob = [key for key in [_KNOB.get(algorithm)] if key is not None]
        # Of an algorithm we know nothing about, everything may matter.
        others = _differing(tables) if algorithm in _NAMES else list(dict.fromkeys(k for t in tables for k in t))
        shown[algorithm] = tuple(dict.fromkeys(knob + others))
    return shown


def _is_seed(setting: str) -> bool:
    return setting.split(".")[-1] == "seed"


def _is_place(setting: str) -> bool:
    """Settings that make another learning problem: curves of two problems do not belong in one panel."""
    return setting.split(".")[0] in ("data", "partition", "model")


def _method(run: Run, shown: Iterable[str]) -> str:
    values = run.hyperparameters
    parts = [f"{_short(key)}={_plain(values[key])}" for key in shown if key in values]
    name = _NAMES.get(run.algorithm) or (
        "Fed" + run.algorithm[3:].capitalize() if run.algorithm.startswith("fed") else run.algorithm
    )
    return f"{name} {', '.join(parts)}".strip()


def _short(setting: str) -> str:
    """A setting in a label: the paper's letter where there is one."""
    section, _, last = setting.rpartition(".")
    if last in ("kind", "name", "source") and section:
        return section.split(".")[-1]
    return _LETTERS.get(last, last.replace("_", " "))


def _title(setting: str, among: Sequence[str]) -> str:
    """A setting as the title of a column, with its section where two would read the same."""
    section, _, last = setting.rpartition(".")
    words = _short(setting) if last in ("kind", "name", "source") else last.replace("_", " ")
    if sum(_short(other) == _short(setting) for other in among) > 1 and section:
        words = f"{section.split('.')[-1]} {last.replace('_', ' ')}"
    letter = _LETTERS.get(last, "")
    return f"{words} {letter}".strip() if letter != words else words


def _plain(value: object) -> str:
    """A value of the configuration in a label; a schedule as `linear(start 1, end 0.5)`."""
    if value is _MISSING:
        return NEVER
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return " ".join(_plain(entry) for entry in value)
    if isinstance(value, dict):
        rest = dict(value)
        kind = next((str(rest.pop(key)) for key in ("kind", "name", "schedule") if key in rest), "")
        return f"{kind}({', '.join(f'{key} {_plain(entry)}' for key, entry in rest.items())})"
    return str(value)


def _order(run: Run) -> tuple[Any, ...]:
    """FedAvg, FedProx by α, FedKin by falling β, then others by name."""
    rank = {"fedavg": 0, "fedprox": 1, "fedkin": 2}.get(run.algorithm, 3)
    knob = run.hyperparameters.get(_KNOB.get(run.algorithm, ""))
    value = -_number(knob) if run.algorithm == "fedkin" else _number(knob)
    schedule = math.isnan(value)  # has no place among numbers: after them
    return rank, run.algorithm, schedule, 0.0 if schedule else value, _sortable(run.hyperparameters.values())


def _sortable(values: Iterable[object]) -> tuple[tuple[bool, float, str], ...]:
    return tuple((False, _number(value), "") if _is_number(value) else (True, 0.0, _plain(value)) for value in values)


def _describe(runs: Sequence[Run], without: Iterable[str] = ()) -> str:
    """The learning problem that runs share: `digits, 20 clients, a = 10, b = 1, softmax`."""
    flat = _settings(runs[0])
    unshared = {*varying(runs), *without}
    words = {
        key: _problem(key, flat[key])
        for key in ("data.source", *_PROBLEM, "model.kind")
        if key in flat and key not in unshared
    }
    return ", ".join(words.values())


_PROBLEM = ("partition.clients", "partition.class_imbalance", "partition.size_imbalance")


def _problem(key: str, value: object) -> str:
    if key == "partition.clients":
        return f"{_plain(value)} clients"
    if key in ("data.source", "model.kind"):
        return _plain(value).rstrip("/").split("/")[-1]  # of a path the last part is the name
    return f"{_short(key)} = {_plain(value)}"


# ------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Cell:
    """What a table shows, and the number behind it.

    value   not rounded; None where there is nothing to say
    spread  the standard deviation over seeds, where there are several
    count   how many seeds the value is of, where it is not all of them
    """

    text: str
    value: float | str | None = None
    spread: float | None = None
    count: int | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A comparison of runs, for the terminal, for Markdown and for a spreadsheet."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The text of the cells."""
        return tuple(tuple(cell.text for cell in row) for row in self.cells)

    @property
    def values(self) -> tuple[tuple[float | str | None, ...], ...]:
        """The numbers behind the cells, not rounded."""
        return tuple(tuple(cell.value for cell in row) for row in self.cells)

    def _is_numeric(self, column: int) -> bool:
        return not any(isinstance(row[column].value, str) for row in self.cells)

    def rich(self) -> rich.table.Table:
        """For the terminal."""
        # `Text` throughout: a bracket in a name must not be taken for markup.
        title = Text(self.title) if self.title else None
        shown = rich.table.Table(
            title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        for number, column in enumerate(self.columns):
            shown.add_column(Text(column), justify="right" if self._is_numeric(number) else "left")
        for row in self.cells:
            shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
        return shown

    def markdown(self) -> str:
        """For a README or a notebook."""
        lines = [
            [_escaped(column) for column in self.columns],
            ["---:" if self._is_numeric(number) else "---" for number in range(len(self.columns))],
            *(
                [f"**{_escaped(cell.text)}**" if cell.best else _escaped(cell.text) for cell in row]
                for row in self.cells
            ),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        """For a spreadsheet: numbers that are not rounded, accuracies between 0 and 1, empty for nothing."""
        head: list[str] = []
        lines: list[list[str]] = [[] for _ in self.cells]
        for number, column in enumerate(self.columns):
            cells = [row[number] for row in self.cells]
            parts: list[tuple[str, list[float | str | None]]] = [(column, [cell.value for cell in cells])]
            if any(cell.spread is not None for cell in cells):
                parts.append((f"{column}, standard deviation", [cell.spread for cell in cells]))
            if any(cell.count is not None for cell in cells):
                parts.append((f"{column}, seeds", [cell.count for cell in cells]))
            for title, values in parts:
                head.append(title)
                for line, value in zip(lines, values, strict=True):
                    line.append("" if value is None else value if isinstance(value, str) else f"{value:.10g}")
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([head, *lines])
        return text.getvalue()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


@dataclass(frozen=True)
class _Measure:
    """A column of results: what to take from a run, how to print it, and which way is better."""

    title: str
    of: Callable[[Run], float]
    one: str  # format of a single value
    many: str  # format of a mean
    unit: str
    better: Callable[[Iterable[float]], float]


def table(runs: Sequence[Run]) -> Table:
    """Compare runs: one row a setting of the algorithm, runs that differ only in their seed taken together.

    Speed-up is FedAvg's rounds to the threshold divided by the run's, as printed: 20 / 15 = 1.3×. FedAvg's
    run is the one that agrees in every other setting, its seed included. Best values are marked among the
    runs of one learning problem, and only finished runs compete.
    """
    if not runs:
        raise BadInput("there are no runs to compare: collect some first")
    several = len(experiments(runs)) > 1
    differing, shown = varying(runs), _shown(runs)
    columns = [key for key in differing if not _is_seed(key)]
    groups = groups_of(runs)
    repeats = len({_key(group[0]) for group in groups}) < len(groups)
    seeded = any(len(group) > 1 for group in groups)
    unfinished = any(run.status != "finished" for run in runs)
    measures = _measures(runs)

    head = (
        ["experiment"] * several
        + ["algorithm"]
        + ["run"] * repeats
        + [_title(key, columns) for key in columns]
        + ["seeds"] * seeded
        + [measure.title for measure in measures]
        + ["status"] * unfinished
    )
    rows = []
    for group in groups:
        first, settings = group[0], _settings(group[0])
        named = [settings.get(key, _MISSING) for key in columns]
        rows.append(
            [_word(first.experiment)] * several
            + [_word(_method(first, shown[first.algorithm]))]
            + [_word(first.name)] * repeats
            + [Cell(_plain(value), _number(value) if _is_number(value) else _plain(value)) for value in named]
            + [Cell(str(len(group)), len(group))] * seeded
            + [_summed(measure, group) for measure in measures]
            + [_word(_states(group))] * unfinished
        )
    _mark_best(rows, groups, measures, start=head.index(measures[0].title))
    names = ", ".join(dict.fromkeys(run.experiment for run in runs))
    title = f"{names}: {problem}" if (problem := _describe(runs)) else names
    return Table(title, tuple(head), tuple(tuple(row) for row in rows))


def _word(text: str) -> Cell:
    return Cell(text, text)


def _key(run: Run) -> tuple[object, ...]:
    """Equal for runs that differ in nothing but their seeds."""
    settings = {key: _same(value) for key, value in _settings(run).items() if not _is_seed(key)}
    return run.folder.parent, _same(run.config["algorithm"]), tuple(sorted(settings.items()))


def _seeds(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, _same(value)) for key, value in _settings(run).items() if _is_seed(key)))


def _place(run: Run) -> tuple[object, ...]:
    """Equal for runs on the same learning problem."""
    settings = {k: _same(v) for k, v in _settings(run).items() if _is_place(k) and not _is_seed(k)}
    return run.folder.parent, tuple(sorted(settings.items()))


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in their seeds, together; in the order of the table."""
    groups: dict[object, list[Run]] = {}
    times: dict[object, int] = {}
    for run in runs:
        # The same run twice, seed and all, is no second seed: it gets a row of its own.
        same = (_key(run), _seeds(run))
        times[same] = times.get(same, 0) + 1
        groups.setdefault((_key(run), times[same]), []).append(run)
    places = [key for key in varying(runs) if _is_place(key) and not _is_seed(key)]
    others = [key for key in varying(runs) if not _is_place(key) and not _is_seed(key)]

    def order(group: list[Run]) -> tuple[Any, ...]:
        settings = _settings(group[0])
        where = _sortable(settings.get(key, _MISSING) for key in places)
        rest = _sortable(settings.get(key, _MISSING) for key in others)
        return group[0].folder.parent, where, _order(group[0]), rest

    return sorted(groups.values(), key=order)


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
        settings = _settings(run).items()
        kept = {k: _same(v) for k, v in settings if graph or k.split(".")[0] != "graph"}
        return run.folder.parent, graph, tuple(sorted(kept.items()))

    baseline: dict[object, float] = {}
    for run in runs:
        if run.algorithm == "fedavg":
            # FedAvg looks at no graph: where none agrees in that too, any graph will do.
            for graph in (True, False):
                baseline.setdefault(key(run, graph), run.reached)
    ratios = {}
    for run in runs:
        theirs = baseline.get(key(run, True), baseline.get(key(run, False), math.nan))
        ratios[run.folder] = theirs / run.reached if theirs > 0 and run.reached > 0 else math.nan
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
    # Over n − 1: seeds are a sample of what could have been drawn.
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
            problems.setdefault((_place(group[0]), group[0].threshold), []).append(row)
    for column, measure in enumerate(measures, start):
        for members in problems.values():
            # A mean over the seeds that got there is no match for one over all seeds.
            values = {
                row: cell.value
                for row in members
                if isinstance((cell := rows[row][column]).value, float) and cell.count is None
            }
            printed = {row: _printed(measure.many, value) for row, value in values.items()}
            if len(set(printed.values())) < 2:
                continue  # alone, or all alike: nothing is best
            top = _printed(measure.many, measure.better(values.values()))
            for row, text in printed.items():
                if text == top:  # what prints the same is as good
                    rows[row][column] = replace(rows[row][column], best=True)


# ------------------------------------------------------------------------------------------ the curves

# Blue to green, dark to light: no mixture with FedAvg's near black, and still in order without colour.
_KIN = LinearSegmentedColormap.from_list("kin", ["#10338f", "#1c74c4", "#2fa7b8", "#6cc7a1"])
_PROX = LinearSegmentedColormap.from_list("prox", ["#f2a03d", "#d9601a", "#9c3406"])
_OTHERS = ("#b5479b", "#7a5195", "#8c6d31", "#c44e52", "#5f7f3f")
_MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
_SERIES = {
    "test_accuracy": "test accuracy",
    "train_accuracy": "training accuracy",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "worst_decile": "accuracy, worst decile of clients",
}
MOST_ROWS = 6


def curves(
    runs: Sequence[Run],
    quantities: Sequence[str] = ("test_accuracy", "train_loss"),
    title: str | None = None,
) -> Figure:
    """Curves over the rounds: a panel a quantity, a row of panels a problem (data, partition and model).

    Runs that differ only in their seed are one line, the mean, in a band from the lowest to the highest.
    A cross ends the line of a run that diverged. At most six problems are drawn.
    """
    if not runs:
        raise BadInput("there are no runs to draw: collect some first")
    recorded = {key for run in runs for key in run.rounds} - {"round"}
    for quantity in quantities:
        if recorded and quantity not in recorded:
            raise BadInput(f"no run has recorded '{quantity}'{nearest(quantity, recorded)}")
    groups = groups_of(runs)
    problems: dict[object, list[list[Run]]] = {}
    for group in groups:
        problems.setdefault(_place(group[0]), []).append(group)
    kept = list(problems.values())[:MOST_ROWS]
    looks = looks_of(runs, [group for problem in kept for group in problem])
    legend = list(dict.fromkeys(looks[group[0].folder][0] for problem in kept for group in problem))
    legend_columns = max(1, min(6, len(legend), int(WIDTH / (0.75 + 0.075 * max(map(len, legend))))))
    legend_rows = math.ceil(len(legend) / legend_columns)
    legend_columns = math.ceil(len(legend) / legend_rows)  # as even as the number of rows allows

    with style():
        # Panels keep their size; the legend adds to the height instead of squeezing them.
        height = 3.0 * len(kept) + 0.19 * legend_rows + 0.55
        layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.03, hspace=0.03)
        figure = Figure(figsize=(WIDTH, height), layout=layout)
        panels = figure.subplots(len(kept), len(quantities), squeeze=False)
        for row, problem in enumerate(kept):
            for panel, quantity in zip(panels[row], quantities, strict=True):
                draw(panel, problem, quantity, looks)
            if len(problems) > 1:
                panels[row, 0].set_title(_row_title(problem[0][0], runs), loc="left")
        for panel in panels[-1]:
            panel.set_xlabel("round")
        figure.suptitle(title if title is not None else _curves_title(runs, groups, len(problems), len(kept)))
        handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
        lines = [handles[label] for label in legend if label in handles]
        if lines:
            figure.legend(handles=lines, loc="outside lower center", ncols=legend_columns, handlelength=2.2)
    return figure


def looks_of(runs: Sequence[Run], groups: Sequence[Sequence[Run]]) -> dict[Path, tuple[str, dict[str, Any]]]:
    """Label and look of each group's line, by the folder of its first run."""
    shown = _shown(runs)
    extra = [key for key in varying(runs) if not _is_place(key) and not _is_seed(key)]
    methods: dict[str, list[str]] = {}
    variants: list[str] = []
    names: dict[Path, tuple[str, str]] = {}
    for group in sorted(groups, key=lambda group: _order(group[0])):
        run, settings = group[0], _settings(group[0])
        method = _method(run, shown[run.algorithm])
        variant = ", ".join(f"{_short(key)}={_plain(settings.get(key, _MISSING))}" for key in extra)
        names[run.folder] = method, variant
        if method not in methods.setdefault(run.algorithm, []):
            methods[run.algorithm].append(method)
        if variant not in variants:
            variants.append(variant)
    variants.sort(key=lambda text: [_sortable([_parsed(part)]) for part in text.split(", ")])
    others = [algorithm for algorithm in methods if algorithm not in _NAMES]
    looks = {}
    for group in groups:
        run = group[0]
        method, variant = names[run.folder]
        among = methods[run.algorithm]
        position = among.index(method) / (len(among) - 1) if len(among) > 1 else 0.5
        look: dict[str, Any] = {"zorder": 2.5, "linewidth": 1.7 if len(names) <= 12 else 1.1}
        if run.algorithm == "fedavg":
            look |= {"color": to_hex((0.13 + 0.4 * (position if len(among) > 1 else 0),) * 3), "zorder": 2.6}
        elif run.algorithm == "fedprox":
            look |= {"color": to_hex(_PROX(position)), "linestyle": (0, (5, 2))}
        elif run.algorithm == "fedkin":
            look |= {"color": to_hex(_KIN(1 - position if len(among) > 1 else 0.33))}  # the smallest β is darkest
        else:
            number = others.index(run.algorithm)
            look |= {
                "color": _OTHERS[number % len(_OTHERS)],
                "linestyle": [(0, (6, 1.5, 1, 1.5)), (0, (1, 1.3))][among.index(method) % 2],
            }
        if marker := _MARKERS[variants.index(variant) % len(_MARKERS)]:
            look |= {"marker": marker, "markersize": 4.5, "markerfacecolor": "white", "markevery": 0.12}
        looks[run.folder] = (", ".join(filter(None, [method, variant])), look)
    return looks


def _parsed(part: str) -> object:
    try:
        return float(part.rpartition("=")[2])
    except ValueError:
        return part


def _row_title(run: Run, runs: Sequence[Run]) -> str:
    """What sets a row of panels apart from the others."""
    settings = _settings(run)
    words = [run.experiment] if len(experiments(runs)) > 1 else []
    for key in varying(runs):
        if _is_place(key) and not _is_seed(key) and key in settings:
            known = key in ("data.source", "model.kind", *_PROBLEM)
            value = settings[key]
            words.append(_problem(key, value) if known else f"{_short(key)} = {_plain(value)}")
    return ", ".join(words)


def _curves_title(runs: Sequence[Run], groups: Sequence[Sequence[Run]], problems: int, drawn: int) -> str:
    parts = [_describe(runs) or ", ".join(dict.fromkeys(run.experiment for run in runs))]
    sizes = {len(group) for group in groups}
    if max(sizes) > 1:
        parts.append(f"mean and range of {sizes.pop()} seeds" if len(sizes) == 1 else "mean and range over seeds")
    if drawn < problems:
        parts.append(f"the first {drawn} of {problems} settings")
    return "; ".join(parts)


def draw(
    axes: Axes,
    problem: Sequence[Sequence[Run]],
    quantity: str,
    looks: Mapping[Path, tuple[str, dict[str, Any]]],
) -> None:
    accuracy = "accuracy" in quantity or quantity == "worst_decile"
    steady: list[Floats] = []  # what the axis must show; a run that blows up must not flatten the others
    everything: list[Floats] = []
    ends: list[tuple[Floats, Floats, str]] = []
    for group in problem:
        label, look = looks[group[0].folder]
        rounds, middle, low, high = _band(group, quantity)
        finite = np.flatnonzero(np.isfinite(middle))
        look = dict(look)
        if finite.size <= 1:
            look |= {"marker": look.get("marker", "o"), "markersize": 5, "markevery": 1}
        axes.plot(rounds, middle, label=label, **look)
        if len(group) > 1:
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=2)
        everything += [low, high]
        if any(run.status == "diverged" for run in group):
            ends.append((rounds[finite], middle[finite], str(look["color"])))
        else:
            steady += [low, high]
    _scale(axes, steady, everything, accuracy)
    for rounds, middle, color in ends:
        _draw_end(axes, rounds, middle, color)
    if quantity == "test_accuracy":
        _draw_thresholds(axes, {run.threshold for group in problem for run in group})
    played = _finite([run.series("round") for group in problem for run in group])
    if played.size and np.ptp(played) == 0:
        # A single round has no width: automatic limits would put ticks at fractions of a round.
        axes.set_xlim(played[0] - 0.5, played[0] + 0.5)
        axes.set_xticks([played[0]])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.set_ylabel(_SERIES.get(quantity, quantity.replace("_", " ")))


def _draw_end(axes: Axes, rounds: Floats, values: Floats, color: str) -> None:
    """A cross where a run that diverged ends, or where it leaves the panel."""
    if not values.size:
        return
    top = axes.get_ylim()[1]
    x, y = rounds[-1], values[-1]
    if (beyond := np.flatnonzero(values > top)).size:
        k = beyond[0]
        x, y = rounds[k], top
        if k:
            x = np.interp(top, values[k - 1 : k + 1], rounds[k - 1 : k + 1])
    axes.plot(
        x,
        y,
        marker="x",
        markersize=8,
        markeredgewidth=2.2,
        color=color,
        zorder=4,
        clip_on=False,
        label="_end",
    )


def _band(group: Sequence[Run], quantity: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Rounds, mean, lowest and highest over the seeds, for the rounds that all of them have.

    A mean over fewer and fewer seeds would jump where one of them ends, and look like learning.
    """
    started = [run for run in group if len(run.series("round"))]
    if not started:
        empty = np.array([], dtype=np.float64)
        return empty, empty, empty, empty
    tables = [dict(zip(run.series("round"), run.series(quantity), strict=True)) for run in started]
    rounds = sorted(set.intersection(*(set(entries) for entries in tables)))
    values = np.array([[entries[number] for number in rounds] for entries in tables], dtype=np.float64)
    return np.array(rounds, dtype=np.float64), values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def _scale(axes: Axes, steady: Sequence[Floats], everything: Sequence[Floats], accuracy: bool) -> None:
    if accuracy:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        return
    shown = _finite(steady)
    if not shown.size:
        shown = _finite(everything)
    if not shown.size:
        return
    low, high = float(shown.min()), float(shown.max())
    if low > 0 and high > 30 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
    elif _finite(everything).max() > high + 0.5 * (high - low):
        margin = 0.05 * (high - low) or 0.05
        axes.set_ylim(low - margin, high + 6 * margin)


def _finite(arrays: Sequence[Floats]) -> Floats:
    values: Floats = np.concatenate([np.array([], dtype=np.float64), *arrays])
    finite: Floats = values[np.isfinite(values)]
    return finite


def _draw_thresholds(axes: Axes, thresholds: Iterable[float]) -> None:
    for threshold in sorted(t for t in thresholds if math.isfinite(t)):
        axes.axhline(threshold, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5, label="_threshold")
        # Beyond the right edge, where no curve can run through it.
        axes.annotate(
            f"{100 * threshold:g} %",
            xy=(1, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=INK,
        )


# ------------------------------------------------------------------------------------------- the files


def write(folder: Path | str, out: Path | str | None = None) -> list[Path]:
    """Write `report.md`, `report.csv`, `curves.png` and `curves.pdf`, and say where.

    They go into the folder, or into `out`. Where the folder holds several experiments, each gets its own,
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
            for name, text in (("report.md", _page(runs, compared)), ("report.csv", compared.csv())):
                with replacing(target / name) as draft:
                    draft.write_text(text, encoding="utf-8")
                written.append(target / name)
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
        f"# {_escaped(runs[0].experiment)}",
        _escaped(_describe(runs)),
        compared.markdown().rstrip("\n"),
        " ".join(notes),
        "![Test accuracy and training loss over the rounds](curves.png)",
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"
