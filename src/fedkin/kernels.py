"""Products of a few rows with large matrices that stay the same, compiled for this machine by Numba (`fedkin[fast]`).

A library of linear algebra copies both factors into an order of its own before it multiplies them. That pays where
every number is used hundreds of times, not with the ten rows of a softmax regression or the forty of a sweep. Here a
matrix that is multiplied in every step is put in order once (`panels`), and samples are taken as they lie.

The loops are Numba's; what they do innermost is written in vectors of eight numbers, so that it does not depend on
what the compiler makes of it. Everything is done by one thread, without Python's lock.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

LANE = 8  # numbers of a vector: a register of AVX; where registers are shorter, a vector takes several
WIDTH = 2 * LANE  # columns of a panel
LINE, VECTOR, NUMBER = 4 * WIDTH, 4 * LANE, 4  # bytes of a panel's row, of a vector, of a number


def compiled(signature: str) -> Any:
    """Compile for arguments of these types, once: the result is kept on disk."""
    return njit(signature, nogil=True, error_model="numpy", cache=True)


# -- vectors -----------------------------------------------------------------------------------------------------------

NUMBER_TYPE, ADDRESS_TYPE, WORD_TYPE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
VECTOR_TYPE, BYTES_TYPE = ir.VectorType(NUMBER_TYPE, LANE), ir.IntType(8).as_pointer()


class Vectors:
    """Writes code with vectors. Addresses are numbers; `at` does sums and products with them."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._multiply_add = self._builtin(f"llvm.fma.v{LANE}f32", VECTOR_TYPE, *[VECTOR_TYPE] * 3)
        self._prefetch = self._builtin("llvm.prefetch.p0", ir.VoidType(), BYTES_TYPE, *[WORD_TYPE] * 3)
        self.zero = self.constant(0.0)

    def _builtin(self, name: str, gives: Any, *takes: Any) -> Any:
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(gives, takes), name)

    def at(self, start: Any, *steps: tuple[Any, Any]) -> Any:
        """The start plus the products."""
        for step, times in steps:
            both = [ir.Constant(ADDRESS_TYPE, n) if isinstance(n, int) else n for n in (step, times)]
            start = self.builder.add(start, self.builder.mul(*both))
        return start

    def load(self, address: Any, kind: Any = VECTOR_TYPE) -> Any:
        """The vector that is there."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=NUMBER)

    def store(self, vector: Any, address: Any) -> None:
        """Put a vector there."""
        self.builder.store(vector, self.builder.inttoptr(address, VECTOR_TYPE.as_pointer()), align=NUMBER)

    def spread(self, address: Any) -> Any:
        """The number that is there, in all places of a vector."""
        return self.everywhere(self.load(address, NUMBER_TYPE))

    def everywhere(self, number: Any) -> Any:
        """A number in all places of a vector."""
        anything = ir.Constant(VECTOR_TYPE, ir.Undefined)
        first = self.builder.insert_element(anything, number, ir.Constant(WORD_TYPE, 0))
        return self._shuffled(first, anything, [0] * LANE)

    def turned(self, rows: list[Any]) -> list[Any]:
        """Eight vectors as the rows of a square: its columns."""
        step = 1
        while step < LANE:
            # Exchange squares of `step` numbers across the diagonal of squares of twice as many.
            upper = [j if j // step % 2 == 0 else j - step + LANE for j in range(LANE)]
            lower = [j + step if j // step % 2 == 0 else j + LANE for j in range(LANE)]
            done = list(rows)
            for i in range(LANE):
                if i // step % 2 == 0:
                    pair = rows[i], rows[i + step]
                    done[i], done[i + step] = self._shuffled(*pair, upper), self._shuffled(*pair, lower)
            rows, step = done, 2 * step
        return rows

    def _shuffled(self, one: Any, other: Any, places: list[int]) -> Any:
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(WORD_TYPE, LANE), places))

    def multiply_add(self, one: Any, other: Any, to: Any) -> Any:
        """The product, added to what there is."""
        return self.builder.call(self._multiply_add, [one, other, to])

    def constant(self, number: float) -> Any:
        """The number in all places of a vector."""
        return ir.Constant(VECTOR_TYPE, [number] * LANE)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger of the two; the first where that cannot be told, so that what is not a number stays so."""
        return self.builder.select(self.builder.fcmp_ordered("<", one, other), other, one)

    def exp(self, x: Any) -> Any:
        """eˣ for x ≤ 0, as 2ⁿ·e^f with a whole number n and |f| ≤ ln 2 / 2, where a Taylor series of order 7 will do."""
        builder, words = self.builder, ir.VectorType(WORD_TYPE, LANE)
        x = self.larger(x, self.constant(-87.0))  # below, single precision has hardly anything
        # Adding 1.5·2²³ rounds to a whole number, and leaves it in the last bits.
        large = self.constant(1.5 * 2**23)
        rounded = self.multiply_add(x, self.constant(1.4426950408889634), large)
        n = builder.fsub(rounded, large)
        # ln 2 in two parts, of which the first has so few digits that n times it is exact.
        f = self.multiply_add(n, self.constant(-0.693359375), x)
        f = self.multiply_add(n, self.constant(2.1219444005469057e-4), f)
        series = self.constant(1 / math.factorial(7))
        for k in reversed(range(7)):
            series = self.multiply_add(series, f, self.constant(1 / math.factorial(k)))
        # A number's exponent begins at its 23rd bit, and is 127 for 2⁰.
        exponent = builder.shl(builder.bitcast(rounded, words), ir.Constant(words, [23] * LANE))
        power = builder.bitcast(builder.add(exponent, ir.Constant(words, [127 << 23] * LANE)), VECTOR_TYPE)
        return builder.fmul(series, power)

    def fetch(self, address: Any) -> None:
        """Have the memory bring what is there into the cache."""
        reading, near, data = (ir.Constant(WORD_TYPE, n) for n in (0, 3, 1))
        self.builder.call(self._prefetch, [self.builder.inttoptr(address, BYTES_TYPE), reading, near, data])

    def loop(self, times: Any, vectors: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Carry vectors through a loop with k = 0, 1, …; at least once."""
        builder, before = self.builder, self.builder.block
        inside, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(inside)
        builder.position_at_end(inside)
        k, carried = builder.phi(ADDRESS_TYPE), [builder.phi(VECTOR_TYPE) for _ in vectors]
        results = body(k, carried)
        last = builder.block  # another than `inside` if there is a loop in the loop
        following = builder.add(k, ir.Constant(ADDRESS_TYPE, 1))
        k.add_incoming(ir.Constant(ADDRESS_TYPE, 0), before)
        k.add_incoming(following, last)
        for variable, start, result in zip(carried, vectors, results, strict=True):
            variable.add_incoming(start, before)
            variable.add_incoming(result, last)
        builder.cbranch(builder.icmp_signed("<", following, times), inside, after)
        builder.position_at_end(after)
        return results


def vector_code(arguments: int, write: Callable[..., None]) -> Any:
    """A function of so many addresses and counts for Numba, of the code that is written."""
    names = ", ".join(f"a{i}" for i in range(arguments))

    def typed(_: Any, *__: Any) -> Any:
        def code(context: Any, builder: Any, ___: Any, values: Any) -> Any:
            write(Vectors(builder), *values)
            return context.get_dummy_value()

        return types.void(*[types.int64] * arguments), code

    # Numba goes by the number of named arguments.
    made: dict[str, Any] = {"typed": typed}
    exec(f"def function(context, {names}): return typed(context, {names})", made)
    return intrinsic(made["function"])


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

    def write(  # type: ignore[no-untyped-def]
        v: Vectors, rows, row, scale, panel, length, out, out_row, ahead, by
    ) -> None:
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

    return vector_code(9, write)


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
    for tile in range(tiles):
        height = count // tiles + (tile < count % tiles)
        if height == 6:
            _six_rows(rows, row, scale, panel, length, out, out_row, ahead, by)
        elif height == 5:
            _five_rows(rows, row, scale, panel, length, out, out_row, ahead, by)
        elif height == 4:
            _four_rows(rows, row, scale, panel, length, out, out_row, ahead, by)
        else:
            _three_rows(rows, row, scale, panel, length, out, out_row, ahead, by)
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


_residual = vector_code(6, _write_residual)


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
    tiles = (rows + MOST - 1) // MOST
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
                        *(z.ctypes.data + lane * others * z.strides[0] + b * NUMBER, z.strides[0], others),
                        *(onehot.ctypes.data + c * onehot.strides[0] + (start + b) * NUMBER, onehot.strides[1]),
                        weight.ctypes.data + c * weight.strides[0] + (start + b) * NUMBER,
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

    Softmax sees only how far scores differ, and residuals sum to zero: so all is less the last class's, and one row
    of K is saved.

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


_turn = vector_code(4, _write_turned)


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
            _turn(own, x.strides[1], panel.ctypes.data, features // WIDTH)
            z[:] = 0
            following = own + WIDTH * x.strides[1]
            _add(
                *(weight, rows.strides[1], ones.ctypes.data, count, panel.ctypes.data, features),
                *(z.ctypes.data, z.strides[0], following, WIDTH * x.strides[1] // tiles, LINE // tiles),
            )
            out[c, :, j : j + WIDTH] = z


def add_sums(less: Tensor, scale: Tensor, x: Tensor, out: Tensor) -> None:
    """Add rows A, times a scale each, times samples x (c, n, D) to out (c, L, K, D).

    The rows of a lane sum to zero, and are given less the last of them: (c, L·(K−1), n), as the scale, (L·(K−1),).
    """
    _add_sums(less.numpy(), scale.numpy(), x.numpy(), out.numpy())
    if rest := x.shape[-1] % WIDTH:
        out[..., -rest:] += restored((scale[:, None] * less) @ x[..., -rest:], out.shape[1])


def restored(less: Tensor, lanes: int) -> Tensor:
    """Rows that sum to zero, (c, L, K, …), from what they are less the last, (c, L·(K−1), …)."""
    less = less.unflatten(1, (lanes, -1))
    last = less.sum(2, keepdim=True) / -(less.shape[2] + 1)
    return torch.cat([less + last, last], dim=2)


def _write_copied(v: Vectors, x: Any, panels: Any, panel: Any, width: Any) -> None:
    """A sample's line of every panel."""

    def copy(k: Any, _: list[Any]) -> list[Any]:
        for h in range(2):
            v.store(v.load(v.at(x, (LINE, k), (VECTOR, h))), v.at(panels, (panel, k), (VECTOR, h)))
        return []

    v.loop(width, [], copy)


_copy = vector_code(4, _write_copied)


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


_add_classes = vector_code(6, _write_classes)
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
                    _copy(own + i * x.strides[1], block.ctypes.data + i * LINE, block.strides[0], broad)
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
                _add_classes(less, total.strides[0], others, place, out.strides[2], 2 * broad)
