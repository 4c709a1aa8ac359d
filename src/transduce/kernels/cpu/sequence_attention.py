"""Emit attention of whole sequences in inference: each token of a sentence attends to all tokens of the sentence.

Sentences follow each other without padding. A thread computes one head of one sentence at a time. It transposes the
head's keys once, so that neighboring keys lie in a vector's lanes and scores need no reductions across lanes. A few
queries share each loaded key and value. The order in which numbers are added does not depend on the batch, so neither
do the results.

Legend: N rows (tokens of all sentences), S sentences, H heads, L tokens of a sentence, K width of a head's queries,
keys and values.
"""

from itertools import accumulate
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.decode_rows import HeadShape, exponential, transpose
from transduce.kernels.cpu.jit.ir_builder import F32, I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.tile import MAX_LANES

_ROWS = 6  # queries that share loaded operands
_NEVER = float("-inf")


class SequenceArguments(NamedTuple):
    """The arguments of the emitted function `attend_sequences` (attention of whole sentences); mostly pointers."""

    queries: Any
    """Address of the queries of row 0, float32, K elements for each head."""
    keys: Any
    """Address of the keys of row 0, float32, K elements for each key/value head."""
    values: Any
    """Address of the values of row 0, float32, K elements for each key/value head."""
    stride: Any
    """The number of elements from one row of queries, keys and values to the next."""
    starts: Any
    """Address of the first row of each sentence, int64 (S,)."""
    counts: Any
    """Address of the number of tokens of each sentence, int64 (S,)."""
    sentences: Any
    """The number of sentences S whose attention is computed."""
    bias: Any
    """Address of the first head's relative position bias for distance 0, in the middle of its biases.

    The distance is the key's position minus the query's.
    """
    bias_stride: Any
    """The number of elements from one head's relative position biases to the next head's."""
    out: Any
    """Address of the attention output, float32 (N, H × K)."""
    scratch: Any
    """Address of scratch space of `scratch_each` float32 numbers for each thread."""
    scratch_each: Any
    """The number of float32 numbers of each thread's scratch space, as `sequence_scratch_size` returns it."""
    thread: Any
    """The index of the calling thread, from 0 to `threads` - 1."""
    threads: Any
    """The number of threads that call the function together, among which the heads are divided."""


_TYPES = (*[POINTER] * 3, I64, POINTER, POINTER, I64, POINTER, I64, POINTER, POINTER, *[I64] * 3)


