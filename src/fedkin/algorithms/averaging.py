"""How the server averages the models of a round: the weighted mean, or a rule that bounds what single clients can do.

A rule is a function of models (…, m, q) and weights p (m,) that sum to 1. All rules move with the models: that of
xᵢ + c is that of xᵢ, plus c.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import BadInput, nearest
from fedkin.types import Floats

SORTED_AT_ONCE = 1 << 22  # numbers that are sorted at once


class Averaging(Protocol):
    """A rule by which models are averaged."""

    def __call__(self, values: Tensor, weights: Floats) -> Tensor:
        """The average of the rows: (…, m, q) and (m,) → (…, 1, q)."""

    def check(self, clients: int) -> None:
        """Raise if the rule cannot be applied to so few clients."""

    @property
    def is_mean(self) -> bool:
        """Whether it is the weighted mean."""


@dataclass(frozen=True)
class WeightedMean:
    """Σ pᵢ xᵢ."""

    is_mean = True

    def __call__(self, values: Tensor, weights: Floats) -> Tensor:
        p = torch.as_tensor(weights, dtype=values.dtype, device=values.device)
        return (p @ values).unsqueeze(-2)

    def check(self, clients: int) -> None:
        """Any number will do."""


MEAN = WeightedMean()


@dataclass(frozen=True)
class Median:
    """The weighted median of each coordinate (Yin et al. 2018).

    Half of the weight lies on either side of it: a client of weight p counts as p·n clients of weight 1/n would. If the
    smaller values have exactly half of the weight, it is the middle between the largest of them and the next value, as
    for an even number of equal clients. Clients with less than half of the weight cannot move it beyond the values of
    the others.

    >>> Median()(torch.tensor([[1.0], [2.0], [1e6]]), np.array([0.2, 0.4, 0.4])).item()
    2.0
    """

    is_mean = False

    def __call__(self, values: Tensor, weights: Floats) -> Tensor:
        return _by_columns(values, lambda part: self._of(part, weights))

    def _of(self, values: Tensor, weights: Floats) -> Tensor:
        ordered, reached = _sorted(values, weights)
        # Sums of weights are rounded: half is half up to a billionth.
        lower = (reached < 0.5 - 1e-9).sum(-2, keepdim=True)
        upper = (reached <= 0.5 + 1e-9).sum(-2, keepdim=True).clamp(max=values.shape[-2] - 1)
        return (ordered.gather(-2, lower) + ordered.gather(-2, upper)) / 2

    def check(self, clients: int) -> None:
        """Any number will do."""


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its smallest and its largest values (Yin et al. 2018).

    trim  β in [0, 0.5), the share of the weight that is left out at either end; 0 is the weighted mean

    A value at the border counts with the part of its weight that is inside. With n equal clients and a whole number βn
    the βn smallest and the βn largest values are left out.

    >>> TrimmedMean(0.25)(torch.tensor([[0.0], [1.0], [2.0], [1e6]]), np.full(4, 0.25)).item()
    1.5
    """

    trim: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise BadInput(f"trim = {self.trim:g} is out of range: it must be at least 0 and below 0.5")

    @property
    def is_mean(self) -> bool:
        return self.trim == 0

    def __call__(self, values: Tensor, weights: Floats) -> Tensor:
        return MEAN(values, weights) if self.is_mean else _by_columns(values, lambda part: self._of(part, weights))

    def _of(self, values: Tensor, weights: Floats) -> Tensor:
        ordered, reached = _sorted(values, weights)
        before = torch.cat([torch.zeros_like(reached[..., :1, :]), reached[..., :-1, :]], dim=-2)
        inside = (reached.clamp(max=1 - self.trim) - before.clamp(min=self.trim)).clamp(min=0)
        # Values of weight 0 are not multiplied, as they may be infinite.
        kept = torch.where(inside > 1e-12, ordered.double() * inside, 0.0)
        return (kept.sum(-2, keepdim=True) / inside.sum(-2, keepdim=True)).to(values.dtype)

    def check(self, clients: int) -> None:
        """Any number will do."""


@dataclass(frozen=True)
class Krum:
    """The weighted mean of the k models that lie closest to others (Blanchard et al. 2017).

    attackers  f ≥ 0, the number of clients of a round that may send anything; a round needs at least 2f + 3 clients
    keep       k ≥ 1, how many models are averaged; 1 is Krum, more is multi-Krum (0: all but f)

    A model's score is the sum of its squared distances to the m − f − 2 nearest others, and the k models with the
    lowest scores are kept. Of two with the same score it is the one closer to all. In scores clients count alike; the
    models that are kept are averaged with their weights.

    >>> Krum(attackers=0, keep=1)(torch.tensor([[0.0], [1.0], [1.5]]), np.full(3, 1 / 3)).item()
    1.0
    """

    attackers: int = 1
    keep: int = 0
    is_mean = False

    def __post_init__(self) -> None:
        for name in ("attackers", "keep"):
            if (value := getattr(self, name)) < 0:
                raise BadInput(f"{name} = {value} is out of range: it must be at least 0")

    def __call__(self, values: Tensor, weights: Floats) -> Tensor:
        chosen = self.chosen(values)
        p = torch.as_tensor(weights, dtype=values.dtype, device=values.device)[chosen]
        rows = values.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, values.shape[-1]))
        return (p / p.sum(-1, keepdim=True)).unsqueeze(-2) @ rows

    def chosen(self, values: Tensor) -> Tensor:
        """The places of the k models that are kept, ascending: (…, m, q) → (…, k)."""
        count = values.shape[-2]
        self.check(count)
        apart = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").double() ** 2
        near = apart.sort(-1).values[..., 1 : count - self.attackers - 1].sum(-1)
        order = np.lexsort((apart.sum(-1).cpu().numpy(), near.cpu().numpy()))
        kept = np.sort(order[..., : self.keep or count - self.attackers])
        return torch.from_numpy(kept).to(values.device)

    def check(self, clients: int) -> None:
        if clients < (least := 2 * self.attackers + 3):
            raise BadInput(
                f"Krum with {self.attackers} attackers needs at least {least} clients in a round, and there are "
                f"{clients}: sample more clients, or expect fewer attackers"
            )
        if self.keep > clients:
            raise BadInput(f"Krum cannot keep {self.keep} of {clients} models: lower keep")


AVERAGINGS: dict[str, Callable[[], Averaging]] = {
    "mean": WeightedMean,
    "median": Median,
    "trimmed": TrimmedMean,
    "krum": Krum,
}


def averaging_rule(rule: str | Averaging) -> Averaging:
    """A rule by its name, with its default numbers, or the rule that is given."""
    if not isinstance(rule, str):
        return rule
    if rule not in AVERAGINGS:
        raise BadInput(f"unknown rule of aggregation '{rule}'{nearest(rule, AVERAGINGS)}")
    return AVERAGINGS[rule]()


def _sorted(values: Tensor, weights: Floats) -> tuple[Tensor, Tensor]:
    """Each column in ascending order, and the sum of the weights up to each value, in float64."""
    ordered, order = values.sort(-2)
    p = torch.as_tensor(weights, dtype=torch.float64, device=values.device)
    return ordered, p[order].cumsum(-2)


def _by_columns(values: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """A rule for each column, applied to some columns at a time."""
    width = max(1, SORTED_AT_ONCE // max(1, values[..., :1].numel()))
    return torch.cat([rule(part) for part in torch.split(values, width, dim=-1)], dim=-1)
