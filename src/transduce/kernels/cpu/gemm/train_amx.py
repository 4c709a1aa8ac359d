"""Emit the training GEMM for AMX's bfloat16 instruction, `tdpbf16ps`.

A tile is 32 rows by a panel of 32 columns: four tile registers of sums, two of rows and two of columns, so each loaded
register is used twice. That still needs 64 bytes per cycle, more than the L2 cache supplies, so every second register
must come from L1. Therefore a panel's depth is limited so that it fits in L1. It is multiplied by some hundred rows,
which each thread has packed for itself, and which fit in L2. Their partial sums wait in L2 for the next pairs.

Sources: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX"; K. Goto and R. van de
Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.gemm.packing import (
    AMX,
    AMX_VECTORS,
    PLACES,
    STEP,
    TILE,
    TILE_ROWS,
    AmxPacker,
    Ends,
    Gradient,
    Matrix,
    PanelPlaces,
    Span,
    Tiles,
    write_panels,
)
from transduce.kernels.cpu.gemm.train import ENDINGS, Ending, PairMultiplier, Product, tile_name
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, BFloat, Emitter, Value

_SUM_COLUMNS = 1 << 10  # columns per block of partial sums, whole panels
_SUMS_BYTES = AMX.sum_tiles * TILE * (_SUM_COLUMNS // AMX.panel) * 4
_ROWS_BYTES = AMX.block * 4


class _Block(NamedTuple):
    """A block of a matrix multiplication, whose packed rows and partial sums stay in the L2 cache."""

    rows: Value
    """Pointer to the packed rows."""
    waiting: Value
    """Pointer to the partial sums."""
    tiles: Tiles
    """The row tiles."""
    columns: tuple[Value, Value]
    """The half-open range of columns, whole panels."""
    span: Span
    """The pairs that are summed."""
    begins: Value
    """Whether these are the first pairs: 0 or 1."""
    ends: Value
    """Whether these are the last pairs: 0 or 1."""


class AmxMultiplier(PairMultiplier):
    """A `PairMultiplier` that uses AMX; the number of columns is a multiple of a panel's."""

    layout = AMX
    packer = AmxPacker
    thread_bytes = _ROWS_BYTES + _SUMS_BYTES

    def __init__(self, k: Emitter, *endings: Ending) -> None:
        """Emit the tile functions of these epilogues."""
        k.features |= {"amx-tile", "amx-bf16"}
        super().__init__(k, *endings)

    def multiply(self, gemm: Product, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication, in which each thread packs and computes some rows."""
        amx.configure(self.k)
        if gemm.ending == "mix":
            super().multiply(gemm, thread, threads)
        else:
            packer = self.packer(self.k, self.layout, thread, threads)
            for block in self._each_block(gemm, thread, threads):
                matrix = Matrix(gemm.left, gemm.rows, self.k.times(gemm.pairs, 2))
                packer.lay_rows(matrix, block.tiles, block.span, block.rows)
                self._multiply_block(gemm, block)
        amx.release(self.k)
        self.k.finish_streams()

    def multiply_lower(self, gemm: Product, thread: Value, threads: Value) -> None:
        """Emit the part of a square result on and below the diagonal."""
        amx.configure(self.k)
        super().multiply_lower(gemm, thread, threads)
        amx.release(self.k)

    def add_up(self, gemm: Product, given: Gradient, thread: Value, threads: Value) -> None:
        """Emit out += gradientᵀ · panels, and add the gradient's column sums where these are requested."""
        k = self.k
        with k.where(k.build.or_(k.is_given(gemm.out), k.is_given(given.sums))):
            amx.configure(k)
            packer = self.packer(k, self.layout, thread, threads)
            for block in self._each_block(gemm, thread, threads):
                is_first = k.build.icmp_signed("==", block.columns[0], k.number(0))  # column sums are added only once
                counted = given._replace(sums=k.build.select(is_first, given.sums, k.number(0)))
                packer.lay_gradient(counted, block.tiles, block.span, block.rows)
                with k.where(k.is_given(gemm.out)):
                    self._multiply_block(gemm, block)
            amx.release(k)

    def _each_block(self, gemm: Product, thread: Value, threads: Value) -> Iterator[_Block]:
        """Emit a loop over the thread's blocks; yields once, and code emitted for that block runs for all.

        If all pairs are one span, no partial sums are stored: a block has all columns, and as many rows as fit.
        """
        k, layout = self.k, self.layout
        first, last = self._own_tiles(gemm, thread, threads)
        steps = k.build.sdiv(gemm.pairs, k.number(STEP))
        spans = self._ceil_div(gemm.pairs, layout.depth)
        depth = k.times(self._ceil_div(steps, spans), STEP)
        is_whole = k.build.icmp_signed("==", spans, k.number(1))
        tiles_that_fit = k.build.sdiv(k.number(layout.block // TILE_ROWS), depth)
        tiles = k.build.select(is_whole, tiles_that_fit, k.number(layout.sum_tiles))
        columns = k.build.select(is_whole, gemm.columns, k.number(_SUM_COLUMNS))
        rows = k.place(k.sum_of(gemm.room, k.times(thread, self.thread_bytes)))
        each_column, each_tile = k.loop(0, gemm.columns, columns), k.loop(first, last, tiles)
        with each_column as left, each_tile as start, k.loop(0, gemm.pairs, depth) as pair:
            span = Span(pair, k.lesser(depth, k.build.sub(gemm.pairs, pair)))
            yield _Block(
                rows=rows,
                waiting=k.at(rows, _ROWS_BYTES // 4),
                tiles=Tiles(start, k.lesser(k.sum_of(start, tiles), last)),
                columns=(left, k.lesser(k.sum_of(left, columns), gemm.columns)),
                span=span,
                begins=k.build.zext(k.build.icmp_signed("==", pair, k.number(0)), pair.type),
                ends=k.build.zext(k.build.icmp_signed("==", k.sum_of(*span), gemm.pairs), pair.type),
            )

    def _ceil_div(self, count: Value, parts: Value | int) -> Value:
        """Emit the quotient of two 64-bit integers, rounded up."""
        return self.k.build.sdiv(self.k.sum_of(count, parts, -1), self.k.number(parts))

    def _multiply_block(self, gemm: Product, block: _Block) -> None:
        """Emit the multiplication of a block by one panel after another."""
        k, panel = self.k, self.layout.panel
        (left, right), tiles = block.columns, k.build.sub(block.tiles.last, block.tiles.first)
        part_bytes = k.number(amx.REGISTER_ROWS * amx.REGISTER_BYTES)
        with k.loop(left, right, panel) as column:
            following = k.sum_of(column, panel)
            is_last = k.build.icmp_signed(">=", following, right)
            next_column = k.build.select(is_last, left, following)
            pair = k.build.select(is_last, k.sum_of(*block.span), block.span.first)
            number = k.build.sdiv(k.build.sub(column, left), k.number(panel))
            args = PanelPlaces(
                left=block.rows,
                tile_bytes=k.times(block.span.count, TILE_ROWS * 4),
                part_bytes=part_bytes,
                row_bytes=k.number(amx.REGISTER_BYTES),
                step_bytes=k.times(part_bytes, TILE_ROWS // amx.REGISTER_ROWS),
                waiting=k.at(block.waiting, k.times(number, tiles, TILE)),
                begins=block.begins,
                ends=block.ends,
                ahead=self._panel_from(gemm, next_column, panel, Span(pair, block.span.count)),
                **self._places(gemm, column, block.span),
                first=block.tiles.first,
                last=block.tiles.last,
                step=k.number(1),
            )
            k.call(tile_name(gemm.ending, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    def _panel(
        self, gemm: Product, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: Span
    ) -> None:
        """Emit the multiplication of unpacked rows, whose number is a multiple of a tile's, by one panel."""
        k, (first, last, step) = self.k, tiles
        row_bytes = k.times(gemm.pairs, 4)
        args = PanelPlaces(
            left=k.at(gemm.left, k.times(first, TILE_ROWS, gemm.pairs), I32),
            tile_bytes=k.times(row_bytes, TILE_ROWS, k.number(step)),
            part_bytes=k.times(row_bytes, amx.REGISTER_ROWS),
            row_bytes=row_bytes,
            step_bytes=k.number(amx.REGISTER_BYTES),
            waiting=gemm.left,
            begins=k.number(1),
            ends=k.number(1),
            ahead=self._panel_from(gemm, k.sum_of(column, width), width, span),
            **self._places(gemm, column, span),
            first=first,
            last=last,
            step=k.number(step),
        )
        with k.where(k.build.icmp_signed("<", first, last)):
            k.call(tile_name(gemm.ending, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    def _places(self, gemm: Product, column: Value, span: Span) -> dict[str, Value]:
        """Return the arguments that do not depend on the rows' layout."""
        k = self.k
        return {
            "panel": self._panel_from(gemm, column, self.layout.panel, span),
            "depth": span.count,
            "out": k.at(k.place(gemm.out), column, F32 if gemm.ending == "add" else I16),
            "stride": gemm.columns,
            "rows": gemm.rows,
        }

    def _narrow_panels(self) -> Sequence[int]:
        """Return no widths: columns are a multiple of a panel's."""
        return ()

    def _write_tile(self, ending: Ending, vectors: int) -> None:
        """Emit the function that multiplies all row tiles by a panel."""
        k = self.k
        with k.function(tile_name(ending, vectors), *PLACES, *ENDINGS[ending]) as arguments:
            args, values = PanelPlaces(*arguments[: len(PLACES)]), arguments[len(PLACES) :]
            starts = self._bias(AMX_VECTORS, values[0]) if ending == "bias" else [k.splat(0.0)] * AMX_VECTORS

            def fetch(offset: Value) -> None:
                """Prefetch what the epilogue of a row reads, given its offset in the result."""
                if ending == "add":
                    for vector in range(AMX_VECTORS):
                        k.fetch(k.at(args.out, k.sum_of(offset, vector * k.lanes)), to_write=True)
                elif ending == "bias":
                    with k.where(k.is_given(values[4])):
                        k.fetch(k.at(k.place(values[4]), k.build.sdiv(offset, k.number(8)), I8))

            def finish(sums: Value, offset: Value) -> None:
                """Emit the epilogue of a row, given its sums and its offset in the result."""
                row_sums = (k.load_floats(sums, vector * k.lanes) for vector in range(AMX_VECTORS))
                totals = [k.build.fadd(total, start) for total, start in zip(row_sums, starts, strict=True)]
                self._finish_row(ending, totals, args.out, offset, values)

            write_panels(k, args, Ends(fetch, finish))

    def _finish_row(self, ending: Ending, totals: list[Value], out: Value, offset: Value, values: list[Value]) -> None:
        """Emit the epilogue of one row of a panel's columns."""
        k = self.k
        if ending != "bias":
            for vector, total in enumerate(totals):
                self._finish(ending, total, out, k.sum_of(offset, vector * k.lanes), values)
            return
        low, high = (self._clamp_below(total, values[1]) for total in totals)
        kind = ir.VectorType(BFloat(), 2 * k.lanes)
        rounded = k.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, high, low)
        rounded = self._apply_relu_masks(k.build.bitcast(rounded, ir.VectorType(I16, 2 * k.lanes)), offset, values)
        target = k.at(out, offset, I16)
        with k.build.if_else(k.is_given(values[2])) as (streamed, stored):
            with streamed:
                k.stream(rounded, target)
            with stored:
                k.store(rounded, target)
