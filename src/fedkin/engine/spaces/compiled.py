"""Sample space of softmax regression with compiled rounds (`kernels`); needs Numba (`fedkin[fast]`)."""

from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.engine.spaces import kernels
from fedkin.engine.spaces.combination import Combination, Scalar, combined
from fedkin.engine.spaces.plain import Batches
from fedkin.engine.spaces.prepared import Prepared
from fedkin.engine.spaces.samples import Samples
from fedkin.engine.spaces.script import Script, trail_of
from fedkin.models import Layered
from fedkin.types import Tensors


class Compiled(Samples):
    """`Samples` with one compiled call per round: for clients of equal size, fixed batches and no clipping.

    The Gram matrix is only stored in panels, with the columns of a batch next to each other.
    """

    name: ClassVar[str] = "compiled"
    on_all_cores: ClassVar[bool] = False

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
        # Each vector that changes has its own steps; the others are combinations of given vectors.
        given = {**{f"memory {name}": value for name, value in memory.items()}, **received}
        like, steps, lowered = received["model"], len(self.clients.batches), {}
        for name, v in script.after[steps - 1].items():
            if trail_of(name) not in script.trail_names:
                lowered[name] = self.unchanged(script, v, given)
                continue
            whole = into if name == "w" and into is not None else None
            whole = torch.empty_like(like, memory_format=torch.contiguous_format) if whole is None else whole
            out = whole if whole.dim() == 3 else whole[None]
            names, recipe = recipe_of(script, name, len(out))
            kernels.softmax_round(recipe, self.clients, [given[n].expand_as(out) for n in names], out)
            lowered[name] = whole
        return lowered

    @staticmethod
    def unchanged(script: Script, v: Combination, given: Tensors) -> Tensor:
        """A vector to which no gradient was added: a combination of received and remembered vectors."""
        terms = script.spread(v).of_something("model").terms
        return combined([(scalar, given[name]) for name, scalar in terms.items()])


@lru_cache(maxsize=4)
def recipe_of(script: Script, vector: str, lanes: int) -> tuple[list[str], kernels.Recipe]:
    """The names of the lasting vectors in the steps of one vector, and the steps as arrays."""
    trail, tracks = trail_of(vector), script.tracks()
    assert tracks is not None, "compiled steps need one gradient per vector and step"
    asked = [{term.name: term.scalar for term in evaluate.at} for evaluate, _ in tracks[trail]]
    names = list(dict.fromkeys(name for at in asked for name in at if name != trail))
    points = [script.points.get(name, {name: 1.0}) for name in names]
    after = [script.spread(vectors[vector]).terms for vectors in script.after]
    received = sorted({name for terms in (*points, *after) for name in terms} - {trail})

    def table(rows: list[Scalar]) -> NDArray[np.float32]:
        """Scalars broadcast to lanes, (…, L)."""
        with np.errstate(over="ignore"):  # a diverging lane is reported by the engine
            return np.stack([np.broadcast_to(np.asarray(row, dtype=np.float32).reshape(-1), lanes) for row in rows])

    def mixtures(terms: list[dict[str, Scalar]]) -> NDArray[np.float32]:
        """Coefficients of received vectors, (…, L, S)."""
        return np.stack([table([own.get(name, 0.0) for name in received]).T for own in terms]).copy()

    return received, kernels.Recipe(
        points=mixtures(points),
        factors=np.stack([table([at.get(name, 0.0) for name in names]) for at in asked]),
        scale=table([at.get(trail, 0.0) for at in asked]),
        rescale=table([update.scale.scalar if update.scale else 1.0 for _, update in tracks[trail]]),
        join=table([update.terms[0].scalar for _, update in tracks[trail]]),
        base=mixtures(after),
        length=table([terms.get(trail, 0.0) for terms in after]),
    )
