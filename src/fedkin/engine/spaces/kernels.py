"""A client's round of softmax regression in sample space, compiled by Numba (`fedkin[fast]`).

Most of the time is spent in products of a few rows with large constant matrices. A BLAS library packs both factors
before it multiplies them, which is worthwhile if every number is used hundreds of times, but not for the ten rows of a
softmax regression or the forty of a sweep. Here a matrix that is used in every step is packed once (`panels`), and
samples are packed in blocks while the next block is prefetched.

Softmax depends on differences of scores only, and residuals sum to zero: scores and residuals are stored relative to
the last class, which saves one of K rows. A bias is the weight of an additional last feature that is always 1.

All functions run in one thread and release the global interpreter lock.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import LANE, NUMBER
from fedkin.engine.spaces.inner_loops import (
    LINE,
    MOST,
    WIDTH,
    copy_lines,
    five_rows,
    four_rows,
    join_residuals,
    join_residuals_of_rest,
    mixture_of,
    mixture_of_rest,
    six_rows,
    three_rows,
    turn_samples,
)
from fedkin.engine.spaces.recipe import Recipe

# -- rows times panels -------------------------------------------------------------------------------------------------


def panels(columns: Tensor) -> Tensor:
    """Pack matrices (c, K, N) into panels (c, ⌈N/16⌉, K, 16) of sixteen columns, padded with zeros."""
    count, length, width = columns.shape
    filled = torch.nn.functional.pad(columns, (0, -width % WIDTH))
    return filled.view(count, length, -1, WIDTH).transpose(1, 2).contiguous()


@compiled("int64(int64)")
def _tiles(count):  # type: ignore[no-untyped-def]
    return (count + MOST - 1) // MOST


@compiled("(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _add(  # type: ignore[no-untyped-def]
    rows, row, scale, count, panel, length, out, out_row, ahead, fetching, ahead_tile, by
):
    """Compute out += scale · (rows @ panel) in tiles of similar height; `fetching` of them prefetch at `ahead`."""
    tiles = _tiles(count)
    for number in range(tiles):
        height = count // tiles + (number < count % tiles)
        tile = (rows, row, scale, panel, length, out, out_row, ahead, by)
        if height == 6:
            six_rows(tile)
        elif height == 5:
            five_rows(tile)
        elif height == 4:
            four_rows(tile)
        else:
            three_rows(tile)
        rows, scale, out = rows + height * row, scale + height * NUMBER, out + height * out_row
        if number + 1 < fetching:
            ahead += ahead_tile
        else:
            ahead, by = panel, 0


# -- received vectors --------------------------------------------------------------------------------------------------


@compiled("(int64, int64, int64, int64, int64, int64, int64)")
def _mix(given, by, count, at, plus, out, length):  # type: ignore[no-untyped-def]
    """Compute out = plus + Σ by·given for any number of parameters: SIMD vectors, then the rest."""
    whole = length // LANE * LANE
    if whole > 0:
        mixture_of((given, by, count, at, plus, out, whole // LANE))
    if whole < length:
        done = whole * NUMBER
        mixture_of_rest((given, by, count, at + done, plus + done, out + done, length - whole))


@compiled("(int64[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1])")
def mixed_weights(given, by, whole, less):  # type: ignore[no-untyped-def]
    """Weights Σ by·given (L, S), relative to the last class: (L·(K−1), D+1). `whole` is a buffer (K, D+1)."""
    lanes, count = given.shape
    classes, features = whole.shape[0], whole.shape[1] - 1
    others = classes - 1
    for lane in range(lanes):
        addresses, scalars = given.ctypes.data + lane * given.strides[0], by.ctypes.data + lane * by.strides[0]
        whole[:] = 0
        for k in range(classes):
            row = whole.ctypes.data + k * whole.strides[0]
            _mix(addresses, scalars, count, k * features * NUMBER, row, row, features)
            end, bias = row + features * NUMBER, (classes * features + k) * NUMBER
            _mix(addresses, scalars, count, bias, end, end, 1)
        for k in range(others):
            for d in range(features + 1):
                less[lane * others + k, d] = whole[k, d] - whole[others, d]


# -- rows times samples ------------------------------------------------------------------------------------------------


@compiled("(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1])")
def scores(weight, x, panel, out):  # type: ignore[no-untyped-def]
    """Scores out (R, ≥ n) of n ≥ 16 samples x (n, D) under weights (R, D+1). `panel` is a buffer (D+1, 16)."""
    samples, features = x.shape
    rows, tiles, whole = len(weight), _tiles(len(weight)), features // WIDTH * WIDTH
    z, ones = np.empty((rows, WIDTH), dtype=np.float32), np.ones(rows, dtype=np.float32)
    panel[features] = 1
    for start in range(0, samples, WIDTH):
        j = min(start, samples - WIDTH)  # the last sixteen samples may overlap the previous ones
        own = x.ctypes.data + j * x.strides[0]
        if whole > 0:
            turn_samples((own, x.strides[0], panel.ctypes.data, whole // WIDTH))
        for d in range(whole, features):
            for i in range(WIDTH):
                panel[d, i] = x[j + i, d]
        z[:] = 0
        following = own + WIDTH * x.strides[0]
        _add(
            *(weight.ctypes.data, weight.strides[0], ones.ctypes.data, rows, panel.ctypes.data, features + 1),
            *(z.ctypes.data, z.strides[0], following, tiles, WIDTH * x.strides[0] // tiles, LINE // tiles),
        )
        for r in range(rows):
            for i in range(WIDTH):
                out[r, j + i] = z[r, i]


TALL, BROAD = 64, 16  # samples and panels of features that are packed at a time


@compiled("(float32[:, ::1], float32[::1], float32[:, ::1], int64, float32[:, ::1])")
def sums(rows, scale, x, first, total):  # type: ignore[no-untyped-def]
    """Compute total = scale · (rows @ x) for up to BROAD panels of features from `first`.

    rows (R, n), samples x (n, D), total (≥ R, 16·BROAD). The features are followed by one that is always 1.
    """
    samples, features = x.shape
    count, width, rest = len(scale), features // WIDTH, features % WIDTH
    broad, full = min(BROAD, width + 1 - first), min(BROAD, width - first)
    tiles = _tiles(count)
    most = min(TALL, BROAD * tiles)  # samples per block: one sample of the next block is prefetched per tile
    fetching = most // BROAD
    block = np.empty(
        (BROAD, most + 1, WIDTH), dtype=np.float32
    )  # one more, so that panels start in different cache sets
    total[:] = 0
    for j in range(0, samples, most):
        tall = min(most, samples - j)
        own = x.ctypes.data + j * x.strides[0] + first * LINE
        for i in range(tall):
            if full > 0:
                copy_lines((own + i * x.strides[0], block.ctypes.data + i * LINE, block.strides[0], full))
            if full < broad:
                for d in range(rest):
                    block[full, i, d] = x[j + i, width * WIDTH + d]
                block[full, i, rest] = 1
        following = own + most * x.strides[0] if j + most < samples else x.ctypes.data + (first + BROAD) * LINE
        for p in range(broad):
            panel, place = block.ctypes.data + p * block.strides[0], total.ctypes.data + p * LINE
            _add(
                *(rows.ctypes.data + j * NUMBER, rows.strides[0], scale.ctypes.data, count, panel, tall),
                *(place, total.strides[0], following, fetching, x.strides[0], BROAD * LINE // tall),
            )
            following += fetching * x.strides[0]


@compiled(
    "(float32[:, ::1], float32[::1], float32[:, ::1], int64[:, ::1], float32[:, ::1], int64[::1], float32[:, ::1])"
)
def models(trail, scale, x, given, by, out, total):  # type: ignore[no-untyped-def]
    """Parameters of L lanes: out = Σ by·given (L, S) + scale · (trail @ x) with samples x (n, D).

    The K rows of a lane sum to zero; the trail (L·(K−1), n) is relative to the last of them. `total` is a buffer
    (L·(K−1) + 1, 16·BROAD).
    """
    (lanes, count), (rows, features) = given.shape, (len(scale), x.shape[1])
    others = rows // lanes
    for first in range(0, features // WIDTH + 1, BROAD):
        sums(trail, scale, x, first, total)
        columns = min(BROAD * WIDTH, features - first * WIDTH)
        with_bias = columns < BROAD * WIDTH
        for lane in range(lanes):
            addresses, scalars = given.ctypes.data + lane * given.strides[0], by.ctypes.data + lane * by.strides[0]
            less, last = total[lane * others : (lane + 1) * others], total[rows]
            last[:] = 0
            for k in range(others):
                for b in range(columns + with_bias):
                    last[b] -= less[k, b]
            for b in range(columns + with_bias):
                last[b] /= others + 1
            for k in range(others + 1):
                if k < others:
                    for b in range(columns + with_bias):
                        less[k, b] += last[b]
                plus = total.ctypes.data + (lane * others + k if k < others else rows) * total.strides[0]
                at, bias = (k * features + first * WIDTH) * NUMBER, ((others + 1) * features + k) * NUMBER
                _mix(addresses, scalars, count, at, plus, out[lane] + at, columns)
                if with_bias:
                    _mix(addresses, scalars, count, bias, plus + columns * NUMBER, out[lane] + bias, 1)


# -- the local steps of softmax regression -----------------------------------------------------------------------------


@compiled("(int64, int64, int64, int64, int64, int64, int64)")
def _join(z, onehot, trail, rows, others, weight, samples):  # type: ignore[no-untyped-def]
    """Compute trail += weight · (softmax(z) − onehot) for any number of samples: SIMD vectors, then the rest."""
    whole = samples // LANE * LANE
    if whole > 0:
        join_residuals((z, onehot, trail, rows, others, weight, whole // LANE))
    if whole < samples:
        done = whole * NUMBER
        join_residuals_of_rest((z + done, onehot + done, trail + done, rows, others, weight, samples - whole))


@compiled(
    "(float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], int64[:, ::1],"
    " float32[:, :, ::1], float32[:, ::1], float32[:, ::1])"
)
def softmax_steps(  # type: ignore[no-untyped-def]
    known, factors, scale, rescale, join, batches, panels, onehot, trail
):
    """The local steps: updates the trail (L·(K−1), n), which is zero at first.

    `known` (N, L·(K−1), n) are the scores of all samples under the points. For the others see `Recipe` and
    `PackedClients`.
    """
    steps, rows, lanes = len(batches), len(trail), join.shape[1]
    others = rows // lanes  # K − 1
    widest = 0
    for k in range(steps):
        widest = max(widest, batches[k, 1] - batches[k, 0])
    z = np.zeros((rows, (widest + WIDTH - 1) // WIDTH * WIDTH), dtype=np.float32)
    strides = np.array([z.strides[0], onehot.strides[0], trail.strides[0]])
    nothing, weight = np.zeros(widest, dtype=np.float32), np.empty(1, dtype=np.float32)
    points, by = np.empty(len(known), dtype=np.int64), np.empty(len(known), dtype=np.float32)
    by_row, tiles = np.empty(rows, dtype=np.float32), _tiles(rows)
    for k in range(steps):
        start, stop, reach, first = batches[k]
        width, at = stop - start, start * NUMBER
        for r in range(rows):
            lane = r // others
            by_row[r] = scale[k, lane]
            for s in range(len(known)):
                points[s] = known.ctypes.data + s * known.strides[0] + r * known.strides[1]
                by[s] = factors[k, s, lane]
            place = z.ctypes.data + r * z.strides[0]
            _mix(points.ctypes.data, by.ctypes.data, len(known), at, nothing.ctypes.data, place, width)
        if reach > 0:
            share = reach * LINE // tiles
            for p in range((width + WIDTH - 1) // WIDTH):
                panel = panels.ctypes.data + (first + p) * panels.strides[0]
                _add(
                    *(trail.ctypes.data, trail.strides[0], by_row.ctypes.data, rows, panel, reach),
                    *(z.ctypes.data + p * LINE, z.strides[0], panel + panels.strides[0], tiles, share, LINE // tiles),
                )
        for lane in range(lanes):
            own = slice(lane * others, (lane + 1) * others)
            if rescale[k, lane] != 1:
                trail[own] *= rescale[k, lane]
            weight[0] = join[k, lane] / width
            _join(
                *(z[own].ctypes.data, onehot.ctypes.data + at, trail[own].ctypes.data + at),
                *(strides.ctypes.data, others, weight.ctypes.data, width),
            )


# -- a round -----------------------------------------------------------------------------------------------------------


class PackedClients(NamedTuple):
    """Clients with n samples each.

    x        (c, n, D)       samples
    onehot   (c, K, n)       labels
    panels   (c, P, n, 16)   Gram matrices, batch by batch
    batches  (T, 4)          for every step: first sample, end, end of the nonzero part of the trail, first panel
    """

    x: NDArray[np.float32]
    onehot: NDArray[np.float32]
    panels: NDArray[np.float32]
    batches: NDArray[np.int64]


@compiled(
    "(int64[:, :, ::1], int64[:, ::1], float32[:, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[:, ::1], float32[:, :, ::1], float32[:, ::1],"
    " float32[:, :, ::1], float32[:, :, ::1], float32[:, :, :, ::1], int64[:, ::1])"
)
def _softmax_round(  # type: ignore[no-untyped-def]
    received, out, points, factors, scale, rescale, join, base, length, x, onehot, panels, batches
):
    clients, samples, features = x.shape
    lanes, others, steps = join.shape[1], onehot.shape[1] - 1, len(batches)
    rows = lanes * others
    whole = np.empty((others + 1, features + 1), dtype=np.float32)
    weight = np.empty((rows, features + 1), dtype=np.float32)
    panel = np.empty((features + 1, WIDTH), dtype=np.float32)
    known = np.empty((len(points), rows, samples), dtype=np.float32)
    trail = np.empty((rows, samples), dtype=np.float32)
    total = np.empty((rows + 1, BROAD * WIDTH), dtype=np.float32)
    by_row = np.empty(rows, dtype=np.float32)
    for r in range(rows):
        by_row[r] = length[steps - 1, r // others]
    for c in range(clients):
        for s in range(len(points)):
            mixed_weights(received[c], points[s], whole, weight)
            scores(weight, x[c], panel, known[s])
        trail[:] = 0
        softmax_steps(known, factors, scale, rescale, join, batches, panels[c], onehot[c], trail)
        models(trail, by_row, x[c], received[c], base[steps - 1], out[c], total)


def softmax_round(recipe: Recipe, clients: PackedClients, received: list[Tensor], out: Tensor) -> None:
    """A round of clients: received vectors (L, c, P) to models (L, c, P), which are written to `out`."""
    size = (clients.x.shape[-1] + 1) * clients.onehot.shape[1]
    starts = np.stack([addresses(vectors, size) for vectors in received], axis=-1)
    _softmax_round(starts, addresses(out, size), *recipe, *clients)


def addresses(vectors: Tensor, size: int) -> NDArray[np.int64]:
    """Memory addresses (c, L) of vectors (L, c, P) with P = size."""
    lanes, clients, own = vectors.shape
    if own != size or vectors.dtype != torch.float32 or vectors.stride(-1) != 1:
        raise ValueError(f"vectors of {size} float32 numbers are needed, not of {own} {vectors.dtype}")
    lane, client, _ = vectors.stride()
    places: NDArray[np.int64] = np.arange(clients)[:, None] * client + np.arange(lanes) * lane
    return vectors.data_ptr() + NUMBER * places
