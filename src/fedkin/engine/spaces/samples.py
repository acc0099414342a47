"""Sample space, for models that begin with a linear layer (of O outputs).

The layer's weights never leave the span of what a client received and of its own samples, so they are kept as
coefficients on those, and only the layer's scores of the client's samples are carried along, with the help of the Gram
matrix x xᵀ. A step then costs n·B·O products instead of 2·D·B·O.

An algorithm's `step` sees combinations of named vectors here, and what it makes of their scalars is the same at every
client. So its steps are carried out once, on scalars alone, as a `Script`, and every cohort plays it with its samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.data.federation import Clients
from fedkin.engine.spaces.combination import (
    Combination,
    Scalar,
    add,
    alike,
    combined,
    factor,
    is_moderate,
    is_zero,
    squeezed,
)
from fedkin.engine.spaces.plain import Dealt, Vector, is_run, shrink
from fedkin.models import Layered, Model

# Below so many samples a client, products client by client are too small to be worth it.
FEW = 64


@dataclass(frozen=True)
class Prepared:
    """A cohort's samples made ready for `Samples`, the same in every round.

    x (c, n, D), ones (c, 1, n), onehot (c, 1, K, n), gram (c, n, n) = x xᵀ + 1. Clients with fewer than n samples are
    filled up with rows of zeros, also in `ones`, so that the filling counts nowhere.
    """

    x: Tensor
    ones: Tensor
    onehot: Tensor
    gram: Tensor


def prepare(clients: Clients, cohort: NDArray[np.int64], classes: int) -> Prepared:
    """Gather, fill up, and multiply out."""
    sizes = clients.sizes[cohort]
    n = int(sizes.max())
    y = torch.zeros(len(cohort), n, dtype=torch.int64, device=clients.x.device)
    if (sizes == n).all() and is_run(cohort):
        rows = slice(int(clients.offsets[cohort[0]]), int(clients.offsets[cohort[-1] + 1]))
        x = clients.x[rows].view(len(cohort), n, -1)
        y = clients.y[rows].view(len(cohort), n)
        ones = x.new_ones(len(cohort), 1, n)
    else:
        x = clients.x.new_zeros(len(cohort), n, clients.x.shape[1])
        ones = x.new_zeros(len(cohort), 1, n)
        for j, i in enumerate(cohort):
            x[j, : sizes[j]], y[j, : sizes[j]], ones[j, 0, : sizes[j]] = (
                clients.x[clients.rows(i)],
                clients.y[clients.rows(i)],
                1,
            )
    onehot = torch.nn.functional.one_hot(y, classes).mT.to(x) * ones
    return Prepared(x, ones, onehot.contiguous()[:, None], torch.baddbmm(ones.mT @ ones, x, x.mT))


# -- what does not depend on samples -----------------------------------------------------------------------------------


class Part(NamedTuple):
    """A term of a combination: its scalar for arrays (c, L, O, n), and the same for vectors (c, L, P)."""

    name: str
    scalar: Scalar
    on_vectors: Scalar


def parts_of(v: Combination, device: torch.device) -> list[Part]:
    """A combination's terms, ready to be multiplied with."""
    scalars = {name: factor(scalar, device) for name, scalar in v.terms.items()}
    return [Part(name, scalar, squeezed(scalar)) for name, scalar in scalars.items()]


