"""The steps of an algorithm as arrays of coefficients, for compiled rounds."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.engine.spaces.combination import Combination, Scalar, combined
from fedkin.engine.spaces.script import Script, trail_of
from fedkin.types import Tensors


class Recipe(NamedTuple):
    """Coefficients of T steps of an algorithm in L lanes.

    points   (N, L, S)  linear combinations of S received vectors at which scores are computed
    factors  (T, N, L)  a step evaluates the gradient g at Σ factors·points + scale·trail,
    scale    (T, L)
    rescale  (T, L)     then trail ← rescale·trail + join·g;
    join     (T, L)
    base     (T, L, S)  the model after the step is Σ base·received + length·trail
    length   (T, L)
    """

    points: NDArray[np.float32]
    factors: NDArray[np.float32]
    scale: NDArray[np.float32]
    rescale: NDArray[np.float32]
    join: NDArray[np.float32]
    base: NDArray[np.float32]
    length: NDArray[np.float32]


@lru_cache(maxsize=4)
def recipe_of(script: Script, vector: str, lanes: int) -> tuple[list[str], Recipe]:
    """The names of the lasting vectors in the steps of one vector, and the steps as arrays."""
    trail, tracks = trail_of(vector), script.tracks()
    assert tracks is not None, "compiled steps need one gradient per vector and step"
    asked = [{term.name: term.scalar for term in evaluate.at} for evaluate, _ in tracks[trail]]
    names = list(dict.fromkeys(name for at in asked for name in at if name != trail))
    points = [script.points.get(name, {name: 1.0}) for name in names]
    after = [script.spread(vectors[vector]).terms for vectors in script.after]
    received = sorted({name for terms in (*points, *after) for name in terms} - {trail})

    def table(rows: list[Scalar]) -> NDArray[np.float32]:
        """Scalars broadcast to lanes, (…, L)."""
        with np.errstate(over="ignore"):  # a diverging lane is reported by the engine
            return np.stack([np.broadcast_to(np.asarray(row, dtype=np.float32).reshape(-1), lanes) for row in rows])

    def mixtures(terms: list[dict[str, Scalar]]) -> NDArray[np.float32]:
        """Coefficients of received vectors, (…, L, S)."""
        return np.stack([table([own.get(name, 0.0) for name in received]).T for own in terms]).copy()

    return received, Recipe(
        points=mixtures(points),
        factors=np.stack([table([at.get(name, 0.0) for name in names]) for at in asked]),
        scale=table([at.get(trail, 0.0) for at in asked]),
        rescale=table([update.scale.scalar if update.scale else 1.0 for _, update in tracks[trail]]),
        join=table([update.terms[0].scalar for _, update in tracks[trail]]),
        base=mixtures(after),
        length=table([terms.get(trail, 0.0) for terms in after]),
    )


def after_rounds(
    round: Callable[[Recipe, list[Tensor], Tensor], None],
    script: Script,
    steps: int,
    received: Tensors,
    memory: Tensors,
    into: Tensor | None,
) -> Tensors:
    """`w` and the memory of clients after their steps; `w` is written to `into`, if given.

    Each vector that changes has its own steps: `round` executes them from vectors (L, c, P) and writes to another. The
    others are combinations of received and remembered vectors.
    """
    given = {**{f"memory {name}": value for name, value in memory.items()}, **received}
    found: Tensors = {}
    for name, v in script.after[steps - 1].items():
        if trail_of(name) not in script.trail_names:
            found[name] = unchanged(script, v, given)
            continue
        whole = into if name == "w" and into is not None else None
        if whole is None:
            whole = torch.empty_like(received["model"], memory_format=torch.contiguous_format)
        out = whole if whole.dim() == 3 else whole[None]
        names, recipe = recipe_of(script, name, len(out))
        round(recipe, [given[n].expand_as(out) for n in names], out)
        found[name] = whole
    return found


def unchanged(script: Script, v: Combination, given: Tensors) -> Tensor:
    """A vector to which no gradient was added: a combination of received and remembered vectors."""
    terms = script.spread(v).of_something("model").terms
    return combined([(scalar, given[name]) for name, scalar in terms.items()])
