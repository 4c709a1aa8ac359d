"""Products of matrices of bfloat16 by AMX's instruction for pairs, `tdpbf16ps`.

A tile is 32 rows by a panel of 32 columns: four registers of sums, two of rows and two of columns, so that each that is
loaded is used twice. Sums go through memory on their way out, where vectors take them up while the next tile is
multiplied: two units of the processor are busy at once. Source: Intel, "Architecture Instruction Set Extensions
Programming Reference", chapter "AMX".
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.amx_packing import AmxPacker
from transduce.model.native.emit import F32, I16, I32, I64, POINTER, VOID, BFloat, Emitter, Value
from transduce.model.native.pair_packing import AMX
from transduce.model.native.pair_products import ENDINGS, Ending, PairMultiplier, Product, Span, tile_name

_ROWS = amx.REGISTER_ROWS
_VECTORS = AMX.panel // _ROWS  # of a panel's columns
_LEFT, _PANEL = 4, 6  # numbers of the first such registers; sums are 0 to 3


class _Places(NamedTuple):
    """What a panel is multiplied by, and where the result goes."""

    left: Value
    panel: Value
    pairs: Value
    """In a row."""
    depth: Value
    """Those that are summed."""
    out: Value
    """The panel's first column in the first row."""
    stride: Value
    """Columns of a row of the result."""
    rows: Value
    first: Value
    """Tiles: from this one to below the last, by steps."""
    last: Value
    step: Value


_PLACES: tuple[Any, ...] = (POINTER, POINTER, I64, I64, POINTER, *[I64] * 5)


