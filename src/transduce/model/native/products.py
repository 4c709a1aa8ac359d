"""Emit GEMM kernels of decoding: rows are quantized, multiplied by blocks of prepacked weights, and dequantized.

Legend: N rows, D inputs, O outputs, C outputs per block of weights.
"""

from collections.abc import Sequence

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.emit import I8, I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.float_products import write_float_tile, write_pairing
from transduce.model.native.tile import HALF_BITS, PLACE, Place, Tile, finish, join_halves, result_type

_LEAST = 1e-30  # lower bound on a row's greatest magnitude, against division by zero
ENDINGS = ("store", "relu", "add", "half")
"""Epilogues of the GEMM kernels: see `write_products`."""


def write_rounding(k: Emitter, tile: Tile) -> None:
    """Emit `round_<kind>(x, N, D, rounded, scales, thread, threads)`, which quantizes float32 rows x (N, D).

    For integer tiles it writes the quantized rows and each row's scale, float32 (N,). For `pairs` it converts to
    bfloat16 and leaves `scales` alone. Tiles of kind `floats` need no such function.
    """
    if tile.is_float:
        write_pairing(k)
        return
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
            source = k.at(x, k.times(row, width))
            maxima = k.sums()
            for column, number in k.each_vector(width):
                size = k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, k.load_floats(source, column))
                k.add_to(maxima, number, size, k.greater)
            greatest = k.greater(k.greatest(k.joined(maxima, k.greater)), k.real(_LEAST))
            k.store(k.build.fdiv(greatest, k.real(float(tile.levels))), k.at(scales, row))
            inverse = k.splat(k.build.fdiv(k.real(float(tile.levels)), greatest))
            target = k.at(rounded, k.times(row, width, tile.planes), tile.element)
            for column, _ in k.each_vector(width):
                rounded_values = k.nearest(k.build.fmul(k.load_floats(source, column), inverse))
                shifted = k.build.add(rounded_values, ir.Constant(k.ints, [tile.zero] * k.lanes))
                planes = [shifted]
                if tile.planes == 2:
                    planes = [
                        k.build.lshr(shifted, k.all_ints(HALF_BITS)),
                        k.build.and_(shifted, k.all_ints(2**HALF_BITS - 1)),
                    ]
                for number, plane in enumerate(planes):
                    narrow = k.build.trunc(plane, ir.VectorType(tile.element, k.lanes))
                    k.store(narrow, k.at(target, k.sum_of(column, k.times(width, number)), tile.element))


def write_products(k: Emitter, tile: Tile, endings: Sequence[str] = ENDINGS) -> None:
    """Emit `product_<kind>_<ending>(rounded, scales, N, D, weights, start, steps, bias, O, out, thread, threads)`.

    The function computes out = rounded · weightsᵀ + bias, (N, O).

    Args:
        k: the IR builder.
        tile: the tile. rounded (N, D) and scales (N,) come from `round_<kind>`; float32 rows are passed unchanged. With
            AMX, `amx.MORE_ROWS` rows behind the last one must be readable. weights, start, steps and bias (O,) are
            those of `NativeLinear`, and O is a multiple of C.
        endings: the epilogues to emit a function for: "store"; "relu", which applies ReLU; "add", which adds to what
            out holds; "half", which clamps to float16's range and writes float16.
    """
    for ending in endings:
        for rows in range(1, tile.rows + 1):
            with k.function(f"tile_{tile.kind}_{ending}_{rows}", *PLACE) as arguments:
                micro_kernel = write_float_tile if tile.is_float else _write_tile
                micro_kernel(k, tile, rows, ending, Place(*arguments))
        if tile.amx:
            amx.write_blocks(k, tile, ending)
        _write_product(k, tile, ending)


