"""Some rows by one panel of columns by AMX, tile after tile: see `amx_products.py`.

Sums go through memory on their way out, where vectors take them up while the next tile is multiplied: two units of the
processor are busy at once. Meanwhile, too, the next panel is fetched into the second cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.emit import F32, I8, I32, I64, POINTER, VOID, Emitter, Value
from transduce.model.native.pair_packing import AMX

PART_ROWS = amx.REGISTER_ROWS
TILE_ROWS = AMX.tile_rows
TILE = TILE_ROWS * AMX.panel  # sums
STEP = 16  # pairs of a register
PARTS = TILE_ROWS // PART_ROWS
VECTORS = AMX.panel // PART_ROWS  # of a panel's columns
_LEFT, _PANEL = 4, 6  # numbers of the first such registers; sums are 0 to 3


class PanelPlaces(NamedTuple):
    """What a panel is multiplied by, and where the result goes."""

    left: Value
    """The place of the first tile's rows."""
    tile_bytes: Value
    """From there to the next tile's, as the next three."""
    part_bytes: Value
    row_bytes: Value
    step_bytes: Value
    """To the next sixteen pairs."""
    panel: Value
    depth: Value
    """Pairs that are summed."""
    waiting: Value
    """The place of sums that wait for more pairs, tile by tile."""
    begins: Value
    """Whether none wait yet: a number, 0 or 1."""
    ends: Value
    """Whether none wait for more."""
    out: Value
    """The panel's first column in the first row."""
    stride: Value
    """Columns of a row of the result."""
    rows: Value
    first: Value
    """Tiles: from this one to below the last, by steps."""
    last: Value
    step: Value
    ahead: Value
    """The place of what comes next."""


PLACES: tuple[Any, ...] = (POINTER, *[I64] * 4, POINTER, I64, POINTER, I64, I64, POINTER, *[I64] * 5, POINTER)
"""The types of `PanelPlaces`."""


class Ends(NamedTuple):
    """What an ending does."""

    fetch: Callable[[Value], None]
    """While a tile is multiplied: with the first element of one of its rows, counted from `out`."""
    row: Callable[[Value, Value], None]
    """With the place of a row's sums, and its first element."""


def write_panels(k: Emitter, given: PanelPlaces, ends: Ends) -> None:
    """All tiles of a panel.

    A part of a tile that would go past the last row begins so much before, and makes some rows once more.
    """
    panels = _Panels(k, given, ends)
    with k.loop(given.first, given.last, given.step) as number:
        panels.write_tile(number)
    panels.finish_rows(k.number(0), k.number(TILE_ROWS))