class AmxMultiplier(PairMultiplier):
    """The same by AMX. Columns are a multiple of a panel's."""

    layout = AMX
    packer = AmxPacker

    def __init__(self, k: Emitter, *endings: Ending) -> None:
        k.features |= {"amx-tile", "amx-bf16"}
        super().__init__(k, *endings)

    def multiply(self, made: Product, thread: Value, threads: Value) -> None:
        """As `PairMultiplier.multiply`."""
        amx.configure(self.k)
        super().multiply(made, thread, threads)
        amx.release(self.k)
        self.k.finish_streams()

    def multiply_lower(self, made: Product, thread: Value, threads: Value) -> None:
        """As `PairMultiplier.multiply_lower`."""
        amx.configure(self.k)
        super().multiply_lower(made, thread, threads)
        amx.release(self.k)

    def _narrow_panels(self) -> Sequence[int]:
        return ()

    def _panel(
        self, made: Product, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: Span
    ) -> None:
        """The last tile takes some rows once more, to have enough; of fewer than 32 there are tiles of 16."""
        k, (first, last, step) = self.k, tiles
        name = tile_name(made.ending, width // k.lanes)
        out = k.at(k.place(made.out), column, F32 if made.ending == "add" else I16)
        left = k.at(made.left, k.times(span.first, _ROWS if made.ending == "add" else 1), I32)
        panel = self._panel_from(made, column, width, span)
        values = self._values_from(made, column)
        place = (left, panel, made.pairs, span.count, out, made.columns, made.rows)
        places = _Places(*place, first, last, k.number(step))
        with k.build.if_else(k.build.icmp_signed(">=", made.rows, k.number(2 * _ROWS))) as (many, few):
            with many:
                k.call(f"{name}_2", *places, *values)
            with few:
                halves = places._replace(first=k.times(first, 2), last=k.times(last, 2), step=k.number(1))
                k.call(f"{name}_1", *halves, *values)

    def _write_tile(self, ending: Ending, vectors: int) -> None:
        """All tiles of a panel."""
        for parts in (1, 2):
            with self.k.function(f"{tile_name(ending, vectors)}_{parts}", *_PLACES, *ENDINGS[ending]) as arguments:
                count = len(_Places._fields)
                self._write_tiles(ending, parts, _Places(*arguments[:count]), arguments[count:])

    def _write_tiles(self, ending: Ending, parts: int, given: _Places, values: list[Value]) -> None:
        k, tile_rows, panel = self.k, parts * _ROWS, self.layout.panel
        with k.build.goto_entry_block():
            sums = k.build.alloca(ir.ArrayType(F32, 4 * _ROWS * panel))  # of two tiles
            sums.align = amx.REGISTER_BYTES
        none = k.number(0)
        side, row_before, rows_before = (k.variable(none) for _ in range(3))
        starts = self._bias(_VECTORS, values[0]) if ending == "bias" else [k.splat(0.0)] * _VECTORS
        each_step = k.build.sdiv(k.sum_of(k.times(tile_rows, k.lanes), given.depth, -1), given.depth)

        def finish(first: Value, last: Value) -> None:
            """Rows of the tile before."""
            there = k.at(sums, k.build.sub(k.number(tile_rows * panel), k.get(side, none)))
            with k.loop(first, k.lesser(last, k.get(rows_before, none))) as row:
                here = [k.sum_of(k.times(row, panel), vector * k.lanes) for vector in range(_VECTORS)]
                totals = [k.build.fadd(k.load_floats(there, at), start) for at, start in zip(here, starts, strict=True)]
                place = k.times(given.stride, k.sum_of(k.get(row_before, none), row))
                self._finish_row(ending, totals, given.out, place, values)

        def meanwhile(pair: Value) -> None:
            first = k.times(k.build.sdiv(pair, k.number(k.lanes)), each_step)
            finish(first, k.sum_of(first, each_step))

        with k.loop(given.first, given.last, given.step) as number:
            row = k.lesser(k.times(number, tile_rows), k.build.sub(given.rows, k.number(tile_rows)))
            if ending == "add":
                self._fetch(tile_rows, _VECTORS, k.at(given.out, k.times(row, given.stride)), given.stride)
            left = k.at(given.left, k.times(row, given.pairs), I32)
            self._multiply_registers(left, given, parts, meanwhile, is_packed=ending == "add")
            for part in range(parts):
                for vector in range(_VECTORS):
                    there = k.sum_of(k.get(side, none), part * _ROWS * panel + vector * k.lanes)
                    amx.store(k, _VECTORS * part + vector, k.at(sums, there), panel * 4)
            k.store(k.build.sub(k.number(tile_rows * panel), k.get(side, none)), side)
            k.store(row, row_before)
            k.store(k.number(tile_rows), rows_before)
        finish(none, k.number(tile_rows))

    def _multiply_registers(
        self, left: Value, given: _Places, parts: int, meanwhile: Callable[[Value], None], *, is_packed: bool
    ) -> None:
        """Rows by the panel; after each sixteen pairs, something else is done meanwhile."""
        k, panel_bytes = self.k, self.layout.panel * 4
        row_bytes = k.number(amx.REGISTER_BYTES) if is_packed else k.times(given.pairs, 4)
        for number in range(_VECTORS * parts):
            amx.zero(k, number)
        with k.loop(0, given.depth, k.lanes) as pair:
            for vector in range(_VECTORS):
                there = k.at(given.panel, k.sum_of(k.times(pair, self.layout.panel), vector * k.lanes), I32)
                amx.load(k, _PANEL + vector, there, k.number(panel_bytes))
            for part in range(parts):
                first = k.times(pair, _ROWS) if is_packed else pair
                there = k.at(left, k.sum_of(k.times(given.pairs, part * _ROWS), first), I32)
                amx.load(k, _LEFT + part, there, row_bytes)
                for vector in range(_VECTORS):
                    registers = (_VECTORS * part + vector, _LEFT + part, _PANEL + vector)
                    k.intrinsic("llvm.x86.tdpbf16ps", VOID, *map(amx.register, registers))
            meanwhile(pair)

    def _finish_row(self, ending: Ending, totals: list[Value], out: Value, place: Value, values: list[Value]) -> None:
        """A panel's columns of a row."""
        k = self.k
        if ending != "bias":
            for vector, total in enumerate(totals):
                self._finish(ending, total, out, k.sum_of(place, vector * k.lanes), values)
            return
        low, high = (self._at_least(total, values[1]) for total in totals)
        kind = ir.VectorType(BFloat(), 2 * k.lanes)
        made = k.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, high, low)
        there = k.at(out, place, I16)
        with k.build.if_else(k.is_given(values[2])) as (streamed, stored):
            with streamed:
                k.stream(made, there)
            with stored:
                k.store(k.build.bitcast(made, k.ints), there)
