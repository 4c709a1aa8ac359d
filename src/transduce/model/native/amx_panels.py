"""Emit the AMX multiplication of some rows by one panel of columns, tile after tile (used by `amx_products.py`).

Sums are stored to a buffer, from which vector instructions finish them while AMX multiplies the next tile. The next
panel is meanwhile prefetched into the L2 cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.emit import F32, I8, I32, I64, POINTER, VOID, Emitter, Value
from transduce.model.native.pair_packing import AMX

PART_ROWS = amx.REGISTER_ROWS
"""Rows of a part of a tile, which is one tile register."""
TILE_ROWS = AMX.tile_rows
TILE = TILE_ROWS * AMX.panel
"""Sums in a tile."""
STEP = 16
"""Pairs per row of a tile register."""
PARTS = TILE_ROWS // PART_ROWS
VECTORS = AMX.panel // PART_ROWS
"""Vectors of columns in a panel."""
_LEFT, _PANEL = 4, 6  # indices of the first such tile registers; those of sums are 0 to 3


class PanelPlaces(NamedTuple):
    """Arguments of a function that multiplies row tiles by one panel."""

    left: Value
    """Pointer to the first tile's rows."""
    tile_bytes: Value
    """Bytes from one tile's rows to the next tile's."""
    part_bytes: Value
    """Bytes from one 16-row part of a tile to the next."""
    row_bytes: Value
    """Bytes from one row to the next."""
    step_bytes: Value
    """Bytes from 16 pairs to the next 16 pairs."""
    panel: Value
    """Pointer to the packed columns."""
    depth: Value
    """The number of pairs to sum."""
    waiting: Value
    """Pointer to partial sums of all tiles, between two spans of pairs."""
    begins: Value
    """Whether this is the first span, so that there are no partial sums yet: 0 or 1."""
    ends: Value
    """Whether this is the last span, so that sums are finished: 0 or 1."""
    out: Value
    """Pointer to the panel's first column in the first row of the result."""
    stride: Value
    """Columns of a row of the result."""
    rows: Value
    """Rows of the result."""
    first: Value
    """The first row tile."""
    last: Value
    """The row tile at which to stop (exclusive)."""
    step: Value
    """The step from one row tile to the next."""
    ahead: Value
    """Pointer to what is multiplied next, for prefetching."""


PLACES: tuple[Any, ...] = (POINTER, *[I64] * 4, POINTER, I64, POINTER, I64, I64, POINTER, *[I64] * 5, POINTER)
"""The LLVM types of `PanelPlaces`' fields."""


class Ends(NamedTuple):
    """The code that an epilogue emits."""

    fetch: Callable[[Value], None]
    """Emit prefetches while a tile is multiplied, given the offset from `out` of a row's first element."""
    row: Callable[[Value, Value], None]
    """Emit the epilogue of a row, given a pointer to its sums and the offset of its first element."""


def write_panels(k: Emitter, args: PanelPlaces, ends: Ends) -> None:
    """Emit the multiplication of all row tiles by a panel.

    A 16-row part of a tile that would reach behind the last row starts earlier and recomputes some rows.
    """
    panels = _Panels(k, args, ends)
    with k.loop(args.first, args.last, args.step) as number:
        panels.write_tile(number)
    panels.finish_rows(k.number(0), k.number(TILE_ROWS))


