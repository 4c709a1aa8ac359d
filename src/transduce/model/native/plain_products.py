"""Emit the training GEMM for float32, for processors without faster formats.

A library's float32 GEMM does not fuse biases, ReLU or the summation of gradients, each of which takes a pass of its
own. These kernels fuse them and multiply as fast (docs/benchmarks.md).
"""

from transduce.model.native.emit import F32, Value
from transduce.model.native.pair_packing import Layout
from transduce.model.native.pair_products import PairMultiplier


class PlainMultiplier(PairMultiplier):
    """A float32 `PairMultiplier` for registers of 512 bits."""

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
        """Return total + factor · column, element by element."""
        return self.k.madd(factor, column, total)


class NarrowMultiplier(PlainMultiplier):
    """A float32 multiplier for the 16 registers of 256 bits of AVX2, of which 12 hold sums."""

    layout = PlainMultiplier.layout._replace(panel=24, tile_rows=4, least_rows=4, sum_tiles=64)
    thread_bytes = layout.block_bytes
