"""The innermost loops of `fedkin.engine.spaces.primal_kernels`, as SIMD code."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fedkin.compiler.vectors import ADDRESS, ADDRESS_TYPE, LANE, NUMBER, WIDE, VectorWriter, vector_code

# Of 16 registers, ten are for sums, of the 32 of wide vectors twenty: enough to hide the latency of an addition, and
# most layers have a multiple of five or ten outputs, or many.
TALL, SAMPLES = 5, 2 * WIDE // LANE  # a tile of scores: most rows, which stay in the nearest cache, and columns
TALLEST, PAIR = 5 * WIDE // LANE, 2  # a tile of sums: most rows, and SIMD vectors of columns
CACHE_LINE = 64  # bytes


def _tiles(write: Callable[..., None], tallest: int) -> Any:
    """Code of tiles of any height up to the tallest. The height is the first argument."""

    def write_all(v: VectorWriter, height: Any, *places: Any) -> None:
        v.choose(height, {number: partial(write, v, number, *places) for number in range(1, tallest + 1)})

    return vector_code(write_all, WIDE)


def _write_scores(v: VectorWriter, height: int, *places: Any) -> None:
    """Code for out += rows · columns of `height` rows and some columns, all with consecutive numbers.

    The starts of the columns are listed in memory: samples in any order need not be gathered.
    """
    rows, row, columns, at, length, out, out_row = places
    starts = [v.at(v.load(v.at(columns, (ADDRESS, j)), ADDRESS_TYPE), (1, at)) for j in range(SAMPLES)]

    def line(k: Any, sums: list[Any]) -> list[Any]:
        own = [v.load(v.at(start, (v.bytes, k))) for start in starts]
        factors = [v.load(v.at(rows, (row, i), (v.bytes, k))) for i in range(height)]
        return [v.multiply_add(factors[n // SAMPLES], own[n % SAMPLES], total) for n, total in enumerate(sums)]

    for n, total in enumerate(v.loop(length, [v.zero] * SAMPLES * height, line)):
        v.add_number(v.total(total), v.at(out, (out_row, n // SAMPLES), (NUMBER, n % SAMPLES)))


def _write_sums(v: VectorWriter, height: int, *places: Any) -> None:
    """Code for out += factors @ lines, with `height` rows and two vectors of columns.

    The starts of the lines are listed in memory, and those of lines to be prefetched at `ahead`. Factor k of row i is
    at factors + i·row + k·step.
    """
    factors, row, step, lines, ahead, at, length, out, out_row = places

    def fetch(address: Any) -> None:
        for line in range(0, PAIR * v.bytes, CACHE_LINE):
            v.fetch(v.at(address, (1, line)))

    def line(k: Any, sums: list[Any]) -> list[Any]:
        start, following = (v.at(v.load(v.at(i, (ADDRESS, k)), ADDRESS_TYPE), (1, at)) for i in (lines, ahead))
        fetch(following)
        own = [v.load(v.at(start, (v.bytes, j))) for j in range(PAIR)]
        by = [v.spread(v.at(factors, (row, i), (step, k))) for i in range(height)]
        return [v.multiply_add(by[n // PAIR], own[n % PAIR], total) for n, total in enumerate(sums)]

    for i in range(height):  # what the sums will be added to
        fetch(v.at(out, (out_row, i)))
    for n, total in enumerate(v.loop(length, [v.zero] * PAIR * height, line)):
        place = v.at(out, (out_row, n // PAIR), (v.bytes, n % PAIR))
        v.store(v.builder.fadd(total, v.load(place)), place)


scores_of, sums_of = _tiles(_write_scores, TALL), _tiles(_write_sums, TALLEST)


def _write_pair(v: VectorWriter, *places: Any) -> None:
    """Code for out = a·one + b·other, over a number of SIMD vectors; a and b are the numbers at `by`."""
    one, other, by, out, vectors = places
    a, b = (v.spread(v.at(by, (NUMBER, i))) for i in range(2))

    def mix(k: Any, _: list[Any]) -> list[Any]:
        place = (v.bytes, k)
        second = v.builder.fmul(b, v.load(v.at(other, place)))
        v.store(v.multiply_add(a, v.load(v.at(one, place)), second), v.at(out, place))
        return []

    v.loop(vectors, [], mix)


pair_of, pair_of_rest = vector_code(_write_pair, WIDE), vector_code(_write_pair, lane=1)


def _write_square(v: VectorWriter, *places: Any) -> None:
    """Code that adds ‖a‖² to the number at `out`, for a of four SIMD vectors at a time."""
    start, fours, out = places

    def add(k: Any, sums: list[Any]) -> list[Any]:
        parts = [v.load(v.at(start, (4 * v.bytes, k), (v.bytes, j))) for j in range(4)]
        return [v.multiply_add(part, part, total) for part, total in zip(parts, sums, strict=True)]

    for total in v.loop(fours, [v.zero] * 4, add):
        v.add_number(v.total(total), out)


add_square = vector_code(_write_square, WIDE)


def _write_softmax(v: VectorWriter, *places: Any) -> None:
    """Code for z ← weight · softmax(z) over the classes, in place, over a number of SIMD vectors of samples."""
    z, z_row, classes, weight, many = places
    each = v.spread(weight)

    def samples(b: Any, _: list[Any]) -> list[Any]:
        def score(k: Any) -> Any:
            return v.at(z, (z_row, k), (v.bytes, b))

        def exponential(k: Any, total: list[Any]) -> list[Any]:
            power = v.exp(v.builder.fsub(v.load(score(k)), most))
            v.store(power, score(k))
            return [v.builder.fadd(total[0], power)]

        def share_of(k: Any, _: list[Any]) -> list[Any]:
            v.store(v.builder.fmul(v.load(score(k)), share), score(k))
            return []

        (most,) = v.loop(classes, [v.load(z_first(b))], lambda k, most: [v.larger(most[0], v.load(score(k)))])
        (total,) = v.loop(classes, [v.zero], exponential)
        share = v.builder.fdiv(each, total)
        v.loop(classes, [], share_of)
        return []

    def z_first(b: Any) -> Any:
        return v.at(z, (v.bytes, b))

    v.loop(many, [], samples)


softmax_of = vector_code(_write_softmax, WIDE)
