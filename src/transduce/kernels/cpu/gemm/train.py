"""Emit the GEMM kernels of training, in float32 and in bfloat16 with and without AMX, with fused epilogues."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from typing_extensions import override

from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.gemm.packing import (
    AMX,
    AMX_VECTORS,
    AVX512_LAYOUT,
    PANEL_TYPES,
    STEP,
    TILE,
    TILE_ROWS,
    AmxPacker,
    EpilogueEmitter,
    GemmLayout,
    Gradient,
    Matrix,
    Packer,
    PairRange,
    PanelArguments,
    TileRange,
    emit_panels,
)
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, I64, POINTER, BFloat, KernelBuilder, Value

# --- bfloat16 ---
# The instruction `vpdpbf16ps` adds two products to each of 16 sums. A *tile* is a block of rows by one panel of
# columns: 24 vectors of sums in registers, to which each pair along the summed dimension is added. Further down are
# the tiles for AMX.


_UNROLLED = 4  # pairs per loop iteration
_SPAN_PAIRS = 1 << 11  # pairs of a panel that stay in the L2 cache if the summed dimension is split
_SPAN_TILES = 32  # row tiles that are multiplied by such a part of a panel

Epilogue = Literal["bias", "add", "sum", "mix"]
"""The name of an epilogue of a training GEMM: the work on a tile's sums before they are stored.

* `bias`: sums start with a bias; the result is cast to the element type, clamped from below, and set to zero where a
  ReLU was closed;
* `add`: sums are added to a float32 matrix;
* `sum`: like `add`, but the rows are not packed;
* `mix`: the sums times a factor plus another matrix times a factor, as bfloat16.
"""

EPILOGUE_TYPES: dict[Epilogue, tuple[Any, ...]] = {
    "bias": (I64, F32, I64, I64, I64),
    "add": (),
    "sum": (I64,),
    "mix": (I64, F32, F32),
}
"""A dict from each epilogue's name to the LLVM types of its arguments, which `Gemm.values` describes."""


TILE_TYPES: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, I64)
"""The LLVM types of a tile function's first arguments: rows, panel, number of pairs, result, columns per result row."""


def multiply_pairs(k: KernelBuilder, total: Value, one: Value, other: Value) -> Value:
    """Return `total` plus the products of two vectors of bfloat16 pairs.

    `total` is a vector of float32 sums. Each sum receives both products of its pair.
    """
    pairs = (k.build.bitcast(value, ir.VectorType(BFloat(), 2 * k.lanes)) for value in (one, other))
    return k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", k.floats, total, *pairs)


class Gemm(NamedTuple):
    """The operands, result and epilogue of one GEMM, as LLVM values in the code being emitted."""

    left: Value
    """Pointer to the rows of the left operand, without gaps.

    For the epilogue `add` this pointer is that of a gradient, whose columns are these rows.
    """
    rows: Value
    panels: Value
    """Pointer to the right operand, packed in panels (blocks of columns)."""
    columns: Value
    pairs: Value
    """The number of element pairs along the summed dimension (in float32, the number of elements)."""
    out: Value
    """The address of the result, (rows, columns), without gaps."""
    epilogue: Epilogue
    values: tuple[Value, ...] = ()
    """The epilogue's arguments, a tuple that is empty for `add`.

    * `bias`: the address of the bias (0: none); the lower bound, float32; whether to use non-temporal stores where
      supported; and two addresses of bit arrays with one bit per element of the result (0: none). The first is set to 1
      where the result is positive, the second makes the result zero where its bit is 0.
    * `sum`: the number of pairs from one row to the next.
    * `mix`: the address of a matrix of the result's shape (0: none), that matrix's factor, and the factor of the sums.
    """
    scratch: Value | None = None
    """The address of scratch space, `GemmEmitter.thread_bytes` bytes for each thread; None where nothing is packed."""
    partial_sums: Value | None = None
    """The address of float32 scratch space for partial sums; if 0 or None, the summed dimension is not split."""


