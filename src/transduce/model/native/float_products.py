"""Emit floating-point GEMM micro-kernels of decoding: a few rows by one block of weights, in bfloat16 or float32.

Legend: N rows, D inputs.
"""

from transduce.model.native.emit import I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.pair_products import multiply_pairs
from transduce.model.native.tile import Place, Tile, put

_UNROLLED = {1: 4, 2: 4}  # loop unrolling along the inputs by number of rows; more rows hide the latency by themselves


def write_pairing(k: Emitter) -> None:
    """Emit `round_pairs(x, N, D, rounded, scales, thread, threads)`: convert float32 rows (N, D) to bfloat16."""
    with k.function("round_pairs", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (x, rows, width, out, _, *share):
        first, last = k.share(rows, *share)
        with k.loop(k.times(first, width), k.times(last, width), k.lanes) as index:
            k.store(k.narrow(k.load_floats(x, index)), k.at(out, index, I16))


def write_float_tile(k: Emitter, tile: Tile, rows: int, ending: str, place: Place) -> None:
    """Emit the micro-kernel for one block of outputs of `rows` rows.

    Each row's sum is added in the same order whatever the number of rows, so results do not depend on the batch.
    """
    starts = [k.load_floats(place.bias, vector * tile.lanes) for vector in range(tile.vectors)]
    sums = [[k.variable(start) for start in starts] for _ in range(rows)]
    steps = _UNROLLED.get(rows, 1)
    with k.loop(0, place.width, tile.group * steps) as first:
        for position in (k.sum_of(first, step * tile.group) for step in range(steps)):
            line = k.at(place.weights, k.times(position, tile.columns), tile.weight)
            weights = [k.load(k.at(line, vector * tile.lanes, I32), k.ints) for vector in range(tile.vectors)]
            for row, totals in enumerate(sums):
                source = k.at(place.rounded, k.sum_of(k.times(place.width, row), position), tile.element)
                factor = k.splat(k.load(source, I32))
                for total, weight in zip(totals, weights, strict=True):
                    k.store(_multiply(k, tile, k.get(total, starts[0]), factor, weight), total)
    for row, totals in enumerate(sums):
        for vector, total in enumerate(totals):
            put(k, place, ending, row, vector, k.get(total, starts[0]))


def _multiply(k: Emitter, tile: Tile, total: Value, one: Value, other: Value) -> Value:
    """Multiply 32-bit elements (a float32, or a pair of bfloat16 each) and add the products to a vector of sums."""
    if tile.kind == "pairs":
        return multiply_pairs(k, total, one, other)
    return k.madd(k.build.bitcast(one, k.floats), k.build.bitcast(other, k.floats), total)
