"""Emit GEMM blocks of decoding that use AMX, whose tile registers hold 16 rows of 64 bytes.

One instruction multiplies two tile registers: 16 rows × 16 outputs × 64 integer inputs, or × 32 bfloat16 inputs.
Weights are packed as for the vector instructions `vpdpbusd` and `vpdpbf16ps`. Integer sums equal those of vector
instructions. Bfloat16 sums may differ in rounding, as their products are added in another order.

A function here multiplies 16 or 32 rows at a time by a block of 64 outputs. It uses 2 registers of activations, 2 of
weights and 4 of sums, so each loaded register is used twice. Meanwhile vector instructions finish the previous sums,
and the next block of weights is prefetched into the L2 cache. For `halves` (12-bit activations), the two registers of
activations hold both halves of the same 16 rows.

Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX".
"""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.jit.ir_builder import F32, I8, I32, I64, POINTER, VOID, KernelBuilder, Value
from transduce.kernels.cpu.jit.tile import (
    MICRO_KERNEL_TYPES,
    MicroKernelArguments,
    Tile,
    dequantize_and_store,
    output_type,
    shift_high_half,
    store_outputs,
)

REGISTER_ROWS = 16
"""The number of rows of an AMX tile register."""
REGISTER_BYTES = 64
"""The number of bytes per row of an AMX tile register, which a layer's inputs must fill."""
MIN_ROWS = 4
"""The minimum number of rows for AMX with integer formats; vector instructions are faster for fewer rows."""
READABLE_EXTRA_ROWS = REGISTER_ROWS - 1
"""The number of rows of activations after the last one that AMX kernels may read, so the memory must exist."""
_ACTIVATIONS, _WEIGHTS = 4, 6  # indices of the first such tile registers; those of sums are 0 to 3


def emit_blocks(k: KernelBuilder, tile: Tile, epilogue: str) -> None:
    """Emit functions that multiply rows by one block of 64 outputs with AMX, and then run an epilogue.

    Each function is called `amx_FORMAT_EPILOGUE_PARTS`, and takes the `MicroKernelArguments`, `rows`, `ahead` and
    `lines`. PARTS is the number of tile registers that hold activations: 1 for 16 rows at a time, or 2 for 32 rows. For
    `halves` (12-bit activations) PARTS is 2, and the registers hold the two halves of 16 rows.

    Rows after the last one are read up to a whole tile register, and ignored. Meanwhile the memory from `ahead` on is
    prefetched: `lines` cache lines for every 16 rows, at each step along the inputs.
    """
    k.features |= {"amx-tile", "amx-bf16" if tile.is_float else "amx-int8"}
    for parts in (2,) if tile.elements_per_activation == 2 else (1, 2):
        kinds = (*MICRO_KERNEL_TYPES, I64, POINTER, I64)
        with k.function(f"amx_{tile.format}_{epilogue}_{parts}", *kinds) as (*arguments, rows, ahead, lines):
            _Blocks(k, tile, epilogue, parts, MicroKernelArguments(*arguments)).write(rows, ahead, lines)


def is_worthwhile(k: KernelBuilder, tile: Tile, rows: Value, width: Value) -> Value:
    """Return the condition (an IR value) under which AMX multiplies instead of vector instructions.

    The `width` inputs must fill whole tile registers. Integer formats need at least 4 rows. For `pairs` (bfloat16) a
    single row is enough: vector instructions would add in another order, and results must not depend on the number of
    rows.
    """
    has_rows = k.build.icmp_signed(">=", rows, k.int64(1 if tile.is_float else MIN_ROWS))
    inputs_per_register = REGISTER_BYTES // tile.weight_bytes  # a power of two
    remainder = k.build.and_(width, k.int64(inputs_per_register - 1))
    return k.build.and_(has_rows, k.build.icmp_signed("==", remainder, k.int64(0)))


