"""The local steps of softmax regression in sample space, compiled for this machine by Numba (`fedkin[fast]`).

Nearly all of the work is products of a few rows with large matrices that stay the same. A library of linear algebra
copies both factors into an order of its own before it multiplies them. That pays where every number is used hundreds of
times, not with the ten rows of a softmax regression or the forty of a sweep. Here a matrix that is multiplied in every
step is put in order once (`panels`), and samples are put in order a piece at a time while the next piece is fetched.

Softmax sees only how far scores differ, and residuals sum to zero: so everything is kept less the last class's, and one
row of K is saved.

Everything is done by one thread, without Python's lock.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fedkin.vectors import LANE, NUMBER, NUMBER_TYPE, VECTOR, Vectors, vector_code

WIDTH = 2 * LANE  # columns of a panel
LINE = 4 * WIDTH  # bytes of a panel's row


def compiled(signature: str) -> Callable[[Any], Any]:
    """Compile for arguments of these types, once: the result is kept on disk, if there is a place for it."""

    def made(function: Any) -> Any:
        try:
            return njit(signature, nogil=True, error_model="numpy", cache=True)(function)
        except RuntimeError:  # nowhere may be written
            return njit(signature, nogil=True, error_model="numpy")(function)

    return made


# -- rows times panels -------------------------------------------------------------------------------------------------


def panels(columns: Tensor) -> Tensor:
    """The matrices (c, K, N) in panels (c, ⌈N/16⌉, K, 16): sixteen columns side by side, filled up with zeros."""
    count, length, width = columns.shape
    filled = torch.nn.functional.pad(columns, (0, -width % WIDTH))
    return filled.view(count, length, -1, WIDTH).transpose(1, 2).contiguous()


def _tile(height: int) -> Any:
    """Add so many rows times a panel, times a scale each, to a place.

    Every number of the panel is read once for all rows. Meanwhile what comes next is fetched.
    """

    def write(v: Vectors, *places: Any) -> None:
        rows, row, scale, panel, length, out, out_row, ahead, by = places

        def line(k: Any, sums: list[Any]) -> list[Any]:
            columns = [v.load(v.at(panel, (LINE, k), (VECTOR, j))) for j in range(2)]
            v.fetch(v.at(ahead, (by, k)))
            factors = [v.spread(v.at(rows, (row, i), (NUMBER, k))) for i in range(height)]
            return [v.multiply_add(factors[i], columns[j], sums[2 * i + j]) for i in range(height) for j in range(2)]

        sums = v.loop(length, [v.zero] * 2 * height, line)
        for i in range(height):
            by_scale = v.spread(v.at(scale, (NUMBER, i)))
            for j in range(2):
                place = v.at(out, (out_row, i), (VECTOR, j))
                v.store(v.multiply_add(by_scale, sums[2 * i + j], v.load(place)), place)

    return vector_code(write)


# Of sixteen registers two hold a line of the panel and one a row's number, so there may be twelve sums.
MOST, FEWEST = 6, 3
_three_rows, _four_rows, _five_rows, _six_rows = (_tile(height) for height in range(FEWEST, MOST + 1))


@compiled("int64(int64)")
def _tiles(count):  # type: ignore[no-untyped-def]
    return (count + MOST - 1) // MOST


@compiled("(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _add(rows, row, scale, count, panel, length, out, out_row, ahead, ahead_tile, by):  # type: ignore[no-untyped-def]
    """Add rows times a panel, in tiles of about the same height; each fetches its share of what comes next."""
    tiles = _tiles(count)
    for number in range(tiles):
        height = count // tiles + (number < count % tiles)
        tile = (rows, row, scale, panel, length, out, out_row, ahead, by)
        if height == 6:
            _six_rows(tile)
        elif height == 5:
            _five_rows(tile)
        elif height == 4:
            _four_rows(tile)
        else:
            _three_rows(tile)
        rows, scale, out = rows + height * row, scale + height * NUMBER, out + height * out_row
        ahead += ahead_tile


# -- the local steps of softmax regression -----------------------------------------------------------------------------


def _write_residual(v: Vectors, z: Any, row: Any, others: Any, onehot: Any, onehot_row: Any, weight: Any) -> None:
    """In place of the scores z of eight samples, r = weight · (softmax(z) − onehot).

    Both are less the last class's: its score is 0, and its residual is subtracted from the others'.
    """
    (most,) = v.loop(others, [v.zero], lambda k, most: [v.larger(most[0], v.load(v.at(z, (row, k))))])

    def exponential(k: Any, total: list[Any]) -> list[Any]:
        place = v.at(z, (row, k))
        power = v.exp(v.builder.fsub(v.load(place), most))
        v.store(power, place)
        return [v.builder.fadd(total[0], power)]

    last = v.exp(v.builder.fsub(v.zero, most))
    (total,) = v.loop(others, [last], exponential)
    each = v.load(weight)
    share = v.builder.fdiv(each, total)

    def residual(power: Any, k: Any) -> Any:
        label = v.builder.fmul(each, v.load(v.at(onehot, (onehot_row, k))))
        return v.builder.fsub(v.builder.fmul(power, share), label)

    of_last = residual(last, others)

    def less_the_last(k: Any, _: list[Any]) -> list[Any]:
        place = v.at(z, (row, k))
        v.store(v.builder.fsub(residual(v.load(place), k), of_last), place)
        return []

    v.loop(others, [], less_the_last)


_residual = vector_code(_write_residual)


@compiled(
    "(float32[:, :, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1], int64[:, ::1],"
    " float32[:, :, :, ::1], float32[:, :, ::1], float32[:, ::1], float32[:, :, ::1])"
)
def _softmax_steps(  # type: ignore[no-untyped-def]
    known, factors, scale, rescale, join, batches, panels, onehot, weight, trail
):
    clients, rows, samples = trail.shape
    steps, lanes = join.shape
    others = rows // lanes  # classes but the last
    widest = 0
    for k in range(steps):
        widest = max(widest, batches[k, 1] - batches[k, 0])
    z = np.zeros((rows, (widest + WIDTH - 1) // WIDTH * WIDTH), dtype=np.float32)
    by_row = np.empty(rows, dtype=np.float32)
    tiles = _tiles(rows)
    for c in range(clients):
        own = trail[c]
        for k in range(steps):
            start, stop, reach, first = batches[k]
            width = stop - start
            for r in range(rows):
                lane = r // others
                by_row[r] = scale[k, lane]
                for b in range(width):
                    z[r, b] = factors[k, 0, lane] * known[0, c, r, start + b]
                for s in range(1, len(known)):
                    for b in range(width):
                        z[r, b] += factors[k, s, lane] * known[s, c, r, start + b]
            if reach > 0:
                share = reach * LINE // tiles
                for p in range((width + WIDTH - 1) // WIDTH):
                    panel = panels.ctypes.data + c * panels.strides[0] + (first + p) * panels.strides[1]
                    _add(
                        *(own.ctypes.data, own.strides[0], by_row.ctypes.data, rows, panel, reach),
                        *(z.ctypes.data + p * LINE, z.strides[0], panel + panels.strides[1], share, LINE // tiles),
                    )
            for lane in range(lanes):
                for b in range(0, width, LANE):
                    _residual(
                        (
                            *(z.ctypes.data + lane * others * z.strides[0] + b * NUMBER, z.strides[0], others),
                            *(onehot.ctypes.data + c * onehot.strides[0] + (start + b) * NUMBER, onehot.strides[1]),
                            weight.ctypes.data + c * weight.strides[0] + (start + b) * NUMBER,
                        )
                    )
            for r in range(rows):
                lane = r // others
                if rescale[k, lane] != 1:
                    for j in range(samples):
                        own[r, j] *= rescale[k, lane]
                for b in range(width):
                    own[r, start + b] += join[k, lane] * z[r, b]


class Scalars(NamedTuple):
    """What the steps of an algorithm come to, for each of T steps and L lanes.

    A gradient is asked for at Σ factors·(received vectors) + scale·trail. Then the trail is multiplied by `rescale`,
    and `join` times the gradient is added.
    """

    factors: Tensor  # (T, S, L)
    scale: Tensor  # (T, L), as the others
    rescale: Tensor
    join: Tensor


def softmax_steps(
    scalars: Scalars, known: Tensor, batches: Tensor, panels: Tensor, onehot: Tensor, weight: Tensor, trail: Tensor
) -> None:
    """All local steps of clients in sample space, on their trail (c, L·(K−1), n), which is zero before.

    known (S, c, L·(K−1), n + 16)  scores of all samples under received vectors, and room to spare
    batches (T, 4)                 for every step: its samples from … to …, how far the trail reaches, its first panel
    panels (c, P, n, 16)           the Gram matrices, batch by batch
    onehot (c, K, n + 16)          labels
    weight (c, n + 16)             of samples in the mean loss of their batch
    """
    _softmax_steps(*(t.numpy() for t in (known, *scalars, batches, panels, onehot, weight, trail)))


# -- rows times samples ------------------------------------------------------------------------------------------------


def scores(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write weight (c, R, D) times xᵀ of samples x (c, n, D) into out (c, R, n); n is 16 at least."""
    _scores(weight.numpy(), x.numpy(), out.numpy())
    if rest := x.shape[-1] % WIDTH:
        out += weight[..., -rest:] @ x[..., -rest:].mT


