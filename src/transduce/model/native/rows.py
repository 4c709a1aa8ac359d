"""Kernels that look at one row at a time: norms, and attention to rows of keys and values.

Legend: N rows, D model width, H heads, G heads of keys and values, K width of a head's keys and of its values, L
positions attended to.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.config import ModelConfig
from transduce.model.native.emit import F16, F32, I32, I64, POINTER, Emitter, Value

_Load = Callable[[Value, Value], list[Value]]  # an entry's vectors: from entry 0, and a number in a row's past

_LOG2_E = 1.0 / math.log(2.0)
_POWERS = [math.log(2.0) ** n / math.factorial(n) for n in range(7)]  # of 2^x about 0
_NEVER = float("-inf")
_LEAST_EXPONENT = -87.0  # e to this is still a normal float32


def exponential(k: Emitter, x: Value, *, keeps_nan: bool = False) -> Value:
    """e^x of a vector that is nowhere positive; a relative error of some 10^-7, more where the result is small.

    Of NaN it is a number, unless it `keeps_nan`.
    """
    given = x
    x = k.greater(x, k.splat(_LEAST_EXPONENT))
    power = k.build.fmul(x, k.splat(_LOG2_E))
    whole = k.intrinsic(f"llvm.rint.v{k.lanes}f32", k.floats, power)
    rest = k.build.fsub(power, whole)
    value = k.splat(_POWERS[-1])
    for coefficient in reversed(_POWERS[:-1]):
        value = k.madd(value, rest, k.splat(coefficient))
    shift = k.build.shl(k.build.fptosi(whole, k.ints), ir.Constant(k.ints, [23] * k.lanes))
    found = k.build.bitcast(k.build.add(k.build.bitcast(value, k.ints), shift), k.floats)
    return k.build.select(k.build.fcmp_unordered("uno", given, given), given, found) if keeps_nan else found


def write_embedding(k: Emitter, *, is_ragged: bool) -> None:
    """`embed(ids, N, D, table, scale, added, x, lists, list stride, entry, counts, thread, threads)`.

    Rows of a table times a number, plus what is added to all; and the next entry of each row's list, from `entry` on.
    Where they are ragged, row n is at position counts[n] - 1 of its list, and of what is added.
    """
    kinds = (POINTER, I64, I64, POINTER, F32, POINTER, POINTER, POINTER, I64, I64, POINTER, I64, I64)
    with k.function("embed", *kinds) as (ids, rows, width, table, scale, added, x, lists, list_stride, *others):
        entry, counts, *share = others
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            number = k.build.trunc(k.sum_of(entry, row), I32)
            position = k.sum_of(k.load(k.at(counts, row, I64), I64), -1) if is_ragged else k.number(0)
            k.store(number, k.at(lists, k.sum_of(k.times(row, list_stride), position), I32))
            _embed_row(k, (ids, row, width, table, scale, x), k.at(added, k.times(position, width)))


def write_embedding_of_runs(k: Emitter) -> None:
    """`embed_run(ids, N, D, table, scale, added, x, firsts, thread, threads)`: row n is at position n - firsts[n]."""
    kinds = (POINTER, I64, I64, POINTER, F32, POINTER, POINTER, POINTER, I64, I64)
    with k.function("embed_run", *kinds) as (ids, rows, width, table, scale, added, x, firsts, *share):
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            position = k.build.sub(row, k.load(k.at(firsts, row, I64), I64))
            _embed_row(k, (ids, row, width, table, scale, x), k.at(added, k.times(position, width)))


def _embed_row(k: Emitter, given: tuple[Value, ...], added: Value) -> None:
    """A piece's row of the table times a number, plus what is added."""
    ids, row, width, table, scale, x = given
    here = k.at(table, k.times(k.load(k.at(ids, row, I64), I64), width))
    there = k.at(x, k.times(row, width))
    with k.loop(0, width, k.lanes) as column:
        value = k.madd(k.load_floats(here, column), k.splat(scale), k.load_floats(added, column))
        k.store(value, k.at(there, column))


def write_norms(k: Emitter) -> None:
    """`norm_layer` and `norm_rms(x, N, D, weight, bias, epsilon, out, thread, threads)`; out may be x."""
    for kind in ("layer", "rms"):
        kinds = (POINTER, I64, I64, POINTER, POINTER, F32, POINTER, I64, I64)
        with k.function(f"norm_{kind}", *kinds) as (x, rows, width, weight, bias, epsilon, out, *share):
            first, last = k.share(rows, *share)
            with k.loop(first, last) as row:
                here, there = k.at(x, k.times(row, width)), k.at(out, k.times(row, width))
                mean = k.splat(0.0) if kind == "rms" else k.splat(_mean(k, here, width, None))
                variance = _mean(k, here, width, mean)
                root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(variance, epsilon))
                scale = k.splat(k.build.fdiv(k.real(1.0), root))
                for column, _ in k.each_vector(width):
                    moved = k.build.fmul(k.build.fsub(k.load_floats(here, column), mean), scale)
                    value = k.madd(moved, k.load_floats(weight, column), k.load_floats(bias, column))
                    k.store(value, k.at(there, column))


