"""The innermost loops of `fedkin.engine.spaces.kernels`, as SIMD code."""

from itertools import product
from typing import Any

from fedkin.compiler.vectors import ADDRESS, ADDRESS_TYPE, LANE, NUMBER, VECTOR, VectorWriter, vector_code

WIDTH = 2 * LANE  # columns of a panel
LINE = 4 * WIDTH  # bytes of a row of a panel


def _tile(height: int) -> Any:
    """Code for out += scale · (rows @ panel), with `height` rows and one scale per row.

    Every number of the panel is loaded once for all rows. The data at `ahead` are prefetched meanwhile.
    """

    def write(v: VectorWriter, *places: Any) -> None:
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


# Of 16 registers, two are for a row of the panel and one for a factor, which leaves 12 for sums: 6 rows.
MOST, FEWEST = 6, 3
three_rows, four_rows, five_rows, six_rows = (_tile(height) for height in range(FEWEST, MOST + 1))


def _write_mixture(v: VectorWriter, *places: Any) -> None:
    """Code for out = plus + Σ by·given, over a number of SIMD vectors from the offset `at` in each given vector."""
    given, by, count, at, plus, out, vectors = places

    def mix(k: Any, _: list[Any]) -> list[Any]:
        def add(s: Any, total: list[Any]) -> list[Any]:
            start = v.load(v.at(given, (ADDRESS, s)), ADDRESS_TYPE)
            part = v.load(v.at(start, (1, at), (v.bytes, k)))
            return [v.multiply_add(v.spread(v.at(by, (NUMBER, s))), part, total[0])]

        (total,) = v.loop(count, [v.load(v.at(plus, (v.bytes, k)))], add)
        v.store(total, v.at(out, (v.bytes, k)))
        return []

    v.loop(vectors, [], mix)


mixture_of, mixture_of_rest = vector_code(_write_mixture), vector_code(_write_mixture, lane=1)


def _write_turned(v: VectorWriter, x: Any, sample: Any, panel: Any, lines: Any) -> None:
    """Code that transposes sixteen samples into the columns of a panel, sixteen features at a time."""

    def turn(k: Any, _: list[Any]) -> list[Any]:
        for j, h in product(range(2), range(2)):
            rows = [v.load(v.at(x, (sample, j * LANE + i), (LINE, k), (VECTOR, h))) for i in range(LANE)]
            for i, column in enumerate(v.turned(rows)):
                v.store(column, v.at(panel, (WIDTH * LINE, k), (LINE, h * LANE + i), (VECTOR, j)))
        return []

    v.loop(lines, [], turn)


turn_samples = vector_code(_write_turned)


def _write_copied(v: VectorWriter, x: Any, panels: Any, panel: Any, width: Any) -> None:
    """Code that copies a sample to its row in every panel."""

    def copy(k: Any, _: list[Any]) -> list[Any]:
        for h in range(2):
            v.store(v.load(v.at(x, (LINE, k), (VECTOR, h))), v.at(panels, (panel, k), (VECTOR, h)))
        return []

    v.loop(width, [], copy)


copy_lines = vector_code(_write_copied)


def _write_joined(v: VectorWriter, *places: Any) -> None:
    """Code for trail += weight · (softmax(z) − onehot), over a number of SIMD vectors of samples with scores z.

    Scores and residuals are relative to the last class: its score is 0, and its residual is subtracted from the others.
    """
    z, onehot, trail, rows, others, weight, many = places
    z_row, onehot_row, trail_row = (v.load(v.at(rows, (ADDRESS, i)), ADDRESS_TYPE) for i in range(3))
    each = v.spread(weight)

    def samples(b: Any, _: list[Any]) -> list[Any]:
        def score(k: Any) -> Any:
            return v.at(z, (z_row, k), (v.bytes, b))

        def exponential(k: Any, total: list[Any]) -> list[Any]:
            power = v.exp(v.builder.fsub(v.load(score(k)), most))
            v.store(power, score(k))
            return [v.builder.fadd(total[0], power)]

        (most,) = v.loop(others, [v.zero], lambda k, most: [v.larger(most[0], v.load(score(k)))])
        last = v.exp(v.builder.fsub(v.zero, most))
        (total,) = v.loop(others, [last], exponential)
        share = v.builder.fdiv(each, total)

        def residual(power: Any, k: Any) -> Any:
            label = v.builder.fmul(each, v.load(v.at(onehot, (onehot_row, k), (v.bytes, b))))
            return v.builder.fsub(v.builder.fmul(power, share), label)

        of_last = residual(last, others)

        def join(k: Any, _: list[Any]) -> list[Any]:
            less = v.builder.fsub(residual(v.load(score(k)), k), of_last)
            place = v.at(trail, (trail_row, k), (v.bytes, b))
            v.store(v.builder.fadd(v.load(place), less), place)
            return []

        v.loop(others, [], join)
        return []

    v.loop(many, [], samples)


join_residuals, join_residuals_of_rest = vector_code(_write_joined), vector_code(_write_joined, lane=1)