def _write_turned(v: Vectors, x: Any, sample: Any, panel: Any, lines: Any) -> None:
    """Sixteen samples as the columns of a panel, sixteen features at a time."""

    def turn(k: Any, _: list[Any]) -> list[Any]:
        for j, h in product(range(2), range(2)):
            rows = [v.load(v.at(x, (sample, j * LANE + i), (LINE, k), (VECTOR, h))) for i in range(LANE)]
            for i, column in enumerate(v.turned(rows)):
                v.store(column, v.at(panel, (WIDTH * LINE, k), (LINE, h * LANE + i), (VECTOR, j)))
        return []

    v.loop(lines, [], turn)


_turn = vector_code(_write_turned)


@compiled("(float32[:, :, :], float32[:, :, ::1], float32[:, :, :])")
def _scores(rows, x, out):  # type: ignore[no-untyped-def]
    clients, samples, features = x.shape
    count, features = rows.shape[1], features // WIDTH * WIDTH
    tiles = _tiles(count)
    panel = np.empty((features, WIDTH), dtype=np.float32)
    z, ones = np.empty((count, WIDTH), dtype=np.float32), np.ones(count, dtype=np.float32)
    for c in range(clients):
        weight = rows.ctypes.data + c * rows.strides[0]
        for start in range(0, samples, WIDTH):
            j = min(start, samples - WIDTH)  # the last sixteen may hold some of those before again
            own = x.ctypes.data + c * x.strides[0] + j * x.strides[1]
            _turn((own, x.strides[1], panel.ctypes.data, features // WIDTH))
            z[:] = 0
            following = own + WIDTH * x.strides[1]
            _add(
                *(weight, rows.strides[1], ones.ctypes.data, count, panel.ctypes.data, features),
                *(z.ctypes.data, z.strides[0], following, WIDTH * x.strides[1] // tiles, LINE // tiles),
            )
            for r in range(count):
                for i in range(WIDTH):
                    out[c, r, j + i] = z[r, i]


def add_sums(less: Tensor, scale: Tensor, x: Tensor, out: Tensor) -> None:
    """Add rows A, times a scale each, times samples x (c, n, D) to out (c, L, K, D).

    The rows of a lane sum to zero, and are given less the last of them: (c, L·(K−1), n), as the scale, (L·(K−1),).
    """
    _add_sums(less.numpy(), scale.numpy(), x.numpy(), out.numpy())
    if rest := x.shape[-1] % WIDTH:
        out[..., -rest:] += restored((scale[:, None] * less) @ x[..., -rest:], out.shape[1])


def restored(less: Tensor, lanes: int) -> Tensor:
    """Rows that sum to zero, (c, L, K, …), from what they are less the last, (c, L·(K−1), …)."""
    less = less.view(len(less), lanes, -1, *less.shape[2:])
    last = less.sum(2, keepdim=True) / -(less.shape[2] + 1)
    return torch.cat([less + last, last], dim=2)


def _write_copied(v: Vectors, x: Any, panels: Any, panel: Any, width: Any) -> None:
    """A sample's line of every panel."""

    def copy(k: Any, _: list[Any]) -> list[Any]:
        for h in range(2):
            v.store(v.load(v.at(x, (LINE, k), (VECTOR, h))), v.at(panels, (panel, k), (VECTOR, h)))
        return []

    v.loop(width, [], copy)


_copy = vector_code(_write_copied)


def _write_classes(v: Vectors, less: Any, row: Any, others: Any, out: Any, out_row: Any, vectors: Any) -> None:
    """Add rows that are given less the last, and together sum to zero, to places."""

    def add(k: Any, _: list[Any]) -> list[Any]:
        def at(i: Any) -> Any:
            return v.load(v.at(less, (row, i), (VECTOR, k)))

        def put(i: Any, vector: Any) -> None:
            place = v.at(out, (out_row, i), (VECTOR, k))
            v.store(v.builder.fadd(v.load(place), vector), place)

        (total,) = v.loop(others, [v.zero], lambda i, total: [v.builder.fadd(total[0], at(i))])
        number = v.builder.sitofp(v.at(others, (1, 1)), NUMBER_TYPE)
        last = v.builder.fneg(v.builder.fdiv(total, v.everywhere(number)))

        def other(i: Any, _: list[Any]) -> list[Any]:
            put(i, v.builder.fadd(at(i), last))
            return []

        v.loop(others, [], other)
        put(others, last)
        return []

    v.loop(vectors, [], add)


_add_classes = vector_code(_write_classes)
TALL, BROAD = 64, 16  # samples, and panels of features, that are put in order at a time


@compiled("(float32[:, :, :], float32[::1], float32[:, :, ::1], float32[:, :, :, :])")
def _add_sums(rows, scale, x, out):  # type: ignore[no-untyped-def]
    clients, samples, features = x.shape
    count, width, lanes = rows.shape[1], features // WIDTH, out.shape[1]
    others = count // lanes
    tiles = _tiles(count)
    most = min(TALL, BROAD * tiles)  # so many samples of the next block are fetched, one with every tile
    block = np.empty((BROAD, most + 1, WIDTH), dtype=np.float32)  # one more, to begin at different places of the cache
    total = np.empty((count, BROAD * WIDTH), dtype=np.float32)
    for c in range(clients):
        factors = rows.ctypes.data + c * rows.strides[0]
        for d in range(0, width, BROAD):
            broad = min(BROAD, width - d)
            total[:] = 0
            for j in range(0, samples, most):
                tall = min(most, samples - j)
                own = x.ctypes.data + c * x.strides[0] + j * x.strides[1] + d * LINE
                for i in range(tall):
                    _copy((own + i * x.strides[1], block.ctypes.data + i * LINE, block.strides[0], broad))
                for p in range(broad):
                    panel, place = block.ctypes.data + p * block.strides[0], total.ctypes.data + p * LINE
                    following = own + (most + p * tiles) * x.strides[1]
                    _add(
                        *(factors + j * NUMBER, rows.strides[1], scale.ctypes.data, count, panel, tall),
                        *(place, total.strides[0], following, x.strides[1], BROAD * LINE // most),
                    )
            for lane in range(lanes):
                less = total.ctypes.data + lane * others * total.strides[0]
                place = out.ctypes.data + c * out.strides[0] + lane * out.strides[1] + d * LINE
                _add_classes((less, total.strides[0], others, place, out.strides[2], 2 * broad))
