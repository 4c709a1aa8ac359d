"""Pack matrices for the GEMM kernels of training: bfloat16 for `vpdpbf16ps` and AMX's `tdpbf16ps`, or float32.

The bfloat16 instructions add two products to each sum. So two neighbors along the summed dimension are stored together:
a *pair* of 32 bits. In float32 a single number takes the place of a pair. A *panel* is a block of columns of a matrix
whose rows are summed over. It stores the pairs of the first two rows, one for each column, then those of the next two
rows; in float32 it stores row after row.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, Emitter, Value
from transduce.model.native.rows import transpose

_AHEAD = 8  # prefetch distance in rows
_STRIP = 4  # vectors of columns that a thread packs at a time
_LINE_BYTES = 64  # of a cache line


class Layout(NamedTuple):
    """Block sizes of the training GEMM, for one kind of registers and elements."""

    panel: int
    """Columns per panel, a whole number of vectors; the last panel of a matrix may have fewer."""
    tile_rows: int
    """Rows per tile, that is per register block."""
    least_rows: int
    """The minimum number of rows of a product."""
    together: int
    """The number of summed rows is padded with zeros to a multiple of this."""
    block: int
    """Pairs in a block of left-hand rows.

    A block fits in a cache beside a panel, and is multiplied by all panels in turn.
    """
    depth: int
    """Pairs per pass over a block of sums, a multiple of `together`."""
    sum_tiles: int
    """Row tiles per block of sums; they span whole vectors of rows.

    All pairs are added to a block of sums before the next block starts.
    """
    kind: Any = I16
    """The element type: I16 for bfloat16, or F32."""

    @property
    def group(self) -> int:
        """Elements per pair."""
        return 1 if self.kind == F32 else 2

    @property
    def block_bytes(self) -> int:
        """The packed size in bytes of the rows of one block of sums, for one pass of `depth` pairs."""
        return self.sum_tiles * self.tile_rows * self.depth * 4

    @property
    def bytes(self) -> int:
        """The size of an element in bytes."""
        return 4 // self.group


VECTORS = Layout(panel=48, tile_rows=8, least_rows=8, together=8, block=1 << 16, depth=1 << 8, sum_tiles=32)
"""The layout for AVX-512: 24 of the 32 registers hold sums."""
AMX = Layout(panel=32, tile_rows=32, least_rows=16, together=32, block=1 << 17, depth=1 << 8, sum_tiles=8)
"""The layout for AMX: four of the eight tile registers hold 16 × 16 sums each."""


class Matrix(NamedTuple):
    """A row-major matrix without gaps between its rows."""

    place: Value
    """Pointer to the first element."""
    rows: Value
    columns: Value


class Gradient(NamedTuple):
    """The gradient with respect to a layer's output."""

    matrix: Matrix
    sums: Value
    """The address of float32 column sums, to which packing adds each column; 0: none."""


class Tiles(NamedTuple):
    """A half-open range of row tiles, [first, last)."""

    first: Value
    last: Value


class Span(NamedTuple):
    """A range of pairs along the summed dimension."""

    first: Value
    count: Value


