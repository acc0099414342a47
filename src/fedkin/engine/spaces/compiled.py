"""Sample space of softmax regression with compiled rounds (`kernels`), which needs Numba (`fedkin[fast]`)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.engine.spaces import kernels
from fedkin.engine.spaces.combination import Scalar
from fedkin.engine.spaces.plain import Dealt
from fedkin.engine.spaces.samples import Prepared, Samples, Script
from fedkin.models import Layered


class Compiled(Samples):
    """As `Samples`, for clients of the same size, batches of a fixed order, no clipping; a round is one call.

    The Gram matrix is kept in panels alone, the columns of a batch side by side.
    """

    on_all_cores = False

    def __init__(self, model: Layered, local: Local, ready: Prepared, dealt: Dealt) -> None:
        super().__init__(model, local, ready, dealt)
        assert bool(ready.ones.all()), "clients of different sizes are not stacked here"
        panels: list[Tensor] = []
        first: dict[int, int] = {}  # panel of a batch, by the batch's first sample
        for batch in self.batches:
            if batch.rows.start not in first:
                first[batch.rows.start] = sum(one.shape[1] for one in panels)
                panels.append(kernels.panels(ready.gram[..., batch.rows]))
        steps = [(b.rows.start, b.rows.stop, b.reach, first[b.rows.start]) for b in self.batches]
        onehot = ready.onehot[:, 0].contiguous()
        self.clients = kernels.Clients(
            ready.x.numpy(), onehot.numpy(), torch.cat(panels, dim=1).numpy(), np.array(steps, dtype=np.int64)
        )
        self.ready, self.batches = replace(ready, gram=ready.gram.new_empty(0)), []

    def play(self, script: Script, got: dict[str, Tensor], into: Tensor | None) -> Tensor:
        """The steps of a script, from what the clients received to parameters."""
        into = torch.empty_like(got["model"], memory_format=torch.contiguous_format) if into is None else into
        out = into if into.dim() == 3 else into[None]
        names, recipe = recipe_of(script, len(out))
        kernels.softmax_round(recipe, self.clients, [got[name].expand_as(out) for name in names], out)
        return into


@lru_cache(maxsize=2)
def recipe_of(script: Script, lanes: int) -> tuple[list[str], kernels.Recipe]:
    """A script whose steps take one gradient each, in arrays; and which of the received vectors it takes."""
    steps = [dict(calls) for calls in script.calls if calls]
    asked = [{part.name: part.scalar for part in step[Samples._evaluate][2]} for step in steps]
    names = list(dict.fromkeys(name for at in asked for name in at if name != "trail"))
    points = [script.point if name == "point" else {name: 1.0} for name in names]
    after = [script._spread(w).terms for w in script.after]
    received = sorted({name for terms in (*points, *after) for name in terms} - {"trail"})

    def table(rows: list[Scalar]) -> NDArray[np.float32]:
        """Scalars as one of every lane, (…, L)."""
        with np.errstate(over="ignore"):  # a lane that diverges does so in silence
            return np.stack([np.broadcast_to(np.asarray(row, dtype=np.float32).reshape(-1), lanes) for row in rows])

    def mixtures(terms: list[dict[str, Scalar]]) -> NDArray[np.float32]:
        """Of received vectors, (…, L, S)."""
        return np.stack([table([own.get(name, 0.0) for name in received]).T for own in terms]).copy()

    def only(call: Any, step: Any, otherwise: float) -> Scalar:
        """That of the only term a call is about, if the step has such a call, and it such a term."""
        terms = step[call][0] if call in step else []
        return terms[0].scalar if terms else otherwise

    return received, kernels.Recipe(
        points=mixtures(points),
        factors=np.stack([table([at.get(name, 0.0) for name in names]) for at in asked]),
        scale=table([at.get("trail", 0.0) for at in asked]),
        rescale=table([only(Samples._scale, step, 1.0) for step in steps]),
        join=table([only(Samples._join, step, 0.0) for step in steps]),
        base=mixtures(after),
        length=table([terms.get("trail", 0.0) for terms in after]),
    )
