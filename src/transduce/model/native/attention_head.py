"""One head of one sentence, as the programs of `attention.py` see it: its room, its rows, and what both directions do.

Legend: Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.attention_places import QUERIES_AT_ONCE, TOGETHER, AttentionPlaces, AttentionShape
from transduce.model.native.emit import F32, I32, I64, Emitter, Value
from transduce.model.native.rows import transpose

_UNROLLED = 8  # columns


class Room(NamedTuple):
    """One thread's room while it works at one head of one sentence. The first four are of L × K numbers each."""

    turned_keys: Value
    """Blocks of as many keys as there are lanes, in each K × lanes."""
    turned_values: Value
    keys: Value
    values: Value
    key_gradient: Value
    value_gradient: Value
    queries: Value
    """Of the queries at hand, K numbers each, scaled; as many as `QUERIES_AT_ONCE` for the gradient."""
    outer: Value
    """The gradient by their contexts, K numbers each."""
    weights: Value
    """L numbers each."""
    slopes: Value
    """The gradient by their scores, L numbers each."""


class Queries(NamedTuple):
    """Some queries next to one another."""

    first: Value
    many: int
    place: Value
    """Of the first one in the room."""


class HeadPlaces:
    """One head of one sentence, and where its rows are."""

    def __init__(self, k: Emitter, shape: AttentionShape, given: AttentionPlaces, *where: Value) -> None:
        """Where: the sentence, and the head."""
        self.k, self.shape, self.given = k, shape, given
        self.sentence, self.head = where
        self.is_causal = k.build.icmp_signed("==", given.lengths, k.number(0))
        length = k.variable(given.num_keys)
        with k.where(k.build.not_(self.is_causal)):
            k.store(k.load(k.at(k.place(given.lengths), self.sentence, I64), I64), length)
        self.length = k.get(length, given.num_keys)

    def fill_up(self, count: Value, lanes: int) -> Value:
        """The next multiple of the lanes."""
        k = self.k
        return k.times(k.build.sdiv(k.sum_of(count, lanes - 1), k.number(lanes)), lanes)

    def places_of(self, thread: Value, sizes: Sequence[Value]) -> list[Value]:
        """In a thread's room, of arrays of so many numbers, one after another."""
        k, found = self.k, []
        place = k.at(k.place(self.given.room), k.times(thread, self.given.own_room))
        for size in sizes:
            found.append(place)
            place = k.at(place, size)
        return found

    def start_of(self, address: Value, count: Value, stride: Value) -> Value:
        """Where this sentence's rows begin, of this head, in an array of so many rows a sentence."""
        row = self.k.times(self.sentence, count, stride)
        return self.k.at(self.k.place(address), self.k.sum_of(row, self._head_start()), self.shape.kind)

    def _head_start(self) -> Value:
        return self.k.times(self.head, self.shape.width)

    def start_of_context(self) -> Value:
        return self.start_of(self.given.context, self.given.num_queries, self.context_stride())

    def context_stride(self) -> Value:
        """From one query's context to the next one's."""
        return self.k.times(self.given.heads, self.shape.width)

    def begin(self) -> tuple[Value, Value]:
        """Has what the next head needs fetched; gives the places of the keys and the values."""
        given = self.given
        keys, values = (self.start_of(each, given.num_keys, given.key_stride) for each in (given.keys, given.values))
        self.fetch_next(keys, given.key_stride, given.num_keys)
        self.fetch_next(values, given.key_stride, given.num_keys)
        queries = self.start_of(given.queries, given.num_queries, given.query_stride)
        self.fetch_next(queries, given.query_stride, given.num_queries)
        return keys, values

    def fetch_next(self, rows: Value, stride: Value, count: Value) -> None:
        """Has the same rows of the next head, which stand beside these, fetched into the cache."""
        k, kind = self.k, self.shape.kind
        with k.loop(0, count) as row:
            for column in range(0, self.shape.width, 32 if kind != F32 else 16):
                k.fetch(k.at(rows, k.sum_of(k.times(row, stride), self.shape.width + column), kind))

    def start_of_sums(self) -> Value:
        """Where the greatest score and the normaliser of each query stand."""
        k, given = self.k, self.given
        return k.at(
            k.place(given.sums), k.times(k.sum_of(k.times(self.sentence, given.heads), self.head), given.num_queries, 2)
        )