def _mean(k: Emitter, place: Value, width: Value, centre: Value | None) -> Value:
    """Of a row's numbers, or of their squared distances from a centre."""

    def term(column: Value) -> list[Value]:
        own = k.load_floats(place, column)
        if centre is None:
            return [own]
        own = k.build.fsub(own, centre)
        return [k.build.fmul(own, own)]

    return means(k, width, term)[0]


def means(k: Emitter, width: Value, terms: Callable[[Value], list[Value]], count: int = 1) -> list[Value]:
    """Over a row, of what stands in each column. Several sums at once: each addition waits for the one before."""
    totals = [k.sums() for _ in range(count)]
    for column, number in k.each_vector(width):
        for total, term in zip(totals, terms(column), strict=True):
            k.add_to(total, number, term, k.build.fadd)
    size = k.build.sitofp(width, F32)
    return [k.build.fdiv(k.total(k.joined(total, k.build.fadd)), size) for total in totals]


class Heads(NamedTuple):
    """The shape of attention."""

    number: int
    """H."""
    shared: int
    """G: heads of keys and values, each for as many neighbouring heads of queries."""
    width: int
    """K, a multiple of the lanes."""
    scale: float
    """What products of queries and keys are multiplied by."""

    @staticmethod
    def of(config: ModelConfig) -> "Heads":
        """A model's, whose scores are products."""
        shared, scale = config.num_key_value_heads or config.num_heads, config.attention_scale
        if scale is None:
            scale = 1.0 if config.attention_score == "dot" else 1.0 / math.sqrt(config.key_width)
        return Heads(config.num_heads, shared, config.key_width, scale)

    @property
    def queries(self) -> int:
        """Numbers of a row's queries: H × K."""
        return self.number * self.width

    @property
    def keys(self) -> int:
        """Numbers of a position's keys, and of its values: G × K."""
        return self.shared * self.width


class _Row(NamedTuple):
    """One head of one row."""

    query: Value
    keys: Value
    """Of this head, in entry 0."""
    values: Value
    stride: Value
    """From an entry to the next."""
    out: Value
    scores: Value
    near: Value
    """What is added to the first key's score; the others' follows."""


_ATTEND = (
    POINTER,
    I64,
    POINTER,
    POINTER,
    I64,
    POINTER,
    POINTER,
    I64,
    POINTER,
    I64,
    I64,
    POINTER,
    POINTER,
    I64,
    I64,
    I64,
)


