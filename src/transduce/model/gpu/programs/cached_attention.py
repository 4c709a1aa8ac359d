"""Attention of the newest pieces of one sentence's hypotheses in one head, to as much as is cached.

Legend: Q rows of queries, L keys, K width of a head.
"""

import triton
import triton.language as tl

_HIDDEN = tl.constexpr(-1e30)  # finite, so that a row that may look at nothing stays so


@triton.jit
def _take_in(scores, v, greatest, total, found):
    """One more block of keys: scores (Q, L), in units of log 2, and values (L, K)."""
    more = tl.maximum(greatest, tl.max(scores, axis=1))
    shrink = tl.exp2(greatest - more)
    powers = tl.exp2(scores - more[:, None])
    found = found * shrink[:, None] + tl.dot(powers.to(v.dtype), v, input_precision="ieee")
    return more, total * shrink + tl.sum(powers, axis=1), found


@triton.jit
def _load(place, exist, inner):
    """Keys and values."""
    return tl.load(place, mask=exist, other=0.0), tl.load(place + inner, mask=exist, other=0.0)


@triton.jit
def _append(place, k, v, exist, inner):
    """Keys and values behind what is cached."""
    tl.store(place, k, mask=exist)
    tl.store(place + inner, v, mask=exist)


@triton.jit
def _may_see(scores, entries, rows):
    """Scores (Q, L), hidden where a listed position has no bit for the row."""
    return tl.where(((entries[None, :] >> rows[:, None]) & 1) != 0, scores, _HIDDEN)


@triton.jit(do_not_specialize=["length", "width", "mask_stride", "mask_row_stride"])
def attend_cached(
    query, cache, allowed, listed, counts, out, length, width, inner,
    query_stride, sentence_stride, mask_stride, mask_row_stride, list_stride, scale,
    READ: tl.constexpr, COUNTED: tl.constexpr, LISTED: tl.constexpr, APPENDS: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """With READ, the length stands in the GPU's memory, so that one recorded step serves every length.

    With COUNTED, each sentence has a number of its own of positions to look at: the first ones, or with LISTED those
    that are listed, each with a bit for every hypothesis that may look at it. With APPENDS, keys and values stand
    behind each query. They are written behind what is cached, and each query sees its own alone.
    """
    head, sentence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if READ:
        length = tl.load(length).to(tl.int32)
    count = length
    if COUNTED:
        count = tl.load(counts + sentence)
    rows, lanes = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    exist = (rows < width)[:, None]
    own = query + (sentence * width + rows)[:, None] * query_stride + head * WIDTH + lanes[None, :]
    keys = cache + sentence * sentence_stride + head * WIDTH + lanes[None, :]
    visible = allowed + sentence * mask_stride + rows[:, None] * mask_row_stride
    q = tl.load(own, mask=exist, other=0.0)
    factor = scale * 1.4426950408889634
    greatest, total = tl.full((ROWS,), -1e38, tl.float32), tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, count, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < count
        entries = columns << 8
        if LISTED:
            entries = tl.load(listed + sentence * list_stride + columns, mask=inside, other=0)
        place = keys + (entries >> 8)[:, None] * (2 * inner)
        k, v = _load(place, inside[:, None], inner)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        if LISTED:
            scores = _may_see(scores, entries, rows)
        if MASKED:
            seen = tl.load(visible + columns[None, :], mask=exist & inside[None, :], other=1)
            scores = tl.where(seen != 0, scores, _HIDDEN)
        greatest, total, found = _take_in(tl.where(inside[None, :], scores, float("-inf")), v, greatest, total, found)
    if APPENDS:
        k, v = _load(own + inner, exist, inner)
        _append(keys + (length + rows)[:, None] * (2 * inner), k, v, exist, inner)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        itself = rows[:, None] == rows[None, :]
        greatest, total, found = _take_in(tl.where(itself, scores, float("-inf")), v, greatest, total, found)
    found = found / tl.maximum(total, 1e-30)[:, None]  # of a sentence that looks at nothing, zeros
    place = (sentence * width + rows)[:, None] * inner + head * WIDTH + lanes[None, :]
    tl.store(out + place, found.to(out.dtype.element_ty), mask=exist)
