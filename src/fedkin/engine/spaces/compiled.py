"""Sample space of softmax regression with compiled rounds (`kernels`); needs Numba (`fedkin[fast]`)."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.engine.spaces import kernels
from fedkin.engine.spaces.plain import Batches
from fedkin.engine.spaces.prepared import Prepared
from fedkin.engine.spaces.recipe import Recipe, after_rounds
from fedkin.engine.spaces.samples import Samples
from fedkin.engine.spaces.script import Script
from fedkin.models import Layered
from fedkin.types import Tensors


class Compiled(Samples):
    """`Samples` with one compiled call per round: for clients of equal size, fixed batches and no clipping.

    The Gram matrix is only stored in panels, with the columns of a batch next to each other.
    """

    name: ClassVar[str] = "compiled"

    def __init__(self, model: Layered, local: Local, ready: Prepared, batches: Batches) -> None:
        super().__init__(model, local, ready, batches)
        assert bool(ready.ones.all()), "compiled steps need clients of equal size"
        panels: list[Tensor] = []
        first: dict[int, int] = {}  # first panel of a batch, by the batch's first sample
        steps = []
        for batch in self.batches:
            assert isinstance(batch.rows, slice), "compiled steps need batches in fixed order"
            start = batch.rows.start
            if start not in first:
                first[start] = sum(one.shape[1] for one in panels)
                panels.append(kernels.panels(ready.gram[..., batch.rows]))
            steps.append((start, batch.rows.stop, batch.reach, first[start]))
        onehot = ready.coded[:, 0].contiguous()
        self.clients = kernels.PackedClients(
            ready.x.numpy(), onehot.numpy(), torch.cat(panels, dim=1).numpy(), np.array(steps, dtype=np.int64)
        )
        self.ready, self.batches = replace(ready, gram=ready.gram.new_empty(0)), []

    def play(self, script: Script, received: Tensors, memory: Tensors, into: Tensor | None) -> Tensors:
        def round(recipe: Recipe, vectors: list[Tensor], out: Tensor) -> None:
            kernels.softmax_round(recipe, self.clients, vectors, out)

        return after_rounds(round, script, len(self.clients.batches), received, memory, into)
