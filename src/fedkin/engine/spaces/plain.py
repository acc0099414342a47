"""Where local work happens: the space in which a cohort's parameters live while its clients take their steps.

`Plain` holds parameters as they are. An algorithm's `step` runs unchanged in every space.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients
from fedkin.engine.spaces.combination import Scalar, is_zero
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
