"""The innermost loops of `fedkin.engine.spaces.primal_kernels`, as SIMD code."""

from typing import Any

from fedkin.engine.spaces.vectors import ADDRESS, ADDRESS_TYPE, NUMBER, VECTOR, VectorWriter, vector_code

# Of 16 registers, ten are for sums: enough to hide the latency of an addition, and most layers have a multiple of five
# outputs or many.
TALLEST = 5
PAIR = 2  # samples of a tile of scores; SIMD vectors of a tile of sums


def _scores_tile(height: int) -> Any:
    """Code for out += rows · columns of `height` rows and two columns, both with consecutive numbers.

    The starts of the columns are listed in memory: samples in any order need not be gathered.
    """

    def write(v: VectorWriter, *places: Any) -> None:
        rows, row, columns, at, length, out, out_row = places
        starts = [v.at(v.load(v.at(columns, (ADDRESS, j)), ADDRESS_TYPE), (1, at)) for j in range(PAIR)]

        def line(k: Any, sums: list[Any]) -> list[Any]:
            own = [v.load(v.at(start, (VECTOR, k))) for start in starts]
            factors = [v.load(v.at(rows, (row, i), (VECTOR, k))) for i in range(height)]
            return [v.multiply_add(factors[i], own[j], sums[PAIR * i + j]) for i in range(height) for j in range(PAIR)]

        sums = v.loop(length, [v.zero] * PAIR * height, line)
        for i in range(height):
            for j in range(PAIR):
                v.add_number(v.total(sums[PAIR * i + j]), v.at(out, (out_row, i), (NUMBER, j)))

    return vector_code(write)


def _sums_tile(height: int) -> Any:
    """Code for out += factors @ lines, with `height` rows and sixteen columns.

    The starts of the lines are listed in memory, and those of lines to be prefetched at `ahead`. Factor k of row i is
    at factors + i·row + k·step.
    """

    def write(v: VectorWriter, *places: Any) -> None:
        factors, row, step, lines, ahead, at, length, out, out_row = places

        def line(k: Any, sums: list[Any]) -> list[Any]:
            start, following = (v.at(v.load(v.at(i, (ADDRESS, k)), ADDRESS_TYPE), (1, at)) for i in (lines, ahead))
            v.fetch(following)
            own = [v.load(v.at(start, (VECTOR, j))) for j in range(PAIR)]
            by = [v.spread(v.at(factors, (row, i), (step, k))) for i in range(height)]
            return [v.multiply_add(by[i], own[j], sums[PAIR * i + j]) for i in range(height) for j in range(PAIR)]

        for i in range(height):  # what the sums will be added to
            v.fetch(v.at(out, (out_row, i)))
        sums = v.loop(length, [v.zero] * PAIR * height, line)
        for i in range(height):
            for j in range(PAIR):
                place = v.at(out, (out_row, i), (VECTOR, j))
                v.store(v.builder.fadd(sums[PAIR * i + j], v.load(place)), place)

    return vector_code(write)


scores_1, scores_2, scores_3, scores_4, scores_5 = (_scores_tile(height + 1) for height in range(TALLEST))
sums_1, sums_2, sums_3, sums_4, sums_5 = (_sums_tile(height + 1) for height in range(TALLEST))


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


pair_of, pair_of_rest = vector_code(_write_pair), vector_code(_write_pair, lane=1)


def _write_square(v: VectorWriter, *places: Any) -> None:
    """Code that adds ‖a‖² to the number at `out`, for a of four SIMD vectors at a time."""
    start, fours, out = places

    def add(k: Any, sums: list[Any]) -> list[Any]:
        parts = [v.load(v.at(start, (4 * VECTOR, k), (VECTOR, j))) for j in range(4)]
        return [v.multiply_add(part, part, total) for part, total in zip(parts, sums, strict=True)]

    for total in v.loop(fours, [v.zero] * 4, add):
        v.add_number(v.total(total), out)


add_square = vector_code(_write_square)


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


softmax_of = vector_code(_write_softmax)
