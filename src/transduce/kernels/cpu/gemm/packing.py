"""Pack matrices for the GEMM kernels of training, and emit the multiplication by one packed panel."""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from typing_extensions import override

from transduce.kernels.cpu.decode_rows import transpose
from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, I64, POINTER, VOID, KernelBuilder, Value

# --- packing of pairs and panels ---
# Pack matrices for the GEMM kernels of training: bfloat16 for `vpdpbf16ps` and AMX's `tdpbf16ps`, or float32.
# The bfloat16 instructions add two products to each sum. So two neighbors along the summed dimension are stored
# together: a *pair* of 32 bits. In float32 a single number takes the place of a pair. A *panel* is a block of
# columns of a matrix whose rows are summed over. It stores the pairs of the first two rows, one for each column,
# then those of the next two rows; in float32 it stores row after row.


_AHEAD = 8  # prefetch distance in rows
_STRIP = 4  # vectors of columns that a thread packs at a time
_LINE_BYTES = 64  # of a cache line


class GemmLayout(NamedTuple):
    """Block sizes of the training GEMM, for one kind of processor registers and matrix elements.

    A pair is two bfloat16 numbers, which one instruction multiplies, or a single float32 number.
    """

    panel: int
    """The number of columns of a panel, a block of columns of a packed operand; a matrix's last panel may have fewer.

    The number is a multiple of the vector length.
    """
    tile_rows: int
    """The number of rows of a tile, the block of the result that registers hold."""
    min_rows: int
    """The minimum number of rows of the left operand for which the GEMM works."""
    row_multiple: int
    """The multiple to which the number of elements along the summed dimension is padded, with zeros."""
    block: int
    """The number of pairs (32-bit elements) in a block of rows of the left operand.

    A block fits in a cache beside a panel, and is multiplied by all panels before the next block.
    """
    depth: int
    """The number of pairs along the summed dimension that are added in one pass over a block of the result.

    The number is a multiple of `row_multiple`. A packed panel of so many pairs fits in a cache.
    """
    sum_tiles: int
    """The number of row tiles (blocks of rows in registers) in a block of a weight gradient.

    The rows of these tiles fill whole vectors. All pairs along the summed dimension are added to one block before the
    next block starts.
    """
    kind: Any = I16
    """The LLVM type of the elements: I16 for bfloat16, or F32."""

    @property
    def group(self) -> int:
        """The number of elements of the summed dimension that share 32 bits (a pair): 2 for bfloat16, 1 for float32."""
        return 1 if self.kind == F32 else 2

    @property
    def block_bytes(self) -> int:
        """The size in bytes of the packed left operand for one block of the result and one pass of `depth` pairs."""
        return self.sum_tiles * self.tile_rows * self.depth * 4

    @property
    def bytes(self) -> int:
        """The size in bytes of an element: 2 for bfloat16, 4 for float32."""
        return 4 // self.group


AVX512_LAYOUT = GemmLayout(panel=48, tile_rows=8, min_rows=8, row_multiple=8, block=1 << 16, depth=1 << 8, sum_tiles=32)
"""The GEMM's block sizes for AVX-512 in bfloat16: 24 of the 32 registers hold sums."""
AMX = GemmLayout(panel=32, tile_rows=32, min_rows=16, row_multiple=32, block=1 << 17, depth=1 << 8, sum_tiles=8)
"""The GEMM's block sizes for AMX in bfloat16: four of the eight tile registers hold 16 × 16 sums each."""


class Matrix(NamedTuple):
    """A row-major matrix without gaps between its rows, as LLVM values for emitted code: a pointer and two sizes."""

    pointer: Value
    """Pointer to the matrix's first element."""
    rows: Value
    columns: Value


class Gradient(NamedTuple):
    """The gradient of a layer's output, as LLVM values for emitted code that computes weight and bias gradients."""

    matrix: Matrix
    sums: Value
    """The address of the bias gradient, float32 column sums to which packing adds each column; 0: there is no bias."""


