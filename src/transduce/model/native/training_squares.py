"""Products of square matrices, which making matrices orthogonal takes: symmetric ones in half the time, and mixtures.

Legend: M matrices, R rows, C columns.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import I16, Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.pair_packing import Matrix
from transduce.model.native.pair_products import PairMultiplier, Product
from transduce.model.native.rows import transpose


class SquarePlaces(NamedTuple):
    """The numbers of `symmetric` and `mixed`: addresses of bfloat16, where nothing else is said.

    `symmetric` makes left · rightᵀ of matrices (M, R, C), which is known to be symmetric, (M, R, R); `mixed` makes
    left · right of matrices (M, R, R) and (M, R, C).
    """

    left: Any
    right: Any
    other: Any
    """Like the result, 0: none."""
    out: Any
    matrices: Any
    """A number: M, as the next two."""
    rows: Any
    columns: Any
    of_other: Any
    """A number, the bits of a float32, as the next two: what the other is multiplied by."""
    of_product: Any
    """What the product is multiplied by."""
    diagonal: Any
    """What is added to each element of the diagonal of a symmetric result."""
    room: Any
    """R × C, for each thread."""


class SquareWriter:
    """Writes the programs `symmetric` and `mixed`."""

    names = ("symmetric", "mixed")

    def __init__(self, k: Emitter, multiplier: type[PairMultiplier]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "mix")

    def write(self) -> None:
        """Both."""
        k = self.k
        for name, work in (("symmetric", self._symmetric), ("mixed", self._mixed)):
            with program(k, name, len(SquarePlaces._fields)) as (numbers, thread, threads):
                given = SquarePlaces(*numbers)
                each = k.build.sdiv(given.matrices, threads)
                own = given._replace(room=k.sum_of(given.room, k.times(thread, given.rows, given.columns, 2)))
                with k.loop(k.times(thread, each), k.times(k.sum_of(thread, 1), each)) as matrix:
                    work(own, matrix, k.number(0), k.number(1))
                k.barrier(threads)
                with k.loop(k.times(threads, each), given.matrices) as matrix:  # too few for one each: all together
                    work(given, matrix, thread, threads)

    def _symmetric(self, given: SquarePlaces, matrix: Value, thread: Value, threads: Value) -> None:
        k = self.k
        start, square = self._starts(given, matrix)
        right = Matrix(self._at(given.right, start), given.rows, given.columns)
        self.multiplier.packer(k, self.multiplier.layout, thread, threads).pack_transposed(right, k.place(given.room))
        k.barrier(threads)
        made = self._product(given, (start, given.columns), (square, given.rows))
        self.multiplier.multiply_lower(made, thread, threads)
        k.barrier(threads)
        self._mirror(given, self._at(given.out, square), thread, threads)

    def _mixed(self, given: SquarePlaces, matrix: Value, thread: Value, threads: Value) -> None:
        k = self.k
        start, square = self._starts(given, matrix)
        right = Matrix(self._at(given.right, start), given.rows, given.columns)
        self.multiplier.packer(k, self.multiplier.layout, thread, threads).pack(right, k.place(given.room))
        k.barrier(threads)
        made = self._product(given, (square, given.rows), (start, given.columns))
        self.multiplier.multiply(made, thread, threads)
        k.barrier(threads)  # before the room is filled again

    def _starts(self, given: SquarePlaces, matrix: Value) -> tuple[Value, Value]:
        """Where one begins among matrices (M, R, C), and among (M, R, R)."""
        row = self.k.times(matrix, given.rows)
        return self.k.times(row, given.columns), self.k.times(row, given.rows)

    def _product(self, given: SquarePlaces, left: tuple[Value, Value], out: tuple[Value, Value]) -> Product:
        """Where rows begin at the left and in the result, and how long they are."""
        k = self.k
        return Product(
            left=self._at(given.left, left[0]),
            rows=given.rows,
            panels=k.place(given.room),
            columns=out[1],
            pairs=k.build.sdiv(left[1], k.number(2)),
            out=k.sum_of(given.out, k.times(out[0], 2)),
            ending="mix",
            values=self._values(given, out[0]),
        )

    def _at(self, address: Value, start: Value) -> Value:
        return self.k.at(self.k.place(address), start, I16)

    def _values(self, given: SquarePlaces, start: Value) -> tuple[Value, ...]:
        k = self.k
        other = k.build.select(k.is_given(given.other), k.sum_of(given.other, k.times(start, 2)), given.other)
        return other, k.float_of(given.of_other), k.float_of(given.of_product)

    def _mirror(self, given: SquarePlaces, out: Value, thread: Value, threads: Value) -> None:
        """What is above the diagonal, from what is below; and the diagonal itself."""
        k = self.k
        squares = k.build.sdiv(given.rows, k.number(k.lanes))
        kind = ir.VectorType(I16, k.lanes)
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        with k.loop(thread, squares, threads) as number:
            first = k.times(number, k.lanes)
            with k.loop(0, first, k.lanes) as column:
                square = []
                for n in range(k.lanes):
                    place = k.sum_of(k.times(k.sum_of(first, n), given.rows), column)
                    square.append(k.build.zext(k.load(k.at(out, place, I16), kind), k.ints))
                for n, vector in enumerate(transpose(k, square)):
                    place = k.sum_of(k.times(k.sum_of(column, n), given.rows), first)
                    k.store(k.build.trunc(vector, kind), k.at(out, place, I16))
            for n in range(k.lanes):
                place = k.sum_of(k.times(k.sum_of(first, n), given.rows), first)
                is_own = k.build.icmp_signed("==", lanes, k.all_ints(n))
                more = k.build.select(is_own, k.splat(k.float_of(given.diagonal)), k.splat(0.0))
                k.store_narrow(k.build.fadd(k.load_wide(out, place, I16), more), out, place, I16)