def _write_product(k: Emitter, tile: Tile, ending: str) -> None:
    """Emit `product_<kind>_<ending>`, in which each thread computes some blocks of outputs."""
    kinds = (POINTER, POINTER, I64, I64, POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, I64)
    with k.function(f"product_{tile.kind}_{ending}", *kinds) as arguments:
        rounded, scales, rows, width, weights, start, steps, bias, outputs, out, *share = arguments
        first, last = k.share(k.build.sdiv(outputs, k.number(tile.columns)), *share)
        full_rows = k.times(k.build.sdiv(rows, k.number(tile.rows)), tile.rows)

        def arguments_at(row: Value, block: Value) -> Place:
            """Return the micro-kernel's arguments for rows from `row` on and a block of outputs."""
            column = k.times(block, tile.columns)
            return Place(
                k.at(rounded, k.times(row, width, tile.planes), tile.element),
                k.at(scales, row),
                width,
                k.at(weights, k.times(column, width), tile.weight),
                k.at(start, column, I32),
                k.at(steps, column),
                k.at(bias, column),
                k.at(out, k.sum_of(k.times(row, outputs), column), result_type(ending)),
                outputs,
            )

        def by_vectors() -> None:
            """Emit the multiplication by vector instructions."""
            with k.loop(first, last) as block:
                with k.loop(0, full_rows, tile.rows) as row:
                    k.call(f"tile_{tile.kind}_{ending}_{tile.rows}", *arguments_at(row, block))
                for count in range(1, tile.rows):
                    has_count = k.build.icmp_signed("==", k.build.sub(rows, full_rows), k.number(count))
                    with k.where(has_count):
                        k.call(f"tile_{tile.kind}_{ending}_{count}", *arguments_at(full_rows, block))

        if not tile.amx:
            by_vectors()
            return
        with k.build.if_else(amx.pays(k, tile, rows, width)) as (use_amx, use_vectors):
            with use_amx:
                amx.configure(k)
                with k.loop(first, last) as block:
                    amx.write_rows(k, tile, ending, rows, lambda row: arguments_at(row, block))
                amx.release(k)
            with use_vectors:
                by_vectors()


def _write_tile(k: Emitter, tile: Tile, rows: int, ending: str, place: Place) -> None:
    """Emit the integer micro-kernel: a few rows by one block of C outputs."""
    starts = [k.load(k.at(place.start, v * tile.lanes, I32), k.ints) for v in range(tile.vectors)]
    begin = [k.all_ints(0)] * tile.vectors if tile.planes == 2 else starts
    sums = [[k.variable(start) for start in begin] for _ in range(rows)]
    like = ir.Constant(k.ints, ir.Undefined)
    row_width = k.times(place.width, tile.planes)
    for plane in range(tile.planes):
        with k.loop(0, place.width, tile.group * tile.groups) as first:
            line = k.at(place.weights, k.times(first, tile.columns), I8)
            weights = [_load_weights(k, tile, line, number) for number in range(tile.groups * tile.vectors)]
            offset = k.sum_of(k.times(place.width, plane), first)
            for row in range(rows):
                inputs = k.at(place.rounded, k.sum_of(k.times(row_width, row), offset), tile.element)
                spread = [k.splat(k.load(k.at(inputs, g * tile.group, tile.element), I32)) for g in range(tile.groups)]
                for vector in range(tile.vectors):
                    total = k.get(sums[row][vector], like)
                    k.store(_multiply(k, tile, total, spread, weights[vector :: tile.vectors]), sums[row][vector])
        if tile.planes == 2 and plane == 0:
            for row in range(rows):
                for vector, start in enumerate(starts):
                    high = join_halves(k, k.get(sums[row][vector], like))
                    k.store(k.build.add(high, start), sums[row][vector])
    for row in range(rows):
        finish(k, place, ending, row, {vector: k.get(sums[row][vector], like) for vector in range(tile.vectors)})


def _load_weights(k: Emitter, tile: Tile, line: Value, number: int) -> Value:
    """Load the weight vector of this index of a line, widened to 16 bits for `words`."""
    count = tile.group * k.lanes
    weights = k.load(k.at(line, number * count, I8), ir.VectorType(I8, count))
    return k.build.sext(weights, ir.VectorType(I16, count)) if tile.kind == "words" else weights


def _multiply(k: Emitter, tile: Tile, total: Value, inputs: Sequence[Value], weights: Sequence[Value]) -> Value:
    """Multiply the inputs of all groups by their weights, and add the products to a vector of sums."""
    groups = [(k.build.bitcast(one, other.type), other) for one, other in zip(inputs, weights, strict=True)]
    if tile.kind in ("bytes", "halves"):
        return k.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * k.lanes}", k.ints, total, *groups[0])
    if tile.kind == "sextets":
        halves = ir.VectorType(I16, 2 * k.lanes)
        pairs = (k.intrinsic(_BYTES_TO_PAIRS[k.lanes], halves, *group) for group in groups)
        groups = [(k.build.add(*pairs), ir.Constant(halves, [1] * 2 * k.lanes))]
    return k.build.add(total, k.intrinsic(_WORDS_TO_SUMS[k.lanes], k.ints, *groups[0]))


_BYTES_TO_PAIRS = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WORDS_TO_SUMS = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
