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

Scalar = Any  # a float; with an entry a lane, (L, 1, 1), a tensor or inside combinations a NumPy array
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
    return isinstance(scalar, float | int) and scalar == 0


def is_one(scalar: Scalar) -> bool:
    """Whether a factor can be left out."""
    return isinstance(scalar, float | int) and scalar == 1


def shrink(norm: Tensor, clip: Scalar) -> Tensor:
    """The factor that cuts a vector of this norm to at most `clip`."""
    return torch.clamp(clip / norm, max=1.0)


# Below so many samples a client, products client by client are too small to be worth it.
FEW = 64

# -- samples -----------------------------------------------------------------------------------------------------------


class Combination:
    """A linear combination Σ cⱼ·bⱼ of named basis vectors: + and − of combinations, × by a scalar.

    There are many more operations on its scalars than on vectors, so those with an entry a lane are arrays of NumPy,
    whose operations take a quarter of the time; their double precision keeps 1 − γα + γα at 1.
    """

    __slots__ = ("terms",)
    __array_ufunc__ = None  # an array times a combination: leave it to the combination

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
        if isinstance(scalar, Tensor):
            scalar = scalar.cpu().numpy().astype(np.float64)
        return Combination({name: scalar * own for name, own in self.terms.items()})

    __rmul__ = __mul__

    def __sub__(self, other: "Combination") -> "Combination":
        return self + -1.0 * other

    @classmethod
    def __torch_function__(cls, _: Any, __: Any, args: tuple[Any, Any], ___: Any = None) -> "Combination":
        """A tensor times a combination. Without this PyTorch finds out by an exception, which is slow."""
        scalar, combination = args
        return combination * scalar  # type: ignore[no-any-return]


