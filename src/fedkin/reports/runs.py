"""Finished runs as their folders tell them, and in words what sets them apart. Nothing here trains.

A run is a folder with `config.json`, `rounds.jsonl` and, once it has ended, `summary.json`.
Runs side by side in a folder are an experiment: they are compared with each other.
"""

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.errors import BadInput
from fedkin.reports.tables import NEVER
from fedkin.types import Floats

# Settings that change how a run is carried out but not its result.
IMMATERIAL = {"threads", "checkpoint_every"}

NAMES = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedkin": "FedKin", "fedsgd": "FedSGD"}
_ASIDE = {"name", "algorithm", *IMMATERIAL}  # not settings that tell two results apart
KNOB = {"fedprox": "alpha", "fedkin": "beta"}  # the one hyper-parameter that makes the algorithm what it is
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
MISSING = object()  # a setting the configuration does not have, as opposed to one that is null


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
        return method_of(self, self.shown)

    @property
    def label(self) -> str:
        """The method, and whatever else sets this run apart in its experiment: `FedKin β=0.5, γ=0.01`."""
        return ", ".join([self.method, *(f"{short(k)}={plain(v)}" for k, v in self.settings.items())])

    @property
    def threshold(self) -> float:
        """The test accuracy that counts as converged; NaN if the run had none."""
        return number(self.summary.get("threshold", self.config.get("threshold")))

    @property
    def reached(self) -> float:
        """The first round whose test accuracy is at least the threshold; NaN if there is none (yet)."""
        if "rounds_to_threshold" in self.summary:
            return number(self.summary["rounds_to_threshold"])
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
            return number(self.summary["best_test_accuracy"])
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
            return number(self.summary["seconds"])
        return float(np.nansum(self.series("seconds"))) if "seconds" in self.rounds else math.nan

    @property
    def state(self) -> str:
        """The status in words: `diverged at round 7`, `running, round 12 of 60`."""
        if self.status == "diverged" and (at := number(self.summary.get("diverged_at"))) == at:
            return f"diverged at round {at:g}"
        if self.status == "running" and len(done := self.series("round")):
            return f"running, round {done[-1]:g} of {plain(self.config.get('rounds', '?'))}"
        return self.status

    def series(self, quantity: str) -> Floats:
        """A quantity over the rounds, NaN throughout where it was not recorded."""
        return self.rounds.get(quantity, np.full(len(self.rounds["round"]), np.nan))

    def _last(self, in_summary: str, in_rounds: str) -> float:
        if in_summary in self.summary:
            return number(self.summary[in_summary])
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
    return sorted(apart, key=lambda run: (run.folder.parent, order_of(run)))


