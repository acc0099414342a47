"""Where local work happens: the space in which a cohort's parameters live while its clients take their steps.

`Plain` holds parameters as they are, `Fused` saves passes over them; `Samples`, in `fedkin.samples`, is for models that
begin with a linear layer. An algorithm's `step` runs unchanged in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.combination import Combination, Scalar, add, factor, is_one, is_zero
from fedkin.federation import Clients
from fedkin.local import Local
from fedkin.models import Model

Vector = Any
Dealt = list[list[NDArray[np.int64]]]  # the batches of each client of a cohort


class Space(Protocol):
    """What the local loop asks of a space. Tensors are (…, clients of the cohort, P)."""

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Bring what the clients received into the space."""

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """∇fᵢ on every client's k-th batch: of the mean loss plus λ/2 ‖w‖², cut to norm G where it is longer."""

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """What the k-th step comes to: the old vector for clients that have taken all their steps."""

    def lower(self, w: Vector) -> Tensor:
        """Back to parameters."""


# -- plain -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One batch of each client of a cohort: x (c, B, D), y (c, B), weight (c, B).

    Clients with fewer samples in it are filled up with samples of weight 0; `active` (c, 1) says who has a batch at
    all, None if all have.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor | None = None


class Plain:
    """Parameters as they are: works for every model and algorithm."""

    on_all_cores: ClassVar[bool] = True  # whether a single cohort can use more than one

    def __init__(self, model: Model, local: Local, clients: Clients, cohort: NDArray[np.int64], dealt: Dealt) -> None:
        self.model, self.local = model, local
        self.counts = [len(own) for own in dealt]
        self.batches = [stack(clients, cohort, [own[k] if k < len(own) else own[0][:0] for own in dealt])
                        for k in range(max(map(len, dealt)))]  # fmt: skip

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Nothing to do."""
        return got

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """Loss, penalty, clipping."""
        batch, local = self.batches[k], self.local

        def gradient(w: Tensor) -> Tensor:
            g = self._loss_gradient(w, batch)
            if not is_zero(local.l2):
                g += local.l2 * w
            if local.clip is not None:
                g *= shrink(torch.linalg.vector_norm(g, dim=-1, keepdim=True), local.clip)
            return g

        return gradient

    def _loss_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        if w.dim() == 3:  # lanes: the samples stay in the cache while one lane after the other uses them
            return torch.stack([self.model.gradient(lane, batch.x, batch.y, batch.weight) for lane in w])
        return self.model.gradient(w, batch.x, batch.y, batch.weight)

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """Only active clients have moved."""
        active = self.batches[k].active
        return new if active is None else torch.where(active, new, old)

    def lower(self, w: Vector) -> Tensor:
        """Nothing to do."""
        return torch.as_tensor(w)


def stack(clients: Clients, cohort: NDArray[np.int64], batches: Sequence[NDArray[np.int64]]) -> Batch:
    """One batch of each client, given as positions among its samples; no copy if it is one client's run of rows."""
    device = clients.x.device
    counts = np.array([len(b) for b in batches])
    width = int(counts.max())
    weight = clients.x.new_tensor((np.arange(width) < counts[:, None]) / np.maximum(counts, 1)[:, None])
    active = torch.as_tensor(counts > 0, device=device).unsqueeze(-1) if counts.min() == 0 else None
    if len(cohort) == 1 and is_run(batches[0]):
        rows = slice(
            int(clients.offsets[cohort[0]] + batches[0][0]), int(clients.offsets[cohort[0]] + batches[0][-1]) + 1
        )
        return Batch(clients.x[None, rows], clients.y[None, rows], weight, active)
    index = np.zeros((len(cohort), width), dtype=np.int64)
    for j, (i, b) in enumerate(zip(cohort, batches, strict=True)):
        index[j, : len(b)] = clients.offsets[i] + b
    chosen = torch.as_tensor(index, device=device)
    return Batch(clients.x[chosen], clients.y[chosen], weight, active)


def is_run(positions: NDArray[np.int64]) -> bool:
    """Whether the positions follow each other without a gap."""
    return bool((np.diff(positions) == 1).all())


def shrink(norm: Tensor, clip: Scalar) -> Tensor:
    """The factor that cuts a vector of this norm to at most `clip`."""
    return torch.clamp(clip / norm, max=1.0)


class Fused(Plain):
    """As `Plain`, but vectors are combinations until they are needed.

    What `step` says about w, u, w̄ and the gradient comes to one scalar each, so that a step of FedAvg is three passes
    over the parameters, w ← w + (−γ·g − γλ·w), and not the ten that its operations would take one after the other.
    """

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Each received vector becomes a basis vector."""
        self.basis = dict(got)
        self.fresh: list[str] = []
        return {name: Combination({name: 1.0}) for name in got}

    def _sum(self, v: Combination) -> Tensor:
        """The parameters that a combination stands for, as a new tensor."""
        (first, scalar), *others = v.terms.items()
        return self._add(self.basis[first] * factor(scalar, self.basis[first].device), dict(others))

    def _add(self, out: Tensor, terms: dict[str, Scalar]) -> Tensor:
        for name, scalar in terms.items():
            if not is_zero(scalar):
                add(out, scalar, self.basis[name])
        return out

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """The gradient of the loss is a fresh basis vector; the penalty is a scalar times the point."""
        batch, local = self.batches[k], self.local

        def gradient(v: Combination) -> Combination:
            (first, scalar), *others = v.terms.items()
            alone = not others and is_one(scalar)
            g = self._loss_gradient(self.basis[first] if alone else self._sum(v), batch)
            name = f"fresh {len(self.fresh)}"
            self.basis[name] = g
            self.fresh.append(name)
            whole = Combination({name: 1.0}) + local.l2 * v
            if local.clip is None:
                return whole
            self.basis[name] = cut = self._sum(whole)
            cut *= shrink(torch.linalg.vector_norm(cut, dim=-1, keepdim=True), local.clip)
            return Combination({name: 1.0})

        return gradient

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """Move w by the difference; it is summed up in the gradient's place, which is free now.

        Adding a small difference to w loses less than multiplying w by 1 − γλ, which single precision hardly tells
        from 1.
        """
        active, (here,) = self.batches[k].active, old.terms
        difference = {**new.terms, here: new.terms.get(here, 0.0) - 1.0}
        move = self.basis[self.fresh[0]]
        move = move.mul_(factor(difference.pop(self.fresh[0]), move.device))
        move = self._add(move, difference)
        if active is not None:
            move = move * active  # those who have taken all their steps stay
        w = self.basis[here]
        self.basis["w"] = w.add_(move) if here == "w" else w + move
        for name in self.fresh:
            del self.basis[name]
        self.fresh.clear()
        return Combination({"w": 1.0})

    def lower(self, w: Vector) -> Tensor:
        """Sum up."""
        return self._sum(w)