class Symbolic(ABC):
    """The steps as far as they concern scalars.

    After any number of steps a client's vector is Σ cⱼ·vⱼ + s·A, of the received vectors vⱼ (`model`, `anchor`, …) and
    of the trail A that the client has left, the sum of its gradients. A gradient is a fresh basis vector until the step
    is settled, then it joins the trail.

    Scores under a received vector take a product with all samples, so only one is made where one is enough: FedKin
    asks for gradients at β·w + (1−β)·u, in which w̄ and u always come as β·w̄ + (1−β)·u. The first such mixture
    becomes a basis vector of its own, the `point`.
    """

    local: Local
    device: torch.device

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Each received vector becomes a basis vector."""
        self.names = frozenset(got)
        self.point: dict[str, Scalar] = {}
        self.fresh_names: list[str] = []
        self.begun = False  # whether there is a trail
        return {name: Combination({name: 1.0}) for name in got}

    def gradient(self, k: int) -> Callable[[Combination], Combination]:
        """λ·v plus the gradient of the loss on the batch, which is a fresh basis vector."""

        def gradient(v: Combination) -> Combination:
            v = self._at_point(v)
            name = f"fresh {len(self.fresh_names)}"
            self.fresh_names.append(name)
            self._evaluate(k, name, parts_of(v, self.device))
            return self._cut(Combination({name: 1.0}) + self.local.l2 * v)

        return gradient

    def settle(self, k: int, new: Combination, old: Combination) -> Combination:
        """Join the fresh gradients to the trail."""
        terms = {name: scalar for name, scalar in new.terms.items() if name not in self.fresh_names}
        if not self.begun:
            self.begun, terms["trail"] = True, 1.0
        scale = terms.setdefault("trail", 0.0)
        if not is_moderate(scale):
            # Dividing by it would lose digits: multiply it in.
            self._scale(parts_of(Combination({"trail": scale}), self.device))
            terms["trail"] = scale = 1.0
        joining = {name: new.terms[name] / scale for name in self.fresh_names if name in new.terms}
        self._join(parts_of(Combination(joining), self.device))
        self.fresh_names.clear()
        return Combination(terms)

    def _at_point(self, v: Combination) -> Combination:
        """The same vector, with a mixture of received vectors as the point, if it is the point's mixture."""
        mixture = {name: scalar for name, scalar in v.terms.items() if name in self.names}
        if len(mixture) < 2:
            return v
        self.point = self.point or mixture
        if not alike(mixture, self.point):
            return v
        others = {name: scalar for name, scalar in v.terms.items() if name not in mixture}
        return Combination({"point": 1.0}) + Combination(others)

    def _spread(self, v: Combination) -> Combination:
        """The same vector without the point."""
        others = Combination({name: scalar for name, scalar in v.terms.items() if name != "point"})
        return others + v.terms["point"] * Combination(self.point) if "point" in v.terms else others

    @abstractmethod
    def _evaluate(self, k: int, name: str, at: list[Part]) -> None:
        """Compute the gradient of the loss on the k-th batch, and call it by this name."""

    def _cut(self, g: Combination) -> Combination:
        """A gradient, cut to norm G where it is longer."""
        return g

    @abstractmethod
    def _scale(self, by: list[Part]) -> None:
        """Multiply the trail."""

    @abstractmethod
    def _join(self, joining: list[Part]) -> None:
        """Add fresh gradients to the trail."""


class Script(Symbolic):
    """The steps of an algorithm, written down.

    calls  what has to be computed in each step, as methods of `Samples` with their arguments
    after  where the client is after each step
    """

    def __init__(self, algorithm: object, local: Local, device: torch.device) -> None:
        assert local.clip is None, "a norm depends on samples, so what is cut by it cannot be written down"
        self.algorithm, self.local, self.device = algorithm, local, device
        self.calls: list[list[tuple[Callable[..., None], tuple[Any, ...]]]] = [[]]
        self.after: list[Combination] = []

    def fits(self, algorithm: object, local: Local, names: Collection[str], steps: int) -> bool:
        """Whether it says what the same algorithm does in so many steps with vectors of these names."""
        same = self.algorithm is algorithm and self.local is local
        return same and self.names == set(names) and len(self.after) >= steps

    @property
    def gradients(self) -> int:
        """How many a step takes, at the most."""
        return max([method for method, _ in calls].count(Samples._evaluate) for calls in self.calls)

    def _evaluate(self, k: int, name: str, at: list[Part]) -> None:
        self.calls[-1].append((Samples._evaluate, (k, name, at)))

    def _scale(self, by: list[Part]) -> None:
        self.calls[-1].append((Samples._scale, (by,)))

    def _join(self, joining: list[Part]) -> None:
        self.calls[-1].append((Samples._join, (joining,)))

    def settle(self, k: int, new: Combination, old: Combination) -> Combination:
        """The step is complete."""
        w = super().settle(k, new, old)
        self.after.append(w)
        self.calls.append([])
        return w

    def lower(self, w: Vector) -> Tensor:
        """There are no parameters here."""
        return torch.empty(0)


