"""The local steps as a script: what has to be computed, as data.

An algorithm's `step` sees combinations of named vectors, and what it makes of their scalars is the same at every
client. So its steps are carried out once, on scalars alone (`Script`), and every cohort executes the instructions with
its own samples (`fedkin.engine.spaces.samples`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fedkin.algorithms.local import Local
from fedkin.engine.spaces.combination import Combination, Factor, Scalar, factor, is_moderate, proportion, squeezed
from fedkin.types import Tensors


class Term(NamedTuple):
    """A term of a combination: its scalar for arrays (c, L, O, n), and the same for vectors (c, L, P)."""

    name: str
    scalar: Factor
    on_vectors: Factor


def terms_of(v: Combination, device: torch.device) -> tuple[Term, ...]:
    """A combination's terms, ready to be multiplied with."""
    scalars = {name: factor(scalar, device) for name, scalar in v.terms.items()}
    return tuple(Term(name, scalar, squeezed(scalar)) for name, scalar in scalars.items())


@dataclass(frozen=True)
class Evaluate:
    """Compute the gradient of the loss on the k-th batch at a point, and call it by a name."""

    k: int
    name: str
    at: tuple[Term, ...]


@dataclass(frozen=True)
class Update:
    """Multiply a trail by the scale, if there is one, and add gradients of this step and other trails."""

    trail: str
    scale: Term | None
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class Settle:
    """Update trails, all from their values before."""

    updates: tuple[Update, ...]


Instruction = Evaluate | Settle


def trail_of(name: str) -> str:
    """The trail of a vector that changes over the steps."""
    return f"trail {name}"


class Symbolic(ABC):
    """The steps as far as they concern scalars.

    After any number of steps, w and every other vector that changes (as Ditto's personal model) is Σ cⱼ·vⱼ + s·A: of
    vectors vⱼ that last (received, or remembered) and of a trail A of its own, the sum of its gradients. A gradient is
    a fresh basis vector until the step is settled, then it joins the trail.

    Scores under a lasting vector take a product with all samples, so as few are made as will do. FedKin asks for
    gradients at β·w + (1−β)·u, in which w̄ and u always come as β·w̄ + (1−β)·u; SCAFFOLD at w + s·(cᵢ − c). A mixture
    that comes again, up to a factor, is a basis vector of its own, a `point`.
    """

    local: Local
    device: torch.device

    def lift(self, received: Collection[str], memory: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Each received or remembered vector becomes a basis vector."""
        remembered = {name: f"memory {name}" for name in memory}
        self.names = frozenset([*received, *remembered.values()])
        self.scored: set[str] = set()  # lasting vectors that are no longer taken as parts of points
        self.points: dict[str, dict[str, Scalar]] = {}
        self.fresh_names: list[str] = []
        self.trail_names: set[str] = set()
        return (
            {name: Combination({name: 1.0}) for name in received},
            {name: Combination({full: 1.0}) for name, full in remembered.items()},
        )

    def gradient(self, k: int) -> Callable[[Any], Any]:
        """λ·v plus the gradient of the loss on the batch, which is a fresh basis vector."""

        def gradient(v: Combination) -> Combination:
            v = self._at_points(v.of_something("model"))
            name = f"fresh {len(self.fresh_names)}"
            self.fresh_names.append(name)
            self._execute(Evaluate(k, name, terms_of(v, self.device)))
            return self._cut(Combination({name: 1.0}) + self.local.l2 * v)

        return gradient

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """Join the fresh gradients to the trails."""
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
            # Dividing by it would lose digits: multiply it in.
            (multiplied,) = terms_of(Combination({trail: scale}), self.device)
            terms[trail] = scale = 1.0
        joining = {name: scalar / scale for name, scalar in joining.items()}
        return Update(trail, multiplied, terms_of(Combination(joining), self.device)), Combination(terms)

    def _at_points(self, v: Combination) -> Combination:
        """The same vector, with a mixture of lasting vectors as a multiple of a point."""
        mixture = {name: scalar for name, scalar in v.terms.items() if name in self.names and name not in self.scored}
        if len(mixture) < 2:
            self.scored |= mixture.keys()
            return v
        others = Combination({name: scalar for name, scalar in v.terms.items() if name not in mixture})
        for name, point in self.points.items():
            if (ratio := proportion(mixture, point)) is not None:
                return ratio * Combination({name: 1.0}) + others
        if any(point.keys() == mixture.keys() for point in self.points.values()):
            self.scored |= mixture.keys()  # a mixture that is another in every step: a product a vector is cheaper
            return v
        name = f"point {len(self.points)}"
        self.points[name] = mixture
        return Combination({name: 1.0}) + others

    def spread(self, v: Combination) -> Combination:
        """The same vector without points."""
        plain = Combination({name: scalar for name, scalar in v.terms.items() if name not in self.points})
        for name, point in self.points.items():
            if name in v.terms:
                plain = plain + v.terms[name] * Combination(point)
        return plain

    @abstractmethod
    def _execute(self, instruction: Instruction) -> None:
        """Carry out an instruction, or write it down."""

    def _cut(self, g: Combination) -> Combination:
        """A gradient, cut to norm G where it is longer."""
        return g


class Script(Symbolic):
    """The steps of an algorithm, written down.

    steps  the instructions of each step
    after  the vectors after each step, by name: `w`, and the clients' memory
    """

    def __init__(self, algorithm: object, local: Local, device: torch.device) -> None:
        assert local.clip is None, "a norm depends on samples, so what is cut by it cannot be written down"
        self.algorithm, self.local, self.device = algorithm, local, device
        self.steps: list[list[Instruction]] = [[]]
        self.after: list[dict[str, Combination]] = []

    def lift(self, received: Collection[str], memory: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        self.received, self.memory = frozenset(received), frozenset(memory)
        return super().lift(received, memory)

    def fits(
        self, algorithm: object, local: Local, received: Collection[str], memory: Collection[str], steps: int
    ) -> bool:
        """Whether it says what the same algorithm does in so many steps with vectors of these names."""
        same = self.algorithm is algorithm and self.local is local and len(self.after) >= steps
        return same and self.received == set(received) and self.memory == set(memory)

    def settle(self, k: int, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        self.after.append(super().settle(k, new, old))
        self.steps.append([])
        return self.after[-1]

    def lower(self, vectors: dict[str, Any], into: object = None) -> Tensors:
        """There are no numbers: nothing to do."""
        return {}

    def _execute(self, instruction: Instruction) -> None:
        self.steps[-1].append(instruction)

    def tracks(self) -> dict[str, list[tuple[Evaluate, Update]]] | None:
        """The steps of each vector by itself, if each takes one gradient a step of its own; None if any does not."""
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
