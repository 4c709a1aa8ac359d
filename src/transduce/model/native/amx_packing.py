"""Matrices of bfloat16 laid out for AMX: blocks of 32 rows, of which all columns are read before the next ones.

A row of a large matrix fills a page of memory. Whoever reads some columns of all rows touches every page, and again for
the next columns; a block's pages are few enough to be known.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transduce.model.native.amx_panels import PART_ROWS, TILE_ROWS
from transduce.model.native.emit import I32, Value
from transduce.model.native.pair_packing import Gradient, Matrix, Packer, Span, Tiles
from transduce.model.native.rows import transpose

_APART = 4  # rows: those that are read at once, which memory gives faster than one after another


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
                    values = [self._load(matrix.place, matrix, row, own) for row in self._rows_of(pair)]
                    k.store(self._join(values), k.at(target, k.sum_of(k.times(pair, panel), start), I32))

    def lay_rows(self, matrix: Matrix, tiles: Tiles, span: Span, to: Value) -> None:
        """Rows of some tiles, and some of their pairs: for each sixteen of these a register of each of a tile's parts.

        A part that would go past the last row begins so much before.
        """
        k = self.k
        pairs = k.build.sdiv(matrix.columns, k.number(2))
        last = k.build.sub(matrix.rows, k.number(PART_ROWS))
        with k.loop(*tiles) as tile, k.loop(0, _APART) as first:
            target = self._tile(to, tile, tiles, span)
            rows = []
            for number in range(0, TILE_ROWS, _APART):
                part, row = divmod(number, PART_ROWS)
                start = k.lesser(k.sum_of(k.times(tile, TILE_ROWS), part * PART_ROWS), last)
                rows.append(k.sum_of(k.times(k.sum_of(start, first, row), pairs), span.first))
            with k.loop(0, span.count, k.lanes) as pair:
                for number, own in enumerate(rows):
                    value = k.load(k.at(matrix.place, k.sum_of(own, pair), I32), k.ints)
                    here = k.times(k.sum_of(first, number * _APART), k.lanes)
                    k.store(value, k.at(target, k.sum_of(here, k.times(pair, TILE_ROWS)), I32))

    def lay_gradient(self, given: Gradient, tiles: Tiles, span: Span, to: Value) -> None:
        """The same of columns, of which some rows are summed over: as `Packer.lay_gradient`, but by registers."""
        k, matrix = self.k, given.matrix
        with k.loop(0, span.count, k.lanes) as first, k.loop(*tiles) as tile:
            target = k.at(self._tile(to, tile, tiles, span), k.times(first, TILE_ROWS), I32)
            for part in range(TILE_ROWS // PART_ROWS):
                column, total = k.sum_of(k.times(tile, TILE_ROWS), part * PART_ROWS), k.variable(k.splat(0.0))
                square = []
                for pair in (k.sum_of(span.first, first, n) for n in range(k.lanes)):
                    values = [self._load(matrix.place, matrix, row, column) for row in self._rows_of(pair)]
                    square.append(self._count(values, total))
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.at(target, (part * PART_ROWS + n) * k.lanes, I32))
                with k.where(k.is_given(given.sums)):
                    self._add_sums(given, column, total)

    def _tile(self, to: Value, tile: Value, tiles: Tiles, span: Span) -> Value:
        """Where a tile's rows begin."""
        k = self.k
        return k.at(to, k.times(k.build.sub(tile, tiles.first), span.count, TILE_ROWS), I32)

    @contextmanager
    def _each_panel(self, matrix: Matrix) -> Iterator[Value]:
        """The first columns of the thread's share of panels."""
        k, panel = self.k, self.layout.panel
        first, last = k.share(k.build.sdiv(matrix.columns, k.number(panel)), self.thread, self.threads)
        with k.loop(k.times(first, panel), k.times(last, panel), panel) as column:
            yield column
