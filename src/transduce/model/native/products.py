"""Kernels of products with 8-bit weights: rows are rounded, multiplied by weights in blocks, and scaled back.

What rows are rounded to is one of three kinds of integers:

* `bytes`, where an instruction adds four products of bytes to a sum of 32 bits (`vpdpbusd`);
* `sextets` of 6 bits elsewhere: four products are added in 16 bits first (`vpmaddubsw`), which bytes would overflow;
* `words` of 12 bits, of which pairs of products are added in 32 bits (`vpmaddwd`): more exact, and slower.

Bytes and sextets are unsigned to their instructions, so a number in the middle stands for zero, and what this adds to a
sum follows from the weights: the sum begins with its opposite.
Legend: N rows, D inputs, O outputs, C outputs of a block of weights.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import I8, I16, I32, I64, POINTER, Emitter, Value

_LEAST = 1e-30  # a row of zeros is divided by this

Kind = Literal["bytes", "sextets", "words"]


class Tile(NamedTuple):
    """What is summed at a time, in registers."""

    lanes: int
    """32-bit numbers in a register."""
    vectors: int
    """Registers of outputs."""
    rows: int
    kind: Kind
    """What rows are rounded to."""

    @property
    def levels(self) -> int:
        """Of an activation, on either side of 0; so few words that sums of `most_inputs` products fit in 32 bits."""
        return {"bytes": 127, "sextets": 31, "words": 2047}[self.kind]

    @property
    def zero(self) -> int:
        """The number that stands for 0."""
        return {"bytes": 128, "sextets": 32, "words": 0}[self.kind]

    @property
    def most_inputs(self) -> int:
        """Of a product: D."""
        return 8192 if self.kind == "words" else 65_536

    @property
    def element(self) -> Any:
        """The type of an activation."""
        return I16 if self.kind == "words" else I8

    @property
    def group(self) -> int:
        """Inputs that are 32 bits together."""
        return 2 if self.kind == "words" else 4

    @property
    def groups(self) -> int:
        """Whose products are added before they join a sum."""
        return 2 if self.kind == "sextets" else 1

    @property
    def columns(self) -> int:
        """Outputs of a block of weights: C."""
        return self.lanes * self.vectors


WIDE = Tile(lanes=16, vectors=4, rows=6, kind="bytes")  # 24 sums in 32 registers of 512 bits
NARROW = Tile(lanes=8, vectors=2, rows=6, kind="bytes")  # 12 sums in 16 registers of 256 bits
MOST_LANES = WIDE.lanes
ENDINGS = ("store", "relu", "add")


def write_rounding(k: Emitter, tile: Tile) -> None:
    """`round_<kind>(x, N, D, rounded, scales, thread, threads)`: rows (N, D) to integers, and what a step is worth."""
    with k.function(f"round_{tile.kind}", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (
        x,
        rows,
        width,
        rounded,
        scales,
        *share,
    ):
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            here = k.at(x, k.times(row, width))
            most = k.variable(k.splat(0.0))
            with k.loop(0, width, k.lanes) as column:
                size = k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, k.load_floats(here, column))
                k.store(k.greater(k.get(most, size), size), most)
            greatest = k.greatest(k.get(most, k.splat(0.0)))
            greatest = k.greater(greatest, k.real(_LEAST))
            k.store(k.build.fdiv(greatest, k.real(float(tile.levels))), k.at(scales, row))
            inverse = k.splat(k.build.fdiv(k.real(float(tile.levels)), greatest))
            there = k.at(rounded, k.times(row, width), tile.element)
            with k.loop(0, width, k.lanes) as column:
                scaled = k.build.fmul(k.load_floats(here, column), inverse)
                whole = k.build.fptosi(k.intrinsic(f"llvm.rint.v{k.lanes}f32", k.floats, scaled), k.ints)
                moved = k.build.add(whole, ir.Constant(k.ints, [tile.zero] * k.lanes))
                narrow = k.build.trunc(moved, ir.VectorType(tile.element, k.lanes))
                k.store(narrow, k.at(there, column, tile.element))


class _Place(NamedTuple):
    """Arguments of a tile."""

    rounded: Value
    scales: Value
    width: Value
    weights: Value
    start: Value
    steps: Value
    bias: Value
    out: Value
    stride: Value


_TILE: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, POINTER, POINTER, POINTER, POINTER, I64)


def write_products(k: Emitter, tile: Tile, endings: Sequence[str] = ENDINGS) -> None:
    """`product_<kind>_…(rounded, scales, N, D, weights, start, steps, bias, O, out, thread, threads)` for each ending.

    rounded (N, D) and scales (N,) come from `round_<kind>`; weights, start, steps and bias (O,) from `NativeLinear`, O
    a multiple of C; out is (N, O): "store" writes, "relu" writes what is positive, "add" adds to what is there.
    """
    for ending in endings:
        for rows in range(1, tile.rows + 1):
            with k.function(f"tile_{tile.kind}_{ending}_{rows}", *_TILE) as arguments:
                _write_tile(k, tile, rows, ending, _Place(*arguments))
        _write_product(k, tile, ending)


def _write_product(k: Emitter, tile: Tile, ending: str) -> None:
    kinds = (POINTER, POINTER, I64, I64, POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, I64)
    with k.function(f"product_{tile.kind}_{ending}", *kinds) as arguments:
        rounded, scales, rows, width, weights, start, steps, bias, outputs, out, *share = arguments
        first, last = k.share(k.build.sdiv(outputs, k.number(tile.columns)), *share)
        whole = k.times(k.build.sdiv(rows, k.number(tile.rows)), tile.rows)

        def call(count: int, row: Value, block: Value) -> None:
            column = k.times(block, tile.columns)
            k.call(
                f"tile_{tile.kind}_{ending}_{count}",
                k.at(rounded, k.times(row, width), tile.element),
                k.at(scales, row),
                width,
                k.at(weights, k.times(column, width), I8),
                k.at(start, column, I32),
                k.at(steps, column),
                k.at(bias, column),
                k.at(out, k.sum_of(k.times(row, outputs), column)),
                outputs,
            )

        with k.loop(first, last) as block:
            with k.loop(0, whole, tile.rows) as row:
                call(tile.rows, row, block)
            for count in range(1, tile.rows):
                left = k.build.icmp_signed("==", k.build.sub(rows, whole), k.number(count))
                with k.where(left):
                    call(count, whole, block)


def _write_tile(k: Emitter, tile: Tile, rows: int, ending: str, place: _Place) -> None:
    """One block of outputs of a few rows."""
    sums = []
    for _ in range(rows):
        starts = [k.load(k.at(place.start, v * tile.lanes, I32), k.ints) for v in range(tile.vectors)]
        sums.append([k.variable(start) for start in starts])
    like = ir.Constant(k.ints, ir.Undefined)
    with k.loop(0, place.width, tile.group * tile.groups) as first:
        line = k.at(place.weights, k.times(first, tile.columns), I8)
        weights = [_load_weights(k, tile, line, number) for number in range(tile.groups * tile.vectors)]
        for row in range(rows):
            inputs = k.at(place.rounded, k.sum_of(k.times(place.width, row), first), tile.element)
            spread = [k.splat(k.load(k.at(inputs, g * tile.group, tile.element), I32)) for g in range(tile.groups)]
            for vector in range(tile.vectors):
                total = k.get(sums[row][vector], like)
                k.store(_multiply(k, tile, total, spread, weights[vector :: tile.vectors]), sums[row][vector])
    for row in range(rows):
        scale = k.splat(k.load(k.at(place.scales, row)))
        for vector in range(tile.vectors):
            column = vector * tile.lanes
            size = k.build.fmul(scale, k.load_floats(place.steps, column))
            exact = k.build.sitofp(k.get(sums[row][vector], like), k.floats)
            value = k.madd(exact, size, k.load_floats(place.bias, column))
            there = k.at(place.out, k.sum_of(k.times(place.stride, row), column))
            if ending == "relu":
                value = k.greater(value, k.splat(0.0))
            elif ending == "add":
                value = k.build.fadd(value, k.load(there, k.floats))
            k.store(value, there)


def _load_weights(k: Emitter, tile: Tile, line: Value, number: int) -> Value:
    """The vector of this number, as wide as the activations."""
    count = tile.group * k.lanes
    weights = k.load(k.at(line, number * count, I8), ir.VectorType(I8, count))
    return k.build.sext(weights, ir.VectorType(I16, count)) if tile.kind == "words" else weights


def _multiply(k: Emitter, tile: Tile, total: Value, inputs: Sequence[Value], weights: Sequence[Value]) -> Value:
    """Adds the products of all groups to a vector of sums."""
    groups = [(k.build.bitcast(one, other.type), other) for one, other in zip(inputs, weights, strict=True)]
    if tile.kind == "bytes":
        return k.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * k.lanes}", k.ints, total, *groups[0])
    if tile.kind == "sextets":
        halves = ir.VectorType(I16, 2 * k.lanes)
        pairs = (k.intrinsic(_BYTES_TO_PAIRS[k.lanes], halves, *group) for group in groups)
        groups = [(k.build.add(*pairs), ir.Constant(halves, [1] * 2 * k.lanes))]
    return k.build.add(total, k.intrinsic(_WORDS_TO_SUMS[k.lanes], k.ints, *groups[0]))


_BYTES_TO_PAIRS = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WORDS_TO_SUMS = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