def emit_rows(
    k: KernelBuilder, tile: Tile, epilogue: str, rows: Value, arguments_from: Callable[[Value], MicroKernelArguments]
) -> None:
    """Emit the multiplication of all rows by one block of weights (64 outputs), with AMX and an epilogue.

    `arguments_from(row)` returns the micro-kernel's arguments for the rows from `row` on. The block of weights that
    follows in memory is prefetched.
    """
    args = arguments_from(k.int64(0))
    # The next block of weights.
    ahead = k.element_pointer(args.weights, k.mul(args.width, tile.weight_bytes, tile.columns), I8)
    registers = k.build.sdiv(k.add(rows, REGISTER_ROWS - 1), k.int64(REGISTER_ROWS))
    sub_blocks = k.mul(registers, tile.vectors // 2)
    lines = k.build.sdiv(k.add(sub_blocks, tile.columns - 1), sub_blocks)
    if tile.elements_per_activation == 2:
        k.call(f"amx_{tile.format}_{epilogue}_2", *args, rows, ahead, lines)
        return
    # A remainder of more than 16 rows also counts as a block of 32.
    rest = k.build.srem(rows, k.int64(2 * REGISTER_ROWS))
    is_at_most_16 = k.build.icmp_signed("<=", rest, k.int64(REGISTER_ROWS))
    whole_blocks = k.build.select(is_at_most_16, k.build.sub(rows, rest), rows)
    with k.when(k.build.icmp_signed(">", whole_blocks, k.int64(0))):
        k.call(f"amx_{tile.format}_{epilogue}_2", *args, whole_blocks, ahead, lines)
    with k.when(k.build.icmp_signed("<", whole_blocks, rows)):
        # Skip the lines that the earlier rows prefetched: 64 bytes for each 64 bytes of inputs.
        prefetched = k.mul(lines, k.build.sdiv(whole_blocks, k.int64(REGISTER_ROWS)), tile.vectors // 2, args.width)
        ahead = k.element_pointer(ahead, k.mul(prefetched, tile.weight_bytes), I8)
        args, rest = arguments_from(whole_blocks), k.build.sub(rows, whole_blocks)
        k.call(f"amx_{tile.format}_{epilogue}_1", *args, rest, ahead, lines)


def configure(k: KernelBuilder, *, halves: bool = False) -> None:
    """Emit the configuration of AMX's eight tile registers, which fills them with zeros.

    Every thread must run this code before it uses the registers. Each register has 16 rows of 64 bytes. With `halves`,
    register 6 has rows of 32 bytes and register 7 has 8 rows, for sums over 8 element pairs instead of 16.
    """
    name = "amx_configuration_of_halves" if halves else "amx_configuration"
    if not k.has(name):
        row_bytes, rows = [REGISTER_BYTES] * 8, [REGISTER_ROWS] * 8
        if halves:
            row_bytes[6], rows[7] = REGISTER_BYTES // 2, REGISTER_ROWS // 2
        widths = b"".join(bytes([each, 0]) for each in row_bytes)
        layout = bytes([1]) + bytes(15) + widths + bytes(16) + bytes(rows) + bytes(8)
        kind = ir.ArrayType(I8, len(layout))
        configuration = ir.GlobalVariable(k.module, kind, name)
        configuration.linkage, configuration.global_constant, configuration.align = "internal", True, 64
        configuration.initializer = ir.Constant(kind, bytearray(layout))
    k.intrinsic("llvm.x86.ldtilecfg", VOID, k.module.get_global(name))


def release(k: KernelBuilder) -> None:
    """Emit the release of AMX's tile registers, so that thread switches need not save them."""
    k.intrinsic("llvm.x86.tilerelease", VOID)


def register(number: int) -> Value:
    """Return the index of an AMX tile register as an LLVM constant, the operand of AMX instructions."""
    return ir.Constant(I8, number)


def zero(k: KernelBuilder, number: int) -> None:
    """Emit an instruction that sets the AMX tile register with index `number` to zeros."""
    k.intrinsic("llvm.x86.tilezero", VOID, register(number))


def load(k: KernelBuilder, number: int, pointer: Value, row_bytes: Value, *, once: bool = False) -> None:
    """Emit a load of an AMX tile register from memory rows that are `row_bytes` apart.

    `once` hints that the L1 cache need not keep the data.
    """
    name = "llvm.x86.tileloaddt164" if once else "llvm.x86.tileloadd64"
    k.intrinsic(name, VOID, register(number), pointer, row_bytes)


def store(k: KernelBuilder, number: int, pointer: Value, row_bytes: int = REGISTER_BYTES) -> None:
    """Emit a store of an AMX tile register to memory rows that are `row_bytes` apart."""
    k.intrinsic("llvm.x86.tilestored64", VOID, register(number), pointer, k.int64(row_bytes))


def prefetch_next(k: KernelBuilder, pointer: Value, fetched: Value, count: Value) -> None:
    """Emit prefetches of the next `count` bytes of some memory into the L2 cache.

    The memory starts at `pointer`. `fetched` is a stack variable with the number of bytes that are prefetched already;
    the emitted code adds `count` to it.
    """
    start = k.load_variable(fetched)
    stop = k.add(start, count)
    with k.loop(start, stop, REGISTER_BYTES) as byte:
        k.prefetch(k.element_pointer(pointer, byte, I8), level=2)
    k.store(stop, fetched)


class _Blocks:
    """An emitter of the AMX multiplication of rows by a block of 64 outputs, 16 or 32 rows and 32 outputs at a time.

    The sums of each such sub-block go to a buffer on the stack, which vector instructions finish while the next
    sub-block is multiplied.
    """

    def __init__(self, k: KernelBuilder, tile: Tile, epilogue: str, parts: int, pointer: MicroKernelArguments) -> None:
        self.k, self.tile, self.epilogue, self.parts, self.arguments = k, tile, epilogue, parts, pointer
        self.max_rows = REGISTER_ROWS if tile.elements_per_activation == 2 else parts * REGISTER_ROWS
        self.size = REGISTER_ROWS * tile.lanes  # sums in a tile register
        with k.build.goto_entry_block():
            self.sums = k.build.alloca(ir.ArrayType(I32, 2 * 4 * self.size))  # double buffer
            self.sums.align = 64
        none = k.int64(0)
        self.side, self.row_before, self.column_before, self.count_before = (k.variable(none) for _ in range(4))
        self.fetched = k.variable(none)  # bytes

    def write(self, rows: Value, ahead: Value, lines: Value) -> None:
        """Emit a loop that multiplies `rows` rows by one block of weights (64 outputs), 16 or 32 rows at a time.

        The next block of weights, at `ahead`, is prefetched meanwhile: `lines` cache lines for every 16 rows, at each
        step of 64 bytes along the inputs.
        """
        k, none = self.k, self.k.int64(0)
        self.ahead, self.lines = ahead, k.mul(lines, self.max_rows // REGISTER_ROWS)
        steps = k.build.sdiv(k.mul(self.arguments.width, self.tile.weight_bytes), k.int64(REGISTER_BYTES))
        each_step = k.build.sdiv(k.add(steps, self.max_rows - 1), steps)
        with k.loop(0, rows, self.max_rows) as row:
            for vector in range(0, self.tile.vectors, 2):
                self._multiply(row, vector, each_step)
                for number in range(2 * self.parts):
                    offset = k.add(k.load_variable(self.side), number * self.size)
                    store(k, number, k.element_pointer(self.sums, offset, I32))
                k.store(k.build.sub(k.int64(4 * self.size), k.load_variable(self.side)), self.side)
                k.store(row, self.row_before)
                k.store(k.int64(vector * self.tile.lanes), self.column_before)
                k.store(k.minimum(k.build.sub(rows, row), k.int64(self.max_rows)), self.count_before)
        self._finish(none, k.int64(self.max_rows))

    def _multiply(self, row: Value, vector: int, each_step: Value) -> None:
        """Emit the sums of a sub-block: the rows from `row` on, and 32 outputs from vector `vector` on.

        The sums are left in tile registers. After each step along the inputs, the epilogue of `each_step` rows of the
        previous sub-block is emitted, so that vector and AMX instructions overlap.
        """
        k, tile, args, parts = self.k, self.tile, self.arguments, self.parts
        row_bytes = k.mul(args.width, tile.elements_per_activation, tile.weight_bytes)
        rounded = k.element_pointer(args.rounded, k.mul(row, row_bytes), I8)
        next_part = args.width if tile.elements_per_activation == 2 else k.mul(row_bytes, REGISTER_ROWS)
        multiply = "llvm.x86.tdpbf16ps" if tile.is_float else "llvm.x86.tdpbusd"
        for number in range(2 * parts):
            zero(k, number)
        with k.loop(0, k.mul(args.width, tile.weight_bytes), REGISTER_BYTES) as first:
            weight_block = k.element_pointer(
                args.weights, k.add(k.mul(first, tile.columns), vector * REGISTER_BYTES), I8
            )
            for number in range(2):
                pointer = k.element_pointer(weight_block, number * REGISTER_BYTES, I8)
                stride = k.int64(tile.columns * tile.group * tile.weight_bytes)
                load(k, _WEIGHTS + number, pointer, stride)
            for part in range(parts):
                pointer = k.element_pointer(rounded, k.add(first, k.mul(next_part, part)), I8)
                load(k, _ACTIVATIONS + part, pointer, row_bytes)
                for number in range(2):
                    registers = (2 * part + number, _ACTIVATIONS + part, _WEIGHTS + number)
                    k.intrinsic(multiply, VOID, *map(register, registers))
            prefetch_next(k, self.ahead, self.fetched, k.mul(self.lines, REGISTER_BYTES))
            start = k.mul(k.build.sdiv(first, k.int64(REGISTER_BYTES)), each_step)
            self._finish(start, k.add(start, each_step))

    def _finish(self, first: Value, last: Value) -> None:
        """Emit the epilogue (bias, ReLU, store) of rows [first, last) of the previous sub-block of sums."""
        k, tile = self.k, self.tile
        row_before, column = k.load_variable(self.row_before), k.load_variable(self.column_before)
        out = k.add(k.mul(row_before, self.arguments.stride), column)
        args = self.arguments._replace(
            scales=k.element_pointer(self.arguments.scales, row_before),
            initial_sums=k.element_pointer(self.arguments.initial_sums, column),
            weight_scales=k.element_pointer(self.arguments.weight_scales, column),
            bias=k.element_pointer(self.arguments.bias, column),
            out=k.element_pointer(self.arguments.out, out, output_type(self.epilogue)),
        )
        sums = k.element_pointer(self.sums, k.build.sub(k.int64(4 * self.size), k.load_variable(self.side)))
        initial, kind = (args.bias, F32) if tile.is_float else (args.initial_sums, I32)
        starts = [
            k.load(k.element_pointer(initial, vector * tile.lanes, kind), ir.VectorType(kind, k.lanes))
            for vector in range(2)
        ]
        with k.loop(first, k.minimum(last, k.load_variable(self.count_before))) as row:
            # Row 16 is the first of the second part, whose sums start two tile registers later.
            part = 0 if tile.elements_per_activation == 2 else k.build.sdiv(row, k.int64(REGISTER_ROWS))
            offset = k.add(k.mul(row, tile.lanes), k.mul(part, self.size))
            self._finish_row(args, row, k.element_pointer(sums, offset), starts)

    def _finish_row(self, args: MicroKernelArguments, row: Value, sums: Value, starts: list[Value]) -> None:
        """Emit the epilogue (bias, ReLU, store) of one row of sums.

        `starts` has two vectors that are added to the sums first. They are the bias in floating-point formats, and the
        initial sums in integer formats.
        """
        k, tile, totals = self.k, self.tile, {}
        for vector, start in enumerate(starts):
            pointer = k.element_pointer(sums, vector * self.size)
            if tile.is_float:
                store_outputs(k, args, self.epilogue, row, vector, k.build.fadd(k.load(pointer, k.floats), start))
                continue
            total = k.load(pointer, k.ints)
            if tile.elements_per_activation == 2:
                low = k.load(k.element_pointer(pointer, 2 * self.size), k.ints)
                total = k.build.add(shift_high_half(k, total), low)
            totals[vector] = k.build.add(total, start)
        if not tile.is_float:
            dequantize_and_store(k, args, self.epilogue, row, totals)
