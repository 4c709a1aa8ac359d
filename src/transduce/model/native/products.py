"""Kernels of 8-bit products: rows are rounded, multiplied by weights in blocks, and scaled back.

Activations are unsigned to the instruction (`vpdpbusd` adds groups of four products to a sum of 32 bits), so 128 stands
for zero, and what this adds to a sum follows from the weights: the sum begins with its opposite. Where there is no such
instruction, pairs of products are added in 16 bits first, and activations have 7 bits so that nothing overflows.
Legend: N rows, D inputs, O outputs, C outputs of a block of weights.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import I8, I16, I32, I64, POINTER, Emitter, Value

_LEAST = 1e-30  # a row of zeros is divided by this


class Tile(NamedTuple):
    """What is summed at a time, in registers."""

    lanes: int
    """32-bit numbers in a register."""
    vectors: int
    """Registers of outputs."""
    rows: int
    adds_four: bool
    """Whether there is an instruction that adds four products in 32 bits."""

    @property
    def levels(self) -> int:
        """Of an activation, on either side of 0."""
        return 127 if self.adds_four else 63

    @property
    def zero(self) -> int:
        """The byte that stands for 0."""
        return self.levels + 1

    @property
    def columns(self) -> int:
        """Outputs of a block of weights: C."""
        return self.lanes * self.vectors


WIDE = Tile(lanes=16, vectors=4, rows=6, adds_four=True)  # 24 sums in 32 registers of 512 bits
NARROW = Tile(lanes=8, vectors=2, rows=6, adds_four=True)  # 12 sums in 16 registers of 256 bits
MOST_LANES = WIDE.lanes
ENDINGS = ("store", "relu", "add")


def write_rounding(k: Emitter, tile: Tile) -> None:
    """`round(x, N, D, rounded, scales, thread, threads)`: rows (N, D) to unsigned bytes, and what a step is worth."""
    with k.function("round", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (
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
                k.store(_greater(k, k.get(most, size), size), most)
            greatest = k.greatest(k.get(most, k.splat(0.0)))
            greatest = k.build.select(k.build.fcmp_ordered("<", greatest, k.real(_LEAST)), k.real(_LEAST), greatest)
            k.store(k.build.fdiv(greatest, k.real(float(tile.levels))), k.at(scales, row))
            inverse = k.splat(k.build.fdiv(k.real(float(tile.levels)), greatest))
            there = k.at(rounded, k.times(row, width), I8)
            with k.loop(0, width, k.lanes) as column:
                scaled = k.build.fmul(k.load_floats(here, column), inverse)
                whole = k.build.fptosi(k.intrinsic(f"llvm.rint.v{k.lanes}f32", k.floats, scaled), k.ints)
                moved = k.build.add(whole, ir.Constant(k.ints, [tile.zero] * k.lanes))
                k.store(k.build.trunc(moved, ir.VectorType(I8, k.lanes)), k.at(there, column, I8))


def _greater(k: Emitter, one: Value, other: Value) -> Value:
    return k.build.select(k.build.fcmp_ordered(">", one, other), one, other)


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
    """`product_…(rounded, scales, N, D, weights, start, steps, bias, O, out, thread, threads)` for each ending.

    rounded (N, D) and scales (N,) come from `round`; weights from `pack`; start, steps and bias are (O,), O a multiple
    of C; out is (N, O): "store" writes, "relu" writes what is positive, "add" adds to what is there.
    """
    for ending in endings:
        for rows in range(1, tile.rows + 1):
            with k.function(f"tile_{ending}_{rows}", *_TILE) as arguments:
                _write_tile(k, tile, rows, ending, _Place(*arguments))
        _write_product(k, tile, ending)


def _write_product(k: Emitter, tile: Tile, ending: str) -> None:
    kinds = (POINTER, POINTER, I64, I64, POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, I64)
    with k.function(f"product_{ending}", *kinds) as arguments:
        rounded, scales, rows, width, weights, start, steps, bias, outputs, out, *share = arguments
        first, last = k.share(k.build.sdiv(outputs, k.number(tile.columns)), *share)
        whole = k.times(k.build.sdiv(rows, k.number(tile.rows)), tile.rows)

        def call(count: int, row: Value, block: Value) -> None:
            column = k.times(block, tile.columns)
            k.call(
                f"tile_{ending}_{count}",
                k.at(rounded, k.times(row, width), I8),
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
    with k.loop(0, place.width, 4) as four:
        line = k.at(place.weights, k.times(four, tile.columns), I8)
        weights = [k.load(k.at(line, v * 4 * tile.lanes, I8), k.ints) for v in range(tile.vectors)]
        for row in range(rows):
            inputs = k.at(place.rounded, k.sum_of(k.times(place.width, row), four), I8)
            spread = k.splat(k.load(inputs, I32))
            for vector, own in enumerate(weights):
                found = _multiply(k, tile, k.get(sums[row][vector], like), spread, own)
                k.store(found, sums[row][vector])
    for row in range(rows):
        scale = k.splat(k.load(k.at(place.scales, row)))
        for vector in range(tile.vectors):
            column = vector * tile.lanes
            size = k.build.fmul(scale, k.load_floats(place.steps, column))
            exact = k.build.sitofp(k.get(sums[row][vector], like), k.floats)
            value = k.madd(exact, size, k.load_floats(place.bias, column))
            there = k.at(place.out, k.sum_of(k.times(place.stride, row), column))
            if ending == "relu":
                value = _greater(k, value, k.splat(0.0))
            elif ending == "add":
                value = k.build.fadd(value, k.load(there, k.floats))
            k.store(value, there)


def _multiply(k: Emitter, tile: Tile, total: Value, inputs: Value, weights: Value) -> Value:
    """Adds to each sum four products of bytes."""
    bits = 32 * k.lanes
    quarters, halves = ir.VectorType(I8, 4 * k.lanes), ir.VectorType(I16, 2 * k.lanes)
    operands = (k.build.bitcast(inputs, quarters), k.build.bitcast(weights, quarters))
    if tile.adds_four:
        return k.intrinsic(f"llvm.x86.avx512.vpdpbusd.{bits}", k.ints, total, *operands)
    in_pairs, to_sums = _PAIRS[bits]
    pairs = k.intrinsic(in_pairs, halves, *operands)
    ones = ir.Constant(halves, [1] * 2 * k.lanes)
    return k.build.add(total, k.intrinsic(to_sums, k.ints, pairs, ones))


_PAIRS = {
    256: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    512: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
