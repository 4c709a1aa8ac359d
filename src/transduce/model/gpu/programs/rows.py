"""Dropout, sums over rows, and the softmax of rows."""

import triton
import triton.language as tl


@triton.jit
def _hash(x, seed):
    """Two rounds of a hash of 32 bits, whose every bit depends on all."""
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
    """An element is dropped by a byte of its own; eight that stand together share two hashes."""
    if SEED_IS_PLACE:
        seed = tl.load(seed)
    eighths = tl.program_id(0) * EIGHTS + tl.arange(0, EIGHTS)
    lanes = tl.arange(0, 8)[None, :]
    places = eighths[:, None].to(tl.int64) * 8 + lanes
    exist = places < count
    words = tl.where(
        lanes < 4, _hash(eighths.to(tl.uint32) * 2, seed)[:, None], _hash(eighths.to(tl.uint32) * 2 + 1, seed)[:, None]
    )
    kept = ((words >> ((lanes & 3) * 8).to(tl.uint32)) & 255).to(tl.int32) >= drop_of_256
    values = tl.where(kept, tl.load(x + places, mask=exist, other=0.0).to(tl.float32) * scale, 0.0)
    if HAS_RESIDUAL:
        values += tl.load(residual + places, mask=exist, other=0.0).to(tl.float32)
    tl.store(out + places, values.to(out.dtype.element_ty), mask=exist)


@triton.jit
def sum_rows(
    x, kept, out, total, count, width, rows_each,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds rows up; with MASKED, those elements alone for which `kept` is positive, and writes what they are."""
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * rows_each
    sums = tl.zeros((ROWS, BLOCK), tl.float32)  # added up across threads at the end alone
    for start in range(first, tl.minimum(first + rows_each, count), ROWS):
        rows = start + tl.arange(0, ROWS)
        exist = (rows < count)[:, None] & (lanes < width)[None, :]
        places = rows[:, None].to(tl.int64) * width + lanes[None, :]
        values = tl.load(x + places, mask=exist, other=0.0)
        if MASKED:
            is_open = tl.load(kept + places, mask=exist, other=0.0).to(tl.float32) > 0
            values = tl.where(is_open, values, 0.0).to(values.dtype)
            tl.store(out + places, values, mask=exist)
        sums += values.to(tl.float32)
    tl.atomic_add(total + lanes, tl.sum(sums, axis=0), mask=lanes < width)


@triton.jit
def add_rows(total, ids, part, factor, frozen_row, width, BLOCK: tl.constexpr):
    row, lanes = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(ids + row)
    values = tl.load(part + row.to(tl.int64) * width + lanes, mask=lanes < width, other=0.0).to(tl.float32)
    values *= tl.where(place == frozen_row, 0.0, factor)
    tl.atomic_add(total + place * width + lanes, values, mask=lanes < width)


@triton.jit
def softmax_(logits, normalizers, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * width
    lanes = tl.arange(0, BLOCK)
    greatest = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        values = tl.load(start + first + lanes, mask=first + lanes < width, other=float("-inf")).to(tl.float32)
        more = tl.maximum(greatest, values)
        # A lane that has seen nothing yet has no sum to make smaller.
        sums = tl.where(more == float("-inf"), 0.0, sums * tl.exp(greatest - more) + tl.exp(values - more))
        greatest = more
    top = tl.max(greatest, axis=0)
    normalizer = top + tl.log(tl.sum(tl.where(greatest == float("-inf"), 0.0, sums * tl.exp(greatest - top)), axis=0))
    tl.store(normalizers + row, normalizer)
    for first in range(0, width, BLOCK):
        inside = first + lanes < width
        values = tl.load(start + first + lanes, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(start + first + lanes, tl.exp(values - normalizer).to(logits.dtype.element_ty), mask=inside)
