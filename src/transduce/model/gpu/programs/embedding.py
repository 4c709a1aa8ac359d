"""Embed the newest tokens."""

import triton
import triton.language as tl


@triton.jit
def embed(
    pieces, weight, table, position, out, scale, offset, width,
    PLACED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute scale × embedding for one token per program; with PLACED, add the position encoding.

    The embedding is rounded before the addition, as in the model's own module.
    """
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = lanes < width
    x = tl.load(weight + tl.load(pieces + row) * width + lanes, mask=inside, other=0.0).to(tl.float32) * scale
    if PLACED:
        encoding = table + (tl.load(position) + offset) * width + lanes
        x = x.to(out.dtype.element_ty).to(tl.float32) + tl.load(encoding, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + lanes, x.to(out.dtype.element_ty), mask=inside)
