"""What a run on Flower writes into its folder, and reads again to continue: the records of an engine's run."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedkin.data.measure import measure_in
from fedkin.engine.simulation import State
from fedkin.errors import BadInput
from fedkin.experiments.records import RunFolder, summarise
from fedkin.flower.ledger import log
from fedkin.types import Record


@contextmanager
def for_the_group() -> Iterator[None]:
    """Files that are created inside are readable by their owner and its group at most (0640): models tell of data."""
    before = os.umask(0o077)
    os.umask(before | 0o027)
    try:
        yield
    finally:
        os.umask(before)


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
        with ExitStack() as stack:
            with for_the_group():
                stack.enter_context(self.folder.opened({"name": path.parent.name, **settings}, grows=True))
            yield

    def finished(self, rounds: int) -> Tensor | None:
        """The final model, if the folder holds the whole run; a shorter one grows, if its last state was kept."""
        if self.folder is None or (found := self.folder.result()) is None:
            return None
        summary, done, model = found
        if summary["status"] == "finished" and len(done) < rounds:
            if len(done) not in self.folder.sound_rounds():
                raise BadInput(
                    f"{self.folder.path} ended after {len(done)} rounds without a checkpoint, so it cannot continue to "
                    f"{rounds}: choose another folder"
                )
            return None
        log.info("%s is finished already", self.folder.path)
        os.utime(self.folder.path / "summary.json")  # so that who follows the run sees that this is its result
        self.done = done
        return model

    @for_the_group()
    def resume(self) -> State | None:
        """The state after the last complete round, if there is one."""
        if self.folder is None:
            return None
        sound = self.folder.sound_rounds()
        state = self.folder.load(max(sound)) if sound else None
        self.done = self.folder.records()[: state.round] if state else []
        self.folder.keep_records(self.done)
        self.folder.begin([self.folder.path.name])
        if state:
            log.info("continuing after round %s", state.round)
        return state

    @for_the_group()
    def add(self, record: Record, state: State) -> None:
        """One more round, with a checkpoint of the state after it."""
        self.done.append(record)
        if self.folder is not None:
            self.folder.append(record)
            self.folder.save(state)

    @for_the_group()
    def finish(
        self,
        algorithm: str,
        hyperparameters: Record,
        threshold: float | None,
        model: Tensor,
        diverged: bool,
        spent: Record,
    ) -> None:
        """Write the result, with what was spent of the clients' privacy."""
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
            **({"status": "diverged", "diverged_at": self.done[-1]["round"]} if diverged else {}),
            **spent,
        }
        self.folder.finish(summary, model)
        self.folder.tidy("model" if diverged else "auto")

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
