"""What a run on Flower writes into its folder, and reads again to continue: the records of an engine's run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedkin.data.measure import measure_in
from fedkin.engine.simulation import State
from fedkin.experiments.records import RunFolder, summarise
from fedkin.flower.nodes import log
from fedkin.types import Record


class RunRecords:
    """The records of a run: in its folder, or without one in memory alone.

    done  the records of the rounds so far
    """

    def __init__(self, out: Path | None) -> None:
        self.folder = None if out is None else RunFolder(out)
        self.done: list[Record] = []

    @contextmanager
    def opened(self, settings: Record) -> Iterator[None]:
        """Hold the folder for a run with these settings."""
        if self.folder is None:
            yield
            return
        path = self.folder.path.absolute()
        with self.folder.opened({"name": path.parent.name, **settings}):
            yield

    def finished(self) -> Tensor | None:
        """The final model, if the folder holds the whole run."""
        if self.folder is None:
            return None
        if (found := self.folder.result()) is None:
            return None
        log.info("%s is finished already", self.folder.path)
        _, self.done, model = found
        return model

    def resume(self) -> State | None:
        """The state after the last complete round, if there is one."""
        if self.folder is None:
            return None
        sound = self.folder.sound_rounds()
        state = self.folder.load(max(sound)) if sound else None
        self.done = self.folder.records()[: state.round] if state else []
        self.folder.keep_records(self.done)
        if state:
            log.info("continuing after round %s", state.round)
        return state

    def add(self, record: Record, state: State | None) -> None:
        """One more round, with a checkpoint of the state after it if the run goes on."""
        self.done.append(record)
        if self.folder is not None:
            self.folder.append(record)
            if state is not None:
                self.folder.save(state)

    def finish(self, algorithm: str, hyperparameters: Record, threshold: float | None, model: Tensor) -> None:
        """Write the result."""
        if self.folder is None:
            return
        path, seconds = self.folder.path.absolute(), round(sum(record["seconds"] for record in self.done), 3)
        measure = measure_in(self.done[-1])
        threshold = measure.usual if threshold is None else threshold
        measured = all(key in self.done[-1] for key in ("train_loss", "test_loss", f"test_{measure.name}"))
        unmeasured = {"status": "finished", "rounds": len(self.done), "seconds": seconds}
        summary = {
            "experiment": path.parent.name,
            "run": path.name,
            "algorithm": algorithm,
            "hyperparameters": hyperparameters,
            **(summarise(self.done, threshold) if measured else unmeasured),
        }
        self.folder.finish(summary, model)
        self.folder.tidy("model")  # what clients remember is at the nodes: it cannot grow

    def fill(self, result: Result) -> None:
        """Put the measurements of the rounds so far into Flower's result."""
        for record in self.done:
            numbers: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, float) and k != "seconds"}
            if numbers:
                result.evaluate_metrics_serverapp[record["round"] + 1] = MetricRecord(numbers)


def in_words(record: Record) -> str:
    """A round's record as a line of the log."""
    words = [f"{key.replace('_', ' ')} {value:.4f}" for key, value in record.items() if isinstance(value, float)]
    refused = f"; refused: {', '.join(record['refused'])}" if record["refused"] else ""
    return f"{record['replies']} of {record['asked']} replies, {', '.join(words)}{refused}"
