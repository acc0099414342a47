"""Measurements after every round: loss and main measure at all clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.data.federation import Clients, Federation
from fedkin.data.measure import Measure
from fedkin.engine.cohorts import FEWEST_FEATURES, compiled_spaces
from fedkin.engine.cohorts import MUCH as COMPILED
from fedkin.models import MLP, Linear, Model, Module
from fedkin.threads import Item, all_cores, on_threads, one_core, threads_for
from fedkin.types import Integers

# Samples scored at once: enough for efficient products, but the output of the largest layer must fit into the cache.
FEWEST_ROWS_AT_ONCE, MOST_ROWS_AT_ONCE, LAYER_NUMBERS = 64, 4096, 1 << 20

# Multiplications, at least, of an evaluation that threads share.
MUCH = 2e7


def rows_at_once(model: Model, features: int) -> int:
    """Number of samples that are scored at once.

    >>> from fedkin.models import Softmax
    >>> rows_at_once(Softmax(784, 10), 784)
    1337
    """
    largest = max(getattr(model, "activations", 0), features)
    return min(max(LAYER_NUMBERS // largest, FEWEST_ROWS_AT_ONCE), MOST_ROWS_AT_ONCE)


def spans_of(model: Model, clients: Clients, rows: slice) -> list[slice]:
    """Rows of samples in pieces that are scored at once, at least one."""
    size = rows_at_once(model, clients.x.shape[1])
    starts = range(rows.start, max(rows.stop, rows.start + 1), size)
    return [slice(first, min(first + size, rows.stop)) for first in starts]


Scorer = Callable[[Tensor, Tensor], Tensor]


def scorer(model: Model, w: Tensor, federation: Federation) -> Scorer:
    """`model.scores`; compiled if models w (L, P) at all clients of a federation are worth loading that.

    It depends on all samples, whichever are measured: a score has the same bits in every record of a run.
    """
    work = w.numel() * (len(federation.train.y) + len(federation.test.y))
    if not isinstance(model, Linear | MLP) or model.features < FEWEST_FEATURES or work <= COMPILED:
        return model.scores
    if w.device.type != "cpu" or compiled_spaces() is None:
        return model.scores
    from fedkin.engine.spaces.scoring import CompiledScores

    return CompiledScores(model)


def each_measured(model: Model, w: Tensor, clients: Clients, rows: slice, scores: Scorer | None = None) -> Tensor:
    """Loss and main measure of each sample in these rows for each model of w (L, P): (2, L, B)."""
    with torch.no_grad():  # which PyTorch sets for each thread
        z, y = (scores or model.scores)(w, clients.x[rows]), clients.y[rows].expand(len(w), -1)
        return torch.stack([model.loss.each(z, y), model.loss.measured(z, y)]).cpu()


def evaluated(work: Callable[[Item], object], items: Sequence[Item], model: Model, w: Tensor, samples: int) -> None:
    """Call a function with every item, which together evaluate models w (…, P) on so many samples each.

    Threads share it, unless it takes less time than to start them. All cores compute a single item of a module.
    """
    long = w.numel() * samples > MUCH
    with all_cores() if long and isinstance(model, Module) else one_core():
        on_threads(work, items, threads_for(w.device, model.parallel) if long else 1)


@dataclass(frozen=True)
class Scores:
    """Loss and main measure (accuracy, or mean squared error) at each client, and number of samples: (C,) each."""

    losses: NDArray[np.float64]
    values: NDArray[np.float64]
    sizes: NDArray[np.int64]
    measure: Measure

    @property
    def loss(self) -> float:
        """Σ (Nᵢ/N) fᵢ(w)."""
        return float(self.losses @ self.sizes / self.sizes.sum())

    @property
    def value(self) -> float:
        """Σ (Nᵢ/N) valueᵢ; of accuracies, the paper's accuracy."""
        return float(self.values @ self.sizes / self.sizes.sum())

    @property
    def worst_decile(self) -> float:
        """Mean over the tenth of the clients (at least one) with the worst values."""
        return self.measure.worst_decile(self.values)

    def of(self, who: Integers) -> "Scores":
        """The scores of some of the clients."""
        return Scores(self.losses[who], self.values[who], self.sizes[who], self.measure)


def score(
    model: Model, w: Tensor, clients: Clients, l2: Sequence[float] = (0.0,), scores: Scorer | None = None
) -> list[Scores]:
    """Loss (plus λ/2 ‖w‖²) and main measure at every client, for each model of w (L, P).

    scores  how the model is computed
    """
    lanes, samples = len(w), len(clients.y)
    measured = torch.empty(2, lanes, samples, device="cpu")

    def work(rows: slice) -> None:
        measured[..., rows] = each_measured(model, w, clients, rows, scores)

    evaluated(work, spans_of(model, clients, slice(0, samples)), model, w, samples)
    loss, value = measured.double().numpy()
    starts, sizes = clients.offsets[:-1], clients.sizes
    penalties = np.array(l2) / 2 * (w.double() ** 2).sum(dim=1).cpu().numpy()
    mean_loss = np.add.reduceat(loss, starts, axis=1) / sizes + penalties[:, None]
    values = np.add.reduceat(value, starts, axis=1) / sizes
    return [Scores(mean_loss[lane], values[lane], sizes, model.loss.measure) for lane in range(lanes)]


def measure(
    model: Model, w: Tensor, federation: Federation, l2: Sequence[float] = (0.0,), *, training: bool = True
) -> list[dict[str, float]]:
    """The record of a round for each model of w (L, P): losses, main measure, worst decile of clients.

    training  whether training clients are measured, too
    """
    scores = scorer(model, w, federation)
    name, testing = model.loss.measure.name, score(model, w, federation.test, l2, scores)
    if not training:
        return [
            {"test_loss": test.loss, f"test_{name}": test.value, "worst_decile": test.worst_decile} for test in testing
        ]
    return [
        {
            "train_loss": train.loss,
            "test_loss": test.loss,
            f"train_{name}": train.value,
            f"test_{name}": test.value,
            "worst_decile": test.worst_decile,
        }
        for train, test in zip(score(model, w, federation.train, l2, scores), testing, strict=True)
    ]


def has_diverged(record: Mapping[str, Any]) -> bool:
    """Whether the loss in a record is no longer finite: that of training clients, or of testing clients without them.

    A record without measurements says nothing: then the model must be looked at.
    """
    return record.get("train_loss", record.get("test_loss", 0.0)) is None
