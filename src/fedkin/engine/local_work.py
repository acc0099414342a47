"""Local training of clients: the loop over local steps, in any space."""

import contextlib
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms import Algorithm, Local
from fedkin.algorithms.rounds import random_numbers
from fedkin.data.federation import Clients
from fedkin.engine.optimizers import optimizer_of
from fedkin.engine.spaces.plain import Space
from fedkin.engine.spaces.script import Script
from fedkin.errors import BadInput
from fedkin.models import Model
from fedkin.types import Integers, Tensors


def take_steps(algorithm: Algorithm, space: Space, got: Tensors, memory: Tensors, steps: int) -> tuple[Tensor, Tensors]:
    """Take local steps in a space, starting at the received model. Returns w and the clients' memory as tensors."""
    lowered = space.lower(walk(algorithm, space, got, memory, steps))
    return lowered.pop("w"), lowered


def walk(algorithm: Algorithm, space: Any, got: Any, memory: Any, steps: int) -> dict[str, Any]:
    """The loop over local steps. Returns `w` and the clients' memory by name, as vectors of the space."""
    received, remembered = space.lift(got, memory)
    optimizer = optimizer_of(algorithm, space.local)
    vectors = {"w": received["model"], **remembered, **optimizer.start(received["model"])}
    # Suppress overflow warnings: a diverging lane is reported by the engine.
    with np.errstate(all="ignore"):
        for k in range(steps):
            own = {name: vectors[name] for name in remembered}
            w, changed = algorithm.step(vectors["w"], received, own, space.gradient(k))
            w, state = optimizer.moved(space, vectors["w"], w, vectors)
            vectors = space.settle(k, {"w": w, **changed, **state}, vectors)
    return {name: vectors[name] for name in ("w", *remembered)}


def script_of(
    algorithm: Algorithm,
    local: Local,
    device: torch.device,
    received: Collection[str],
    memory: Collection[str],
    steps: int,
) -> Script:
    """Trace the local steps of an algorithm."""
    script = Script(algorithm, local, device)
    walk(algorithm, script, received, memory, steps)
    return script


def two_steps(
    algorithm: Algorithm, local: Local, device: torch.device, received: Collection[str], memory: Collection[str]
) -> Script | None:
    """The trace of two steps; None if a step uses more than + and − of vectors and × by scalars.

    Adam's roots are left out of it. Errors in a step are suppressed here; `Plain` raises them again.
    """
    with contextlib.suppress(Exception):
        return script_of(algorithm, without_roots(local), device, received, memory, 2)
    return None


def without_roots(local: Local) -> Local:
    """What matters for a trace of any length, with plain steps in place of Adam's."""
    optimizer = "momentum" if local.optimizer == "momentum" else "sgd"
    return Local(optimizer=optimizer, momentum=local.momentum, weight_decay=local.weight_decay)


def batches_of_client(local: Local, samples: int, seed: int, round: int, client: int) -> list[Integers]:
    """Batches of one client in a round; they depend on seed, round and client only."""
    return local.batches(samples, random_numbers(seed, "batches", round, client))


def order_of_client(local: Local, samples: int, seed: int, round: int, client: int) -> Integers:
    """The same batches, one after another; they end at `local.ends(samples)`."""
    return local.order_of(samples, random_numbers(seed, "batches", round, client))


GATHERED = 1 << 16  # numbers of samples that are copied to be scored in one call


class SampleLosses:
    """Loss of the clients' models on their training samples: the `Losses` of an algorithm."""

    def __init__(self, model: Model, clients: Clients, who: Integers, validation: Clients | None = None) -> None:
        self.model, self.clients, self.who, self.validation = model, clients, who, validation

    def _of(self, models: Tensor, place: int) -> Tensor:
        """Losses of one client's samples, (…, n)."""
        rows, w = self.clients.rows(int(self.who[place])), models[..., place, :]
        z = self.model.scores(w.reshape(-1, w.shape[-1]), self.clients.x[rows])
        y = self.clients.y[rows].expand(len(z), -1)
        return self.model.loss.each(z, y).view(*w.shape[:-1], -1)

    def __call__(self, models: Tensor) -> Tensor:
        each = [self._of(models, place) for place in range(len(self.who))]
        out = models.new_zeros(*models.shape[:-1], max(losses.shape[-1] for losses in each))
        for place, losses in enumerate(each):
            out[..., place, : losses.shape[-1]] = losses
        return out

    @property
    def samples(self) -> Tensor:
        return self.clients.x.new_tensor(self.clients.sizes[self.who]).unsqueeze(-1)

    def mean(self, models: Tensor) -> Tensor:
        if models.stride(-2) == 0:
            return self._mean_of_one(models[..., 0, :]).unsqueeze(-1)
        each = [self._of(models, place).mean(-1) for place in range(len(self.who))]
        return torch.stack(each, dim=-1).unsqueeze(-1)

    def _mean_of_one(self, w: Tensor) -> Tensor:
        """fᵢ of the same model (…, P) at all clients, (…, m): at small ones together, as calls take longer."""
        flat, found = w.reshape(-1, w.shape[-1]), []
        for few in self._together():
            rows = torch.cat([torch.arange(rows.start, rows.stop) for rows in few]) if len(few) > 1 else few[0]
            z = self.model.scores(flat, self.clients.x[rows])
            each = self.model.loss.each(z, self.clients.y[rows].expand(len(z), -1))
            sizes = torch.tensor([rows.stop - rows.start for rows in few], device=each.device)
            owner = torch.repeat_interleave(torch.arange(len(few), device=each.device), sizes)
            found.append(each.new_zeros(len(each), len(few)).index_add_(1, owner, each) / sizes)
        return torch.cat(found, dim=1).view(*w.shape[:-1], -1)

    def _together(self) -> list[list[slice]]:
        """The rows of the clients, in groups that are copied at little cost."""
        groups: list[list[slice]] = []
        features, numbers = self.clients.x.shape[1], 0
        for client in self.who:
            rows = self.clients.rows(int(client))
            more = (rows.stop - rows.start) * features
            if not groups or numbers + more > GATHERED:
                groups.append([])
                numbers = 0
            groups[-1].append(rows)
            numbers += more
        return groups

    def held_out(self, models: Tensor) -> Tensor:
        if self.validation is None:
            raise BadInput(
                "the algorithm compares models on validation samples, and the federation has none: "
                "use federation.held_out(0.2), or partition.validation = 0.2"
            )
        known = SampleLosses(self.model, self.validation, self.who)
        found = models.new_zeros(*models.shape[:-1], 3)
        for place, samples in enumerate(self.validation.sizes[self.who].tolist()):
            if samples:
                each = known._of(models, place)
                found[..., place, 0] = each[..., ::2].mean(-1)
                found[..., place, 1] = each[..., 1::2].mean(-1) if samples > 1 else each[..., 0]
                found[..., place, 2] = samples
        return found


def torch_seed(*parts: int) -> int:
    """One seed for PyTorch from several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
