"""Parameters as tensors with fewer passes over memory: vectors are combinations until they are evaluated."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.engine.spaces.combination import Combination, Scalar, add, factor, is_one, is_zero
from fedkin.engine.spaces.plain import Plain, shrink
from fedkin.types import Tensors


class Fused(Plain):
    """`Plain` for steps that are linear combinations of vectors and gradients.

    A step is reduced to one scalar for each of w, u, w̄ and the gradient: a step of FedAvg, w ← w + (−γ·g − γλ·w), is
    three passes over the parameters instead of ten.
    """

    name: ClassVar[str] = "fused"

    def lift(self, received: Tensors, memory: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        self.basis = {**{f"memory {name}": value for name, value in memory.items()}, **received}
        self.fresh: list[str] = []  # names of the gradients of the current step
        return (
            {name: Combination({name: 1.0}) for name in received},
            {name: Combination({f"memory {name}": 1.0}) for name in memory},
        )

    def _sum(self, v: Combination) -> Tensor:
        """The value of a combination, as a new tensor."""
        (first, scalar), *others = v.terms.items()
        return self._add(self.basis[first] * factor(scalar, self.basis[first].device), dict(others))

    def _add(self, out: Tensor, terms: dict[str, Scalar]) -> Tensor:
        for name, scalar in terms.items():
            if not is_zero(scalar):
                add(out, scalar, self.basis[name])
        return out

    def gradient(self, k: int) -> Callable[..., Any]:
        local = self.local

        def gradient(v: Combination, *, weights: Combination | None = None) -> Combination:
            v, batch = v.of_something("model"), self.batches[k]
            if weights is not None:
                batch = self._weighted(batch, k, 0, self.basis[weights.name])
            (first, scalar), *others = v.terms.items()
            alone = not others and is_one(scalar)
            g = self._loss_gradient(self.basis[first] if alone else self._sum(v), batch)
            fresh = self.adopted(g)
            whole = fresh + local.l2 * v  # the gradient of the L2 penalty is λ v
            if local.clip is None:
                return whole
            (name,) = fresh.terms
            self.basis[name] = cut = self._sum(whole)
            cut *= shrink(torch.linalg.vector_norm(cut, dim=-1, keepdim=True), local.clip)
            return fresh

        return gradient

    def value(self, v: Combination) -> Tensor:
        """The value of a combination."""
        return self._sum(v.of_something("model"))

    def adopted(self, value: Tensor) -> Combination:
        """A tensor as a vector, until the end of the step."""
        name = f"fresh {len(self.fresh)}"
        self.basis[name] = value
        self.fresh.append(name)
        return Combination({name: 1.0})

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        # Add the difference of new and old: this is more accurate than a product with 1 − γλ, which is close to 1 in
        # single precision. All differences are computed before any vector changes, as one may contain another.
        active = self.batches[k].active
        changed = {name: v for name, v in new.items() if not _same(v, old[name])}
        used = [name for v in changed.values() for name in v.terms]
        moves = {name: self._move(v, old[name], used) for name, v in changed.items()}
        settled = dict(old)
        for name, move in moves.items():
            if active is not None:
                move = move * active  # clients that have taken all their steps do not change
            here, own = next(iter(old[name].terms), None), f"now {name}"
            if here is None:  # it was zero
                self.basis[own] = move
            else:
                before = self.basis[here]
                self.basis[own] = before.add_(move) if here == own else before + move
            settled[name] = Combination({own: 1.0})
        for name in self.fresh:
            del self.basis[name]
        self.fresh.clear()
        return settled

    def _move(self, new: Combination, old: Combination, used: list[str]) -> Tensor:
        """The difference of new and old, computed in the memory of a gradient that nothing else uses, if possible."""
        difference = {**new.terms, **{here: new.terms.get(here, 0.0) - 1.0 for here in old.terms}}
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
    """Whether a vector is unchanged: after every step each vector is a basis vector, or still zero."""
    return new is old or ((_is_basis(new) or not new.terms) and new.terms.keys() == old.terms.keys())
