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
from typing_extensions import override

from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.gemm.packing import (
    AMX,
    AMX_VECTORS,
    PANEL_TYPES,
    STEP,
    TILE,
    TILE_ROWS,
    AmxPacker,
    EpilogueEmitter,
    Gradient,
    Matrix,
    PairRange,
    PanelArguments,
    TileRange,
    emit_panels,
)
from transduce.kernels.cpu.gemm.train import ENDINGS, Epilogue, Gemm, GemmEmitter, tile_name
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, BFloat, KernelBuilder, Value

_SUM_COLUMNS = 1 << 10  # columns per block of partial sums, whole panels
_SUMS_BYTES = AMX.sum_tiles * TILE * (_SUM_COLUMNS // AMX.panel) * 4
_ROWS_BYTES = AMX.block * 4


class _Block(NamedTuple):
    """A block of a matrix multiplication, whose packed rows and partial sums stay in the L2 cache."""

    rows: Value
    """Pointer to the packed rows."""
    waiting: Value
    """Pointer to the partial sums of the block."""
    tiles: TileRange
    """The row tiles."""
    columns: tuple[Value, Value]
    """The half-open range of columns, whole panels."""
    span: PairRange
    """The range of pairs that are summed."""
    begins: Value
    """1 if these are the first pairs of the summed dimension, else 0."""
    ends: Value
    """1 if these are the last pairs of the summed dimension, else 0."""


class AmxGemmEmitter(GemmEmitter):
    """A `GemmEmitter` that uses AMX; matrices must consist of whole panels."""

    layout = AMX
    packer = AmxPacker
    thread_bytes = _ROWS_BYTES + _SUMS_BYTES
    splits_sums = False  # it splits them in its own scratch space

    def __init__(self, k: KernelBuilder, *endings: Epilogue) -> None:
        """Emit the functions that multiply a tile, one function for each epilogue."""
        k.features |= {"amx-tile", "amx-bf16"}
        super().__init__(k, *endings)

    @override
    def multiply(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication, in which each thread packs and computes some rows."""
        amx.configure(self.k)
        if gemm.ending == "mix":
            super().multiply(gemm, thread, threads)
        else:
            packer = self.packer(self.k, self.layout, thread, threads)
            for block in self._each_block(gemm, thread, threads):
                matrix = Matrix(gemm.left, gemm.rows, self.k.mul(gemm.pairs, 2))
                packer.pack_rows(matrix, block.tiles, block.span, block.rows)
                self._multiply_block(gemm, block)
        amx.release(self.k)
        self.k.store_fence()

    @override
    def multiply_lower_triangle(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        amx.configure(self.k)
        super().multiply_lower_triangle(gemm, thread, threads)
        amx.release(self.k)

    @override
    def accumulate_gradient(self, gemm: Gemm, gradient: Gradient, thread: Value, threads: Value) -> None:
        k = self.k
        with k.when(k.build.or_(k.is_nonzero(gemm.out), k.is_nonzero(gradient.sums))):
            amx.configure(k)
            packer = self.packer(k, self.layout, thread, threads)
            for block in self._each_block(gemm, thread, threads):
                is_first = k.build.icmp_signed("==", block.columns[0], k.int64(0))  # column sums are added only once
                counted = gradient._replace(sums=k.build.select(is_first, gradient.sums, k.int64(0)))
                packer.pack_gradient(counted, block.tiles, block.span, block.rows)
                with k.when(k.is_nonzero(gemm.out)):
                    self._multiply_block(gemm, block)
            amx.release(k)

    def _each_block(self, gemm: Gemm, thread: Value, threads: Value) -> Iterator[_Block]:
        """Emit a loop over the thread's blocks of rows; code that is emitted in the body of `for` runs for each block.

        If one pass covers the whole summed dimension, no partial sums are stored: a block has all columns, and as many
        rows as fit.
        """
        k, layout = self.k, self.layout
        first, last = self._own_tiles(gemm, thread, threads)
        steps = k.build.sdiv(gemm.pairs, k.int64(STEP))
        spans = self._ceil_div(gemm.pairs, layout.depth)
        depth = k.mul(self._ceil_div(steps, spans), STEP)
        is_whole = k.build.icmp_signed("==", spans, k.int64(1))
        tiles_that_fit = k.build.sdiv(k.int64(layout.block // TILE_ROWS), depth)
        tiles = k.build.select(is_whole, tiles_that_fit, k.int64(layout.sum_tiles))
        columns = k.build.select(is_whole, gemm.columns, k.int64(_SUM_COLUMNS))
        rows = k.pointer(k.add(gemm.scratch, k.mul(thread, self.thread_bytes)))
        each_column, each_tile = k.loop(0, gemm.columns, columns), k.loop(first, last, tiles)
        with each_column as left, each_tile as start, k.loop(0, gemm.pairs, depth) as pair:
            span = PairRange(pair, k.minimum(depth, k.build.sub(gemm.pairs, pair)))
            yield _Block(
                rows=rows,
                waiting=k.element_pointer(rows, _ROWS_BYTES // 4),
                tiles=TileRange(start, k.minimum(k.add(start, tiles), last)),
                columns=(left, k.minimum(k.add(left, columns), gemm.columns)),
                span=span,
                begins=k.build.zext(k.build.icmp_signed("==", pair, k.int64(0)), pair.type),
                ends=k.build.zext(k.build.icmp_signed("==", k.add(*span), gemm.pairs), pair.type),
            )

    def _ceil_div(self, count: Value, parts: Value | int) -> Value:
        """Emit the quotient of two 64-bit integers, rounded up."""
        return self.k.build.sdiv(self.k.add(count, parts, -1), self.k.int64(parts))

    def _multiply_block(self, gemm: Gemm, block: _Block) -> None:
        """Emit the multiplication of a block of rows by one packed panel of columns after another."""
        k, panel = self.k, self.layout.panel
        (left, right), tiles = block.columns, k.build.sub(block.tiles.last, block.tiles.first)
        part_bytes = k.int64(amx.REGISTER_ROWS * amx.REGISTER_BYTES)
        with k.loop(left, right, panel) as column:
            following = k.add(column, panel)
            is_last = k.build.icmp_signed(">=", following, right)
            next_column = k.build.select(is_last, left, following)
            pair = k.build.select(is_last, k.add(*block.span), block.span.first)
            number = k.build.sdiv(k.build.sub(column, left), k.int64(panel))
            args = PanelArguments(
                left=block.rows,
                tile_bytes=k.mul(block.span.count, TILE_ROWS * 4),
                part_bytes=part_bytes,
                row_bytes=k.int64(amx.REGISTER_BYTES),
                step_bytes=k.mul(part_bytes, TILE_ROWS // amx.REGISTER_ROWS),
                partial_sums=k.element_pointer(block.waiting, k.mul(number, tiles, TILE)),
                is_first_span=block.begins,
                is_last_span=block.ends,
                prefetched=self._panel_from(gemm, next_column, panel, PairRange(pair, block.span.count)),
                **self._common_arguments(gemm, column, block.span),
                first=block.tiles.first,
                last=block.tiles.last,
                step=k.int64(1),
            )
            k.call(tile_name(gemm.ending, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    @override
    def _panel(
        self, gemm: Gemm, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: PairRange
    ) -> None:
        """Emit the multiplication of unpacked rows, whose number is a multiple of a tile's, by one panel."""
        k, (first, last, step) = self.k, tiles
        row_bytes = k.mul(gemm.pairs, 4)
        args = PanelArguments(
            left=k.element_pointer(gemm.left, k.mul(first, TILE_ROWS, gemm.pairs), I32),
            tile_bytes=k.mul(row_bytes, TILE_ROWS, k.int64(step)),
            part_bytes=k.mul(row_bytes, amx.REGISTER_ROWS),
            row_bytes=row_bytes,
            step_bytes=k.int64(amx.REGISTER_BYTES),
            partial_sums=gemm.left,
            is_first_span=k.int64(1),
            is_last_span=k.int64(1),
            prefetched=self._panel_from(gemm, k.add(column, width), width, span),
            **self._common_arguments(gemm, column, span),
            first=first,
            last=last,
            step=k.int64(step),
        )
        with k.when(k.build.icmp_signed("<", first, last)):
            k.call(tile_name(gemm.ending, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    def _common_arguments(self, gemm: Gemm, column: Value, span: PairRange) -> dict[str, Value]:
        """Return the tile function's arguments that are the same for packed and unpacked rows."""
        k = self.k
        return {
            "panel": self._panel_from(gemm, column, self.layout.panel, span),
            "depth": span.count,
            "out": k.element_pointer(k.pointer(gemm.out), column, F32 if gemm.ending == "add" else I16),
            "stride": gemm.columns,
            "rows": gemm.rows,
        }

    @override
    def _narrow_panels(self) -> Sequence[int]:
        """Return an empty sequence, since AMX needs whole panels and none is narrower."""
        return ()

    @override
    def _write_tile(self, ending: Epilogue, vectors: int) -> None:
        """Emit the function that multiplies all row tiles by one packed panel of columns."""
        k = self.k
        with k.function(tile_name(ending, vectors), *PANEL_TYPES, *ENDINGS[ending]) as arguments:
            args, values = PanelArguments(*arguments[: len(PANEL_TYPES)]), arguments[len(PANEL_TYPES) :]
            starts = self._bias(AMX_VECTORS, values[0]) if ending == "bias" else [k.splat(0.0)] * AMX_VECTORS

            def fetch(offset: Value) -> None:
                """Emit a prefetch of what the epilogue of a row reads, given the row's offset in the result."""
                if ending == "add":
                    for vector in range(AMX_VECTORS):
                        k.prefetch(k.element_pointer(args.out, k.add(offset, vector * k.lanes)), to_write=True)
                elif ending == "bias":
                    with k.when(k.is_nonzero(values[4])):
                        k.prefetch(k.element_pointer(k.pointer(values[4]), k.build.sdiv(offset, k.int64(8)), I8))

            def finish(sums: Value, offset: Value) -> None:
                """Emit the epilogue of a row of sums, given the sums and the row's offset in the result."""
                row_sums = (k.load_floats(sums, vector * k.lanes) for vector in range(AMX_VECTORS))
                totals = [k.build.fadd(total, start) for total, start in zip(row_sums, starts, strict=True)]
                self._finish_row(ending, totals, args.out, offset, values)

            emit_panels(k, args, EpilogueEmitter(fetch, finish))

    def _finish_row(
        self, ending: Epilogue, totals: list[Value], out: Value, offset: Value, values: list[Value]
    ) -> None:
        """Emit the epilogue (such as bias and ReLU, and the store) of one row of a panel's columns."""
        k = self.k
        if ending != "bias":
            for vector, total in enumerate(totals):
                self._finish(ending, total, out, k.add(offset, vector * k.lanes), values)
            return
        low, high = (self._clamp_below(total, values[1]) for total in totals)
        kind = ir.VectorType(BFloat(), 2 * k.lanes)
        rounded = k.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, high, low)
        rounded = self._apply_relu_masks(k.build.bitcast(rounded, ir.VectorType(I16, 2 * k.lanes)), offset, values)
        target = k.element_pointer(out, offset, I16)
        with k.build.if_else(k.is_nonzero(values[2])) as (streamed, stored):
            with streamed:
                k.store_nontemporal(rounded, target)
            with stored:
                k.store(rounded, target)
