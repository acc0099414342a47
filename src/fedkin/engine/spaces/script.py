"""Local steps as a list of instructions.

In symbolic form an algorithm's `step` computes with scalars, which are the same at every client. So the steps are
traced once (`Script`), and every cohort executes the instructions on its own samples
(`fedkin.engine.spaces.samples`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedkin.algorithms.local import Local
from fedkin.engine.spaces.combination import Combination, Factor, Scalar, factor, is_moderate, proportion, squeezed
from fedkin.types import Tensors


class Term(NamedTuple):
    """A term of a combination: its scalar for arrays (c, L, O, n), and the same for vectors (c, L, P)."""

    name: str
    scalar: Factor
    on_vectors: Factor


def terms_of(v: Combination, device: torch.device) -> tuple[Term, ...]:
    """The terms of a combination, with scalars as factors of tensors."""
    scalars = {name: factor(scalar, device) for name, scalar in v.terms.items()}
    return tuple(Term(name, scalar, squeezed(scalar)) for name, scalar in scalars.items())


@dataclass(frozen=True)
class Evaluate:
    """Compute the gradient of the loss on the k-th batch at the combination `at`, as the basis vector `name`.

    weights  the lasting vector that has a weight for each sample, if they do not count alike
    """

    k: int
    name: str
    at: tuple[Term, ...]
    weights: str | None = None


@dataclass(frozen=True)
class Update:
    """Multiply a trail by the scale, if given, and add gradients of this step and other trails."""

    trail: str
    scale: Term | None
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Settle:
    """Update trails simultaneously."""

    updates: tuple[Update, ...]


Instruction = Evaluate | Settle

HIDDEN = "optimizer's "  # the beginning of the names of vectors that exist during the steps only


def trail_of(name: str) -> str:
    """The trail of a vector that changes over the steps."""
    return f"trail {name}"


class Symbolic(ABC):
    """Local steps in symbolic form.

    After any number of steps, w and every other vector that changes (such as Ditto's personal model) is Σ cⱼ·vⱼ + s·A,
    with lasting vectors vⱼ (received or remembered) and a trail A of its own, the sum of its gradients. A gradient is
    a new basis vector until the end of the step, when it is added to the trail.

    Scores under a lasting vector take a product with all samples, so their number is kept small. FedKin evaluates
    gradients at β·w + (1−β)·u, in which w̄ and u always occur as β·w̄ + (1−β)·u; SCAFFOLD at w + s·(cᵢ − c). A mixture
    that occurs repeatedly, up to a factor, becomes a basis vector, called a point.
    """

    local: Local
    device: torch.device

    def lift(self, received: Collection[str], memory: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Each received or remembered vector becomes a basis vector."""
        remembered = {name: f"memory {name}" for name in memory}
        self.names = frozenset([*received, *remembered.values()])
        self.scored: set[str] = set()  # lasting vectors that are scored by themselves, not as parts of points
        self.points: dict[str, dict[str, Scalar]] = {}
        self.fresh_names: list[str] = []
        self.trail_names: set[str] = set()
        return (
            {name: Combination({name: 1.0}) for name in received},
            {name: Combination({full: 1.0}) for name, full in remembered.items()},
        )

    def gradient(self, k: int) -> Callable[..., Any]:
        """λ·v plus the gradient of the loss on the batch, a new basis vector."""

        def gradient(v: Combination, *, weights: Combination | None = None) -> Combination:
            v = self._at_points(v.of_something("model"))
            name = f"fresh {len(self.fresh_names)}"
            self.fresh_names.append(name)
            self._execute(Evaluate(k, name, terms_of(v, self.device), None if weights is None else weights.name))
            return self._whole(name, v)

        return gradient

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """Add the gradients of this step to the trails."""
        settled, updates = {}, []
        for name, v in new.items():
            update, settled[name] = self._settled(trail_of(name), v)
            updates += [update] if update else []
        self.trail_names |= {update.trail for update in updates}
        self._execute(Settle(tuple(updates)))
        self.fresh_names.clear()
        return settled

    def _settled(self, trail: str, v: Combination) -> tuple[Update | None, Combination]:
        joining = {
            name: scalar
            for name, scalar in v.terms.items()
            if name in self.fresh_names or (name in self.trail_names and name != trail)
        }
        if not joining:
            return None, v
        terms: dict[str, Scalar] = {name: scalar for name, scalar in v.terms.items() if name not in joining}
        if trail not in self.trail_names:
            terms[trail] = 1.0
        scale, multiplied = terms.setdefault(trail, 0.0), None
        if not is_moderate(scale):
            # Division by the scale would lose precision: multiply the trail by it.
            (multiplied,) = terms_of(Combination({trail: scale}), self.device)
            terms[trail] = scale = 1.0
        joining = {name: scalar / scale for name, scalar in joining.items()}
        return Update(trail, multiplied, terms_of(Combination(joining), self.device)), Combination(terms)

    def _at_points(self, v: Combination) -> Combination:
        """The same vector, with its mixture of lasting vectors expressed by a point."""
        mixture = {name: scalar for name, scalar in v.terms.items() if name in self.names and name not in self.scored}
        if len(mixture) < 2:
            self.scored |= mixture.keys()
            return v
        others = Combination({name: scalar for name, scalar in v.terms.items() if name not in mixture})
        for name, point in self.points.items():
            if (ratio := proportion(mixture, point)) is not None:
                return ratio * Combination({name: 1.0}) + others
        if any(point.keys() == mixture.keys() for point in self.points.values()):
            self.scored |= mixture.keys()  # the mixture differs in every step: one product per vector is cheaper
            return v
        name = f"point {len(self.points)}"
        self.points[name] = mixture
        return Combination({name: 1.0}) + others

    def spread(self, v: Combination) -> Combination:
        """The same vector, with points replaced by their mixtures."""
        plain = Combination({name: scalar for name, scalar in v.terms.items() if name not in self.points})
        for name, point in self.points.items():
            if name in v.terms:
                plain = plain + v.terms[name] * Combination(point)
        return plain

    @abstractmethod
    def _execute(self, instruction: Instruction) -> None:
        """Execute or record an instruction."""

    def _whole(self, name: str, v: Combination) -> Combination:
        """The gradient at v, from that of the loss."""
        return Combination({name: 1.0}) + self.local.l2 * v


class Player(ABC):
    """A space that executes scripts.

    clips  whether it executes scripts with clipping
    """

    name: ClassVar[str]
    clips: ClassVar[bool] = False
    local: Local
    counts: list[int]  # number of steps of each client

    @abstractmethod
    def play(self, script: "Script", received: Tensors, memory: Tensors, into: Tensor | None) -> Tensors:
        """Execute a script: `w` and the memory after the steps, as tensors; `w` is written to `into`, if given."""


class Script(Symbolic):
    """The traced local steps of an algorithm.

    steps  instructions of each step
    after  `w` and the clients' memory after each step, by name
    """

    def __init__(self, algorithm: object, local: Local, device: torch.device) -> None:
        self.algorithm, self.local, self.device = algorithm, local, device
        self.steps: list[list[Instruction]] = [[]]
        self.after: list[dict[str, Combination]] = []

    def lift(self, received: Collection[str], memory: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        self.received, self.memory = frozenset(received), frozenset(memory)
        return super().lift(received, memory)

    def fits(
        self, algorithm: object, local: Local, received: Collection[str], memory: Collection[str], steps: int
    ) -> bool:
        """Whether it was traced with these arguments, for at least this many steps."""
        same = self.algorithm is algorithm and self.local is local and len(self.after) >= steps
        return same and self.received == set(received) and self.memory == set(memory)

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        settled = super().settle(k, new, old)
        self.after.append({name: v for name, v in settled.items() if not name.startswith(HIDDEN)})
        self.steps.append([])
        return settled

    def lower(self, vectors: dict[str, Any], into: object = None) -> Tensors:
        return {}  # a trace has no values

    def _whole(self, name: str, v: Combination) -> Combination:
        """With clipping, which depends on the samples, the new vector is the gradient with penalty, clipped."""
        return super()._whole(name, v) if self.local.clip is None else Combination({name: 1.0})

    def _execute(self, instruction: Instruction) -> None:
        self.steps[-1].append(instruction)

    def gradients(self) -> int:
        """The largest number of gradients in a step."""
        return max(sum(isinstance(i, Evaluate) for i in instructions) for instructions in self.steps)

    def alike(self) -> bool:
        """Whether no gradient gives weights to samples, which compiled steps do not know."""
        return not any(isinstance(i, Evaluate) and i.weights for instructions in self.steps for i in instructions)

    def tracks(self) -> dict[str, list[tuple[Evaluate, Update]]] | None:
        """The steps of each vector, if each takes exactly one gradient per step at a point of its own; else None."""
        tracks: dict[str, list[tuple[Evaluate, Update]]] = {}
        for instructions in self.steps[: len(self.after)]:
            asked = {i.name: i for i in instructions if isinstance(i, Evaluate)}
            updates = [update for i in instructions if isinstance(i, Settle) for update in i.updates]
            used = [term.name for update in updates for term in update.terms]
            if sorted(used) != sorted(asked) or any(len(update.terms) != 1 for update in updates):
                return None
            for update in updates:
                evaluate = asked[update.terms[0].name]
                if any(term.name not in self.names | self.points.keys() | {update.trail} for term in evaluate.at):
                    return None
                tracks.setdefault(update.trail, []).append((evaluate, update))
        return tracks if all(len(steps) == len(self.after) for steps in tracks.values()) else None
