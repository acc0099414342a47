"""Rounds of runs to TensorBoard or MLflow while they go on.

A tracker is a `Listener`: a class of your own, with the methods of `Silent` that it needs, is passed to `fedkin.run` in
the same way.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedkin.errors import BadInput
from fedkin.experiments.progress import Listener, Silent
from fedkin.files import dotted
from fedkin.types import Record


class Several:
    """A listener that tells several others."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = tuple(listeners)

    def grid(self, runs: int) -> None:
        for listener in self.listeners:
            listener.grid(runs)

    def doing(self, what: str) -> None:
        for listener in self.listeners:
            listener.doing(what)

    def together(self, names: Sequence[str]) -> None:
        for listener in self.listeners:
            listener.together(names)

    def about(self, name: str, folder: Path, settings: Record) -> None:
        for listener in self.listeners:
            listener.about(name, folder, settings)

    def begin(self, name: str, rounds: int, done: int) -> None:
        for listener in self.listeners:
            listener.begin(name, rounds, done)

    def round(self, name: str, record: Record) -> None:
        for listener in self.listeners:
            listener.round(name, record)

    def warn(self, name: str, sentence: str) -> None:
        for listener in self.listeners:
            listener.warn(name, sentence)

    def end(self, name: str, summary: Record, kept: bool) -> None:
        for listener in self.listeners:
            listener.end(name, summary, kept)


class Tracker(Silent):
    """What trackers share. Runs that had ended before the command are not tracked again."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[Path, Record]] = {}

    def about(self, name: str, folder: Path, settings: Record) -> None:
        self.runs[name] = (folder, settings)

    def close(self) -> None:
        """End what is still open, as after Ctrl-C."""


def numbers_in(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record, without the number of its round."""
    return {
        key: float(value)
        for key, value in record.items()
        if key != "round" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


class TensorBoardTracker(Tracker):
    """Numbers of every round as scalars, in `DIR/<experiment>/tensorboard/<run>`; settings and result as text."""

    def __init__(self) -> None:
        super().__init__()
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput("--track tensorboard needs TensorBoard: pip install 'fedkin[tensorboard]'") from None
        self._writer: Any = SummaryWriter
        self.writers: dict[str, Any] = {}

    def begin(self, name: str, rounds: int, done: int) -> None:
        folder, settings = self.runs[name]
        place = folder.parent / "tensorboard" / folder.name
        # Rounds after the checkpoint from which a run continues are there already, and are replaced.
        self.writers[name] = self._writer(log_dir=str(place), purge_step=done or None)
        self.writers[name].add_text("settings", _listing(settings))

    def round(self, name: str, record: Record) -> None:
        for key, value in numbers_in(record).items():
            self.writers[name].add_scalar(key, value, record["round"])

    def end(self, name: str, summary: Record, kept: bool) -> None:
        if (writer := self.writers.pop(name, None)) is not None:
            writer.add_text("summary", _listing(summary))
            writer.close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers.clear()


def _listing(settings: Mapping[str, Any]) -> str:
    """A table as Markdown, in which nothing is markup."""
    return "".join(f"    {key} = {json.dumps(value)}\n" for key, value in dotted(settings).items())


class MLflowTracker(Tracker):
    """Settings as parameters and numbers of every round as metrics, in the experiment of the same name.

    They go to `MLFLOW_TRACKING_URI`, or to a folder `mlruns` beside the experiment.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise BadInput("--track mlflow needs MLflow: pip install 'fedkin[mlflow]'") from None
        self._client_of: Any = MlflowClient
        self.client: Any = None
        self.ids: dict[str, str] = {}

    def begin(self, name: str, rounds: int, done: int) -> None:
        folder, settings = self.runs[name]
        if self.client is None:
            self.client = self._connected(folder)
        tags = {"mlflow.runName": name, "fedkin.folder": str(folder.absolute())}
        self.ids[name] = self._earlier(settings, tags) if done else ""
        if not self.ids[name]:
            experiment = self._experiment(str(settings.get("name", folder.parent.name)))
            self.ids[name] = self.client.create_run(experiment, tags=tags).info.run_id
            for key, value in dotted(settings).items():
                self.client.log_param(self.ids[name], key, json.dumps(value)[:500])

    def _connected(self, folder: Path) -> Any:
        if "MLFLOW_TRACKING_URI" in os.environ:
            return self._client_of()
        # MLflow asks for consent to a folder instead of a database: it is what needs no further packages.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        return self._client_of(tracking_uri=(folder.absolute().parent.parent / "mlruns").as_uri())

    def _experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self.client.create_experiment(name))

    def _earlier(self, settings: Record, tags: Mapping[str, str]) -> str:
        """The run of MLflow that an interrupted run had; empty if there is none."""
        experiment = self._experiment(str(settings.get("name", "")))
        where = tags["fedkin.folder"].replace("'", "''")
        found = self.client.search_runs([experiment], f"tags.`fedkin.folder` = '{where}'", max_results=1)
        return str(found[0].info.run_id) if found else ""

    def round(self, name: str, record: Record) -> None:
        for key, value in numbers_in(record).items():
            self.client.log_metric(self.ids[name], key, value, step=record["round"])

    def end(self, name: str, summary: Record, kept: bool) -> None:
        if (run := self.ids.pop(name, None)) is not None:
            self.client.set_tag(run, "fedkin.status", str(summary["status"]))
            self.client.set_terminated(run, "FAILED" if summary["status"] == "diverged" else "FINISHED")

    def close(self) -> None:
        for run in self.ids.values():
            self.client.set_terminated(run, "KILLED")
        self.ids.clear()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardTracker, "mlflow": MLflowTracker}


@contextmanager
def tracked(names: Sequence[str], listener: Listener) -> Iterator[Listener]:
    """A listener that also tells trackers of these names."""
    for name in names:
        if name not in TRACKERS:
            raise BadInput(f"unknown tracker '{name}': choose {' or '.join(TRACKERS)}")
    trackers = [TRACKERS[name]() for name in dict.fromkeys(names)]
    try:
        yield Several([listener, *trackers]) if trackers else listener
    finally:
        for tracker in trackers:
            tracker.close()
