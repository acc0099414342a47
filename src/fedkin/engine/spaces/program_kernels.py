"""A client's round with any number of gradients per step, compiled by Numba: for pFedMe, Per-FedAvg, momentum, ….

The steps are matrices of coefficients (`fedkin.engine.spaces.program`), the same at every client, and gradients are
those of `fedkin.engine.spaces.primal_kernels`. Lanes take their rounds one after another: the vectors of one lane stay
in a core's cache, where those of all would not.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import NUMBER, WIDE
from fedkin.engine.spaces.kernels import addresses
from fedkin.engine.spaces.primal_kernels import Network, OrderedSamples, add_gradient, mix, workspace, zeros
from fedkin.engine.spaces.primal_loops import add_square
from fedkin.engine.spaces.program import Program

PIECE = 2048  # numbers of a vector that stay in a core's nearest cache while others are added


@compiled("(int64[::1], float32[::1], int64, int64, float32[::1])")
def combine(given, by, out, size, pair):  # type: ignore[no-untyped-def]
    """Compute out = Σ by·given of vectors at addresses, leaving out those with a factor of 0; `out` is none of them."""
    used, count = np.zeros(len(by) + 2, dtype=np.int64), 0
    for i in range(len(by)):
        if by[i] != 0:
            used[count] = i
            count += 1
    first, second = used[0], used[1] if count > 1 else used[0]
    b = by[second] if count > 1 else np.float32(0)
    for start in range(0, size, PIECE):
        at, many = start * NUMBER, min(PIECE, size - start)
        mix(by[first], given[first] + at, b, given[second] + at, out + at, many, pair)
        for i in used[2:count]:
            mix(1, out + at, by[i], given[i] + at, out + at, many, pair)


@compiled(
    "(int64[::1], int64[::1], int64[::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], float32, float32,"
    " int64[::1], float32[::1], int64[::1], int64, int64, int64, int64)"
)
def _program_round(  # type: ignore[no-untyped-def]
    received, out, asked, at, join, after, l2, clip, starts, labels, ends, features, hidden, outputs, loss
):
    """One lane of one client: from received vectors to changed ones, both as addresses; clip = 0 is no clipping."""
    given, trails, gradients = len(received), join.shape[1], at.shape[1]
    size = (features + 1) * (hidden if hidden > 0 else outputs) + ((hidden + 1) * outputs if hidden > 0 else 0)
    room = (size + 4 * WIDE - 1) // (4 * WIDE) * (4 * WIDE)
    pair, square = np.empty(2, dtype=np.float32), np.empty(1, dtype=np.float32)
    block, z, top, back, one, lines = workspace(features, hidden, outputs, ends)
    v, own = zeros(1, room)[0], zeros(2 * trails + gradients, room)
    # Rows of `own`: trails, gradients, and room for the next trails, which changes places with the trails.
    row, where = np.arange(2 * trails + gradients), np.empty(given + trails + gradients, dtype=np.int64)
    where[:given] = received
    for k in range(len(ends) - 1):
        # Numba releases an array after its last use, and addresses do not count: they are taken in every step.
        for r in range(trails + gradients):
            where[given + r] = own.ctypes.data + row[r] * room * NUMBER
        weight = np.float32(1) / np.float32(ends[k + 1] - ends[k])
        for f in range(asked[k]):
            combine(where[: given + trails + f], at[k, f, : given + trails + f], v.ctypes.data, size, pair)
            g = own[row[trails + f]]
            if clip > 0:
                mix(l2, v.ctypes.data, 0, v.ctypes.data, g.ctypes.data, size, pair)
            else:
                g[:] = 0
            for start in range(ends[k], ends[k + 1], block):
                many = min(block, ends[k + 1] - start)
                columns, following = starts[start:], starts[start + many :]
                ahead = following if f == asked[k] - 1 or start + many < ends[k + 1] else starts[ends[k] :]
                add_gradient(
                    *(v, g, features, hidden, columns, ahead),
                    *(z, top, back, one, labels[start:], many, weight, loss, lines),
                )
            if clip > 0:
                square[0] = 0
                add_square((g.ctypes.data, room // (4 * WIDE), square.ctypes.data))
                norm = np.sqrt(square[0])
                if norm > clip or np.isnan(norm):
                    mix(clip / norm, g.ctypes.data, 0, g.ctypes.data, g.ctypes.data, size, pair)
        for t in range(trails):
            new = row[trails + gradients + t]
            combine(where[given:], join[k, t], own.ctypes.data + new * room * NUMBER, size, pair)
        for t in range(trails):
            row[t], row[trails + gradients + t] = row[trails + gradients + t], row[t]
    for r in range(trails):
        where[given + r] = own.ctypes.data + row[r] * room * NUMBER
    for i in range(len(out)):
        combine(where[: given + trails], after[i], out[i], size, pair)
    own[0, 0] = 0  # it is in use until here


def program_round(
    program: Program,
    l2: NDArray[np.float32],
    clip: NDArray[np.float32],
    clients: list[OrderedSamples],
    network: Network,
    received: list[Tensor],
    out: list[Tensor],
) -> None:
    """A round of clients: received vectors (L, c, P) to those that change, (L, c, P), which are written to `out`.

    Clipping and penalty, l2 and clip (L,), are as in `primal_kernels.primal_round`.
    """
    given, into = (np.stack([addresses(v, network.size) for v in vectors], axis=-1) for vectors in (received, out))
    for client, (_, starts, labels, ends) in enumerate(clients):
        for lane in range(given.shape[1]):
            limits = (l2[lane], clip[lane] if len(clip) else np.float32(0))
            steps = (program.asked, program.at[lane], program.join[lane], program.after[lane, len(ends) - 2])
            _program_round(given[client, lane], into[client, lane], *steps, *limits, starts, labels, ends, *network)
