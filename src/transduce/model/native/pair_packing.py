"""Matrices of bfloat16 laid out for the instructions that multiply pairs: `vpdpbf16ps`, and AMX's `tdpbf16ps`.

Both add two products to each sum, so two neighbours along what is summed must stand together: a *pair*, 32 bits. A
*panel* is some columns of a matrix whose rows are summed over: the first two rows' pairs, one for each column, then the
next two rows'.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import I16, I32, Emitter, Value
from transduce.model.native.rows import transpose

_AHEAD = 8  # rows that are asked for before they are read
_STRIP = 4  # vectors of columns that a thread packs at a time


class Layout(NamedTuple):
    """How many numbers of a matrix are multiplied at a time."""

    panel: int
    """Columns: some vectors. The last panel of a matrix may have fewer vectors."""
    tile_rows: int
    """Rows."""
    least_rows: int
    """There must be so many."""
    together: int
    """Rows that are summed over are filled up with zeros to a multiple of this, two for each pair."""
    block: int
    """Pairs in rows that are multiplied by one panel after another: a cache has room for them beside a panel."""
    depth: int
    """Pairs that are added to sums at a time, a multiple of `together`."""
    sum_tiles: int
    """Tiles of rows of a block of sums, to which all pairs are added before the next block has its turn."""
    sum_columns: int
    """Columns of that, whole panels."""


VECTORS = Layout(
    panel=48, tile_rows=8, least_rows=8, together=8, block=1 << 16, depth=1 << 10, sum_tiles=32, sum_columns=960
)
"""24 sums in 32 vectors."""
AMX = Layout(
    panel=32, tile_rows=32, least_rows=16, together=32, block=1 << 17, depth=1 << 8, sum_tiles=8, sum_columns=1 << 10
)
"""Four registers of 16 × 16 sums, of eight."""


class Matrix(NamedTuple):
    """Of bfloat16, its rows one after another."""

    place: Value
    rows: Value
    columns: Value


class Gradient(NamedTuple):
    """A gradient by the output of a layer."""

    matrix: Matrix
    sums: Value
    """An address of float32, 0: none, where the sum of each column is added while it is packed."""


class Tiles(NamedTuple):
    """From one to below another."""

    first: Value
    last: Value


class Span(NamedTuple):
    """Some of the pairs that are summed over."""

    first: Value
    count: Value


class Packer:
    """Writes what packs matrices; each thread takes its share."""

    def __init__(self, k: Emitter, layout: Layout, thread: Value, threads: Value) -> None:
        self.k, self.layout, self.thread, self.threads = k, layout, thread, threads

    def pack_transposed(self, matrix: Matrix, to: Value) -> None:
        """A matrix whose columns are summed over; its rows become the columns of panels."""
        k, lanes = self.k, self.k.lanes
        pairs = k.build.sdiv(matrix.columns, k.number(2))
        first, last = k.share(k.build.sdiv(matrix.rows, k.number(lanes)), self.thread, self.threads)
        with k.loop(k.times(first, lanes), k.times(last, lanes), lanes) as row:
            target, width = self._target(to, row, matrix.rows, pairs)
            with k.loop(0, pairs, lanes) as pair:
                square = []
                for n in range(lanes):
                    place = k.sum_of(k.times(k.sum_of(row, n), pairs), pair)
                    square.append(k.load(k.at(matrix.place, place, I32), k.ints))
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.at(target, k.times(k.sum_of(pair, n), width), I32))

    def pack(self, matrix: Matrix, to: Value) -> None:
        """A matrix whose rows are summed over."""
        k = self.k
        pairs = self.pairs_of(matrix.rows)
        for columns in self._each_strip(matrix.columns):
            targets = [self._target(to, column, matrix.columns, pairs) for column in columns]
            with self._each_pair(matrix) as (pair, rows):
                self._fetch(matrix, rows, columns)
                for column, (target, width) in zip(columns, targets, strict=True):
                    low, high = (self._load(matrix.place, matrix, row, column) for row in rows)
                    k.store(self._join(low, high), k.at(target, k.times(pair, width), I32))

    def pack_gradient(self, given: Gradient, to: Value) -> None:
        """The same in panels of so many columns as the layout has rows in a tile."""
        k, matrix, tile_rows = self.k, given.matrix, self.layout.tile_rows
        pairs = self.pairs_of(matrix.rows)
        for columns in self._each_strip(matrix.columns):
            sums = [k.variable(k.splat(0.0)) for _ in columns]
            with self._each_pair(matrix) as (pair, rows):
                self._fetch(matrix, rows, columns)
                for column, total in zip(columns, sums, strict=True):
                    low, high = (self._load(matrix.place, matrix, row, column) for row in rows)
                    joined = self._count(low, high, total)
                    for first in range(0, k.lanes, tile_rows):
                        numbers = ir.Constant(ir.VectorType(I32, tile_rows), list(range(first, first + tile_rows)))
                        place = k.sum_of(k.times(k.sum_of(column, first), pairs), k.times(pair, tile_rows))
                        k.store(k.build.shuffle_vector(joined, joined, numbers), k.at(to, place, I32))
            with k.where(k.is_given(given.sums)):
                for column, own in zip(columns, sums, strict=True):
                    self._add_sums(given, column, own)

    def _add_sums(self, given: Gradient, column: Value, total: Value) -> None:
        """To those of a vector of columns."""
        k = self.k
        place = k.at(k.place(given.sums), column)
        k.store(k.build.fadd(k.load_floats(place), k.get(total, k.splat(0.0))), place)

    def _count(self, low: Value, high: Value, total: Value) -> Value:
        """The pair of two vectors, which are added to the sums of their columns."""
        k = self.k
        one, other = (k.build.bitcast(self._widen(value), k.floats) for value in (low, high))
        k.store(k.build.fadd(k.get(total, one), k.build.fadd(one, other)), total)
        return self._join(low, high)

    def pairs_of(self, rows: Value) -> Value:
        """Of so many rows, and of the zeros that fill them up."""
        k, together = self.k, self.layout.together
        whole = k.build.sdiv(k.sum_of(rows, together - 1), k.number(together))
        return k.times(whole, together // 2)

    def _each_strip(self, columns: Value) -> Iterator[list[Value]]:
        """The thread's share of columns, some vectors of them at a time, then the rest one by one."""
        k = self.k
        first, last = k.share(k.build.sdiv(columns, k.number(k.lanes)), self.thread, self.threads)
        start = first
        for together in (_STRIP, 1):
            rest = k.build.srem(k.build.sub(last, start), k.number(together))
            stop = k.build.sub(last, rest)
            with k.loop(start, stop, together) as number:
                yield [k.times(k.sum_of(number, n), k.lanes) for n in range(together)]
            start = stop

    def _target(self, to: Value, column: Value, columns: Value, pairs: Value) -> tuple[Value, Value]:
        """Where a column's first pair belongs, and how many columns its panel has."""
        k, panel = self.k, self.layout.panel
        start = k.times(k.build.sdiv(column, k.number(panel)), panel)
        width = k.lesser(k.build.sub(columns, start), k.number(panel))
        return k.at(to, k.sum_of(k.times(start, pairs), k.build.sub(column, start)), I32), width

    @contextmanager
    def _each_pair(self, matrix: Matrix) -> Iterator[tuple[Value, tuple[Value, Value]]]:
        """A pair's number, and its two rows."""
        k = self.k
        with k.loop(0, self.pairs_of(matrix.rows)) as pair:
            yield pair, rows_of(k, pair)

    def _is_row(self, matrix: Matrix, row: Value) -> Value:
        return self.k.build.icmp_signed("<", row, matrix.rows)

    def _place(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        return self.k.at(place, self.k.sum_of(self.k.times(row, matrix.columns), column), I16)

    def _load(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        """A vector of bfloat16 as it is, zeros beyond the last row."""
        k = self.k
        kind = ir.VectorType(I16, k.lanes)
        known = k.lesser(row, k.sum_of(matrix.rows, -1))
        value = k.load(self._place(place, matrix, known, column), kind)
        return k.build.select(self._is_row(matrix, row), value, ir.Constant(kind, None))

    def _fetch(self, matrix: Matrix, rows: tuple[Value, Value], columns: list[Value]) -> None:
        """Has what is read some rows below fetched into the cache; it is too far apart for the processor to foresee."""
        k = self.k
        for row, column in product(rows, columns[::2]):
            k.fetch(self._place(matrix.place, matrix, k.sum_of(row, _AHEAD), column))

    def _widen(self, value: Value) -> Value:
        """The bits of float32."""
        return self.k.build.shl(self.k.build.zext(value, self.k.ints), self.k.all_ints(16))

    def _join(self, low: Value, high: Value) -> Value:
        return self.k.build.or_(self.k.build.zext(low, self.k.ints), self._widen(high))


def rows_of(k: Emitter, pair: Value) -> tuple[Value, Value]:
    row = k.times(pair, 2)
    return row, k.sum_of(row, 1)
