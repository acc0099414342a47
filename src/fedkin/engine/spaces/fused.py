"""Parameters as they are, with fewer passes over them: vectors are combinations until they are needed."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedkin.engine.spaces.combination import Combination, Scalar, add, factor, is_one, is_zero
from fedkin.engine.spaces.plain import Plain, Vector, shrink


class Fused(Plain):
    """As `Plain`, but vectors are combinations until they are needed.

    What `step` says about w, u, w̄ and the gradient comes to one scalar each, so that a step of FedAvg is three passes
    over the parameters, w ← w + (−γ·g − γλ·w), and not the ten that its operations would take one after the other.
    """

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Each received vector becomes a basis vector."""
        self.basis = dict(got)
        self.fresh: list[str] = []
        return {name: Combination({name: 1.0}) for name in got}

    def _sum(self, v: Combination) -> Tensor:
        """The parameters that a combination stands for, as a new tensor."""
        (first, scalar), *others = v.terms.items()
        return self._add(self.basis[first] * factor(scalar, self.basis[first].device), dict(others))

    def _add(self, out: Tensor, terms: dict[str, Scalar]) -> Tensor:
        for name, scalar in terms.items():
            if not is_zero(scalar):
                add(out, scalar, self.basis[name])
        return out

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """The gradient of the loss is a fresh basis vector; the penalty is a scalar times the point."""
        batch, local = self.batches[k], self.local

        def gradient(v: Combination) -> Combination:
            (first, scalar), *others = v.terms.items()
            alone = not others and is_one(scalar)
            g = self._loss_gradient(self.basis[first] if alone else self._sum(v), batch)
            name = f"fresh {len(self.fresh)}"
            self.basis[name] = g
            self.fresh.append(name)
            whole = Combination({name: 1.0}) + local.l2 * v
            if local.clip is None:
                return whole
            self.basis[name] = cut = self._sum(whole)
            cut *= shrink(torch.linalg.vector_norm(cut, dim=-1, keepdim=True), local.clip)
            return Combination({name: 1.0})

        return gradient

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """Move w by the difference; it is summed up in the gradient's place, which is free now.

        Adding a small difference to w loses less than multiplying w by 1 − γλ, which single precision hardly tells
        from 1.
        """
        active, (here,) = self.batches[k].active, old.terms
        difference = {**new.terms, here: new.terms.get(here, 0.0) - 1.0}
        move = self.basis[self.fresh[0]]
        move = move.mul_(factor(difference.pop(self.fresh[0]), move.device))
        move = self._add(move, difference)
        if active is not None:
            move = move * active  # those who have taken all their steps stay
        w = self.basis[here]
        self.basis["w"] = w.add_(move) if here == "w" else w + move
        for name in self.fresh:
            del self.basis[name]
        self.fresh.clear()
        return Combination({"w": 1.0})

    def lower(self, w: Vector) -> Tensor:
        """Sum up."""
        return self._sum(w)