# -- with samples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A batch of every client of a cohort. It lies in the same rows of all, but may be shorter in some.

    weight  of its samples in the mean loss, 0 for the filling: a number, or (c, 1, 1, B)
    onehot  their labels, (c, 1, K, B)
    reach   the trail is zero from this sample on
    gram    (c, reach, B): the batch's columns of the Gram matrix
    """

    rows: Any
    weight: Scalar
    onehot: Tensor
    reach: int
    gram: Tensor


def batches_of(ready: Prepared, dealt: Dealt) -> list[Batch]:
    """The batches of a cohort's round; those that come again, as in epochs of a fixed order, are the same objects."""
    made: dict[tuple[int, int, int], Batch] = {}
    batches, reach, samples = [], 0, ready.x.shape[1]
    for own in zip(*dealt, strict=True):
        longest, counts = max(own, key=len), [len(b) for b in own]
        stop, run = int(longest[-1]) + 1, is_run(longest)
        key = (int(longest[0]), stop, reach)
        if run and key in made:
            batches.append(made[key])
        else:
            rows = slice(int(longest[0]), stop) if run else torch.as_tensor(longest, device=ready.x.device)
            weight: Scalar = 1 / counts[0]
            if min(counts) < max(counts):
                weight = 1 / ready.x.new_tensor(counts).view(-1, 1, 1, 1) * ready.ones[:, None][..., rows]
            # In a shuffled order the columns are a copy, too large to be made for all batches beforehand.
            gram = ready.gram[:, rows, :reach].mT if run else ready.gram
            batches.append(Batch(rows, weight, ready.onehot[..., rows], reach, gram))
            if run:
                made[key] = batches[-1]
        reach = max(reach, stop) if run else samples
    return batches


@dataclass(frozen=True)
class Fresh:
    """The gradient on a batch as a basis vector: r (c, L, O, B) on the batch's rows, and the tail's part (c, L, T)."""

    r: Tensor
    batch: Batch
    tail: Tensor


