"""Read runs from their folders.

A run is a folder with `config.json`, `rounds.jsonl` and, once it has ended, `summary.json`. The runs in one folder are
an experiment: they are compared with each other.
"""

import json
import warnings
from pathlib import Path

import numpy as np

from fedkin.data.measure import ACCURACY, Measure, measure_in
from fedkin.errors import BadInput
from fedkin.experiments.results import TRIALS_FILE
from fedkin.reports.groups import experiments, order_of, with_differences
from fedkin.reports.labels import is_number, number
from fedkin.reports.run import Run
from fedkin.types import Floats, Record


def collect(folder: Path | str) -> list[Run]:
    """All runs in a folder, at any depth, in the order of the tables.

    A damaged run is left out with a warning that names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise BadInput(f"{folder} {what}: give the folder a run was written to, such as results/demo")
    files = ("config.json", "rounds.jsonl", "summary.json")
    found = {path.parent for name in files for path in folder.rglob(name)}
    # Trials of a comparison are there to choose by validation samples: their test results are not read.
    found = {place for place in found if not (place.parent / TRIALS_FILE).exists()}
    runs = []
    for place in sorted(found):
        try:
            run = _read_run(place)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
            warnings.warn(f"left out the run {place}: {reason}; remove its folder, or run it again", stacklevel=2)
        else:
            runs += [run] if run else []
    if not runs:
        raise BadInput(
            f"there are no usable runs in {folder}: give the folder that 'fedkin run' wrote, or run an experiment first"
        )
    labelled = [run for peers in experiments(runs).values() for run in with_differences(peers)]
    return sorted(labelled, key=lambda run: (run.folder.parent, order_of(run)))


def _read_run(folder: Path) -> Run | None:
    """A run from its folder; None for a folder with a `config.json` of another program."""
    config_file, rounds_file, summary_file = (folder / name for name in ("config.json", "rounds.jsonl", "summary.json"))
    if not config_file.exists():
        raise ValueError("config.json is missing")
    config = _object(config_file)
    if not isinstance(algorithm := config.get("algorithm"), dict) or "name" not in algorithm:
        if not rounds_file.exists():
            return None
        raise ValueError("config.json names no algorithm")
    summary = _object(summary_file) if summary_file.exists() else {}
    series = _series(rounds_file.read_text(encoding="utf-8")) if rounds_file.exists() else _series("")
    if summary and not rounds_file.exists():
        raise ValueError("rounds.jsonl is missing")
    return Run(
        # Absolute: the experiment is the parent folder, which "." does not name.
        folder=folder.absolute(),
        experiment=str(summary.get("experiment") or config.get("name") or folder.absolute().parent.name),
        name=str(summary.get("run") or folder.absolute().name),
        config=_with_model_name(config, measure_in(summary or series)),
        rounds=series,
        summary=summary,
        status=str(summary.get("status", "finished")) if summary else "running",
    )


def _with_model_name(config: Record, measure: Measure) -> Record:
    """The configuration with the usual name of a linear model, which depends on what is predicted."""
    model, data = (config[key] if isinstance(config.get(key), dict) else {} for key in ("model", "data"))
    if model.get("kind") not in ("linear", "softmax"):
        return config
    name = "softmax" if measure is ACCURACY else "linear"
    return {**config, "model": {**model, "kind": "logistic" if data.get("task") == "binary" else name}}


def _object(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode()  # halves of characters cannot be written to a report
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no table of names and values")
    return content


def _series(text: str) -> dict[str, Floats]:
    """Round records as one array per quantity."""
    lines = [(place, line) for place, line in enumerate(text.splitlines(), 1) if line.strip()]
    records: list[Record] = []
    for position, (place, line) in enumerate(lines):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                raise ValueError("no round number")
        except (ValueError, RecursionError) as error:
            if position == len(lines) - 1:
                break  # the process was killed while it wrote this line
            raise ValueError(f"line {place} of rounds.jsonl is damaged ({error})") from None
        records.append(record)
    quantities = dict.fromkeys(
        key for record in records for key, value in record.items() if value is None or is_number(value)
    )
    return {
        key: np.array([number(record.get(key)) for record in records], dtype=np.float64)
        for key in ({"round": None} | quantities)
    }