class Head(HeadPlaces):
    """The same, and a thread's room for it."""

    def __init__(self, k: Emitter, shape: AttentionShape, given: AttentionPlaces, *where: Value) -> None:
        """Where: the sentence, the head, and the thread that works at it."""
        *sentence_and_head, thread = where
        super().__init__(k, shape, given, *sentence_and_head)
        self.columns = range(0, shape.width, k.lanes)
        self.filled = self.fill_up(given.num_keys, k.lanes)
        whole, queries = k.times(self.filled, shape.width), k.lesser(given.num_queries, k.number(QUERIES_AT_ONCE))
        sizes = [whole] * 6 + [k.times(queries, shape.width)] * 2 + [k.times(queries, self.filled)] * 2
        self.room = Room(*self.places_of(thread, sizes))

    def groups(self, start: Value, stop: Value) -> Iterator[tuple[Value, int]]:
        """Queries or keys that share what is loaded: four at a time, then the rest. The first one, and how many."""
        k, together = self.k, TOGETHER
        while together:
            rest = k.build.srem(k.build.sub(stop, start), k.number(together))
            whole = k.build.sub(stop, rest)
            with k.loop(start, whole, together) as first:
                yield first, together
            start, together = whole, together // 2

    def turn(self, rows: Value, out: Value) -> None:
        """Blocks of keys, transposed. What fills up the last block is the last key again, which nothing looks at."""
        k, lanes = self.k, self.k.lanes
        last = k.sum_of(self.length, -1)
        with k.loop(0, self.length, lanes) as start, k.loop(0, self.shape.width, lanes) as column:
            square = []
            for lane in range(lanes):
                row = k.sum_of(start, lane)
                row = k.build.select(k.build.icmp_signed("<", row, last), row, last)
                place = k.sum_of(k.times(row, self.given.key_stride), column)
                square.append(k.load_wide(rows, place, self.shape.kind))
            target = k.at(out, k.sum_of(k.times(start, self.shape.width), k.times(column, lanes)))
            for lane, vector in enumerate(transpose(k, square)):
                k.store(vector, k.at(target, lane * lanes))

    def widen(self, rows: Value, out: Value) -> None:
        k = self.k
        with k.loop(0, self.length) as row:
            for column in self.columns:
                place = k.sum_of(k.times(row, self.given.key_stride), column)
                value = k.load_wide(rows, place, self.shape.kind)
                k.store(value, k.at(out, k.sum_of(k.times(row, self.shape.width), column)))

    def numbers_of(self, own: Queries) -> list[Value]:
        return [self.k.sum_of(own.first, n) for n in range(own.many)]

    def limits_of(self, own: Queries) -> list[Value]:
        """How many keys each may attend to."""
        k = self.k
        return [k.build.select(self.is_causal, k.sum_of(number, 1), self.length) for number in self.numbers_of(own)]

    def sums_of(self, own: Queries) -> list[Value]:
        """Where each one's greatest score and normaliser stand."""
        return [self.k.at(self.start_of_sums(), self.k.times(n, 2)) for n in self.numbers_of(own)]

    def take_queries(self, own: Queries) -> None:
        queries = self.start_of(self.given.queries, self.given.num_queries, self.given.query_stride)
        self.take(queries, self.given.query_stride, own, self.room.queries, self.shape.width**-0.5)

    def take(self, rows: Value, stride: Value, own: Queries, room: Value, factor: float) -> None:
        """Rows as float32, times a factor."""
        k = self.k
        room = self.own_rows(room, own)
        for place, number in enumerate(self.numbers_of(own)):
            for column in self.columns:
                value = k.load_wide(rows, k.sum_of(k.times(number, stride), column), self.shape.kind)
                k.store(k.build.fmul(value, k.splat(factor)), k.at(room, place * self.shape.width + column))

    def own_rows(self, array: Value, own: Queries) -> Value:
        """The place of these queries' rows of K numbers."""
        return self.k.at(array, self.k.times(own.place, self.shape.width))

    def products(self, turned: Value, start: Value, vectors: Value, count: int) -> list[Value]:
        """Of each of so many vectors with the keys of a block: a vector each.

        Each is two sums of every second column, for a processor begins several sums while it waits for one.
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
        """A place in the row of L numbers of one of the queries at hand."""
        return self.k.at(array, self.k.sum_of(self.k.times(self.filled, number), start))

    def inside(self, start: Value, limit: Value) -> Value:
        """Which of a block's keys the query may attend to."""
        k = self.k
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        left = k.splat(k.build.trunc(k.build.sub(limit, start), I32))
        return k.build.icmp_signed("<", lanes, left)

    def pairs(self) -> list[list[int]]:
        """Two vectors of columns at a time: as many as there are registers for."""
        columns = list(range(0, self.shape.width, self.k.lanes))
        return [columns[n : n + 2] for n in range(0, len(columns), 2)]

    def zeros(self, count: int, columns: list[int]) -> list[list[Value]]:
        """Variables for a sum: of each query, a vector for each of these columns."""
        return [[self.k.variable(self.k.splat(0.0)) for _ in columns] for _ in range(count)]

    def columns_of(self, rows: Value, row: Value | int, columns: list[int]) -> list[Value]:
        k = self.k
        return [k.load_floats(rows, k.sum_of(k.times(row, self.shape.width), column)) for column in columns]

    def add(self, totals: list[Value], factor: Value, vectors: list[Value]) -> None:
        factor = self.k.splat(factor)
        for total, vector in zip(totals, vectors, strict=True):
            self.k.store(self.k.madd(factor, vector, self.k.get(total, vector)), total)

    def give(self, out: Value, row: Value, columns: list[int], totals: list[Value], factor: Value) -> None:
        """A query's sums, times a factor, into a row of the result."""
        k = self.k
        for column, total in zip(columns, totals, strict=True):
            value = k.build.fmul(k.get(total, k.splat(0.0)), k.splat(factor))
            k.store_narrow(value, out, k.sum_of(row, column), self.shape.kind)
