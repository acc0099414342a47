"""The loss of a target: its value and derivative for the scores of a model, what it predicts, how it is measured.

Scores z are (…, K, B), one row per output; y is (…, B). In all three the derivative with respect to the scores is
mean(z) − coded(y), where mean(z) is what the model expects of the coded target.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedkin.data.measure import ACCURACY, MSE, Measure
from fedkin.data.target import TASKS, Target
from fedkin.errors import BadInput, nearest


class Loss(ABC):
    """The loss of one sample, ℓ(z, y)."""

    measure: ClassVar[Measure] = ACCURACY  # the main one

    @abstractmethod
    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (…, B)."""

    @abstractmethod
    def mean(self, z: Tensor) -> Tensor:
        """What the model expects: probabilities of classes or a number, (…, K, B), as a new tensor."""

    @abstractmethod
    def coded(self, y: Tensor, outputs: int) -> Tensor:
        """The targets in the form of scores, (…, K, B)."""

    @abstractmethod
    def predicted(self, z: Tensor) -> Tensor:
        """The class or number that the model predicts, (…, B)."""

    @abstractmethod
    def mixed(self, z: Tensor, shares: Tensor) -> Tensor:
        """Scores whose mean is the mixture Σₘ πₘ mean(zₘ), from scores (M, …, K, B) and shares (…, M): (…, K, B)."""

    def labels(self, y: Tensor, outputs: int) -> Tensor:
        """Targets that were not checked before, as the loss takes them: classes as int64, checked."""
        classes, found = max(outputs, 2), y.long()
        if (found != y).any() or len(y) == 0 or int(found.min()) < 0 or int(found.max()) >= classes:
            raise BadInput(
                f"the labels run from {y.min():g} to {y.max():g} but must be whole numbers from 0 to {classes - 1}: "
                "renumber them, or use a model and a task for numbers"
            )
        return found

    def derivative(self, z: Tensor, coded: Tensor, weight: float | Tensor) -> Tensor:
        """∂/∂z of the weighted loss: weight · (mean(z) − coded(y)), (…, K, B)."""
        return self.mean(z).sub_(coded).mul_(weight)

    def residual(self, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """`derivative` from y and weights (…, B)."""
        return self.derivative(z, self.coded(y, z.shape[-2]).to(z), weight.unsqueeze(-2))

    def measured(self, z: Tensor, y: Tensor) -> Tensor:
        """The main measure of each sample, (…, B): its mean over samples is the accuracy, or mean squared error."""
        return (self.predicted(z) == y).to(z)


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """K classes: ℓ = log Σₖ exp(zₖ) − z_y; mean(z) = softmax(z)."""

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        if z.dim() == 2:
            return nn.functional.cross_entropy(z.mT, y, reduction="none")
        return nn.functional.cross_entropy(z, y, reduction="none")

    def mean(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=-2)

    def coded(self, y: Tensor, outputs: int) -> Tensor:
        """A row for each class: 1 for the samples of the class, else 0."""
        return nn.functional.one_hot(y, outputs).mT

    def predicted(self, z: Tensor) -> Tensor:
        return z.max(dim=-2).indices  # as `argmax`, in a third of the time

    def mixed(self, z: Tensor, shares: Tensor) -> Tensor:
        """The logarithms of the mixed probabilities."""
        return _log_mean(torch.log_softmax(z, dim=-2), shares)

    def residual(self, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """With mean(z) = softmax(z), without the labels as a tensor of their own."""
        r = torch.softmax(z, dim=-2)
        index = y.unsqueeze(-2).expand(*r.shape[:-2], 1, r.shape[-1])
        r.scatter_add_(-2, index, r.new_full((), -1.0).expand_as(index))
        return r.mul_(weight.unsqueeze(-2))


@dataclass(frozen=True)
class Logistic(Loss):
    """Two classes and one score, the log-odds of the second: ℓ = log(1 + exp(z)) − y z; mean(z) = 1/(1 + exp(−z))."""

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        z = z.squeeze(-2)
        return nn.functional.binary_cross_entropy_with_logits(z, y.to(z), reduction="none")

    def mean(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def coded(self, y: Tensor, outputs: int) -> Tensor:
        return y.unsqueeze(-2)

    def predicted(self, z: Tensor) -> Tensor:
        return (z.squeeze(-2) > 0).long()

    def mixed(self, z: Tensor, shares: Tensor) -> Tensor:
        """The log-odds of the mixed probabilities."""
        return _log_mean(nn.functional.logsigmoid(z), shares) - _log_mean(nn.functional.logsigmoid(-z), shares)


@dataclass(frozen=True)
class Squared(Loss):
    """A number: ℓ = ½(z − y)²; mean(z) = z.

    scale  of the target: measures are in units of the data, (scale · (z − y))²
    """

    scale: float = 1.0
    measure: ClassVar[Measure] = MSE

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return (z.squeeze(-2) - y).square() / 2

    def mean(self, z: Tensor) -> Tensor:
        return z.clone()

    def coded(self, y: Tensor, outputs: int) -> Tensor:
        return y.unsqueeze(-2)

    def predicted(self, z: Tensor) -> Tensor:
        return z.squeeze(-2)

    def mixed(self, z: Tensor, shares: Tensor) -> Tensor:
        return (_by_model(shares) * z).sum(0)

    def derivative(self, z: Tensor, coded: Tensor, weight: float | Tensor) -> Tensor:
        return (z - coded).mul_(weight)

    def labels(self, y: Tensor, outputs: int) -> Tensor:
        if not torch.isfinite(y).all():
            raise BadInput("the targets are not all finite numbers: remove these samples")
        return y.float()

    def measured(self, z: Tensor, y: Tensor) -> Tensor:
        return ((z.squeeze(-2) - y) * self.scale).square()


def _by_model(shares: Tensor) -> Tensor:
    """Shares (…, M) as factors of scores (M, …, K, B)."""
    return shares.movedim(-1, 0)[..., None, None]


def _log_mean(logarithms: Tensor, shares: Tensor) -> Tensor:
    """Log Σₘ πₘ exp(logarithmₘ)."""
    return torch.logsumexp(logarithms + _by_model(shares).log(), dim=0)


CROSS_ENTROPY = CrossEntropy()


def loss_of(target: Target) -> Loss:
    """The loss with which a target is learnt."""
    if target.is_number:
        return Squared(target.scale)
    return Logistic() if target.kind == "binary" else CROSS_ENTROPY


def loss_for(task: str, outputs: int) -> Loss:
    """The loss of a task for a module with so many outputs; one output can stand for two classes or for a number."""
    if task not in TASKS:
        raise BadInput(f"there is no task '{task}'{nearest(task, TASKS)}")
    if outputs == 1 and TASKS[task] in ("", "classes"):
        raise BadInput("the module has one output: say task='binary' for two classes, task='regression' for a number")
    if outputs > 1 and TASKS[task] not in ("", "classes"):
        raise BadInput(f"the module has {outputs} outputs: a task '{task}' takes one")
    return loss_of(Target(TASKS[task] or "classes"))
