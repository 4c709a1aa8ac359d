"""Compute attention of one head in one short sentence per Triton program.

Legend: N rows of queries, M rows of keys, Q queries and L keys of a sentence, K width of a head.
"""

import triton
import triton.language as tl


@triton.jit
def _scores(q, k, rows, columns, num_keys, scale, CAUSAL: tl.constexpr):
    """Return scores of queries (Q, K) and keys (L, K) in units of log 2, -inf where attention is masked."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    seen = columns[None, :] < num_keys
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _weights(scores):
    """Return the softmax of each row, float32."""
    powers = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _load(start, rows, lanes, count, stride):
    """Load rows of a head; zeros from row `count` on."""
    return tl.load(start + rows[:, None] * stride + lanes[None, :], mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store(start, rows, lanes, count, stride, values):
    """Store rows of a head up to row `count`."""
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
    """Compute the context of one head (program axis 0) in one sentence (axis 1).

    Queries, keys and values are rows with these strides, in elements; starts and counts are those of the sentences.
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
def attend_back(
    query, key, value, by_out, by_query, by_key, by_value, query_starts, query_counts, key_starts, key_counts,
    query_stride, key_stride, out_stride,
    scale, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, keys and values of one head (program axis 0) in one sentence (axis 1)."""
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
    by_context = _load(by_out + first_query * out_stride + head * WIDTH, rows, lanes, num_queries, out_stride)
    weights = _weights(_scores(q, k, rows, columns, num_keys, scale, CAUSAL))
    # Rows behind the last query are zero in by_context, so they add nothing to any key's gradient.
    by_v = tl.dot(tl.trans(weights.to(v.dtype)), by_context, input_precision="ieee")
    by_weights = tl.dot(by_context, tl.trans(v), input_precision="ieee")
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, axis=1)[:, None]) * scale
    by_scores = by_scores.to(q.dtype)
    by_q = tl.dot(by_scores, k, input_precision="ieee")
    by_k = tl.dot(tl.trans(by_scores), q, input_precision="ieee")
    _store(by_query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride, by_q)
    _store(by_key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, by_k)
    _store(by_value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, by_v)
