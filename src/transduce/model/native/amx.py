"""Products of many rows by AMX: registers of 16 rows × 64 bytes, and one instruction that multiplies two of them.

It takes the same integers as `vpdpbusd`, in the same places, and adds up the same sums: 16 rows × 16 outputs × 64
inputs at a time; or 32 inputs of bfloat16, in the places of `vpdpbf16ps` but in another order. A function here
multiplies 16 or 32 rows at a time by a block of 64 outputs, with 2 registers of activations, 2 of weights and 4 of
sums, so that each that is loaded is used twice. Meanwhile vectors finish the sums of before, and the next block is
fetched into the second cache. Of `halves`, the two of activations are both halves of the same 16 rows. Source:
Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX".
"""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I8, I32, I64, POINTER, VOID, Emitter, Value
from transduce.model.native.tile import PLACE, Place, Tile, finish, join_halves, put, result_type

REGISTER_ROWS = 16
REGISTER_BYTES = 64  # of a row: D is a multiple of so many bytes
LEAST_ROWS = 4  # fewer are not worth it, by the cycles that the instructions take
MORE_ROWS = REGISTER_ROWS - 1  # that may be read after the last one
_ACTIVATIONS, _WEIGHTS = 4, 6  # numbers of the first such registers; sums are 0 to 3


def write_blocks(k: Emitter, tile: Tile, ending: str) -> None:
    """`amx_<kind>_<ending>_<parts>(place…, rows, ahead, lines)`: all rows, 16 × parts at a time.

    Of `halves`, 2 parts are 16 rows. Whatever stands after the last row is read too, as far as the register reaches,
    and not used. From `ahead` on, so many lines of 64 bytes are fetched for 16 rows at each step along the inputs.
    """
    k.features |= {"amx-tile", "amx-bf16" if tile.is_float else "amx-int8"}
    for parts in (2,) if tile.planes == 2 else (1, 2):
        kinds = (*PLACE, I64, POINTER, I64)
        with k.function(f"amx_{tile.kind}_{ending}_{parts}", *kinds) as (*arguments, rows, ahead, lines):
            _Blocks(k, tile, ending, parts, Place(*arguments)).write(rows, ahead, lines)


def pays(k: Emitter, tile: Tile, rows: Value, width: Value) -> Value:
    """Whether there are rows enough, and whole registers of inputs.

    Of pairs a single row is enough: vectors add them up in another order, and how many rows there are must not count.
    """
    enough = k.build.icmp_signed(">=", rows, k.number(1 if tile.is_float else LEAST_ROWS))
    whole = k.build.icmp_signed("==", k.build.and_(width, k.number(_inputs(tile) - 1)), k.number(0))
    return k.build.and_(enough, whole)


def _inputs(tile: Tile) -> int:
    """Of a register."""
    return REGISTER_BYTES // tile.weight_bytes


