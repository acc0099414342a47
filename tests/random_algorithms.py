"""Algorithms put together at random from the hooks, with linear steps."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fedkin.algorithms import Algorithm, Gradient, Hyper, Losses, Round, Schedule, ServerState, Vector, Vectors
from fedkin.types import Tensors

Mixture = tuple[tuple[str, float, str], ...]  # vectors, each with its coefficient and the knob that multiplies it


@dataclass(frozen=True)
class Recipe:
    """What a random algorithm does.

    extras     vectors that the server keeps and sends beside the model
    memory     vectors that clients keep: what they are of the first model, and what they become in a step
    gradients  where each gradient of a step is asked for; a later one may contain those before it
    w          what w becomes in a step
    begin      what a client does with what it has received
    sent       what each of the extras is made of that is sent back
    kept       what memory becomes after the last step
    """

    extras: tuple[str, ...] = ()
    memory: tuple[tuple[str, float, Mixture | None], ...] = ()
    gradients: tuple[Mixture, ...] = ((("w", 1.0, ""),),)
    w: Mixture = (("w", 1.0, ""), ("g0", -1.0, "step_size"))
    begin: str = ""
    sent: tuple[Mixture, ...] = ()
    kept: Mixture | None = None


@dataclass(frozen=True, kw_only=True)
class RandomAlgorithm(Algorithm):
    """Follows a recipe. In rounds in which `fewer` is 1, only the first gradient of a step is asked for."""

    recipe: Recipe = field(default_factory=Recipe)
    a: Hyper = 0.5
    b: Hyper = 0.1
    fewer: Any = 0

    def _mixed(self, mixture: Mixture, vectors: dict[str, Any]) -> Any:
        terms = [
            (coefficient * getattr(self, knob) if knob else coefficient) * vectors[name]
            for name, coefficient, knob in mixture
            if name in vectors
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def start(self, model: Tensor, round: Round) -> ServerState:
        state: ServerState = {"model": model}
        for name in self.recipe.extras:
            state[name] = 0.1 * model.new_tensor(round.random(name).standard_normal(model.shape[-1])).expand_as(model)
        return state

    def remember(self, model: Tensor) -> Tensors:
        notes = {"note": model.new_zeros(*model.shape[:-1], 3)} if self.recipe.kept else {}
        return {name: first * model for name, first, _ in self.recipe.memory} | notes

    def send(self, server: ServerState, round: Round) -> Tensors:
        return {name: round.spread(value) for name, value in server.items()}

    def begin(self, got: Tensors, memory: Tensors, losses: Losses) -> tuple[Tensors, Tensors]:
        match self.recipe.begin:
            case "move":
                got = {**got, "model": 0.9 * got["model"] + 0.1 * self.b * got[(*self.recipe.extras, "model")[0]]}
            case "look":
                got = {**got, "model": got["model"] * (1 - 0.1 * torch.tanh(losses.mean(got["model"])))}
            case "forget":
                memory = {name: value if name == "note" else 0.5 * value for name, value in memory.items()}
            case "add":
                got = {**got, "added": self.a * got["model"]}
        return got, memory

    def step(self, w: Vector, got: Vectors, memory: Vectors, gradient: Gradient) -> tuple[Vector, Vectors]:
        vectors: dict[str, Any] = {"w": w, **{f"got {name}": v for name, v in got.items()}}
        vectors |= {f"memory {name}": v for name, v in memory.items()}
        for j, mixture in enumerate(self.recipe.gradients[: 1 if self.fewer == 1 else None]):
            vectors[f"g{j}"] = gradient(self._mixed(mixture, vectors))
        changed = {name: self._mixed(mixture, vectors) for name, _, mixture in self.recipe.memory if mixture}
        return self._mixed(self.recipe.w, vectors), {**memory, **changed}

    def reply(self, w: Tensor, got: Tensors, memory: Tensors, steps: Tensor) -> tuple[Tensors, Tensors]:
        vectors = {"w": w, **{f"got {name}": v for name, v in got.items()}}
        vectors |= {f"memory {name}": v for name, v in memory.items()}
        sent = {name: self._mixed(mix, vectors) for name, mix in zip(self.recipe.extras, self.recipe.sent, strict=True)}
        if self.recipe.kept:
            kept = self._mixed(self.recipe.kept, vectors)
            memory = {name: 0.5 * value + 0.5 * kept for name, value in memory.items() if name != "note"}
            memory["note"] = w[..., :3] / steps
        return {"model": w, **sent}, memory

    def combine(self, server: ServerState, replies: Tensors, round: Round) -> ServerState:
        averages = {name: round.average(value) for name, value in replies.items()}
        return {name: 0.5 * server[name] + 0.5 * value for name, value in averages.items()}


SMALL = st.sampled_from([-0.3, -0.1, 0.0, 0.1, 0.3, 0.5])
MAIN = st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.0])
KNOBS = st.sampled_from(["", "", "a", "b"])


@st.composite
def mixtures(draw: st.DrawFn, main: str, vectors: tuple[str, ...], gradients: int, most: int = 2) -> Mixture:
    """Mostly one vector, some of others and of gradients; coefficients that let nothing grow."""
    others = draw(st.lists(st.sampled_from(vectors), max_size=most, unique=True))
    terms = [(main, draw(MAIN), ""), *((name, draw(SMALL), draw(KNOBS)) for name in others if name != main)]
    total = max(sum(abs(coefficient) for _, coefficient, _ in terms), 1.0)
    terms = [(name, coefficient / total, knob) for name, coefficient, knob in terms]
    asked = [f"g{j}" for j in range(gradients) if draw(st.booleans())]
    return (*terms, *((name, -draw(st.sampled_from([0.3, 1.0])), "step_size") for name in asked))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    extras = tuple(f"x{j}" for j in range(draw(st.integers(0, 2))))
    memory = tuple(f"m{j}" for j in range(draw(st.integers(0, 2))))
    begin = draw(st.sampled_from(["", "", "move", "look", "forget", "add"]))
    lasting = ("got model", *(f"got {name}" for name in extras), *(f"memory {name}" for name in memory))
    lasting = (*lasting, "got added") if begin == "add" else lasting
    every = ("w", *lasting)
    gradients = draw(st.integers(1, 3))
    remembered = []
    for name in memory:
        change = mixtures(f"memory {name}", every, gradients) if draw(st.booleans()) else st.none()
        remembered.append((name, draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), draw(change)))
    return Recipe(
        extras,
        tuple(remembered),
        tuple(draw(mixtures(draw(st.sampled_from(["w", "w", *lasting])), every, j)) for j in range(gradients)),
        draw(mixtures("w", every, gradients)),
        begin,
        tuple(draw(mixtures("w", lasting, 0)) for _ in extras),
        draw(st.none() | mixtures("w", lasting, 0)),
    )


def hypers(values: list[float]) -> st.SearchStrategy[Any]:
    """Numbers and schedules."""
    number = st.sampled_from(values)
    return number | st.builds(Schedule, number, number, st.integers(1, 2), st.sampled_from(["linear", "step"]))


@st.composite
def alike(draw: st.DrawFn, most: int = 3) -> list[Algorithm]:
    """Algorithms of one recipe that can be lanes together."""
    recipe, fewer = draw(recipes()), draw(st.sampled_from([0, 0, Schedule(0, 1, 1, "step"), Schedule(1, 0, 1, "step")]))
    return [
        RandomAlgorithm(
            step_size=draw(hypers([0.02, 0.05, 0.1])),
            recipe=recipe,
            a=draw(hypers([0.0, 0.5, 1.0])),
            b=draw(hypers([0.0, 0.1, 1.0])),
            fewer=fewer,
        )
        for _ in range(draw(st.integers(1, most)))
    ]
