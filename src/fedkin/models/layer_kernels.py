"""Normalisation, rectified units and pooling of images in one pass over memory, compiled by Numba (`fedkin[fast]`).

Images are (n, H, W, C), as in the channels-last format. The layers compute y = max(floor, largest a·x + b of a window).
Here a and b differ between channels, and between samples if groups of channels are normalised. Windows of k × k pixels
do not overlap. SIMD vectors are of consecutive channels: the last one overlaps with the one before if their number does
not divide the channels, and numbers of both are written twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedkin.compiler.compilation import compiled
from fedkin.compiler.vectors import LANE, NUMBER, VectorWriter, vector_code

VECTOR_LENGTHS = (LANE, LANE // 2)  # numbers per vector; shorter ones for few channels
FEWEST_CHANNELS = VECTOR_LENGTHS[-1]
WINDOWS = (1, 2, 3)  # k
IDLE = 255  # instead of a position in the window, if y is the floor

# -- innermost loops ---------------------------------------------------------------------------------------------------


def _write_moments(v: VectorWriter, _: int, *places: Any) -> None:
    """Code for Σ d and Σ d² over pixels, with d = x − x₀: that of the first pixel is nearer to the mean than 0 is."""
    x, pixel, pixels, first, sums, squares = places
    begin = v.load(x)

    def add(p: Any, found: list[Any]) -> list[Any]:
        d = v.builder.fsub(v.load(v.at(x, (pixel, p))), begin)
        return [v.builder.fadd(found[0], d), v.multiply_add(d, d, found[1])]

    total, square = v.loop(pixels, [v.zero, v.zero], add)
    for value, place in ((begin, first), (total, sums), (square, squares)):
        v.store(value, place)


def _over_windows(v: VectorWriter, size: int, pixel: Any, row: Any, down: Any, across: Any) -> Callable[..., list[Any]]:
    """A loop over windows. Its body takes a window's number and the offsets of its pixels."""
    column_step, row_step = (v.at(v.number(0), (step, size)) for step in (pixel, row))

    def loop(vectors: list[Any], body: Callable[[Any, list[Any], list[Any]], list[Any]]) -> list[Any]:
        def of_row(i: Any, found: list[Any]) -> list[Any]:
            def window(j: Any, found: list[Any]) -> list[Any]:
                corner = v.at(v.number(0), (row_step, i), (column_step, j))
                pixels = [v.at(corner, (row, t // size), (pixel, t % size)) for t in range(size**2)]
                return body(v.at(j, (across, i)), pixels, found)

            return v.loop(across, found, window)

        return v.loop(down, vectors, of_row)

    return loop


def _write_largest(v: VectorWriter, size: int, *places: Any) -> None:
    """Code for y, and the position of the largest a·x + b in every window."""
    x, pixel, row, down, across, scale, shift, floor, out, which, channels = places
    a, b, least = v.load(scale), v.load(shift), v.spread(floor)

    def window(q: Any, pixels: list[Any], _: list[Any]) -> list[Any]:
        best = place = None
        for t, offset in enumerate(pixels):
            value = v.multiply_add(a, v.load(v.at(x, (1, offset))), b)
            if best is None:
                best, place = value, v.words(0)
                continue
            # A NaN stays the largest, as in PyTorch: a model that has diverged is to be seen.
            larger = v.builder.fcmp_ordered(">", value, best)
            larger = v.builder.or_(larger, v.builder.fcmp_unordered("uno", value, value))
            best, place = v.builder.select(larger, value, best), v.builder.select(larger, v.words(t), place)
        idle = v.builder.fcmp_ordered("<=", best, least)
        v.store(v.builder.select(idle, least, best), v.at(out, (pixel, q)))
        v.store_bytes(v.builder.select(idle, v.words(IDLE), place), v.at(which, (channels, q)))
        return []

    _over_windows(v, size, pixel, row, down, across)([], window)


def _write_products(v: VectorWriter, size: int, *places: Any) -> None:
    """Code for Σ g and Σ g·d over pixels, with g the derivative by y where x has reached it, and d = x − x₀."""
    x, pixel, row, down, across, given, which, channels, sums, products = places
    begin = v.load(x)

    def window(q: Any, pixels: list[Any], found: list[Any]) -> list[Any]:
        g, place = v.load(v.at(given, (pixel, q))), v.load_bytes(v.at(which, (channels, q)))
        total, product = found
        for t, offset in enumerate(pixels):
            own = v.builder.select(v.builder.icmp_signed("==", place, v.words(t)), g, v.zero)
            total = v.builder.fadd(total, own)
            product = v.multiply_add(own, v.builder.fsub(v.load(v.at(x, (1, offset))), begin), product)
        return [total, product]

    totals = _over_windows(v, size, pixel, row, down, across)([v.zero, v.zero], window)
    for value, out in zip(totals, (sums, products), strict=True):
        v.store(value, out)


def _write_derivatives(v: VectorWriter, size: int, *places: Any, normed: bool) -> None:
    """Code for the derivative by x: a·g, and where groups are normalised slope·x + shift for what the moments do."""
    x, pixel, row, down, across, given, which, channels, scale, slope, shift, out = places
    a, by, more = (v.load(place) for place in (scale, slope, shift))

    def window(q: Any, pixels: list[Any], _: list[Any]) -> list[Any]:
        g, place = v.builder.fmul(a, v.load(v.at(given, (pixel, q)))), v.load_bytes(v.at(which, (channels, q)))
        for t, offset in enumerate(pixels):
            own = v.builder.select(v.builder.icmp_signed("==", place, v.words(t)), g, v.zero)
            if normed:
                own = v.builder.fadd(own, v.multiply_add(by, v.load(v.at(x, (1, offset))), more))
            v.store(own, v.at(out, (1, offset)))
        return []

    _over_windows(v, size, pixel, row, down, across)([], window)


def _of_any_form(write: Callable[..., None], windows: Sequence[int]) -> Any:
    """Code for windows of every size, and vectors of every length. The first two arguments are k and the length."""

    def write_all(v: VectorWriter, size: Any, lane: Any, *places: Any) -> None:
        forms = {
            LANE * k + lane: partial(write, VectorWriter(v.builder, lane), k, *places)
            for k in windows
            for lane in VECTOR_LENGTHS
        }
        v.choose(v.at(lane, (LANE, size)), forms)

    return vector_code(write_all)


moments_of = _of_any_form(_write_moments, [1])
largest_of, products_of = _of_any_form(_write_largest, WINDOWS), _of_any_form(_write_products, WINDOWS)
derivatives_of = _of_any_form(partial(_write_derivatives, normed=True), WINDOWS)
plain_derivatives_of = _of_any_form(partial(_write_derivatives, normed=False), WINDOWS)

# -- layers ------------------------------------------------------------------------------------------------------------


@compiled("(int64,)")
def _length(channels):  # type: ignore[no-untyped-def]
    """How many channels a vector has."""
    return VECTOR_LENGTHS[0] if channels >= VECTOR_LENGTHS[0] else VECTOR_LENGTHS[1]


@compiled("(int64, int64, int64)")
def _vector_start(number, lane, channels):  # type: ignore[no-untyped-def]
    """The offset of a vector of channels in bytes."""
    return NUMBER * min(number * lane, channels - lane)


@compiled(
    "(float32[:, :, :, ::1], int64, float32[::1], float32[::1], int64, float64, float32,"
    " float32[:, :, :, ::1], uint8[:, :, :, ::1], float64[:, :, ::1])"
)
def block_values(x, size, gain, bias, groups, eps, floor, out, which, moments):  # type: ignore[no-untyped-def]
    """Compute y (n, H/k, W/k, C), the positions, and of each group the mean and 1/√(variance + ε), (n, G, 2).

    groups  G (0: x is not normalised; there are no moments)
    """
    samples, height, width, channels = x.shape
    lane = _length(channels)
    vectors = (channels + lane - 1) // lane
    pixel, row, pixels = NUMBER * channels, NUMBER * channels * width, height * width
    scale, shift = np.ones(channels, dtype=np.float32), np.zeros(channels, dtype=np.float32)
    least = np.full(1, floor, dtype=np.float32)
    first, sums, squares = np.empty((3, channels), dtype=np.float32)
    for n in range(samples):
        start = x[n].ctypes.data
        if groups > 0:
            for number in range(vectors):
                c = _vector_start(number, lane, channels)
                into = (first.ctypes.data + c, sums.ctypes.data + c, squares.ctypes.data + c)
                moments_of((1, lane, start + c, pixel, pixels, into[0], into[1], into[2]))
            each = channels // groups
            for group in range(groups):
                mean, variance = 0.0, 0.0
                for c in range(group * each, (group + 1) * each):
                    mean += (first[c] + sums[c] / np.float64(pixels)) / each
                for c in range(group * each, (group + 1) * each):
                    own = sums[c] / np.float64(pixels)
                    # Σ (x − mean)² of a channel: about its own mean, and that of its mean.
                    variance += squares[c] / np.float64(pixels) - own * own + (first[c] + own - mean) ** 2
                factor = 1 / np.sqrt(max(variance / each, 0.0) + eps)
                moments[n, group, 0], moments[n, group, 1] = mean, factor
                for c in range(group * each, (group + 1) * each):
                    scale[c] = gain[c] * factor
                    shift[c] = bias[c] - mean * factor * gain[c]
        for number in range(vectors):
            c = _vector_start(number, lane, channels)
            by = (scale.ctypes.data + c, shift.ctypes.data + c, least.ctypes.data)
            to = (out[n].ctypes.data + c, which[n].ctypes.data + c // NUMBER)
            windows = (start + c, pixel, row, height // size, width // size)
            largest_of((size, lane, *windows, by[0], by[1], by[2], to[0], to[1], channels))


@compiled(
    "(float32[:, :, :, ::1], int64, float32[::1], int64, float32[:, :, :, ::1], uint8[:, :, :, ::1],"
    " float64[:, :, ::1], float32[:, :, :, ::1], float64[:, ::1])"
)
def block_derivatives(x, size, gain, groups, given, which, moments, out, into):  # type: ignore[no-untyped-def]
    """Compute the derivative by x, and those by gain and bias (2, C), from the one by y.

    With x̂ = (x − mean)·r, g the derivative by a·x + b, and means over a group: r·(gain·g − mean(gain·g) −
    x̂·mean(gain·g·x̂)). If x is not normalised, its values are not looked at.
    """
    samples, height, width, channels = out.shape
    lane = _length(channels)
    vectors = (channels + lane - 1) // lane
    pixel, row = NUMBER * channels, NUMBER * channels * width
    scale = np.ones(channels, dtype=np.float32)
    slope, shift, sums, products = np.zeros((4, channels), dtype=np.float32)
    covered = (height // size * size, width // size * size)
    for n in range(samples):
        if groups > 0:
            for number in range(vectors):
                c = _vector_start(number, lane, channels)
                windows = (x[n].ctypes.data + c, pixel, row, height // size, width // size)
                of = (given[n].ctypes.data + c, which[n].ctypes.data + c // NUMBER, channels)
                products_of((size, lane, *windows, *of, sums.ctypes.data + c, products.ctypes.data + c))
            each = channels // groups
            count = np.float64(each * height * width)
            for group in range(groups):
                mean, factor = moments[n, group, 0], moments[n, group, 1]
                total, along = 0.0, 0.0
                for c in range(group * each, (group + 1) * each):
                    product = (products[c] - (mean - x[n, 0, 0, c]) * sums[c]) * factor  # Σ g·x̂
                    into[0, c] += product
                    into[1, c] += sums[c]
                    total += gain[c] * np.float64(sums[c])
                    along += gain[c] * product
                for c in range(group * each, (group + 1) * each):
                    scale[c] = gain[c] * factor
                    slope[c] = -factor * factor * along / count
                    shift[c] = -factor * total / count + factor * factor * along / count * mean
        for i in range(height):  # pixels that are in no window
            for j in range(covered[1] if i < covered[0] else 0, width):
                for c in range(channels):
                    out[n, i, j, c] = slope[c] * x[n, i, j, c] + shift[c] if groups > 0 else np.float32(0)
        for number in range(vectors):
            c = _vector_start(number, lane, channels)
            tiles = (pixel, row, height // size, width // size)
            of = (given[n].ctypes.data + c, which[n].ctypes.data + c // NUMBER, channels)
            by = (scale.ctypes.data + c, slope.ctypes.data + c, shift.ctypes.data + c)
            to = out[n].ctypes.data + c
            if groups > 0:
                derivatives_of((size, lane, x[n].ctypes.data + c, *tiles, *of, *by, to))
            else:
                plain_derivatives_of((size, lane, to, *tiles, *of, *by, to))
