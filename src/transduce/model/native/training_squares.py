"""Matrices made orthogonal in machine code, as `training/muon.py` describes it, each as a whole by one thread.

Products are made one after another, so what one gives is in a cache when the next one takes it. What is left over when
every thread has had as many matrices is made by all together.
Legend: M matrices of R rows and C columns, of which the fewer are F.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.engine import entry
from transduce.model.native.pair_packing import Matrix, Packer
from transduce.model.native.pair_products import PairMultiplier, Product
from transduce.model.native.rows import transpose

POLYNOMIALS = 3
SQUARES = 2 + POLYNOMIALS  # F × F, that a thread has room for
_SUMS = 4  # of squares, beside one another


class SquarePlaces(NamedTuple):
    """The numbers of `orthogonalize`: addresses, where nothing else is said."""

    matrices: Any
    """M addresses of matrices of bfloat16."""
    done: Any
    """M whole numbers, which become 1, or 0 where a matrix stays as it is: see `most`."""
    count: Any
    """A number: M, as the next two."""
    rows: Any
    columns: Any
    coefficients: Any
    """Of three odd polynomials, one after another: nine float32."""
    margin: Any
    """A number, the bits of a float32, as the next two: by how much more than their lengths matrices are divided."""
    most: Any
    """‖x xᵀ‖ is less, and its inverse."""
    scale: Any
    """Of the result."""
    by_gram_matrix: Any
    """A number: not 0 where polynomials are to be taken of x xᵀ, and multiply x once."""
    room: Any
    """For each thread `room_bytes`."""
    room_bytes: Any
    """A number: 2 × R × C + `SQUARES` × F² elements of bfloat16."""


class _One(NamedTuple):
    """A matrix, and what its products go by."""

    x: Value
    """The address of F rows, as all that follow but the last three."""
    squares: list[Value]
    packed: Value
    rows: Value
    columns: Value
    threads: tuple[Value, Value]
    """The thread's number, of so many."""


