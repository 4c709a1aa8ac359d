"""Compute dropout, sums over rows, the gradient of embeddings, and the softmax of rows."""

import triton
import triton.language as tl


@triton.jit
def _hash(x, seed):
    """Return a 32-bit hash of two rounds, in which every output bit depends on all input bits."""
    x = x ^ seed.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16) ^ (seed >> 32).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["seed"])
def drop(
    residual, x, out, seed, count, drop_of_256, scale,
    HAS_RESIDUAL: tl.constexpr, SEED_IS_PLACE: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Compute residual + dropout(x), EIGHTS groups of 8 elements per program.

    Each element is dropped by its own random byte; the 8 elements of a group share two hashes. With SEED_IS_PLACE,
    `seed` is an address.
    """
    if SEED_IS_PLACE:
        seed = tl.load(seed)
    eighths = tl.program_id(0) * EIGHTS + tl.arange(0, EIGHTS)
    lanes = tl.arange(0, 8)[None, :]
    offsets = eighths[:, None].to(tl.int64) * 8 + lanes
    exist = offsets < count
    words = tl.where(
        lanes < 4, _hash(eighths.to(tl.uint32) * 2, seed)[:, None], _hash(eighths.to(tl.uint32) * 2 + 1, seed)[:, None]
    )
    is_kept = ((words >> ((lanes & 3) * 8).to(tl.uint32)) & 255).to(tl.int32) >= drop_of_256
    values = tl.where(is_kept, tl.load(x + offsets, mask=exist, other=0.0).to(tl.float32) * scale, 0.0)
    if HAS_RESIDUAL:
        values += tl.load(residual + offsets, mask=exist, other=0.0).to(tl.float32)
    tl.store(out + offsets, values.to(out.dtype.element_ty), mask=exist)


@triton.jit
def sum_rows(
    x, kept, out, total, count, width, rows_each,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the sum of rows to `total`; with MASKED only where `kept` is positive.

    With MASKED, the masked rows are stored to `out`.
    """
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * rows_each
    sums = tl.zeros((ROWS, BLOCK), tl.float32)  # reduced across threads only at the end
    for start in range(first, tl.minimum(first + rows_each, count), ROWS):
        rows = start + tl.arange(0, ROWS)
        exist = (rows < count)[:, None] & (lanes < width)[None, :]
        offsets = rows[:, None].to(tl.int64) * width + lanes[None, :]
        values = tl.load(x + offsets, mask=exist, other=0.0)
        if MASKED:
            is_open = tl.load(kept + offsets, mask=exist, other=0.0).to(tl.float32) > 0
            values = tl.where(is_open, values, 0.0).to(values.dtype)
            tl.store(out + offsets, values, mask=exist)
        sums += values.to(tl.float32)
    tl.atomic_add(total + lanes, tl.sum(sums, axis=0), mask=lanes < width)


@triton.jit
def add_rows(total, ids, part, factor, frozen_row, width, BLOCK: tl.constexpr):
    """Add factor × a row of `part` to the row ids[n] of `total`, except to the frozen row."""
    row, lanes = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target_row = tl.load(ids + row)
    values = tl.load(part + row.to(tl.int64) * width + lanes, mask=lanes < width, other=0.0).to(tl.float32)
    values *= tl.where(target_row == frozen_row, 0.0, factor)
    tl.atomic_add(total + target_row * width + lanes, values, mask=lanes < width)


@triton.jit
def softmax_(logits, normalizers, width, BLOCK: tl.constexpr):
    """Replace one row of logits per program by its softmax, and store its log-sum-exp."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * width
    lanes = tl.arange(0, BLOCK)
    greatest = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        values = tl.load(start + first + lanes, mask=first + lanes < width, other=float("-inf")).to(tl.float32)
        more = tl.maximum(greatest, values)
        # Lanes that have seen only -inf would give NaN.
        sums = tl.where(more == float("-inf"), 0.0, sums * tl.exp(greatest - more) + tl.exp(values - more))
        greatest = more
    top = tl.max(greatest, axis=0)
    normalizer = top + tl.log(tl.sum(tl.where(greatest == float("-inf"), 0.0, sums * tl.exp(greatest - top)), axis=0))
    tl.store(normalizers + row, normalizer)
    for first in range(0, width, BLOCK):
        inside = first + lanes < width
        values = tl.load(start + first + lanes, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(start + first + lanes, tl.exp(values - normalizer).to(logits.dtype.element_ty), mask=inside)
