"""The algorithms: FedAvg, FedProx, FedKin and FedSGD are one local rule with three knobs.

    w ← w − γ · ( ∇fᵢ( β·w + (1−β)·uᵢ ) + α·(w − w̄) )

β = 1, α = 0 is FedAvg; α > 0 is FedProx; β < 1 is the paper's algorithm, which we call FedKin: clients learn from
their kin. A new algorithm is one small class: hyper-parameters as frozen fields, and whichever hooks it changes.

The hooks are pure: named tensors go in and come out. Tensors have the client before the last axis, (…, clients,
parameters); axes in front of it are lanes, runs that are executed together with hyper-parameters of their own.
The same object drives the engine and a real federation, there with a single client in the stack.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.algorithms.schedules import Schedule
from fedkin.errors import BadInput
from fedkin.graph.similarity import SimilarityGraph
from fedkin.types import Tensors

Hyper = Any  # a float, a Schedule over rounds, or (inside the engine) a tensor with an entry a lane
Vector = Any  # parameters of a stack of clients: anything with + − and × by a hyper-parameter
Who = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The family, with FedAvg's behaviour in every hook that a member does not change.

    step_size  γ > 0, a number or a schedule
    """

    step_size: Hyper = 1e-3
    neutral: ClassVar[Mapping[str, float]] = {}  # values of its knobs at which it is FedAvg, the main knob first
    alpha: ClassVar[Hyper] = 0.0
    beta: ClassVar[Hyper] = 1.0

    def __post_init__(self) -> None:
        check_range(self.step_size, "step_size", above=0)

    def at(self, round: int) -> Self:
        """The algorithm as it is in one round: every schedule replaced by its value there."""
        now = {f.name: v(round) for f in fields(self) if isinstance(v := getattr(self, f.name), Schedule)}
        return replace(self, **now) if now else self

    def work(self, local: Local) -> Local:
        """The local work of a round, given what was asked for."""
        return local

    def start(self, model: Tensor, clients: int) -> Tensors:
        """The server's state before the first round, from the first global model w̄ (…, P)."""
        return {"model": model}

    def remember(self, model: Tensor, clients: int) -> Tensors:
        """What the clients keep to themselves between rounds, at the start: tensors (…, C, …), or nothing."""
        return {}

    def send(self, server: Tensors, graph: SimilarityGraph, who: Who) -> Tensors:
        """What each of the chosen clients receives: tensors (…, len(who), P)."""
        model = server["model"].unsqueeze(-2)
        return {"model": model.expand(*model.shape[:-2], len(who), -1)}

    def step(
        self, w: Vector, got: dict[str, Vector], memory: Tensors, gradient: Callable[[Vector], Vector]
    ) -> tuple[Vector, Tensors]:
        """One local step. `gradient(v)` is ∇fᵢ(v) on the batch at hand, with the L2 penalty, clipped."""
        u = got.get("anchor", got["model"])
        w = w - self.step_size * (gradient(self.beta * w + (1 - self.beta) * u) + self.alpha * (w - got["model"]))
        return w, memory

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> Tensors:
        """What each client sends back after its steps: tensors (…, len(who), P)."""
        return {"model": w}

    def combine(self, server: Tensors, replies: Tensors, who: Who, p: Tensor) -> Tensors:
        """The server's new state. `p` are the weights of those present, summing to 1: w̄ ← Σ pᵢ wᵢ."""
        return {"model": average(p, replies["model"])}


def average(p: Tensor, models: Tensor) -> Tensor:
    """Σ pᵢ wᵢ over the client axis: (m,) and (…, m, P) to (…, P)."""
    return p @ models


def check_range(
    value: Hyper,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
) -> None:
    """Raise unless a hyper-parameter, or both ends of its schedule, lie in the range. Lanes were checked one by one."""
    if isinstance(value, Tensor):
        return
    low = "" if above is None and at_least is None else f"above {above}" if at_least is None else f"at least {at_least}"
    high = "" if at_most is None else f"at most {at_most}"
    for v in value.values if isinstance(value, Schedule) else (value,):
        inside = (
            np.isfinite(v)
            and (above is None or v > above)
            and (at_least is None or v >= at_least)
            and (at_most is None or v <= at_most)
        )
        if not inside:
            raise BadInput(f"{name} = {v:g} is out of range: it must be {' and '.join(filter(None, (low, high)))}")
