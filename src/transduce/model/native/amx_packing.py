"""Pack bfloat16 matrices for AMX in blocks of 32 rows, of which all columns are read before the next block.

A row of a large matrix fills a page of memory. Reading a few columns of all rows would touch every page, and touch it
again for the next columns. The pages of a block are few enough for the TLB.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transduce.model.native.amx_panels import PART_ROWS, TILE_ROWS
from transduce.model.native.emit import I32, Value
from transduce.model.native.pair_packing import Gradient, Matrix, Packer, Span, Tiles
from transduce.model.native.rows import transpose

_APART = 4  # distance of rows that are read at once: several streams use more memory bandwidth


class AmxPacker(Packer):
    """A `Packer` that works by blocks of rows; the number of columns is a multiple of a panel's."""

    def pack(self, matrix: Matrix, to: Value) -> None:
        """Pack a matrix whose rows are summed over."""
        k, panel = self.k, self.layout.panel
        pairs = self.pairs_of(matrix.rows)
        with k.loop(0, pairs, k.lanes) as first, self._each_panel(matrix) as column:
            target = k.at(to, k.times(column, pairs), I32)
            for pair in (k.sum_of(first, n) for n in range(k.lanes)):
                for start in range(0, panel, k.lanes):
                    vector_column = k.sum_of(column, start)
                    values = [self._load(matrix.place, matrix, row, vector_column) for row in self._rows_of(pair)]
                    k.store(self._join(values), k.at(target, k.sum_of(k.times(pair, panel), start), I32))

    def lay_rows(self, matrix: Matrix, tiles: Tiles, span: Span, to: Value) -> None:
        """Pack rows of some tiles, for a span of pairs: for every 16 pairs, one tile register per 16 rows of a tile.

        A 16-row part that would reach behind the last row starts earlier.
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
                for number, row_start in enumerate(rows):
                    value = k.load(k.at(matrix.place, k.sum_of(row_start, pair), I32), k.ints)
                    offset = k.times(k.sum_of(first, number * _APART), k.lanes)
                    k.store(value, k.at(target, k.sum_of(offset, k.times(pair, TILE_ROWS)), I32))

    def lay_gradient(self, given: Gradient, tiles: Tiles, span: Span, to: Value) -> None:
        """Pack the columns of some tiles of a gradient as tile registers, and add them to `given.sums`.

        As in `lay_rows`, but the rows of the gradient are summed over.
        """
        k, matrix = self.k, given.matrix
        with k.loop(0, span.count, k.lanes) as first, k.loop(*tiles) as tile:
            target = k.at(self._tile(to, tile, tiles, span), k.times(first, TILE_ROWS), I32)
            for part in range(TILE_ROWS // PART_ROWS):
                column, total = k.sum_of(k.times(tile, TILE_ROWS), part * PART_ROWS), k.variable(k.splat(0.0))
                square = []
                for pair in (k.sum_of(span.first, first, n) for n in range(k.lanes)):
                    values = [self._load(matrix.place, matrix, row, column) for row in self._rows_of(pair)]
                    square.append(self._join_and_sum(values, total))
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.at(target, (part * PART_ROWS + n) * k.lanes, I32))
                with k.where(k.is_given(given.sums)):
                    self._add_sums(given, column, total)

    def _tile(self, to: Value, tile: Value, tiles: Tiles, span: Span) -> Value:
        """Return a pointer to a tile's packed rows."""
        k = self.k
        return k.at(to, k.times(k.build.sub(tile, tiles.first), span.count, TILE_ROWS), I32)

    @contextmanager
    def _each_panel(self, matrix: Matrix) -> Iterator[Value]:
        """Emit a loop over the thread's share of panels; yields each panel's first column."""
        k, panel = self.k, self.layout.panel
        first, last = k.share(k.build.sdiv(matrix.columns, k.number(panel)), self.thread, self.threads)
        with k.loop(k.times(first, panel), k.times(last, panel), panel) as column:
            yield column
