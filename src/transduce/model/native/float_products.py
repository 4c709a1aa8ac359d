"""Products of a few rows by one block of weights where both are floats: bfloat16, or float32 as they are.

Legend: N rows, D inputs.
"""

from transduce.model.native.emit import I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.pair_products import multiply_pairs
from transduce.model.native.tile import Place, Tile, put

_UNROLLED = {1: 4, 2: 4}  # steps along the inputs at a time, by rows; of more rows there is enough to do in one


def write_pairing(k: Emitter) -> None:
    """`round_pairs(x, N, D, rounded, scales, thread, threads)`: rows (N, D) to bfloat16."""
    with k.function("round_pairs", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (x, rows, width, out, _, *share):
        first, last = k.share(rows, *share)
        with k.loop(k.times(first, width), k.times(last, width), k.lanes) as place:
            k.store(k.narrow(k.load_floats(x, place)), k.at(out, place, I16))


def write_float_tile(k: Emitter, tile: Tile, rows: int, ending: str, place: Place) -> None:
    """One block of outputs of a few rows. A row's sum has the same order whatever rows there are."""
    starts = [k.load_floats(place.bias, vector * tile.lanes) for vector in range(tile.vectors)]
    sums = [[k.variable(start) for start in starts] for _ in range(rows)]
    steps = _UNROLLED.get(rows, 1)
    with k.loop(0, place.width, tile.group * steps) as first:
        for number in (k.sum_of(first, step * tile.group) for step in range(steps)):
            line = k.at(place.weights, k.times(number, tile.columns), tile.weight)
            weights = [k.load(k.at(line, vector * tile.lanes, I32), k.ints) for vector in range(tile.vectors)]
            for row, totals in enumerate(sums):
                here = k.at(place.rounded, k.sum_of(k.times(place.width, row), number), tile.element)
                factor = k.splat(k.load(here, I32))
                for total, own in zip(totals, weights, strict=True):
                    k.store(_multiply(k, tile, k.get(total, starts[0]), factor, own), total)
    for row, totals in enumerate(sums):
        for vector, total in enumerate(totals):
            put(k, place, ending, row, vector, k.get(total, starts[0]))


def _multiply(k: Emitter, tile: Tile, total: Value, one: Value, other: Value) -> Value:
    """Adds the products of 32 bits of each, a float32 or a pair of bfloat16."""
    if tile.kind == "pairs":
        return multiply_pairs(k, total, one, other)
    return k.madd(k.build.bitcast(one, k.floats), k.build.bitcast(other, k.floats), total)
