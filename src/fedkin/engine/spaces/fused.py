"""Parameters as they are, with fewer passes over them: vectors are combinations until they are needed."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.engine.spaces.combination import Combination, Scalar, add, factor, is_one, is_zero
from fedkin.engine.spaces.plain import Plain, shrink
from fedkin.types import Tensors


class Fused(Plain):
    """As `Plain`, for steps that are linear combinations of vectors and gradients.

    What `step` says about w, u, w̄ and the gradient comes to one scalar each, so that a step of FedAvg is three passes
    over the parameters, w ← w + (−γ·g − γλ·w), and not the ten that its operations would take one after the other.
    """

    name: ClassVar[str] = "fused"

    def lift(self, received: Tensors, memory: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        self.basis = {**{f"memory {name}": value for name, value in memory.items()}, **received}
        self.fresh: list[str] = []  # the gradients of the step at hand
        return (
            {name: Combination({name: 1.0}) for name in received},
            {name: Combination({f"memory {name}": 1.0}) for name in memory},
        )

    def _sum(self, v: Combination) -> Tensor:
        """The parameters that a combination stands for, as a new tensor."""
        (first, scalar), *others = v.terms.items()
        return self._add(self.basis[first] * factor(scalar, self.basis[first].device), dict(others))

    def _add(self, out: Tensor, terms: dict[str, Scalar]) -> Tensor:
        for name, scalar in terms.items():
            if not is_zero(scalar):
                add(out, scalar, self.basis[name])
        return out

    def gradient(self, k: int) -> Callable[[Any], Any]:
        batch, local = self.batches[k], self.local

        def gradient(v: Combination) -> Combination:
            v = v.of_something("model")
            (first, scalar), *others = v.terms.items()
            alone = not others and is_one(scalar)
            g = self._loss_gradient(self.basis[first] if alone else self._sum(v), batch)
            name = f"fresh {len(self.fresh)}"
            self.basis[name] = g
            self.fresh.append(name)
            whole = Combination({name: 1.0}) + local.l2 * v  # the penalty is a scalar times the point
            if local.clip is None:
                return whole
            self.basis[name] = cut = self._sum(whole)
            cut *= shrink(torch.linalg.vector_norm(cut, dim=-1, keepdim=True), local.clip)
            return Combination({name: 1.0})

        return gradient

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """Move each vector by the difference: that loses less than multiplying it by 1 − γλ, which single precision
        hardly tells from 1.

        All differences are summed up before any vector moves, as one may contain another.
        """
        active = self.batches[k].active
        changed = {name: v for name, v in new.items() if not _same(v, old[name])}
        used = [name for v in changed.values() for name in v.terms]
        moves = {name: self._move(v, old[name], used) for name, v in changed.items()}
        settled = dict(old)
        for name, move in moves.items():
            if active is not None:
                move = move * active  # clients that have taken all their steps stay
            (here,), own = old[name].terms, f"now {name}"
            before = self.basis[here]
            self.basis[own] = before.add_(move) if here == own else before + move
            settled[name] = Combination({own: 1.0})
        for name in self.fresh:
            del self.basis[name]
        self.fresh.clear()
        return settled

    def _move(self, new: Combination, old: Combination, used: list[str]) -> Tensor:
        """The difference, summed up in the place of a gradient that nothing else needs, if there is one."""
        (here,) = old.terms
        difference = {**new.terms, here: new.terms.get(here, 0.0) - 1.0}
        free = next((name for name in self.fresh if name in difference and used.count(name) == 1), None)
        if free is None:
            return self._sum(Combination(difference))
        move = self.basis[free]
        return self._add(move.mul_(factor(difference.pop(free), move.device)), difference)

    def lower(self, vectors: dict[str, Any], into: Tensor | None = None) -> Tensors:
        return {name: self.basis[next(iter(v.terms))] if _is_basis(v) else self._sum(v) for name, v in vectors.items()}


def _is_basis(v: Combination) -> bool:
    return len(v.terms) == 1 and all(is_one(scalar) for scalar in v.terms.values())


def _same(new: Combination, old: Combination) -> bool:
    """Whether nothing has changed: after every step each vector is a basis vector."""
    return new is old or (_is_basis(new) and new.terms.keys() == old.terms.keys())
