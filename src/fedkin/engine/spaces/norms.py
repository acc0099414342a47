"""Norms of gradients in sample space, for clipping: quadratic forms in inner products of basis vectors."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedkin.engine.spaces.combination import Combination, factor, is_zero
from fedkin.engine.spaces.plain import shrink
from fedkin.engine.spaces.script import Term, terms_of

if TYPE_CHECKING:
    from fedkin.engine.spaces.samples import Samples


class Norms:
    """The part of `Samples` that clips gradients."""

    def _whole(self: "Samples", name: str, v: Combination) -> Combination:  # type: ignore[misc]
        """The gradient at v with penalty, clipped."""
        g = Combination({name: 1.0}) + self.local.l2 * v
        square, clip = self._square(terms_of(g, self.device)), self.local.clip
        return g if square is None or clip is None else shrink(square.sqrt(), clip) * g

    def _square(self: "Samples", g: tuple[Term, ...]) -> Tensor | None:  # type: ignore[misc]
        """‖g‖² at each client and lane, (c, L, 1, 1), from inner products of basis vectors; None without clipping."""
        if self.local.clip is None:
            return None
        terms = [(name, scalar) for name, scalar, _ in g if not is_zero(scalar)]
        products = [
            (1 if one == other else 2) * a * b * self._inner(one, other)
            for i, (one, a) in enumerate(terms)
            for other, b in terms[i:]
        ]
        square: Tensor = sum(products[1:], products[0])
        return square.clamp(min=0)

    def _inner(self: "Samples", one: str, other: str) -> Tensor:  # type: ignore[misc]
        """The inner product of two basis vectors at each client and lane, (c, L, 1, 1); computed once."""
        one, other = sorted((one, other), key=self._rank)
        if (one, other) not in self.products:
            self.products[one, other] = self._multiplied(one, other)
        return self.products[one, other]

    def _rank(self: "Samples", name: str) -> tuple[bool, bool, bool, str]:  # type: ignore[misc]
        """Sort key: gradients of this step, then trails, points, lasting vectors."""
        return name not in self.fresh, name not in self.trails, name not in self.points, name

    def _multiplied(self: "Samples", one: str, other: str) -> Tensor:  # type: ignore[misc]
        if one in self.points:
            parts = [factor(s, self.device) * self._inner(name, other) for name, s in self.points[one].items()]
            return torch.stack(parts).sum(0)
        if one in self.lasting:
            return (self.lasting[one] * self.lasting[other]).sum(-1)[..., None, None]
        if one in self.trails:
            scores = (
                self._scores_of(other) if other not in self.trails else self.trails[other] @ self.ready.gram[:, None]
            )
            product = self.trails[one] * scores
        else:
            a = self.fresh[one]
            product = a.r * self._under(other, a.batch)
        tails = (self._tail_of(one) * self._tail_of(other)).sum(-1)[..., None, None]
        return product.sum((-2, -1), keepdim=True) + tails

    def _forget(self: "Samples", squares: dict[str, Tensor | None]) -> None:  # type: ignore[misc]
        """Drop inner products with this step's gradients and with trails before the update.

        ‖·‖² of the updated trails, `squares`, was computed from inner products before the update.
        """
        self.ahead.clear()
        if self.local.clip is not None:
            gone = {*squares, *self.fresh}
            self.products = {pair: value for pair, value in self.products.items() if gone.isdisjoint(pair)}
            self.products |= {(trail, trail): square for trail, square in squares.items() if square is not None}
