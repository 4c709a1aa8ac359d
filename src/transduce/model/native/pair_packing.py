"""Matrices laid out for products: of bfloat16 for the instructions that multiply pairs, `vpdpbf16ps` and AMX's
`tdpbf16ps`, or of float32.

Both instructions add two products to each sum, so two neighbours along what is summed must stand together: a *pair*, 32
bits. Of float32 a single number has as many, and takes a pair's place. A *panel* is some columns of a matrix whose rows
are summed over: the first two rows' pairs, one for each column, then the next two rows'; of float32, row after row.
"""

from collections.abc import Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, Emitter, Value
from transduce.model.native.rows import transpose

_AHEAD = 8  # rows that are asked for before they are read
_STRIP = 4  # vectors of columns that a thread packs at a time
_LINE_BYTES = 64  # of a cache


class Layout(NamedTuple):
    """How many numbers of a matrix are multiplied at a time."""

    panel: int
    """Columns: some vectors. The last panel of a matrix may have fewer vectors."""
    tile_rows: int
    """Rows."""
    least_rows: int
    """There must be so many."""
    together: int
    """Rows that are summed over are filled up with zeros to a multiple of this."""
    block: int
    """Pairs in rows that are multiplied by one panel after another: a cache has room for them beside a panel."""
    depth: int
    """Pairs that are added to sums at a time, a multiple of `together`."""
    sum_tiles: int
    """Tiles of rows of a block of sums, to which all pairs are added before the next block has its turn: some whole
    vectors of rows."""
    kind: Any = I16
    """Of the numbers: bfloat16, or F32."""

    @property
    def group(self) -> int:
        """Numbers of a pair."""
        return 1 if self.kind == F32 else 2

    @property
    def block_bytes(self) -> int:
        """Of the rows of such a block, of so many pairs as are added to it at a time."""
        return self.sum_tiles * self.tile_rows * self.depth * 4

    @property
    def bytes(self) -> int:
        """Of a number."""
        return 4 // self.group


VECTORS = Layout(panel=48, tile_rows=8, least_rows=8, together=8, block=1 << 16, depth=1 << 8, sum_tiles=32)
"""24 sums in 32 vectors."""
AMX = Layout(panel=32, tile_rows=32, least_rows=16, together=32, block=1 << 17, depth=1 << 8, sum_tiles=8)
"""Four registers of 16 × 16 sums, of eight."""


class Matrix(NamedTuple):
    """Its rows one after another."""

    place: Value
    rows: Value
    columns: Value


class Gradient(NamedTuple):
    """A gradient by the output of a layer."""

    matrix: Matrix
    sums: Value
    """An address of float32, 0: none, where the sum of each column is added while it is laid out."""


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
        pairs = k.build.sdiv(matrix.columns, k.number(self.layout.group))
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
        """Columns of some tiles, whole vectors, and some of their pairs: for each tile its first pairs, then its next.

        The rows beyond the gradient's last one are zeros.
        """
        k, matrix, tile_rows = self.k, given.matrix, self.layout.tile_rows
        start, stop = (k.build.sdiv(k.times(each, tile_rows), k.number(k.lanes)) for each in tiles)
        for columns in self._each_strip(start, stop):
            sums = [k.variable(k.splat(0.0)) for _ in columns]
            with k.loop(0, span.count) as pair:
                rows = self._rows_of(k.sum_of(span.first, pair))
                self._fetch(matrix, rows, columns)
                for column, total in zip(columns, sums, strict=True):
                    joined = self._count([self._load(matrix.place, matrix, row, column) for row in rows], total)
                    for first in range(0, k.lanes, tile_rows):
                        numbers = ir.Constant(ir.VectorType(I32, tile_rows), list(range(first, first + tile_rows)))
                        number = k.build.sub(k.sum_of(column, first), k.times(tiles.first, tile_rows))
                        place = k.sum_of(k.times(number, span.count), k.times(pair, tile_rows))
                        k.store(k.build.shuffle_vector(joined, joined, numbers), k.at(to, place, I32))
            with k.where(k.is_given(given.sums)):
                for column, own in zip(columns, sums, strict=True):
                    self._add_sums(given, column, own)

    def _add_sums(self, given: Gradient, column: Value, total: Value) -> None:
        """To those of a vector of columns."""
        k = self.k
        place = k.at(k.place(given.sums), column)
        k.store(k.build.fadd(k.load_floats(place), k.get(total, k.splat(0.0))), place)

    def _count(self, values: list[Value], total: Value) -> Value:
        """The pairs of one vector, or of two, which are added to the sums of their columns."""
        k = self.k
        floats = (
            values if self.layout.kind == F32 else [k.build.bitcast(self._widen(each), k.floats) for each in values]
        )
        k.store(k.build.fadd(k.get(total, floats[0]), reduce(k.build.fadd, floats)), total)
        return self._join(values)

    def pairs_of(self, rows: Value) -> Value:
        """Of so many rows, and of the zeros that fill them up."""
        k, together = self.k, self.layout.together
        whole = k.build.sdiv(k.sum_of(rows, together - 1), k.number(together))
        return k.times(whole, together // self.layout.group)

    def _each_strip(self, first: Value, last: Value) -> Iterator[list[Value]]:
        """The columns of some vectors, several of these at a time, then the rest one by one."""
        k, start = self.k, first
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

    def _rows_of(self, pair: Value) -> list[Value]:
        k, group = self.k, self.layout.group
        return [k.sum_of(k.times(pair, group), number) for number in range(group)]

    def _is_row(self, matrix: Matrix, row: Value) -> Value:
        return self.k.build.icmp_signed("<", row, matrix.rows)

    def _place(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        return self.k.at(place, self.k.sum_of(self.k.times(row, matrix.columns), column), self.layout.kind)

    def _load(self, place: Value, matrix: Matrix, row: Value, column: Value) -> Value:
        """A vector as it is, zeros beyond the last row."""
        k = self.k
        kind = ir.VectorType(self.layout.kind, k.lanes)
        known = k.lesser(row, k.sum_of(matrix.rows, -1))
        value = k.load(self._place(place, matrix, known, column), kind)
        return k.build.select(self._is_row(matrix, row), value, ir.Constant(kind, None))

    def _fetch(self, matrix: Matrix, rows: list[Value], columns: list[Value]) -> None:
        """Has what is read some rows below fetched into the cache; it is too far apart for the processor to foresee."""
        k = self.k
        for row, column in product(rows, columns[:: _LINE_BYTES // (k.lanes * self.layout.bytes)]):
            k.fetch(self._place(matrix.place, matrix, k.sum_of(row, _AHEAD), column))

    def _widen(self, value: Value) -> Value:
        """The bits of float32."""
        return self.k.build.shl(self.k.build.zext(value, self.k.ints), self.k.all_ints(16))

    def _join(self, values: list[Value]) -> Value:
        """Their bits."""
        k = self.k
        if self.layout.kind == F32:
            return k.build.bitcast(values[0], k.ints)
        low, high = values
        return k.build.or_(k.build.zext(low, k.ints), self._widen(high))
