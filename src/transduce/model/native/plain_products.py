"""Products of matrices of float32, for training where nothing else multiplies faster.

A library's product of float32 knows nothing of biases, ReLU or the sums of gradients, each of which then is a pass of
its own; these do it on the way, and multiply as fast (docs/benchmarks.md).
"""

from transduce.model.native.emit import F32, Value
from transduce.model.native.pair_packing import Layout
from transduce.model.native.pair_products import PairMultiplier


class PlainMultiplier(PairMultiplier):
    """As `PairMultiplier`, with registers of 512 bits."""

    layout = Layout(
        panel=48,
        tile_rows=8,
        least_rows=8,
        together=8,
        block=1 << 18,
        depth=1 << 7,
        sum_tiles=32,
        kind=F32,
    )
    thread_bytes = layout.block_bytes

    def _multiply_and_add(self, factor: Value, column: Value, total: Value) -> Value:
        return self.k.madd(factor, column, total)


class NarrowMultiplier(PlainMultiplier):
    """With registers of 256 bits, of which there are half as many: 12 hold sums."""

    layout = PlainMultiplier.layout._replace(panel=24, tile_rows=4, least_rows=4, sum_tiles=64)
    thread_bytes = layout.block_bytes
