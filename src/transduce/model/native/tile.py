"""What a product computes at a time, and what rows are rounded to for it.

With 8-bit weights, rows become one of four kinds of integers:

* `bytes`, where an instruction adds four products of bytes to a sum of 32 bits (`vpdpbusd`, and AMX's `tdpbusd`);
* `halves` of 12 bits, on the same machines: 6 bits each, multiplied as bytes one after the other; more exact, and half
  as fast;
* `sextets` of 6 bits elsewhere: four products are added in 16 bits first (`vpmaddubsw`), which bytes would overflow;
* `words` of 12 bits there, of which pairs of products are added in 32 bits (`vpmaddwd`).

All but words are unsigned to their instructions, so a number in the middle stands for zero, and what this adds to a sum
follows from the weights: the sum begins with its opposite.

Two kinds are no integers, have weights of their own kind, and sums of float32 that begin with the bias:

* `pairs` of bfloat16, whose products are added to a sum at once (`vpdpbf16ps`, and AMX's `tdpbf16ps`);
* `floats`, float32 as they are.
"""

from typing import Any, Literal, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F16, F32, I8, I16, I64, POINTER, Emitter, Value

Kind = Literal["bytes", "halves", "sextets", "words", "pairs", "floats"]

HALF_BITS = 6
_MOST_HALF = 65504.0  # the greatest number of float16


class Tile(NamedTuple):
    """What is summed at a time, in registers."""

    lanes: int
    """32-bit numbers in a register."""
    vectors: int
    """Registers of outputs."""
    rows: int
    kind: Kind
    """What rows are rounded to."""
    amx: bool = False
    """Whether rows are multiplied by AMX: of integers, many rows, whose sums are the same; of pairs, all."""

    @property
    def is_float(self) -> bool:
        """Whether what is multiplied are floats, as they are or rounded to bfloat16, and no scaled integers."""
        return self.kind in ("pairs", "floats")

    @property
    def levels(self) -> int:
        """Of an activation, on either side of 0; so few of 12 bits that sums of `most_inputs` products fit in 32."""
        return {"bytes": 127, "halves": 2047, "sextets": 31, "words": 2047}[self.kind]

    @property
    def zero(self) -> int:
        """The number that stands for 0."""
        return {"bytes": 128, "halves": 2048, "sextets": 32, "words": 0}[self.kind]

    @property
    def most_inputs(self) -> int:
        """Of a product: D."""
        return 8192 if self.kind in ("halves", "words") else 65_536

    @property
    def element(self) -> Any:
        """The type of an activation, or of half of one."""
        return {"floats": F32, "pairs": I16, "words": I16}.get(self.kind, I8)

    @property
    def weight(self) -> Any:
        """The type of a weight."""
        return self.element if self.is_float else I8

    @property
    def weight_bytes(self) -> int:
        """Of a weight."""
        return {"floats": 4, "pairs": 2}.get(self.kind, 1)

    @property
    def planes(self) -> int:
        """Elements of an activation: a row of D stands as the first of all, then the second of all."""
        return 2 if self.kind == "halves" else 1

    @property
    def group(self) -> int:
        """Inputs that are 32 bits together."""
        return {"floats": 1, "pairs": 2, "words": 2}.get(self.kind, 4)

    @property
    def groups(self) -> int:
        """Whose products are added before they join a sum."""
        return 2 if self.kind == "sextets" else 1

    @property
    def columns(self) -> int:
        """Outputs of a block of weights: C."""
        return self.lanes * self.vectors

    @property
    def finer(self) -> "Tile":
        """The same machine's products of activations of 12 bits."""
        return self._replace(kind="halves" if self.kind == "bytes" else "words")


WIDE = Tile(lanes=16, vectors=4, rows=6, kind="bytes")  # 24 sums in 32 registers of 512 bits
NARROW = Tile(lanes=8, vectors=2, rows=6, kind="bytes")  # 12 sums in 16 registers of 256 bits
MOST_LANES = WIDE.lanes


class Place(NamedTuple):
    """Arguments of a function that multiplies a few rows by one block of weights."""

    rounded: Value
    scales: Value
    width: Value
    weights: Value
    start: Value
    steps: Value
    bias: Value
    out: Value
    stride: Value


PLACE: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, POINTER, POINTER, POINTER, POINTER, I64)
"""The types of a `Place`."""


def result_type(ending: str) -> Any:
    """The type of a number of the results."""
    return F16 if ending == "half" else F32


def finish(k: Emitter, place: Place, ending: str, row: Value | int, sums: dict[int, Value]) -> None:
    """From a row's sums of integers, whole vectors by their number, to what they stand for, which is put in place."""
    scale = k.splat(k.load(k.at(place.scales, row)))
    for vector, total in sums.items():
        column = vector * k.lanes
        size = k.build.fmul(scale, k.load_floats(place.steps, column))
        value = k.madd(k.build.sitofp(total, k.floats), size, k.load_floats(place.bias, column))
        put(k, place, ending, row, vector, value)


def put(k: Emitter, place: Place, ending: str, row: Value | int, vector: int, value: Value) -> None:
    """Stores a vector of a row's results, or adds it to what is there."""
    there = k.at(place.out, k.sum_of(k.times(place.stride, row), vector * k.lanes), result_type(ending))
    if ending == "relu":
        value = k.greater(value, k.splat(0.0))
    elif ending == "add":
        value = k.build.fadd(value, k.load(there, k.floats))
    elif ending == "half":
        value = k.greater(k.splat(-_MOST_HALF), value)
        value = k.build.select(k.build.fcmp_ordered(">", value, k.splat(_MOST_HALF)), k.splat(_MOST_HALF), value)
        value = k.build.fptrunc(value, ir.VectorType(F16, k.lanes))
    k.store(value, there)


def join_halves(k: Emitter, high: Value) -> Value:
    """What the sum of the high halves' products is worth; what overflows on the way comes back with the low ones."""
    return k.build.shl(high, ir.Constant(k.ints, [HALF_BITS] * k.lanes))
