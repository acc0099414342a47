"""Steps whose gradients are all of one batch, for linear models: pFedMe, Per-FedAvg.

A gradient is r x, with residuals r of the batch's samples x. So a gradient changes scores of the batch by r (x xᵀ), and
further gradients of the same step are found from the products x xᵀ of the batch alone, without the parameters.
"""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkin.engine.spaces.program import Program, program_of
from fedkin.engine.spaces.script import Script

FIT_TOLERANCE = 2e-6  # of coefficients, which are at most about 1
LARGEST_COEFFICIENT = 4.0  # beyond it rounding would be amplified
MOST_VECTORS = 2
MOST_PRODUCTS = 1 << 24  # of the products of all batches of a client
Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


class Batchwise(NamedTuple):
    """Steps of at most two vectors: one that gradients are added to, the leader, and one that follows it.

    start   (V,)              the received vector that each vector starts from
    leader  number of the leader
    fit     (L, T, F, V)      a gradient is evaluated at a combination of the vectors
    inner   (L, T, F, F)      and of the gradients before it
    total   (L, T, F)         a sum of gradients is added to
    lead    (L, T, V)         this combination, which is the leader's next value;
    follow  (L, T, 2)         the other vector's is a combination of its last value and the leader's next
    """

    start: tuple[int, ...]
    leader: int
    fit: Singles
    inner: Singles
    total: Singles
    lead: Singles
    follow: Singles


@lru_cache(maxsize=4)
def batchwise_of(script: Script, lanes: int) -> Batchwise | None:
    """The steps of a script by batch; None if they are not of this kind."""
    return factored(program_of(script, lanes))


def factored(program: Program) -> Batchwise | None:
    """A program by batch; None if its steps are not of this kind."""
    lanes, _, gradients, width = program.at.shape
    trails, given = len(program.changed), len(program.received)
    if gradients < 2 or given > trails or program.join.shape[2] != trails or trails > MOST_VECTORS:
        return None
    at, join, after = (array.astype(np.float64) for array in (program.at, program.join, program.after))
    if not all(np.isfinite(array).all() for array in (at, join, after)):
        return None
    at[:, 0, :, given:-gradients] = join[:, 0, :, :trails] = 0  # trails start at 0
    moved = after[..., given:] @ join  # (L, T, V, V + F): what a step makes of trails and gradients
    added = moved[..., trails:]
    changed = np.concatenate([after[..., :given], moved[..., :trails]], axis=-1)
    leader = int(np.abs(added).sum(axis=(0, 1, 3)).argmax())
    asked = np.arange(gradients) < program.asked[:, None]
    for start in product(range(given), repeat=trails):
        if set(start) != set(range(given)):
            continue
        first = np.broadcast_to(np.eye(given, width - gradients)[list(start)], (lanes, 1, trails, width - gradients))
        basis = np.concatenate([first, after[:, :-1]], axis=1)
        fit = _fitted(at[..., :-gradients], basis, asked)
        lead = _fitted(changed[:, :, [leader]], basis)
        follow = _following(changed, added, basis, leader)
        if fit is not None and lead is not None and follow is not None:
            arrays = (fit, at[..., -gradients:], added[:, :, leader], lead[:, :, 0], follow)
            return Batchwise(start, leader, *(np.ascontiguousarray(array, dtype=np.float32) for array in arrays))
    return None


def _following(changed: Doubles, added: Doubles, basis: Doubles, leader: int) -> Doubles | None:
    """The next value of the other vector, if any: a combination (L, T, 2) of its last and of the leader's next."""
    if changed.shape[2] == 1:
        return np.zeros((*changed.shape[:2], 2))
    other = 1 - leader
    next_leader = np.concatenate([changed[:, :, leader], added[:, :, leader]], axis=-1)
    last = np.concatenate([basis[:, :, other], np.zeros_like(added[:, :, other])], axis=-1)
    rows = np.concatenate([changed[:, :, [other]], added[:, :, [other]]], axis=-1)
    found = _fitted(rows, np.stack([last, next_leader], axis=2))
    return None if found is None else found[:, :, 0]


def _fitted(rows: Doubles, basis: Doubles, asked: NDArray[np.bool_] | None = None) -> Doubles | None:
    """Rows (L, T, F, C) as combinations (L, T, F, N) of a basis (L, T, N, C); None if some that are asked are not."""
    scale = np.abs(basis).max(axis=2, keepdims=True)
    # A coefficient that no vector of the basis has cannot be fitted, and is left as it is: it has to be 0.
    scale[scale == 0] = 1
    rows, basis = rows / scale, basis / scale
    by = rows @ np.linalg.pinv(basis, rcond=FIT_TOLERANCE)
    off = np.abs(by @ basis - rows)
    if asked is not None:
        by, off = np.where(asked[..., None], by, 0), np.where(asked[..., None], off, 0)
    return by if off.max() <= FIT_TOLERANCE and np.abs(by).max() <= LARGEST_COEFFICIENT else None


def pays(by_batch: Batchwise, batch: int, steps: int, features: int, outputs: int) -> bool:
    """Whether it takes fewer multiplications than one gradient after the other, and little memory."""
    lanes, _, gradients, vectors = by_batch.fit.shape
    products = (vectors + 1) * outputs + batch / 2 / lanes
    fewer = products * features + gradients * batch * outputs < 2 * gradients * features * outputs
    return fewer and steps * (batch + 16) ** 2 <= MOST_PRODUCTS
