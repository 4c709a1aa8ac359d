"""Attention of whole sentences for training, equation (1) and its gradient, in one pass over each head.

Sentences are short, so one head's keys and values fit in the processor's first cache, and scores in a few registers:
nothing of size Q × L is ever written to memory. Keys stand side by side in a vector's lanes (they are turned once for
each sentence), so that scores need no sums across a vector. For the gradient, weights and slopes of some queries are
kept, so that each sum over queries or keys is taken in registers.
Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.attention_places import QUERIES_AT_ONCE, TOGETHER, AttentionPlaces, AttentionShape
from transduce.model.native.emit import F32, I32, I64, VOID, Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.rows import exponential

_NEVER = float("-inf")
_UNROLLED = 8  # columns


class _Room(NamedTuple):
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


class _Queries(NamedTuple):
    """Some queries next to one another."""

    first: Value
    count: int
    place: Value
    """Of the first one in the room."""


class AttentionWriter:
    """Writes the programs `attend` and `attend_back`."""

    def __init__(self, k: Emitter, shape: AttentionShape) -> None:
        self.k = k
        self.shape = shape
        self.columns = range(0, shape.width, k.lanes)

    def write(self) -> None:
        """Both."""
        for name, back in (("attend", False), ("attend_back", True)):
            with program(self.k, name, len(AttentionPlaces._fields)) as (numbers, thread, threads):
                self._each_head(AttentionPlaces(*numbers), thread, threads, back=back)

    def _each_head(self, given: AttentionPlaces, thread: Value, threads: Value, *, back: bool) -> None:
        k = self.k
        first, last = k.share(k.times(given.batch, given.heads), thread, threads)
        with k.loop(first, last) as number:
            sentence, head = k.build.sdiv(number, given.heads), k.build.srem(number, given.heads)
            _Head(self, given, sentence, head, thread).write(back=back)


class _Head:
    """One head of one sentence."""

    def __init__(self, writer: AttentionWriter, given: AttentionPlaces, *where: Value) -> None:
        self.k, self.shape, self.columns = writer.k, writer.shape, writer.columns
        self.given = given
        self.sentence, self.head, thread = where
        k = self.k
        self.is_causal = k.build.icmp_signed("==", given.lengths, k.number(0))
        length = k.variable(given.num_keys)
        with k.where(k.build.not_(self.is_causal)):
            k.store(k.load(k.at(k.place(given.lengths), self.sentence, I64), I64), length)
        self.length = k.get(length, given.num_keys)
        self.filled = self._fill_up(given.num_keys)
        self.room = self._lay_out(k.at(k.place(given.room), k.times(thread, given.own_room)))

    def _fill_up(self, count: Value) -> Value:
        """The next multiple of the lanes."""
        k = self.k
        return k.times(k.build.sdiv(k.sum_of(count, k.lanes - 1), k.number(k.lanes)), k.lanes)

    def _lay_out(self, place: Value) -> _Room:
        k, width = self.k, self.shape.width
        whole, queries = k.times(self.filled, width), k.lesser(self.given.num_queries, k.number(QUERIES_AT_ONCE))
        sizes = [whole] * 6 + [k.times(queries, width)] * 2 + [k.times(queries, self.filled)] * 2
        found = []
        for size in sizes:
            found.append(place)
            place = k.at(place, size)
        return _Room(*found)

    def _start(self, address: Value, count: Value, stride: Value) -> Value:
        """Where this sentence's rows begin, of this head, in an array of so many rows a sentence."""
        row = self.k.times(self.sentence, count, stride)
        return self.k.at(self.k.place(address), self.k.sum_of(row, self._head_start()), self.shape.kind)

    def _head_start(self) -> Value:
        return self.k.times(self.head, self.shape.width)

    def _start_of_context(self) -> Value:
        return self._start(self.given.context, self.given.num_queries, self.k.times(self.given.heads, self.shape.width))

    def write(self, *, back: bool) -> None:
        """Forward or back."""
        k, given = self.k, self.given
        keys = self._start(given.keys, given.num_keys, given.key_stride)
        values = self._start(given.values, given.num_keys, given.key_stride)
        self._fetch_next(keys, given.key_stride, given.num_keys)
        self._fetch_next(values, given.key_stride, given.num_keys)
        queries = self._start(given.queries, given.num_queries, given.query_stride)
        self._fetch_next(queries, given.query_stride, given.num_queries)
        if back:
            stride = k.times(given.heads, self.shape.width)
            self._fetch_next(self._start_of_context(), stride, given.num_queries)
        self._turn(keys, self.room.turned_keys)
        if not back:
            self._widen(values, self.room.values)
            for first, count in self._groups(k.number(0), given.num_queries):
                self._attend(first, count)
            return
        self._turn(values, self.room.turned_values)
        self._widen(keys, self.room.keys)
        self._clear(self.room.key_gradient)
        self._clear(self.room.value_gradient)
        with k.loop(0, given.num_queries, QUERIES_AT_ONCE) as start:
            stop = k.lesser(k.sum_of(start, QUERIES_AT_ONCE), given.num_queries)
            for first, count in self._groups(start, stop):
                self._slopes(_Queries(first, count, k.build.sub(first, start)))
            for first, count in self._groups(start, stop):
                self._by_queries(_Queries(first, count, k.build.sub(first, start)))
            for first, count in self._groups(k.number(0), k.build.select(self.is_causal, stop, self.length)):
                self._by_keys(first, count, start, stop)
        self._hand_over(self.room.key_gradient, given.key_gradient)
        self._hand_over(self.room.value_gradient, given.value_gradient)

    def _groups(self, start: Value, stop: Value) -> Iterator[tuple[Value, int]]:
        """Queries or keys that share what is loaded: four at a time, then the rest. The first one, and how many."""
        k, together = self.k, TOGETHER
        while together:
            rest = k.build.srem(k.build.sub(stop, start), k.number(together))
            whole = k.build.sub(stop, rest)
            with k.loop(start, whole, together) as first:
                yield first, together
            start, together = whole, together // 2

    def _fetch_next(self, rows: Value, stride: Value, count: Value) -> None:
        """Has the same rows of the next head, which stand beside these, fetched into the cache."""
        k, kind = self.k, self.shape.kind
        flags = [ir.Constant(I32, number) for number in (0, 3, 1)]  # to read, often, data
        with k.loop(0, count) as row:
            for column in range(0, self.shape.width, 32 if kind != F32 else 16):
                place = k.at(rows, k.sum_of(k.times(row, stride), self.shape.width + column), kind)
                k.intrinsic("llvm.prefetch.p0", VOID, place, *flags)

    # --- keys and values ---------------------------------------------------------------------------------------------

    def _turn(self, rows: Value, out: Value) -> None:
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

    def _widen(self, rows: Value, out: Value) -> None:
        k = self.k
        with k.loop(0, self.length) as row:
            for column in self.columns:
                place = k.sum_of(k.times(row, self.given.key_stride), column)
                value = k.load_wide(rows, place, self.shape.kind)
                k.store(value, k.at(out, k.sum_of(k.times(row, self.shape.width), column)))

    def _clear(self, place: Value) -> None:
        k = self.k
        with k.loop(0, k.times(self.given.num_keys, self.shape.width), k.lanes) as number:
            k.store(k.splat(0.0), k.at(place, number))

    def _hand_over(self, gradient: Value, address: Value) -> None:
        k, given = self.k, self.given
        out = self._start(address, given.num_keys, given.key_stride)
        with k.loop(0, given.num_keys) as row:
            for column in self.columns:
                value = k.load_floats(gradient, k.sum_of(k.times(row, self.shape.width), column))
                k.store_narrow(value, out, k.sum_of(k.times(row, given.key_stride), column), self.shape.kind)

    # --- queries -----------------------------------------------------------------------------------------------------

    def _attend(self, first: Value, count: int) -> None:
        """From queries to their contexts."""
        own = _Queries(first, count, self.k.number(0))
        limits = self._limits(own)
        self._take_queries(own)
        greatest = self._scores(limits)
        inverses = self._exponentials(limits, greatest, self._sums_of(own))
        self._contexts(own, limits, inverses)

    def _numbers(self, own: _Queries) -> list[Value]:
        return [self.k.sum_of(own.first, n) for n in range(own.many)]

    def _limits(self, own: _Queries) -> list[Value]:
        """How many keys each may attend to."""
        k = self.k
        return [k.build.select(self.is_causal, k.sum_of(number, 1), self.length) for number in self._numbers(own)]

    def _sums_of(self, own: _Queries) -> list[Value]:
        """Where each one's greatest score and normaliser stand."""
        k = self.k
        sums = k.times(k.sum_of(k.times(self.sentence, self.given.heads), self.head), self.given.num_queries)
        return [k.at(k.place(self.given.sums), k.times(k.sum_of(sums, n), 2)) for n in self._numbers(own)]

    def _take_queries(self, own: _Queries) -> None:
        queries = self._start(self.given.queries, self.given.num_queries, self.given.query_stride)
        self._take(queries, self.given.query_stride, own, self.room.queries, self.shape.width**-0.5)

    def _take(self, rows: Value, stride: Value, own: _Queries, room: Value, factor: float) -> None:
        """Rows as float32, times a factor."""
        k = self.k
        room = self._own_rows(room, own)
        for place, number in enumerate(self._numbers(own)):
            for column in self.columns:
                value = k.load_wide(rows, k.sum_of(k.times(number, stride), column), self.shape.kind)
                k.store(k.build.fmul(value, k.splat(factor)), k.at(room, place * self.shape.width + column))

    def _own_rows(self, array: Value, own: _Queries) -> Value:
        """The place of these queries' rows of K numbers."""
        return self.k.at(array, self.k.times(own.place, self.shape.width))

    def _products(self, turned: Value, start: Value, vectors: Value, count: int) -> list[Value]:
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

    def _row(self, array: Value, number: Value | int, start: Value | int = 0) -> Value:
        """A place in the row of L numbers of one of the queries at hand."""
        return self.k.at(array, self.k.sum_of(self.k.times(self.filled, number), start))

    def _inside(self, start: Value, limit: Value) -> Value:
        """Which of a block's keys the query may attend to."""
        k = self.k
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        left = k.splat(k.build.trunc(k.build.sub(limit, start), I32))
        return k.build.icmp_signed("<", lanes, left)

    def _scores(self, limits: list[Value]) -> list[Value]:
        """Stored as weights; gives the greatest of each query."""
        k = self.k
        most = [k.variable(k.splat(_NEVER)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, product in enumerate(self._products(self.room.turned_keys, start, self.room.queries, len(limits))):
                seen = k.build.select(self._inside(start, limits[n]), product, k.splat(_NEVER))
                known = k.get(most[n], seen)
                k.store(k.greater(seen, known), most[n])
                k.store(seen, self._row(self.room.weights, n, start))
        return [k.greatest(k.get(each, k.splat(0.0))) for each in most]

    def _exponentials(self, limits: list[Value], greatest: list[Value], places: list[Value]) -> list[Value]:
        """In place of the scores; gives one over their sum, of each query."""
        k, inverses = self.k, []
        totals = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, total in enumerate(totals):
                place = self._row(self.room.weights, n, start)
                value = k.build.fsub(k.load(place, k.floats), k.splat(greatest[n]))
                value = exponential(k, value, keeps_nan=True)
                value = k.build.select(self._inside(start, limits[n]), value, k.splat(0.0))
                k.store(k.build.fadd(k.get(total, value), value), total)
                k.store(value, place)
        for n, total in enumerate(totals):
            inverses.append(k.build.fdiv(k.real(1.0), k.total(k.get(total, k.splat(0.0)))))
            k.store(greatest[n], k.at(places[n], 0))
            k.store(inverses[n], k.at(places[n], 1))
        return inverses

    def _contexts(self, own: _Queries, limits: list[Value], inverses: list[Value]) -> None:
        """The weighted values. A later query's limit serves for all: beyond its own, a query's weights are zero."""
        k = self.k
        out, stride = self._start_of_context(), k.times(self.given.heads, self.shape.width)
        for columns in self._pairs():
            totals = self._zeros(own.many, columns)
            with k.loop(0, limits[-1]) as key:
                values = self._columns_of(self.room.values, key, columns)
                for n, total in enumerate(totals):
                    self._add(total, k.load(self._row(self.room.weights, n, key)), values)
            for number, total, inverse in zip(self._numbers(own), totals, inverses, strict=True):
                self._give(out, k.times(number, stride), columns, total, inverse)

    def _pairs(self) -> list[list[int]]:
        """Two vectors of columns at a time: as many as there are registers for."""
        columns = list(range(0, self.shape.width, self.k.lanes))
        return [columns[n : n + 2] for n in range(0, len(columns), 2)]

    def _zeros(self, count: int, columns: list[int]) -> list[list[Value]]:
        """Variables for a sum: of each query, a vector for each of these columns."""
        return [[self.k.variable(self.k.splat(0.0)) for _ in columns] for _ in range(count)]

    def _columns_of(self, rows: Value, row: Value | int, columns: list[int]) -> list[Value]:
        k = self.k
        return [k.load_floats(rows, k.sum_of(k.times(row, self.shape.width), column)) for column in columns]

    def _add(self, totals: list[Value], factor: Value, vectors: list[Value]) -> None:
        factor = self.k.splat(factor)
        for total, vector in zip(totals, vectors, strict=True):
            self.k.store(self.k.madd(factor, vector, self.k.get(total, vector)), total)

    def _give(self, out: Value, row: Value, columns: list[int], totals: list[Value], factor: Value) -> None:
        """A query's sums, times a factor, into a row of the result."""
        k = self.k
        for column, total in zip(columns, totals, strict=True):
            value = k.build.fmul(k.get(total, k.splat(0.0)), k.splat(factor))
            k.store_narrow(value, out, k.sum_of(row, column), self.shape.kind)

    # --- the gradient ------------------------------------------------------------------------------------------------

    def _slopes(self, own: _Queries) -> None:
        """Weights again, and the gradient by the scores: weight × (slope of the weight - their weighted mean)."""
        k, limits, sums = self.k, self._limits(own), self._sums_of(own)
        self._take_queries(own)
        stride = k.times(self.given.heads, self.shape.width)
        self._take(self._start_of_context(), stride, own, self.room.outer, 1.0)
        queries, outer = (self._own_rows(each, own) for each in (self.room.queries, self.room.outer))
        weight_row, slope_row = (self._row(each, own.place) for each in (self.room.weights, self.room.slopes))
        means = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            scores = self._products(self.room.turned_keys, start, queries, own.many)
            slopes = self._products(self.room.turned_values, start, outer, own.many)
            for n, mean in enumerate(means):
                greatest, inverse = (k.splat(k.load(k.at(sums[n], which))) for which in range(2))
                inside = self._inside(start, limits[n])
                below = k.build.select(inside, k.build.fsub(scores[n], greatest), k.splat(0.0))
                weight = k.build.fmul(exponential(k, below, keeps_nan=True), inverse)
                weight = k.build.select(inside, weight, k.splat(0.0))
                k.store(weight, self._row(weight_row, n, start))
                k.store(slopes[n], self._row(slope_row, n, start))
                k.store(k.madd(weight, slopes[n], k.get(mean, weight)), mean)
        totals = [k.splat(k.total(k.get(mean, k.splat(0.0)))) for mean in means]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, total in enumerate(totals):
                weight = k.load(self._row(weight_row, n, start), k.floats)
                place = self._row(slope_row, n, start)
                k.store(k.build.fmul(weight, k.build.fsub(k.load(place, k.floats), total)), place)

    def _by_queries(self, own: _Queries) -> None:
        """The gradient by queries: their slopes' sum over the keys."""
        k, limits = self.k, self._limits(own)
        out = self._start(self.given.query_gradient, self.given.num_queries, self.given.query_stride)
        slopes = self._row(self.room.slopes, own.place)
        for columns in self._pairs():
            totals = self._zeros(own.many, columns)
            with k.loop(0, limits[-1]) as key:
                keys = self._columns_of(self.room.keys, key, columns)
                for n, total in enumerate(totals):
                    self._add(total, k.load(self._row(slopes, n, key)), keys)
            for number, total in zip(self._numbers(own), totals, strict=True):
                row = k.times(number, self.given.query_stride)
                self._give(out, row, columns, total, k.real(self.shape.width**-0.5))

    def _by_keys(self, first: Value, count: int, start: Value, stop: Value) -> None:
        """What the queries from start to stop add to the gradients by keys and by values."""
        k, room = self.k, self.room
        # No query before the first key sees any of them.
        is_later = k.build.and_(self.is_causal, k.build.icmp_signed(">", first, start))
        seen = k.build.select(is_later, first, start)
        pairs = ((room.key_gradient, room.slopes, room.queries), (room.value_gradient, room.weights, room.outer))
        for (gradient, factors, vectors), columns in product(pairs, self._pairs()):
            places = [
                [k.at(gradient, k.sum_of(k.times(k.sum_of(first, n), self.shape.width), column)) for column in columns]
                for n in range(count)
            ]
            totals = [[k.variable(k.load(place, k.floats)) for place in row] for row in places]
            with k.loop(k.build.sub(seen, start), k.build.sub(stop, start)) as place:
                own = self._columns_of(vectors, place, columns)
                for n, total in enumerate(totals):
                    self._add(total, k.load(self._row(factors, place, k.sum_of(first, n))), own)
            for row, total in zip(places, totals, strict=True):
                for at, each in zip(row, total, strict=True):
                    k.store(k.get(each, k.splat(0.0)), at)


def transpose(k: Emitter, rows: list[Value]) -> list[Value]:
    """A square of as many vectors as there are lanes: its columns. Each round interleaves rows that are half apart."""
    half = len(rows) // 2
    low = [lane + k.lanes * side for lane in range(half) for side in range(2)]
    masks = [ir.Constant(k.ints, [number + start for number in low]) for start in (0, half)]
    for _ in range(k.lanes.bit_length() - 1):
        rows = [k.build.shuffle_vector(rows[n], rows[n + half], mask) for n in range(half) for mask in masks]
    return rows
