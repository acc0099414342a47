"""Parameters as tensors: works for every model and algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients
from fedkin.engine.spaces.combination import Factor, is_zero
from fedkin.errors import BadInput
from fedkin.models import Model
from fedkin.types import Integers, Tensors

Batches = list[list[Integers]]  # batches of each client of a cohort, as positions among its samples


class Space(Protocol):
    """The interface of a space. Tensors are (…, c, P) with c clients in the cohort.

    The vectors that change over the steps are `w` and the clients' memory, by name.
    """

    def lift(self, received: Tensors, memory: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert received and remembered tensors to vectors; the steps start at `received["model"]`."""

    def gradient(self, k: int) -> Callable[..., Any]:
        """∇fᵢ of the mean loss plus λ/2 ‖w‖² on each client's k-th batch, clipped to norm G.

        `gradient(v, weights=q)` multiplies the loss of each sample by its weight, q (…, c, n) over all samples.
        """

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """The vectors after the k-th step; unchanged for clients that have taken all their steps."""

    def lower(self, vectors: dict[str, Any], into: Tensor | None = None) -> Tensors:
        """Convert vectors to tensors; `w` is written to `into`, if given."""


@dataclass(frozen=True)
class StackedBatch:
    """One batch of each client of a cohort: x (c, B, D), y (c, B), weight (c, B), or (L, c, B) if lanes differ in it.

    Shorter batches are padded with samples of weight 0. `active` (c, 1) marks clients that have a batch; None if all
    have one.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor | None = None


class Plain:
    """Parameters as tensors, one operation at a time."""

    name: ClassVar[str] = "plain"

    def __init__(self, model: Model, local: Local, clients: Clients, cohort: Integers, batches: Batches) -> None:
        self.model, self.local = model, local
        self.counts = [len(own) for own in batches]
        self._samples = clients, cohort, batches
        self.batches = [self._stacked(k) for k in range(max(map(len, batches)))]
        self._places: dict[tuple[int, int], Tensor] = {}  # positions of batches whose samples have weights, (c, B)

    def _positions(self, k: int, ahead: int = 0) -> list[Integers]:
        """Each client's k-th batch, or one so far ahead of it; none for clients that have taken all their steps."""
        return [own[(k + ahead) % len(own)] if k < len(own) else own[0][:0] for own in self._samples[2]]

    def _stacked(self, k: int, ahead: int = 0) -> StackedBatch:
        clients, cohort, _ = self._samples
        return stack(clients, cohort, self._positions(k, ahead))

    def _weighted(self, batch: StackedBatch, k: int, ahead: int, weights: Tensor) -> StackedBatch:
        """A batch whose samples count by their weights, (…, c, n) over all samples of a client."""
        if (k, ahead) not in self._places:  # of which a step may ask several times
            places = padded(self._positions(k, ahead), batch.weight.shape[-1])
            self._places[k, ahead] = torch.as_tensor(places, device=weights.device)
        index = self._places[k, ahead].expand(*weights.shape[:-1], -1)
        return replace(batch, weight=batch.weight * weights.gather(-1, index))

    def lift(self, received: Tensors, memory: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        self.versions: dict[str, tuple[Tensor, int]] = {
            name: (value, value._version) for name, value in {**memory, **received}.items()
        }
        return dict(received), dict(memory)

    def gradient(self, k: int) -> Callable[..., Any]:
        local = self.local

        def gradient(w: Tensor, ahead: int = 0, weights: Tensor | None = None) -> Tensor:
            batch = self._stacked(k, ahead) if ahead else self.batches[k]
            g = self._loss_gradient(w, batch if weights is None else self._weighted(batch, k, ahead, weights))
            if not is_zero(local.l2):
                g += local.l2 * w
            if local.clip is not None:
                g *= shrink(torch.linalg.vector_norm(g, dim=-1, keepdim=True), local.clip)
            return g

        return gradient

    def _loss_gradient(self, w: Tensor, batch: StackedBatch) -> Tensor:
        if w.dim() == 3:  # one lane after another: the samples stay in the cache
            lanes = zip(w, batch.weight.expand(len(w), -1, -1), strict=True)
            return torch.stack([self.model.gradient(lane, batch.x, batch.y, weight) for lane, weight in lanes])
        return self.model.gradient(w, batch.x, batch.y, batch.weight)

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        for name, (value, version) in self.versions.items():
            if value._version != version:
                raise BadInput(
                    f"the algorithm's step changes '{name}' in place, but the engine still needs the old value: "
                    "write w = w - … instead of w -= …"
                )
        active = self.batches[k].active
        settled = {
            name: value if active is None or value is old[name] else torch.where(active, value, old[name])
            for name, value in new.items()
        }
        self.versions |= {name: (value, value._version) for name, value in settled.items()}
        return settled

    def lower(self, vectors: dict[str, Any], into: Tensor | None = None) -> Tensors:
        return {name: torch.as_tensor(value) for name, value in vectors.items()}


def stack(clients: Clients, cohort: Integers, batches: Sequence[Integers]) -> StackedBatch:
    """One batch of each client, from positions among its samples; a view for consecutive samples of a single client."""
    device = clients.x.device
    counts = np.array([len(b) for b in batches])
    width = int(counts.max())
    weight = clients.x.new_tensor((np.arange(width) < counts[:, None]) / np.maximum(counts, 1)[:, None])
    active = torch.as_tensor(counts > 0, device=device).unsqueeze(-1) if counts.min() == 0 else None
    if len(cohort) == 1 and is_run(batches[0]):
        rows = slice(
            int(clients.offsets[cohort[0]] + batches[0][0]), int(clients.offsets[cohort[0]] + batches[0][-1]) + 1
        )
        return StackedBatch(clients.x[None, rows], clients.y[None, rows], weight, active)
    index = padded([clients.offsets[i] + b for i, b in zip(cohort, batches, strict=True)], width)
    chosen = torch.as_tensor(index, device=device)
    return StackedBatch(clients.x[chosen], clients.y[chosen], weight, active)


def padded(positions: Sequence[Integers], width: int) -> NDArray[np.int64]:
    """Positions of each client as a row, (c, width), padded with 0."""
    index = np.zeros((len(positions), width), dtype=np.int64)
    for row, own in zip(index, positions, strict=True):
        row[: len(own)] = own
    return index


def is_run(positions: Integers) -> bool:
    """Whether the positions are consecutive."""
    return bool((np.diff(positions) == 1).all())


def shrink(norm: Tensor, clip: Factor) -> Tensor:
    """The factor min(1, clip/norm) that clips a vector of this norm."""
    return torch.clamp(clip / norm, max=1.0)
