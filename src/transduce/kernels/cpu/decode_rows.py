"""Emit the row-wise kernels of decoding: embeddings, norms, attention, activation functions and rotary embeddings.

Legend: N rows, T positions, D model width, H heads, K width of a head's queries and keys.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.jit.ir_builder import F16, F32, I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.memory import row_pointer
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.layers import StackPositions

# --- embeddings, norms and attention ---
# Legend: N rows, D model width, H heads, G key/value heads, K width of a head's keys and of its values, L positions
# attended to.


# Loads a key or value as vectors, given a pointer to cache entry 0 and the index of a position in the row's list.
_Load = Callable[[Value, Value], list[Value]]

_LOG2_E = 1.0 / math.log(2.0)
_POWERS = [math.log(2.0) ** n / math.factorial(n) for n in range(7)]  # Taylor coefficients of 2^x about 0
_NEVER = float("-inf")
_MIN_EXPONENT = -87.0  # e to this is still a normal float32


def exponential(k: KernelBuilder, x: Value, *, keeps_nan: bool = False) -> Value:
    """Return e^x of a float32 vector without positive elements, with a relative error of about 10^-7.

    Below -87 the result is e^-87. A NaN gives an unspecified number, or NaN if `keeps_nan` is true.
    """
    original = x
    x = k.maximum(x, k.splat(_MIN_EXPONENT))
    power = k.build.fmul(x, k.splat(_LOG2_E))
    exponent = k.intrinsic(f"llvm.rint.v{k.lanes}f32", k.floats, power)
    fraction = k.build.fsub(power, exponent)
    value = k.splat(_POWERS[-1])
    for coefficient in reversed(_POWERS[:-1]):
        value = k.madd(value, fraction, k.splat(coefficient))
    shift = k.build.shl(k.build.fptosi(exponent, k.ints), ir.Constant(k.ints, [23] * k.lanes))
    result = k.build.bitcast(k.build.add(k.build.bitcast(value, k.ints), shift), k.floats)
    return k.build.select(k.build.fcmp_unordered("uno", original, original), original, result) if keeps_nan else result


@outlined
def emit_embedding(k: KernelBuilder, *, is_ragged: bool) -> None:
    """Emit `embed(ids, N, D, table, file rows, scale, added, x, lists, list stride, entry, counts, thread, threads)`.

    The function sets x (N, D) to table[ids] · scale + position encoding, for one decoding step. `file rows` points to
    the tensor that `memory.file_rows` returns for the table. Row n also gets entry `entry` + n of the key/value cache,
    which is appended to the row's list of cache entries.

    If `is_ragged` is false, all rows have the same position. Then `added` points to the encoding of this position, and
    `lists` points to the element of row 0's list that is written.

    If `is_ragged` is true, row n is at position counts[n] - 1. Then `added` points to the encoding of position 0, and
    `lists` points to the start of row 0's list.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, F32, POINTER, POINTER, POINTER, I64, I64, POINTER, I64, I64)
    with k.function("embed", *kinds) as (ids, rows, width, table, file, scale, added, x, lists, list_stride, *more):
        entry, counts, *share = more
        with k.thread_loop(rows, share) as row:
            entry_index = k.build.trunc(k.add(entry, row), I32)
            position = k.add(k.load(k.element_pointer(counts, row, I64), I64), -1) if is_ragged else k.int64(0)
            k.store(entry_index, k.element_pointer(lists, k.add(k.mul(row, list_stride), position), I32))
            _embed_row(k, (ids, row, width, table, file, scale, x), k.element_pointer(added, k.mul(position, width)))


