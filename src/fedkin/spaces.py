"""Where local work happens: the space in which a cohort's parameters live while its clients take their steps.

`Plain` holds parameters as they are, `Fused` saves passes over them. `Samples` is for models that begin with a linear
layer (of O outputs): its weights never leave the span of what the client received and of its own samples, so they are
kept as coefficients on those, and only the layer's scores of the client's samples are carried along, with the help of
the Gram matrix x xᵀ. A step then costs n·B·O products instead of 2·D·B·O. An algorithm's `step` runs unchanged in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.federation import Clients
from fedkin.local import Local
from fedkin.models import Layered, Model

Scalar = Any  # a float, or a tensor with an entry a lane, (L, 1, 1)
Vector = Any
Dealt = list[list[NDArray[np.int64]]]  # the batches of each client of a cohort


class Space(Protocol):
    """What the engine asks of a space. Tensors are (…, clients of the cohort, P).

    counts  how many steps each client takes
    """

    counts: list[int]

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Bring what the clients received into the space."""

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """∇fᵢ on every client's k-th batch: of the mean loss plus λ/2 ‖w‖², cut to norm G where it is longer."""

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """What the k-th step comes to: the old vector for clients that have taken all their steps."""

    def lower(self, w: Vector) -> Tensor:
        """Back to parameters."""


# -- plain -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One batch of each client of a cohort: x (c, B, D), y (c, B), weight (c, B).

    Clients with fewer samples in it are filled up with samples of weight 0; `active` (c, 1) says who has a batch at
    all, None if all have.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    active: Tensor | None = None


class Plain:
    """Parameters as they are: works for every model and algorithm."""

    def __init__(self, model: Model, local: Local, clients: Clients, cohort: NDArray[np.int64], dealt: Dealt) -> None:
        self.model, self.local = model, local
        self.counts = [len(own) for own in dealt]
        self.batches = [stack(clients, cohort, [own[k] if k < len(own) else own[0][:0] for own in dealt])
                        for k in range(max(map(len, dealt)))]  # fmt: skip

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Nothing to do."""
        return got

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """Loss, penalty, clipping."""
        batch, local = self.batches[k], self.local

        def gradient(w: Tensor) -> Tensor:
            g = self._loss_gradient(w, batch)
            if not is_zero(local.l2):
                g += local.l2 * w
            if local.clip is not None:
                g *= shrink(torch.linalg.vector_norm(g, dim=-1, keepdim=True), local.clip)
            return g

        return gradient

    def _loss_gradient(self, w: Tensor, batch: Batch) -> Tensor:
        if w.dim() == 3:  # lanes: the samples stay in the cache while one lane after the other uses them
            return torch.stack([self.model.gradient(lane, batch.x, batch.y, batch.weight) for lane in w])
        return self.model.gradient(w, batch.x, batch.y, batch.weight)

    def settle(self, k: int, new: Vector, old: Vector) -> Vector:
        """Only active clients have moved."""
        active = self.batches[k].active
        return new if active is None else torch.where(active, new, old)

    def lower(self, w: Vector) -> Tensor:
        """Nothing to do."""
        return torch.as_tensor(w)


def stack(clients: Clients, cohort: NDArray[np.int64], batches: Sequence[NDArray[np.int64]]) -> Batch:
    """One batch of each client, given as positions among its samples; no copy if it is one client's run of rows."""
    device = clients.x.device
    counts = np.array([len(b) for b in batches])
    width = int(counts.max())
    weight = clients.x.new_tensor((np.arange(width) < counts[:, None]) / np.maximum(counts, 1)[:, None])
    active = torch.as_tensor(counts > 0, device=device).unsqueeze(-1) if counts.min() == 0 else None
    if len(cohort) == 1 and is_run(batches[0]):
        rows = slice(
            int(clients.offsets[cohort[0]] + batches[0][0]), int(clients.offsets[cohort[0]] + batches[0][-1]) + 1
        )
        return Batch(clients.x[None, rows], clients.y[None, rows], weight, active)
    index = np.zeros((len(cohort), width), dtype=np.int64)
    for j, (i, b) in enumerate(zip(cohort, batches, strict=True)):
        index[j, : len(b)] = clients.offsets[i] + b
    chosen = torch.as_tensor(index, device=device)
    return Batch(clients.x[chosen], clients.y[chosen], weight, active)