def told_apart(peers: Sequence[Run]) -> list[Run]:
    """The runs of an experiment, each knowing in what it differs from the others."""
    differing, shown = varying(peers), shown_of(peers)
    return [
        replace(
            run,
            shown=shown[run.algorithm],
            settings={key: value for key, value in settings_of(run).items() if key in differing},
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
    lines = [(place, line) for place, line in enumerate(text.splitlines(), 1) if line.strip()]
    records: list[dict[str, Any]] = []
    for position, (place, line) in enumerate(lines):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                raise ValueError("no round number")
        except ValueError as error:
            if position == len(lines) - 1:
                break  # the run was killed in the middle of writing this line
            raise ValueError(f"line {place} of rounds.jsonl is damaged ({error})") from None
        records.append(record)
    quantities = dict.fromkeys(
        key for record in records for key, value in record.items() if value is None or is_number(value)
    )
    return {
        key: np.array([number(record.get(key)) for record in records], dtype=np.float64)
        for key in ({"round": None} | quantities)
    }


# -- what sets runs apart, in words ------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    """Whether a value of a configuration or record is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: object) -> float:
    """A value as a number, NaN where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def settings_of(run: Run) -> dict[str, Any]:
    """All settings other than the algorithm, by their dotted name."""
    return _flat({key: value for key, value in run.config.items() if key not in _ASIDE})


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) and value else {above + key: value}
    return flat


def same(value: object) -> str:
    """Equal for equal values, and hashable whatever the value: 1 and 1.0 are the same setting."""
    if value is MISSING:
        return "missing"
    return json.dumps(number(value) if is_number(value) else value, sort_keys=True)


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({same(table.get(key, MISSING)) for table in tables}) > 1]


def varying(runs: Sequence[Run]) -> list[str]:
    """Settings that are not the same in all runs."""
    return _differing([settings_of(run) for run in runs])


def shown_of(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    """For each algorithm, the hyper-parameters to name: its knob, and those in which its runs differ."""
    shown = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        tables = [run.hyperparameters for run in runs if run.algorithm == algorithm]
        knob = [key for key in [KNOB.get(algorithm)] if key is not None]
        # Of an algorithm we know nothing about, everything may matter.
        others = _differing(tables) if algorithm in NAMES else list(dict.fromkeys(k for t in tables for k in t))
        shown[algorithm] = tuple(dict.fromkeys(knob + others))
    return shown


def is_seed(setting: str) -> bool:
    """Whether a setting only makes another draw of the same."""
    return setting.split(".")[-1] == "seed"


def is_place(setting: str) -> bool:
    """Settings that make another learning problem: curves of two problems do not belong in one panel."""
    return setting.split(".")[0] in ("data", "partition", "model")


def method_of(run: Run, shown: Iterable[str]) -> str:
    """An algorithm with some of its hyper-parameters: `FedKin β=0.5`."""
    values = run.hyperparameters
    parts = [f"{short(key)}={plain(values[key])}" for key in shown if key in values]
    name = NAMES.get(run.algorithm) or (
        "Fed" + run.algorithm[3:].capitalize() if run.algorithm.startswith("fed") else run.algorithm
    )
    return f"{name} {', '.join(parts)}".strip()


def short(setting: str) -> str:
    """A setting in a label: the paper's letter where there is one."""
    section, _, last = setting.rpartition(".")
    if last in ("kind", "name", "source") and section:
        return section.split(".")[-1]
    return _LETTERS.get(last, last.replace("_", " "))


def title_of(setting: str, among: Sequence[str]) -> str:
    """A setting as the title of a column, with its section where two would read the same."""
    section, _, last = setting.rpartition(".")
    words = short(setting) if last in ("kind", "name", "source") else last.replace("_", " ")
    if sum(short(other) == short(setting) for other in among) > 1 and section:
        words = f"{section.split('.')[-1]} {last.replace('_', ' ')}"
    letter = _LETTERS.get(last, "")
    return f"{words} {letter}".strip() if letter != words else words


def plain(value: object) -> str:
    """A value of the configuration in a label; a schedule as `linear(start 1, end 0.5)`."""
    if value is MISSING:
        return NEVER
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        return " ".join(plain(entry) for entry in value)
    if isinstance(value, dict):
        rest = dict(value)
        kind = next((str(rest.pop(key)) for key in ("kind", "name", "schedule") if key in rest), "")
        return f"{kind}({', '.join(f'{key} {plain(entry)}' for key, entry in rest.items())})"
    return str(value)


def order_of(run: Run) -> tuple[Any, ...]:
    """FedAvg, FedProx by α, FedKin by falling β, then others by name."""
    rank = {"fedavg": 0, "fedprox": 1, "fedkin": 2}.get(run.algorithm, 3)
    knob = run.hyperparameters.get(KNOB.get(run.algorithm, ""))
    value = -number(knob) if run.algorithm == "fedkin" else number(knob)
    schedule = math.isnan(value)  # has no place among numbers: after them
    return rank, run.algorithm, schedule, 0.0 if schedule else value, sortable(run.hyperparameters.values())


def sortable(values: Iterable[object]) -> tuple[tuple[bool, float, str], ...]:
    """Values of any kind in an order: numbers first."""
    return tuple((False, number(value), "") if is_number(value) else (True, 0.0, plain(value)) for value in values)


def described(runs: Sequence[Run], without: Iterable[str] = ()) -> str:
    """The learning problem that runs share: `digits, 20 clients, a = 10, b = 1, softmax`."""
    flat = settings_of(runs[0])
    unshared = {*varying(runs), *without}
    words = {
        key: problem_of(key, flat[key])
        for key in ("data.source", *PROBLEM, "model.kind")
        if key in flat and key not in unshared
    }
    return ", ".join(words.values())


PROBLEM = ("partition.clients", "partition.class_imbalance", "partition.size_imbalance")


def problem_of(key: str, value: object) -> str:
    """A setting of the learning problem in words: `100 clients`, `a = 10`."""
    if key == "partition.clients":
        return f"{plain(value)} clients"
    if key in ("data.source", "model.kind"):
        return plain(value).rstrip("/").split("/")[-1]  # of a path the last part is the name
    return f"{short(key)} = {plain(value)}"


# -- which runs belong together ----------------------------------------------------------------------------------------


def key_of(run: Run) -> tuple[object, ...]:
    """Equal for runs that differ in nothing but their seeds."""
    settings = {key: same(value) for key, value in settings_of(run).items() if not is_seed(key)}
    return run.folder.parent, same(run.config["algorithm"]), tuple(sorted(settings.items()))


def _seeds(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, same(value)) for key, value in settings_of(run).items() if is_seed(key)))


def place_of(run: Run) -> tuple[object, ...]:
    """Equal for runs on the same learning problem."""
    settings = {k: same(v) for k, v in settings_of(run).items() if is_place(k) and not is_seed(k)}
    return run.folder.parent, tuple(sorted(settings.items()))


def groups_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ only in their seeds, together; in the order of the table."""
    groups: dict[object, list[Run]] = {}
    times: dict[object, int] = {}
    for run in runs:
        # The same run twice, seed and all, is no second seed: it gets a row of its own.
        same = (key_of(run), _seeds(run))
        times[same] = times.get(same, 0) + 1
        groups.setdefault((key_of(run), times[same]), []).append(run)
    places = [key for key in varying(runs) if is_place(key) and not is_seed(key)]
    others = [key for key in varying(runs) if not is_place(key) and not is_seed(key)]

    def order(group: list[Run]) -> tuple[Any, ...]:
        settings = settings_of(group[0])
        where = sortable(settings.get(key, MISSING) for key in places)
        rest = sortable(settings.get(key, MISSING) for key in others)
        return group[0].folder.parent, where, order_of(group[0]), rest

    return sorted(groups.values(), key=order)


def speed_up(base: float, reached: float) -> float:
    """FedAvg's rounds to the threshold over another's."""
    return base / reached if base > 0 and reached > 0 else math.nan