class TileRange(NamedTuple):
    """A half-open range [first, last) of row tiles (blocks of rows that registers hold) in a GEMM's result."""

    first: Value
    last: Value


class PairRange(NamedTuple):
    """A range of element pairs along the dimension that a GEMM sums over: its first pair and the number of pairs."""

    first: Value
    count: Value


class Packer:
    """An emitter of code that packs matrices into panels (blocks of columns), in the order in which a GEMM reads them.

    Each thread packs some of the matrix's columns.
    """

    def __init__(self, k: KernelBuilder, layout: GemmLayout, thread: Value, threads: Value) -> None:
        self.k, self.layout, self.thread, self.threads = k, layout, thread, threads

    def pack_transposed(self, matrix: Matrix, to: Value) -> None:
        """Emit code that packs a matrix's transpose into `to`, as the right operand of a product.

        The matrix's rows become columns of the panels, so the product sums over the matrix's columns.
        """
        k, lanes = self.k, self.k.lanes
        pairs = k.build.sdiv(matrix.columns, k.int64(self.layout.group))
        blocks = k.build.sdiv(matrix.rows, k.int64(lanes))
        with k.thread_loop(blocks, (self.thread, self.threads), lanes) as row:
            target, width = self._target(to, row, matrix.rows, pairs)
            with k.loop(0, pairs, lanes) as pair:
                offsets = (k.add(k.mul(k.add(row, n), pairs), pair) for n in range(lanes))
                square = [k.load(k.element_pointer(matrix.pointer, each, I32), k.ints) for each in offsets]
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.element_pointer(target, k.mul(k.add(pair, n), width), I32))

    def pack(self, matrix: Matrix, to: Value) -> None:
        """Emit code that packs a matrix into `to`, as the right operand of a product that sums over the matrix's rows.

        Elements of two consecutive rows form a pair; in float32 every element is stored by itself. Rows are padded with
        zeros.
        """
        k = self.k
        pairs = self.pairs_of(matrix.rows)
        first, last = k.thread_range(k.build.sdiv(matrix.columns, k.int64(k.lanes)), self.thread, self.threads)
        for columns in self._each_strip(first, last):
            targets = [self._target(to, column, matrix.columns, pairs) for column in columns]
            with k.loop(0, pairs) as pair:
                rows = self._rows_of(pair)
                self._fetch(matrix, rows, columns)
                for column, (target, width) in zip(columns, targets, strict=True):
                    values = [self._load(matrix, row, column) for row in rows]
                    k.store(self._join(values), k.element_pointer(target, k.mul(pair, width), I32))

    def pack_gradient(self, gradient: Gradient, tiles: TileRange, span: PairRange, to: Value) -> None:
        """Emit code that packs columns of a gradient as rows of a left operand.

        `tiles` are the tiles of these rows, and `span` the pairs to pack. Within a tile, the first pairs of all rows
        come first, then the second pairs of all rows, and so on. The tiles must span whole vectors of columns. Rows
        after the gradient's last one count as zeros. Each column's sum is added to `gradient.sums`, unless that address
        is 0.
        """
        k, matrix, tile_rows = self.k, gradient.matrix, self.layout.tile_rows
        start, stop = (k.build.sdiv(k.mul(each, tile_rows), k.int64(k.lanes)) for each in tiles)
        for columns in self._each_strip(start, stop):
            sums = [k.variable(k.splat(0.0)) for _ in columns]
            with k.loop(0, span.count) as pair:
                rows = self._rows_of(k.add(span.first, pair))
                self._fetch(matrix, rows, columns)
                for column, total in zip(columns, sums, strict=True):
                    joined = self._join_and_sum([self._load(matrix, row, column) for row in rows], total)
                    for first in range(0, k.lanes, tile_rows):
                        number = k.build.sub(k.add(column, first), k.mul(tiles.first, tile_rows))
                        offset = k.add(k.mul(number, span.count), k.mul(pair, tile_rows))
                        values = k.shuffle(joined, joined, range(first, first + tile_rows))
                        k.store(values, k.element_pointer(to, offset, I32))
            with k.when(k.is_nonzero(gradient.sums)):
                for column, total in zip(columns, sums, strict=True):
                    self._add_sums(gradient, column, total)

    def _add_sums(self, gradient: Gradient, column: Value, total: Value) -> None:
        """Emit the addition of column sums to the bias gradient, from column `column` on.

        `total` is the stack variable with a vector of sums.
        """
        k = self.k
        pointer = k.element_pointer(k.pointer(gradient.sums), column)
        k.store(k.build.fadd(k.load_floats(pointer), k.load_variable(total)), pointer)

    def _join_and_sum(self, values: list[Value], total: Value) -> Value:
        """Return a vector of 32-bit pairs, joined from a list of one float32 vector or two bfloat16 vectors.

        The elements are also added to the column sums in the variable `total`.
        """
        k = self.k
        floats = values
        if self.layout.kind != F32:
            floats = [k.build.bitcast(self._widen(each), k.floats) for each in values]
        k.store(k.build.fadd(k.load_variable(total), reduce(k.build.fadd, floats)), total)
        return self._join(values)

    def pairs_of(self, rows: Value) -> Value:
        """Return (an IR value) how many element pairs `rows` rows form along the summed dimension, with padding."""
        k, row_multiple = self.k, self.layout.row_multiple
        groups = k.build.sdiv(k.add(rows, row_multiple - 1), k.int64(row_multiple))
        return k.mul(groups, row_multiple // self.layout.group)

    def _each_strip(self, first: Value, last: Value) -> Iterator[list[Value]]:
        """Emit a loop over the column vectors [first, last), four at a time, and a loop over the remaining vectors.

        Yield once for each loop: a list of the first columns of the vectors in an iteration (IR values). The caller
        emits the loop's body.
        """
        k, start = self.k, first
        for count in (_STRIP, 1):
            rest = k.build.srem(k.build.sub(last, start), k.int64(count))
            stop = k.build.sub(last, rest)
            with k.loop(start, stop, count) as number:
                yield [k.mul(k.add(number, n), k.lanes) for n in range(count)]
            start = stop

    def _target(self, to: Value, column: Value, columns: Value, pairs: Value) -> tuple[Value, Value]:
        """Return a pointer to a column's first pair in its packed panel, and the panel's number of columns.

        `columns` is the number of columns of the matrix, and `pairs` the number of pairs of each.
        """
        k, panel = self.k, self.layout.panel
        start = k.mul(k.build.sdiv(column, k.int64(panel)), panel)
        width = k.minimum(k.build.sub(columns, start), k.int64(panel))
        return k.element_pointer(to, k.add(k.mul(start, pairs), k.build.sub(column, start)), I32), width

    def _rows_of(self, pair: Value) -> list[Value]:
        """Return a list of the indices of the matrix rows whose elements form pair `pair`: two, or one in float32."""
        k, group = self.k, self.layout.group
        return [k.add(k.mul(pair, group), number) for number in range(group)]

    def _pointer(self, matrix: Matrix, row: Value, column: Value) -> Value:
        """Return a pointer to the element at a row and column of a matrix."""
        k = self.k
        return k.element_pointer(matrix.pointer, k.add(k.mul(row, matrix.columns), column), self.layout.kind)

    def _load(self, matrix: Matrix, row: Value, column: Value) -> Value:
        """Return a vector of a matrix row from a column on, unconverted; zeros for rows after the matrix's last one."""
        k = self.k
        kind = ir.VectorType(self.layout.kind, k.lanes)
        value = k.load(self._pointer(matrix, k.minimum(row, k.add(matrix.rows, -1)), column), kind)
        return k.build.select(k.build.icmp_signed("<", row, matrix.rows), value, ir.Constant(kind, None))

    def _fetch(self, matrix: Matrix, rows: list[Value], columns: list[Value]) -> None:
        """Emit prefetches of the elements that lie eight rows below `rows`, in the given columns.

        The rows are too far apart for the hardware prefetcher.
        """
        k = self.k
        for row, column in product(rows, columns[:: _LINE_BYTES // (k.lanes * self.layout.bytes)]):
            k.prefetch(self._pointer(matrix, k.add(row, _AHEAD), column))

    def _widen(self, value: Value) -> Value:
        """Return a vector of bfloat16 bits, shifted to the upper half of 32 bits (the bits of the same float32)."""
        return self.k.build.shl(self.k.build.zext(value, self.k.ints), self.k.splat_int(16))

    def _join(self, values: list[Value]) -> Value:
        """Return a vector of 32-bit pairs, joined from a list of two bfloat16 vectors.

        In float32 the list has one vector, which is returned as 32-bit integers.
        """
        k = self.k
        if self.layout.kind == F32:
            return k.build.bitcast(values[0], k.ints)
        low, high = values
        return k.build.or_(k.build.zext(low, k.ints), self._widen(high))


# --- multiplication by one panel with AMX ---
# Sums are stored to a buffer, from which vector instructions finish them while AMX multiplies the next tile. The next
# panel is meanwhile prefetched into the L2 cache.


PART_ROWS = amx.REGISTER_ROWS
"""The number of rows in a part of an AMX tile, which is one tile register."""
TILE_ROWS = AMX.tile_rows
TILE = TILE_ROWS * AMX.panel
"""The number of sums in an AMX tile, 32 rows × 32 columns."""
STEP = 16
"""The number of pairs per row of a tile register, which one AMX instruction sums."""
PARTS = TILE_ROWS // PART_ROWS
AMX_VECTORS = AMX.panel // PART_ROWS
"""The number of vectors of columns (16 each) in an AMX panel."""
_LEFT, _PANEL = 4, 6  # indices of the first such tile registers; those of sums are 0 to 3


class PanelArguments(NamedTuple):
    """The arguments of an emitted AMX function that multiplies several tiles of rows by one panel of columns."""

    left: Value
    """Pointer to the rows of the left operand that belong to the first tile."""
    tile_bytes: Value
    """The distance in bytes from the left operand's rows of one tile to those of the next tile."""
    part_bytes: Value
    """The distance in bytes from one 16-row part of a tile (a tile register) to the next part."""
    row_bytes: Value
    """The distance in bytes from one row of the left operand to the next row."""
    step_bytes: Value
    """The distance in bytes from 16 pairs of a row of the left operand to the row's next 16 pairs."""
    panel: Value
    """Pointer to the packed panel, a block of columns of the right operand."""
    depth: Value
    """The number of element pairs to sum in this call."""
    partial_sums: Value
    """Pointer to the partial sums of all row tiles, which are kept from one range of pairs to the next."""
    is_first_span: Value
    """1 if this is the first range of pairs, so that there are no partial sums yet; else 0."""
    is_last_span: Value
    """1 if this is the last range of pairs, so that the sums are finished; else 0."""
    out: Value
    """Pointer to the panel's first column in the first row of the result."""
    stride: Value
    """The number of elements from one row of the result to the next."""
    rows: Value
    """The number of rows of the result."""
    first: Value
    """The index of the first row tile to compute, where a row tile is 32 rows of the result."""
    last: Value
    """The index of the row tile at which to stop (exclusive)."""
    step: Value
    """The step from one row tile to the next: 1, or the number of threads that alternate."""
    prefetched: Value
    """Pointer to the packed columns that are multiplied next, which are prefetched meanwhile."""


PANEL_TYPES: tuple[Any, ...] = (POINTER, *[I64] * 4, POINTER, I64, POINTER, I64, I64, POINTER, *[I64] * 5, POINTER)
"""The LLVM types of the fields of `PanelArguments`, in their order."""


class EpilogueEmitter(NamedTuple):
    """A pair of callbacks for the rows of a GEMM's result: `row` emits a row's epilogue, `fetch` the prefetches for it.

    The epilogue is the work on finished sums, such as bias and ReLU.
    """

    fetch: Callable[[Value], None]
    """A function that emits prefetches for a row's epilogue, while the row's tile is multiplied.

    The argument is the row's offset, in elements, from the result's start.
    """
    row: Callable[[Value, Value], None]
    """A function that emits a row's epilogue, from a pointer to its sums and its offset in elements in the result."""


def emit_panels(k: KernelBuilder, args: PanelArguments, ends: EpilogueEmitter) -> None:
    """Emit the multiplication of row tiles by one packed panel, with AMX.

    The tiles are every `args.step`-th from `args.first` to below `args.last`. Each tile has parts of 16 rows. A part
    that would reach past the last row starts earlier, and computes some rows again. `ends` emits the epilogue of each
    row.
    """
    panels = _Panels(k, args, ends)
    with k.loop(args.first, args.last, args.step) as number:
        panels.write_tile(number)
    panels.finish_rows(k.int64(0), k.int64(TILE_ROWS))


class _Panels:
    """An emitter of the AMX multiplication by one panel.

    The epilogue of each tile is interleaved with the multiplication of the next tile, so that vector and AMX
    instructions overlap.
    """

    def __init__(self, k: KernelBuilder, args: PanelArguments, ends: EpilogueEmitter) -> None:
        self.k, self.args, self.epilogue = k, args, ends
        with k.build.goto_entry_block():
            self.made = k.build.alloca(ir.ArrayType(F32, 2 * TILE))  # double buffer of a tile's sums
            self.made.align = amx.REGISTER_BYTES
        none = k.int64(0)
        self.side, self.rows_made, self.fetched = (k.variable(none) for _ in range(3))
        self.parts_made = [k.variable(none) for _ in range(PARTS)]
        steps = k.build.sdiv(args.depth, k.int64(STEP))
        self.rows_each = k.build.sdiv(k.add(steps, TILE_ROWS - 1), steps)
        tiles = k.build.sub(args.last, args.first)
        lines = STEP * AMX.panel * 4 // amx.REGISTER_BYTES  # cache lines of a panel per step
        self.bytes_each = k.mul(k.build.sdiv(k.add(tiles, lines - 1), tiles), amx.REGISTER_BYTES)

    def write_tile(self, number: Value) -> None:
        """Emit the multiplication of row tile `number`, interleaved with the epilogue of the previous tile.

        Finished sums go to a buffer. If pairs remain to be added, the sums go to the partial sums in memory.
        """
        k, args = self.k, self.args
        count = k.build.sub(number, args.first)
        partial_sums = k.element_pointer(args.partial_sums, k.mul(count, TILE))
        registers = [(n, k.element_pointer(partial_sums, n * TILE // 4)) for n in range(PARTS * AMX_VECTORS)]
        with k.build.if_else(k.is_nonzero(args.is_first_span)) as (new, more):
            with new:
                for n, _ in registers:
                    amx.zero(k, n)
            with more:
                for n, pointer in registers:
                    amx.load(k, n, pointer, k.int64(amx.REGISTER_BYTES))
        last = k.build.sub(args.rows, k.int64(PART_ROWS))
        parts = [k.minimum(k.add(k.mul(number, TILE_ROWS), part * PART_ROWS), last) for part in range(PARTS)]
        steps = k.build.sdiv(count, args.step)
        self._multiply(k.element_pointer(args.left, k.mul(steps, args.tile_bytes), I8), parts)
        with k.build.if_else(k.is_nonzero(args.is_last_span)) as (is_finished, is_partial):
            with is_finished:
                for n, _ in registers:
                    offset = n // AMX_VECTORS * PART_ROWS * AMX.panel + n % AMX_VECTORS * k.lanes
                    pointer = k.element_pointer(self.made, k.add(k.load_variable(self.side), offset))
                    amx.store(k, n, pointer, AMX.panel * 4)
                k.store(k.build.sub(k.int64(TILE), k.load_variable(self.side)), self.side)
                k.store(k.int64(TILE_ROWS), self.rows_made)
                for variable, part in zip(self.parts_made, parts, strict=True):
                    k.store(part, variable)
            with is_partial:
                for n, pointer in registers:
                    amx.store(k, n, pointer)

    def _multiply(self, left: Value, parts: list[Value]) -> None:
        """Emit the AMX multiplication of one tile, interleaved with the epilogue of the previous tile.

        The sums are left in tile registers. After every 16 pairs, the epilogue of some rows is emitted. `left` points
        to the tile's packed rows, and `parts` has the index of the first row of each 16-row part.
        """
        k, args = self.k, self.args
        with k.loop(0, k.build.sdiv(args.depth, k.int64(STEP))) as step:
            for vector in range(AMX_VECTORS):
                pointer = k.element_pointer(args.panel, k.add(k.mul(step, STEP * AMX.panel), vector * k.lanes), I32)
                amx.load(k, _PANEL + vector, pointer, k.int64(AMX.panel * 4))
            for part in range(PARTS):
                pointer = k.element_pointer(left, k.add(k.mul(step, args.step_bytes), k.mul(args.part_bytes, part)), I8)
                amx.load(k, _LEFT + part, pointer, args.row_bytes, once=True)
                for vector in range(AMX_VECTORS):
                    registers = (AMX_VECTORS * part + vector, _LEFT + part, _PANEL + vector)
                    k.intrinsic("llvm.x86.tdpbf16ps", VOID, *map(amx.register, registers))
            amx.prefetch_next(k, args.prefetched, self.fetched, self.bytes_each)
            first = k.mul(step, self.rows_each)
            last = k.add(first, self.rows_each)
            self._fetch_rows(parts, first, last)
            self.finish_rows(first, last)

    def _fetch_rows(self, parts: list[Value], first: Value, last: Value) -> None:
        """Emit prefetches of the memory that the epilogue of the current tile's rows [first, last) will read.

        No prefetches are emitted if the sums remain partial.
        """
        k = self.k
        with k.loop(first, k.minimum(last, k.mul(self.args.is_last_span, TILE_ROWS))) as row:
            self.epilogue.fetch(self._offset_of(parts, row))

    def _offset_of(self, parts: list[Value], row: Value) -> Value:
        """Return the offset of row `row` of a tile from the result's start, in elements.

        `parts` holds the first row of each 16-row part of the tile.
        """
        k = self.k
        is_first = k.build.icmp_signed("<", row, k.int64(PART_ROWS))
        start = k.build.select(is_first, parts[0], k.add(parts[1], -PART_ROWS))
        return k.mul(self.args.stride, k.add(start, row))

    def finish_rows(self, first: Value, last: Value) -> None:
        """Emit the epilogue (such as bias, ReLU and the store) of rows [first, last) of the previous tile."""
        k = self.k
        sums = k.element_pointer(self.made, k.build.sub(k.int64(TILE), k.load_variable(self.side)))
        parts = [k.load_variable(variable) for variable in self.parts_made]
        with k.loop(first, k.minimum(last, k.load_variable(self.rows_made))) as row:
            self.epilogue.row(k.element_pointer(sums, k.mul(row, AMX.panel)), self._offset_of(parts, row))


# --- packing for AMX ---
# A row of a large matrix fills a page of memory. Reading a few columns of all rows would touch every page, and touch
# it again for the next columns. The pages of a block of 32 rows are few enough for the TLB.


_APART = 4  # distance of rows that are read at once: several streams use more memory bandwidth


class AmxPacker(Packer):
    """A packer for AMX; the matrices must consist of whole panels.

    Matrices are packed in blocks of rows that suit the TLB.
    """

    @override
    def pack(self, matrix: Matrix, to: Value) -> None:
        k, panel = self.k, self.layout.panel
        pairs = self.pairs_of(matrix.rows)
        panels, share = k.build.sdiv(matrix.columns, k.int64(panel)), (self.thread, self.threads)
        with k.loop(0, pairs, k.lanes) as first, k.thread_loop(panels, share, panel) as column:
            target = k.element_pointer(to, k.mul(column, pairs), I32)
            for pair in (k.add(first, n) for n in range(k.lanes)):
                for start in range(0, panel, k.lanes):
                    vector_column = k.add(column, start)
                    values = [self._load(matrix, row, vector_column) for row in self._rows_of(pair)]
                    k.store(self._join(values), k.element_pointer(target, k.add(k.mul(pair, panel), start), I32))

    def pack_rows(self, matrix: Matrix, tiles: TileRange, span: PairRange, to: Value) -> None:
        """Emit code that packs rows of the left operand in the layout of tile registers: 16 rows by 16 element pairs.

        Each tile has parts of 16 rows. A part that would reach past the matrix's last row starts earlier.
        """
        k = self.k
        pairs = k.build.sdiv(matrix.columns, k.int64(2))
        last = k.build.sub(matrix.rows, k.int64(PART_ROWS))
        with k.loop(*tiles) as tile, k.loop(0, _APART) as first:
            target = self._tile(to, tile, tiles, span)
            rows = []
            for number in range(0, TILE_ROWS, _APART):
                part, row = divmod(number, PART_ROWS)
                start = k.minimum(k.add(k.mul(tile, TILE_ROWS), part * PART_ROWS), last)
                rows.append(k.add(k.mul(k.add(start, first, row), pairs), span.first))
            with k.loop(0, span.count, k.lanes) as pair:
                for number, row_start in enumerate(rows):
                    value = k.load(k.element_pointer(matrix.pointer, k.add(row_start, pair), I32), k.ints)
                    offset = k.mul(k.add(first, number * _APART), k.lanes)
                    k.store(value, k.element_pointer(target, k.add(offset, k.mul(pair, TILE_ROWS)), I32))

    @override
    def pack_gradient(self, gradient: Gradient, tiles: TileRange, span: PairRange, to: Value) -> None:
        """Emit code that packs columns of a gradient as rows of a left operand, for tile registers.

        The layout is that of `pack_rows`. Products sum over the gradient's rows. Each column's sum is added to
        `gradient.sums`, unless that address is 0.
        """
        k, matrix = self.k, gradient.matrix
        with k.loop(0, span.count, k.lanes) as first, k.loop(*tiles) as tile:
            target = k.element_pointer(self._tile(to, tile, tiles, span), k.mul(first, TILE_ROWS), I32)
            for part in range(PARTS):
                column, total = k.add(k.mul(tile, TILE_ROWS), part * PART_ROWS), k.variable(k.splat(0.0))
                square = []
                for pair in (k.add(span.first, first, n) for n in range(k.lanes)):
                    values = [self._load(matrix, row, column) for row in self._rows_of(pair)]
                    square.append(self._join_and_sum(values, total))
                for n, vector in enumerate(transpose(k, square)):
                    k.store(vector, k.element_pointer(target, (part * PART_ROWS + n) * k.lanes, I32))
                with k.when(k.is_nonzero(gradient.sums)):
                    self._add_sums(gradient, column, total)

    def _tile(self, to: Value, tile: Value, tiles: TileRange, span: PairRange) -> Value:
        """Return a pointer to the packed rows of tile number `tile`.

        `to` points to the packed rows of the first tile of `tiles`. Each row has `span.count` pairs.
        """
        k = self.k
        return k.element_pointer(to, k.mul(k.build.sub(tile, tiles.first), span.count, TILE_ROWS), I32)