class _Panels:
    """Writes them."""

    def __init__(self, k: Emitter, given: PanelPlaces, ends: Ends) -> None:
        self.k, self.given, self.ends = k, given, ends
        with k.build.goto_entry_block():
            self.made = k.build.alloca(ir.ArrayType(F32, 2 * TILE))  # sums of two tiles
            self.made.align = amx.REGISTER_BYTES
        none = k.number(0)
        self.side, self.rows_made, self.fetched = (k.variable(none) for _ in range(3))
        self.parts_made = [k.variable(none) for _ in range(PARTS)]
        steps = k.build.sdiv(given.depth, k.number(STEP))
        self.rows_each = k.build.sdiv(k.sum_of(steps, TILE_ROWS - 1), steps)
        tiles = k.build.sub(given.last, given.first)
        lines = STEP * AMX.panel * 4 // amx.REGISTER_BYTES  # of a panel, for each step
        self.bytes_each = k.times(k.build.sdiv(k.sum_of(tiles, lines - 1), tiles), amx.REGISTER_BYTES)

    def write_tile(self, number: Value) -> None:
        """Multiplies it, and finishes the one before meanwhile."""
        k, given = self.k, self.given
        count = k.build.sub(number, given.first)
        waiting = k.at(given.waiting, k.times(count, TILE))
        registers = [(n, k.at(waiting, n * TILE // 4)) for n in range(PARTS * VECTORS)]
        with k.build.if_else(k.is_given(given.begins)) as (new, more):
            with new:
                for n, _ in registers:
                    amx.zero(k, n)
            with more:
                for n, place in registers:
                    amx.load(k, n, place, k.number(amx.REGISTER_BYTES))
        last = k.build.sub(given.rows, k.number(PART_ROWS))
        parts = [k.lesser(k.sum_of(k.times(number, TILE_ROWS), part * PART_ROWS), last) for part in range(PARTS)]
        steps = k.build.sdiv(count, given.step)
        self._multiply(k.at(given.left, k.times(steps, given.tile_bytes), I8), parts)
        with k.build.if_else(k.is_given(given.ends)) as (made, kept):
            with made:
                for n, _ in registers:
                    there = n // VECTORS * PART_ROWS * AMX.panel + n % VECTORS * k.lanes
                    place = k.at(self.made, k.sum_of(k.get(self.side, count), there))
                    amx.store(k, n, place, AMX.panel * 4)
                k.store(k.build.sub(k.number(TILE), k.get(self.side, count)), self.side)
                k.store(k.number(TILE_ROWS), self.rows_made)
                for variable, part in zip(self.parts_made, parts, strict=True):
                    k.store(part, variable)
            with kept:
                for n, place in registers:
                    amx.store(k, n, place)

    def _multiply(self, left: Value, parts: list[Value]) -> None:
        """The pairs of the tile's rows by those of the panel; after each sixteen, something else is done meanwhile."""
        k, given = self.k, self.given
        with k.loop(0, k.build.sdiv(given.depth, k.number(STEP))) as step:
            for vector in range(VECTORS):
                there = k.at(given.panel, k.sum_of(k.times(step, STEP * AMX.panel), vector * k.lanes), I32)
                amx.load(k, _PANEL + vector, there, k.number(AMX.panel * 4))
            for part in range(PARTS):
                there = k.at(left, k.sum_of(k.times(step, given.step_bytes), k.times(given.part_bytes, part)), I8)
                amx.load(k, _LEFT + part, there, given.row_bytes, once=True)
                for vector in range(VECTORS):
                    registers = (VECTORS * part + vector, _LEFT + part, _PANEL + vector)
                    k.intrinsic("llvm.x86.tdpbf16ps", VOID, *map(amx.register, registers))
            amx.fetch_on(k, given.ahead, self.fetched, self.bytes_each)
            first = k.times(step, self.rows_each)
            last = k.sum_of(first, self.rows_each)
            self._fetch_rows(parts, first, last)
            self.finish_rows(first, last)

    def _fetch_rows(self, parts: list[Value], first: Value, last: Value) -> None:
        """Of the tile that is being multiplied, what is needed when it is finished."""
        k = self.k
        with k.loop(first, k.lesser(last, k.times(self.given.ends, TILE_ROWS))) as row:
            self.ends.fetch(self._place_of(parts, row))

    def _place_of(self, parts: list[Value], row: Value) -> Value:
        """The first element of a tile's row."""
        k = self.k
        is_first = k.build.icmp_signed("<", row, k.number(PART_ROWS))
        start = k.build.select(is_first, parts[0], k.sum_of(parts[1], -PART_ROWS))
        return k.times(self.given.stride, k.sum_of(start, row))

    def finish_rows(self, first: Value, last: Value) -> None:
        """Of the tile before."""
        k, none = self.k, self.k.number(0)
        made = k.at(self.made, k.build.sub(k.number(TILE), k.get(self.side, none)))
        parts = [k.get(variable, none) for variable in self.parts_made]
        with k.loop(first, k.lesser(last, k.get(self.rows_made, none))) as row:
            self.ends.row(k.at(made, k.times(row, AMX.panel)), self._place_of(parts, row))
