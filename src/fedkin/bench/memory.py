"""Algorithms whose clients keep something between rounds, as hand-written loops beside those of the engine."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkin.algorithms import SCAFFOLD, Algorithm, Ditto, Hyper
from fedkin.bench.loops import SliceLoop
from fedkin.bench.workloads import STEP_SIZE, Workload
from fedkin.data.federation import Federation

PULL = 0.1  # λ of Ditto


@dataclass(frozen=True, kw_only=True)
class GlobalDitto(Ditto):
    """Ditto of which only the global model is measured, as in the loop."""

    pull: Hyper = PULL

    @property
    def is_personal(self) -> bool:
        return False


class ControlVariatesLoop(SliceLoop):
    """SCAFFOLD by hand: the correction c − cᵢ is added to every gradient."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        super().__init__(workload, federation)
        self.drift = [torch.zeros_like(p) for p in self.parameters]
        self.mine = [[torch.zeros_like(p) for p in self.parameters] for _ in self.samples]

    def round(self) -> None:
        self.moved = [torch.zeros_like(p) for p in self.parameters]
        super().round()
        torch._foreach_add_(self.drift, self.moved, alpha=1 / len(self.samples))

    def train(self, client: int) -> None:
        self.correction = torch._foreach_sub(self.drift, self.mine[client])
        super().train(client)
        with torch.no_grad():
            change = torch._foreach_sub(self.start, self.parameters)
            torch._foreach_div_(change, self.local.count(len(self.samples[client][1])) * STEP_SIZE)
            torch._foreach_sub_(change, self.drift)
            torch._foreach_add_(self.mine[client], change)
            torch._foreach_add_(self.moved, change)

    def adjust(self, gradients: list[Tensor]) -> None:
        super().adjust(gradients)
        torch._foreach_add_(gradients, list(self.correction))


class DittoLoop(SliceLoop):
    """Ditto by hand: a second module has the parameters of the client's own model."""

    def __init__(self, workload: Workload, federation: Federation) -> None:
        super().__init__(workload, federation)
        self.own = copy.deepcopy(self.net)
        self.own_parameters: list[Tensor] = list(self.own.parameters())
        self.own_optimizer = torch.optim.SGD(self.own_parameters, lr=STEP_SIZE, weight_decay=self.local.l2 + PULL)
        self.personal = [[p.detach().clone() for p in self.own_parameters] for _ in self.samples]

    def train(self, client: int) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.own_parameters, self.personal[client])
            self.towards = torch._foreach_mul(self.start, -PULL)  # λ (v − w̄), without λ v: the optimiser adds it
        super().train(client)
        with torch.no_grad():
            torch._foreach_copy_(self.personal[client], self.own_parameters)

    def step(self, x: Tensor, y: Tensor) -> None:
        super().step(x, y)
        self.own_optimizer.zero_grad(set_to_none=True)
        cross_entropy(self.own(x), y).backward()  # type: ignore[no-untyped-call]
        torch._foreach_add_([p.grad for p in self.own_parameters if p.grad is not None], list(self.towards))
        self.own_optimizer.step()


MEMORIES: dict[str, tuple[type[Algorithm], Callable[[Workload, Federation], SliceLoop]]] = {
    "SCAFFOLD": (SCAFFOLD, ControlVariatesLoop),
    "Ditto": (GlobalDitto, DittoLoop),
}
