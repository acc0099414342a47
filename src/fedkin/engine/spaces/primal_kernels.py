"""A client's round on parameters, compiled by Numba (`fedkin[fast]`): for linear models and one hidden layer.

It needs no Gram matrix, so neither the order of the samples nor the number of rounds matters, and gradients can be
clipped. A vector is an array of P parameters per lane, in the layout of the model. A step takes two products with the
samples of its batch: scores W xᵀ, as dot products of rows, and the gradient r x, as sums of rows. Both read samples
where they are, in any order. A batch is processed in blocks that stay in a core's cache for both products.

All functions run in one thread and release the global interpreter lock.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import ADDRESS, NUMBER, WIDE
from fedkin.engine.spaces.kernels import addresses
from fedkin.engine.spaces.primal_loops import (
    CACHE_LINE,
    PAIR,
    SAMPLES,
    TALL,
    TALLEST,
    add_square,
    pair_of,
    pair_of_rest,
    scores_of,
    softmax_of,
    sums_of,
)
from fedkin.engine.spaces.recipe import Recipe

STRIP = PAIR * WIDE  # columns of a tile of sums
BLOCK, BLOCK_NUMBERS = 64, 1 << 16  # most samples and numbers of a block; half as many samples for a small layer
SOFTMAX, LOGISTIC, SQUARED = range(3)  # losses

# -- memory ------------------------------------------------------------------------------------------------------------


@compiled("float32[:, ::1](int64, int64)")
def zeros(rows, numbers):  # type: ignore[no-untyped-def]
    """Rows that begin with a cache line each, if `numbers` fill whole ones: vectors in two lines take twice as long."""
    line = CACHE_LINE // NUMBER
    found = np.zeros(rows * numbers + line, dtype=np.float32)
    first = (-found.ctypes.data % CACHE_LINE) // NUMBER
    return found[first : first + rows * numbers].reshape(rows, numbers)


# -- products ----------------------------------------------------------------------------------------------------------


@compiled("(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def add_scores(rows, row, count, columns, many, at, length, out, out_row):  # type: ignore[no-untyped-def]
    """Compute out += rows · columns, over SIMD vectors from the offset `at` in each column, for ⌈many⌉ of SAMPLES."""
    tiles = (count + TALL - 1) // TALL
    for number in range(tiles):
        height = count // tiles + (number < count % tiles)
        for j in range(0, many, SAMPLES):
            tile = (height, rows, row, columns + j * ADDRESS, at, length, out + j * NUMBER, out_row)
            scores_of(tile)
        rows, out = rows + height * row, out + height * out_row


@compiled("(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def add_sums(factors, row, step, count, lines, ahead, at, length, strips, out, out_row):  # type: ignore[no-untyped-def]
    """Compute out += factors @ lines, over strips of two vectors of columns from the offset `at` in each line.

    Meanwhile the lines that are listed at `ahead` are prefetched.
    """
    tiles = (count + TALLEST - 1) // TALLEST
    for _ in range(strips):
        own, place, fetched = factors, out, ahead
        for number in range(tiles):
            height = count // tiles + (number < count % tiles)
            tile = (height, own, row, step, lines, fetched, at, length, place, out_row)
            sums_of(tile)
            own, place, fetched = own + height * row, place + height * out_row, lines
        at, out = at + STRIP * NUMBER, out + STRIP * NUMBER


@compiled("(float32, int64, float32, int64, int64, int64, float32[::1])")
def mix(a, one, b, other, out, length, by):  # type: ignore[no-untyped-def]
    """Compute out = a·one + b·other for any number of parameters: SIMD vectors, then the rest."""
    by[0], by[1] = a, b
    whole = length // WIDE
    if whole > 0:
        pair_of((one, other, by.ctypes.data, out, whole))
    if length % WIDE > 0:
        done = whole * WIDE * NUMBER
        pair_of_rest((one + done, other + done, by.ctypes.data, out + done, length % WIDE))


# -- a linear layer ----------------------------------------------------------------------------------------------------


@compiled("(float32[::1], int64, int64[::1], int64, float32[:, ::1], float32[:, ::1])")
def layer_scores(v, features, columns, many, z, edge):  # type: ignore[no-untyped-def]
    """Scores z = W x + b (O, many) of samples at `columns`, with W and b at the beginning of v; `edge` is a buffer."""
    outputs, whole, rest = len(z), features // WIDE, features % WIDE
    for r in range(outputs):
        z[r] = v[outputs * features + r]
    place = (z.ctypes.data, z.strides[0])
    add_scores(v.ctypes.data, features * NUMBER, outputs, columns.ctypes.data, many, 0, whole, *place)
    if rest > 0:
        # The features of the last vector, with weights of 0 for those that have been added.
        for r in range(outputs):
            for d in range(WIDE):
                edge[r, d] = v[r * features + features - WIDE + d] if d >= WIDE - rest else 0
        last = (features - WIDE) * NUMBER
        add_scores(edge.ctypes.data, edge.strides[0], outputs, columns.ctypes.data, many, last, 1, *place)


@compiled("(float32[:, ::1], int64, int64[::1], int64[::1], int64, float32[::1], float32[:, ::1], float32[::1])")
def layer_gradient(r, features, columns, following, many, g, edge, one):  # type: ignore[no-untyped-def]
    """Add r x to the weights and Σ r to the biases at the beginning of g, for r (O, ≥ many), 0 beyond `many`.

    Meanwhile the samples at `following` are prefetched.
    """
    outputs, strips, rest = len(r), features // STRIP, features % STRIP
    factors = (r.ctypes.data, r.strides[0], NUMBER, outputs, columns.ctypes.data, following.ctypes.data)
    add_sums(*factors, 0, many, strips, g.ctypes.data, features * NUMBER)
    if rest > 0:
        edge[:outputs] = 0
        add_sums(*factors, (features - STRIP) * NUMBER, many, 1, edge.ctypes.data, edge.strides[0])
        for i in range(outputs):
            for d in range(STRIP - rest, STRIP):
                g[i * features + features - STRIP + d] += edge[i, d]
    edge[:outputs, 0] = 0
    ones = np.full(SAMPLES, one.ctypes.data, dtype=np.int64)
    lengths = (r.shape[1] // WIDE, edge.ctypes.data, edge.strides[0])
    add_scores(r.ctypes.data, r.strides[0], outputs, ones.ctypes.data, 1, 0, *lengths)
    for i in range(outputs):
        g[outputs * features + i] += edge[i, 0]


@compiled("(float32[:, ::1], float32[::1], int64, float32, int64)")
def residuals(z, labels, many, weight, loss):  # type: ignore[no-untyped-def]
    """Derivatives weight · (mean(z) − coded(y)) of the loss (`fedkin.models.losses`), in place of z (K, ≥ many).

    For `many` samples with labels y; 0 beyond them.
    """
    if loss == SOFTMAX:
        by = np.full(1, weight, dtype=np.float32)
        softmax_of((z.ctypes.data, z.strides[0], len(z), by.ctypes.data, (many + WIDE - 1) // WIDE))
        for j in range(many):
            z[int(labels[j]), j] -= weight
    else:
        for k in range(len(z)):
            for j in range(many):
                mean = z[k, j] if loss == SQUARED else 1 / (1 + np.exp(-z[k, j]))
                z[k, j] = weight * (mean - labels[j])
    z[:, many:] = 0


# -- a block of samples ------------------------------------------------------------------------------------------------


@compiled(
    "(float32[::1], int64, int64, int64[::1], int64, float32[:, ::1], float32[:, ::1], float32[:, ::1], int64[::1])"
)
def network_scores(v, features, hidden, columns, many, z, top, edge, lines):  # type: ignore[no-untyped-def]
    """Scores of a block of samples: in z, or in `top` where z becomes the hidden units."""
    layer_scores(v, features, columns, many, z, edge)
    if hidden == 0:
        return
    for i in range(hidden):
        for j in range(z.shape[1]):
            if z[i, j] < 0:
                z[i, j] = 0
    classes, output = len(top), hidden * (features + 1)  # W₂, then b₂
    for k in range(classes):
        top[k] = v[output + classes * hidden + k]
    factors = (v.ctypes.data + output * NUMBER, hidden * NUMBER, NUMBER, classes, lines.ctypes.data, lines.ctypes.data)
    add_sums(*factors, 0, hidden, z.shape[1] // STRIP, top.ctypes.data, top.strides[0])


@compiled(
    "(float32[::1], float32[::1], int64, int64, int64[::1], int64[::1],"
    " float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[::1], float32[::1], int64, float32, int64, int64[::1])"
)
def add_gradient(  # type: ignore[no-untyped-def]
    v, g, features, hidden, columns, following, z, top, back, one, labels, many, weight, loss, lines
):
    """Add the gradient of a block of samples at v to g, with weight for each sample."""
    edge = np.empty((max(len(z), len(top)), STRIP), dtype=np.float32)
    network_scores(v, features, hidden, columns, many, z, top, edge, lines)
    if hidden == 0:
        residuals(z, labels, many, weight, loss)
        layer_gradient(z, features, columns, following, many, g, edge, one)
        return
    classes, strips, output = len(top), z.shape[1] // STRIP, hidden * (features + 1)
    weights = v.ctypes.data + output * NUMBER
    residuals(top, labels, many, weight, loss)
    back[:] = 0
    rows_of_top = lines[hidden:].ctypes.data
    factors = (weights, NUMBER, hidden * NUMBER, hidden, rows_of_top, rows_of_top)
    add_sums(*factors, 0, classes, strips, back.ctypes.data, back.strides[0])
    for i in range(hidden):
        for j in range(z.shape[1]):
            if not z[i, j] > 0:
                back[i, j] = 0
    layer_gradient(back, features, columns, following, many, g, edge, one)
    # ∂W₂ = r hᵀ, as dot products over the samples
    product = np.zeros((classes, hidden + -hidden % SAMPLES), dtype=np.float32)
    width = (z.shape[1] // WIDE, product.ctypes.data, product.strides[0])
    add_scores(top.ctypes.data, top.strides[0], classes, lines.ctypes.data, hidden, 0, *width)
    for k in range(classes):
        for i in range(hidden):
            g[output + k * hidden + i] += product[k, i]
        for j in range(many):
            g[output + classes * hidden + k] += top[k, j]


# -- a round -----------------------------------------------------------------------------------------------------------


@compiled("(int64, int64, int64, int64[::1])")
def workspace(features, hidden, outputs, ends):  # type: ignore[no-untyped-def]
    """Samples per block, and what `add_gradient` writes to: scores of both layers, residuals, ones, rows by address."""
    first, widest = hidden if hidden > 0 else outputs, 1
    for k in range(len(ends) - 1):
        widest = max(widest, ends[k + 1] - ends[k])
    # A large layer leaves the cache between blocks, so that fewer and larger ones are faster.
    block = min(widest, max(STRIP, min(BLOCK if first >= BLOCK else BLOCK // 2, BLOCK_NUMBERS // features)))
    width = (block + STRIP - 1) // STRIP * STRIP
    one = np.ones(width, dtype=np.float32)
    z, back = np.empty((first, width), dtype=np.float32), np.empty((hidden, width), dtype=np.float32)
    top, lines = np.empty((outputs, width), dtype=np.float32), np.empty(hidden + outputs + SAMPLES, dtype=np.int64)
    for i in range(hidden):
        lines[i] = z.ctypes.data + i * z.strides[0]
    for k in range(outputs):
        lines[hidden + k] = top.ctypes.data + k * top.strides[0]
    lines[hidden + outputs :] = top.ctypes.data
    return block, z, top, back, one, lines


@compiled("(int64[:, ::1], float32[:, ::1], int64, int64, int64, int64, float32[::1])")
def add_mixture(given, by, lane, first, out, size, pair):  # type: ignore[no-untyped-def]
    """Compute out += Σ by·given of a lane, over the given vectors from `first` on."""
    for s in range(first, given.shape[1]):
        if by[lane, s] != 0:
            mix(1, out, by[lane, s], given[lane, s], out, size, pair)


@compiled(
    "(int64[:, ::1], int64[::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], float32[:, :, ::1], float32[:, ::1], float32[::1], float32[::1],"
    " int64[::1], float32[::1], int64[::1], int64, int64, int64, int64)"
)
def _primal_round(  # type: ignore[no-untyped-def]
    received,
    out,
    points,
    factors,
    scale,
    rescale,
    join,
    base,
    length,
    l2,
    clip,
    starts,
    labels,
    ends,
    features,
    hidden,
    outputs,
    loss,
):
    lanes, steps = join.shape[1], len(ends) - 1
    first = hidden if hidden > 0 else outputs  # outputs of the first layer
    size = (features + 1) * first + ((hidden + 1) * outputs if hidden > 0 else 0)
    room = (size + 4 * WIDE - 1) // (4 * WIDE) * (4 * WIDE)
    clipped, pair = len(clip) > 0, np.empty(2, dtype=np.float32)
    trail, v, g = zeros(lanes, room), zeros(lanes, room), zeros(lanes if clipped else 0, room)

    # Points are received vectors themselves, or mixtures of them.
    mixed = np.zeros((len(points), lanes, room), dtype=np.float32)
    which = np.full((len(points), lanes), -1)
    for s in range(len(points)):
        for lane in range(lanes):
            for i in range(received.shape[1]):
                if points[s, lane, i] != 0:
                    which[s, lane] = i if which[s, lane] == -1 and points[s, lane, i] == 1 else -2
            if which[s, lane] < 0:
                add_mixture(received, points[s], lane, 0, mixed[s, lane].ctypes.data, size, pair)
    at, by = np.empty((lanes, len(points)), dtype=np.int64), np.empty((lanes, len(points)), dtype=np.float32)

    block, z, top, back, one, lines = workspace(features, hidden, outputs, ends)
    square = np.empty(1, dtype=np.float32)

    for k in range(steps):
        for lane in range(lanes):
            own, evaluated = trail[lane].ctypes.data, v[lane].ctypes.data
            for s in range(len(points)):
                by[lane, s] = factors[k, s, lane]
                # Numba releases an array after its last use, and addresses do not count: they are taken in every step.
                at[lane, s] = received[lane, which[s, lane]] if which[s, lane] >= 0 else mixed[s, lane].ctypes.data
            mix(by[lane, 0], at[lane, 0], scale[k, lane], own, evaluated, size, pair)
            add_mixture(at, by, lane, 1, evaluated, size, pair)
            if clipped:
                mix(l2[lane], evaluated, 0, evaluated, g[lane].ctypes.data, size, pair)
            elif rescale[k, lane] != 1:
                mix(rescale[k, lane], own, 0, own, own, size, pair)
        for start in range(ends[k], ends[k + 1], block):
            many = min(block, ends[k + 1] - start)
            columns, following = starts[start:], starts[start + many :]
            for lane in range(lanes):
                into = g[lane] if clipped else trail[lane]
                weight = (np.float32(1) if clipped else join[k, lane]) / np.float32(ends[k + 1] - ends[k])
                ahead = following if lane == 0 else columns  # the first lane fetches for all
                add_gradient(
                    *(v[lane], into, features, hidden, columns, ahead),
                    *(z, top, back, one, labels[start:], many, weight, loss, lines),
                )
        if clipped:
            for lane in range(lanes):
                square[0] = 0
                add_square((g[lane].ctypes.data, room // (4 * WIDE), square.ctypes.data))
                norm = np.sqrt(square[0])
                cut = clip[lane] / norm if norm > clip[lane] or np.isnan(norm) else np.float32(1)
                own = trail[lane].ctypes.data
                mix(rescale[k, lane], own, cut * join[k, lane], g[lane].ctypes.data, own, size, pair)

    for lane in range(lanes):
        last = base[steps - 1]
        mix(last[lane, 0], received[lane, 0], length[steps - 1, lane], trail[lane].ctypes.data, out[lane], size, pair)
        add_mixture(received, last, lane, 1, out[lane], size, pair)


class OrderedSamples(NamedTuple):
    """A client's samples x (n, D) in the order of a round.

    starts  memory addresses of the samples, (E·n + BLOCK,), which end with repetitions of the last
    labels  their labels, (E·n,)
    ends    where the batches begin and end, (T + 1,)
    """

    x: NDArray[np.float32]
    starts: NDArray[np.int64]
    labels: NDArray[np.float32]
    ends: NDArray[np.int64]


def in_order(
    x: NDArray[np.float32], y: NDArray[np.float32], order: NDArray[np.int64], ends: NDArray[np.int64]
) -> OrderedSamples:
    """The samples x (n, D) with labels y (n,) in an order (E·n,)."""
    if x.dtype != np.float32 or x.strides[1] != NUMBER:
        raise ValueError(f"samples with consecutive float32 numbers are needed, not {x.dtype}")
    starts = x.ctypes.data + x.strides[0] * np.append(order, np.full(BLOCK, order[-1]))
    return OrderedSamples(x, starts, y[order], ends)


class Network(NamedTuple):
    """A model: number of features, of hidden units (0: linear), of outputs; loss (SOFTMAX, LOGISTIC, SQUARED)."""

    features: int
    hidden: int
    outputs: int
    loss: int

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        first = (self.features + 1) * (self.hidden or self.outputs)
        return first + ((self.hidden + 1) * self.outputs if self.hidden else 0)


def primal_round(
    recipe: Recipe,
    l2: NDArray[np.float32],
    clip: NDArray[np.float32],
    clients: list[OrderedSamples],
    network: Network,
    received: list[Tensor],
    out: Tensor,
) -> None:
    """A round of clients: received vectors (L, c, P) to models (L, c, P), which are written to `out`.

    With clipping the gradients of the recipe include the penalty of each lane, l2 (L,), and are cut to norms clip (L,);
    without, clip is empty, and the penalty is a part of the recipe.
    """
    size = network.size
    given, into = np.stack([addresses(vectors, size) for vectors in received], axis=-1), addresses(out, size)
    for client, (_, starts, labels, ends) in enumerate(clients):
        _primal_round(given[client], into[client], *recipe, l2, clip, starts, labels, ends, *network)