class _Panels:
    """An emitter of the tiles of one panel, which keeps track of the previous tile's unfinished sums."""

    def __init__(self, k: Emitter, args: PanelPlaces, ends: Ends) -> None:
        self.k, self.given, self.ends = k, args, ends
        with k.build.goto_entry_block():
            self.made = k.build.alloca(ir.ArrayType(F32, 2 * TILE))  # double buffer of a tile's sums
            self.made.align = amx.REGISTER_BYTES
        none = k.number(0)
        self.side, self.rows_made, self.fetched = (k.variable(none) for _ in range(3))
        self.parts_made = [k.variable(none) for _ in range(PARTS)]
        steps = k.build.sdiv(args.depth, k.number(STEP))
        self.rows_each = k.build.sdiv(k.sum_of(steps, TILE_ROWS - 1), steps)
        tiles = k.build.sub(args.last, args.first)
        lines = STEP * AMX.panel * 4 // amx.REGISTER_BYTES  # cache lines of a panel per step
        self.bytes_each = k.times(k.build.sdiv(k.sum_of(tiles, lines - 1), tiles), amx.REGISTER_BYTES)

    def write_tile(self, number: Value) -> None:
        """Emit the multiplication of a tile, during which the previous tile is finished."""
        k, args = self.k, self.given
        count = k.build.sub(number, args.first)
        waiting = k.at(args.waiting, k.times(count, TILE))
        registers = [(n, k.at(waiting, n * TILE // 4)) for n in range(PARTS * VECTORS)]
        with k.build.if_else(k.is_given(args.begins)) as (new, more):
            with new:
                for n, _ in registers:
                    amx.zero(k, n)
            with more:
                for n, pointer in registers:
                    amx.load(k, n, pointer, k.number(amx.REGISTER_BYTES))
        last = k.build.sub(args.rows, k.number(PART_ROWS))
        parts = [k.lesser(k.sum_of(k.times(number, TILE_ROWS), part * PART_ROWS), last) for part in range(PARTS)]
        steps = k.build.sdiv(count, args.step)
        self._multiply(k.at(args.left, k.times(steps, args.tile_bytes), I8), parts)
        with k.build.if_else(k.is_given(args.ends)) as (is_finished, is_partial):
            with is_finished:
                for n, _ in registers:
                    offset = n // VECTORS * PART_ROWS * AMX.panel + n % VECTORS * k.lanes
                    pointer = k.at(self.made, k.sum_of(k.get(self.side, count), offset))
                    amx.store(k, n, pointer, AMX.panel * 4)
                k.store(k.build.sub(k.number(TILE), k.get(self.side, count)), self.side)
                k.store(k.number(TILE_ROWS), self.rows_made)
                for variable, part in zip(self.parts_made, parts, strict=True):
                    k.store(part, variable)
            with is_partial:
                for n, pointer in registers:
                    amx.store(k, n, pointer)

    def _multiply(self, left: Value, parts: list[Value]) -> None:
        """Emit the sums of a tile; after every 16 pairs some rows of the previous tile are finished."""
        k, args = self.k, self.given
        with k.loop(0, k.build.sdiv(args.depth, k.number(STEP))) as step:
            for vector in range(VECTORS):
                pointer = k.at(args.panel, k.sum_of(k.times(step, STEP * AMX.panel), vector * k.lanes), I32)
                amx.load(k, _PANEL + vector, pointer, k.number(AMX.panel * 4))
            for part in range(PARTS):
                pointer = k.at(left, k.sum_of(k.times(step, args.step_bytes), k.times(args.part_bytes, part)), I8)
                amx.load(k, _LEFT + part, pointer, args.row_bytes, once=True)
                for vector in range(VECTORS):
                    registers = (VECTORS * part + vector, _LEFT + part, _PANEL + vector)
                    k.intrinsic("llvm.x86.tdpbf16ps", VOID, *map(amx.register, registers))
            amx.fetch_on(k, args.ahead, self.fetched, self.bytes_each)
            first = k.times(step, self.rows_each)
            last = k.sum_of(first, self.rows_each)
            self._fetch_rows(parts, first, last)
            self.finish_rows(first, last)

    def _fetch_rows(self, parts: list[Value], first: Value, last: Value) -> None:
        """Prefetch what the epilogue of the current tile will need."""
        k = self.k
        with k.loop(first, k.lesser(last, k.times(self.given.ends, TILE_ROWS))) as row:
            self.ends.fetch(self._place_of(parts, row))

    def _place_of(self, parts: list[Value], row: Value) -> Value:
        """Return the offset of the first element of a tile's row in the result."""
        k = self.k
        is_first = k.build.icmp_signed("<", row, k.number(PART_ROWS))
        start = k.build.select(is_first, parts[0], k.sum_of(parts[1], -PART_ROWS))
        return k.times(self.given.stride, k.sum_of(start, row))

    def finish_rows(self, first: Value, last: Value) -> None:
        """Emit the epilogue of rows [first, last) of the previous tile."""
        k, none = self.k, self.k.number(0)
        sums = k.at(self.made, k.build.sub(k.number(TILE), k.get(self.side, none)))
        parts = [k.get(variable, none) for variable in self.parts_made]
        with k.loop(first, k.lesser(last, k.get(self.rows_made, none))) as row:
            self.ends.row(k.at(sums, k.times(row, AMX.panel)), self._place_of(parts, row))
