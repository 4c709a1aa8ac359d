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


@triton.jit(do_not_specialize=["length", "width", "mask_stride", "mask_row_stride"])
def attend_cached(
    query, cache, allowed, out, length, width, inner,
    query_stride, sentence_stride, mask_stride, mask_row_stride, scale,
    COUNTED: tl.constexpr, APPENDS: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """With COUNTED, the length stands in the GPU's memory, so that one recorded step serves every length.

    With APPENDS, keys and values stand behind each query. They are written behind what is cached, and each query sees
    its own alone.
    """
    head, sentence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if COUNTED:
        length = tl.load(length).to(tl.int32)
    rows, lanes = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    exist = (rows < width)[:, None]
    own = query + (sentence * width + rows)[:, None] * query_stride + head * WIDTH + lanes[None, :]
    keys = cache + sentence * sentence_stride + head * WIDTH + lanes[None, :]
    visible = allowed + sentence * mask_stride + rows[:, None] * mask_row_stride
    q = tl.load(own, mask=exist, other=0.0)
    factor = scale * 1.4426950408889634
    greatest = tl.full((ROWS,), -1e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, length, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < length
        place = keys + columns[:, None] * (2 * inner)
        k = tl.load(place, mask=inside[:, None], other=0.0)
        v = tl.load(place + inner, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        if MASKED:
            seen = tl.load(visible + columns[None, :], mask=exist & inside[None, :], other=1)
            scores = tl.where(seen != 0, scores, _HIDDEN)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        greatest, total, found = _take_in(scores, v, greatest, total, found)
    if APPENDS:
        k = tl.load(own + inner, mask=exist, other=0.0)
        v = tl.load(own + 2 * inner, mask=exist, other=0.0)
        place = keys + (length + rows)[:, None] * (2 * inner)
        tl.store(place, k, mask=exist)
        tl.store(place + inner, v, mask=exist)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        scores = tl.where(rows[:, None] == rows[None, :], scores, float("-inf"))
        greatest, total, found = _take_in(scores, v, greatest, total, found)
    place = out + (sentence * width + rows)[:, None] * inner + head * WIDTH + lanes[None, :]
    tl.store(place, (found / total[:, None]).to(out.dtype.element_ty), mask=exist)
