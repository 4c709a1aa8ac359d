"""Emit what the forward and backward attention kernels share: one head of one sentence, its rows and scratch space.

Legend: Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.attention_places import QUERIES_AT_ONCE, TOGETHER, AttentionPlaces, AttentionShape
from transduce.model.native.emit import F32, I32, I64, Emitter, Value
from transduce.model.native.rows import transpose

_UNROLLED = 8  # columns per loop iteration


class Room(NamedTuple):
    """Arrays in one thread's scratch space for one head of one sentence, float32."""

    turned_keys: Value
    """Keys in transposed blocks of `lanes` keys, K × lanes each; L × K in all."""
    turned_values: Value
    """Values in transposed blocks, L × K."""
    keys: Value
    """Keys as float32, (L, K)."""
    values: Value
    """Values as float32, (L, K)."""
    key_gradient: Value
    """The gradient of the keys, (L, K)."""
    value_gradient: Value
    """The gradient of the values, (L, K)."""
    queries: Value
    """The current queries, scaled, K each; up to `QUERIES_AT_ONCE` of them in the backward pass."""
    outer: Value
    """The gradient of the current queries' contexts, K each."""
    weights: Value
    """Scores or attention weights of the current queries, L each."""
    slopes: Value
    """Score gradients of the current queries, L each."""


class Queries(NamedTuple):
    """Some consecutive queries."""

    first: Value
    """The index of the first query."""
    many: int
    """The number of queries."""
    place: Value
    """The index of the first query within the scratch space."""


class HeadPlaces:
    """One head of one sentence, with the addresses of its rows."""

    def __init__(self, k: Emitter, shape: AttentionShape, args: AttentionPlaces, *where: Value) -> None:
        """Look up the sentence's length; `where` is the sentence and the head."""
        self.k, self.shape, self.given = k, shape, args
        self.sentence, self.head = where
        self.is_causal = k.build.icmp_signed("==", args.lengths, k.number(0))
        length = k.variable(args.num_keys)
        with k.where(k.build.not_(self.is_causal)):
            k.store(k.load(k.at(k.place(args.lengths), self.sentence, I64), I64), length)
        self.length = k.get(length, args.num_keys)

    def fill_up(self, count: Value, lanes: int) -> Value:
        """Return a count rounded up to a multiple of `lanes`."""
        k = self.k
        return k.times(k.build.sdiv(k.sum_of(count, lanes - 1), k.number(lanes)), lanes)

    def places_of(self, thread: Value, sizes: Sequence[Value]) -> list[Value]:
        """Return pointers to consecutive arrays of these sizes (float32) in a thread's scratch space."""
        k, pointers = self.k, []
        pointer = k.at(k.place(self.given.room), k.times(thread, self.given.own_room))
        for size in sizes:
            pointers.append(pointer)
            pointer = k.at(pointer, size)
        return pointers

    def start_of(self, address: Value, count: Value, stride: Value) -> Value:
        """Return a pointer to this head's columns in this sentence's first row of an array.

        Args:
            address: of the array.
            count: rows per sentence.
            stride: elements from one row to the next.
        """
        row = self.k.times(self.sentence, count, stride)
        return self.k.at(self.k.place(address), self.k.sum_of(row, self._head_start()), self.shape.kind)

    def _head_start(self) -> Value:
        """Return the offset of this head's columns in a row."""
        return self.k.times(self.head, self.shape.width)

    def start_of_context(self) -> Value:
        """Return a pointer to this head's columns of the sentence's first context."""
        return self.start_of(self.given.context, self.given.num_queries, self.context_stride())

    def context_stride(self) -> Value:
        """Return the number of elements from one query's context to the next."""
        return self.k.times(self.given.heads, self.shape.width)

    def begin(self) -> tuple[Value, Value]:
        """Prefetch the next head's rows, and return pointers to this head's keys and values."""
        args = self.given
        keys, values = (self.start_of(each, args.num_keys, args.key_stride) for each in (args.keys, args.values))
        self.fetch_next(keys, args.key_stride, args.num_keys)
        self.fetch_next(values, args.key_stride, args.num_keys)
        queries = self.start_of(args.queries, args.num_queries, args.query_stride)
        self.fetch_next(queries, args.query_stride, args.num_queries)
        return keys, values

    def fetch_next(self, rows: Value, stride: Value, count: Value) -> None:
        """Prefetch rows of the next head, whose columns follow this head's."""
        k, kind = self.k, self.shape.kind
        with k.loop(0, count) as row:
            for column in range(0, self.shape.width, 32 if kind != F32 else 16):
                k.fetch(k.at(rows, k.sum_of(k.times(row, stride), self.shape.width + column), kind))

    def start_of_sums(self) -> Value:
        """Return a pointer to the queries' greatest scores and inverse sums of exponentials."""
        k, args = self.k, self.given
        return k.at(
            k.place(args.sums), k.times(k.sum_of(k.times(self.sentence, args.heads), self.head), args.num_queries, 2)
        )