@outlined
def emit_sequence_embedding(k: KernelBuilder) -> None:
    """Emit `embed_run(ids, N, D, table, file rows, scale, added, x, firsts, thread, threads)`, for whole sequences.

    The function sets x (N, D) to table[ids] · scale + added[position], where row n has position n - firsts[n].
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, F32, POINTER, POINTER, POINTER, I64, I64)
    with k.function("embed_run", *kinds) as (ids, rows, width, table, file, scale, added, x, *more):
        firsts, *share = more
        with k.thread_loop(rows, share) as row:
            position = k.build.sub(row, k.load(k.element_pointer(firsts, row, I64), I64))
            _embed_row(k, (ids, row, width, table, file, scale, x), k.element_pointer(added, k.mul(position, width)))


def _embed_row(k: KernelBuilder, args: tuple[Value, ...], added: Value) -> None:
    """Emit one token's embedding times the scale, plus its position encoding, into a row of x.

    `args` are (ids, row, D, table, file, scale, x) as in `emit_embedding`, where `file` points to the result of
    `memory.file_rows` for the table. `added` points to the position's encoding.
    """
    ids, row, width, table, file, scale, x = args
    target = k.element_pointer(x, k.mul(row, width))
    source = row_pointer(k, table, file, k.load(k.element_pointer(ids, row, I64), I64), width, target)
    with k.loop(0, width, k.lanes) as column:
        value = k.madd(k.load_floats(source, column), k.splat(scale), k.load_floats(added, column))
        k.store(value, k.element_pointer(target, column))


@outlined
def emit_norms(k: KernelBuilder) -> None:
    """Emit the functions `norm_layer` (LayerNorm) and `norm_rms` (RMSNorm), which normalize each row of x.

    The arguments are (x, N, D, weight, bias, epsilon, out, thread, threads); x and out are (N, D), and may be the same
    memory. Either function adds the bias.
    """
    for kind in ("layer", "rms"):
        kinds = (POINTER, I64, I64, POINTER, POINTER, F32, POINTER, I64, I64)
        with k.function(f"norm_{kind}", *kinds) as (x, rows, width, weight, bias, epsilon, *more):
            out, *share = more
            with k.thread_loop(rows, share) as row:
                source, target = k.element_pointer(x, k.mul(row, width)), k.element_pointer(out, k.mul(row, width))
                mean = k.splat(0.0) if kind == "rms" else k.splat(_mean(k, source, width, None))
                variance = _mean(k, source, width, mean)
                root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(variance, epsilon))
                scale = k.splat(k.build.fdiv(k.float32(1.0), root))
                for column, _ in k.each_vector(width):
                    normalized = k.build.fmul(k.build.fsub(k.load_floats(source, column), mean), scale)
                    value = k.madd(normalized, k.load_floats(weight, column), k.load_floats(bias, column))
                    k.store(value, k.element_pointer(target, column))


@outlined
def emit_head_norm(k: KernelBuilder, width: int) -> None:
    """Emit the function `norm_heads` (RMSNorm in place), which normalizes each head of some heads of each row.

    The arguments are (x, N, stride, heads, weight, epsilon, thread, threads). Row n of x has `heads` heads of `width`
    elements, and rows are `stride` elements apart. All heads have the same weight, (width,).
    """
    with k.function("norm_heads", POINTER, I64, I64, I64, POINTER, F32, I64, I64) as (x, rows, stride, count, *more):
        weight, epsilon, *share = more
        with k.thread_loop(k.mul(rows, count), share) as item:
            row, head = k.build.sdiv(item, count), k.build.srem(item, count)
            source = k.element_pointer(x, k.add(k.mul(row, stride), k.mul(head, width)))
            square = _mean(k, source, k.int64(width), k.splat(0.0))
            root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(square, epsilon))
            scale = k.splat(k.build.fdiv(k.float32(1.0), root))
            for column in range(0, width, k.lanes):
                value = k.build.fmul(k.build.fmul(k.load_floats(source, column), scale), k.load_floats(weight, column))
                k.store(value, k.element_pointer(source, column))


def _mean(k: KernelBuilder, row: Value, width: Value, center: Value | None) -> Value:
    """Return (an IR value) the mean of a row's elements, or of their squared distances from `center` if passed."""

    def term(column: Value) -> list[Value]:
        """Return a list with one vector: the elements from a column on, or their squared distances from the center."""
        value = k.load_floats(row, column)
        if center is None:
            return [value]
        value = k.build.fsub(value, center)
        return [k.build.fmul(value, value)]

    return means(k, width, term)[0]


def means(k: KernelBuilder, width: Value, terms: Callable[[Value], list[Value]], count: int = 1) -> list[Value]:
    """Emit the means of `count` quantities over a row of `width` elements; return them as a list of float32 values.

    `terms(column)` returns a list with one vector for each quantity. Several accumulators run in parallel, as each
    addition depends on the one before.
    """
    totals = [k.accumulators() for _ in range(count)]
    for column, number in k.each_vector(width):
        for total, term in zip(totals, terms(column), strict=True):
            k.accumulate(total[number], term, k.build.fadd)
    size = k.build.sitofp(width, F32)
    return [k.build.fdiv(k.reduce_sum(k.combine_accumulators(total, k.build.fadd)), size) for total in totals]


