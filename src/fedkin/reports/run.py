"""One run, as its folder describes it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.experiments.config import IMMATERIAL
from fedkin.reports.labels import method_label, number, plain, setting_text
from fedkin.types import Floats, Record


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
        return _dotted({key: value for key, value in self.config.items() if key not in aside})

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
        """The test accuracy to which rounds are counted; NaN if the run had none."""
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
        """Accuracy of the worst tenth of the clients after the last round, if recorded."""
        return self._last("worst_decile", "worst_decile")

    @property
    def own_accuracy(self) -> float:
        """Accuracy of the clients' own models on their own testing samples after the last round, if recorded."""
        return self._last("final_own_test_accuracy", "own_test_accuracy")

    @property
    def own_worst_decile(self) -> float:
        """The same of the worst tenth of the clients."""
        return self._last("final_own_worst_decile", "own_worst_decile")

    @property
    def used_accuracy(self) -> float:
        """Accuracy of the models that clients use: their own if they have any, else the global one."""
        return self.final_accuracy if math.isnan(own := self.own_accuracy) else own

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

        `accuracy` is the test accuracy of the models that clients use: their own if recorded, else the global one.
        """
        if quantity == "accuracy":
            quantity = "own_test_accuracy" if "own_test_accuracy" in self.rounds else "test_accuracy"
        return self.rounds.get(quantity, np.full(len(self.rounds["round"]), np.nan))

    def _last(self, in_summary: str, in_rounds: str) -> float:
        if in_summary in self.summary:
            return number(self.summary[in_summary])
        values = self.series(in_rounds)
        return float(values[-1]) if values.size else math.nan


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    entries: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and value
        entries |= _dotted(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return entries