def factor(scalar: Scalar, like: Tensor) -> Scalar:
    """A combination's scalar as what a tensor (…, P) or (…, O, n) can be multiplied by."""
    if isinstance(scalar, np.ndarray):
        return torch.from_numpy(scalar.astype(np.float32)).to(like.device)
    return scalar


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
        return self._add(self.basis[first] * factor(scalar, self.basis[first]), dict(others))

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
        move = move.mul_(factor(difference.pop(self.fresh[0]), move))
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
    are the scalars c and s, the trail A, and the scores of all samples under each vⱼ; those of a batch under the trail
    are A·gram, of the batch's columns. The tail, all parameters after the first layer, is kept as it is.

    Scores under a received vector take a product with all samples, so only one is made where one is enough: FedKin
    asks for gradients at β·w + (1−β)·u, in which w̄ and u always come as β·w̄ + (1−β)·u. The first such mixture
    becomes a basis vector of its own, the `point`.

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
        clients, lanes, size = self.received["model"].shape
        self.shape = (clients, lanes, self.layer.outputs, self.ready.x.shape[1])
        self.tails = {name: v[..., self.layer.end :] for name, v in self.received.items()}
        self.has_tail = size > self.layer.end
        self.scores: dict[str, Tensor] = {}
        self.point: dict[str, Scalar] = {}
        self.lasting = {"point", *got}  # basis vectors that stay the same over the steps
        self.trail: Tensor | None = None
        self.reach = 0  # the trail is zero from this sample on
        self.ahead: Tensor | None = None  # the scores of the batch at hand under the trail
        self.fresh: dict[str, Fresh] = {}
        self.products: dict[tuple[str, str], Tensor] = {}  # inner products of basis vectors
        return {name: Combination({name: 1.0}) for name in got}

    def _at_point(self, v: Combination) -> Combination:
        """The same vector, with a mixture of received vectors as the point, if it is the point's mixture."""
        mixture = {name: scalar for name, scalar in v.terms.items() if name in self.received}
        if len(mixture) < 2:
            return v
        if not self.point:
            self.point = mixture
            self.tails["point"] = combined([(squeezed(scalar), self.tails[name]) for name, scalar in mixture.items()])
        if not alike(mixture, self.point):
            return v
        others = {name: scalar for name, scalar in v.terms.items() if name not in mixture}
        return Combination({"point": 1.0}) + Combination(others)

    def _spread(self, v: Combination) -> Combination:
        """The same vector without the point."""
        others = Combination({name: scalar for name, scalar in v.terms.items() if name != "point"})
        return others + v.terms["point"] * Combination(self.point) if "point" in v.terms else others

    def _scores_of(self, name: str) -> Tensor:
        """Of all samples under a received vector or the point, (c, L, O, n)."""
        if name not in self.scores:
            mixture = self.point if name == "point" else {name: 1.0}
            vectors = [(scalar, self.received[part]) for part, scalar in mixture.items()]
            x, ones = self.ready.x, self.ready.ones
            shared = all(v.stride(0) == 0 for _, v in vectors)  # the same for all clients
            if shared:
                vectors = [(scalar, v[:1]) for scalar, v in vectors]
            # lanes and outputs in one axis: a product with more rows is faster
            weights = [(scalar, self.layer.weight(v)) for scalar, v in vectors]
            into = None if len(weights) == 1 else x.new_empty(weights[0][1].shape)
            weight = combined(weights, into).flatten(1, 2)
            bias = combined([(scalar, self.layer.bias(v)) for scalar, v in vectors]).flatten(1, 2)
            if shared and len(x[0]) < FEW:  # one product with all clients' samples
                z = (weight[0] @ x.flatten(0, 1).mT).view(-1, *x.shape[:2]).transpose(0, 1)
                self.scores[name] = torch.addcmul(z, bias, ones).view(self.shape)
            else:
                weight = weight.expand(len(x), -1, -1)
                self.scores[name] = torch.baddbmm(bias * ones, weight, x.mT).view(self.shape)
        return self.scores[name]

    def _under_trail(self, rows: Any) -> Tensor:
        """The scores of a batch under the trail, A·gram, (c, L, O, B)."""
        if self.ahead is None:
            assert self.trail is not None
            left = self.trail[..., : self.reach].flatten(1, 2)
            gram = self.ready.gram[:, rows, : self.reach].mT
            self.ahead = torch.bmm(left, gram).view(*self.shape[:3], -1)
        return self.ahead

    def _scores(self, v: Combination, rows: Any) -> Tensor:
        """Of a batch, (c, L, O, B)."""
        parts = [
            (scalar, self._under_trail(rows) if name == "trail" else self._scores_of(name)[..., rows])
            for name, scalar in v.terms.items()
        ]
        return combined(parts)

    def _tail(self, v: Combination) -> Tensor:
        if not self.has_tail:
            return self.tails["model"]
        return combined([(squeezed(scalar), self.tails[name]) for name, scalar in v.terms.items()])

    def gradient(self, k: int) -> Callable[[Combination], Combination]:
        """λ·v plus the gradient of the loss on the batch, which is a fresh basis vector."""
        rows, weight, local = self.rows[k], self.weight[k], self.local

        def gradient(v: Combination) -> Combination:
            v = self._at_point(v)
            r, tail = self.model.backward(self._scores(v, rows), self._tail(v), self.ready.onehot[..., rows], weight)
            name = f"fresh {len(self.fresh)}"
            self.fresh[name] = Fresh(r, rows, tail)
            g = Combination({name: 1.0}) + local.l2 * v
            square = self._square(g)
            return g if square is None else shrink(square.sqrt(), local.clip) * g

        return gradient

    def settle(self, k: int, new: Combination, old: Combination) -> Combination:
        """Join the fresh gradients to the trail."""
        terms = {name: scalar for name, scalar in new.terms.items() if name not in self.fresh}
        if self.trail is None:
            self.trail = self.ready.x.new_zeros(self.shape)
            self.products["trail", "trail"] = self.trail.new_zeros(*self.shape[:2], 1, 1)
            self.tails["trail"] = torch.zeros_like(self.tails["model"], memory_format=torch.contiguous_format)
            terms["trail"] = 1.0
        scale = terms.setdefault("trail", 0.0)
        if not is_moderate(scale):
            # Dividing by it would lose digits: multiply it in.
            self._forget(self._square(Combination({"trail": scale})))
            self.trail *= factor(scale, self.trail)
            self.tails["trail"] *= factor(squeezed(scale), self.trail)
            terms["trail"] = scale = 1.0
        joining = {name: new.terms[name] / scale for name in self.fresh if name in new.terms}
        square = self._square(Combination({"trail": 1.0, **joining}))
        for name, ratio in joining.items():
            fresh = self.fresh[name]
            if isinstance(fresh.rows, slice):
                add(self.trail[..., fresh.rows], ratio, fresh.r)
                self.reach = max(self.reach, fresh.rows.stop)
            else:
                self.trail.index_add_(-1, fresh.rows, fresh.r * factor(ratio, fresh.r))
                self.reach = self.shape[-1]
            if self.has_tail:
                add(self.tails["trail"], squeezed(ratio), fresh.tail)
        self._forget(square)
        self.fresh.clear()
        return Combination(terms)

    def lower(self, w: Combination) -> Tensor:
        """Σ cⱼ·vⱼ + s·A x, with the biases moved by the sums of A; then the tail."""
        terms = self._spread(w).terms
        scale = terms.pop("trail", 0.0)
        out = torch.empty_like(self.received["model"], memory_format=torch.contiguous_format)
        combined([(squeezed(scalar), self.received[name]) for name, scalar in terms.items()], out)
        if self.trail is not None:
            left = self.trail[..., : self.reach]
            weight = torch.bmm(left.flatten(1, 2), self.ready.x[:, : self.reach])
            add(self.layer.weight(out), scale, weight.view(*self.shape[:3], -1))
            add(self.layer.bias(out), scale, left @ self.ready.ones[:, None, :, : self.reach].mT)
            if self.has_tail:
                add(out[..., self.layer.end :], squeezed(scale), self.tails["trail"])
        out = out.transpose(0, 1)
        return out if self.stacked else out[0]

    def _square(self, g: Combination) -> Tensor | None:
        """‖g‖² at each client and lane, (c, L, 1, 1), from inner products of basis vectors; None without clipping."""
        if self.local.clip is None:
            return None
        terms = [(name, factor(scalar, self.ready.x)) for name, scalar in g.terms.items() if not is_zero(scalar)]
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
            parts = [factor(scalar, self.ready.x) * self._inner(name, other) for name, scalar in self.point.items()]
            return torch.stack(parts).sum(0)
        if one in self.received:
            return (self.received[one] * self.received[other]).sum(-1)[..., None, None]
        if one == "trail":
            assert self.trail is not None
            product = self.trail * self._scores_of(other)
        elif other in self.fresh:
            a, b = self.fresh[one], self.fresh[other]
            product = a.r * (b.r @ self.ready.gram[:, b.rows][..., a.rows][:, None])
        else:
            a = self.fresh[one]
            product = a.r * (self._under_trail(a.rows) if other == "trail" else self._scores_of(other)[..., a.rows])
        tails = [self.fresh[name].tail if name in self.fresh else self.tails[name] for name in (one, other)]
        return product.sum((-2, -1), keepdim=True) + (tails[0] * tails[1]).sum(-1)[..., None, None]

    def _forget(self, square: Tensor | None) -> None:
        """Drop what was computed of the trail as it was; ‖trail‖² is known from before, for anew it takes a product."""
        self.ahead = None
        self.products = {pair: value for pair, value in self.products.items() if self.lasting.issuperset(pair)}
        if square is not None:
            self.products["trail", "trail"] = square


