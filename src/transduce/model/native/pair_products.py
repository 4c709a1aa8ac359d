"""Products of matrices of bfloat16 by the instruction that adds two products to each of 16 sums, `vpdpbf16ps`.

Some rows by a panel of columns are a *tile*: 24 sums in registers, which each pair along what is summed over adds to.
Where there is AMX, `amx_products.py` has other tiles; `plain_products.py` has those of float32.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I8, I16, I32, I64, POINTER, BFloat, Emitter, Value
from transduce.model.native.pair_packing import VECTORS, Gradient, Layout, Packer, Span, Tiles

_UNROLLED = 4  # pairs

Ending = Literal["bias", "add", "mix"]
"""What becomes of sums: `bias`, they begin with one and end as what was multiplied, not less than a number, and zero
where ReLU was closed; `add`, they are added to sums of float32; `mix`, they are added to another matrix, each times a
number, to give bfloat16."""

ENDINGS: dict[Ending, tuple[Any, ...]] = {"bias": (I64, F32, I64, I64, I64), "add": (), "mix": (I64, F32, F32)}
"""Types of what a tile is told beside places: see `Product.values`."""


TILE_TYPES: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, I64)
"""Types of a tile's places: rows, panel, pairs, result, and how many columns a row of the result has."""


def multiply_pairs(k: Emitter, total: Value, one: Value, other: Value) -> Value:
    """Adds to each element of 32 bits of a vector the products of a pair of one and the same pair of the other."""
    pairs = (k.build.bitcast(value, ir.VectorType(BFloat(), 2 * k.lanes)) for value in (one, other))
    return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", k.floats, total, *pairs)


class Product(NamedTuple):
    """Rows by columns."""

    left: Value
    """The place of the rows, one after another; if the ending is `add`, of a gradient, whose columns they are."""
    rows: Value
    panels: Value
    """The place of the columns, packed."""
    columns: Value
    pairs: Value
    """Of what is summed over, in each row."""
    out: Value
    """An address: rows of as many elements as there are columns."""
    ending: Ending
    values: tuple[Value, ...] = ()
    """bias: its address, 0 for none, what the result is not less than, whether it goes past the caches, where that is
    offered, and two addresses of bits, one for each element of the result, or 0: which become 1 where it is positive,
    and where 0 makes it zero. mix: the address of a matrix like the result, or 0, what it is multiplied by, and what
    the product is."""
    room: Value | None = None
    """An address: `PairMultiplier.thread_bytes` for each thread."""


