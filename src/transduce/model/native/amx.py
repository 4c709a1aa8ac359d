"""Products of many rows by AMX: registers of 16 rows × 64 bytes, and one instruction that multiplies two of them.

It takes the same integers as `vpdpbusd`, in the same places, and adds up the same sums: 16 rows × 16 outputs × 64
inputs at a time; or 32 inputs of bfloat16, in the places of `vpdpbf16ps` but in another order. A function here
multiplies 16 or 32 rows by a block of 64 outputs, with 2 registers of activations, 2 of weights and 4 of sums, so that
each that is loaded is used twice. Of `halves`, the two of activations are both halves of the same 16 rows. Source:
Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX".
"""

from collections.abc import Callable

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I8, I32, I64, VOID, Emitter, Value
from transduce.model.native.tile import PLACE, Place, Tile, finish, join_halves, put

REGISTER_ROWS = 16
REGISTER_BYTES = 64  # of a row: D is a multiple of so many bytes
LEAST_ROWS = 4  # fewer are not worth it, by the cycles that the instructions take
MORE_ROWS = REGISTER_ROWS - 1  # that may be read after the last one
_ACTIVATIONS, _WEIGHTS = 4, 6  # numbers of the first such registers; sums are 0 to 3


def write_blocks(k: Emitter, tile: Tile, ending: str) -> None:
    """`amx_<kind>_<ending>_<parts>(place…, count)`: so many rows, 16 × parts at most; `halves` have 2 parts of 16 rows.

    Whatever stands after the last row is read too, as far as the register reaches, and not used.
    """
    k.features |= {"amx-tile", "amx-bf16" if tile.is_float else "amx-int8"}
    for parts in (2,) if tile.planes == 2 else (1, 2):
        with k.function(f"amx_{tile.kind}_{ending}_{parts}", *PLACE, I64) as (*arguments, count):
            _write_block(k, tile, ending, parts, Place(*arguments), count)


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
    most = REGISTER_ROWS if tile.planes == 2 else 2 * REGISTER_ROWS
    with k.loop(0, rows, most) as row:
        place, count = place_of(row), k.lesser(k.build.sub(rows, row), k.number(most))
        if tile.planes == 2:
            k.call(f"amx_{tile.kind}_{ending}_2", *place, count)
        else:
            with k.build.if_else(k.build.icmp_signed(">", count, k.number(REGISTER_ROWS))) as (many, few):
                with many:
                    k.call(f"amx_{tile.kind}_{ending}_2", *place, count)
                with few:
                    k.call(f"amx_{tile.kind}_{ending}_1", *place, count)


def configure(k: Emitter) -> None:
    """All registers have 16 rows of 64 bytes from here on, and hold zeros; each thread does this for itself."""
    name = "amx_configuration"
    if not k.has(name):
        layout = (
            bytes([1]) + bytes(15) + bytes([REGISTER_BYTES, 0]) * 8 + bytes(16) + bytes([REGISTER_ROWS]) * 8 + bytes(8)
        )
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


def load(k: Emitter, number: int, place: Value, row_bytes: Value) -> None:
    """Fills a register from rows that begin so many bytes apart."""
    k.intrinsic("llvm.x86.tileloadd64", VOID, register(number), place, row_bytes)


def store(k: Emitter, number: int, place: Value, row_bytes: int = REGISTER_BYTES) -> None:
    """Puts a register's rows where they begin so many bytes apart."""
    k.intrinsic("llvm.x86.tilestored64", VOID, register(number), place, k.number(row_bytes))


def _write_block(k: Emitter, tile: Tile, ending: str, parts: int, place: Place, count: Value) -> None:
    with k.build.goto_entry_block():
        sums = k.build.alloca(ir.ArrayType(I32, 4 * REGISTER_ROWS * tile.lanes))
        sums.align = 64
    row_bytes = k.times(place.width, tile.planes, tile.weight_bytes)
    next_part = place.width if tile.planes == 2 else k.times(row_bytes, REGISTER_ROWS)
    multiply = "llvm.x86.tdpbf16ps" if tile.is_float else "llvm.x86.tdpbusd"
    for first_vector in range(0, tile.vectors, 2):
        for number in range(2 * parts):
            zero(k, number)
        with k.loop(0, k.times(place.width, tile.weight_bytes), REGISTER_BYTES) as first:
            line = k.at(place.weights, k.sum_of(k.times(first, tile.columns), first_vector * REGISTER_BYTES), I8)
            for number in range(2):
                there = k.at(line, number * REGISTER_BYTES, I8)
                stride = k.number(tile.columns * tile.group * tile.weight_bytes)
                load(k, _WEIGHTS + number, there, stride)
            for part in range(parts):
                there = k.at(place.rounded, k.sum_of(first, k.times(next_part, part)), I8)
                load(k, _ACTIVATIONS + part, there, row_bytes)
                for number in range(2):
                    registers = (2 * part + number, _ACTIVATIONS + part, _WEIGHTS + number)
                    k.intrinsic(multiply, VOID, *map(register, registers))
        for number in range(2 * parts):
            there = k.at(sums, number * REGISTER_ROWS * tile.lanes, I32)
            store(k, number, there)
        _finish_rows(k, tile, ending, (place, sums, count), first_vector)


def _finish_rows(k: Emitter, tile: Tile, ending: str, found: tuple[Place, Value, Value], first_vector: int) -> None:
    place, sums, count = found
    vectors = (first_vector, first_vector + 1)
    begins, kind = (place.bias, F32) if tile.is_float else (place.start, I32)
    starts = [k.load(k.at(begins, vector * tile.lanes, kind), ir.VectorType(kind, k.lanes)) for vector in vectors]
    with k.loop(0, count) as row:
        # With one part after the other, row 16 is the first of the second part, which stands two registers further.
        part = 0 if tile.planes == 2 else k.build.sdiv(row, k.number(REGISTER_ROWS))
        place_of_row = k.sum_of(k.times(row, tile.lanes), k.times(part, REGISTER_ROWS * tile.lanes))
        totals = {}
        for number, vector in enumerate(vectors):
            here = k.at(sums, k.sum_of(place_of_row, number * REGISTER_ROWS * tile.lanes), I32)
            if tile.is_float:
                put(k, place, ending, row, vector, k.build.fadd(k.load(here, k.floats), starts[number]))
                continue
            total = k.load(here, k.ints)
            if tile.planes == 2:
                low = k.load(k.at(here, 2 * REGISTER_ROWS * tile.lanes, I32), k.ints)
                total = k.build.add(join_halves(k, total), low)
            totals[vector] = k.build.add(total, starts[number])
        if not tile.is_float:
            finish(k, place, ending, row, totals)