class HeadShape(NamedTuple):
    """The shape of multi-head attention: the numbers of query and key/value heads, their width, and the scale."""

    number: int
    """The number of query heads H."""
    shared: int
    """The number of key/value heads G; H / G neighboring query heads share one."""
    width: int
    """The head width K in elements, a multiple of the vector length."""
    scale: float
    """The factor by which attention multiplies the dot products of queries and keys."""

    @staticmethod
    def of(config: ModelConfig) -> "HeadShape":
        """Return the `HeadShape` of a model's attention, whose scores must be (scaled) dot products."""
        scale = config.attention_scale
        if scale is None:
            scale = 1.0 if config.attention_score == "dot" else 1.0 / math.sqrt(config.key_width)
        return HeadShape(config.num_heads, config.key_value_heads, config.key_width, scale)

    @property
    def queries(self) -> int:
        """The number of elements of one row's (token's) queries in all heads: H × K."""
        return self.number * self.width

    @property
    def keys(self) -> int:
        """The number of elements of one position's keys in all heads, and of its values: G × K."""
        return self.shared * self.width


class _HeadPointers(NamedTuple):
    """Pointers (IR values) for attention of one head of one row (token): query, keys, values, output and scores."""

    query: Value
    keys: Value
    """Pointer to an attention head's key in entry 0 of the key/value cache."""
    values: Value
    """Pointer to an attention head's value in entry 0 of the key/value cache."""
    stride: Value
    """The number of elements from one entry of the key/value cache to the next."""
    out: Value
    scores: Value
    relative_bias: Value
    """Pointer to the relative position bias of the first key; the biases of the next keys follow."""


_ATTEND = (POINTER, I64, POINTER, POINTER, I64, POINTER, POINTER, I64, POINTER, I64, I64, POINTER, POINTER, *[I64] * 3)


def emit_attention(
    k: KernelBuilder, heads: HeadShape, kind: str, *, is_biased: bool, element: Any = F32, window: int | None = None
) -> str:
    """Emit attention, equation (1), for rows of queries with a list of keys each; return the function's name.

    The function is emitted unless the module has it already. Its arguments are the same for every kind:
    `attend_<kind>(queries, query stride, keys, values, stride, firsts, counts, list stride, near, near stride, N, out,
    scores, score_capacity, thread, threads)`. Keys and values are in entries of a cache, `stride` elements apart.

    * `attend_run`: row n attends to counts[n] entries from firsts[n] on; the list stride is unused.
    * `attend_list`: `firsts` points to lists of int32 entries, `list stride` elements apart. Row n attends to the first
      counts[0] entries of its list, and is at the last of these positions.
    * `attend_lists`: like `attend_list`, but row n attends to the first counts[n] entries of its list.

    `scores` is scratch space of `score_capacity` ≥ L + lanes float32 for each thread. Variants `…_near` add a relative
    position bias: for each head, a row of `near` that is indexed by the key's position minus the query's. Variants
    `…_half` read keys and values in float16. Variants `…_window` attend only to the last `window` + 1 of a row's
    entries.
    """
    name = "attend_" + _name(kind, is_biased=is_biased, element=element) + ("" if window is None else "_window")
    if not k.has(name):
        _write_attention(k, heads, kind, name, is_biased=is_biased, element=element, window=window)
    return name


