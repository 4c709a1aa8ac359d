"""Attention of one head in one sentence, which is short: a program computes it at once.

Legend: N rows of queries, M rows of keys, Q queries and L keys of a sentence, K width of a head.
"""

import triton
import triton.language as tl


@triton.jit
def _scores(q, k, rows, columns, num_keys, scale, CAUSAL: tl.constexpr):
    """Of queries (Q, K) and keys (L, K), in units of log 2; minus infinity where a query may not look."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    seen = columns[None, :] < num_keys
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _weights(scores):
    """The softmax of each row, float32."""
    powers = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit
def _load(start, rows, lanes, count, stride):
    return tl.load(start + rows[:, None] * stride + lanes[None, :], mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store(start, rows, lanes, count, stride, values):
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
    head, sentence = tl.program_id(0), tl.program_id(1)
    rows, columns, lanes = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    num_queries, num_keys = tl.load(query_counts + sentence), tl.load(key_counts + sentence)
    if num_queries == 0:  # what fills a room
        return
    first_query = tl.load(query_starts + sentence).to(tl.int64)
    first_key = tl.load(key_starts + sentence).to(tl.int64)
    q = _load(query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride)
    k = _load(key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    v = _load(value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    weights = _weights(_scores(q, k, rows, columns, num_keys, scale, CAUSAL))
    found = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    _store(out + first_query * out_stride + head * WIDTH, rows, lanes, num_queries, out_stride, found)


@triton.jit
def attend_back(
    query, key, value, by_out, by_query, by_key, by_value, query_starts, query_counts, key_starts, key_counts,
    query_stride, key_stride, out_stride,
    scale, CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    head, sentence = tl.program_id(0), tl.program_id(1)
    rows, columns, lanes = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, WIDTH)
    num_queries, num_keys = tl.load(query_counts + sentence), tl.load(key_counts + sentence)
    if num_queries + num_keys == 0:  # keys that nobody looks at get zeros
        return
    first_query = tl.load(query_starts + sentence).to(tl.int64)
    first_key = tl.load(key_starts + sentence).to(tl.int64)
    q = _load(query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride)
    k = _load(key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    v = _load(value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride)
    by_found = _load(by_out + first_query * out_stride + head * WIDTH, rows, lanes, num_queries, out_stride)
    weights = _weights(_scores(q, k, rows, columns, num_keys, scale, CAUSAL))
    # Rows behind the last query are zero in by_found, and so give nothing to any key.
    by_v = tl.dot(tl.trans(weights.to(v.dtype)), by_found, input_precision="ieee")
    by_weights = tl.dot(by_found, tl.trans(v), input_precision="ieee")
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, axis=1)[:, None]) * scale
    by_scores = by_scores.to(q.dtype)
    by_q = tl.dot(by_scores, k, input_precision="ieee")
    by_k = tl.dot(tl.trans(by_scores), q, input_precision="ieee")
    _store(by_query + first_query * query_stride + head * WIDTH, rows, lanes, num_queries, query_stride, by_q)
    _store(by_key + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, by_k)
    _store(by_value + first_key * key_stride + head * WIDTH, columns, lanes, num_keys, key_stride, by_v)