class GemmEmitter:
    """An emitter of bfloat16 GEMM code: functions that multiply one tile in registers, and loops over tiles and panels.

    Subclasses emit other number formats and instructions, each with its `GemmLayout` of block sizes.
    """

    layout: GemmLayout = AVX512_LAYOUT
    """The `GemmLayout` (block sizes) of the GEMM, which depends on registers and caches."""
    packer: type[Packer] = Packer
    """The class, a `Packer`, that emits the packing of operands in the order in which the GEMM reads them."""
    thread_bytes = AVX512_LAYOUT.block_bytes
    """The scratch space in bytes that each thread needs in `Gemm.scratch`."""
    splits_sums = True
    """True if `multiply` uses `Gemm.partial_sums` to split a long summed dimension."""

    def __init__(self, k: KernelBuilder, *epilogues: Epilogue) -> None:
        """Emit the functions that multiply one tile of the result, one for each epilogue and panel width."""
        self.k = k
        for epilogue in epilogues:
            for width in (*self._narrow_panels(), self.layout.panel):
                self._write_tile(epilogue, width // k.lanes)

    def multiply(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication, in which each thread computes some rows of the result.

        A thread multiplies a block of rows by all panels before the next block. The block fits in a cache beside a
        panel.
        """
        if gemm.partial_sums is None:
            self._multiply_whole(gemm, thread, threads)
            return
        with self.k.build.if_else(self.k.is_nonzero(gemm.partial_sums)) as (split, whole):
            with split:
                self._multiply_split(gemm, thread, threads)
            with whole:
                self._multiply_whole(gemm, thread, threads)

    def _multiply_split(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication whose summed dimension is split, so that parts of panels fit in the L2 cache.

        The sums are kept in `gemm.partial_sums` between the parts; the epilogue follows the last part.
        """
        k, tile_rows = self.k, self.layout.tile_rows
        first, last = self._own_tiles(gemm, thread, threads)
        with k.loop(first, last, _SPAN_TILES) as start:
            stop = k.minimum(k.add(start, _SPAN_TILES), last)
            low, high = (k.mul(each, tile_rows, gemm.columns) for each in (start, stop))
            with k.loop(low, high, k.lanes) as index:
                k.store(k.splat(0.0), k.element_pointer(k.pointer(gemm.partial_sums), index))
            part = gemm._replace(epilogue="sum", out=gemm.partial_sums, values=(gemm.pairs,))
            with k.loop(0, gemm.pairs, _SPAN_PAIRS) as pair:
                span = PairRange(pair, k.minimum(k.int64(_SPAN_PAIRS), k.build.sub(gemm.pairs, pair)))
                self._each_panel(part, lambda _: (start, stop, 1), span)
            with k.loop(start, stop) as number, k.loop(0, tile_rows) as row:
                source = k.mul(k.add(k.mul(number, tile_rows), row), gemm.columns)
                target = k.mul(k.add(self._first_row(gemm, number), row), gemm.columns)
                with k.loop(0, gemm.columns, k.lanes) as column:
                    total = k.load_floats(k.pointer(gemm.partial_sums), k.add(source, column))
                    (start_value,) = self._bias(1, self._advance(gemm.values[0], column))
                    value, offset = k.build.fadd(total, start_value), k.add(target, column)
                    self._finish(gemm.epilogue, value, k.pointer(gemm.out), offset, list(gemm.values))

    def _multiply_whole(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication that sums each element of the result over the whole summed dimension at once."""
        k, tile_rows = self.k, self.layout.tile_rows
        first, last = self._own_tiles(gemm, thread, threads)
        block = k.build.sdiv(k.int64(self.layout.block // tile_rows), gemm.pairs)
        block = k.build.select(k.build.icmp_signed("<", block, k.int64(1)), k.int64(1), block)
        with k.loop(first, last, block) as start:
            stop = k.minimum(k.add(start, block), last)
            self._each_panel(gemm, lambda _: (start, stop, 1))

    def _own_tiles(self, gemm: Gemm, thread: Value, threads: Value) -> tuple[Value, Value]:
        """Return (IR values) the range [first, last) of row tiles that a thread computes.

        A row tile is a block of `layout.tile_rows` rows.
        """
        k, tile_rows = self.k, self.layout.tile_rows
        return k.thread_range(k.build.sdiv(k.add(gemm.rows, tile_rows - 1), k.int64(tile_rows)), thread, threads)

    def accumulate_gradient(self, gemm: Gemm, gradient: Gradient, thread: Value, threads: Value) -> None:
        """Emit a weight gradient, out += gradientᵀ · panels, and the bias gradient.

        The column sums of the gradient are added to the bias gradient, `gradient.sums`. A gradient whose address is 0
        is omitted. For each block of gradient columns, a thread packs `layout.depth` pairs at a time into its scratch
        space, and multiplies them by all panels. One cache level holds the packed pairs, another a panel.
        """
        k, layout = self.k, self.layout
        each = k.lanes // layout.tile_rows  # tiles of a vector of columns
        first, last = k.thread_range(k.build.sdiv(gemm.rows, k.int64(k.lanes)), thread, threads)
        packer = self.packer(k, layout, thread, threads)
        scratch = k.pointer(k.add(gemm.scratch, k.mul(thread, self.thread_bytes)))
        rows = k.loop(k.mul(first, each), k.mul(last, each), layout.sum_tiles)
        is_asked = k.build.or_(k.is_nonzero(gemm.out), k.is_nonzero(gradient.sums))
        with k.when(is_asked), rows as start, k.loop(0, gemm.pairs, layout.depth) as pair:
            tiles = TileRange(start, k.minimum(k.add(start, layout.sum_tiles), k.mul(last, each)))
            span = PairRange(pair, k.minimum(k.int64(layout.depth), k.build.sub(gemm.pairs, pair)))
            packer.pack_gradient(gradient, tiles, span, scratch)
            offset = k.build.neg(k.mul(start, layout.tile_rows, span.count))
            with k.when(k.is_nonzero(gemm.out)):
                self._each_panel(
                    gemm._replace(left=k.element_pointer(scratch, offset, I32)), lambda _: (*tiles, 1), span
                )

    def multiply_lower_triangle(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a GEMM with a square, symmetric result, of which only one half is computed.

        The half is the part on and below the diagonal. Tiles on the diagonal also compute some elements above it. In
        each panel, a thread computes every `threads`-th row tile. The number of rows must be a multiple of a tile's.
        """
        k, tile_rows = self.k, self.layout.tile_rows
        tiles = k.build.sdiv(gemm.rows, k.int64(tile_rows))

        def thread_tiles(column: Value) -> tuple[Value, Value, Value]:
            """Return (first, last, step) of the row tiles that the current thread computes for a panel.

            `column` is the panel's first column. Row tiles above the diagonal are left out.
            """
            first = k.build.sdiv(column, k.int64(tile_rows))
            offset = k.build.srem(k.add(k.build.sub(thread, first), k.mul(threads, tiles)), threads)
            return k.add(first, offset), tiles, threads

        self._each_panel(gemm, thread_tiles)

    def _each_panel(
        self,
        gemm: Gemm,
        tiles: Callable[[Value], tuple[Value, Value, Value | int]],
        span: PairRange | None = None,
    ) -> None:
        """Emit a loop that multiplies row tiles by each panel of columns; the last panel may be narrower.

        `tiles` returns (first, last, step) of the row tiles, given a panel's first column. `span` is the range of pairs
        to sum; None: all.
        """
        k, panel = self.k, self.layout.panel
        span = span or PairRange(k.int64(0), gemm.pairs)
        full_end = k.mul(k.build.sdiv(gemm.columns, k.int64(panel)), panel)
        with k.loop(0, full_end, panel) as column:
            self._panel(gemm, tiles(column), column, panel, span)
        for width in self._narrow_panels():
            with k.when(k.build.icmp_signed("==", k.build.sub(gemm.columns, full_end), k.int64(width))):
                self._panel(gemm, tiles(full_end), full_end, width, span)

    def _narrow_panels(self) -> Sequence[int]:
        """Return a sequence of the widths, in columns, that a narrower last panel may have."""
        return range(self.k.lanes, self.layout.panel, self.k.lanes)

    def _panel(
        self, gemm: Gemm, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: PairRange
    ) -> None:
        """Emit a loop that multiplies the row tiles (first, last, step) by one panel of columns.

        The panel has `width` columns from `column` on, and `span` is the range of pairs to sum.
        """
        k = self.k
        with k.loop(*tiles) as number:
            self._tile(gemm, number, column, width, span)

    def _first_row(self, gemm: Gemm, number: Value) -> Value:
        """Return the first row of row tile `number`; a tile that would reach past the last row starts earlier.

        Then the tile computes some rows a second time.
        """
        tile_rows = self.layout.tile_rows
        return self.k.minimum(self.k.mul(number, tile_rows), self.k.build.sub(gemm.rows, self.k.int64(tile_rows)))

    def _tile(self, gemm: Gemm, number: Value, column: Value, width: int, span: PairRange) -> None:
        """Emit the call that multiplies row tile `number` by the panel of `width` columns that starts at `column`.

        `span` is the range of pairs to sum.
        """
        k, row = self.k, self._first_row(gemm, number)
        first = k.mul(row, span.count) if gemm.epilogue == "add" else k.add(k.mul(row, gemm.pairs), span.first)
        left = k.element_pointer(gemm.left, first, I32)
        panel = self._panel_from(gemm, column, width, span)
        out_row = k.mul(number, self.layout.tile_rows) if gemm.epilogue == "sum" else row
        offset = k.add(k.mul(out_row, gemm.columns), column)
        kind = F32 if gemm.epilogue in ("add", "sum") else self.layout.kind
        target = k.element_pointer(k.pointer(gemm.out), offset, kind)
        values = self._values_from(gemm, column, offset)
        k.call(tile_name(gemm.epilogue, width // k.lanes), left, panel, span.count, target, gemm.columns, *values)

    def _panel_from(self, gemm: Gemm, column: Value, width: int, span: PairRange) -> Value:
        """Return a pointer to the packed panel of `width` columns at `column`, from the first pair of `span` on."""
        k = self.k
        return k.element_pointer(gemm.panels, k.add(k.mul(column, gemm.pairs), k.mul(span.first, width)), I32)

    def _values_from(self, gemm: Gemm, column: Value, offset: Value) -> tuple[Value, ...]:
        """Return a tuple of the epilogue's arguments for one tile.

        Addresses are moved to the tile's first element. `column` is the tile's first column, and `offset` the index of
        the tile's first element in the result.
        """
        k = self.k
        if not gemm.values:
            return ()
        first, *rest = gemm.values
        if gemm.epilogue == "sum":
            return gemm.values
        if gemm.epilogue == "mix":
            return (self._advance(first, offset), *rest)
        *rest, written_mask, read_mask = rest
        bits = k.build.sdiv(offset, k.int64(8))
        masks = (self._advance(each, bits, 1) for each in (written_mask, read_mask))
        return (self._advance(first, column), *rest, *masks)

    def _advance(self, address: Value, elements: Value, size: int | None = None) -> Value:
        """Return an address moved by `elements` of `size` bytes; address 0 (none) stays 0.

        If `size` is None, the size of an element of the layout's type is used.
        """
        k = self.k
        further = k.add(address, k.mul(elements, size or self.layout.bytes))
        return k.build.select(k.is_nonzero(address), further, address)

    # --- a tile ------------------------------------------------------------------------------------------------------

    def _write_tile(self, epilogue: Epilogue, vectors: int) -> None:
        """Emit the function that multiplies one row tile by `vectors` vectors of columns, with an epilogue."""
        k, tile_rows = self.k, self.layout.tile_rows
        with k.function(tile_name(epilogue, vectors), *TILE_TYPES, *EPILOGUE_TYPES[epilogue]) as (
            left,
            panel,
            pairs,
            out,
            stride,
            *values,
        ):
            if epilogue in ("add", "sum"):
                self._fetch(tile_rows, vectors, out, stride)
            row_pairs = {"add": None, "sum": values[0] if values else None}.get(epilogue, pairs)
            starts = self._bias(vectors, values[0]) if epilogue == "bias" else [k.splat(0.0)] * vectors
            sums = [[k.variable(start) for start in starts] for _ in range(tile_rows)]
            with k.loop(0, pairs, _UNROLLED) as first:
                for pair in (k.add(first, step) for step in range(_UNROLLED)):
                    self._add_pair(sums, left, panel, pair, row_pairs)
            for row, row_sums in enumerate(sums):
                for vector, total in enumerate(row_sums):
                    offset = k.add(k.mul(stride, row), vector * k.lanes)
                    self._finish(epilogue, k.load_variable(total), out, offset, values)

    def _finish(self, epilogue: Epilogue, value: Value, out: Value, offset: Value, values: list[Value]) -> None:
        """Emit the epilogue (such as bias, ReLU and the store) of one vector of sums, at an offset in the result.

        `values` are the arguments of the epilogue, as `Gemm.values` describes them.
        """
        k = self.k
        if epilogue in ("add", "sum"):
            k.store(k.build.fadd(k.load_floats(out, offset), value), k.element_pointer(out, offset))
            return
        if epilogue == "bias":
            value = self._apply_relu_masks(self._bits_of(self._clamp_below(value, values[1])), offset, values)
            k.store(value, k.element_pointer(out, offset, self.layout.kind))
            return
        if epilogue == "mix":
            addend_address, addend_factor, sum_factor = values
            mixed = k.variable(k.build.fmul(value, k.splat(sum_factor)))
            with k.when(k.is_nonzero(addend_address)):
                addend = k.load_as_float32(k.pointer(addend_address), offset, I16)
                k.store(k.madd(addend, k.splat(addend_factor), k.load_variable(mixed)), mixed)
            value = k.load_variable(mixed)
        k.store(k.to_bfloat16(value), k.element_pointer(out, offset, I16))

    def _apply_relu_masks(self, value: Value, offset: Value, values: list[Value]) -> Value:
        """Emit the use of the epilogue's two bit masks for a vector of results; return the masked vector.

        Where the vector is positive, bits of the first mask are set. Where bits of the second mask are 0, elements
        become zero. A mask whose address is 0 is not used.

        `value` and the result hold the bits of floating-point numbers. `offset` is the index of the vector's first
        element in the GEMM's result, and `values` are the arguments of the epilogue `bias`.
        """
        k, (written_mask, read_mask) = self.k, values[3:]
        zeros = ir.Constant(value.type, None)
        byte, bits = k.build.sdiv(offset, k.int64(8)), ir.IntType(value.type.count)
        with k.when(k.is_nonzero(written_mask)):
            mask = k.build.bitcast(k.build.icmp_signed(">", value, zeros), bits)
            k.build.store(mask, k.element_pointer(k.pointer(written_mask), byte, I8), align=1)
        masked = k.variable(value)
        with k.when(k.is_nonzero(read_mask)):
            mask = k.build.load(k.element_pointer(k.pointer(read_mask), byte, I8), typ=bits, align=1)
            flags = k.build.bitcast(mask, ir.VectorType(ir.IntType(1), value.type.count))
            k.store(k.build.select(flags, value, zeros), masked)
        return k.load_variable(masked)

    def _bits_of(self, value: Value) -> Value:
        """Return the bits of a float32 vector converted to the result's element type, float32 or bfloat16."""
        return self.k.build.bitcast(value, self.k.ints) if self.layout.kind == F32 else self.k.to_bfloat16(value)

    def _clamp_below(self, value: Value, lower_bound: Value) -> Value:
        """Return a vector whose elements below a bound are replaced by the bound; NaN remains NaN."""
        floor = self.k.splat(lower_bound)
        return self.k.build.select(self.k.build.fcmp_ordered("<", value, floor), floor, value)

    def _add_pair(self, sums: list[list[Value]], left: Value, panel: Value, pair: Value, stride: Value | None) -> None:
        """Emit the addition of one element pair's products to the sums of a tile.

        Pair number `pair` of each row of the left operand is multiplied by the same pair of each column of the panel.
        `stride` is the number of pairs from one row of the left operand to the next; None: rows are packed pair by
        pair.
        """
        k = self.k
        vectors = len(sums[0])
        unit = F32 if self.layout.kind == F32 else I32
        columns = [
            k.load(
                k.element_pointer(panel, k.add(k.mul(pair, vectors * k.lanes), n * k.lanes), unit),
                ir.VectorType(unit, k.lanes),
            )
            for n in range(vectors)
        ]
        for row, row_sums in enumerate(sums):
            packed = k.add(k.mul(pair, len(sums)), row)
            offset = packed if stride is None else k.add(k.mul(stride, row), pair)
            factor = k.splat(k.load(k.element_pointer(left, offset, unit), unit))
            for total, column in zip(row_sums, columns, strict=True):
                k.store(self._multiply_and_add(factor, column, k.load_variable(total)), total)

    def _multiply_and_add(self, factor: Value, column: Value, total: Value) -> Value:
        """Return total + factor · column for vectors: float32 sums of products of bfloat16 pairs."""
        return multiply_pairs(self.k, total, factor, column)

    def _bias(self, vectors: int, address: Value) -> list[Value]:
        """Return a list of `vectors` vectors of a layer's bias, from `address` on; zeros if the address is 0.

        Sums of a tile start with these values.
        """
        k = self.k
        sums = [k.variable(k.splat(0.0)) for _ in range(vectors)]
        with k.when(k.is_nonzero(address)):
            for n, variable in enumerate(sums):
                k.store(k.load_as_float32(k.pointer(address), n * k.lanes, self.layout.kind), variable)
        return [k.load_variable(variable) for variable in sums]

    def _fetch(self, rows: int, vectors: int, out: Value, stride: Value) -> None:
        """Emit a prefetch of the elements, from `out` on, to which the sums of a tile will be added.

        The tile has `rows` rows of `vectors` vectors, and `stride` is the number of elements between the result's rows.
        """
        k = self.k
        for row in range(rows):
            for vector in range(vectors):
                k.prefetch(k.element_pointer(out, k.add(k.mul(stride, row), vector * k.lanes)), to_write=True)


def tile_name(epilogue: Epilogue, vectors: int) -> str:
    """Return the name of the emitted function that multiplies a tile of `vectors` vectors per row, with an epilogue."""
    return f"{epilogue}_{vectors}"


# --- float32 ---
# A library's float32 GEMM does not fuse biases, ReLU or the summation of gradients, each of which takes a pass of its
# own. These kernels fuse them and multiply as fast (docs/results.md).


class Float32GemmEmitter(GemmEmitter):
    """An emitter of the training GEMM for float32 matrices and registers of 512 bits."""

    layout = GemmLayout(
        panel=48,
        tile_rows=8,
        min_rows=8,
        row_multiple=8,
        block=1 << 18,
        depth=1 << 7,
        sum_tiles=32,
        kind=F32,
    )
    thread_bytes = layout.block_bytes

    def _multiply_and_add(self, factor: Value, column: Value, total: Value) -> Value:
        """Return total + factor · column for vectors of float32, element by element."""
        return self.k.madd(factor, column, total)


class Avx2GemmEmitter(Float32GemmEmitter):
    """An emitter of the training GEMM for float32 matrices and AVX2.

    AVX2 has 16 registers of 256 bits, of which 12 hold sums.
    """

    layout = Float32GemmEmitter.layout._replace(panel=24, tile_rows=4, min_rows=4, sum_tiles=64)
    thread_bytes = layout.block_bytes


# --- bfloat16 with AMX's instruction, tdpbf16ps ---
# A tile is 32 rows by a panel of 32 columns: four tile registers of sums, two of rows and two of columns, so each
# loaded register is used twice. That still needs 64 bytes per cycle, more than the L2 cache supplies, so every second
# register must come from L1. Therefore a panel's depth is limited so that it fits in L1. It is multiplied by some
# hundred rows, which each thread has packed for itself, and which fit in L2. Their partial sums wait in L2 for the next
# pairs.
#
# Sources: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX"; K. Goto and R. van de
# Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.


_SUM_COLUMNS = 1 << 10  # columns per block of partial sums, whole panels
_SUMS_BYTES = AMX.sum_tiles * TILE * (_SUM_COLUMNS // AMX.panel) * 4
_ROWS_BYTES = AMX.block * 4


class _Block(NamedTuple):
    """A block of the result of a GEMM with AMX: some row tiles by some columns, and a range of pairs to add.

    The block's rows and partial sums stay in the L2 cache.
    """

    rows: Value
    """Pointer to the packed rows of the left operand that belong to the block."""
    waiting: Value
    """Pointer to the block's float32 partial sums, to which the next range of pairs is added."""
    tiles: TileRange
    """The `TileRange` of those row tiles of the result that the block covers."""
    columns: tuple[Value, Value]
    """The half-open range of columns of the result that the block covers, whole panels."""
    span: PairRange
    """The `PairRange` of those element pairs, along the summed dimension, that are added now."""
    begins: Value
    """1 if `span` has the first pairs of the summed dimension, so that there are no partial sums yet; else 0."""
    ends: Value
    """1 if `span` has the last pairs of the summed dimension, so that the sums are finished; else 0."""


class AmxGemmEmitter(GemmEmitter):
    """An emitter of the training GEMM for bfloat16 matrices with AMX; the matrices must consist of whole panels."""

    layout = AMX
    packer = AmxPacker
    thread_bytes = _ROWS_BYTES + _SUMS_BYTES
    splits_sums = False  # it splits them in its own scratch space

    def __init__(self, k: KernelBuilder, *epilogues: Epilogue) -> None:
        """Emit the functions that multiply row tiles by a panel, one function for each epilogue."""
        k.features |= {"amx-tile", "amx-bf16"}
        super().__init__(k, *epilogues)

    @override
    def multiply(self, gemm: Gemm, thread: Value, threads: Value) -> None:
        """Emit a matrix multiplication in which each thread computes some rows.

        The thread packs its rows first, unless the epilogue is `mix`.
        """
        amx.configure(self.k)
        if gemm.epilogue == "mix":
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
        """Emit a loop over the current thread's blocks of the result; yield one `_Block`.

        The `_Block` describes the block of an iteration, and the caller emits the loop's body. If one pass covers the
        whole summed dimension, no partial sums are stored. A block then has all columns, and as many rows as fit.
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
        """Return count / parts of 64-bit integers, rounded up."""
        return self.k.build.sdiv(self.k.add(count, parts, -1), self.k.int64(parts))

    def _multiply_block(self, gemm: Gemm, block: _Block) -> None:
        """Emit the multiplication of a block's packed rows by each packed panel of the block's columns in turn."""
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
            k.call(tile_name(gemm.epilogue, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    @override
    def _panel(
        self, gemm: Gemm, tiles: tuple[Value, Value, Value | int], column: Value, width: int, span: PairRange
    ) -> None:
        """Emit the multiplication of unpacked row tiles (first, last, step) by one panel; rows fill whole tiles."""
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
            k.call(tile_name(gemm.epilogue, AMX_VECTORS), *args, *self._values_from(gemm, column, column))

    def _common_arguments(self, gemm: Gemm, column: Value, span: PairRange) -> dict[str, Value]:
        """Return a dict of the tile function's arguments that are the same for packed and unpacked rows."""
        k = self.k
        return {
            "panel": self._panel_from(gemm, column, self.layout.panel, span),
            "depth": span.count,
            "out": k.element_pointer(k.pointer(gemm.out), column, F32 if gemm.epilogue == "add" else I16),
            "stride": gemm.columns,
            "rows": gemm.rows,
        }

    @override
    def _narrow_panels(self) -> Sequence[int]:
        """Return an empty sequence, since AMX needs whole panels."""
        return ()

    @override
    def _write_tile(self, epilogue: Epilogue, vectors: int) -> None:
        """Emit the function that multiplies several row tiles by one packed panel of columns, with an epilogue."""
        k = self.k
        with k.function(tile_name(epilogue, vectors), *PANEL_TYPES, *EPILOGUE_TYPES[epilogue]) as arguments:
            args, values = PanelArguments(*arguments[: len(PANEL_TYPES)]), arguments[len(PANEL_TYPES) :]
            starts = self._bias(AMX_VECTORS, values[0]) if epilogue == "bias" else [k.splat(0.0)] * AMX_VECTORS

            def fetch(offset: Value) -> None:
                """Emit a prefetch of what a row's epilogue reads, given the row's offset in the result."""
                if epilogue == "add":
                    for vector in range(AMX_VECTORS):
                        k.prefetch(k.element_pointer(args.out, k.add(offset, vector * k.lanes)), to_write=True)
                elif epilogue == "bias":
                    with k.when(k.is_nonzero(values[4])):
                        k.prefetch(k.element_pointer(k.pointer(values[4]), k.build.sdiv(offset, k.int64(8)), I8))

            def finish(sums: Value, offset: Value) -> None:
                """Emit a row's epilogue; `sums` points to its sums, and `offset` is the row's offset in the result."""
                row_sums = (k.load_floats(sums, vector * k.lanes) for vector in range(AMX_VECTORS))
                totals = [k.build.fadd(total, start) for total, start in zip(row_sums, starts, strict=True)]
                self._finish_row(epilogue, totals, args.out, offset, values)

            emit_panels(k, args, EpilogueEmitter(fetch, finish))

    def _finish_row(
        self, epilogue: Epilogue, totals: list[Value], out: Value, offset: Value, values: list[Value]
    ) -> None:
        """Emit the epilogue (such as bias, ReLU and the store) of one row of a panel's columns.

        `totals` holds the row's sums, one IR value for each vector, and `offset` is the index of the row's first
        element in the result.
        """
        k = self.k
        if epilogue != "bias":
            for vector, total in enumerate(totals):
                self._finish(epilogue, total, out, k.add(offset, vector * k.lanes), values)
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
