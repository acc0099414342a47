"""Sample space, for models that begin with a linear layer (of O outputs).

The layer's weights stay in the span of the received and remembered vectors and of the client's samples. They are
represented by coefficients on these, and a step only computes the layer's scores of the samples, from the Gram matrix
x xᵀ. A step takes n·B·O multiplications instead of 2·D·B·O.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.engine.spaces.combination import Combination, Scalar, add, combined, is_zero, squeezed
from fedkin.engine.spaces.norms import Norms
from fedkin.engine.spaces.plain import Batches
from fedkin.engine.spaces.prepared import GramBatch, Prepared, batches_of
from fedkin.engine.spaces.script import Evaluate, Instruction, Player, Script, Settle, Symbolic, Term, Update
from fedkin.models import Layered
from fedkin.types import Tensors

# With fewer samples per client, separate products for each client are inefficient.
FEW = 64


@dataclass(frozen=True)
class Fresh:
    """The gradient on a batch as a basis vector: r (c, L, O, B) on the batch's rows, and its tail (c, L, T)."""

    r: Tensor
    batch: GramBatch
    tail: Tensor


class Samples(Norms, Symbolic, Player):
    """Parameters as linear combinations of lasting vectors (received or remembered) and of the client's samples.

    The gradient of the first layer on a batch is r x, where r is the gradient with respect to its scores. A trail is
    A x, where A (O, n) is the sum of the r's. Stored are A and the scores of all samples under each lasting vector; the
    scores of a batch under the trail are A·gram with the batch's columns. The tail, i.e. all parameters after the first
    layer, is stored as a tensor.

    Arrays are (c, L, O, n): clients, lanes, outputs of the layer, samples.
    """

    name: ClassVar[str] = "samples"

    def __init__(self, model: Layered, local: Local, ready: Prepared, batches: Batches) -> None:
        self.model, self.layer, self.local, self.ready = model, model.first, local, ready
        self.device = ready.x.device
        self.counts = [len(own) for own in batches]
        self.batches = batches_of(ready, batches)

    def play(self, script: Script, received: Tensors, memory: Tensors, into: Tensor | None) -> Tensors:
        self.lift(received, memory)
        self.points, steps = script.points, max(self.counts)
        for instructions in script.steps[:steps]:
            for instruction in instructions:
                self._execute(instruction)
        return self.lower(script.after[steps - 1], into)

    def lift(self, received: Any, memory: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.given: Tensors = {**{f"memory {name}": value for name, value in memory.items()}, **received}
        self.stacked = received["model"].dim() == 3
        # (L, c, P) to (c, L, P)
        self.lasting = {name: (v if self.stacked else v[None]).transpose(0, 1) for name, v in self.given.items()}
        clients, lanes, size = self.lasting["model"].shape
        self.shape = (clients, lanes, self.layer.outputs, self.ready.x.shape[1])
        self.tails = {name: v[..., self.layer.end :] for name, v in self.lasting.items()}
        self.has_tail = size > self.layer.end
        # Scores under lasting vectors are computed at first use.
        self.scores: dict[str, Tensor] = {}
        self.views: dict[tuple[str, int], Tensor] = {}  # views of arrays that are used repeatedly
        self.trails: dict[str, Tensor] = {}
        self.ahead: dict[str, Tensor] = {}  # scores of the current batch under a trail
        self.fresh: dict[str, Fresh] = {}
        self.products: dict[tuple[str, str], Tensor] = {}  # inner products of basis vectors
        return super().lift(received.keys(), memory.keys())

    # -- scores --------------------------------------------------------------------------------------------------------

    def _weights_of(self, name: str) -> tuple[Tensor, Tensor]:
        """Weights (c, L·O, D), biases (c, L·O, 1) of a lasting vector or a point; c is 1 if all clients share them."""
        mixture = self.points.get(name, {name: 1.0})
        vectors = [(scalar, self.lasting[part]) for part, scalar in mixture.items()]
        if all(v.stride(0) == 0 for _, v in vectors):
            vectors = [(scalar, v[:1]) for scalar, v in vectors]
        weights = [(scalar, self.layer.weight(v)) for scalar, v in vectors]
        clients = max(len(weight) for _, weight in weights)
        into = None if len(weights) == 1 else self.ready.x.new_empty(clients, *weights[0][1].shape[1:])
        biases = [(scalar, self.layer.bias(v)) for scalar, v in vectors]
        # lanes and outputs in one axis: one product with more rows is faster
        return combined(weights, into).flatten(1, 2), combined(biases).flatten(1, 2)

    def _scores_of(self, name: str) -> Tensor:
        """Scores of all samples under a lasting vector or a point, (c, L, O, n)."""
        if name not in self.scores:
            (weight, bias), x, ones = self._weights_of(name), self.ready.x, self.ready.ones
            if len(weight) == 1 and len(x[0]) < FEW:  # one product with all clients' samples
                z = (weight[0] @ x.flatten(0, 1).mT).view(-1, *x.shape[:2]).transpose(0, 1)
                z = torch.addcmul(z, bias, ones)
            else:
                z = torch.baddbmm(bias * ones, weight.expand(len(x), -1, -1), x.mT)
            self.scores[name] = z.view(self.shape)
        return self.scores[name]

    def _on(self, batch: GramBatch, name: str) -> Tensor:
        """The batch's rows of the scores under a lasting vector or a point, or of a trail itself, (c, L, O, B)."""
        key = (name, id(batch))
        if key in self.views:
            return self.views[key]
        whole = self.trails[name] if name in self.trails else self._scores_of(name)
        part = whole[..., batch.rows]
        if isinstance(batch.rows, slice):  # an index gives a copy, which is not cached
            self.views[key] = part
        return part

    def _left(self, trail: str, reach: int) -> Tensor:
        """A trail as the left factor of a product, (c, L·O, reach)."""
        key = (f"left {trail}", reach)
        if key not in self.views:
            self.views[key] = self.trails[trail][..., :reach].flatten(1, 2)
        return self.views[key]

    def _under_trail(self, trail: str, batch: GramBatch) -> Tensor:
        """Scores of a batch under a trail, A·gram, (c, L, O, B)."""
        if trail not in self.ahead:
            gram = batch.gram if isinstance(batch.rows, slice) else batch.gram[:, batch.rows].mT[:, : batch.reach]
            self.ahead[trail] = torch.bmm(self._left(trail, batch.reach), gram).view(*self.shape[:3], -1)
        return self.ahead[trail]

    def _under_fresh(self, name: str, batch: GramBatch) -> Tensor:
        """Scores of a batch under a gradient of this step, (c, L, O, B)."""
        fresh = self.fresh[name]
        return fresh.r @ self.ready.gram[:, fresh.batch.rows][..., batch.rows][:, None]

    def _under(self, name: str, batch: GramBatch) -> Tensor:
        if name in self.trails:
            return self._under_trail(name, batch)
        return self._under_fresh(name, batch) if name in self.fresh else self._on(batch, name)

    def _scores(self, at: tuple[Term, ...], batch: GramBatch) -> Tensor:
        """Scores of a batch under a combination, (c, L, O, B)."""
        if len(at) == 2 and at[1].name in self.trails and self.local.clip is None and isinstance(batch.rows, slice):
            (name, scalar, _), (trail, scale, _) = at
            if isinstance(scalar, float) and isinstance(scale, float) and name in {**self.lasting, **self.points}:
                known, left = self._on(batch, name), self._left(trail, batch.reach)
                return torch.baddbmm(known.flatten(1, 2), left, batch.gram, beta=scalar, alpha=scale).view(known.shape)
        return combined([(scalar, self._under(name, batch)) for name, scalar, _ in at])

    def _tail_of(self, name: str) -> Tensor:
        """The tail of a basis vector, (c, L, T)."""
        if name in self.fresh:
            return self.fresh[name].tail
        if name in self.points and name not in self.tails:
            mixture = [(squeezed(scalar), self.tails[part]) for part, scalar in self.points[name].items()]
            self.tails[name] = combined(mixture)
        return self.tails[name]

    def _tail(self, at: tuple[Term, ...]) -> Tensor:
        if not self.has_tail:
            return self.tails["model"]
        return combined([(scalar, self._tail_of(name)) for name, _, scalar in at])

    # -- instructions --------------------------------------------------------------------------------------------------

    def _execute(self, instruction: Instruction) -> None:
        if isinstance(instruction, Evaluate):
            batch = self.batches[instruction.k]
            z, weight = self._scores(instruction.at, batch), batch.weight
            if instruction.weights is not None:
                weight = weight * self.lasting[instruction.weights][..., None, batch.rows]
            r, tail = self.model.backward(z, self._tail(instruction.at), batch.coded, weight)
            self.fresh[instruction.name] = Fresh(r, batch, tail)
            return
        assert isinstance(instruction, Settle)
        for update in instruction.updates:
            if update.trail not in self.trails:
                self._begin(update.trail)
        # A trail is added to another with its value before the step.
        before = {
            term.name: (self.trails[term.name].clone(), self.tails[term.name].clone())
            for update in instruction.updates
            for term in update.terms
            if term.name in self.trails
        }
        squares = {update.trail: self._square(self._updated(update)) for update in instruction.updates}
        for update in instruction.updates:
            self._update(update, before)
        self._forget(squares)
        self.fresh.clear()

    def _begin(self, trail: str) -> None:
        self.trails[trail] = self.ready.x.new_zeros(self.shape)
        self.products[trail, trail] = self.trails[trail].new_zeros(*self.shape[:2], 1, 1)
        self.tails[trail] = torch.zeros_like(self.tails["model"], memory_format=torch.contiguous_format)

    def _updated(self, update: Update) -> tuple[Term, ...]:
        """The updated trail as a combination."""
        return update.scale or Term(update.trail, 1.0, 1.0), *update.terms

    def _update(self, update: Update, before: dict[str, tuple[Tensor, Tensor]]) -> None:
        trail = self.trails[update.trail]
        if update.scale is not None:
            trail *= update.scale.scalar
            self.tails[update.trail] *= update.scale.on_vectors
        for name, scalar, on_vectors in update.terms:
            if name in before:
                other, tail = before[name]
                add(trail, scalar, other)
            else:
                fresh, tail = self.fresh[name], self.fresh[name].tail
                if isinstance(fresh.batch.rows, slice):
                    add(self._on(fresh.batch, update.trail), scalar, fresh.r)
                else:
                    trail.index_add_(-1, fresh.batch.rows, fresh.r * scalar)
            if self.has_tail:
                add(self.tails[update.trail], on_vectors, tail)

    # -- back to parameters --------------------------------------------------------------------------------------------

    def lower(self, vectors: dict[str, Any], into: Tensor | None = None) -> Tensors:
        lowered = {name: self._lowered(v, into if name == "w" else None) for name, v in vectors.items()}
        self._release()
        return lowered

    def _lowered(self, v: Combination, into: Tensor | None) -> Tensor:
        """The parameters Σ cⱼ·vⱼ + s·A x; biases change by s times the row sums of A."""
        terms = self.spread(v).of_something("model").terms
        (first, scalar), *others = terms.items()
        if not others and first in self.given and isinstance(scalar, float) and scalar == 1 and into is None:
            return self.given[first]  # unchanged
        trails = {name: terms.pop(name) for name in list(terms) if name in self.trails}
        clients, lanes, size = self.lasting["model"].shape
        if into is None:
            into = self.ready.x.new_empty(*([lanes] if self.stacked else []), clients, size)
        out = (into if self.stacked else into[None]).transpose(0, 1)
        if terms:
            combined([(squeezed(scalar), self.lasting[name]) for name, scalar in terms.items()], out)
        else:
            out.zero_()
        for trail, scale in trails.items():
            self._leave(out, scale, trail)
            if self.has_tail:
                add(out[..., self.layer.end :], squeezed(scale), self.tails[trail])
        return into

    def _leave(self, out: Tensor, scale: Scalar, trail: str) -> None:
        """Add s·A x to the first layer of parameters (c, L, P), and the row sums of s·A to its biases."""
        if is_zero(scale):
            return
        weight, array = self.layer.weight(out), self.trails[trail]
        add(weight, scale, torch.bmm(array.flatten(1, 2), self.ready.x).view(weight.shape))
        add(self.layer.bias(out), scale, array @ self.ready.ones[:, None].mT)

    def _release(self) -> None:
        """Release the arrays of a round: the space is cached for the next round, but other cohorts need the memory."""
        self.given, self.lasting, self.tails, self.scores, self.views, self.products = {}, {}, {}, {}, {}, {}
        self.trails, self.ahead = {}, {}