class SquareWriter:
    """Writes the program `orthogonalize`."""

    names = ("orthogonalize",)

    def __init__(self, k: Emitter, multiplier: type[PairMultiplier]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "mix")

    def write(self) -> None:
        """And the functions that it calls."""
        k = self.k
        self._write_symmetric()
        self._write_mixed()
        self._write_transposed()
        with k.function("one", POINTER, *[I64] * 4) as (numbers, matrix, room, *threads):
            places = (k.at(numbers, number, I64) for number in range(len(SquarePlaces._fields)))
            self._make(SquarePlaces(*(k.load(place, I64) for place in places)), matrix, room, threads)
        with entry(k, self.names[0]) as (numbers, thread, threads):
            count, room, room_bytes = (
                k.load(k.at(numbers, SquarePlaces._fields.index(name), I64), I64)
                for name in ("count", "room", "room_bytes")
            )
            each = k.build.sdiv(count, threads)
            own = k.sum_of(room, k.times(thread, room_bytes))
            with k.loop(k.times(thread, each), k.times(k.sum_of(thread, 1), each)) as matrix:
                k.call("one", numbers, matrix, own, k.number(0), k.number(1))
            k.barrier(threads)
            with k.loop(k.times(threads, each), count) as matrix:
                k.call("one", numbers, matrix, room, thread, threads)

    def _make(self, given: SquarePlaces, matrix: Value, room: Value, threads: list[Value]) -> None:
        k = self.k
        address = k.load(k.at(k.place(given.matrices), matrix, I64), I64)
        is_tall = k.build.icmp_signed(">", given.rows, given.columns)
        few, many = (k.build.select(is_tall, *pair) for pair in (given[4:2:-1], given[3:5]))
        size, square = k.times(few, many, 2), k.times(few, few, 2)
        turned = k.sum_of(room, size)
        squares = [k.sum_of(turned, size, k.times(square, number)) for number in range(SQUARES)]
        one = _One(k.build.select(is_tall, turned, address), squares, room, few, many, (threads[0], threads[1]))
        with k.where(is_tall):
            k.call("transposed", address, turned, given.rows, given.columns, *threads)
        self._multiply(one, one.x, one.x, squares[0], columns=many)
        length = self._length(squares[0], k.times(few, few))
        most = k.float_of(given.most)
        fits = k.build.fcmp_ordered("<", length, most), k.build.fcmp_ordered(">", k.build.fmul(length, most), k.real(1))
        is_done = k.build.and_(*fits)
        k.store(k.build.zext(is_done, I64), k.at(k.place(given.done), matrix, I64))
        with k.where(is_done):
            shrink = k.build.fmul(k.float_of(given.margin), k.intrinsic("llvm.sqrt.f32", F32, length))
            shrink = k.build.fdiv(k.real(1), shrink)
            with k.build.if_else(k.is_given(given.by_gram_matrix)) as (by_gram_matrix, one_by_one):
                with by_gram_matrix:
                    self._by_gram_matrix(given, one, shrink)
                with one_by_one:
                    self._one_by_one(given, one, shrink)
            with k.where(is_tall):
                k.call("transposed", turned, address, given.columns, given.rows, *threads)
        k.barrier(threads[1])  # before the room is used again

    def _length(self, square: Value, elements: Value) -> Value:
        """The Euclidean norm of so many elements of bfloat16, a multiple of what is read at a time."""
        k = self.k
        sums = [k.variable(k.splat(0.0)) for _ in range(_SUMS)]
        with k.loop(0, elements, _SUMS * k.lanes) as start:
            for number, variable in enumerate(sums):
                value = k.load_wide(k.place(square), k.sum_of(start, number * k.lanes), I16)
                k.store(k.madd(value, value, k.get(variable, value)), variable)
        total = [k.get(variable, k.splat(0.0)) for variable in sums]
        return k.intrinsic(
            "llvm.sqrt.f32", F32, k.total(k.build.fadd(k.build.fadd(*total[:2]), k.build.fadd(*total[2:])))
        )

    def _coefficients(self, given: SquarePlaces, number: int, shrink: Value) -> tuple[Value, Value, Value]:
        """Of a polynomial of what is still to be multiplied by a number: a, b and c, of I, x xᵀ and its square."""
        k, place = self.k, self.k.place(given.coefficients)
        a, b, c = (k.load(k.at(place, 3 * number + n)) for n in range(3))
        square = k.build.fmul(shrink, shrink)
        return a, k.build.fmul(b, square), k.build.fmul(c, k.build.fmul(square, square))

    def _one_by_one(self, given: SquarePlaces, one: _One, shrink: Value) -> None:
        """As `muon._one_by_one`."""
        k, (gram, factor) = self.k, one.squares[:2]
        for number in range(POLYNOMIALS):
            if number:
                shrink = k.real(1)
                self._multiply(one, one.x, one.x, gram, columns=one.columns)
            a, b, c = self._coefficients(given, number, shrink)
            self._multiply(one, gram, gram, factor, other=gram, factors=(b, c))
            own = k.build.fmul(shrink, k.float_of(given.scale)) if number == POLYNOMIALS - 1 else shrink
            self._replace(one, factor, other=one.x, factors=(k.build.fmul(own, a), own))

    def _by_gram_matrix(self, given: SquarePlaces, one: _One, shrink: Value) -> None:
        """As `muon._by_gram_matrix`."""
        k, (gram, product, *values) = self.k, one.squares
        own, none = shrink, k.real(0)
        for number, value in enumerate(values):
            if number:
                before = values[number - 1]
                self._multiply(one, before, gram, product, factors=(none, k.build.fmul(own, own)))
                self._multiply(one, product, before, gram)
                own = k.real(1)
            a, b, c = self._coefficients(given, number, own)
            self._multiply(one, gram, gram, value, other=gram, factors=(b, c), diagonal=a)
        self._multiply(one, values[1], values[0], product)
        self._multiply(one, values[2], product, gram)
        self._replace(one, gram, other=None, factors=(none, k.build.fmul(shrink, k.float_of(given.scale))))

    def _multiply(
        self,
        one: _One,
        left: Value,
        right: Value,
        out: Value,
        *,
        columns: Value | None = None,
        other: Value | None = None,
        factors: tuple[Value, Value] | None = None,
        diagonal: Value | None = None,
    ) -> None:
        """left · rightᵀ, of F × F where nothing is said, mixed, which is symmetric."""
        k = self.k
        of_other, of_product = factors or (k.real(0), k.real(1))
        addresses, sizes = (left, right, other or k.number(0), out), (one.rows, columns or one.rows)
        numbers = of_other, of_product, diagonal or k.real(0)
        k.call("symmetric", *addresses, *numbers, *sizes, one.packed, *one.threads)

    def _replace(self, one: _One, factor: Value, *, other: Value | None, factors: tuple[Value, Value]) -> None:
        """x by factor · x, mixed."""
        k = self.k
        k.call("mixed", factor, one.x, other or k.number(0), *factors, one.rows, one.columns, one.packed, *one.threads)

    # --- functions -----------------------------------------------------------------------------------------------

    def _write_symmetric(self) -> None:
        """`symmetric(left, right, other, out, of other, of product, diagonal, F, C, packed, thread, threads)`:
        left · rightᵀ of matrices of F rows, of which half is multiplied.
        """
        k = self.k
        with k.function("symmetric", *[I64] * 4, *[F32] * 3, *[I64] * 5) as (left, right, other, out, *more):
            of_other, of_product, diagonal, rows, columns, packed, thread, threads = more
            self._packer(thread, threads).pack_transposed(Matrix(k.place(right), rows, columns), k.place(packed))
            k.barrier(threads)
            made = self._product((left, packed, out), (rows, columns, rows), (other, of_other, of_product))
            self.multiplier.multiply_lower(made, thread, threads)
            k.barrier(threads)
            self._mirror(k.place(out), rows, diagonal, thread, threads)
            k.barrier(threads)

    def _write_mixed(self) -> None:
        """`mixed(left, right, other, of other, of product, F, C, packed, thread, threads)`: left · right, of F × F and
        F × C, where those at the right stand.
        """
        k = self.k
        with k.function("mixed", *[I64] * 3, *[F32] * 2, *[I64] * 5) as (left, right, other, *more):
            of_other, of_product, rows, columns, packed, thread, threads = more
            self._packer(thread, threads).pack(Matrix(k.place(right), rows, columns), k.place(packed))
            k.barrier(threads)
            made = self._product((left, packed, right), (rows, rows, columns), (other, of_other, of_product))
            self.multiplier.multiply(made, thread, threads)
            k.barrier(threads)

    def _product(self, addresses: tuple[Value, ...], sizes: tuple[Value, ...], mixture: tuple[Value, ...]) -> Product:
        """Of rows by panels, to rows; so many rows, columns at the left, and columns of the result."""
        k, (left, packed, out), (rows, inner, columns) = self.k, addresses, sizes
        return Product(
            left=k.place(left),
            rows=rows,
            panels=k.place(packed),
            columns=columns,
            pairs=k.build.sdiv(inner, k.number(2)),
            out=out,
            ending="mix",
            values=mixture,
        )

    def _packer(self, thread: Value, threads: Value) -> Packer:
        return self.multiplier.packer(self.k, self.multiplier.layout, thread, threads)

    def _mirror(self, out: Value, rows: Value, diagonal: Value, thread: Value, threads: Value) -> None:
        """What is above the diagonal, from what is below; and more on the diagonal itself."""
        k = self.k
        squares = k.build.sdiv(rows, k.number(k.lanes))
        kind = ir.VectorType(I16, k.lanes)
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        with k.loop(thread, squares, threads) as number:
            first = k.times(number, k.lanes)
            with k.loop(0, first, k.lanes) as column:
                square = self._square(out, first, column, rows)
                for n, vector in enumerate(transpose(k, square)):
                    place = k.sum_of(k.times(k.sum_of(column, n), rows), first)
                    k.store(k.build.trunc(vector, kind), k.at(out, place, I16))
            for n in range(k.lanes):
                place = k.sum_of(k.times(k.sum_of(first, n), rows), first)
                is_own = k.build.icmp_signed("==", lanes, k.all_ints(n))
                more = k.build.select(is_own, k.splat(diagonal), k.splat(0.0))
                k.store_narrow(k.build.fadd(k.load_wide(out, place, I16), more), out, place, I16)

    def _square(self, matrix: Value, row: Value, column: Value, columns: Value) -> list[Value]:
        """So many rows of so many elements as a vector has lanes, as whole numbers."""
        k, kind = self.k, ir.VectorType(I16, self.k.lanes)
        places = (k.sum_of(k.times(k.sum_of(row, n), columns), column) for n in range(k.lanes))
        return [k.build.zext(k.load(k.at(matrix, place, I16), kind), k.ints) for place in places]

    def _write_transposed(self) -> None:
        """`transposed(matrix, out, R, C, thread, threads)`: so many rows at a time that they fill a line."""
        k = self.k
        many, kind = 2 * k.lanes, ir.VectorType(I16, k.lanes)
        order = ir.Constant(ir.VectorType(I32, many), list(range(many)))
        with k.function("transposed", *[I64] * 6) as (matrix, out, rows, columns, thread, threads):
            first, last = k.share(k.build.sdiv(rows, k.number(many)), thread, threads)
            each_row = k.loop(k.times(first, many), k.times(last, many), many)
            with each_row as row, k.loop(0, columns, k.lanes) as column:
                halves = [
                    transpose(k, self._square(k.place(matrix), k.sum_of(row, half), column, columns))
                    for half in (0, k.lanes)
                ]
                for n, pair in enumerate(zip(*halves, strict=True)):
                    low, high = (k.build.trunc(vector, kind) for vector in pair)
                    place = k.at(k.place(out), k.sum_of(k.times(k.sum_of(column, n), rows), row), I16)
                    k.store(k.build.shuffle_vector(low, high, order), place)
            k.barrier(threads)
