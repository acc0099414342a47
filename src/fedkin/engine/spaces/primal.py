"""Parameters as arrays with compiled rounds (`primal_kernels`); needs Numba (`fedkin[fast]`)."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients
from fedkin.engine.spaces import primal_kernels
from fedkin.engine.spaces.batchwise import batchwise_of, pays
from fedkin.engine.spaces.batchwise_kernels import batchwise_round
from fedkin.engine.spaces.combination import Factor
from fedkin.engine.spaces.program import is_tracked, program_of
from fedkin.engine.spaces.program_kernels import program_round
from fedkin.engine.spaces.recipe import Recipe, after_rounds, unchanged
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
        if not is_tracked(script):
            return self._program(script, received, memory, into)

        def round(recipe: Recipe, vectors: list[Tensor], out: Tensor) -> None:
            primal_kernels.primal_round(recipe, *self._limits(len(out)), self.clients, self.network, vectors, out)

        return after_rounds(round, script, self.counts[0], received, memory, into)

    def _program(self, script: Script, received: Tensors, memory: Tensors, into: Tensor | None) -> Tensors:
        """A round of steps with several gradients, or of vectors that depend on each other."""
        given = {**{f"memory {name}": value for name, value in memory.items()}, **received}
        like = received["model"]
        lanes = len(like) if like.dim() == 3 else 1
        program = program_of(script, lanes)
        found: Tensors = {
            name: into if name == "w" and into is not None else like.new_empty(like.shape) for name in program.changed
        }
        if found:
            flat = [value if value.dim() == 3 else value[None] for value in found.values()]
            vectors = [given[name].expand_as(flat[0]) for name in program.received]
            l2, clip = self._limits(lanes)
            by_batch = None if len(clip) or self.network.hidden else batchwise_of(script, lanes)
            if by_batch and pays(by_batch, *self._largest, self.network.features, self.network.outputs):
                batchwise_round(by_batch, program, self.clients, self.network, vectors, flat)
            else:
                program_round(program, l2, clip, self.clients, self.network, vectors, flat)
        after = script.after[self.counts[0] - 1]
        return found | {name: unchanged(script, v, given) for name, v in after.items() if name not in found}

    @property
    def _largest(self) -> tuple[int, int]:
        """Samples of a batch, and steps of a client."""
        ends = [client.ends for client in self.clients]
        return max(int(np.diff(own).max()) for own in ends), max(map(len, ends)) - 1

    def _limits(self, lanes: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Penalty and clipping norm of each lane; none at all without clipping."""
        return in_lanes(self.local.l2, lanes), in_lanes(self.local.clip, lanes)


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
