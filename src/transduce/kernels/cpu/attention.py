"""Emit attention kernels of training, equation (1) and its gradient, that process each head in one pass.

Sentences are short. One head's keys and values fit in the L1 cache, so nothing of size Q × L is written to main memory.
Keys are transposed once per sentence so that they lie in a vector's lanes; scores then need no reductions across lanes.
For the gradient, attention weights and score gradients of some queries are kept, so sums over queries or keys stay in
registers. Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.decode_rows import exponential, transpose
from transduce.kernels.cpu.jit.compiler import kernel_of
from transduce.kernels.cpu.jit.ir_builder import F32, I32, I64, KernelBuilder, Value
from transduce.kernels.cpu.train_rows import emit_hash

# --- arguments and scratch space ---


GROUP_SIZE = 4
"""The greatest number of queries or keys that are computed together so that they share loaded operands.

The number of vector registers limits it.
"""
QUERIES_AT_ONCE = 64
"""The number of queries whose attention weights and score gradients the backward pass keeps at a time."""
BIAS_KEYS = 16
"""The multiple to which the rows of an attention bias (one number for each key) are padded."""
AMX_KEYS = 32
"""The number of bfloat16 elements in a row of an AMX tile register.

The backward pass computes this number of queries at a time, and numbers of keys are rounded up to a multiple of it.
"""
_APART = 16 * 17  # elements between arrays, which would otherwise map to the same sets of the L1 cache


class AttentionArguments(NamedTuple):
    """Arguments of the kernels `attend` and `attend_backward`: addresses, unless stated otherwise.

    Strides are counted in elements.
    """

    queries: Any
    """Address of the first head's queries, float32 or bfloat16; each position has H × K contiguous elements."""
    keys: Any
    """Address of the first head's keys; a position has (key/value heads) × K contiguous elements."""
    values: Any
    """Address of the first head's values; a position has (key/value heads) × K contiguous elements."""
    query_gradient: Any
    """Address of the gradient of the queries, with their stride, which the backward pass writes."""
    key_gradient: Any
    """Address of the gradient of the keys, with their stride, which the backward pass writes."""
    value_gradient: Any
    """Address of the gradient of the values, with the keys' stride, which the backward pass writes."""
    query_stride: Any
    """The number of elements from the queries of one position to those of the next position, at least H × K."""
    key_stride: Any
    """The number of elements from the keys of one position to those of the next position; it is that of values too."""
    batch: Any
    """The number of sentences B in the batch."""
    heads: Any
    """The number of query heads H."""
    num_queries: Any
    """The number of queries Q of each sentence, padding included."""
    num_keys: Any
    """The number of keys L of each sentence, padding included."""
    lengths: Any
    """Address of each sentence's number of valid keys, int64 (B,); 0: the mask is causal, and all keys are valid."""
    context: Any
    """Address of the attention output, (B, Q, H × K), which `attend` writes.

    For `attend_backward`, the address is that of the output's gradient, which is read.
    """
    sums: Any
    """Address of float32 (B, H, Q, 2): each query's greatest score, and the inverse of its sum of exponentials.

    `attend` writes these two numbers, and `attend_backward` reads them to compute the attention weights again.
    """
    scratch: Any
    """Address of scratch space of `scratch_per_thread` float32 numbers for each thread."""
    scratch_per_thread: Any
    """The number of float32 numbers of scratch space per thread, as `attention_scratch_size` returns it."""
    seed: Any = 0
    """The 64-bit seed from which dropout computes which attention weights it drops."""
    drop_256ths: Any = 0
    """The dropout rate of the attention weights in 256ths; 0: no dropout."""
    bias: Any = 0
    """Address of a bias that is added to the scores of each sentence, float32 (H, Q, L'); 0: no bias.

    L' is the number of keys L, rounded up to a multiple of `BIAS_KEYS`.
    """
    bias_gradient: Any = 0
    """Address of float32, shaped like `bias`, to which the backward pass adds the bias' gradient; 0: no bias."""


class AttentionShape(NamedTuple):
    """The sizes, element type and options for which a pair of attention kernels is compiled."""

    width: int
    """The head width K, a multiple of the vector length `lanes`."""
    kind: Any
    """The LLVM type of queries, keys, values and outputs: F32, or I16 for bfloat16."""
    lanes: int
    """The number of 32-bit elements per vector register, which is the vector length."""
    scale: float
    """The factor by which attention multiplies the dot products of queries and keys."""
    shared: int = 1
    """The number of neighboring query heads that share a key/value head."""
    drops: bool = False
    """True if attention weights are dropped at random (dropout)."""
    biased: bool = False
    """True if a bias, such as that of relative positions, is added to the scores."""
    amx: bool = False
    """True if AMX computes the matrix products.

    AMX requires bfloat16, K a multiple of `AMX_KEYS`, and no shared heads, dropout or bias.
    """


