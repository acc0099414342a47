"""The steps of an algorithm with any number of gradients and vectors, as matrices, for compiled rounds."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.engine.spaces.combination import Combination, Scalar, doubled
from fedkin.engine.spaces.script import Evaluate, Script, Settle, trail_of


class Program(NamedTuple):
    """Coefficients of T steps in L lanes, with at most F gradients per step.

    received  names of the S vectors that do not change over the steps
    changed   names of the V vectors that change, each with a trail, which starts at 0
    asked     (T,)                  number of gradients of a step
    at        (L, T, F, S + V + F)  a gradient is evaluated at a combination of received vectors, trails, and the
                                    gradients before it
    join      (L, T, V, V + F)      then every trail becomes a combination of trails and gradients
    after     (L, T, V, S + V)      the vectors after the step, as combinations of received vectors and trails
    """

    received: list[str]
    changed: list[str]
    asked: NDArray[np.int64]
    at: NDArray[np.float32]
    join: NDArray[np.float32]
    after: NDArray[np.float32]


@lru_cache(maxsize=4)
def is_tracked(script: Script) -> bool:
    """Whether each vector takes one gradient per step, at a point of its own: then it has a `Recipe`."""
    return script.tracks() is not None


@lru_cache(maxsize=4)
def program_of(script: Script, lanes: int) -> Program:
    """The steps of all vectors of a script as matrices."""
    steps = script.steps[: len(script.after)]
    asked = [[i for i in instructions if isinstance(i, Evaluate)] for instructions in steps]
    updates = [{one.trail: one for i in own if isinstance(i, Settle) for one in i.updates} for own in steps]
    # Trails of the optimizer's own vectors, such as a velocity, are not among the vectors after the steps.
    changed = [name for name in script.after[0] if trail_of(name) in script.trail_names]
    trails = [trail_of(name) for name in changed]
    trails += sorted(script.trail_names - set(trails))
    gradients = [f"fresh {f}" for f in range(max(map(len, asked)))]
    points = [
        [script.spread(Combination({term.name: doubled(term.scalar) for term in one.at})).terms for one in own]
        for own in asked
    ]
    after = [[script.spread(vectors[name]).terms for name in changed] for vectors in script.after]
    named = {name for rows in (*points, *after) for terms in rows for name in terms}
    received = sorted(named - set(trails) - set(gradients))

    def matrix(rows: list[list[dict[str, Scalar]]], columns: list[str], height: int) -> NDArray[np.float32]:
        """Scalars as (L, T, height, columns); missing rows are 0."""
        out = np.zeros((lanes, len(rows), height, len(columns)), dtype=np.float32)
        place = {name: c for c, name in enumerate(columns)}
        with np.errstate(over="ignore"):  # a diverging lane is reported by the engine
            for k, own in enumerate(rows):
                for r, terms in enumerate(own):
                    for name, scalar in terms.items():
                        out[:, k, r, place[name]] = np.asarray(scalar, dtype=np.float32).reshape(-1)
        return out

    joined: list[list[dict[str, Scalar]]] = [
        [
            {trail: 1.0}
            if trail not in own
            else {
                trail: own[trail].scale.scalar if own[trail].scale else 1.0,  # type: ignore[union-attr]
                **{term.name: term.scalar for term in own[trail].terms},
            }
            for trail in trails
        ]
        for own in updates
    ]
    return Program(
        received,
        changed,
        np.array([len(own) for own in asked]),
        matrix(points, [*received, *trails, *gradients], len(gradients)),
        matrix(joined, [*trails, *gradients], len(trails)),
        matrix(after, [*received, *trails], len(changed)),
    )