class Packer:
    """An emitter of the code that packs matrices into panels, shared among the threads."""

    def __init__(self, k: Emitter, layout: Layout, thread: Value, threads: Value) -> None:
        self.k, self.layout, self.thread, self.threads = k, layout, thread, threads

    def pack_transposed(self, matrix: Matrix, to: Value) -> None:
        """Pack a matrix whose columns are summed over: its rows become the columns of panels."""
        k, lanes = self.k, self.k.lanes
        pairs = k.build.sdiv(matrix.columns, k.number(self.layout.group))
        first, last = k.share(k.build.sdiv(matrix.rows, k.number(lanes)), self.thread, self.threads)
        with k.loop(k.times(first, lanes), k.times(last, lanes), lanes) as row:
            target, width = self._target(to, row, matrix.rows, pairs)
            with k.loop(0, pairs, lanes) as pair:
                square = []
                for n in range(lanes):
                    offset = k.sum_of(k.times(k.sum_of(row, n), pairs), pair)
                    square.append(k.load(k.at(matrix.place, offset, I32), k.ints))
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.at(target, k.times(k.sum_of(pair, n), width), I32))

    def pack(self, matrix: Matrix, to: Value) -> None:
        """Pack a matrix whose rows are summed over."""
        k = self.k
        pairs = self.pairs_of(matrix.rows)
        first, last = k.share(k.build.sdiv(matrix.columns, k.number(k.lanes)), self.thread, self.threads)
        for columns in self._each_strip(first, last):
            targets = [self._target(to, column, matrix.columns, pairs) for column in columns]
            with k.loop(0, pairs) as pair:
                rows = self._rows_of(pair)
                self._fetch(matrix, rows, columns)
                for column, (target, width) in zip(columns, targets, strict=True):
                    values = [self._load(matrix.place, matrix, row, column) for row in rows]
                    k.store(self._join(values), k.at(target, k.times(pair, width), I32))

    def lay_gradient(self, given: Gradient, tiles: Tiles, span: Span, to: Value) -> None:
        """Pack the columns of some tiles of a gradient as left-hand rows, and add them to `given.sums`.

        Each tile stores its first pairs, then its next ones. Columns span whole vectors. Rows behind the gradient's
        last one count as zeros.
        """
        k, matrix, tile_rows = self.k, given.matrix, self.layout.tile_rows
        start, stop = (k.build.sdiv(k.times(each, tile_rows), k.number(k.lanes)) for each in tiles)
        for columns in self._each_strip(start, stop):
            sums = [k.variable(k.splat(0.0)) for _ in columns]
            with k.loop(0, span.count) as pair:
                rows = self._rows_of(k.sum_of(span.first, pair))
                self._fetch(matrix, rows, columns)
                for column, total in zip(columns, sums, strict=True):
                    joined = self._join_and_sum([self._load(matrix.place, matrix, row, column) for row in rows], total)
                    for first in range(0, k.lanes, tile_rows):
                        numbers = ir.Constant(ir.VectorType(I32, tile_rows), list(range(first, first + tile_rows)))
                        number = k.build.sub(k.sum_of(column, first), k.times(tiles.first, tile_rows))
                        offset = k.sum_of(k.times(number, span.count), k.times(pair, tile_rows))
                        k.store(k.build.shuffle_vector(joined, joined, numbers), k.at(to, offset, I32))
            with k.where(k.is_given(given.sums)):
                for column, total in zip(columns, sums, strict=True):
                    self._add_sums(given, column, total)

    def _add_sums(self, given: Gradient, column: Value, total: Value) -> None:
        """Add the sums of a vector of columns to the gradient's column sums."""
        k = self.k
        pointer = k.at(k.place(given.sums), column)
        k.store(k.build.fadd(k.load_floats(pointer), k.get(total, k.splat(0.0))), pointer)

    def _join_and_sum(self, values: list[Value], total: Value) -> Value:
        """Join one or two vectors to pairs, and add them to the sums of their columns."""
        k = self.k
        floats = (
            values if self.layout.kind == F32 else [k.build.bitcast(self._widen(each), k.floats) for each in values]
        )
        k.store(k.build.fadd(k.get(total, floats[0]), reduce(k.build.fadd, floats)), total)
        return self._join(values)

    def pairs_of(self, rows: Value) -> Value:
        """Return the number of pairs of `rows` summed rows, padding included."""
        k, together = self.k, self.layout.together
        groups = k.build.sdiv(k.sum_of(rows, together - 1), k.number(together))
        return k.times(groups, together // self.layout.group)

    def _each_strip(self, first: Value, last: Value) -> Iterator[list[Value]]:
        """Emit loops over the vectors in [first, last), several at a time; yields the first column of each vector."""
        k, start = self.k, first
        for count in (_STRIP, 1):
            rest = k.build.srem(k.build.sub(last, start), k.number(count))
            stop = k.build.sub(last, rest)
            with k.loop(start, stop, count) as number:
                yield [k.times(k.sum_of(number, n), k.lanes) for n in range(count)]
            start = stop

    def _target(self, to: Value, column: Value, columns: Value, pairs: Value) -> tuple[Value, Value]:
        """Return a pointer to a column's first pair in its panel, and the number of columns of that panel."""
        k, panel = self.k, self.layout.panel
        start = k.times(k.build.sdiv(column, k.number(panel)), panel)
        width = k.lesser(k.build.sub(columns, start), k.number(panel))
        return k.at(to, k.sum_of(k.times(start, pairs), k.build.sub(column, start)), I32), width

    def _rows_of(self, pair: Value) -> list[Value]:
        """Return the indices of the rows whose elements make up a pair."""
        k, group = self.k, self.layout.group
        return [k.sum_of(k.times(pair, group), number) for number in range(group)]

    def _is_row(self, matrix: Matrix, row: Value) -> Value:
        """Return the condition that a row exists."""
        return self.k.build.icmp_signed("<", row, matrix.rows)

    def _pointer(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        """Return a pointer to an element of a matrix."""
        return self.k.at(place, self.k.sum_of(self.k.times(row, matrix.columns), column), self.layout.kind)

    def _load(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        """Load a vector of a row without conversion; zeros behind the last row."""
        k = self.k
        kind = ir.VectorType(self.layout.kind, k.lanes)
        safe_row = k.lesser(row, k.sum_of(matrix.rows, -1))
        value = k.load(self._pointer(place, matrix, safe_row, column), kind)
        return k.build.select(self._is_row(matrix, row), value, ir.Constant(kind, None))

    def _fetch(self, matrix: Matrix, rows: list[Value], columns: list[Value]) -> None:
        """Prefetch what is read `_AHEAD` rows below: rows are too far apart for the hardware prefetcher."""
        k = self.k
        for row, column in product(rows, columns[:: _LINE_BYTES // (k.lanes * self.layout.bytes)]):
            k.fetch(self._pointer(matrix.place, matrix, k.sum_of(row, _AHEAD), column))

    def _widen(self, value: Value) -> Value:
        """Convert bfloat16 bits to float32 bits."""
        return self.k.build.shl(self.k.build.zext(value, self.k.ints), self.k.all_ints(16))

    def _join(self, values: list[Value]) -> Value:
        """Join one vector of float32, or two of bfloat16, to a vector of pairs."""
        k = self.k
        if self.layout.kind == F32:
            return k.build.bitcast(values[0], k.ints)
        low, high = values
        return k.build.or_(k.build.zext(low, k.ints), self._widen(high))