class Samples(Symbolic):
    """Parameters as combinations of what was received and of the client's own samples.

    The gradient of the first layer on a batch is r x, with r the gradient with respect to its scores, so the trail is
    A x, where A (O, n) sums up the r's. Kept are A and the scores of all samples under each received vector; those of
    a batch under the trail are A·gram, of the batch's columns. The tail, all parameters after the first layer, is kept
    as it is.

    Arrays are (c, L, O, n): clients, lanes, outputs of the layer, samples.
    """

    on_all_cores: ClassVar[bool] = True  # whether a single cohort can use more than one

    def __init__(self, model: Layered, local: Local, ready: Prepared, dealt: Dealt) -> None:
        self.model, self.layer, self.local, self.ready = model, model.first, local, ready
        self.device = ready.x.device
        self.counts = [len(own) for own in dealt]
        self.batches = batches_of(ready, dealt)

    def play(self, script: Script, got: dict[str, Tensor], into: Tensor | None) -> Tensor:
        """The steps of a script, from what the clients received to parameters."""
        self.lift(got)
        self.point, steps = script.point, max(self.counts)
        for calls in script.calls[:steps]:
            for method, arguments in calls:
                method(self, *arguments)
        return self.lower(script.after[steps - 1], into)

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Scores under what was received are computed when first asked for."""
        self.stacked = got["model"].dim() == 3
        # (L, c, P) to (c, L, P)
        self.received = {name: (v if self.stacked else v[None]).transpose(0, 1) for name, v in got.items()}
        clients, lanes, size = self.received["model"].shape
        self.shape = (clients, lanes, self.layer.outputs, self.ready.x.shape[1])
        self.tails = {name: v[..., self.layer.end :] for name, v in self.received.items()}
        self.has_tail = size > self.layer.end
        self.scores: dict[str, Tensor] = {}
        self.views: dict[tuple[str, int], Tensor] = {}  # parts of arrays that the steps ask for again and again
        self.lasting = {"point", *got}  # basis vectors that stay the same over the steps
        self.trail: Tensor | None = None
        self.ahead: Tensor | None = None  # the scores of the batch at hand under the trail
        self.fresh: dict[str, Fresh] = {}
        self.products: dict[tuple[str, str], Tensor] = {}  # inner products of basis vectors
        return super().lift(got)

    def _weights_of(self, name: str) -> tuple[Tensor, Tensor]:
        """Weights (c, L·O, D) and biases (c, L·O, 1) of a received vector or the point; c is 1 if all have the same."""
        mixture = self.point if name == "point" else {name: 1.0}
        vectors = [(scalar, self.received[part]) for part, scalar in mixture.items()]
        if all(v.stride(0) == 0 for _, v in vectors):
            vectors = [(scalar, v[:1]) for scalar, v in vectors]
        weights = [(scalar, self.layer.weight(v)) for scalar, v in vectors]
        into = None if len(weights) == 1 else self.ready.x.new_empty(weights[0][1].shape)
        biases = [(scalar, self.layer.bias(v)) for scalar, v in vectors]
        # lanes and outputs in one axis: a product with more rows is faster
        return combined(weights, into).flatten(1, 2), combined(biases).flatten(1, 2)

    def _scores_of(self, name: str) -> Tensor:
        """Of all samples under a received vector or the point, (c, L, O, n)."""
        if name not in self.scores:
            (weight, bias), x, ones = self._weights_of(name), self.ready.x, self.ready.ones
            if len(weight) == 1 and len(x[0]) < FEW:  # one product with all clients' samples
                z = (weight[0] @ x.flatten(0, 1).mT).view(-1, *x.shape[:2]).transpose(0, 1)
                z = torch.addcmul(z, bias, ones)
            else:
                z = torch.baddbmm(bias * ones, weight.expand(len(x), -1, -1), x.mT)
            self.scores[name] = z.view(self.shape)
        return self.scores[name]

    def _on(self, batch: Batch, name: str) -> Tensor:
        """A batch's part of the scores under a lasting vector, or of the trail itself, (c, L, O, B)."""
        key = (name, id(batch))
        if key in self.views:
            return self.views[key]
        whole = self.trail if name == "trail" else self._scores_of(name)
        assert whole is not None
        part = whole[..., batch.rows]
        if isinstance(batch.rows, slice):  # else it is a copy
            self.views[key] = part
        return part

    def _left(self, reach: int) -> Tensor:
        """The trail as the left factor of a product, (c, L·O, reach)."""
        key = ("left", reach)
        if key not in self.views:
            assert self.trail is not None
            self.views[key] = self.trail[..., :reach].flatten(1, 2)
        return self.views[key]

    def _under_trail(self, batch: Batch) -> Tensor:
        """The scores of a batch under the trail, A·gram, (c, L, O, B)."""
        if self.ahead is None:
            gram = batch.gram if isinstance(batch.rows, slice) else batch.gram[:, batch.rows].mT[:, : batch.reach]
            self.ahead = torch.bmm(self._left(batch.reach), gram).view(*self.shape[:3], -1)
        return self.ahead

    def _scores(self, at: list[Part], batch: Batch) -> Tensor:
        """Of a batch, (c, L, O, B)."""
        if len(at) == 2 and at[1].name == "trail" and self.local.clip is None and isinstance(batch.rows, slice):
            (name, scalar, _), (_, scale, _) = at
            if isinstance(scalar, float) and isinstance(scale, float):
                known, left = self._on(batch, name), self._left(batch.reach)
                return torch.baddbmm(known.flatten(1, 2), left, batch.gram, beta=scalar, alpha=scale).view(known.shape)
        return combined(
            [(scalar, self._under_trail(batch) if name == "trail" else self._on(batch, name)) for name, scalar, _ in at]
        )

    def _tail_of(self, name: str) -> Tensor:
        """The tail of a basis vector, (c, L, T)."""
        if name in self.fresh:
            return self.fresh[name].tail
        if name == "point" and name not in self.tails:
            mixture = [(squeezed(scalar), self.tails[part]) for part, scalar in self.point.items()]
            self.tails["point"] = combined(mixture)
        return self.tails[name]

    def _tail(self, at: list[Part]) -> Tensor:
        if not self.has_tail:
            return self.tails["model"]
        return combined([(scalar, self._tail_of(name)) for name, _, scalar in at])

    def _evaluate(self, k: int, name: str, at: list[Part]) -> None:
        batch = self.batches[k]
        z = self._scores(at, batch)
        r, tail = self.model.backward(z, self._tail(at), batch.onehot, batch.weight)
        self.fresh[name] = Fresh(r, batch, tail)

    def _scale(self, by: list[Part]) -> None:
        ((_, scalar, on_vectors),) = by
        assert self.trail is not None
        self._forget(self._square(by))
        self.trail *= scalar
        self.tails["trail"] *= on_vectors

    def _join(self, joining: list[Part]) -> None:
        if self.trail is None:
            self.trail = self.ready.x.new_zeros(self.shape)
            self.products["trail", "trail"] = self.trail.new_zeros(*self.shape[:2], 1, 1)
            self.tails["trail"] = torch.zeros_like(self.tails["model"], memory_format=torch.contiguous_format)
        square = self._square([Part("trail", 1.0, 1.0), *joining])
        for name, scalar, on_vectors in joining:
            fresh = self.fresh[name]
            if isinstance(fresh.batch.rows, slice):
                add(self._on(fresh.batch, "trail"), scalar, fresh.r)
            else:
                self.trail.index_add_(-1, fresh.batch.rows, fresh.r * scalar)
            if self.has_tail:
                add(self.tails["trail"], on_vectors, fresh.tail)
        self._forget(square)
        self.fresh.clear()

    def lower(self, w: Combination, into: Tensor | None = None) -> Tensor:
        """Σ cⱼ·vⱼ + s·A x, with the biases moved by the sums of A; then the tail. It is written to `into`, if given."""
        terms = self._spread(w).terms
        scale = terms.pop("trail", 0.0)
        if into is None:
            clients, lanes, size = self.received["model"].shape
            into = self.ready.x.new_empty(*([lanes] if self.stacked else []), clients, size)
        out = (into if self.stacked else into[None]).transpose(0, 1)
        combined([(squeezed(scalar), self.received[name]) for name, scalar in terms.items()], out)
        if self.trail is not None:
            self._leave(out, scale)
            if self.has_tail:
                add(out[..., self.layer.end :], squeezed(scale), self.tails["trail"])
        self._release()
        return into

    def _leave(self, out: Tensor, scale: Scalar) -> None:
        """Add s·A x to the first layer of parameters (c, L, P), and the sums of s·A to its biases."""
        assert self.trail is not None
        weight = self.layer.weight(out)
        add(weight, scale, torch.bmm(self.trail.flatten(1, 2), self.ready.x).view(weight.shape))
        add(self.layer.bias(out), scale, self.trail @ self.ready.ones[:, None].mT)

    def _release(self) -> None:
        """Let go of the round's arrays: the space is kept for the next round, and other cohorts need the memory."""
        self.received, self.tails, self.scores, self.views, self.products = {}, {}, {}, {}, {}
        self.trail = None

    # -- clipping ------------------------------------------------------------------------------------------------------

    def _cut(self, g: Combination) -> Combination:
        square = self._square(parts_of(g, self.device))
        return g if square is None else shrink(square.sqrt(), self.local.clip) * g

    def _square(self, g: list[Part]) -> Tensor | None:
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

    def _inner(self, one: str, other: str) -> Tensor:
        """The inner product of two basis vectors at each client and lane, (c, L, 1, 1); computed once."""
        one, other = sorted((one, other), key=self._rank)
        if (one, other) not in self.products:
            self.products[one, other] = self._multiplied(one, other)
        return self.products[one, other]

    def _rank(self, name: str) -> tuple[bool, bool, bool, str]:
        """First the fresh, then the trail, the point, the received."""
        return name not in self.fresh, name != "trail", name != "point", name

    def _multiplied(self, one: str, other: str) -> Tensor:
        if one == "point":
            parts = [factor(scalar, self.device) * self._inner(name, other) for name, scalar in self.point.items()]
            return torch.stack(parts).sum(0)
        if one in self.received:
            return (self.received[one] * self.received[other]).sum(-1)[..., None, None]
        if one == "trail":
            assert self.trail is not None
            product = self.trail * self._scores_of(other)
        elif other in self.fresh:
            a, b = self.fresh[one], self.fresh[other]
            product = a.r * (b.r @ self.ready.gram[:, b.batch.rows][..., a.batch.rows][:, None])
        else:
            a = self.fresh[one]
            product = a.r * (self._under_trail(a.batch) if other == "trail" else self._on(a.batch, other))
        tails = (self._tail_of(one) * self._tail_of(other)).sum(-1)[..., None, None]
        return product.sum((-2, -1), keepdim=True) + tails

    def _forget(self, square: Tensor | None) -> None:
        """Drop what was computed of the trail as it was; ‖trail‖² is known from before, for anew it takes a product."""
        self.ahead = None
        if square is not None:
            self.products = {pair: value for pair, value in self.products.items() if self.lasting.issuperset(pair)}
            self.products["trail", "trail"] = square


def cost(local: Local, samples: int, features: int, in_samples: bool) -> float:
    """The products of a client's round for each output of the first layer.

    With E passes over n samples: 2·E·n·D plainly; in sample space E·n² for the steps and 2·n·D to enter and to leave.
    """
    passes = 1 if local.steps else local.epochs
    return samples * (passes * samples + 2 * features if in_samples else 2 * passes * features)


def samples_pay(local: Local, samples: int, model: Model, kept: bool) -> bool:
    """Whether a client's round takes fewer products in `Samples` than in `Plain`.

    The Gram matrix counts n²·D, for all outputs together, unless it is kept from round to round.
    """
    if not isinstance(model, Layered):
        return False
    features = model.first.inputs
    gram = 0.0 if kept else samples**2 * features / model.first.outputs
    return cost(local, samples, features, in_samples=True) + gram < cost(local, samples, features, in_samples=False)
