"""Parameters as arrays with compiled rounds (`primal_kernels`); needs Numba (`fedkin[fast]`)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients
from fedkin.engine.spaces import primal_kernels
from fedkin.engine.spaces.combination import Factor
from fedkin.engine.spaces.recipe import Recipe, after_rounds
from fedkin.engine.spaces.script import Player, Script
from fedkin.models import MLP, CrossEntropy, Layered, Logistic, Loss, Squared
from fedkin.types import Integers, Tensors


class Primal(Player):
    """Parameters, with one compiled call per client and round: for any order of the samples, with or without clipping.

    All clients of a cohort take the same number of steps.
    """

    name: ClassVar[str] = "primal"
    clips: ClassVar[bool] = True

    def __init__(
        self, model: Layered, local: Local, clients: Clients, cohort: Integers, orders: Sequence[Integers]
    ) -> None:
        self.local, self.network = local, network_of(model)
        ends = {n: local.ends(n) for n in clients.sizes[cohort].tolist()}
        self.counts = [len(ends[n]) - 1 for n in clients.sizes[cohort].tolist()]
        self.clients = []
        for i, order in zip(cohort.tolist(), orders, strict=True):
            x, y = clients.x[clients.rows(i)], clients.y[clients.rows(i)]
            self.clients.append(primal_kernels.in_order(x.numpy(), y.float().numpy(), order, ends[len(y)]))

    def play(self, script: Script, received: Tensors, memory: Tensors, into: Tensor | None) -> Tensors:
        def round(recipe: Recipe, vectors: list[Tensor], out: Tensor) -> None:
            l2, clip = (in_lanes(value, len(out)) for value in (self.local.l2, self.local.clip))
            primal_kernels.primal_round(recipe, l2, clip, self.clients, self.network, vectors, out)

        return after_rounds(round, script, self.counts[0], received, memory, into)


COMPILED_LOSSES: dict[type[Loss], int] = {
    CrossEntropy: primal_kernels.SOFTMAX,
    Logistic: primal_kernels.LOGISTIC,
    Squared: primal_kernels.SQUARED,
}


def network_of(model: Layered) -> primal_kernels.Network:
    """The model as the kernels see it."""
    hidden = model.hidden if isinstance(model, MLP) else 0
    return primal_kernels.Network(model.first.inputs, hidden, model.outputs, COMPILED_LOSSES[type(model.loss)])


def in_lanes(value: Factor | None, lanes: int) -> NDArray[np.float32]:
    """One number per lane, (L,); none at all for None."""
    if value is None:
        return np.empty(0, dtype=np.float32)
    numbers = np.asarray(value, dtype=np.float32).reshape(-1)
    return np.broadcast_to(numbers, lanes).copy()