def is_run(positions: NDArray[np.int64]) -> bool:
    """Whether the positions follow each other without a gap."""
    return bool((np.diff(positions) == 1).all())


def is_zero(scalar: Scalar) -> bool:
    """Whether a term can be left out."""
    return not isinstance(scalar, Tensor) and scalar == 0


def shrink(norm: Tensor, clip: Scalar) -> Tensor:
    """The factor that cuts a vector of this norm to at most `clip`."""
    return torch.clamp(clip / norm, max=1.0)


# Below so many samples a client, products client by client are too small to be worth it.
FEW = 64

# -- samples -----------------------------------------------------------------------------------------------------------


class Combination:
    """A linear combination Σ cⱼ·bⱼ of named basis vectors: + and − of combinations, × by a scalar."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[str, Scalar]) -> None:
        self.terms = terms

    def __add__(self, other: "Combination") -> "Combination":
        terms = dict(self.terms)
        for name, scalar in other.terms.items():
            terms[name] = terms[name] + scalar if name in terms else scalar
        return Combination(terms)

    def __mul__(self, scalar: Scalar) -> "Combination":
        if is_zero(scalar):
            return Combination({})
        return Combination({name: scalar * own for name, own in self.terms.items()})

    __rmul__ = __mul__

    def __sub__(self, other: "Combination") -> "Combination":
        return self + -1.0 * other


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
        return self._add(self.basis[first] * scalar, dict(others))

    def _add(self, out: Tensor, terms: dict[str, Scalar]) -> Tensor:
        for name, scalar in terms.items():
            if isinstance(scalar, Tensor):
                out.addcmul_(self.basis[name], scalar)
            elif scalar != 0:
                out.add_(self.basis[name], alpha=scalar)
        return out

    def gradient(self, k: int) -> Callable[[Vector], Vector]:
        """The gradient of the loss is a fresh basis vector; the penalty is a scalar times the point."""
        batch, local = self.batches[k], self.local

        def gradient(v: Combination) -> Combination:
            (first, scalar), *others = v.terms.items()
            alone = not others and not isinstance(scalar, Tensor) and scalar == 1
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
        move = self.basis[self.fresh[0]].mul_(difference.pop(self.fresh[0]))
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


@dataclass(frozen=True)
class Fresh:
    """The gradient on a batch as a basis vector: r (c, L, O, B) on the batch's rows, and the tail's part (c, L, T)."""

    r: Tensor
    rows: Any
    tail: Tensor


class Samples:
    """Parameters as combinations of what was received (`model`, `anchor`, …) and of the client's own samples.

    The gradient of the first layer on a batch is r x, with r the gradient with respect to its scores, so after any
    number of steps its weights are Σ cⱼ·vⱼ + s·A x, where A (O, n) sums up the r's: the trail the client has left. Kept
    are the scalars c and s, the trail A, and the scores of all samples under each vⱼ and under the trail, which are
    A·gram. The tail, all parameters after the first layer, is kept as it is.

    Arrays are (c, L, O, n): clients, lanes, outputs of the layer, samples.
    """

    def __init__(self, model: Layered, local: Local, ready: Prepared, dealt: Dealt) -> None:
        self.model, self.layer, self.local, self.ready = model, model.first, local, ready
        self.counts = [len(own) for own in dealt]
        # The k-th batch of all clients of the cohort lies in the same place, but may be shorter in some: there the
        # filling has weight 0.
        self.rows: list[Any] = []
        self.weight: list[Scalar] = []
        for own in zip(*dealt, strict=True):
            longest, counts = max(own, key=len), [len(b) for b in own]
            run = slice(int(longest[0]), int(longest[-1]) + 1)
            rows = run if is_run(longest) else torch.as_tensor(longest, device=ready.x.device)
            self.rows.append(rows)
            if min(counts) == max(counts):
                self.weight.append(1 / counts[0])
            else:
                each = 1 / ready.x.new_tensor(counts).view(-1, 1, 1, 1)
                self.weight.append(each * ready.ones[:, None][..., rows])

    def lift(self, got: dict[str, Tensor]) -> dict[str, Vector]:
        """Each received vector becomes a basis vector; its scores are computed when first asked for."""
        self.stacked = got["model"].dim() == 3
        # (L, c, P) to (c, L, P)
        self.received = {name: (v if self.stacked else v[None]).transpose(0, 1) for name, v in got.items()}
        clients, lanes, _ = self.received["model"].shape
        self.shape = (clients, lanes, self.layer.outputs, self.ready.x.shape[1])
        self.tails = {name: v[..., self.layer.end :] for name, v in self.received.items()}
        self.scores: dict[str, Tensor] = {}
        self.trail: Tensor | None = None
        self.fresh: dict[str, Fresh] = {}
        return {name: Combination({name: 1.0}) for name in got}

    def _scores_of(self, name: str) -> Tensor:
        """Of all samples under a received vector or the trail, (c, L, O, n)."""
        if name not in self.scores:
            v, x = self.received[name], self.ready.x
            # lanes and outputs in one axis: a product with more rows is faster
            weight, bias = self.layer.weight(v).flatten(1, 2), self.layer.bias(v).flatten(1, 2)
            if v.stride(0) == 0 and len(x[0]) < FEW:  # the same for all clients: one product with all their samples
                z = (weight[0] @ x.flatten(0, 1).mT).view(-1, *x.shape[:2]).transpose(0, 1)
                self.scores[name] = torch.addcmul(z, bias, self.ready.ones).view(self.shape)
            else:
                self.scores[name] = torch.baddbmm(bias * self.ready.ones, weight, x.mT).view(self.shape)
        return self.scores[name]

    def gradient(self, k: int) -> Callable[[Combination], Combination]:
        """λ·v plus the gradient of the loss on the batch, which is a fresh basis vector."""
        rows, weight, local = self.rows[k], self.weight[k], self.local

        def gradient(v: Combination) -> Combination:
            z = combined([(scalar, self._scores_of(name)[..., rows]) for name, scalar in v.terms.items()])
            tail = combined([(squeezed(scalar), self.tails[name]) for name, scalar in v.terms.items()])
            r, tail = self.model.backward(z, tail, self.ready.onehot[..., rows], weight)
            name = f"fresh {len(self.fresh)}"
            self.fresh[name] = Fresh(r, rows, tail)
            g = Combination({name: 1.0}) + local.l2 * v
            return g if local.clip is None else shrink(self._norm(g), local.clip) * g

        return gradient

    def settle(self, k: int, new: Combination, old: Combination) -> Combination:
        """Join the fresh gradients to the trail, whose scores change by r·gram."""
        terms = {name: scalar for name, scalar in new.terms.items() if name not in self.fresh}
        if self.trail is None:
            self.trail, self.scores["trail"] = (self.ready.x.new_zeros(self.shape) for _ in range(2))
            self.tails["trail"] = torch.zeros_like(self.tails["model"], memory_format=torch.contiguous_format)
            terms["trail"] = 1.0
        scale = terms.setdefault("trail", 0.0)
        if not is_moderate(scale):
            # Dividing by it would lose digits: multiply it in.
            self.trail *= scale
            self.scores["trail"] *= scale
            self.tails["trail"] *= squeezed(scale)
            terms["trail"] = scale = 1.0
        for name, fresh in self.fresh.items():
            if name in new.terms:
                ratio = new.terms[name] / scale
                step = fresh.r * ratio
                if isinstance(fresh.rows, slice):
                    self.trail[..., fresh.rows].add_(step)
                else:
                    self.trail.index_add_(-1, fresh.rows, step)
                whole, part = self.scores["trail"].flatten(1, 2), self.ready.gram[:, fresh.rows]
                torch.baddbmm(whole, step.flatten(1, 2), part, out=whole)
                self.tails["trail"] += squeezed(ratio) * fresh.tail
        self.fresh.clear()
        return Combination(terms)

    def lower(self, w: Combination) -> Tensor:
        """Σ cⱼ·vⱼ + s·A x, with the biases moved by the sums of A; then the tail."""
        out = torch.zeros_like(self.received["model"], memory_format=torch.contiguous_format)
        for name, scalar in w.terms.items():
            if name == "trail" and self.trail is not None:
                trail = self.trail * scalar
                weight = torch.bmm(trail.flatten(1, 2), self.ready.x)
                self.layer.weight(out).add_(weight.view(*self.shape[:3], -1))
                self.layer.bias(out).add_(trail @ self.ready.ones[:, None].mT)
                out[..., self.layer.end :] += squeezed(scalar) * self.tails["trail"]
            else:
                out += squeezed(scalar) * self.received[name]
        out = out.transpose(0, 1)
        return out if self.stacked else out[0]

    def _norm(self, g: Combination) -> Tensor:
        """‖g‖ at each client and lane, (c, L, 1, 1), from inner products of basis vectors."""
        names = [name for name, scalar in g.terms.items() if not is_zero(scalar)]
        products = [
            (1 if one == other else 2) * g.terms[one] * g.terms[other] * self._inner(one, other)
            for i, one in enumerate(names)
            for other in names[i:]
        ]
        square: Tensor = sum(products[1:], products[0])
        return square.clamp(min=0).sqrt()

    def _inner(self, one: str, other: str) -> Tensor:
        """The inner product of two basis vectors at each client and lane, (c, L, 1, 1)."""
        if one not in self.fresh and other not in self.fresh and "trail" not in (one, other):
            return (self.received[one] * self.received[other]).sum(-1)[..., None, None]
        tails = [self.fresh[name].tail if name in self.fresh else self.tails[name] for name in (one, other)]
        if one in self.fresh and other in self.fresh:
            a, b = self.fresh[one], self.fresh[other]
            gram = self.ready.gram[:, a.rows][..., b.rows][:, None]
            product = (a.r @ gram) * b.r
        elif one in self.fresh or other in self.fresh:
            fresh, known = (one, other) if one in self.fresh else (other, one)
            a = self.fresh[fresh]
            product = a.r * self._scores_of(known)[..., a.rows]
        else:
            assert self.trail is not None
            product = self.trail * self._scores_of(other if one == "trail" else one)
        return product.sum((-2, -1), keepdim=True) + (tails[0] * tails[1]).sum(-1)[..., None, None]


def combined(terms: list[tuple[Scalar, Tensor]]) -> Tensor:
    """Σ scalar · tensor, with as few passes as that takes; a single tensor times 1 is returned as it is."""
    z: Tensor | None = None
    for scalar, part in terms:
        if isinstance(scalar, Tensor):
            z = part * scalar if z is None else torch.addcmul(z, part, scalar)
        elif z is None:
            z = part if scalar == 1 else part * scalar
        else:
            z = torch.add(z, part, alpha=scalar)
    assert z is not None, "no algorithm asks for the gradient at nothing"
    return z


def is_moderate(scale: Scalar) -> bool:
    """Whether a scale is safe to divide by, in all lanes."""
    if isinstance(scale, Tensor):
        return bool(((scale > 0.1) & (scale < 10)).all())
    return bool(0.1 < scale < 10)


def squeezed(scalar: Scalar) -> Scalar:
    """A scalar for arrays (c, L, O, n) as one for vectors (c, L, P)."""
    return scalar.squeeze(-1) if isinstance(scalar, Tensor) else scalar


def samples_pay(local: Local, samples: int, model: Model, kept: bool) -> bool:
    """Whether a client's round takes fewer products in `Samples` than in `Plain`.

    With E passes over n samples and O outputs of the first layer: 2·E·n·D·O plainly, against E·n²·O for the steps,
    3·n·D·O to enter and to leave, and n²·D for the Gram matrix unless it is kept from round to round.
    """
    if not isinstance(model, Layered):
        return False
    passes, features = 1 if local.steps else local.epochs, model.first.inputs
    gram = 0.0 if kept else samples * features / model.first.outputs
    return passes * samples + 3 * features + gram < 2 * passes * features
