"""Scores of the models after the last round, on testing samples: of all samples together, and client by client.

classes  accuracy, balanced accuracy (mean recall of the classes), AUC (area under the ROC curve; of more than two
         classes the mean over the classes, each against the rest), log-loss, confusion matrix
number   mse, mae (mean absolute error), r2 (1 − mse/variance), in units of the data; log-loss does not exist
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from fedkin.algorithms import Tuning
from fedkin.data.federation import Clients, Federation
from fedkin.data.target import Target
from fedkin.engine.metrics import rows_at_once
from fedkin.engine.own import client_notes, models_of
from fedkin.engine.simulation import Simulation, State
from fedkin.files import finite
from fedkin.types import Floats, Record

# With more classes there is no AUC, which takes a pass over all samples per class, and no confusion matrix.
MOST_DETAILED = 100


Numbers = NDArray[Any]  # classes (int64) or numbers (float64)


@dataclass(frozen=True)
class Predictions:
    """What models expect of the samples of clients.

    means   probabilities of the classes, (K, N), or the numbers, (1, N), in units of the data
    losses  of the samples, (N,)
    y       classes or numbers, (N,)
    """

    target: Target
    means: Numbers
    losses: Floats
    y: Numbers
    clients: Clients

    @property
    def predicted(self) -> Numbers:
        """The class or number that the model predicts, (N,)."""
        return np.asarray(self.means[0] if self.target.is_number else self.means.argmax(axis=0))

    def scores(self) -> Record:
        """The scores of all samples together, from scikit-learn."""
        from sklearn import metrics  # slow to import

        y, predicted = self.y, self.predicted
        if self.target.is_number:
            return {
                "mse": float(metrics.mean_squared_error(y, predicted)),
                "mae": float(metrics.mean_absolute_error(y, predicted)),
                "r2": float(metrics.r2_score(y, predicted)) if len(y) > 1 and np.ptp(y) else math.nan,
            }
        found = {
            "accuracy": float(metrics.accuracy_score(y, predicted)),
            # The mean recall of the classes that occur. (`balanced_accuracy_score` warns of others that are predicted.)
            "balanced_accuracy": float(metrics.recall_score(y, predicted, labels=np.unique(y), average="macro")),
            "log_loss": float(self.losses.mean()),
        }
        classes = len(self.means)
        if classes > MOST_DETAILED:
            return found
        seen = np.unique(y)
        against_rest = seen if classes > 2 else [1]
        # As scikit-learn's `roc_auc_score`, which takes ten times as long.
        areas = [area(self.means[k], y == k) if len(seen) > 1 else math.nan for k in against_rest]
        table = metrics.confusion_matrix(y, predicted, labels=np.arange(classes))
        return {**found, "auc": float(np.mean(areas)), "confusion": table.tolist()}

    def by_client(self) -> list[Record]:
        """The scores at each client, where they are defined, without a call for each client where possible."""
        starts, sizes = self.clients.offsets[:-1], self.clients.sizes

        def mean(values: Numbers) -> Floats:
            return np.asarray(np.add.reduceat(values, starts) / sizes)

        if self.target.is_number:
            miss = self.predicted - self.y
            spread = mean(np.square(self.y - np.repeat(mean(self.y), sizes)))
            with np.errstate(divide="ignore", invalid="ignore"):
                r2 = np.where(spread > 0, 1 - mean(np.square(miss)) / spread, np.nan)
            columns = {"mse": mean(np.square(miss)), "mae": mean(np.abs(miss)), "r2": r2, "loss": mean(self.losses)}
        else:
            columns = {
                "accuracy": mean((self.predicted == self.y).astype(np.float64)),
                "balanced_accuracy": self._each(lambda rows: _balanced(self.predicted[rows], self.y[rows])),
                "log_loss": mean(self.losses),
            }
            if len(self.means) == 2:
                columns["auc"] = self._each(lambda rows: area(self.means[1][rows], self.y[rows] == 1))
        return [{name: float(values[i]) for name, values in columns.items()} for i in range(len(sizes))]

    def _each(self, score: Callable[[slice], float]) -> Floats:
        return np.array([score(self.clients.rows(i)) for i in range(len(self.clients))])


def _balanced(predicted: Numbers, y: Numbers) -> float:
    """The mean recall of the classes that occur."""
    _, classes, counts = np.unique(y, return_inverse=True, return_counts=True)
    return float((np.bincount(classes, predicted == y) / counts).mean())


def area(scores: Floats, positive: Numbers) -> float:
    """The area under the ROC curve: the share of pairs in which the positive sample has the higher score.

    With the ranks of all scores, (Σ ranks of the positive − n₊(n₊ + 1)/2) / (n₊ n₋). NaN without pairs.
    """
    many = int(positive.sum())
    pairs = many * (len(positive) - many)
    return float((rankdata(scores)[positive].sum() - many * (many + 1) / 2) / pairs) if pairs else math.nan


def predictions(simulation: Simulation, state: State, tuning: Tuning | None = None) -> dict[str, Predictions]:
    """Of the `global` model and, on testing samples of a paired federation, of the clients' `own` and `tuned` models.

    `own` is there if clients use models of their own, `tuned` if there is a fine-tuning of the models they use.
    """
    model, clients = simulation.computed_model, simulation.federation.test
    samples, size = len(clients.y), rows_at_once(model, clients.x.shape[1])
    spans = [slice(first, min(first + size, samples)) for first in range(0, samples, size)]
    everyone = _predicted(simulation, [(model.scores(state.model[None], clients.x[rows])[0], rows) for rows in spans])
    found = {"global": everyone}
    if not simulation.federation.paired:
        return found
    wanted = {"own": None} if simulation.algorithm.at(state.round).is_personal else {}
    for which, how in (wanted | ({"tuned": tuning} if tuning is not None else {})).items():
        pieces = [
            (simulation.used_model.scores(models[:, place], clients.x[rows := clients.rows(client)])[0], rows)
            for who, models in models_of(simulation, state, tuning=how)
            for place, client in enumerate(who.tolist())
        ]
        found[which] = _predicted(simulation, pieces)
    return found


def _predicted(simulation: Simulation, pieces: list[tuple[Tensor, slice]]) -> Predictions:
    """From the scores (K, B) of some rows each."""
    federation, loss = simulation.federation, simulation.model.loss
    target, clients = federation.target, federation.test
    z = torch.empty(len(pieces[0][0]), len(clients.y), dtype=torch.float64, device="cpu")
    for part, rows in pieces:
        z[:, rows] = part.to(z)
    y = clients.y.cpu()
    means, losses = loss.mean(z).numpy(), loss.each(z, y).numpy()
    if target.is_number:
        return Predictions(target, _restored(means, target), losses, _restored(y.double().numpy(), target), clients)
    means = np.concatenate([1 - means, means]) if target.kind == "binary" else means
    return Predictions(target, means, losses, y.numpy(), clients)


def _restored(values: Floats, target: Target) -> Floats:
    """Numbers in units of the data."""
    return values * target.scale + target.shift


def score_summary(simulation: Simulation, found: dict[str, Predictions]) -> Record:
    """For the summary of a run: the scores of the models, and the names of classes and target, if they have any."""
    target = simulation.federation.target
    return {
        "scores": {which: finite(of.scores()) for which, of in found.items()},
        **({"target": target.name} if target.name else {}),
        **({"classes": list(target.names)} if target.names else {}),
    }


def client_table(simulation: Simulation, state: State, found: dict[str, Predictions]) -> list[Record]:
    """For each client of a paired federation: samples, kind, scores of the global and of its own models, and notes."""
    federation = simulation.federation
    if not federation.paired:
        return []
    scores = {which: of.by_client() for which, of in found.items()}
    scores = {"global": scores["global"], "own": scores["global"], **scores}
    decided = client_notes(simulation, state)
    names = federation.train.names or tuple(str(i) for i in range(len(federation.train)))
    return [
        {
            "client": name,
            "samples": int(federation.train.sizes[i]),
            "test_samples": int(federation.test.sizes[i]),
            **main,
            **({"kind": federation.kinds[i]} if federation.kinds is not None else {}),
            **({"angle": federation.angles[i]} if federation.angles is not None else {}),
            **({"newcomer": True} if i in federation.newcomers else {}),
            **{f"{which}_{score}": value for which, of in scores.items() for score, value in of[i].items()},
            **(decided[i] if decided else {}),
        }
        for i, (name, main) in enumerate(zip(names, _main_classes(federation), strict=True))
    ]


def _main_classes(federation: Federation) -> list[Record]:
    """The most frequent class of each client and its share; nothing for numbers."""
    if federation.target.is_number:
        return [{}] * len(federation.train)
    counts = federation.train.class_counts(federation.classes)
    named = [{"main_class_name": federation.target.text(int(k))} for k in counts.argmax(1)]
    return [
        {
            "main_class": int(of.argmax()),
            **(name if federation.target.names else {}),
            "main_share": float(of.max() / of.sum()),
        }
        for of, name in zip(counts, named, strict=True)
    ]