def combined(terms: list[tuple[Scalar, Tensor]], out: Tensor | None = None) -> Tensor:
    """Σ scalar · tensor, with as few passes as that takes, into `out` if there is one.

    Without it, a single tensor times 1 is returned as it is.
    """
    z: Tensor | None = None
    own = False  # whether z may be written to
    for scalar, part in terms:
        if own and z is not None:
            add(z, scalar, part)
        elif z is None and is_one(scalar):
            z = part
        else:
            by = factor(scalar, part)
            if z is None:
                z = torch.mul(part, by, out=out)
            elif isinstance(by, Tensor):
                z = torch.addcmul(z, part, by, out=out)
            else:
                z = torch.add(z, part, alpha=by, out=out)
            own = True
    assert z is not None, "no algorithm asks for the gradient at nothing"
    return z if own or out is None else out.copy_(z)


def add(out: Tensor, scalar: Scalar, part: Tensor) -> None:
    """Add scalar · part to `out`, in one pass."""
    if isinstance(scalar, np.ndarray):
        out.addcmul_(part, factor(scalar, part))
    else:
        out.add_(part, alpha=scalar)


def alike(one: dict[str, Scalar], other: dict[str, Scalar]) -> bool:
    """Whether two combinations are the same but for rounding, in all lanes."""
    if one.keys() != other.keys():
        return False
    return all(bool(np.all(abs(one[name] - own) <= 1e-9 * abs(own))) for name, own in other.items())


def is_moderate(scale: Scalar) -> bool:
    """Whether a scale is safe to divide by, in all lanes."""
    if isinstance(scale, np.ndarray):
        return bool(scale.min() > 0.1 and scale.max() < 10)
    return bool(0.1 < scale < 10)


def squeezed(scalar: Scalar) -> Scalar:
    """A scalar for arrays (c, L, O, n) as one for vectors (c, L, P)."""
    return scalar[..., 0] if isinstance(scalar, np.ndarray) else scalar


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