def write_attention(k: Emitter, heads: Heads, kind: str, *, is_biased: bool, element: Any = F32) -> str:
    """Equation (1) for rows of queries, each with entries of its own.

    `attend_run(queries, query stride, keys, values, stride, firsts, counts, 0, near, near stride, N, out, scores, room,
    thread, threads)`: row n attends to counts[n] entries from firsts[n] on.
    `attend_list(queries, …, stride, lists, count, list stride, near, …)`: row n attends to the entries of its list of
    32-bit numbers; all lists are equally long, and the row is at their last position. `attend_lists` likewise, with
    counts of their own.
    scores: room for L + lanes numbers for each thread. `near_…` adds, for each head, what stands in its row of `near`
    at the distance from the row's position to the key's; `…_half` finds keys and values in float16.

    Returns:
        The function's name; it is written where there is none.
    """
    name = "attend_" + _name(kind, is_biased=is_biased, element=element)
    if k.has(name):
        return name
    head = _write_head(k, heads, kind, is_biased=is_biased, element=element)
    with k.function(name, *_ATTEND) as arguments:
        queries, query_stride, keys, values, stride, first_of, count_of, list_stride, *others = arguments
        near, near_stride, rows, out, scores, room, *share = others
        first, last = k.share(k.times(rows, heads.number), *share)
        own_scores = k.at(scores, k.times(share[0], room))
        with k.loop(first, last) as number:
            row, head_number = (divide(number, k.number(heads.number)) for divide in (k.build.sdiv, k.build.srem))
            column = k.times(head_number, heads.width)
            shared_column = column
            if heads.shared < heads.number:
                shared = k.build.sdiv(head_number, k.number(heads.number // heads.shared))
                shared_column = k.times(shared, heads.width)
            if kind == "run":
                start, count = (k.load(k.at(each, row, I64), I64) for each in (first_of, count_of))
                listed, position = first_of, k.build.sub(row, start)
            else:
                of_row = row if kind == "lists" else k.number(0)
                start, count = k.number(0), k.load(k.at(count_of, of_row, I64), I64)
                listed, position = k.at(first_of, k.times(row, list_stride), I32), k.sum_of(count, -1)
            bias = near
            if is_biased:
                bias = k.at(near, k.build.sub(k.times(head_number, near_stride), position))
            place = _Row(
                k.at(queries, k.sum_of(k.times(row, query_stride), column)),
                k.at(keys, shared_column, element),
                k.at(values, shared_column, element),
                stride,
                k.at(out, k.sum_of(k.times(row, heads.queries), column)),
                own_scores,
                bias,
            )
            k.call(head, *place, start, count, listed)
    return name


def _name(kind: str, *, is_biased: bool, element: Any) -> str:
    return kind + ("_near" if is_biased else "") + ("_half" if element == F16 else "")


def _write_head(k: Emitter, heads: Heads, kind: str, *, is_biased: bool, element: Any) -> str:
    """One head of one row, which `attend_…` calls."""
    name = "head_" + _name(kind, is_biased=is_biased, element=element)
    types = (POINTER, POINTER, POINTER, I64, POINTER, POINTER, POINTER, I64, I64, POINTER)
    with k.function(name, *types) as arguments:
        place, (start, count, listed) = _Row(*arguments[:7]), arguments[7:]

        def entry(number: Value) -> Value:
            if kind == "run":
                return k.sum_of(start, number)
            return k.build.sext(k.load(k.at(listed, number, I32), I32), I64)

        def key_or_value(first: Value, number: Value) -> list[Value]:
            there = k.at(first, k.times(entry(number), place.stride), element)
            return [k.load_wide(there, column, element) for column in range(0, heads.width, k.lanes)]

        greatest = _write_scores(k, heads, place, count, key_or_value, is_biased=is_biased)
        total = _write_exponentials(k, place.scores, count, greatest)
        _write_mean(k, heads, place, count, key_or_value, total)
    return name


def _write_scores(k: Emitter, heads: Heads, place: _Row, count: Value, load: _Load, *, is_biased: bool) -> Value:
    """Products of the query with all keys, scaled; the greatest. Sums of some keys at a time are added up at once."""
    query = [k.load_floats(place.query, column) for column in range(0, heads.width, k.lanes)]
    k.store(k.splat(_NEVER), k.at(place.scores, count))
    some = k.lanes // 4
    whole = k.times(k.build.sdiv(count, k.number(some)), some)

    def products(number: Value) -> Value:
        total = k.splat(0.0)
        for own, key in zip(query, load(place.keys, number), strict=True):
            total = k.madd(own, key, total)
        return total

    def finish(number: Value, score: Value, scale: Value, greatest: Value) -> None:
        score = k.build.fmul(score, scale)
        if is_biased:
            score = k.build.fadd(score, k.load(k.at(place.near, number), score.type))
        k.store(score, k.at(place.scores, number))
        k.store(k.greater(score, k.get(greatest, score)), greatest)

    few = ir.VectorType(F32, some)
    scales, never = (ir.Constant(few, [ir.Constant(F32, value)] * some) for value in (heads.scale, _NEVER))
    greatest_few, greatest = k.variable(never), k.variable(k.real(_NEVER))
    with k.loop(0, whole, some) as first:
        finish(first, k.totals([products(k.sum_of(first, n)) for n in range(some)]), scales, greatest_few)
    with k.loop(whole, count) as number:
        finish(number, k.total(products(number)), k.real(heads.scale), greatest)
    found = k.get(greatest, k.real(0.0))
    for n in range(some):
        found = k.greater(k.build.extract_element(k.get(greatest_few, never), ir.Constant(I32, n)), found)
    return found


def _write_exponentials(k: Emitter, scores: Value, count: Value, greatest: Value) -> Value:
    """In place; their sum."""
    total, most = k.variable(k.splat(0.0)), k.splat(greatest)
    with k.loop(0, count, k.lanes) as number:
        weights = exponential(k, k.build.fsub(k.load_floats(scores, number), most))
        k.store(weights, k.at(scores, number))
        k.store(k.build.fadd(k.get(total, weights), weights), total)
    return k.total(k.get(total, k.splat(0.0)))


def _write_mean(k: Emitter, heads: Heads, place: _Row, count: Value, load: _Load, total: Value) -> None:
    """The values by their weights."""
    columns = range(0, heads.width, k.lanes)
    sums = [k.variable(k.splat(0.0)) for _ in columns]
    with k.loop(0, count) as number:
        weight = k.splat(k.load(k.at(place.scores, number)))
        for own, value in zip(sums, load(place.values, number), strict=True):
            k.store(k.madd(weight, value, k.get(own, weight)), own)
    scale = k.splat(k.build.fdiv(k.real(1.0), total))
    for column, own in zip(columns, sums, strict=True):
        k.store(k.build.fmul(k.get(own, scale), scale), k.at(place.out, column))


def transpose(k: Emitter, rows: list[Value]) -> list[Value]:
    """A square of as many vectors as there are lanes: its columns. Each round interleaves rows that are half apart."""
    half = len(rows) // 2
    low = [lane + k.lanes * side for lane in range(half) for side in range(2)]
    masks = [ir.Constant(k.ints, [number + start for number in low]) for start in (0, half)]
    for _ in range(k.lanes.bit_length() - 1):
        rows = [k.build.shuffle_vector(rows[n], rows[n + half], mask) for n in range(half) for mask in masks]
    return rows
