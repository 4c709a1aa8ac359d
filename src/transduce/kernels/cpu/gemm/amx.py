"""Emit GEMM blocks of decoding that use AMX, whose tile registers hold 16 rows of 64 bytes.

One instruction multiplies two tile registers: 16 rows × 16 outputs × 64 integer inputs, or × 32 bfloat16 inputs. The
packed weights are those of `vpdpbusd` and `vpdpbf16ps`; integer sums are equal, bfloat16 sums are added in another
order. A function here multiplies 16 or 32 rows at a time by a block of 64 outputs. It uses 2 registers of activations,
2 of weights and 4 of sums, so each loaded register is used twice. Meanwhile vector instructions finish the previous
sums, and the next block of weights is prefetched into the L2 cache. For `halves`, the two registers of activations hold
both halves of the same 16 rows.

Source: Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX".
"""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.jit.ir_builder import F32, I8, I32, I64, POINTER, VOID, Emitter, Value
from transduce.kernels.cpu.jit.tile import PLACE, Place, Tile, finish, join_halves, put, result_type

REGISTER_ROWS = 16
"""Rows of a tile register."""
REGISTER_BYTES = 64
"""Bytes per row of a tile register; a row of D inputs is a multiple of it."""
LEAST_ROWS = 4
"""With fewer rows, vector instructions take fewer cycles than AMX."""
MORE_ROWS = REGISTER_ROWS - 1
"""Rows behind the last one that may be read."""
_ACTIVATIONS, _WEIGHTS = 4, 6  # indices of the first such tile registers; those of sums are 0 to 3


def write_blocks(k: Emitter, tile: Tile, ending: str) -> None:
    """Emit `amx_<kind>_<ending>_<parts>(Place…, rows, ahead, lines)`: multiply all rows by a block of outputs.

    It takes 16 × parts rows at a time; for `halves`, 2 parts are the two halves of 16 rows. Rows behind the last one
    are read up to a whole tile register, and ignored. At each step along the inputs, `lines` cache lines from `ahead`
    on are prefetched for every 16 rows.
    """
    k.features |= {"amx-tile", "amx-bf16" if tile.is_float else "amx-int8"}
    for parts in (2,) if tile.planes == 2 else (1, 2):
        kinds = (*PLACE, I64, POINTER, I64)
        with k.function(f"amx_{tile.kind}_{ending}_{parts}", *kinds) as (*arguments, rows, ahead, lines):
            _Blocks(k, tile, ending, parts, Place(*arguments)).write(rows, ahead, lines)


def pays(k: Emitter, tile: Tile, rows: Value, width: Value) -> Value:
    """Return the condition that AMX is used: there are enough rows, and D fills whole tile registers.

    For `pairs` a single row is enough. Vector instructions add in another order, and results must not depend on the
    number of rows.
    """
    has_rows = k.build.icmp_signed(">=", rows, k.number(1 if tile.is_float else LEAST_ROWS))
    fills_registers = k.build.icmp_signed(
        "==", k.build.and_(width, k.number(_inputs_per_register(tile) - 1)), k.number(0)
    )
    return k.build.and_(has_rows, fills_registers)


def _inputs_per_register(tile: Tile) -> int:
    """Return the number of inputs in a row of a tile register."""
    return REGISTER_BYTES // tile.weight_bytes


