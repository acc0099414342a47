"""One run, as its folder describes it."""

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.client_sources import is_of_clients
from fedkin.data.measure import ACCURACY, Measure, measure_in
from fedkin.experiments.config import IMMATERIAL
from fedkin.experiments.results import rounds_frame
from fedkin.files import dotted
from fedkin.reports.labels import method_label, number, plain, setting_text
from fedkin.types import Floats, Record

if TYPE_CHECKING:
    from pandas import DataFrame

# Settings by which a partition makes clients.
DIVISION = {
    f"partition.{key}"
    for key in (
        "clients",
        "class_imbalance",
        "size_imbalance",
        "scheme",
        "mixes",
        "clusters",
        "labels_each",
        "group",
        "groups",
    )
}


@dataclass(frozen=True)
class Run:
    """A run with its configuration, rounds and summary.

    rounds     one series per recorded quantity, including `round`; NaN where the value was not finite
    status     "finished", "diverged", or "running" for a run without a summary
    shown      the hyper-parameters in its label: the algorithm's main one, and those that differ in the experiment
    differing  settings other than the algorithm that differ in the experiment, by their dotted name
    """

    folder: Path
    experiment: str
    name: str
    config: Record
    rounds: dict[str, Floats]
    summary: Record
    status: str
    shown: tuple[str, ...] = ()
    differing: dict[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the configuration."""
        return str(self.config["algorithm"]["name"])

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The algorithm's hyper-parameters; a schedule is a nested table."""
        return {key: value for key, value in self.config["algorithm"].items() if key != "name"}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings that determine the result, other than the algorithm, by their dotted name."""
        aside = {"name", "algorithm", *IMMATERIAL}
        found = dotted({key: value for key, value in self.config.items() if key not in aside})
        # The target of a table, or a table or folder that is still there: clients are not made by a partition.
        if found.get("data.target") or is_of_clients(str(found.get("data.source", "digits"))):
            found = {key: value for key, value in found.items() if key not in DIVISION}
        return found

    @cached_property
    def clients(self) -> list[Record]:
        """What is known of each client after the last round, from clients.jsonl; empty if there is no sound file."""
        try:
            lines = (self.folder / "clients.jsonl").read_text(encoding="utf-8").splitlines()
            found = [json.loads(line) for line in lines]
        except (OSError, ValueError, RecursionError):
            return []
        return found if all(isinstance(entry, dict) for entry in found) else []

    @property
    def method(self) -> str:
        """The algorithm with its hyper-parameters: `FedKin β=0.5`."""
        return method_label(self.algorithm, self.hyperparameters, self.shown)

    @property
    def label(self) -> str:
        """The method, and the settings in which the run differs from its experiment: `FedKin β=0.5, γ=0.01`."""
        return ", ".join(filter(None, [self.method, *(setting_text(k, v) for k, v in self.differing.items())]))

    @property
    def threshold(self) -> float:
        """The value of the main measure to which rounds are counted; NaN if the run had none."""
        of_config = self.config.get("threshold") if self.measure is ACCURACY else None
        return number(self.summary.get("threshold", of_config))

    @cached_property
    def measure(self) -> Measure:
        """The main measure: accuracy, or mean squared error if a number is predicted."""
        return measure_in(self.summary if "status" in self.summary else self.rounds)

    @property
    def reached(self) -> float:
        """The first round in which the test value of the main measure reached the threshold; NaN if none (yet) did."""
        if "rounds_to_threshold" in self.summary:
            return number(self.summary["rounds_to_threshold"])
        hit = self.measure.rounds_to(self.threshold, self.series(f"test_{self.measure.name}"))
        return math.nan if hit is None else float(self.rounds["round"][hit])

    @property
    def final_value(self) -> float:
        """The main measure on testing samples after the last round."""
        return self._last(f"final_test_{self.measure.name}", f"test_{self.measure.name}")

    @property
    def best_value(self) -> float:
        """The best test value of the main measure of any round."""
        if (key := f"best_test_{self.measure.name}") in self.summary:
            return number(self.summary[key])
        return self.measure.best(self.series(f"test_{self.measure.name}").tolist())

    @property
    def worst_decile(self) -> float:
        """The main measure of the worst tenth of the clients after the last round, if recorded."""
        return self._last("worst_decile", "worst_decile")

    @property
    def own_value(self) -> float:
        """The main measure of clients' own models on their own testing samples after the last round, if recorded."""
        return self._last(f"final_own_test_{self.measure.name}", f"own_test_{self.measure.name}")

    @property
    def own_worst_decile(self) -> float:
        """The same of the worst tenth of the clients."""
        return self._last("final_own_worst_decile", "own_worst_decile")

    @property
    def tuned_value(self) -> float:
        """The main measure of the models that clients use, after fine-tuning, on their own testing samples."""
        return self._last(f"final_tuned_test_{self.measure.name}", f"tuned_test_{self.measure.name}")

    @property
    def tuned_worst_decile(self) -> float:
        """The same of the worst tenth of the clients."""
        return self._last("final_tuned_worst_decile", "tuned_worst_decile")

    @property
    def has_own_models(self) -> bool:
        """Whether clients use models of their own, which `fedkin export --all` writes."""
        return math.isfinite(self.own_value)

    @property
    def used_value(self) -> float:
        """The main measure of the models that clients use: their own if they have any, else the global one."""
        return self.final_value if math.isnan(own := self.own_value) else own

    @property
    def used_worst_decile(self) -> float:
        """The same of the worst tenth of the clients."""
        return self.worst_decile if math.isnan(own := self.own_worst_decile) else own

    @property
    def validation_loss(self) -> float:
        """Loss of these models on the clients' validation samples at the end of a finished run, if recorded."""
        return number(self.summary.get("final_validation_loss")) if self.status == "finished" else math.nan

    @property
    def seconds(self) -> float:
        """Duration of the run; of the rounds so far if it is still running."""
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
        """A quantity over the rounds, NaN throughout if it was not recorded.

        The name of the main measure, such as `accuracy`, stands for its test value of the models that clients use:
        their own if recorded, else the global one.
        """
        if quantity == self.measure.name:
            quantity = own if (own := f"own_test_{quantity}") in self.rounds else f"test_{quantity}"
        return self.rounds.get(quantity, np.full(len(self.rounds["round"]), np.nan))

    def __repr__(self) -> str:
        return f"Run({self.experiment}/{self.name}: {self.label}, {self.state})"

    def frame(self) -> "DataFrame":
        """The measured quantities over the rounds as a table of pandas, indexed by the round."""
        names = list(self.rounds)
        return rounds_frame([dict(zip(names, row, strict=True)) for row in zip(*self.rounds.values(), strict=True)])

    def _last(self, in_summary: str, in_rounds: str) -> float:
        if in_summary in self.summary:
            return number(self.summary[in_summary])
        values = self.series(in_rounds)
        values = values[np.isfinite(values)] if self.status == "running" else values  # not every round is measured
        return float(values[-1]) if values.size else math.nan