class Head(HeadPlaces):
    """One head of one sentence, with a thread's scratch space for vector instructions."""

    def __init__(self, k: Emitter, shape: AttentionShape, args: AttentionPlaces, *where: Value) -> None:
        """Address the rows and the scratch space; `where` is the sentence, the head and the thread's index."""
        *sentence_and_head, thread = where
        super().__init__(k, shape, args, *sentence_and_head)
        self.columns = range(0, shape.width, k.lanes)
        self.filled = self.fill_up(args.num_keys, k.lanes)
        key_size, queries = k.times(self.filled, shape.width), k.lesser(args.num_queries, k.number(QUERIES_AT_ONCE))
        sizes = [key_size] * 6 + [k.times(queries, shape.width)] * 2 + [k.times(queries, self.filled)] * 2
        self.room = Room(*self.places_of(thread, sizes))

    def groups(self, start: Value, stop: Value) -> Iterator[tuple[Value, int]]:
        """Emit loops over [start, stop) in groups of four, then of fewer; yields each group's first index and its size.

        The queries or keys of a group share loaded operands.
        """
        k, together = self.k, TOGETHER
        while together:
            rest = k.build.srem(k.build.sub(stop, start), k.number(together))
            end = k.build.sub(stop, rest)
            with k.loop(start, end, together) as first:
                yield first, together
            start, together = end, together // 2

    def turn(self, rows: Value, out: Value) -> None:
        """Transpose keys or values in blocks of `lanes`.

        The last row pads the last block, and the padding is ignored.
        """
        k, lanes = self.k, self.k.lanes
        last = k.sum_of(self.length, -1)
        with k.loop(0, self.length, lanes) as start, k.loop(0, self.shape.width, lanes) as column:
            square = []
            for lane in range(lanes):
                row = k.sum_of(start, lane)
                row = k.build.select(k.build.icmp_signed("<", row, last), row, last)
                offset = k.sum_of(k.times(row, self.given.key_stride), column)
                square.append(k.load_wide(rows, offset, self.shape.kind))
            target = k.at(out, k.sum_of(k.times(start, self.shape.width), k.times(column, lanes)))
            for lane, vector in enumerate(transpose(k, square)):
                k.store(vector, k.at(target, lane * lanes))

    def widen(self, rows: Value, out: Value) -> None:
        """Convert rows to float32."""
        k = self.k
        with k.loop(0, self.length) as row:
            for column in self.columns:
                offset = k.sum_of(k.times(row, self.given.key_stride), column)
                value = k.load_wide(rows, offset, self.shape.kind)
                k.store(value, k.at(out, k.sum_of(k.times(row, self.shape.width), column)))

    def numbers_of(self, group: Queries) -> list[Value]:
        """Return the indices of a group's queries."""
        return [self.k.sum_of(group.first, n) for n in range(group.many)]

    def limits_of(self, group: Queries) -> list[Value]:
        """Return how many keys each query of a group may attend to."""
        k = self.k
        return [k.build.select(self.is_causal, k.sum_of(number, 1), self.length) for number in self.numbers_of(group)]

    def sums_of(self, group: Queries) -> list[Value]:
        """Return pointers to each query's greatest score and inverse sum of exponentials."""
        return [self.k.at(self.start_of_sums(), self.k.times(n, 2)) for n in self.numbers_of(group)]

    def take_queries(self, group: Queries) -> None:
        """Copy a group's queries, scaled, to the scratch space."""
        queries = self.start_of(self.given.queries, self.given.num_queries, self.given.query_stride)
        self.take(queries, self.given.query_stride, group, self.room.queries, self.shape.width**-0.5)

    def take(self, rows: Value, stride: Value, group: Queries, room: Value, factor: float) -> None:
        """Copy a group's rows, times a factor, as float32 to an array of the scratch space."""
        k = self.k
        room = self.own_rows(room, group)
        for index, number in enumerate(self.numbers_of(group)):
            for column in self.columns:
                value = k.load_wide(rows, k.sum_of(k.times(number, stride), column), self.shape.kind)
                k.store(k.build.fmul(value, k.splat(factor)), k.at(room, index * self.shape.width + column))

    def own_rows(self, array: Value, group: Queries) -> Value:
        """Return a pointer to a group's rows of K elements in an array of the scratch space."""
        return self.k.at(array, self.k.times(group.place, self.shape.width))

    def products(self, turned: Value, start: Value, vectors: Value, count: int) -> list[Value]:
        """Return the dot products of `count` vectors with the `lanes` keys of a block, one vector of products each.

        Even and odd columns have separate accumulators to hide the latency of additions.
        """
        k, width = self.k, self.shape.width
        block = k.at(turned, k.times(start, width))
        totals = [[k.variable(k.splat(0.0)) for _ in range(count)] for _ in range(2)]
        with k.loop(0, width, _UNROLLED) as first:
            for step in range(_UNROLLED):
                column = k.sum_of(first, step)
                keys = k.load_floats(block, k.times(column, k.lanes))
                for n, total in enumerate(totals[step % 2]):
                    factor = k.splat(k.load(k.at(vectors, k.sum_of(column, n * width))))
                    k.store(k.madd(factor, keys, k.get(total, keys)), total)
        zero = k.splat(0.0)
        return [k.build.fadd(*(k.get(total, zero) for total in each)) for each in zip(*totals, strict=True)]

    def row(self, array: Value, number: Value | int, start: Value | int = 0) -> Value:
        """Return a pointer into a current query's row of L elements."""
        return self.k.at(array, self.k.sum_of(self.k.times(self.filled, number), start))

    def inside(self, start: Value, limit: Value) -> Value:
        """Return a mask of a block's keys that are below a query's limit."""
        k = self.k
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        remaining = k.splat(k.build.trunc(k.build.sub(limit, start), I32))
        return k.build.icmp_signed("<", lanes, remaining)

    def pairs(self) -> list[list[int]]:
        """Return the columns of a head's vectors in groups of two, whose sums fit in the registers."""
        columns = list(range(0, self.shape.width, self.k.lanes))
        return [columns[n : n + 2] for n in range(0, len(columns), 2)]

    def zeros(self, count: int, columns: list[int]) -> list[list[Value]]:
        """Allocate zeroed accumulators: for each query, a vector for each of these columns."""
        return [[self.k.variable(self.k.splat(0.0)) for _ in columns] for _ in range(count)]

    def columns_of(self, rows: Value, row: Value | int, columns: list[int]) -> list[Value]:
        """Load vectors of a row at these columns."""
        k = self.k
        return [k.load_floats(rows, k.sum_of(k.times(row, self.shape.width), column)) for column in columns]

    def add(self, totals: list[Value], factor: Value, vectors: list[Value]) -> None:
        """Add factor × vector to each accumulator."""
        factor = self.k.splat(factor)
        for total, vector in zip(totals, vectors, strict=True):
            self.k.store(self.k.madd(factor, vector, self.k.get(total, vector)), total)

    def give(self, out: Value, row: Value, columns: list[int], totals: list[Value], factor: Value) -> None:
        """Store a query's sums, times a factor, in a row of the result."""
        k = self.k
        for column, total in zip(columns, totals, strict=True):
            value = k.build.fmul(k.get(total, k.splat(0.0)), k.splat(factor))
            k.store_narrow(value, out, k.sum_of(row, column), self.shape.kind)