def write_rows(k: Emitter, tile: Tile, ending: str, rows: Value, place_of: Callable[[Value], Place]) -> None:
    """Emit the multiplication of all rows by one block of weights; `place_of` returns the arguments from a row on."""
    args = place_of(k.number(0))
    ahead = k.at(args.weights, k.times(args.width, tile.weight_bytes, tile.columns), I8)  # the next block of weights
    registers = k.build.sdiv(k.sum_of(rows, REGISTER_ROWS - 1), k.number(REGISTER_ROWS))
    sub_blocks = k.times(registers, tile.vectors // 2)
    lines = k.build.sdiv(k.sum_of(sub_blocks, tile.columns - 1), sub_blocks)
    if tile.planes == 2:
        k.call(f"amx_{tile.kind}_{ending}_2", *args, rows, ahead, lines)
        return
    # A remainder of more than 16 rows also counts as a block of 32.
    rest = k.build.srem(rows, k.number(2 * REGISTER_ROWS))
    is_at_most_16 = k.build.icmp_signed("<=", rest, k.number(REGISTER_ROWS))
    whole_blocks = k.build.select(is_at_most_16, k.build.sub(rows, rest), rows)
    with k.where(k.build.icmp_signed(">", whole_blocks, k.number(0))):
        k.call(f"amx_{tile.kind}_{ending}_2", *args, whole_blocks, ahead, lines)
    with k.where(k.build.icmp_signed("<", whole_blocks, rows)):
        # Skip the lines that the earlier rows prefetched: 64 bytes for each 64 bytes of inputs.
        prefetched = k.times(lines, k.build.sdiv(whole_blocks, k.number(REGISTER_ROWS)), tile.vectors // 2, args.width)
        ahead = k.at(ahead, k.times(prefetched, tile.weight_bytes), I8)
        k.call(f"amx_{tile.kind}_{ending}_1", *place_of(whole_blocks), k.build.sub(rows, whole_blocks), ahead, lines)


def configure(k: Emitter, *, halves: bool = False) -> None:
    """Emit the configuration of the tile registers, 16 rows of 64 bytes each, filled with zeros; every thread needs it.

    With `halves`, register 6 has rows of 32 bytes and register 7 has 8 rows, for products of half as many pairs.
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


def release(k: Emitter) -> None:
    """Emit the release of the tile registers, so that thread switches need not save them."""
    k.intrinsic("llvm.x86.tilerelease", VOID)


def register(number: int) -> Value:
    """Return a tile register's index as an instruction operand."""
    return ir.Constant(I8, number)


def zero(k: Emitter, number: int) -> None:
    """Emit the clearing of a tile register."""
    k.intrinsic("llvm.x86.tilezero", VOID, register(number))


def load(k: Emitter, number: int, place: Value, row_bytes: Value, *, once: bool = False) -> None:
    """Emit a load of a tile register from rows `row_bytes` apart.

    `once` hints that the L1 cache need not keep the data.
    """
    name = "llvm.x86.tileloaddt164" if once else "llvm.x86.tileloadd64"
    k.intrinsic(name, VOID, register(number), place, row_bytes)


def store(k: Emitter, number: int, place: Value, row_bytes: int = REGISTER_BYTES) -> None:
    """Emit a store of a tile register to rows `row_bytes` apart."""
    k.intrinsic("llvm.x86.tilestored64", VOID, register(number), place, k.number(row_bytes))


def fetch_on(k: Emitter, place: Value, fetched: Value, count: Value) -> None:
    """Emit a prefetch of the next `count` bytes into the L2 cache.

    The variable `fetched` holds the number of bytes that are prefetched already.
    """
    start = k.get(fetched, count)
    stop = k.sum_of(start, count)
    with k.loop(start, stop, REGISTER_BYTES) as byte:
        k.fetch(k.at(place, byte, I8), level=2)
    k.store(stop, fetched)


class _Blocks:
    """An emitter of the multiplication of rows by 64 outputs, in sub-blocks of 16 or 32 rows by 32 outputs.

    The sums of each sub-block go to a buffer on the stack, which vector instructions finish while the next sub-block is
    multiplied.
    """

    def __init__(self, k: Emitter, tile: Tile, ending: str, parts: int, place: Place) -> None:
        self.k, self.tile, self.ending, self.parts, self.place = k, tile, ending, parts, place
        self.most = REGISTER_ROWS if tile.planes == 2 else parts * REGISTER_ROWS
        self.size = REGISTER_ROWS * tile.lanes  # sums in a tile register
        with k.build.goto_entry_block():
            self.sums = k.build.alloca(ir.ArrayType(I32, 2 * 4 * self.size))  # double buffer
            self.sums.align = 64
        none = k.number(0)
        self.side, self.row_before, self.column_before, self.count_before = (k.variable(none) for _ in range(4))
        self.fetched = k.variable(none)  # bytes

    def write(self, rows: Value, ahead: Value, lines: Value) -> None:
        """Emit the loop over all rows."""
        k, none = self.k, self.k.number(0)
        self.ahead, self.lines = ahead, k.times(lines, self.most // REGISTER_ROWS)
        steps = k.build.sdiv(k.times(self.place.width, self.tile.weight_bytes), k.number(REGISTER_BYTES))
        each_step = k.build.sdiv(k.sum_of(steps, self.most - 1), steps)
        with k.loop(0, rows, self.most) as row:
            for vector in range(0, self.tile.vectors, 2):
                self._multiply(row, vector, each_step)
                for number in range(2 * self.parts):
                    offset = k.sum_of(k.get(self.side, none), number * self.size)
                    store(k, number, k.at(self.sums, offset, I32))
                k.store(k.build.sub(k.number(4 * self.size), k.get(self.side, none)), self.side)
                k.store(row, self.row_before)
                k.store(k.number(vector * self.tile.lanes), self.column_before)
                k.store(k.lesser(k.build.sub(rows, row), k.number(self.most)), self.count_before)
        self._finish(none, k.number(self.most))

    def _multiply(self, row: Value, vector: int, each_step: Value) -> None:
        """Emit the sums of two vectors of outputs for the rows from `row` on.

        After each step along the inputs, `each_step` rows of the previous sub-block are finished.
        """
        k, tile, args, parts = self.k, self.tile, self.place, self.parts
        row_bytes = k.times(args.width, tile.planes, tile.weight_bytes)
        rounded = k.at(args.rounded, k.times(row, row_bytes), I8)
        next_part = args.width if tile.planes == 2 else k.times(row_bytes, REGISTER_ROWS)
        multiply = "llvm.x86.tdpbf16ps" if tile.is_float else "llvm.x86.tdpbusd"
        for number in range(2 * parts):
            zero(k, number)
        with k.loop(0, k.times(args.width, tile.weight_bytes), REGISTER_BYTES) as first:
            weight_block = k.at(args.weights, k.sum_of(k.times(first, tile.columns), vector * REGISTER_BYTES), I8)
            for number in range(2):
                pointer = k.at(weight_block, number * REGISTER_BYTES, I8)
                stride = k.number(tile.columns * tile.group * tile.weight_bytes)
                load(k, _WEIGHTS + number, pointer, stride)
            for part in range(parts):
                pointer = k.at(rounded, k.sum_of(first, k.times(next_part, part)), I8)
                load(k, _ACTIVATIONS + part, pointer, row_bytes)
                for number in range(2):
                    registers = (2 * part + number, _ACTIVATIONS + part, _WEIGHTS + number)
                    k.intrinsic(multiply, VOID, *map(register, registers))
            fetch_on(k, self.ahead, self.fetched, k.times(self.lines, REGISTER_BYTES))
            start = k.times(k.build.sdiv(first, k.number(REGISTER_BYTES)), each_step)
            self._finish(start, k.sum_of(start, each_step))

    def _finish(self, first: Value, last: Value) -> None:
        """Emit the epilogue of rows [first, last) of the previous sub-block."""
        k, tile, none = self.k, self.tile, self.k.number(0)
        row_before, column = k.get(self.row_before, none), k.get(self.column_before, none)
        out = k.sum_of(k.times(row_before, self.place.stride), column)
        args = self.place._replace(
            scales=k.at(self.place.scales, row_before),
            start=k.at(self.place.start, column),
            steps=k.at(self.place.steps, column),
            bias=k.at(self.place.bias, column),
            out=k.at(self.place.out, out, result_type(self.ending)),
        )
        sums = k.at(self.sums, k.build.sub(k.number(4 * self.size), k.get(self.side, none)))
        initial, kind = (args.bias, F32) if tile.is_float else (args.start, I32)
        starts = [k.load(k.at(initial, vector * tile.lanes, kind), ir.VectorType(kind, k.lanes)) for vector in range(2)]
        with k.loop(first, k.lesser(last, k.get(self.count_before, none))) as row:
            # Row 16 is the first of the second part, whose sums start two tile registers later.
            part = 0 if tile.planes == 2 else k.build.sdiv(row, k.number(REGISTER_ROWS))
            offset = k.sum_of(k.times(row, tile.lanes), k.times(part, self.size))
            self._finish_row(args, row, k.at(sums, offset), starts)

    def _finish_row(self, args: Place, row: Value, sums: Value, starts: list[Value]) -> None:
        """Emit the epilogue of one row."""
        k, tile, totals = self.k, self.tile, {}
        for vector, start in enumerate(starts):
            pointer = k.at(sums, vector * self.size)
            if tile.is_float:
                put(k, args, self.ending, row, vector, k.build.fadd(k.load(pointer, k.floats), start))
                continue
            total = k.load(pointer, k.ints)
            if tile.planes == 2:
                low = k.load(k.at(pointer, 2 * self.size), k.ints)
                total = k.build.add(join_halves(k, total), low)
            totals[vector] = k.build.add(total, start)
        if not tile.is_float:
            finish(k, args, self.ending, row, totals)