class PairMultiplier:
    """Writes tiles, and what goes through them."""

    layout: Layout = VECTORS
    packer: type[Packer] = Packer
    thread_bytes = VECTORS.block_bytes
    """What each thread needs of `Product.room`."""

    def __init__(self, k: Emitter, *endings: Ending) -> None:
        """Writes the tiles of some endings."""
        self.k = k
        for ending in endings:
            for width in (*self._narrow_panels(), self.layout.panel):
                self._write_tile(ending, width // k.lanes)

    def multiply(self, made: Product, thread: Value, threads: Value) -> None:
        """A thread takes some rows of the result, so many at a time that a cache holds them beside a panel."""
        k, tile_rows = self.k, self.layout.tile_rows
        first, last = self._own_tiles(made, thread, threads)
        block = k.build.sdiv(k.number(self.layout.block // tile_rows), made.pairs)
        block = k.build.select(k.build.icmp_signed("<", block, k.number(1)), k.number(1), block)
        with k.loop(first, last, block) as start:
            stop = k.lesser(k.sum_of(start, block), last)
            self._each_panel(made, lambda _: (start, stop, 1))

    def _own_tiles(self, made: Product, thread: Value, threads: Value) -> tuple[Value, Value]:
        """The thread's share."""
        k, tile_rows = self.k, self.layout.tile_rows
        return k.share(k.build.sdiv(k.sum_of(made.rows, tile_rows - 1), k.number(tile_rows)), thread, threads)

    def add_up(self, made: Product, given: Gradient, thread: Value, threads: Value) -> None:
        """The sums of a gradient's columns by the panels', and those of its columns alone, where they are asked for.

        Of some columns, so many pairs are added at a time that one cache holds them, which the thread lays out for
        itself, and another a panel.
        """
        k, layout = self.k, self.layout
        each = k.lanes // layout.tile_rows  # tiles of a vector of columns
        first, last = k.share(k.build.sdiv(made.rows, k.number(k.lanes)), thread, threads)
        packer = self.packer(k, layout, thread, threads)
        room = k.place(k.sum_of(made.room, k.times(thread, self.thread_bytes)))
        rows = k.loop(k.times(first, each), k.times(last, each), layout.sum_tiles)
        is_asked = k.build.or_(k.is_given(made.out), k.is_given(given.sums))
        with k.where(is_asked), rows as start, k.loop(0, made.pairs, layout.depth) as pair:
            tiles = Tiles(start, k.lesser(k.sum_of(start, layout.sum_tiles), k.times(last, each)))
            span = Span(pair, k.lesser(k.number(layout.depth), k.build.sub(made.pairs, pair)))
            packer.lay_gradient(given, tiles, span, room)
            before = k.build.neg(k.times(start, layout.tile_rows, span.count))
            with k.where(k.is_given(made.out)):
                self._each_panel(made._replace(left=k.at(room, before, I32)), lambda _: (*tiles, 1), span)

    def multiply_lower(self, made: Product, thread: Value, threads: Value) -> None:
        """What is on and below the diagonal of a square result, and perhaps more. Threads take tiles in turns.

        Rows are a multiple of a tile's.
        """
        k, tile_rows = self.k, self.layout.tile_rows
        tiles = k.build.sdiv(made.rows, k.number(tile_rows))

        def own(column: Value) -> tuple[Value, Value, Value]:
            first = k.build.sdiv(column, k.number(tile_rows))
            behind = k.build.srem(k.sum_of(k.build.sub(thread, first), k.times(threads, tiles)), threads)
            return k.sum_of(first, behind), tiles, threads

        self._each_panel(made, own)

    def _each_panel(
        self,
        made: Product,
        tiles: Callable[[Value], tuple[Value, Value, Value | int]],
        span: Span | None = None,
    ) -> None:
        """All columns, by the tiles that a function names for a panel's first."""
        k, panel = self.k, self.layout.panel
        span = span or Span(k.number(0), made.pairs)
        whole = k.times(k.build.sdiv(made.columns, k.number(panel)), panel)
        with k.loop(0, whole, panel) as column:
            self._panel(made, tiles(column), column, panel, span)
        for width in self._narrow_panels():
            with k.where(k.build.icmp_signed("==", k.build.sub(made.columns, whole), k.number(width))):
                self._panel(made, tiles(whole), whole, width, span)

    def _narrow_panels(self) -> Sequence[int]:
        """How many columns the last panel may have, beside those of a whole one."""
        return range(self.k.lanes, self.layout.panel, self.k.lanes)

    def _panel(
        self, made: Product, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: Span
    ) -> None:
        """Some tiles of one panel."""
        k = self.k
        with k.loop(*tiles) as number:
            self._tile(made, k.times(number, self.layout.tile_rows), column, width, span)

    def _tile(self, made: Product, row: Value, column: Value, width: int, span: Span) -> None:
        """From a row on; the last one of all takes some rows once more, to have enough."""
        k, tile_rows = self.k, self.layout.tile_rows
        row = k.lesser(row, k.build.sub(made.rows, k.number(tile_rows)))
        first = k.times(row, span.count) if made.ending == "add" else k.sum_of(k.times(row, made.pairs), span.first)
        left = k.at(made.left, first, I32)
        panel = self._panel_from(made, column, width, span)
        place = k.sum_of(k.times(row, made.columns), column)
        target = k.at(k.place(made.out), place, F32 if made.ending == "add" else self.layout.kind)
        values = self._values_from(made, column, place)
        k.call(tile_name(made.ending, width // k.lanes), left, panel, span.count, target, made.columns, *values)

    def _panel_from(self, made: Product, column: Value, width: int, span: Span) -> Value:
        """Where the panel from a column on is, from a pair on."""
        k = self.k
        return k.at(made.panels, k.sum_of(k.times(column, made.pairs), k.times(span.first, width)), I32)

    def _values_from(self, made: Product, column: Value, place: Value) -> tuple[Value, ...]:
        """The same values, of which addresses, if there are any, are those of a tile's first element."""
        k = self.k
        if not made.values:
            return ()
        first, *rest = made.values
        if made.ending == "mix":
            return (self._further(first, place), *rest)
        *rest, positive, is_open = rest
        bits = k.build.sdiv(place, k.number(8))
        return (self._further(first, column), *rest, *(self._further(each, bits, 1) for each in (positive, is_open)))

    def _further(self, address: Value, elements: Value, size: int | None = None) -> Value:
        """So many, each of so many bytes, those of the layout's numbers where nothing is said; 0 stays 0."""
        k = self.k
        further = k.sum_of(address, k.times(elements, size or self.layout.bytes))
        return k.build.select(k.is_given(address), further, address)

    # --- a tile ------------------------------------------------------------------------------------------------------

    def _write_tile(self, ending: Ending, vectors: int) -> None:
        """The layout's rows by so many vectors of columns."""
        k, tile_rows = self.k, self.layout.tile_rows
        with k.function(tile_name(ending, vectors), *TILE_TYPES, *ENDINGS[ending]) as (
            left,
            panel,
            pairs,
            out,
            stride,
            *values,
        ):
            if ending == "add":
                self._fetch(tile_rows, vectors, out, stride)
            starts = self._bias(vectors, values[0]) if ending == "bias" else [k.splat(0.0)] * vectors
            sums = [[k.variable(start) for start in starts] for _ in range(tile_rows)]
            with k.loop(0, pairs, _UNROLLED) as first:
                for pair in (k.sum_of(first, step) for step in range(_UNROLLED)):
                    self._add_pair(sums, left, panel, pair, None if ending == "add" else pairs)
            for row, own in enumerate(sums):
                for vector, total in enumerate(own):
                    place = k.sum_of(k.times(stride, row), vector * k.lanes)
                    self._finish(ending, k.get(total, k.splat(0.0)), out, place, values)

    def _finish(self, ending: Ending, value: Value, out: Value, place: Value, values: list[Value]) -> None:
        k = self.k
        if ending == "add":
            k.store(k.build.fadd(k.load_floats(out, place), value), k.at(out, place))
            return
        if ending == "bias":
            value = self._minding_relu(self._bits_of(self._at_least(value, values[1])), place, values)
            k.store(value, k.at(out, place, self.layout.kind))
            return
        if ending == "mix":
            other, of_other, of_product = values
            mixed = k.variable(k.build.fmul(value, k.splat(of_product)))
            with k.where(k.is_given(other)):
                there = k.load_wide(k.place(other), place, I16)
                k.store(k.madd(there, k.splat(of_other), k.get(mixed, value)), mixed)
            value = k.get(mixed, value)
        k.store(k.narrow(value), k.at(out, place, I16))

    def _minding_relu(self, value: Value, place: Value, values: list[Value]) -> Value:
        """Notes where numbers, whose bits these are, of the ending `bias` are positive; zeros where ReLU was closed."""
        k, (positive, is_open) = self.k, values[3:]
        zeros = ir.Constant(value.type, None)
        byte, bits = k.build.sdiv(place, k.number(8)), ir.IntType(value.type.count)
        with k.where(k.is_given(positive)):
            found = k.build.bitcast(k.build.icmp_signed(">", value, zeros), bits)
            k.build.store(found, k.at(k.place(positive), byte, I8), align=1)
        kept = k.variable(value)
        with k.where(k.is_given(is_open)):
            known = k.build.load(k.at(k.place(is_open), byte, I8), typ=bits, align=1)
            flags = k.build.bitcast(known, ir.VectorType(ir.IntType(1), value.type.count))
            k.store(k.build.select(flags, value, zeros), kept)
        return k.get(kept, value)

    def _bits_of(self, value: Value) -> Value:
        """Of floats as numbers of the result."""
        return self.k.build.bitcast(value, self.k.ints) if self.layout.kind == F32 else self.k.narrow(value)

    def _at_least(self, value: Value, least: Value) -> Value:
        """What is less becomes that; NaN stays."""
        floor = self.k.splat(least)
        return self.k.build.select(self.k.build.fcmp_ordered("<", value, floor), floor, value)

    def _add_pair(self, sums: list[list[Value]], left: Value, panel: Value, pair: Value, stride: Value | None) -> None:
        """The products of a pair of each row with those of the panel's columns; rows stride pairs apart, or packed."""
        k = self.k
        vectors = len(sums[0])
        unit = F32 if self.layout.kind == F32 else I32
        columns = [
            k.load(
                k.at(panel, k.sum_of(k.times(pair, vectors * k.lanes), n * k.lanes), unit), ir.VectorType(unit, k.lanes)
            )
            for n in range(vectors)
        ]
        for row, own in enumerate(sums):
            packed = k.sum_of(k.times(pair, len(sums)), row)
            place = packed if stride is None else k.sum_of(k.times(stride, row), pair)
            factor = k.splat(k.load(k.at(left, place, unit), unit))
            for total, column in zip(own, columns, strict=True):
                k.store(self._multiply_and_add(factor, column, k.get(total, k.splat(0.0))), total)

    def _multiply_and_add(self, factor: Value, column: Value, total: Value) -> Value:
        """Of vectors."""
        return multiply_pairs(self.k, total, factor, column)

    def _bias(self, vectors: int, address: Value) -> list[Value]:
        """What sums begin with."""
        k = self.k
        found = [k.variable(k.splat(0.0)) for _ in range(vectors)]
        with k.where(k.is_given(address)):
            for n, variable in enumerate(found):
                k.store(k.load_wide(k.place(address), n * k.lanes, self.layout.kind), variable)
        return [k.get(variable, k.splat(0.0)) for variable in found]

    def _fetch(self, rows: int, vectors: int, out: Value, stride: Value) -> None:
        """Has the sums fetched to which the tile is added in the end."""
        k = self.k
        for row in range(rows):
            for vector in range(vectors):
                k.fetch(k.at(out, k.sum_of(k.times(stride, row), vector * k.lanes)), to_write=True)


def tile_name(ending: Ending, vectors: int) -> str:
    """Of the function that multiplies a tile."""
    return f"{ending}_{vectors}"
