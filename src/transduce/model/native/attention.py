"""Emit attention kernels of training, equation (1) and its gradient, that process each head in one pass.

Sentences are short. One head's keys and values fit in the L1 cache, so nothing of size Q × L is written to main memory.
Keys are transposed once per sentence so that they lie in a vector's lanes; scores then need no reductions across lanes.
For the gradient, attention weights and score gradients of some queries are kept, so sums over queries or keys stay in
registers. Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

from transduce.model.native.attention_head import Head, Queries
from transduce.model.native.attention_places import QUERIES_AT_ONCE, AttentionPlaces, AttentionShape
from transduce.model.native.emit import Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.rows import exponential

_NEVER = float("-inf")


class AttentionWriter:
    """An emitter of the kernels `attend` and `attend_back`."""

    def __init__(self, k: Emitter, shape: AttentionShape) -> None:
        self.k = k
        self.shape = shape

    def write(self) -> None:
        """Emit the kernels `attend` and `attend_back`."""
        for name, work in (("attend", _Contexts), ("attend_back", _Gradients)):
            self._write(name, work)

    def _write(self, name: str, work: Any) -> None:
        """Emit a kernel that runs `work` for each head of each sentence."""
        k = self.k
        with program(k, name, len(AttentionPlaces._fields)) as (numbers, thread, threads):
            args = AttentionPlaces(*numbers)
            with self._prepared():
                first, last = k.share(k.times(args.batch, args.heads), thread, threads)
                with k.loop(first, last) as number:
                    sentence, head = k.build.sdiv(number, args.heads), k.build.srem(number, args.heads)
                    work(k, self.shape, args, sentence, head, thread).write()

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Emit what a thread does before and after its heads: nothing here."""
        yield