def attention_scratch_size(shape: AttentionShape, num_keys: int, num_queries: int) -> int:
    """Return the number of float32 numbers of scratch space that each thread needs in the attention kernels."""
    if shape.amx:
        filled = -(-num_keys // AMX_KEYS) * AMX_KEYS
        return sum(filled * each_key + rest for each_key, rest in amx_scratch_sizes(shape.width))
    filled, queries = -(-num_keys // shape.lanes) * shape.lanes, min(num_queries, QUERIES_AT_ONCE)
    return 6 * filled * shape.width + 2 * max(queries, GROUP_SIZE) * (shape.width + filled)


def amx_scratch_sizes(width: int) -> list[tuple[int, int]]:
    """Return the sizes of the arrays of `AmxScratch`, as a list of one pair (a, b) for each array.

    An array has a · L + b float32 elements. L is the number of keys, rounded up to a multiple of `AMX_KEYS`, and
    `width` is the head width K.
    """
    rows, sixteen = (width // 2, 0), (16, 0)
    transposed, queries = (0, 8 * width), (0, 16 * width)
    pairs, float_rows = (8, 0), (width, 0)
    sizes = [
        *[rows] * 4,
        *[transposed] * 2,
        *[sixteen] * 2,
        *[pairs] * 2,
        queries,
        (0, 16),
        *[queries] * 2,
        *[sixteen] * 2,
        *[float_rows] * 2,
    ]
    return [(each_key, rest + _APART) for each_key, rest in sizes]


# --- one head of one sentence ---
# What the forward and backward kernels share.


_UNROLLED = 8  # columns per loop iteration


class HeadScratch(NamedTuple):
    """Pointers (IR values) to float32 arrays in one thread's scratch space, for one attention head of one sentence."""

    transposed_keys: Value
    """Pointer to the sentence's keys, transposed in blocks of `lanes` keys, (L / lanes, K, lanes)."""
    transposed_values: Value
    """Pointer to the sentence's values, transposed in blocks of `lanes` values, (L / lanes, K, lanes)."""
    keys: Value
    """Pointer to the sentence's keys converted to float32, (L, K)."""
    values: Value
    """Pointer to the sentence's values converted to float32, (L, K)."""
    key_gradient: Value
    """Pointer to the gradient of the sentence's keys, summed over queries, (L, K)."""
    value_gradient: Value
    """Pointer to the gradient of the sentence's values, summed over queries, (L, K)."""
    queries: Value
    """Pointer to queries times the attention scale, K elements each.

    The forward pass stores one group of queries, the backward pass up to `QUERIES_AT_ONCE` queries.
    """
    context_gradient: Value
    """Pointer to the gradient of the attention outputs of up to `QUERIES_AT_ONCE` queries, K elements each."""
    weights: Value
    """Pointer to scores, later attention weights, of the queries that are computed together, L elements each."""
    score_gradients: Value
    """Pointer to the gradient of the scores of the queries that are computed together, L elements each."""


class QueryGroup(NamedTuple):
    """A range of consecutive queries that an attention head computes together, to share loaded keys and values."""

    first: Value
    """The index (an IR value), in its sentence, of the group's first query."""
    size: int
    """The number of queries in the group."""
    scratch_first: Value
    """The index of the group's first query among the queries that are in scratch space (an IR value)."""


class HeadAddresses:
    """An emitter of the addresses of one attention head in one sentence: its queries, keys, values and outputs."""

    def __init__(self, k: KernelBuilder, shape: AttentionShape, args: AttentionArguments, *where: Value) -> None:
        """Emit a load of a sentence's number of keys; `where` has the indices of sentence and key/value head."""
        self.k, self.shape, self.args = k, shape, args
        self.sentence, self.key_head = where
        self.head = k.mul(self.key_head, shape.shared)
        """The index of the query head, initially the first one that shares the keys and values."""
        self.is_causal = k.build.icmp_signed("==", args.lengths, k.int64(0))
        length = k.variable(args.num_keys)
        with k.when(k.build.not_(self.is_causal)):
            k.store(k.load(k.element_pointer(k.pointer(args.lengths), self.sentence, I64), I64), length)
        self.length = k.load_variable(length)

    def round_up_to_lanes(self, count: Value, lanes: int) -> Value:
        """Emit the rounding of `count` up to a multiple of `lanes`; return the result (an IR value)."""
        k = self.k
        return k.mul(k.build.sdiv(k.add(count, lanes - 1), k.int64(lanes)), lanes)

    def scratch_addresses(self, thread: Value, sizes: Sequence[Value]) -> list[Value]:
        """Return a list of pointers to consecutive float32 arrays in a thread's scratch space.

        `sizes` has the arrays' numbers of elements.
        """
        k, pointers = self.k, []
        pointer = k.element_pointer(k.pointer(self.args.scratch), k.mul(thread, self.args.scratch_per_thread))
        for size in sizes:
            pointers.append(pointer)
            pointer = k.element_pointer(pointer, size)
        return pointers

    def query_heads(self) -> Iterator[None]:
        """Emit a loop over the query heads that share a key/value head; yield once, for the loop's body.

        The caller emits the body, the code for one query head, whose index is `self.head`.
        """
        if self.shape.shared == 1:
            yield
            return
        first = self.head
        with self.k.loop(0, self.shape.shared) as number:
            self.head = self.k.add(first, number)
            yield
        self.head = first

    def start_of(self, address: Value, count: Value, stride: Value, head: Value | None = None) -> Value:
        """Return a pointer to an attention head's columns, in a sentence's first row of an array such as the queries.

        Args:
            address: the address of the array.
            count: the number of rows per sentence.
            stride: the number of elements from one row to the next.
            head: the head's index; None: the query head.
        """
        row = self.k.mul(self.sentence, count, stride)
        column = self.k.mul(self.head if head is None else head, self.shape.width)
        return self.k.element_pointer(self.k.pointer(address), self.k.add(row, column), self.shape.kind)

    def start_of_context(self) -> Value:
        """Return a pointer to the current query head's columns in the first row of the sentence's attention output."""
        return self.start_of(self.args.context, self.args.num_queries, self.context_stride())

    def context_stride(self) -> Value:
        """Return the distance in elements between two queries' attention outputs, H × K, as an IR value."""
        return self.k.mul(self.args.heads, self.shape.width)

    def key_and_value_pointers(self) -> tuple[Value, Value]:
        """Return pointers to a head's keys and to its values, to be read next.

        Prefetches of the next head's queries, keys and values are emitted too.
        """
        args = self.args
        keys, values = (
            self.start_of(each, args.num_keys, args.key_stride, self.key_head) for each in (args.keys, args.values)
        )
        self.fetch_next(keys, args.key_stride, args.num_keys)
        self.fetch_next(values, args.key_stride, args.num_keys)
        queries = self.start_of(args.queries, args.num_queries, args.query_stride)
        self.fetch_next(queries, args.query_stride, args.num_queries)
        return keys, values

    def fetch_next(self, rows: Value, stride: Value, count: Value) -> None:
        """Emit prefetches of `count` rows of the next attention head, so that it finds its data in the cache.

        `rows` points to the current head's first row, whose columns precede the next head's, and `stride` is the number
        of elements between rows.
        """
        k, kind = self.k, self.shape.kind
        with k.loop(0, count) as row:
            for column in range(0, self.shape.width, 32 if kind != F32 else 16):
                k.prefetch(k.element_pointer(rows, k.add(k.mul(row, stride), self.shape.width + column), kind))

    def start_of_sums(self) -> Value:
        """Return a pointer to the statistics of a head's first query: greatest score, inverse sum of exponentials."""
        k, args = self.k, self.args
        return k.element_pointer(
            k.pointer(args.sums), k.mul(k.add(k.mul(self.sentence, args.heads), self.head), args.num_queries, 2)
        )


class HeadEmitter(HeadAddresses):
    """An emitter of attention for one key/value head in one sentence, with vector instructions.

    Intermediate arrays are in the thread's scratch space.
    """

    def __init__(self, k: KernelBuilder, shape: AttentionShape, args: AttentionArguments, *where: Value) -> None:
        """Emit pointers to scratch arrays; `where` has the indices of sentence, key/value head and thread."""
        *sentence_and_head, thread = where
        super().__init__(k, shape, args, *sentence_and_head)
        self.columns = range(0, shape.width, k.lanes)
        self.filled = self.round_up_to_lanes(args.num_keys, k.lanes)
        key_size, queries = k.mul(self.filled, shape.width), k.minimum(args.num_queries, k.int64(QUERIES_AT_ONCE))
        sizes = [key_size] * 6 + [k.mul(queries, shape.width)] * 2 + [k.mul(queries, self.filled)] * 2
        self.scratch = HeadScratch(*self.scratch_addresses(thread, sizes))

    def groups(self, start: Value, stop: Value) -> Iterator[tuple[Value, int]]:
        """Emit loops over queries or keys [start, stop) in groups of four, then two, then one.

        For each of the three loops, yield a group's first index (an IR value) and its size; the caller emits the body.
        The members of a group share loaded operands.
        """
        k, together = self.k, GROUP_SIZE
        while together:
            rest = k.build.srem(k.build.sub(stop, start), k.int64(together))
            end = k.build.sub(stop, rest)
            with k.loop(start, end, together) as first:
                yield first, together
            start, together = end, together // 2

    def transpose(self, rows: Value, out: Value) -> None:
        """Emit the transposition of a sentence's keys or values in blocks of `lanes` rows, as float32, to `out`.

        The last block is padded with copies of the last row; what is computed from the padding is ignored.
        """
        k, lanes = self.k, self.k.lanes
        last = k.add(self.length, -1)
        with k.loop(0, self.length, lanes) as start, k.loop(0, self.shape.width, lanes) as column:
            square = []
            for lane in range(lanes):
                row = k.add(start, lane)
                row = k.build.select(k.build.icmp_signed("<", row, last), row, last)
                offset = k.add(k.mul(row, self.args.key_stride), column)
                square.append(k.load_as_float32(rows, offset, self.shape.kind))
            target = k.element_pointer(out, k.add(k.mul(start, self.shape.width), k.mul(column, lanes)))
            for lane, vector in enumerate(transpose(k, square)):
                k.store(vector, k.element_pointer(target, lane * lanes))

    def widen(self, rows: Value, out: Value) -> None:
        """Emit the conversion of a sentence's keys or values to float32, stored in `out` without gaps, (L, K)."""
        k = self.k
        with k.loop(0, self.length) as row:
            for column in self.columns:
                offset = k.add(k.mul(row, self.args.key_stride), column)
                value = k.load_as_float32(rows, offset, self.shape.kind)
                k.store(value, k.element_pointer(out, k.add(k.mul(row, self.shape.width), column)))

    def numbers_of(self, group: QueryGroup) -> list[Value]:
        """Return a list (IR values) of the index of each query of a group in its sentence."""
        return [self.k.add(group.first, n) for n in range(group.size)]

    def limits_of(self, group: QueryGroup) -> list[Value]:
        """Return a list (IR values) of how many leading keys each query of a group may attend to."""
        k = self.k
        return [k.build.select(self.is_causal, k.add(number, 1), self.length) for number in self.numbers_of(group)]

    def sums_of(self, group: QueryGroup) -> list[Value]:
        """Return a list of pointers to the two statistics of each query of a group: greatest score and inverse sum."""
        return [self.k.element_pointer(self.start_of_sums(), self.k.mul(n, 2)) for n in self.numbers_of(group)]

    def scale_queries(self, group: QueryGroup) -> None:
        """Emit a copy of a group's queries, multiplied by the attention scale, to the scratch space as float32."""
        queries = self.start_of(self.args.queries, self.args.num_queries, self.args.query_stride)
        self.load_scaled(queries, self.args.query_stride, group, self.scratch.queries, self.shape.scale)

    def load_scaled(self, rows: Value, stride: Value, group: QueryGroup, target: Value, factor: float) -> None:
        """Emit a copy of a group's rows, multiplied by a factor, to the scratch array `target` as float32.

        `rows` points to the head's columns in the row of the sentence's first query, and `stride` is the number of
        elements between rows.
        """
        k = self.k
        target = self.group_rows(target, group)
        for index, number in enumerate(self.numbers_of(group)):
            for column in self.columns:
                value = k.load_as_float32(rows, k.add(k.mul(number, stride), column), self.shape.kind)
                k.store(
                    k.build.fmul(value, k.splat(factor)), k.element_pointer(target, index * self.shape.width + column)
                )

    def group_rows(self, array: Value, group: QueryGroup) -> Value:
        """Return a pointer to a query group's first row in the scratch array `array`, whose rows have K elements."""
        return self.k.element_pointer(array, self.k.mul(group.scratch_first, self.shape.width))

    def products(self, transposed: Value, start: Value, vectors: Value, count: int) -> list[Value]:
        """Emit the dot products of `count` queries with a block of `lanes` keys; return a list of one vector per query.

        `transposed` points to the transposed keys, `start` is the block's first key, and `vectors` points to the
        queries. Even and odd columns have separate accumulators to hide the latency of additions.
        """
        k, width = self.k, self.shape.width
        block = k.element_pointer(transposed, k.mul(start, width))
        totals = [[k.variable(k.splat(0.0)) for _ in range(count)] for _ in range(2)]
        with k.loop(0, width, _UNROLLED) as first:
            for step in range(_UNROLLED):
                column = k.add(first, step)
                keys = k.load_floats(block, k.mul(column, k.lanes))
                for n, total in enumerate(totals[step % 2]):
                    factor = k.splat(k.load(k.element_pointer(vectors, k.add(column, n * width))))
                    k.store(k.madd(factor, keys, k.load_variable(total)), total)
        return [k.build.fadd(*(k.load_variable(total) for total in each)) for each in zip(*totals, strict=True)]

    def row(self, array: Value, number: Value | int, start: Value | int = 0) -> Value:
        """Return a pointer into a scratch array with L elements per query: to element `start` of query `number`."""
        return self.k.element_pointer(array, self.k.add(self.k.mul(self.filled, number), start))

    def inside(self, start: Value, limit: Value) -> Value:
        """Return a vector mask, one key per lane from `start` on: true for keys whose index is below `limit`.

        `limit` is the number of keys that a query may attend to.
        """
        k = self.k
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        remaining = k.splat(k.build.trunc(k.build.sub(limit, start), I32))
        return k.build.icmp_signed("<", lanes, remaining)

    def dropout_factors(self, group: QueryGroup, start: Value) -> list[Value]:
        """Return a list of one vector per query of a group: the factors by which dropout multiplies attention weights.

        A factor is 0 or 1 / (1 - rate), and the lanes are the keys from `start` on. A hash provides a byte for each of
        four neighboring queries.
        """
        k, args = self.k, self.args
        kept_of_256 = k.build.sitofp(k.build.sub(k.int64(256), args.drop_256ths), F32)
        scale = k.splat(k.build.fdiv(k.float32(256.0), kept_of_256))
        dropped = k.splat(k.build.trunc(args.drop_256ths, I32))
        head, four = k.add(k.mul(self.sentence, args.heads), self.head), k.int64(4)
        row = k.add(k.mul(head, k.build.sdiv(k.add(args.num_queries, 3), four)), k.build.sdiv(group.first, four))
        first = k.splat(k.build.trunc(k.add(k.mul(row, args.num_keys), start), I32))
        bits = emit_hash(k, k.build.add(first, ir.Constant(k.ints, list(range(k.lanes)))), args.seed)
        factors = []
        for number in self.numbers_of(group):
            shift = k.splat(k.build.trunc(k.mul(k.build.srem(number, four), 8), I32))
            byte = k.build.and_(k.build.lshr(bits, shift), k.splat_int(255))
            factors.append(k.build.select(k.build.icmp_signed(">=", byte, dropped), scale, k.splat(0.0)))
        return factors

    def bias_at(self, address: Value, number: Value, start: Value) -> Value:
        """Return a pointer to the bias of a query's scores, or to the gradient of the bias, from key `start` on.

        `address` is that of the bias or of its gradient, and `number` is the query's index in its sentence.
        """
        k, args = self.k, self.args
        width = self.round_up_to_lanes(args.num_keys, BIAS_KEYS)
        row = k.add(k.mul(self.head, args.num_queries), number)
        return k.element_pointer(k.pointer(address), k.add(k.mul(row, width), start))

    def add_bias(self, scores: list[Value], group: QueryGroup, start: Value) -> list[Value]:
        """Emit the addition of the bias to scores from key `start` on; return a list of one vector per query.

        Without a bias the scores are returned unchanged.
        """
        if not self.shape.biased:
            return scores
        rows = (self.k.load_floats(self.bias_at(self.args.bias, number, start)) for number in self.numbers_of(group))
        return [self.k.build.fadd(*pair) for pair in zip(scores, rows, strict=True)]

    def pairs(self) -> list[list[int]]:
        """Return the first column of each vector of a head, in lists of two; the last list may hold one.

        The vectors of a list are computed together, because the accumulators of two vectors fit in registers.
        """
        columns = list(range(0, self.shape.width, self.k.lanes))
        return [columns[n : n + 2] for n in range(0, len(columns), 2)]

    def zeros(self, count: int, columns: list[int]) -> list[list[Value]]:
        """Emit zeroed accumulators on the stack; return their pointers, a list per query with one per column offset."""
        return [[self.k.variable(self.k.splat(0.0)) for _ in columns] for _ in range(count)]

    def columns_of(self, rows: Value, row: Value | int, columns: list[int]) -> list[Value]:
        """Return a list of the float32 vectors that start at the given columns of a row of an array with K columns.

        `row` is the row's index.
        """
        k = self.k
        return [k.load_floats(rows, k.add(k.mul(row, self.shape.width), column)) for column in columns]

    def add(self, totals: list[Value], factor: Value, vectors: list[Value]) -> None:
        """Emit total += factor × vector for each accumulator in `totals` and the vector of the same index."""
        factor = self.k.splat(factor)
        for total, vector in zip(totals, vectors, strict=True):
            self.k.store(self.k.madd(factor, vector, self.k.load_variable(total)), total)

    def store_scaled(self, out: Value, row: Value, columns: list[int], totals: list[Value], factor: Value) -> None:
        """Emit the store of accumulated vectors, times a factor, to the columns `columns` of a row of an output array.

        `row` is the row's offset in elements; the vectors are converted to the output's element type.
        """
        k = self.k
        for column, total in zip(columns, totals, strict=True):
            value = k.build.fmul(k.load_variable(total), k.splat(factor))
            k.store_float32_as(value, out, k.add(row, column), self.shape.kind)


# --- forward and backward kernels ---


_NEVER = float("-inf")


class AttentionEmitter:
    """An emitter of the training attention kernels `attend` and `attend_backward` with vector instructions."""

    def __init__(self, k: KernelBuilder, shape: AttentionShape) -> None:
        self.k = k
        self.shape = shape

    def write(self) -> None:
        """Emit the kernels `attend`, which computes attention, and `attend_backward`, which computes its gradients."""
        self._write("attend", _ForwardPass)
        self._write("attend_backward", _BackwardPass)

    def _write(self, name: str, work: Any) -> None:
        """Emit the kernel `name`, a loop over the heads of all sentences whose body the class `work` emits.

        The heads of all sentences are divided among the threads. With a bias, each thread has all sentences of some
        heads.
        """
        k = self.k
        with kernel_of(k, name, AttentionArguments) as (args, thread, threads), self._prepared():
            heads = k.build.sdiv(args.heads, k.int64(self.shape.shared))
            # With a bias, whose gradient is a sum over sentences, a thread has all sentences of some heads.
            each = args.batch if self.shape.biased else k.int64(1)
            whole = k.build.sdiv(k.mul(args.batch, heads), each)
            first, last = (k.mul(item, each) for item in k.thread_range(whole, thread, threads))
            inner = args.batch if self.shape.biased else heads
            with k.loop(first, last) as number:
                where = k.build.sdiv(number, inner), k.build.srem(number, inner)
                sentence, head = reversed(where) if self.shape.biased else where
                work(k, self.shape, args, sentence, head, thread).write()

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Surround the emission of a thread's code, the body of a `with` block, by setup and release; here by nothing.

        The subclass for AMX sets up and releases tile registers here.
        """
        yield


class _ForwardPass(HeadEmitter):
    """An emitter of attention's forward pass for one key/value head of one sentence, with vector instructions."""

    def write(self) -> None:
        """Emit the forward pass of attention for one key/value head of one sentence, a group of queries at a time."""
        keys, values = self.key_and_value_pointers()
        self.transpose(keys, self.scratch.transposed_keys)
        self.widen(values, self.scratch.values)
        for _ in self.query_heads():
            for first, count in self.groups(self.k.int64(0), self.args.num_queries):
                self._attend(QueryGroup(first, count, self.k.int64(0)))

    def _attend(self, group: QueryGroup) -> None:
        """Emit the forward pass of attention for a group of queries: scores, their exponentials, weighted values."""
        limits = self.limits_of(group)
        self.scale_queries(group)
        greatest = self._scores(group, limits)
        inverses = self._exponentials(group, limits, greatest)
        self._contexts(group, limits, inverses)

    def _scores(self, group: QueryGroup, limits: list[Value]) -> list[Value]:
        """Emit the masked scores of a group of queries to scratch space; return a list of each query's greatest.

        `limits` has the number of keys that each query may attend to.
        """
        k = self.k
        greatest = [k.variable(k.splat(_NEVER)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            products = self.products(self.scratch.transposed_keys, start, self.scratch.queries, len(limits))
            for n, product in enumerate(self.add_bias(products, group, start)):
                seen = k.build.select(self.inside(start, limits[n]), product, k.splat(_NEVER))
                greatest_so_far = k.load_variable(greatest[n])
                k.store(k.maximum(seen, greatest_so_far), greatest[n])
                k.store(seen, self.row(self.scratch.weights, n, start))
        return [k.reduce_max(k.load_variable(each)) for each in greatest]

    def _exponentials(self, group: QueryGroup, limits: list[Value], greatest: list[Value]) -> list[Value]:
        """Emit the replacement of scores by their exponentials; return a list of each query's inverse sum.

        Each query's greatest score and inverse sum are stored for the backward pass. Exponentials that dropout drops
        become 0, but count in the sum.
        """
        k, inverses, sums = self.k, [], self.sums_of(group)
        totals = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            kept = self.dropout_factors(group, start) if self.shape.drops else []
            for n, total in enumerate(totals):
                pointer = self.row(self.scratch.weights, n, start)
                value = k.build.fsub(k.load(pointer, k.floats), k.splat(greatest[n]))
                value = exponential(k, value, keeps_nan=True)
                value = k.build.select(self.inside(start, limits[n]), value, k.splat(0.0))
                k.store(k.build.fadd(k.load_variable(total), value), total)
                k.store(k.build.fmul(value, kept[n]) if kept else value, pointer)
        for n, total in enumerate(totals):
            inverses.append(k.build.fdiv(k.float32(1.0), k.reduce_sum(k.load_variable(total))))
            k.store(greatest[n], k.element_pointer(sums[n], 0))
            k.store(inverses[n], k.element_pointer(sums[n], 1))
        return inverses

    def _contexts(self, group: QueryGroup, limits: list[Value], inverses: list[Value]) -> None:
        """Emit the attention outputs of a group of queries: the means of the values, weighted by the exponentials.

        The loop over keys ends at the last query's limit, as the weights after a query's own limit are zero.
        """
        k = self.k
        out, stride = self.start_of_context(), self.context_stride()
        for columns in self.pairs():
            totals = self.zeros(group.size, columns)
            with k.loop(0, limits[-1]) as key:
                values = self.columns_of(self.scratch.values, key, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(self.scratch.weights, n, key)), values)
            for number, total, inverse in zip(self.numbers_of(group), totals, inverses, strict=True):
                self.store_scaled(out, k.mul(number, stride), columns, total, inverse)


class _BackwardPass(HeadEmitter):
    """An emitter of attention's backward pass for one key/value head of one sentence, with vector instructions."""

    def write(self) -> None:
        """Emit attention's backward pass for one key/value head of one sentence.

        The code computes `QUERIES_AT_ONCE` queries at a time.
        """
        k, args = self.k, self.args
        keys, values = self.key_and_value_pointers()
        self.transpose(keys, self.scratch.transposed_keys)
        self.transpose(values, self.scratch.transposed_values)
        self.widen(keys, self.scratch.keys)
        self._clear(self.scratch.key_gradient)
        self._clear(self.scratch.value_gradient)
        for _ in self.query_heads():
            self.fetch_next(self.start_of_context(), self.context_stride(), args.num_queries)
            with k.loop(0, args.num_queries, QUERIES_AT_ONCE) as start:
                self._add_queries(start, k.minimum(k.add(start, QUERIES_AT_ONCE), args.num_queries))
        self._store_gradient(self.scratch.key_gradient, args.key_gradient)
        self._store_gradient(self.scratch.value_gradient, args.value_gradient)

    def _add_queries(self, start: Value, stop: Value) -> None:
        """Emit the gradients of queries [start, stop), and add their contributions to those of keys and values."""
        k = self.k
        for first, count in self.groups(start, stop):
            self._score_gradients(QueryGroup(first, count, k.build.sub(first, start)))
        for first, count in self.groups(start, stop):
            self._by_queries(QueryGroup(first, count, k.build.sub(first, start)))
        for first, count in self.groups(k.int64(0), k.build.select(self.is_causal, stop, self.length)):
            self._by_keys(first, count, start, stop)

    def _clear(self, gradient: Value) -> None:
        """Emit code that zeros a float32 scratch array for the gradient of the head's keys or values, (L, K)."""
        k = self.k
        with k.loop(0, k.mul(self.args.num_keys, self.shape.width), k.lanes) as number:
            k.store(k.splat(0.0), k.element_pointer(gradient, number))

    def _store_gradient(self, gradient: Value, address: Value) -> None:
        """Emit the store of a gradient of the head's keys or values to `address`, converted to the element type."""
        k, args = self.k, self.args
        out = self.start_of(address, args.num_keys, args.key_stride, self.key_head)
        with k.loop(0, args.num_keys) as row:
            for column in self.columns:
                value = k.load_floats(gradient, k.add(k.mul(row, self.shape.width), column))
                k.store_float32_as(value, out, k.add(k.mul(row, args.key_stride), column), self.shape.kind)

    def _score_gradients(self, group: QueryGroup) -> None:
        """Emit the attention weights of a group of queries, computed again, and the gradients of the attention scores.

        A score's gradient is weight × (the weight's gradient - the weighted mean of all weights' gradients). Dropout
        multiplies the weights and their gradients by the same factors.
        """
        k, limits, sums = self.k, self.limits_of(group), self.sums_of(group)
        self.scale_queries(group)
        self.load_scaled(self.start_of_context(), self.context_stride(), group, self.scratch.context_gradient, 1.0)
        queries, context_gradient = (
            self.group_rows(each, group) for each in (self.scratch.queries, self.scratch.context_gradient)
        )
        weight_row, slope_row = (
            self.row(each, group.scratch_first) for each in (self.scratch.weights, self.scratch.score_gradients)
        )
        means = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            products = self.products(self.scratch.transposed_keys, start, queries, group.size)
            scores = self.add_bias(products, group, start)
            score_gradients = self.products(self.scratch.transposed_values, start, context_gradient, group.size)
            if self.shape.drops:
                kept = self.dropout_factors(group, start)
                score_gradients = [k.build.fmul(*pair) for pair in zip(score_gradients, kept, strict=True)]
            for n, mean in enumerate(means):
                greatest, inverse = (k.splat(k.load(k.element_pointer(sums[n], which))) for which in range(2))
                inside = self.inside(start, limits[n])
                below = k.build.select(inside, k.build.fsub(scores[n], greatest), k.splat(0.0))
                weight = k.build.fmul(exponential(k, below, keeps_nan=True), inverse)
                weight = k.build.select(inside, weight, k.splat(0.0))
                k.store(weight, self.row(weight_row, n, start))
                k.store(score_gradients[n], self.row(slope_row, n, start))
                k.store(k.madd(weight, score_gradients[n], k.load_variable(mean)), mean)
        totals = [k.splat(k.reduce_sum(k.load_variable(mean))) for mean in means]
        with k.loop(0, limits[-1], k.lanes) as start:
            kept = self.dropout_factors(group, start) if self.shape.drops else []
            for n, total in enumerate(totals):
                weight = k.load(self.row(weight_row, n, start), k.floats)
                pointer = self.row(slope_row, n, start)
                slope = k.build.fmul(weight, k.build.fsub(k.load(pointer, k.floats), total))
                k.store(slope, pointer)
                if self.shape.biased:
                    grad_bias = self.bias_at(self.args.bias_gradient, k.add(group.first, n), start)
                    k.store(k.build.fadd(k.load_floats(grad_bias), slope), grad_bias)
                if kept:
                    k.store(k.build.fmul(weight, kept[n]), self.row(weight_row, n, start))

    def _by_queries(self, group: QueryGroup) -> None:
        """Emit the gradient of each query of a group: the sum over keys of score gradient × key, times the scale."""
        k, limits = self.k, self.limits_of(group)
        out = self.start_of(self.args.query_gradient, self.args.num_queries, self.args.query_stride)
        score_gradients = self.row(self.scratch.score_gradients, group.scratch_first)
        for columns in self.pairs():
            totals = self.zeros(group.size, columns)
            with k.loop(0, limits[-1]) as key:
                keys = self.columns_of(self.scratch.keys, key, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(score_gradients, n, key)), keys)
            for number, total in zip(self.numbers_of(group), totals, strict=True):
                row = k.mul(number, self.args.query_stride)
                self.store_scaled(out, row, columns, total, k.float32(self.shape.scale))

    def _by_keys(self, first: Value, count: int, start: Value, stop: Value) -> None:
        """Emit the addition of the contributions of queries [start, stop) to the gradients of `count` keys and values.

        `first` is the index of the first of these keys.
        """
        k, scratch = self.k, self.scratch
        # If causal, queries before the first key see none of these keys.
        is_later = k.build.and_(self.is_causal, k.build.icmp_signed(">", first, start))
        seen = k.build.select(is_later, first, start)
        pairs = (
            (scratch.key_gradient, scratch.score_gradients, scratch.queries),
            (scratch.value_gradient, scratch.weights, scratch.context_gradient),
        )
        for (gradient, factors, vectors), columns in product(pairs, self.pairs()):
            pointers = [
                [
                    k.element_pointer(gradient, k.add(k.mul(k.add(first, n), self.shape.width), column))
                    for column in columns
                ]
                for n in range(count)
            ]
            totals = [[k.variable(k.load(pointer, k.floats)) for pointer in row] for row in pointers]
            with k.loop(k.build.sub(seen, start), k.build.sub(stop, start)) as query:
                row_columns = self.columns_of(vectors, query, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(factors, query, k.add(first, n))), row_columns)
            for row, total in zip(pointers, totals, strict=True):
                for at, each in zip(row, total, strict=True):
                    k.store(k.load_variable(each), at)