def write_rows(k: Emitter, tile: Tile, ending: str, rows: Value, place_of: Callable[[Value], Place]) -> None:
    """Multiplies all rows by one block of weights; `place_of` gives the arguments for those from one on."""
    place = place_of(k.number(0))
    ahead = k.at(place.weights, k.times(place.width, tile.weight_bytes, tile.columns), I8)  # the next block
    registers = k.build.sdiv(k.sum_of(rows, REGISTER_ROWS - 1), k.number(REGISTER_ROWS))
    turns = k.times(registers, tile.vectors // 2)
    lines = k.build.sdiv(k.sum_of(turns, tile.columns - 1), turns)
    if tile.planes == 2:
        k.call(f"amx_{tile.kind}_{ending}_2", *place, rows, ahead, lines)
        return
    # What is left is taken 32 rows at a time, too, if it is more than 16.
    rest = k.build.srem(rows, k.number(2 * REGISTER_ROWS))
    is_few = k.build.icmp_signed("<=", rest, k.number(REGISTER_ROWS))
    many = k.build.select(is_few, k.build.sub(rows, rest), rows)
    with k.where(k.build.icmp_signed(">", many, k.number(0))):
        k.call(f"amx_{tile.kind}_{ending}_2", *place, many, ahead, lines)
    with k.where(k.build.icmp_signed("<", many, rows)):
        # The lines after those that were fetched for the rows before: 64 bytes for each of 64 bytes of inputs.
        before = k.times(lines, k.build.sdiv(many, k.number(REGISTER_ROWS)), tile.vectors // 2, place.width)
        ahead = k.at(ahead, k.times(before, tile.weight_bytes), I8)
        k.call(f"amx_{tile.kind}_{ending}_1", *place_of(many), k.build.sub(rows, many), ahead, lines)


def configure(k: Emitter, *, halves: bool = False) -> None:
    """All registers have 16 rows of 64 bytes from here on, and hold zeros; each thread does this for itself.

    With halves, the last but one has rows of 32 bytes, and the last one 8 rows: for products of half as many pairs.
    """
    name = "amx_configuration_of_halves" if halves else "amx_configuration"
    if not k.has(name):
        row_bytes, rows = [REGISTER_BYTES] * 8, [REGISTER_ROWS] * 8
        if halves:
            row_bytes[6], rows[7] = REGISTER_BYTES // 2, REGISTER_ROWS // 2
        widths = b"".join(bytes([each, 0]) for each in row_bytes)
        layout = bytes([1]) + bytes(15) + widths + bytes(16) + bytes(rows) + bytes(8)
        kind = ir.ArrayType(I8, len(layout))
        made = ir.GlobalVariable(k.module, kind, name)
        made.linkage, made.global_constant, made.align = "internal", True, 64
        made.initializer = ir.Constant(kind, bytearray(layout))
    k.intrinsic("llvm.x86.ldtilecfg", VOID, k.module.get_global(name))


def release(k: Emitter) -> None:
    """The registers are free: nobody saves them as threads take turns."""
    k.intrinsic("llvm.x86.tilerelease", VOID)


def register(number: int) -> Value:
    """A register's number, as the instructions take it."""
    return ir.Constant(I8, number)


def zero(k: Emitter, number: int) -> None:
    """All of a register becomes zero."""
    k.intrinsic("llvm.x86.tilezero", VOID, register(number))


def load(k: Emitter, number: int, place: Value, row_bytes: Value, *, once: bool = False) -> None:
    """Fills a register from rows that begin so many bytes apart; once: the first cache need not hold them for later."""
    name = "llvm.x86.tileloaddt164" if once else "llvm.x86.tileloadd64"
    k.intrinsic(name, VOID, register(number), place, row_bytes)


def store(k: Emitter, number: int, place: Value, row_bytes: int = REGISTER_BYTES) -> None:
    """Puts a register's rows where they begin so many bytes apart."""
    k.intrinsic("llvm.x86.tilestored64", VOID, register(number), place, k.number(row_bytes))


def fetch_on(k: Emitter, place: Value, fetched: Value, count: Value) -> None:
    """Has so many bytes more fetched into the second cache, whole lines; a variable holds how many have been."""
    start = k.get(fetched, count)
    stop = k.sum_of(start, count)
    with k.loop(start, stop, REGISTER_BYTES) as byte:
        k.fetch(k.at(place, byte, I8), level=2)
    k.store(stop, fetched)


class _Blocks:
    """Rows by 64 outputs, in turns of 16 or 32 rows by 32 outputs, whose sums vectors take up in the turn after."""

    def __init__(self, k: Emitter, tile: Tile, ending: str, parts: int, place: Place) -> None:
        self.k, self.tile, self.ending, self.parts, self.place = k, tile, ending, parts, place
        self.most = REGISTER_ROWS if tile.planes == 2 else parts * REGISTER_ROWS
        self.size = REGISTER_ROWS * tile.lanes  # of a register of sums
        with k.build.goto_entry_block():
            self.sums = k.build.alloca(ir.ArrayType(I32, 2 * 4 * self.size))  # of two turns
            self.sums.align = 64
        none = k.number(0)
        self.side, self.row_before, self.column_before, self.count_before = (k.variable(none) for _ in range(4))
        self.fetched = k.variable(none)  # bytes

    def write(self, rows: Value, ahead: Value, lines: Value) -> None:
        """All of them."""
        k, none = self.k, self.k.number(0)
        self.ahead, self.lines = ahead, k.times(lines, self.most // REGISTER_ROWS)
        steps = k.build.sdiv(k.times(self.place.width, self.tile.weight_bytes), k.number(REGISTER_BYTES))
        each_step = k.build.sdiv(k.sum_of(steps, self.most - 1), steps)
        with k.loop(0, rows, self.most) as row:
            for vector in range(0, self.tile.vectors, 2):
                self._multiply(row, vector, each_step)
                for number in range(2 * self.parts):
                    there = k.sum_of(k.get(self.side, none), number * self.size)
                    store(k, number, k.at(self.sums, there, I32))
                k.store(k.build.sub(k.number(4 * self.size), k.get(self.side, none)), self.side)
                k.store(row, self.row_before)
                k.store(k.number(vector * self.tile.lanes), self.column_before)
                k.store(k.lesser(k.build.sub(rows, row), k.number(self.most)), self.count_before)
        self._finish(none, k.number(self.most))

    def _multiply(self, row: Value, vector: int, each_step: Value) -> None:
        """Two vectors of outputs of the rows from one on; after each step along the inputs, some rows of before."""
        k, tile, place, parts = self.k, self.tile, self.place, self.parts
        row_bytes = k.times(place.width, tile.planes, tile.weight_bytes)
        rounded = k.at(place.rounded, k.times(row, row_bytes), I8)
        next_part = place.width if tile.planes == 2 else k.times(row_bytes, REGISTER_ROWS)
        multiply = "llvm.x86.tdpbf16ps" if tile.is_float else "llvm.x86.tdpbusd"
        for number in range(2 * parts):
            zero(k, number)
        with k.loop(0, k.times(place.width, tile.weight_bytes), REGISTER_BYTES) as first:
            line = k.at(place.weights, k.sum_of(k.times(first, tile.columns), vector * REGISTER_BYTES), I8)
            for number in range(2):
                there = k.at(line, number * REGISTER_BYTES, I8)
                stride = k.number(tile.columns * tile.group * tile.weight_bytes)
                load(k, _WEIGHTS + number, there, stride)
            for part in range(parts):
                there = k.at(rounded, k.sum_of(first, k.times(next_part, part)), I8)
                load(k, _ACTIVATIONS + part, there, row_bytes)
                for number in range(2):
                    registers = (2 * part + number, _ACTIVATIONS + part, _WEIGHTS + number)
                    k.intrinsic(multiply, VOID, *map(register, registers))
            fetch_on(k, self.ahead, self.fetched, k.times(self.lines, REGISTER_BYTES))
            start = k.times(k.build.sdiv(first, k.number(REGISTER_BYTES)), each_step)
            self._finish(start, k.sum_of(start, each_step))

    def _finish(self, first: Value, last: Value) -> None:
        """Rows of the turn before."""
        k, tile, none = self.k, self.tile, self.k.number(0)
        row_before, column = k.get(self.row_before, none), k.get(self.column_before, none)
        out = k.sum_of(k.times(row_before, self.place.stride), column)
        place = self.place._replace(
            scales=k.at(self.place.scales, row_before),
            start=k.at(self.place.start, column),
            steps=k.at(self.place.steps, column),
            bias=k.at(self.place.bias, column),
            out=k.at(self.place.out, out, result_type(self.ending)),
        )
        sums = k.at(self.sums, k.build.sub(k.number(4 * self.size), k.get(self.side, none)))
        begins, kind = (place.bias, F32) if tile.is_float else (place.start, I32)
        starts = [k.load(k.at(begins, vector * tile.lanes, kind), ir.VectorType(kind, k.lanes)) for vector in range(2)]
        with k.loop(first, k.lesser(last, k.get(self.count_before, none))) as row:
            # With one part after the other, row 16 is the first of the second part, which stands two registers further.
            part = 0 if tile.planes == 2 else k.build.sdiv(row, k.number(REGISTER_ROWS))
            here = k.sum_of(k.times(row, tile.lanes), k.times(part, self.size))
            self._finish_row(place, row, k.at(sums, here), starts)

    def _finish_row(self, place: Place, row: Value, sums: Value, starts: list[Value]) -> None:
        k, tile, totals = self.k, self.tile, {}
        for vector, start in enumerate(starts):
            here = k.at(sums, vector * self.size)
            if tile.is_float:
                put(k, place, self.ending, row, vector, k.build.fadd(k.load(here, k.floats), start))
                continue
            total = k.load(here, k.ints)
            if tile.planes == 2:
                low = k.load(k.at(here, 2 * self.size), k.ints)
                total = k.build.add(join_halves(k, total), low)
            totals[vector] = k.build.add(total, start)
        if not tile.is_float:
            finish(k, place, self.ending, row, totals)
