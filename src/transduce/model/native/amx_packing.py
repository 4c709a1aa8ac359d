"""Matrices of bfloat16 laid out for AMX: blocks of 32 rows, of which all columns are read before the next ones.

A row of a large matrix fills a page of memory. Whoever reads some columns of all rows touches every page, and again for
the next columns; a block's pages are few enough to be known.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import I16, I32, Value
from transduce.model.native.pair_packing import Gradient, Matrix, Packer, rows_of
from transduce.model.native.rows import transpose


class AmxPacker(Packer):
    """The same by blocks. Columns are a multiple of a panel's."""

    def pack(self, matrix: Matrix, to: Value) -> None:
        """As `Packer.pack`."""
        k, panel = self.k, self.layout.panel
        pairs = self.pairs_of(matrix.rows)
        with k.loop(0, pairs, k.lanes) as first, self._each_panel(matrix) as column:
            target = k.at(to, k.times(column, pairs), I32)
            for pair in (k.sum_of(first, n) for n in range(k.lanes)):
                for start in range(0, panel, k.lanes):
                    own = k.sum_of(column, start)
                    low, high = (self._load(matrix.place, matrix, row, own) for row in rows_of(k, pair))
                    k.store(self._join(low, high), k.at(target, k.sum_of(k.times(pair, panel), start), I32))

    def pack_gradient(self, given: Gradient, to: Value) -> None:
        """As `Packer.pack_gradient`, but in squares of 16 rows of 16 pairs, whole registers."""
        k = self.k
        pairs = self.pairs_of(given.matrix.rows)
        is_gated = k.is_given(given.gate)
        counted = given.matrix._replace(place=k.build.select(is_gated, k.place(given.kept), given.matrix.place))
        with k.loop(0, pairs, k.lanes) as first:
            with k.where(is_gated):
                self._keep(given, first)
            with self._each_panel(given.matrix) as column:
                self._pack_squares(counted, first, column, to, given.sums)

    def _keep(self, given: Gradient, first: Value) -> None:
        """What counts of a block, row by row, as the processor foresees it."""
        k, matrix = self.k, given.matrix
        kind = ir.VectorType(I16, self.layout.panel)
        none = ir.Constant(kind, None)
        row = k.times(first, 2)
        last = k.lesser(k.sum_of(row, 2 * k.lanes), matrix.rows)
        with k.loop(row, last) as own, self._each_panel(matrix) as column:
            value = k.load(self._place(matrix.place, matrix, own, column), kind)
            gate = k.load(self._place(k.place(given.gate), matrix, own, column), kind)
            value = k.build.select(k.build.icmp_signed(">", gate, none), value, none)
            k.store(value, self._place(k.place(given.kept), matrix, own, column))

    def _pack_squares(self, matrix: Matrix, first: Value, column: Value, to: Value, sums: Value) -> None:
        """Those of a panel's columns in a block."""
        k, pairs = self.k, self.pairs_of(matrix.rows)
        for own in (k.sum_of(column, start) for start in range(0, self.layout.panel, k.lanes)):
            total = k.variable(k.splat(0.0))
            square = []
            for pair in (k.sum_of(first, n) for n in range(k.lanes)):
                low, high = (self._load(matrix.place, matrix, row, own) for row in rows_of(k, pair))
                square.append(self._count(low, high, total))
            for n, vector in enumerate(transpose(k, square)):
                place = k.sum_of(k.times(own, pairs), k.times(k.sum_of(first, n), k.lanes))
                k.store(vector, k.at(to, place, I32))
            with k.where(k.is_given(sums)):
                place = k.at(k.place(sums), own)
                k.store(k.build.fadd(k.load_floats(place), k.get(total, k.splat(0.0))), place)

    @contextmanager
    def _each_panel(self, matrix: Matrix) -> Iterator[Value]:
        """The first columns of the thread's share of panels."""
        k, panel = self.k, self.layout.panel
        first, last = k.share(k.build.sdiv(matrix.columns, k.number(panel)), self.thread, self.threads)
        with k.loop(k.times(first, panel), k.times(last, panel), panel) as column:
            yield column