class _Contexts(Head):
    """An emitter of the forward pass of one head: from queries, keys and values to contexts."""

    def write(self) -> None:
        """Emit the forward pass of the head, a group of queries at a time."""
        keys, values = self.begin()
        self.turn(keys, self.room.turned_keys)
        self.widen(values, self.room.values)
        for first, count in self.groups(self.k.number(0), self.given.num_queries):
            self._attend(Queries(first, count, self.k.number(0)))

    def _attend(self, group: Queries) -> None:
        """Emit the attention of a group of queries."""
        limits = self.limits_of(group)
        self.take_queries(group)
        greatest = self._scores(limits)
        inverses = self._exponentials(limits, greatest, self.sums_of(group))
        self._contexts(group, limits, inverses)

    def _scores(self, limits: list[Value]) -> list[Value]:
        """Store masked scores in the weights' array, and return the greatest score of each query."""
        k = self.k
        greatest = [k.variable(k.splat(_NEVER)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, product in enumerate(self.products(self.room.turned_keys, start, self.room.queries, len(limits))):
                seen = k.build.select(self.inside(start, limits[n]), product, k.splat(_NEVER))
                greatest_so_far = k.get(greatest[n], seen)
                k.store(k.greater(seen, greatest_so_far), greatest[n])
                k.store(seen, self.row(self.room.weights, n, start))
        return [k.greatest(k.get(each, k.splat(0.0))) for each in greatest]

    def _exponentials(self, limits: list[Value], greatest: list[Value], sums: list[Value]) -> list[Value]:
        """Replace scores by their exponentials, and return the inverse of each query's sum.

        Also stores each query's greatest score and inverse sum for the backward pass.
        """
        k, inverses = self.k, []
        totals = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, total in enumerate(totals):
                pointer = self.row(self.room.weights, n, start)
                value = k.build.fsub(k.load(pointer, k.floats), k.splat(greatest[n]))
                value = exponential(k, value, keeps_nan=True)
                value = k.build.select(self.inside(start, limits[n]), value, k.splat(0.0))
                k.store(k.build.fadd(k.get(total, value), value), total)
                k.store(value, pointer)
        for n, total in enumerate(totals):
            inverses.append(k.build.fdiv(k.real(1.0), k.total(k.get(total, k.splat(0.0)))))
            k.store(greatest[n], k.at(sums[n], 0))
            k.store(inverses[n], k.at(sums[n], 1))
        return inverses

    def _contexts(self, group: Queries, limits: list[Value], inverses: list[Value]) -> None:
        """Store the weighted means of the values.

        All queries use the limit of the last one: behind a query's own limit its weights are zero.
        """
        k = self.k
        out, stride = self.start_of_context(), self.context_stride()
        for columns in self.pairs():
            totals = self.zeros(group.many, columns)
            with k.loop(0, limits[-1]) as key:
                values = self.columns_of(self.room.values, key, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(self.room.weights, n, key)), values)
            for number, total, inverse in zip(self.numbers_of(group), totals, inverses, strict=True):
                self.give(out, k.times(number, stride), columns, total, inverse)


class _Gradients(Head):
    """An emitter of the backward pass of one head: from the contexts' gradient to those of queries, keys and values."""

    def write(self) -> None:
        """Emit the backward pass of the head, `QUERIES_AT_ONCE` queries at a time."""
        k, args = self.k, self.given
        keys, values = self.begin()
        self.fetch_next(self.start_of_context(), self.context_stride(), args.num_queries)
        self.turn(keys, self.room.turned_keys)
        self.turn(values, self.room.turned_values)
        self.widen(keys, self.room.keys)
        self._clear(self.room.key_gradient)
        self._clear(self.room.value_gradient)
        with k.loop(0, args.num_queries, QUERIES_AT_ONCE) as start:
            stop = k.lesser(k.sum_of(start, QUERIES_AT_ONCE), args.num_queries)
            for first, count in self.groups(start, stop):
                self._slopes(Queries(first, count, k.build.sub(first, start)))
            for first, count in self.groups(start, stop):
                self._by_queries(Queries(first, count, k.build.sub(first, start)))
            for first, count in self.groups(k.number(0), k.build.select(self.is_causal, stop, self.length)):
                self._by_keys(first, count, start, stop)
        self._store_gradient(self.room.key_gradient, args.key_gradient)
        self._store_gradient(self.room.value_gradient, args.value_gradient)

    def _clear(self, gradient: Value) -> None:
        """Zero a gradient of L × K float32."""
        k = self.k
        with k.loop(0, k.times(self.given.num_keys, self.shape.width), k.lanes) as number:
            k.store(k.splat(0.0), k.at(gradient, number))

    def _store_gradient(self, gradient: Value, address: Value) -> None:
        """Convert a gradient of keys or values to the element type and store it."""
        k, args = self.k, self.given
        out = self.start_of(address, args.num_keys, args.key_stride)
        with k.loop(0, args.num_keys) as row:
            for column in self.columns:
                value = k.load_floats(gradient, k.sum_of(k.times(row, self.shape.width), column))
                k.store_narrow(value, out, k.sum_of(k.times(row, args.key_stride), column), self.shape.kind)

    def _slopes(self, group: Queries) -> None:
        """Recompute the queries' attention weights, and compute their score gradients.

        A score's gradient is weight × (gradient of the weight - weighted mean of the gradients of the weights).
        """
        k, limits, sums = self.k, self.limits_of(group), self.sums_of(group)
        self.take_queries(group)
        self.take(self.start_of_context(), self.context_stride(), group, self.room.outer, 1.0)
        queries, outer = (self.own_rows(each, group) for each in (self.room.queries, self.room.outer))
        weight_row, slope_row = (self.row(each, group.place) for each in (self.room.weights, self.room.slopes))
        means = [k.variable(k.splat(0.0)) for _ in limits]
        with k.loop(0, limits[-1], k.lanes) as start:
            scores = self.products(self.room.turned_keys, start, queries, group.many)
            slopes = self.products(self.room.turned_values, start, outer, group.many)
            for n, mean in enumerate(means):
                greatest, inverse = (k.splat(k.load(k.at(sums[n], which))) for which in range(2))
                inside = self.inside(start, limits[n])
                below = k.build.select(inside, k.build.fsub(scores[n], greatest), k.splat(0.0))
                weight = k.build.fmul(exponential(k, below, keeps_nan=True), inverse)
                weight = k.build.select(inside, weight, k.splat(0.0))
                k.store(weight, self.row(weight_row, n, start))
                k.store(slopes[n], self.row(slope_row, n, start))
                k.store(k.madd(weight, slopes[n], k.get(mean, weight)), mean)
        totals = [k.splat(k.total(k.get(mean, k.splat(0.0)))) for mean in means]
        with k.loop(0, limits[-1], k.lanes) as start:
            for n, total in enumerate(totals):
                weight = k.load(self.row(weight_row, n, start), k.floats)
                pointer = self.row(slope_row, n, start)
                k.store(k.build.fmul(weight, k.build.fsub(k.load(pointer, k.floats), total)), pointer)

    def _by_queries(self, group: Queries) -> None:
        """Emit the gradient of some queries: the sum over keys of score gradient × key."""
        k, limits = self.k, self.limits_of(group)
        out = self.start_of(self.given.query_gradient, self.given.num_queries, self.given.query_stride)
        slopes = self.row(self.room.slopes, group.place)
        for columns in self.pairs():
            totals = self.zeros(group.many, columns)
            with k.loop(0, limits[-1]) as key:
                keys = self.columns_of(self.room.keys, key, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(slopes, n, key)), keys)
            for number, total in zip(self.numbers_of(group), totals, strict=True):
                row = k.times(number, self.given.query_stride)
                self.give(out, row, columns, total, k.real(self.shape.width**-0.5))

    def _by_keys(self, first: Value, count: int, start: Value, stop: Value) -> None:
        """Add the contribution of queries [start, stop) to the gradients of some keys and values."""
        k, scratch = self.k, self.room
        # If causal, queries before the first key see none of these keys.
        is_later = k.build.and_(self.is_causal, k.build.icmp_signed(">", first, start))
        seen = k.build.select(is_later, first, start)
        pairs = (
            (scratch.key_gradient, scratch.slopes, scratch.queries),
            (scratch.value_gradient, scratch.weights, scratch.outer),
        )
        for (gradient, factors, vectors), columns in product(pairs, self.pairs()):
            pointers = [
                [k.at(gradient, k.sum_of(k.times(k.sum_of(first, n), self.shape.width), column)) for column in columns]
                for n in range(count)
            ]
            totals = [[k.variable(k.load(pointer, k.floats)) for pointer in row] for row in pointers]
            with k.loop(k.build.sub(seen, start), k.build.sub(stop, start)) as query:
                row_columns = self.columns_of(vectors, query, columns)
                for n, total in enumerate(totals):
                    self.add(total, k.load(self.row(factors, query, k.sum_of(first, n))), row_columns)
            for row, total in zip(pointers, totals, strict=True):
                for at, each in zip(row, total, strict=True):
                    k.store(k.get(each, k.splat(0.0)), at)
