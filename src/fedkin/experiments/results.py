"""Results of runs as Python objects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data.measure import measure_in
from fedkin.errors import BadInput
from fedkin.experiments.export import export_model
from fedkin.experiments.progress import result as result_text
from fedkin.experiments.trained import Trained, trained_in
from fedkin.markup import facts_table
from fedkin.types import Record, Tensors

# Beside the runs of a comparison: their losses on validation samples; its methods, and what was chosen.
TRIALS_FILE, COMPARISON_FILE = "trials.json", "comparison.json"

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Result:
    """A finished run: settings, records of the rounds, summary, and final global model w̄ (P,)."""

    name: str
    config: Record = field(repr=False)
    rounds: list[Record] = field(repr=False)
    summary: Record
    model: Tensor = field(repr=False)
    folder: Path | None = None
    live: "Trained | None" = field(default=None, repr=False, compare=False)

    @cached_property
    def trained(self) -> Trained:
        """The models of the run."""
        if self.live is not None:
            return self.live
        if self.folder is None:
            raise BadInput("this result has no folder, and its models are not in memory: use fedkin.load_run")
        return trained_in(self.folder, self.config)

    def state_dict(self, client: str | int | None = None) -> Tensors:
        """The parameters and buffers of the model by name, as its module in plain PyTorch has them.

        client  name or number of a client that has a model of its own (None: the global model)

        Softmax regression is an `nn.Linear`, the network `nn.Sequential(nn.Linear, nn.ReLU, nn.Linear)`.
        """
        return self.trained.state_dict(client)

    def predict(self, x: Any, client: str | int | None = None, *, output: str = "values") -> NDArray[Any]:
        """Predictions for raw samples, which are preprocessed as at the training.

        x       (N, D) features, (N, H, W) or (N, H, W, channels) images as in the data of the training; uint8 stands
                for 0 to 255. If the clients' data are tables: a data frame, or lists by column name
        client  as in `state_dict`
        output  `values`: classes, by name if they have names, or numbers, (N,); `probabilities` of the classes, (N, K);
                `scores`: outputs of the model, (N, K) or (N, 1)
        """
        return self.trained.predict(x, client, output)

    def save(self, path: Path | str, client: str | int | None = None) -> Path:
        """Write the model as a safetensors file: its `state_dict`, the preprocessing, and the settings as metadata."""
        return export_model(self.trained, Path(path), "safetensors", client, self.config)

    def __getattr__(self, name: str) -> Any:
        """A measured quantity over the rounds, (T,): `result.test_accuracy`, `result.train_loss`, …"""
        if name.startswith("_") or not any(name in record for record in self.rounds):
            raise AttributeError(name)
        values = [record.get(name) for record in self.rounds]
        if any(isinstance(value, str) for value in values):
            return np.array(values)
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def __dir__(self) -> list[str]:
        """All attributes, the measured quantities among them: they are completed by the tab key."""
        measured = (key for record in self.rounds for key in record if key.isidentifier())
        return sorted({*super().__dir__(), *measured})

    def __repr__(self) -> str:
        return f"Result({self.name}: {len(self.rounds)} rounds, {result_text(self.summary)})"

    def _repr_html_(self) -> str:
        shown = {key: value for key, value in self.summary.items() if not isinstance(value, dict | list)}
        words = {key.replace("_", " "): f"{v:.4g}" if isinstance(v, float) else str(v) for key, v in shown.items()}
        return facts_table(f"{self.name}: {result_text(self.summary)}", words)

    def frame(self) -> "DataFrame":
        """The records of the rounds as a table of pandas, indexed by the round."""
        return rounds_frame(self.rounds)

    def rounds_to(self, threshold: float) -> int | None:
        """The first round after which the main measure on testing samples has reached the threshold.

        It is the accuracy, or the mean squared error if a number is predicted, which is at most the threshold then.
        """
        measure = measure_in(self.summary)
        return measure.rounds_to(threshold, getattr(self, f"test_{measure.name}"))

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Plot the main measure and the loss over the rounds; saved if a path is given."""
        from fedkin.reports.plotting import plot  # reports depend on experiments, not the reverse

        return plot([self], path)


def rounds_frame(records: Sequence[Record]) -> "DataFrame":
    """Records of rounds as a table of pandas, indexed by the round."""
    try:
        import pandas as pd
    except ImportError:
        raise BadInput("a frame needs pandas: pip install 'fedkin[notebook]'") from None
    table = pd.DataFrame.from_records(list(records))
    return table.set_index("round") if "round" in table else table