def sequence_scratch_size(width: int, max_length: int) -> int:
    """Return the number of float32 numbers of scratch space that a thread needs to compute one head of one sentence.

    The head has K = `width` elements, and sentences have at most `max_length` tokens.
    """
    block = 2 * MAX_LANES
    return (2 * width + _ROWS) * -(-max_length // block) * block + _ROWS * width


class _Head(NamedTuple):
    """Arguments of the emitted function that attends to one head of one sentence: pointers (IR values) and sizes."""

    queries: Value
    bias: Value
    out: Value
    stride: Value
    count: Value
    """The number of tokens L of the sentence."""
    filled: Value
    """The sentence's number of tokens L, rounded up to whole blocks of keys, each of two vectors."""
    transposed: Value
    """Pointer to the sentence's keys for one head, transposed in blocks of two vectors of keys.

    The shape is (blocks, K, keys of a block).
    """
    values: Value
    """Pointer to the sentence's values for one head, copied without gaps, (L, K)."""
    weights: Value
    """Pointer to scores, later attention weights, of the queries that are computed together, (queries, filled)."""
    scaled: Value
    """Pointer to the queries that are computed together, times the attention scale, (queries, K)."""


_HEAD_TYPES = (POINTER, POINTER, POINTER, I64, I64, I64, *[POINTER] * 4)


def emit_sequence_attention(k: KernelBuilder, heads: HeadShape, *, is_biased: bool) -> str:
    """Emit the function `attend_sequences` if the IR module lacks it; return the function's name.

    The function computes self-attention of whole sentences. Its arguments are the fields of `SequenceArguments`. If
    `is_biased`, a relative position bias is added to the scores.
    """
    name = "attend_sequences"
    if not k.has(name):
        _write_sequence_attention(k, heads, name, is_biased=is_biased)
    return name


@outlined
def _write_sequence_attention(k: KernelBuilder, heads: HeadShape, name: str, *, is_biased: bool) -> None:
    """Emit the function of `emit_sequence_attention` under a name, and the functions that it calls."""
    _SequenceAttention(k, heads, is_biased=is_biased).write(name)


class _SequenceAttention:
    """An emitter of self-attention over whole sentences in inference, for one shape of heads."""

    def __init__(self, k: KernelBuilder, heads: HeadShape, *, is_biased: bool) -> None:
        self.k, self.heads, self.is_biased = k, heads, is_biased
        self.block = 2 * k.lanes
        # As many columns of the output at once as leave registers for the sums of all rows.
        width = 4 * k.lanes if k.lanes == 16 else 2 * k.lanes
        self.columns = [
            list(range(first, min(first + width, heads.width), k.lanes)) for first in range(0, heads.width, width)
        ]

    def write(self, name: str) -> None:
        """Emit the function `name`, which computes all attention heads of all sentences, divided among the threads."""
        k, heads = self.k, self.heads
        for rows in range(1, _ROWS + 1):
            self._write_queries(rows)
        with k.function(name, *_TYPES) as arguments:
            args = SequenceArguments(*arguments)
            scratch = k.element_pointer(args.scratch, k.mul(args.thread, args.scratch_each))
            with k.thread_loop(k.mul(args.sentences, heads.number), (args.thread, args.threads)) as number:
                sentence, head = (divide(number, k.int64(heads.number)) for divide in (k.build.sdiv, k.build.srem))
                self._write_head(args, sentence, head, scratch)

    def _write_head(self, args: SequenceArguments, sentence: Value, number: Value, scratch: Value) -> None:
        """Emit attention of one head of one sentence.

        Keys and values are first copied to the scratch space. Then up to six queries are computed at a time. `number`
        is the query head's index, and `scratch` points to the thread's scratch space.
        """
        k, heads = self.k, self.heads
        start, count = (k.load(k.element_pointer(each, sentence, I64), I64) for each in (args.starts, args.counts))
        shared = k.build.sdiv(number, k.int64(heads.number // heads.shared)) if heads.shared < heads.number else number
        row, column = k.mul(start, args.stride), k.mul(number, heads.width)
        filled = k.mul(k.build.sdiv(k.add(count, self.block - 1), k.int64(self.block)), self.block)
        sizes = [k.mul(filled, heads.width), k.mul(filled, heads.width), k.mul(filled, _ROWS)]
        transposed, values, weights, scaled = accumulate(sizes, k.element_pointer, initial=scratch)
        source = k.add(row, k.mul(shared, heads.width))
        self._transpose(k.element_pointer(args.keys, source), args.stride, count, filled, transposed)
        self._gather(k.element_pointer(args.values, source), args.stride, count, values)
        queries = k.element_pointer(args.queries, k.add(row, column))
        bias = k.element_pointer(args.bias, k.mul(number, args.bias_stride))
        out = k.element_pointer(args.out, k.add(k.mul(start, heads.queries), column))
        head = _Head(queries, bias, out, args.stride, count, filled, transposed, values, weights, scaled)
        whole = k.mul(k.build.sdiv(count, k.int64(_ROWS)), _ROWS)
        with k.loop(0, whole, _ROWS) as query:
            k.call(f"attend_queries_{_ROWS}", *head, query)
        for rest in range(1, _ROWS):
            with k.when(k.build.icmp_signed("==", k.build.sub(count, whole), k.int64(rest))):
                k.call(f"attend_queries_{rest}", *head, whole)

    def _transpose(self, keys: Value, stride: Value, count: Value, filled: Value, out: Value) -> None:
        """Emit a copy of `count` keys to `out`, transposed in blocks.

        So the scores of neighboring keys are in one vector. `filled` is `count` rounded up to whole blocks. Copies of
        the last key fill the last block; their scores are ignored.
        """
        k, last = self.k, self.k.add(count, -1)
        with k.loop(0, filled, k.lanes) as first, k.loop(0, self.heads.width, k.lanes) as column:
            square = []
            for lane in range(k.lanes):
                row = k.minimum(k.add(first, lane), last)
                square.append(k.load_floats(keys, k.add(k.mul(row, stride), column)))
            block = k.mul(k.build.sdiv(first, k.int64(self.block)), self.block * self.heads.width)
            side = k.build.srem(first, k.int64(self.block))
            target = k.element_pointer(out, k.add(block, k.mul(column, self.block), side))
            for lane, vector in enumerate(transpose(k, square)):
                k.store(vector, k.element_pointer(target, lane * self.block))

    def _gather(self, values: Value, stride: Value, count: Value, out: Value) -> None:
        """Emit a copy of a head's `count` values to `out` without gaps, (count, K)."""
        k, width = self.k, self.heads.width
        with k.loop(0, count) as row:
            for column in range(0, width, k.lanes):
                value = k.load_floats(values, k.add(k.mul(row, stride), column))
                k.store(value, k.element_pointer(out, k.add(k.mul(row, width), column)))

    def _write_queries(self, rows: int) -> None:
        """Emit the function that computes attention of `rows` queries of one head, such as `attend_queries_6`.

        The function's arguments are the fields of `_Head` and the index of the first query.
        """
        k = self.k
        with k.function(f"attend_queries_{rows}", *_HEAD_TYPES, I64) as (*pointers, query):
            head = _Head(*pointers)
            self._scale(head, query, rows)
            greatest = self._scores(head, query, rows)
            inverses = self._exponentials(head, rows, greatest)
            self._outputs(head, query, rows, inverses)

    def _scale(self, head: _Head, query: Value, rows: int) -> None:
        """Emit a copy of `rows` queries, multiplied by the attention scale, to the scratch space."""
        k, width = self.k, self.heads.width
        for row in range(rows):
            source = k.element_pointer(head.queries, k.mul(k.add(query, row), head.stride))
            for column in range(0, width, k.lanes):
                value = k.build.fmul(k.load_floats(source, column), k.splat(self.heads.scale))
                k.store(value, k.element_pointer(head.scaled, row * width + column))

    def _scores(self, head: _Head, query: Value, rows: int) -> list[Value]:
        """Emit the scores of all keys for `rows` queries from `query` on; return a list of each query's greatest score.

        The scores are stored in scratch space, and are -inf after the last key.
        """
        k, width = self.k, self.heads.width
        greatest = [k.variable(k.splat(_NEVER)) for _ in range(rows)]
        with k.loop(0, head.filled, self.block) as first:
            keys = k.element_pointer(head.transposed, k.mul(first, width))
            totals = [[k.variable(k.splat(0.0)) for _ in range(2)] for _ in range(rows)]
            with k.loop(0, width) as column:
                line = k.element_pointer(keys, k.mul(column, self.block))
                vectors = [k.load_floats(line, side * k.lanes) for side in range(2)]
                for row, sums in enumerate(totals):
                    factor = k.splat(k.load(k.element_pointer(head.scaled, k.add(column, row * width))))
                    for total, vector in zip(sums, vectors, strict=True):
                        k.store(k.madd(factor, vector, k.load_variable(total)), total)
            for side in range(2):
                start = k.add(first, side * k.lanes)
                inside = self._inside(start, head.count)
                for row, sums in enumerate(totals):
                    score = k.load_variable(sums[side])
                    if self.is_biased:
                        distance = k.build.sub(start, k.add(query, row))
                        score = k.build.fadd(score, k.load_as_float32(head.bias, distance, F32, mask=inside))
                    score = k.build.select(inside, score, k.splat(_NEVER))
                    k.accumulate(greatest[row], score, k.maximum)
                    k.store(score, self._weight(head, row, start))
        return [k.reduce_max(k.load_variable(each)) for each in greatest]

    def _inside(self, start: Value, count: Value) -> Value:
        """Return (an IR value) a mask of the vector of keys that begins at key `start`: true for keys below `count`."""
        k = self.k
        remaining = k.splat(k.build.trunc(k.build.sub(count, start), I32))
        return k.build.icmp_signed("<", ir.Constant(k.ints, list(range(k.lanes))), remaining)

    def _weight(self, head: _Head, row: int, key: Value) -> Value:
        """Return a pointer to the score, later the attention weight, of a key for query `row`.

        `row` is an index among the queries that are computed together.
        """
        k = self.k
        return k.element_pointer(head.weights, k.add(k.mul(head.filled, row), key))

    def _exponentials(self, head: _Head, rows: int, greatest: list[Value]) -> list[Value]:
        """Emit the replacement of scores by exp(score - greatest score of the query).

        Return a list with the inverse of the sum of each query's exponentials (IR values).
        """
        k = self.k
        totals = [k.variable(k.splat(0.0)) for _ in range(rows)]
        limits = [k.splat(each) for each in greatest]
        with k.loop(0, head.filled, k.lanes) as start:
            for row, total in enumerate(totals):
                pointer = self._weight(head, row, start)
                score = k.load(pointer, k.floats)
                value = exponential(k, k.build.fsub(score, limits[row]), keeps_nan=True)
                # An exponential is never quite zero, but a key that does not exist has no weight at all.
                value = k.build.select(self._inside(start, head.count), value, k.splat(0.0))
                k.accumulate(total, value, k.build.fadd)
                k.store(value, pointer)
        sums = [k.reduce_sum(k.load_variable(total)) for total in totals]
        return [k.build.fdiv(k.float32(1.0), each) for each in sums]

    def _outputs(self, head: _Head, query: Value, rows: int, inverses: list[Value]) -> None:
        """Emit the attention outputs of `rows` queries: the means of the values, weighted by the exponentials."""
        k, width = self.k, self.heads.width
        for columns in self.columns:
            totals = [[k.variable(k.splat(0.0)) for _ in columns] for _ in range(rows)]
            with k.loop(0, head.count) as key:
                line = k.element_pointer(head.values, k.mul(key, width))
                vectors = [k.load_floats(line, column) for column in columns]
                for row, sums in enumerate(totals):
                    factor = k.splat(k.load(self._weight(head, row, key)))
                    for total, vector in zip(sums, vectors, strict=True):
                        k.store(k.madd(factor, vector, k.load_variable(total)), total)
            for row, sums in enumerate(totals):
                target = k.element_pointer(head.out, k.mul(k.add(query, row), self.heads.queries))
                for column, total in zip(columns, sums, strict=True):
                    value = k.build.fmul(k.load_variable(total), k.splat(inverses[row]))
                    k.store(value, k.element_pointer(target, column))
