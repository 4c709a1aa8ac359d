"""Products of matrices of bfloat16 by AMX's instruction for pairs, `tdpbf16ps`.

A tile is 32 rows by a panel of 32 columns, or halves of these: four registers of sums, two of rows and two of columns,
so that each that is loaded is used twice. Sums go through memory on their way out, where vectors take them up. Source:
Intel, "Architecture Instruction Set Extensions Programming Reference", chapter "AMX".
"""

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.emit import F32, I32, VOID, Emitter, Value
from transduce.model.native.pair_packing import AMX
from transduce.model.native.pair_products import ENDINGS, TILE_TYPES, Ending, PairMultiplier, Product, tile_name

_ROWS, _BYTES = amx.REGISTER_ROWS, amx.REGISTER_BYTES
_LEFT, _PANEL = 4, 6  # numbers of the first such registers; sums are 0 to 3


class AmxMultiplier(PairMultiplier):
    """The same by AMX."""

    layout = AMX

    def __init__(self, k: Emitter, *endings: Ending) -> None:
        k.features |= {"amx-tile", "amx-bf16"}
        super().__init__(k, *endings)

    def multiply(self, made: Product, thread: Value, threads: Value) -> None:
        """As `PairMultiplier.multiply`."""
        amx.configure(self.k)
        super().multiply(made, thread, threads)
        amx.release(self.k)

    def multiply_lower(self, made: Product, thread: Value, threads: Value) -> None:
        """As `PairMultiplier.multiply_lower`."""
        amx.configure(self.k)
        super().multiply_lower(made, thread, threads)
        amx.release(self.k)

    def _call_tile(self, made: Product, row: Value, panel: Value, column: Value, width: int) -> None:
        k, vectors = self.k, width // self.k.lanes
        rest = k.build.sub(made.rows, row)
        with k.build.if_else(k.build.icmp_signed(">=", rest, k.number(2 * _ROWS))) as (whole, few):
            with whole:
                self._call(_name(made.ending, vectors, 2), 2 * _ROWS, made, row, panel, column)
            with few, k.loop(row, made.rows, _ROWS) as first:
                self._call(_name(made.ending, vectors, 1), _ROWS, made, first, panel, column)

    def _write_tile(self, ending: Ending, vectors: int) -> None:
        for parts in (1, 2):
            self._write_part(ending, vectors, parts)

    def _write_part(self, ending: Ending, vectors: int, parts: int) -> None:
        """So many times 16 rows."""
        k = self.k
        name = _name(ending, vectors, parts)
        with k.function(name, *TILE_TYPES, *ENDINGS[ending]) as (left, panel, pairs, out, stride, *values):
            with k.build.goto_entry_block():
                sums = k.build.alloca(ir.ArrayType(F32, 4 * _ROWS * k.lanes))
                sums.align = _BYTES
            if ending == "add":
                self._fetch(parts * _ROWS, vectors, out, stride)
            self._multiply_registers(left, panel, pairs, parts, vectors, is_packed=ending == "add")
            for number in _registers(parts, vectors):
                there = k.at(sums, number * _ROWS * k.lanes)
                amx.store(k, number, there)
            starts = self._bias(vectors, values[0]) if ending == "bias" else [k.splat(0.0)] * vectors
            for part in range(parts):
                with k.loop(0, _ROWS) as row:
                    for vector, start in enumerate(starts):
                        here = k.sum_of(k.times(row, k.lanes), (2 * part + vector) * _ROWS * k.lanes)
                        total = k.build.fadd(k.load_floats(sums, here), start)
                        place = k.sum_of(k.times(stride, k.sum_of(row, part * _ROWS)), vector * k.lanes)
                        self._finish(ending, total, out, place, values)

    def _multiply_registers(
        self, left: Value, panel: Value, pairs: Value, parts: int, vectors: int, *, is_packed: bool
    ) -> None:
        k = self.k
        row_bytes = k.number(_BYTES) if is_packed else k.times(pairs, 4)
        for number in _registers(parts, vectors):
            amx.zero(k, number)
        with k.loop(0, pairs, k.lanes) as pair:
            for vector in range(vectors):
                there = k.at(panel, k.sum_of(k.times(pair, vectors * k.lanes), vector * k.lanes), I32)
                amx.load(k, _PANEL + vector, there, k.number(vectors * _BYTES))
            for part in range(parts):
                first = k.times(pair, _ROWS) if is_packed else pair
                there = k.at(left, k.sum_of(k.times(pairs, part * _ROWS), first), I32)
                amx.load(k, _LEFT + part, there, row_bytes)
                for vector in range(vectors):
                    registers = (2 * part + vector, _LEFT + part, _PANEL + vector)
                    k.intrinsic("llvm.x86.tdpbf16ps", VOID, *map(amx.register, registers))


def _registers(parts: int, vectors: int) -> list[int]:
    """Those of sums."""
    return [2 * part + vector for part in range(parts) for vector in range(vectors)]


def _name(ending: Ending, vectors: int, parts: int) -> str:
    return f"{tile_name(ending, vectors)}_{parts}"
