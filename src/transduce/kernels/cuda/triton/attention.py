"""Compute attention of one head in one short sentence per Triton program, in training and in decoding.

Legend: N rows of queries, M rows of keys, Q queries and L keys of a sentence, K width of a head.
"""

import triton
import triton.language as tl


@triton.jit
def _scores(q, k, rows, columns, num_keys, scale, CAUSAL: tl.constexpr):
    """Return the attention scores of queries (Q, K) and keys (L, K), times log₂(e); -inf where attention is masked.

    The factor is for exponentials of base 2.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    seen = columns[None, :] < num_keys
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _weights(scores):
    """Return the softmax, float32, of each row of scores that were multiplied by log₂(e)."""
    powers = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _load(start, rows, lanes, count, stride):
    """Return a block (rows, K) of one attention head, loaded from memory; rows from index `count` on are zero.

    `stride` is the number of elements from one row to the next.
    """
    return tl.load(start + rows[:, None] * stride + lanes[None, :], mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store(start, rows, lanes, count, stride, values):
    """Store a block of rows of one attention head, in the target's dtype, except rows from index `count` on.

    `stride` is the number of elements from one row to the next.
    """
    tl.store(
        start + rows[:, None] * stride + lanes[None, :],
        values.to(start.dtype.element_ty),
        mask=rows[:, None] < count,
    )


@triton.jit
def attend(
    query, key, value, out, query_starts, query_counts, key_starts, key_counts, query_stride, key_stride, out_stride,
    scale, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute attention of one head (program axis 0) in one sentence (axis 1) of a packed batch, stored to `out`.

    Queries, keys and values are rows of matrices, whose strides count elements. Starts and counts give each sentence's
    first row and number of rows.
    """
    head, sentence = tl.program_id(0), tl.program_id(1)
    rows, columns, lanes = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    num_queries, num_keys = tl.load(query_counts + sentence), tl.load(key_counts + sentence)
    if num_queries == 0:  # padding of the batch
        return
    first_query = tl.load(query_starts + sentence).to(tl.int64)
    first_key = tl.load(key_starts + sentence).to(tl.int64)
    q = _load(query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride)
    k = _load(key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    v = _load(value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    weights = _weights(_scores(q, k, rows, columns, num_keys, scale, CAUSAL))
    context = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    _store(out + first_query * out_stride + head * WIDTH, rows, lanes, num_queries, out_stride, context)


@triton.jit
def attend_backward(
    query, key, value, grad_out, grad_query, grad_key, grad_value, query_starts, query_counts, key_starts, key_counts,
    query_stride, key_stride, out_stride,
    scale, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, keys and values of one head (program axis 0) in one sentence (axis 1).

    The attention weights are computed again. `grad_out` is read; `grad_query`, `grad_key` and `grad_value` are written.
    The other arguments are those of `attend`.
    """
    head, sentence = tl.program_id(0), tl.program_id(1)
    rows, columns, lanes = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    num_queries, num_keys = tl.load(query_counts + sentence), tl.load(key_counts + sentence)
    if num_queries + num_keys == 0:  # with keys alone, their gradients are set to zero below
        return
    first_query = tl.load(query_starts + sentence).to(tl.int64)
    first_key = tl.load(key_starts + sentence).to(tl.int64)
    q = _load(query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride)
    k = _load(key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    v = _load(value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    grad_context = _load(grad_out + first_query * out_stride + head * WIDTH, rows, lanes, num_queries, out_stride)
    weights = _weights(_scores(q, k, rows, columns, num_keys, scale, CAUSAL))
    # Rows behind the last query are zero in grad_context, so they add nothing to any key's gradient.
    grad_v = tl.dot(tl.trans(weights.to(v.dtype)), grad_context, input_precision="ieee")
    grad_weights = tl.dot(grad_context, tl.trans(v), input_precision="ieee")
    grad_scores = weights * (grad_weights - tl.sum(weights * grad_weights, axis=1)[:, None]) * scale
    grad_scores = grad_scores.to(q.dtype)
    grad_q = tl.dot(grad_scores, k, input_precision="ieee")
    grad_k = tl.dot(tl.trans(grad_scores), q, input_precision="ieee")
    _store(grad_query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride, grad_q)
    _store(grad_key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, grad_k)
    _store(grad_value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, grad_v)


# --- attention of a decoding step ---
# The newest tokens of one sentence's hypotheses attend to the KV cache in one head. Legend: Q rows of queries, L
# keys, K width of a head.


_HIDDEN = tl.constexpr(-1e30)  # finite, so that a fully masked row gives no NaN


@triton.jit
def _accumulate(scores, v, greatest, total, context):
    """Update an online softmax with a block of scores (Q, L), multiplied by log₂(e), and of values (L, K).

    Return the greatest scores so far, the sums of exponentials and the weighted sums of values.
    """
    more = tl.maximum(greatest, tl.max(scores, axis=1))
    shrink = tl.exp2(greatest - more)
    powers = tl.exp2(scores - more[:, None])
    context = context * shrink[:, None] + tl.dot(powers.to(v.dtype), v, input_precision="ieee")
    return more, total * shrink + tl.sum(powers, axis=1), context


@triton.jit
def _load_keys_and_values(pointers, exist, inner):
    """Return keys at `pointers`, and values that lie `inner` elements after them; zeros where `exist` is false."""
    return tl.load(pointers, mask=exist, other=0.0), tl.load(pointers + inner, mask=exist, other=0.0)


@triton.jit
def _append(pointers, k, v, exist, inner):
    """Store new keys in the cache at `pointers`, and new values `inner` elements after them, where `exist` is true."""
    tl.store(pointers, k, mask=exist)
    tl.store(pointers + inner, v, mask=exist)


@triton.jit
def _apply_listed_mask(scores, entries, rows):
    """Return scores (Q, L), masked where a hypothesis does not attend to a listed position.

    Hypothesis q, which has row q, attends to a position if bit q of the position's entry is 1.
    """
    return tl.where(((entries[None, :] >> rows[:, None]) & 1) != 0, scores, _HIDDEN)


@triton.jit(do_not_specialize=["length", "width", "mask_stride", "mask_row_stride"])
def attend_cached(
    query, cache, allowed, listed, counts, out, length, width, inner,
    query_stride, sentence_stride, mask_stride, mask_row_stride, list_stride, scale,
    READ: tl.constexpr, COUNTED: tl.constexpr, LISTED: tl.constexpr, APPENDS: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute attention of one sentence's newest tokens (program axis 1) to the cache in one head (axis 0).

    The output is stored to `out`. Flags select variants of the kernel:

    READ: `length` is the address of the number of cached positions, so that one recorded step serves every length.
    COUNTED: `counts` has each sentence's number of positions: the first ones or, if LISTED, the first listed ones.
    LISTED: positions are listed, each with a bit for every hypothesis that attends to it.
    APPENDS: a key and a value follow each query. They are appended to the cache, and the query also attends to them.
    MASKED: `allowed` is a mask of positions.
    """
    head, sentence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if READ:
        length = tl.load(length).to(tl.int32)
    count = length
    if COUNTED:
        count = tl.load(counts + sentence)
    rows, lanes = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    exist = (rows < width)[:, None]
    queries = query + (sentence * width + rows)[:, None] * query_stride + head * WIDTH + lanes[None, :]
    keys = cache + sentence * sentence_stride + head * WIDTH + lanes[None, :]
    visible = allowed + sentence * mask_stride + rows[:, None] * mask_row_stride
    q = tl.load(queries, mask=exist, other=0.0)
    factor = scale * 1.4426950408889634
    greatest, total = tl.full((ROWS,), -1e38, tl.float32), tl.zeros((ROWS,), tl.float32)
    context = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, count, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < count
        entries = columns << 8
        if LISTED:
            entries = tl.load(listed + sentence * list_stride + columns, mask=inside, other=0)
        pointers = keys + (entries >> 8)[:, None] * (2 * inner)
        k, v = _load_keys_and_values(pointers, inside[:, None], inner)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        if LISTED:
            scores = _apply_listed_mask(scores, entries, rows)
        if MASKED:
            seen = tl.load(visible + columns[None, :], mask=exist & inside[None, :], other=1)
            scores = tl.where(seen != 0, scores, _HIDDEN)
        greatest, total, context = _accumulate(
            tl.where(inside[None, :], scores, float("-inf")), v, greatest, total, context
        )
    if APPENDS:
        k, v = _load_keys_and_values(queries + inner, exist, inner)
        _append(keys + (length + rows)[:, None] * (2 * inner), k, v, exist, inner)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        itself = rows[:, None] == rows[None, :]
        greatest, total, context = _accumulate(tl.where(itself, scores, float("-inf")), v, greatest, total, context)
    context = context / tl.maximum(total, 1e-30)[:, None]  # zeros for a sentence that attends to nothing
    pointers = (sentence * width + rows)[:, None] * inner + head * WIDTH + lanes[None, :]
    tl.store(out + pointers, context.to(out.dtype.element_ty), mask=exist)
