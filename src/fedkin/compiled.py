"""Sample space of softmax regression with compiled steps (`fedkin.kernels`), which takes Numba (`fedkin[fast]`)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedkin import kernels
from fedkin.combination import Scalar
from fedkin.local import Local
from fedkin.models import Layered
from fedkin.samples import Prepared, Samples, Script
from fedkin.spaces import Dealt


class Compiled(Samples):
    """As `Samples`, for batches of a fixed order and without clipping; all steps of a script are one call.

    The Gram matrix is kept in panels alone, the columns of a batch side by side.
    """

    def __init__(self, model: Layered, local: Local, ready: Prepared, dealt: Dealt) -> None:
        super().__init__(model, local, ready, dealt)
        clients, samples = ready.x.shape[:2]
        self.onehot = ready.x.new_zeros(clients, model.first.outputs, samples + kernels.WIDTH)
        self.onehot[..., :samples] = ready.onehot[:, 0]
        self.weight = ready.x.new_zeros(clients, samples + kernels.WIDTH)
        panels: list[Tensor] = []
        first: dict[int, int] = {}  # panel of a batch, by the batch's first sample
        for batch in self.batches:
            if batch.rows.start not in first:
                first[batch.rows.start] = sum(one.shape[1] for one in panels)
                panels.append(kernels.panels(ready.gram[..., batch.rows]))
                weight = batch.weight
                self.weight[:, batch.rows] = weight if isinstance(weight, float) else weight[:, 0, 0]
        self.panels = torch.cat(panels, dim=1)
        self.steps = torch.tensor([(b.rows.start, b.rows.stop, b.reach, first[b.rows.start]) for b in self.batches])
        self.ready, self.batches = replace(ready, gram=ready.gram.new_empty(0)), []

    def play(self, script: Script, got: dict[str, Tensor], into: Tensor | None) -> Tensor:
        """The steps of a script, from what the clients received to parameters."""
        self.lift(got)
        self.point, steps = script.point, max(self.counts)
        clients, lanes, outputs, samples = self.shape
        names, scalars = scalars_of(script, lanes)
        rows, x = lanes * (outputs - 1), self.ready.x
        known = x.new_empty(len(names), clients, rows, samples + kernels.WIDTH)
        for name, room in zip(names, known, strict=True):
            weight, bias = (self._less_the_last(t) for t in self._weights_of(name))
            z = room[..., :samples]
            kernels.scores(weight.expand(clients, -1, -1), x, z)
            z.addcmul_(bias, self.ready.ones)
        self.trail, self.tails["trail"] = x.new_zeros(clients, rows, samples), self.tails["model"]
        kernels.softmax_steps(
            kernels.Scalars(*(t[:steps] for t in scalars)),
            *(known, self.steps[:steps], self.panels, self.onehot, self.weight, self.trail),
        )
        return self.lower(script.after[steps - 1], into)

    def _less_the_last(self, rows: Tensor) -> Tensor:
        """Rows (c, L·O, …) less the last of their lane, without that: (c, L·(O−1), …)."""
        rows = rows.view(len(rows), *self.shape[1:3], -1)
        return (rows[:, :, :-1] - rows[:, :, -1:]).flatten(1, 2)

    def _leave(self, out: Tensor, scale: Scalar) -> None:
        assert self.trail is not None
        _, lanes, outputs, _ = self.shape
        by = per_lane(scale, lanes)[:, None].expand(lanes, outputs - 1).flatten().contiguous()
        kernels.add_sums(self.trail, by, self.ready.x, self.layer.weight(out))
        self.layer.bias(out).add_(kernels.restored((by * self.trail.sum(-1)).unsqueeze(-1), lanes))


def per_lane(scalar: Scalar, lanes: int) -> Tensor:
    """A scalar as one of every lane, (L,)."""
    return torch.as_tensor(scalar, dtype=torch.float32).reshape(-1).expand(lanes)


@lru_cache(maxsize=2)
def scalars_of(script: Script, lanes: int) -> tuple[tuple[str, ...], kernels.Scalars]:
    """A script whose steps take one gradient each, as arrays; and the received vectors that it asks for scores of."""
    steps = [dict(calls) for calls in script.calls if calls]
    points = [{part.name: part.scalar for part in step[Samples._evaluate][2]} for step in steps]
    names = tuple(dict.fromkeys(name for at in points for name in at if name != "trail"))

    def table(rows: list[Scalar]) -> Tensor:
        return torch.stack([per_lane(scalar, lanes) for scalar in rows])

    def scalar_of(call: Any, step: Any, otherwise: float) -> Scalar:
        """That of the only term a call is about, if the step has such a call, and it such a term."""
        terms = step[call][0] if call in step else []
        return terms[0].scalar if terms else otherwise

    return names, kernels.Scalars(
        torch.stack([table([at.get(name, 0.0) for name in names]) for at in points]),
        table([at.get("trail", 0.0) for at in points]),
        table([scalar_of(Samples._scale, step, 1.0) for step in steps]),
        table([scalar_of(Samples._join, step, 0.0) for step in steps]),
    )
