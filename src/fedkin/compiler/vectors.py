"""SIMD code in vectors of eight or sixteen numbers, for the innermost loops of compiled rounds.

The code is explicit, so it does not depend on automatic vectorisation. It is LLVM IR, so it runs on every processor
that LLVM supports.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

LANE = 8  # numbers per vector: an AVX register, or several shorter registers
VECTOR, NUMBER, ADDRESS = 4 * LANE, 4, 8  # bytes


def has_wide_vectors() -> bool:
    """Whether the processor has AVX-512: 32 registers of sixteen numbers each."""
    given = config.CPU_FEATURES  # type: ignore[attr-defined] # it is set at run time
    return "+avx512f" in (get_host_cpu_features().flatten() if given is None else given).split(",")


WIDE = 2 * LANE if has_wide_vectors() else LANE  # numbers per vector of the widest kind

NUMBER_TYPE, ADDRESS_TYPE, WORD_TYPE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
BYTES_TYPE = ir.IntType(8).as_pointer()


class VectorWriter:
    """Generates SIMD code. Addresses are integers, computed with `at`.

    With `lane=1` the same code processes the remainder, one number at a time.
    """

    def __init__(self, builder: Any, lane: int = LANE) -> None:
        self.builder, self.lane, self.bytes = builder, lane, NUMBER * lane
        self.type, self.word_type = ir.VectorType(NUMBER_TYPE, lane), ir.VectorType(WORD_TYPE, lane)
        self._multiply_add = self._builtin(f"llvm.fma.v{lane}f32", self.type, *[self.type] * 3)
        self._prefetch = self._builtin("llvm.prefetch.p0", ir.VoidType(), BYTES_TYPE, *[WORD_TYPE] * 3)
        self.zero = self.constant(0.0)

    def _builtin(self, name: str, gives: Any, *takes: Any) -> Any:
        kind = ir.FunctionType(gives, takes)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]

    def at(self, start: Any, *steps: tuple[Any, Any]) -> Any:
        """The address start + Σ step·times."""
        for step, times in steps:
            both = [self.number(n) if isinstance(n, int) else n for n in (step, times)]
            start = self.builder.add(start, self.builder.mul(*both))
        return start

    def load(self, address: Any, kind: Any = None, align: int = NUMBER) -> Any:
        """Load a vector, or a value of another type."""
        return self.builder.load(self.builder.inttoptr(address, (kind or self.type).as_pointer()), align=align)

    def store(self, vector: Any, address: Any) -> None:
        """Store a vector."""
        self.builder.store(vector, self.builder.inttoptr(address, self.type.as_pointer()), align=NUMBER)

    def load_bytes(self, address: Any) -> Any:
        """Load a byte for each number, as a vector of words."""
        found = self.load(address, ir.VectorType(ir.IntType(8), self.lane), 1)
        return self.builder.zext(found, self.word_type)

    def store_bytes(self, words: Any, address: Any) -> None:
        """Store the lowest byte of each word."""
        kind = ir.VectorType(ir.IntType(8), self.lane)
        place = self.builder.inttoptr(address, kind.as_pointer())
        self.builder.store(self.builder.trunc(words, kind), place, align=1)

    def spread(self, address: Any) -> Any:
        """Load a number and broadcast it."""
        return self.everywhere(self.load(address, NUMBER_TYPE))

    def everywhere(self, number: Any) -> Any:
        """Broadcast a number to a vector."""
        anything = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(anything, number, ir.Constant(WORD_TYPE, 0))
        return self._shuffled(first, anything, [0] * self.lane)

    def turned(self, rows: list[Any]) -> list[Any]:
        """Transpose: eight vectors as the rows of a matrix to its columns."""
        step = 1
        while step < self.lane:
            # Exchange the off-diagonal blocks of size `step` in diagonal blocks of size 2·`step`.
            upper = [j if j // step % 2 == 0 else j - step + self.lane for j in range(self.lane)]
            lower = [j + step if j // step % 2 == 0 else j + self.lane for j in range(self.lane)]
            done = list(rows)
            for i in range(self.lane):
                if i // step % 2 == 0:
                    pair = rows[i], rows[i + step]
                    done[i], done[i + step] = self._shuffled(*pair, upper), self._shuffled(*pair, lower)
            rows, step = done, 2 * step
        return rows

    def _shuffled(self, one: Any, other: Any, places: list[int]) -> Any:
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(WORD_TYPE, self.lane), places))

    def total(self, vector: Any) -> Any:
        """The sum of a vector's numbers: halves are added until one number is left."""
        half = self.lane // 2
        while half:
            vector = self.builder.fadd(vector, self._shuffled(vector, vector, [j ^ half for j in range(self.lane)]))
            half //= 2
        return self.builder.extract_element(vector, ir.Constant(WORD_TYPE, 0))

    def add_number(self, number: Any, address: Any) -> None:
        """Add a number to the one at an address."""
        place = self.builder.inttoptr(address, NUMBER_TYPE.as_pointer())
        self.builder.store(self.builder.fadd(self.builder.load(place, align=NUMBER), number), place, align=NUMBER)

    def multiply_add(self, one: Any, other: Any, to: Any) -> Any:
        """Fused multiply-add: one · other + to."""
        return self.builder.call(self._multiply_add, [one, other, to])

    def constant(self, number: float) -> Any:
        """A vector with the same number in all places."""
        return ir.Constant(self.type, [number] * self.lane)

    def words(self, number: int) -> Any:
        """A vector of words with the same number in all places."""
        return ir.Constant(self.word_type, [number] * self.lane)

    def number(self, value: int) -> Any:
        """A number to compute addresses with."""
        return ir.Constant(ADDRESS_TYPE, value)

    def larger(self, one: Any, other: Any) -> Any:
        """The elementwise maximum; `one` if they cannot be compared, so that a NaN in `one` is kept."""
        return self.builder.select(self.builder.fcmp_ordered("<", one, other), other, one)

    def exp(self, x: Any) -> Any:
        """eˣ for x ≤ 0, as 2ⁿ·e^f with integer n and |f| ≤ ln 2 / 2, by the Taylor series of order 7."""
        builder = self.builder
        x = self.larger(x, self.constant(-87.0))  # eˣ is about the smallest normal float32 there
        # Adding 1.5·2²³ rounds to an integer, which is then in the last bits.
        large = self.constant(1.5 * 2**23)
        rounded = self.multiply_add(x, self.constant(1.4426950408889634), large)
        n = builder.fsub(rounded, large)
        # ln 2 as a sum of two parts: the product of n and the first, short one is exact.
        f = self.multiply_add(n, self.constant(-0.693359375), x)
        f = self.multiply_add(n, self.constant(2.1219444005469057e-4), f)
        series = self.constant(1 / math.factorial(7))
        for k in reversed(range(7)):
            series = self.multiply_add(series, f, self.constant(1 / math.factorial(k)))
        # The exponent of a float32 starts at bit 23 and is 127 for 2⁰.
        exponent = builder.shl(builder.bitcast(rounded, self.word_type), self.words(23))
        power = builder.bitcast(builder.add(exponent, self.words(127 << 23)), self.type)
        return builder.fmul(series, power)

    def fetch(self, address: Any) -> None:
        """Prefetch the data at an address into the cache."""
        reading, near, data = (ir.Constant(WORD_TYPE, n) for n in (0, 3, 1))
        self.builder.call(self._prefetch, [self.builder.inttoptr(address, BYTES_TYPE), reading, near, data])

    def choose(self, number: Any, bodies: Mapping[int, Callable[[], None]]) -> None:
        """Execute the body of a number, which is one of theirs."""
        builder = self.builder
        after, elsewhere = builder.append_basic_block("after"), builder.append_basic_block("elsewhere")
        choice = builder.switch(number, elsewhere)
        for value, body in bodies.items():
            block = builder.append_basic_block("case")
            choice.add_case(ir.Constant(ADDRESS_TYPE, value), block)
            builder.position_at_end(block)
            body()
            builder.branch(after)
        builder.position_at_end(elsewhere)
        builder.unreachable()
        builder.position_at_end(after)

    def loop(self, times: Any, vectors: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """A loop over k = 0, 1, … that updates vectors; the body is executed at least once."""
        builder, before = self.builder, self.builder.block
        inside, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(inside)
        builder.position_at_end(inside)
        k, carried = builder.phi(ADDRESS_TYPE), [builder.phi(self.type) for _ in vectors]
        results = body(k, carried)
        last = builder.block  # differs from `inside` if the body has a loop
        following = builder.add(k, ir.Constant(ADDRESS_TYPE, 1))
        k.add_incoming(ir.Constant(ADDRESS_TYPE, 0), before)
        k.add_incoming(following, last)
        for variable, start, result in zip(carried, vectors, results, strict=True):
            variable.add_incoming(start, before)
            variable.add_incoming(result, last)
        builder.cbranch(builder.icmp_signed("<", following, times), inside, after)
        builder.position_at_end(after)
        return results


def vector_code(write: Callable[..., None], lane: int = LANE) -> Any:
    """A Numba function of a tuple of addresses and counts, with the code that `write` generates."""

    @intrinsic
    def function(_: Any, kind: Any) -> Any:
        def code(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
            values = cgutils.unpack_tuple(builder, arguments[0])  # type: ignore[no-untyped-call]
            write(VectorWriter(builder, lane), *values)
            return context.get_dummy_value()

        return types.void(kind), code

    return function