@outlined
def _write_attention(
    k: KernelBuilder, heads: HeadShape, kind: str, name: str, *, is_biased: bool, element: Any, window: int | None
) -> None:
    """Emit the function `name` of `emit_attention`, and the function that it calls for each head."""
    head = _write_head(k, heads, kind, is_biased=is_biased, element=element)
    with k.function(name, *_ATTEND) as arguments:
        queries, query_stride, keys, values, stride, first_of, count_of, list_stride, *more = arguments
        relative_bias, near_stride, rows, out, scores, scratch_each, *share = more
        thread_scores = k.element_pointer(scores, k.mul(share[0], scratch_each))
        with k.thread_loop(k.mul(rows, heads.number), share) as number:
            row, head_number = (divide(number, k.int64(heads.number)) for divide in (k.build.sdiv, k.build.srem))
            column = k.mul(head_number, heads.width)
            shared_column = column
            if heads.shared < heads.number:
                key_head = k.build.sdiv(head_number, k.int64(heads.number // heads.shared))
                shared_column = k.mul(key_head, heads.width)
            if kind == "run":
                start, count = (k.load(k.element_pointer(each, row, I64), I64) for each in (first_of, count_of))
                listed, position = first_of, k.build.sub(row, start)
            else:
                of_row = row if kind == "lists" else k.int64(0)
                start, count = k.int64(0), k.load(k.element_pointer(count_of, of_row, I64), I64)
                listed, position = k.element_pointer(first_of, k.mul(row, list_stride), I32), k.add(count, -1)
            if window is not None:
                skipped = k.build.sub(count, k.minimum(count, k.int64(window + 1)))
                count, position = (k.build.sub(each, skipped) for each in (count, position))
                if kind == "run":
                    start = k.add(start, skipped)
                else:
                    listed = k.element_pointer(listed, skipped, I32)
            bias = relative_bias
            if is_biased:
                bias = k.element_pointer(relative_bias, k.build.sub(k.mul(head_number, near_stride), position))
            query = k.element_pointer(queries, k.add(k.mul(row, query_stride), column))
            first_key, first_value = (k.element_pointer(each, shared_column, element) for each in (keys, values))
            target = k.element_pointer(out, k.add(k.mul(row, heads.queries), column))
            k.call(
                head,
                *_HeadPointers(query, first_key, first_value, stride, target, thread_scores, bias),
                start,
                count,
                listed,
            )


def _name(kind: str, *, is_biased: bool, element: Any) -> str:
    """Return the suffix of an attention function's name: its kind, `_near` for a position bias, `_half` for float16."""
    return kind + ("_near" if is_biased else "") + ("_half" if element == F16 else "")


def _write_head(k: KernelBuilder, heads: HeadShape, kind: str, *, is_biased: bool, element: Any) -> str:
    """Emit the function that computes attention for one head of one row, which `attend_…` calls; return its name."""
    name = "head_" + _name(kind, is_biased=is_biased, element=element)
    types = (POINTER, POINTER, POINTER, I64, POINTER, POINTER, POINTER, I64, I64, POINTER)
    with k.function(name, *types) as arguments:
        row_args, (start, count, listed) = _HeadPointers(*arguments[:7]), arguments[7:]

        def entry(number: Value) -> Value:
            """Return (an IR value) the index of the key/value cache entry for position `number` of a row's text."""
            if kind == "run":
                return k.add(start, number)
            return k.build.sext(k.load(k.element_pointer(listed, number, I32), I32), I64)

        def key_or_value(first: Value, number: Value) -> list[Value]:
            """Return a list of vectors: the cached key or value of position `number`.

            `first` points to the key or value in entry 0 of the cache.
            """
            pointer = k.element_pointer(first, k.mul(entry(number), row_args.stride), element)
            return [k.load_as_float32(pointer, column, element) for column in range(0, heads.width, k.lanes)]

        greatest = _write_scores(k, heads, row_args, count, key_or_value, is_biased=is_biased)
        total = _write_exponentials(k, row_args.scores, count, greatest)
        _write_mean(k, heads, row_args, count, key_or_value, total)
    return name


def _write_scores(
    k: KernelBuilder, heads: HeadShape, row_args: _HeadPointers, count: Value, load: _Load, *, is_biased: bool
) -> Value:
    """Emit the scores of `count` keys (scaled dot products with the query, plus a bias if `is_biased`) to memory.

    Return the greatest score. `load` emits the loads of one key. The sums of lanes / 4 keys are reduced together.
    """
    query = [k.load_floats(row_args.query, column) for column in range(0, heads.width, k.lanes)]
    k.store(k.splat(_NEVER), k.element_pointer(row_args.scores, count))
    group = k.lanes // 4
    grouped_end = k.mul(k.build.sdiv(count, k.int64(group)), group)

    def products(number: Value) -> Value:
        """Return the dot product of the query and key `number`, still as a vector of one partial sum per lane."""
        total = k.splat(0.0)
        for query_part, key in zip(query, load(row_args.keys, number), strict=True):
            total = k.madd(query_part, key, total)
        return total

    def finish(number: Value, score: Value, scale: Value, greatest: Value) -> None:
        """Emit the scaling of scores, the position bias, their store, and the update of the greatest score so far.

        `score` is one score or a vector of scores, of the keys from `number` on.
        """
        score = k.build.fmul(score, scale)
        if is_biased:
            score = k.build.fadd(score, k.load(k.element_pointer(row_args.relative_bias, number), score.type))
        k.store(score, k.element_pointer(row_args.scores, number))
        k.store(k.maximum(score, k.load_variable(greatest)), greatest)

    group_type = ir.VectorType(F32, group)
    scales, never = (ir.Constant(group_type, [ir.Constant(F32, value)] * group) for value in (heads.scale, _NEVER))
    greatest_few, greatest = k.variable(never), k.variable(k.float32(_NEVER))
    with k.loop(0, grouped_end, group) as first:
        finish(first, k.reduce_sums([products(k.add(first, n)) for n in range(group)]), scales, greatest_few)
    with k.loop(grouped_end, count) as number:
        finish(number, k.reduce_sum(products(number)), k.float32(heads.scale), greatest)
    result = k.load_variable(greatest)
    for n in range(group):
        result = k.maximum(k.build.extract_element(k.load_variable(greatest_few), ir.Constant(I32, n)), result)
    return result


def _write_exponentials(k: KernelBuilder, scores: Value, count: Value, greatest: Value) -> Value:
    """Emit the replacement of `count` scores by exp(score - greatest); return the sum of these exponentials."""
    total, greatest_vector = k.variable(k.splat(0.0)), k.splat(greatest)
    with k.loop(0, count, k.lanes) as number:
        weights = exponential(k, k.build.fsub(k.load_floats(scores, number), greatest_vector))
        k.store(weights, k.element_pointer(scores, number))
        k.store(k.build.fadd(k.load_variable(total), weights), total)
    return k.reduce_sum(k.load_variable(total))


def _write_mean(
    k: KernelBuilder, heads: HeadShape, row_args: _HeadPointers, count: Value, load: _Load, total: Value
) -> None:
    """Emit the attention output of one head: the mean of the cached values, weighted by the exponentials.

    `total` is the sum of the exponentials.
    """
    columns = range(0, heads.width, k.lanes)
    sums = [k.variable(k.splat(0.0)) for _ in columns]
    with k.loop(0, count) as number:
        weight = k.splat(k.load(k.element_pointer(row_args.scores, number)))
        for accumulator, value in zip(sums, load(row_args.values, number), strict=True):
            k.store(k.madd(weight, value, k.load_variable(accumulator)), accumulator)
    scale = k.splat(k.build.fdiv(k.float32(1.0), total))
    for column, accumulator in zip(columns, sums, strict=True):
        k.store(k.build.fmul(k.load_variable(accumulator), scale), k.element_pointer(row_args.out, column))


def transpose(k: KernelBuilder, rows: list[Value]) -> list[Value]:
    """Emit the transposition of a square matrix, a list of row vectors; return a list of its columns.

    Each round interleaves rows that are half the square apart.
    """
    half = len(rows) // 2
    low = [lane + k.lanes * side for lane in range(half) for side in range(2)]
    orders = [[number + start for number in low] for start in (0, half)]
    for _ in range(k.lanes.bit_length() - 1):
        rows = [k.shuffle(rows[n], rows[n + half], order) for n in range(half) for order in orders]
    return rows


# --- activation functions ---
# ReLU is part of the GEMM's epilogue. Legend: N rows, F inner width of the feed-forward network.


# Coefficients of erfc(u) e^(u²), u ≥ 0, as a polynomial in t = 1 / (1 + p u); the absolute error is at most 1.5 · 10^-7
# (Abramowitz and Stegun 1964, 7.1.26).
_ERFC_P = 0.3275911
_ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
GATED_BY = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "reglu": "relu"}
"""A dict from each gated activation's name to the name of the activation function of its gate."""


def emit_activation(k: KernelBuilder, name: str) -> str:
    """Emit the function `activate_…(x, N, F, out, thread, threads)`, unless the module has it, and return its name.

    The function applies the activation to rows x (N, F) and writes out (N, F); out may be x. For a gated activation
    (such as SwiGLU) x is (N, 2 F), each row's gate before its value, and out must not overlap x. Threads split the
    columns as the GEMM that writes x does, so each thread finds its columns in its cache.
    """
    function = f"activate_{name.replace('-', '_')}"
    if not k.has(function):
        _write_activation(k, function, name)
    return function


@outlined
def _write_activation(k: KernelBuilder, function: str, name: str) -> None:
    """Emit the function `function` of `emit_activation`, which applies the activation `name`."""
    is_gate = name in GATED_BY
    activation = ACTIVATION_EMITTERS[GATED_BY.get(name, name)]
    with k.function(function, POINTER, I64, I64, POINTER, I64, I64) as (x, rows, width, out, *share):
        vectors = k.thread_range(k.build.sdiv(width, k.int64(k.lanes)), *share)
        first, last = (k.mul(vector, k.lanes) for vector in vectors)
        with k.loop(0, rows) as row:
            source = k.element_pointer(x, k.mul(row, width, 2 if is_gate else 1))
            target = k.element_pointer(out, k.mul(row, width))
            with k.loop(first, last, k.lanes) as column:
                value = activation(k, k.load_floats(source, column))
                if is_gate:
                    value = k.build.fmul(value, k.load_floats(source, k.add(width, column)))
                k.store(value, k.element_pointer(target, column))


@outlined
def emit_scaling(k: KernelBuilder) -> None:
    """Emit `scale(x, N, D, factor, thread, threads)`, which multiplies x (N, D) by a float32 factor in place."""
    with k.function("scale", POINTER, I64, I64, F32, I64, I64) as (x, rows, width, factor, *share):
        first, last = (k.mul(row, width) for row in k.thread_range(rows, *share))
        with k.loop(first, last, k.lanes) as index:
            k.store(k.build.fmul(k.load_floats(x, index), k.splat(factor)), k.element_pointer(x, index))


def _relu(k: KernelBuilder, x: Value) -> Value:
    """Return max(x, 0) of a float32 vector (ReLU)."""
    return k.maximum(x, k.splat(0.0))


def _silu(k: KernelBuilder, x: Value) -> Value:
    """Return x · sigmoid(x) of a float32 vector (SiLU)."""
    return k.build.fmul(x, _sigmoid(k, x))


def _gelu_tanh(k: KernelBuilder, x: Value) -> Value:
    """Return the GELU of a float32 vector by tanh: x / 2 · (1 + tanh y), with y = √(2 / π) (x + 0.044715 x³).

    The code computes x · sigmoid(2 y), which is equal.
    """
    return k.build.fmul(x, _sigmoid(k, _twice_tanh_argument(k, x)[0]))


def _twice_tanh_argument(k: KernelBuilder, x: Value) -> tuple[Value, Value]:
    """Return two vectors: 2 y and its derivative by x, where y is the argument of tanh in the GELU.

    y is √(2 / π) (x + 0.044715 x³).
    """
    factor, square = 2.0 * math.sqrt(2.0 / math.pi), k.build.fmul(x, x)
    cubic, slope = (k.madd(square, k.splat(each * 0.044715 * factor), k.splat(factor)) for each in (1.0, 3.0))
    return k.build.fmul(x, cubic), slope


def _gelu(k: KernelBuilder, x: Value) -> Value:
    """Return the GELU x Φ(x) of a float32 vector, where Φ is the standard normal distribution function."""
    return k.build.fmul(x, _normal_distribution(k, x)[0])


def _normal_distribution(k: KernelBuilder, x: Value) -> tuple[Value, Value]:
    """Return two vectors, the standard normal distribution function Φ(x) and e^(-x² / 2).

    Φ is computed from erfc on the side where it is small, for accuracy.
    """
    u = k.build.fmul(_absolute(k, x), k.splat(math.sqrt(0.5)))
    t = k.build.fdiv(k.splat(1.0), k.madd(u, k.splat(_ERFC_P), k.splat(1.0)))
    series = k.splat(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        series = k.madd(series, t, k.splat(coefficient))
    tail = exponential(k, k.build.fmul(u, k.build.fneg(u)))
    small = k.build.fmul(k.build.fmul(series, t), k.build.fmul(tail, k.splat(0.5)))
    is_positive = k.build.fcmp_ordered(">", x, k.splat(0.0))
    return k.build.select(is_positive, k.build.fsub(k.splat(1.0), small), small), tail


def _sigmoid(k: KernelBuilder, z: Value) -> Value:
    """Return 1 / (1 + e^-z) of a float32 vector, using only exponentials of non-positive numbers (no overflow)."""
    power = exponential(k, k.build.fneg(_absolute(k, z)))
    inverse = k.build.fdiv(k.splat(1.0), k.build.fadd(power, k.splat(1.0)))
    is_positive = k.build.fcmp_ordered(">", z, k.splat(0.0))
    return k.build.select(is_positive, inverse, k.build.fmul(power, inverse))


def _absolute(k: KernelBuilder, x: Value) -> Value:
    """Return the absolute values |x| of a float32 vector."""
    return k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, x)


ACTIVATION_EMITTERS: dict[str, Callable[[KernelBuilder, Value], Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": _silu,
}
"""A dict from an activation function's name to the Python function that emits it for a float32 vector."""


def emit_slope(k: KernelBuilder, name: str, x: Value) -> Value:
    """Return the derivative of an activation function at each element of a float32 vector.

    `name` is a key of `ACTIVATION_EMITTERS`.
    """
    one = k.splat(1.0)
    if name == "relu":
        return k.build.select(k.build.fcmp_ordered(">", x, k.splat(0.0)), one, k.splat(0.0))
    if name == "gelu":
        share, tail = _normal_distribution(k, x)
        return k.madd(x, k.build.fmul(tail, k.splat(1.0 / math.sqrt(2.0 * math.pi))), share)
    argument, slope = (x, one) if name == "silu" else _twice_tanh_argument(k, x)
    share = _sigmoid(k, argument)
    rising = k.build.fmul(k.build.fmul(share, k.build.fsub(one, share)), slope)
    return k.madd(x, rising, share)


# --- position encodings ---


class PositionTables(NamedTuple):
    """Position encoding tables for positions 0 to T - 1; a table that the model does not use is empty."""

    added_encodings: Tensor
    """Position encodings that are added to embeddings, a row for each position, (T, D)."""
    rotary: Tensor
    """Rotary angles (T, K): the cosines, then the sines, of the angle of each pair of dimensions."""
    relative_bias: Tensor
    """Relative position biases (H, distances), which are added to attention scores.

    The distance is the key's position minus the query's; the first column is that of 1 - T.
    """
    length: int
    """The number of positions T that the tables cover."""

    def addresses(self) -> dict[str, int]:
        """Return the addresses of the three tables, and the stride of the relative biases.

        The result is a dict by names of fields of `writer.StepArguments`. `relative_bias` is the address of the first
        head's bias at distance 0. `relative_bias_stride` is the number of elements from one head to the next. Addresses
        are valid while the tables live.
        """
        bias = self.relative_bias
        return {
            "position_encodings": self.added_encodings.data_ptr(),
            "rotary_angles": self.rotary.data_ptr(),
            "relative_bias": bias.data_ptr() + (self.length - 1) * bias.element_size(),  # of distance 0
            "relative_bias_stride": bias.shape[1],
        }


class GrowingTables:
    """Position encoding tables of an encoder or decoder, which are computed anew for a longer sequence."""

    def __init__(self, embedding: Embedding, positions: StackPositions, config: ModelConfig) -> None:
        """Create empty position tables, which grow on demand.

        Args:
            embedding: the encoder's or decoder's embedding, whose position encodings are added to embedded tokens.
            positions: the position encodings of the encoder's or decoder's layers.
            config: the model's configuration.
        """
        self._embedding, self._positions, self._width = embedding, positions, config.embedding_width
        self._most = config.max_positions if config.positions == "learned" else 2**31  # that the model supports
        nothing = torch.empty(0, 0)
        self._tables = PositionTables(nothing, nothing, nothing, 0)

    def until(self, position: int) -> PositionTables:
        """Return a `PositionTables` that includes `position`; longer tables are made if the present ones are too short.

        The caller must keep the result alive while kernels read the tables.
        """
        tables = self._tables  # another thread may replace it by longer tables
        if position >= tables.length:
            tables = self._tables = self._make(max(min(max(2 * position, 64), self._most), position + 1))
        return tables

    def _make(self, count: int) -> PositionTables:
        """Return tables for `count` positions: added encodings, rotary angles, and relative position biases.

        A table that the model does not use is empty.
        """
        rotary, bias = self._positions.rotary, self._positions.bias
        added_encodings: Tensor = self._embedding.positions(torch.zeros(1, count, self._width))[0]
        angles = relative_bias = torch.empty(0, 0)
        if rotary is not None:
            rotation = rotary(torch.arange(count), torch.float32, count)
            angles = torch.cat([rotation.cosine, rotation.sine], dim=1)
        if bias is not None:
            distances = torch.arange(1 - count, count if bias.bidirectional else 1)
            relative_bias = bias(torch.zeros(1, dtype=torch.int64), distances)[0, :, 0]  # (H, distances)
        return PositionTables(added_encodings.contiguous(), angles.contiguous(), relative_bias.contiguous(), count)


@outlined
def emit_rotary(k: KernelBuilder, heads: HeadShape, *, interleaved: bool) -> None:
    """Emit the functions `rotate_run`, `rotate_each` and `rotate_all`, which apply rotary embeddings in place.

    The arguments are (x, N, stride, heads, table, numbers, thread, threads). Row n of x has `heads` heads, and rows are
    `stride` elements apart. The functions differ in the position of row n:

    * `rotate_run`: n - numbers[n].
    * `rotate_each`: numbers[n] - 1.
    * `rotate_all`: the first position of the table.

    A pair of dimensions is two neighbors if `interleaved`, else two dimensions that are K / 2 apart. K is a multiple of
    two vectors.
    """
    for kind in ("run", "all", "each"):
        kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, I64)
        with k.function(f"rotate_{kind}", *kinds) as (x, rows, stride, count, table, *more):
            numbers, *share = more
            with k.thread_loop(k.mul(rows, count), share) as item:
                row, head = k.build.sdiv(item, count), k.build.srem(item, count)
                position = k.int64(0)
                if kind == "run":
                    position = k.build.sub(row, k.load(k.element_pointer(numbers, row, I64), I64))
                elif kind == "each":
                    position = k.add(k.load(k.element_pointer(numbers, row, I64), I64), -1)
                angles = k.element_pointer(table, k.mul(position, heads.width))
                head_pointer = k.element_pointer(x, k.add(k.mul(row, stride), k.mul(head, heads.width)))
                emit_rotary_head(k, heads.width, (head_pointer, head_pointer), angles, interleaved=interleaved)


def emit_rotary_head(
    k: KernelBuilder,
    width: int,
    pointers: tuple[Value, Value],
    angles: Value,
    *,
    interleaved: bool,
    element: Any = F32,
    direction: Value | None = None,
) -> None:
    """Emit the rotary embedding of one head, K = `width` elements, from one pointer to another.

    Args:
        k: the IR builder.
        width: K.
        pointers: pointers to the source and the target, which may be equal.
        angles: pointer to K / 2 cosines, then K / 2 sines, float32.
        interleaved: whether the two dimensions of a pair are neighbors.
        element: the LLVM type of the elements.
        direction: a vector of ones, or of minus ones to rotate by the opposite angles; None: ones.
    """
    half, (source, target) = width // 2, pointers
    for column in range(0, half, k.lanes):
        cosine, sine = k.load_floats(angles, column), k.load_floats(angles, half + column)
        sine = sine if direction is None else k.build.fmul(sine, direction)
        starts = (2 * column, 2 * column + k.lanes) if interleaved else (column, half + column)
        first, second = (k.load_as_float32(source, start, element) for start in starts)
        if interleaved:
            first, second = (k.shuffle(first, second, range(odd, 2 * k.lanes, 2)) for odd in (0, 1))
        rotated = (
            k.build.fsub(k.build.fmul(first, cosine), k.build.fmul(second, sine)),
            k.build.fadd(k.build.fmul(second, cosine), k.build.fmul(first, sine)),
        )
        if interleaved:
            pairs = [lane + side * k.lanes for lane in range(k.lanes) for side in range(2)]
            rotated = (k.shuffle(*rotated, pairs[: k.lanes]), k.shuffle(*rotated, pairs[k.lanes :]))
        for start, value in zip(starts, rotated, strict=True):
            k.store_float32_as(value, target, start, element)
