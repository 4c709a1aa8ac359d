"""Emit the training attention kernels for AMX: 16 queries in the lanes of a vector, by 16 keys at a time.

So maxima, sums and weighted means of a query need no reductions across lanes. Attention weights and score gradients are
rounded to bfloat16 before the next multiplication, as between any two bfloat16 operations. Legend: B sentences, H
heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.amx_head import ROWS, AmxHead
from transduce.model.native.attention import AttentionWriter
from transduce.model.native.attention_places import AMX_KEYS, AttentionShape
from transduce.model.native.emit import F32, I16, I32, Emitter, Value
from transduce.model.native.rows import exponential

_NEVER = float("-inf")


class AmxAttentionWriter(AttentionWriter):
    """An emitter of the kernels `attend` and `attend_back` with AMX."""

    def __init__(self, k: Emitter, shape: AttentionShape) -> None:
        super().__init__(k, shape)
        k.features |= {"amx-tile", "amx-bf16"}

    def write(self) -> None:
        """Emit the kernels `attend` and `attend_back`."""
        for name, work in (("attend", _Contexts), ("attend_back", _Gradients)):
            self._write(name, work)

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Emit the configuration of the tile registers before a thread's heads, and their release afterwards."""
        amx.configure(self.k, halves=True)
        yield
        amx.release(self.k)


class _Contexts(AmxHead):
    """An emitter of the forward pass of one head: from queries, keys and values to contexts."""

    def write(self) -> None:
        """Emit the forward pass of the head, 16 queries at a time."""
        k, args, scratch = self.k, self.given, self.room
        keys, values = self.begin()
        self.keys = self.rows_of(keys, scratch.keys)
        self.interleave(values, args.key_stride, self.length, scratch.value_pairs)
        with k.loop(0, args.num_queries, ROWS) as first:
            self._attend(first)

    def _attend(self, first: Value) -> None:
        """Emit the attention of 16 queries from `first` on."""
        k, args, scratch = self.k, self.given, self.room
        queries = self.start_of(args.queries, args.num_queries, args.query_stride)
        count, limit = self.count_from(first, ROWS), self.limit_of(first)
        self.turn(queries, args.query_stride, first, scratch.query_columns)
        self.multiply_rows(limit, (self.keys, scratch.query_columns, scratch.scores))
        greatest = k.build.fmul(self._greatest(first, limit), k.splat(self.shape.width**-0.5))
        inverse = k.build.fdiv(k.splat(1.0), self._weigh(first, limit, greatest))
        k.store(inverse, scratch.inverses)
        self._keep(first, count, greatest, inverse)
        pairs = self.turn_weights(limit)
        row_bytes = k.times(self.filled, 2)
        self.add_up(scratch.turned, row_bytes, scratch.value_pairs, pairs, scratch.made, fresh=_true())
        out, stride = self.start_of_context(), self.context_stride()
        self.give(scratch.made, count, k.at(out, k.times(first, stride), I16), stride, scratch.inverses)

    def _greatest(self, first: Value, limit: Value) -> Value:
        """Return the greatest unscaled score of each of 16 queries."""
        k = self.k
        greatest = k.variable(k.splat(_NEVER))
        with k.loop(0, limit) as key:
            score = k.load_floats(self.room.scores, k.times(key, k.lanes))
            score_or_never = k.build.select(self.seen_by(key, first, limit), score, k.splat(_NEVER))
            k.store(k.greater(score_or_never, k.get(greatest, score_or_never)), greatest)
        return k.get(greatest, k.splat(0.0))

    def _weigh(self, first: Value, limit: Value, greatest: Value) -> Value:
        """Store the scores' exponentials as bfloat16 pairs, and return the sum of exponentials of each query."""
        k, total = self.k, self.k.variable(self.k.splat(0.0))
        with k.loop(0, limit, 2) as even:
            pair = []
            for key in (even, k.sum_of(even, 1)):
                score = k.load_floats(self.room.scores, k.times(key, k.lanes))
                below = k.build.fsub(k.build.fmul(score, k.splat(self.shape.width**-0.5)), greatest)
                seen = self.seen_by(key, first, limit)
                weight = exponential(k, k.build.select(seen, below, k.splat(0.0)), keeps_nan=True)
                weight = k.build.select(seen, weight, k.splat(0.0))
                k.store(k.build.fadd(k.get(total, weight), weight), total)
                pair.append(k.narrow(weight))
            k.store(self.join(*pair), k.at(self.room.weight_pairs, k.times(even, k.lanes // 2), I32))
        return k.get(total, k.splat(0.0))

    def _keep(self, first: Value, count: Value, greatest: Value, inverse: Value) -> None:
        """Store, for the backward pass, each query's greatest score next to the inverse of its sum of exponentials."""
        k = self.k
        for half in range(2):
            start = half * k.lanes // 2
            order = [n // 2 + start + n % 2 * k.lanes for n in range(k.lanes)]
            values = k.build.shuffle_vector(greatest, inverse, ir.Constant(k.ints, order))
            offset = k.times(k.sum_of(first, start), 2)
            inside = self.fewer_than(k.times(k.sum_of(count, -start), 2))
            k.store_narrow(values, self.start_of_sums(), offset, F32, inside=inside)


class _Gradients(AmxHead):
    """An emitter of the backward pass of one head: from the contexts' gradient to those of queries, keys and values."""

    def write(self) -> None:
        """Emit the backward pass of the head, 32 queries at a time: as many as a tile register holds in pairs."""
        k, args, scratch = self.k, self.given, self.room
        keys, values = self.begin()
        self.outer = self.start_of_context(), self.context_stride()
        self.queries = self.start_of(args.queries, args.num_queries, args.query_stride), args.query_stride
        self.fetch_next(*self.outer, args.num_queries)
        self.keys, self.values = self.rows_of(keys, scratch.keys), self.rows_of(values, scratch.values)
        self.interleave(keys, args.key_stride, self.length, scratch.key_pairs)
        with k.loop(0, args.num_queries, AMX_KEYS) as start:
            self._take(start)
            stop = k.lesser(k.sum_of(start, AMX_KEYS), args.num_queries)
            with k.loop(start, stop, ROWS) as first:
                self._weigh(first, k.build.sub(first, start))
                self._by_queries(first)
            self._by_keys(start)
        for gradient, address in (
            (scratch.key_gradient, args.key_gradient),
            (scratch.value_gradient, args.value_gradient),
        ):
            out = self.start_of(address, args.num_keys, args.key_stride)
            self.give(gradient, args.num_keys, out, args.key_stride)

    def _take(self, start: Value) -> None:
        """Interleave 32 queries and their contexts' gradients; clear their attention weights and score gradients."""
        k, scratch = self.k, self.room
        count = self.count_from(start, AMX_KEYS)
        for (rows, stride), out in ((self.queries, scratch.query_pairs), (self.outer, scratch.outer_pairs)):
            self.interleave(k.at(rows, k.times(start, stride), I16), stride, count, out)
        with k.loop(0, self.fill_up(self.given.num_keys, ROWS)) as key:
            for rows in (scratch.weight_rows, scratch.slope_rows):
                k.store(ir.Constant(k.ints, None), k.at(rows, k.times(key, k.lanes), I32))

    def _weigh(self, first: Value, column: Value) -> None:
        """Recompute 16 queries' attention weights, and compute their score gradients.

        A score's gradient is weight × (gradient of the weight - weighted mean of the gradients of the weights).
        """
        k, scratch, limit = self.k, self.room, self.limit_of(first)
        self.turn(*self.queries, first, scratch.query_columns)
        self.turn(*self.outer, first, scratch.outer_columns)
        scores = self.keys, scratch.query_columns, scratch.scores
        self.multiply_rows(limit, scores, (self.values, scratch.outer_columns, scratch.slopes))
        greatest, inverse = self._kept(first)
        mean = k.variable(k.splat(0.0))
        exists = self.fewer_than(k.build.sub(self.given.num_queries, first))
        factor = k.splat(self.shape.width**-0.5)
        with k.loop(0, limit) as key:
            at = k.at(scratch.scores, k.times(key, k.lanes))
            seen = k.build.and_(self.seen_by(key, first, limit), exists)
            below = k.build.fsub(k.build.fmul(k.load(at, k.floats), factor), greatest)
            below = k.build.select(seen, below, k.splat(0.0))
            weight = k.build.fmul(exponential(k, below, keeps_nan=True), inverse)
            weight = k.build.select(seen, weight, k.splat(0.0))
            k.store(weight, at)
            slope = k.load_floats(scratch.slopes, k.times(key, k.lanes))
            k.store(k.madd(weight, slope, k.get(mean, weight)), mean)
        self._give_slopes(limit, column, k.get(mean, factor))

    def _kept(self, first: Value) -> tuple[Value, Value]:
        """Load the greatest scores of 16 queries and the inverses of their sums of exponentials."""
        k = self.k
        remaining = k.build.sub(self.given.num_queries, first)
        halves = []
        for start in (0, k.lanes // 2):
            offset, inside = (
                k.times(k.sum_of(first, start), 2),
                self.fewer_than(k.times(k.sum_of(remaining, -start), 2)),
            )
            halves.append(k.load_wide(self.start_of_sums(), offset, F32, inside=inside))
        orders = (ir.Constant(k.ints, [2 * n + which for n in range(k.lanes)]) for which in range(2))
        greatest, inverse = (k.build.shuffle_vector(*halves, order) for order in orders)
        return greatest, inverse

    def _give_slopes(self, limit: Value, column: Value, mean: Value) -> None:
        """Store score gradients as rows of keys and as pairs, and the weights as rows; zeros behind the last key."""
        k, scratch, factor = self.k, self.room, self.k.splat(self.shape.width**-0.5)
        with k.loop(0, limit, 2) as even:
            pair = []
            for key in (even, k.sum_of(even, 1)):
                slope = k.variable(ir.Constant(ir.VectorType(I16, k.lanes), None))
                with k.where(k.build.icmp_signed("<", key, limit)):
                    weight, slope_of_weight = (
                        k.load_floats(each, k.times(key, k.lanes)) for each in (scratch.scores, scratch.slopes)
                    )
                    by_score = k.narrow(k.build.fmul(k.build.fmul(weight, k.build.fsub(slope_of_weight, mean)), factor))
                    k.store(by_score, slope)
                    offset = k.sum_of(k.times(key, AMX_KEYS), column)
                    k.store(k.narrow(weight), k.at(scratch.weight_rows, offset, I16))
                    k.store(by_score, k.at(scratch.slope_rows, offset, I16))
                pair.append(slope)
            low, high = (k.build.load(each) for each in pair)
            k.store(self.join(low, high), k.at(scratch.weight_pairs, k.times(even, k.lanes // 2), I32))

    def _by_queries(self, first: Value) -> None:
        """Emit the gradient of 16 queries: the sum over keys of score gradient × key."""
        k, args, scratch = self.k, self.given, self.room
        pairs = self.turn_weights(self.limit_of(first))
        self.add_up(scratch.turned, k.times(self.filled, 2), scratch.key_pairs, pairs, scratch.made, fresh=_true())
        out = self.start_of(args.query_gradient, args.num_queries, args.query_stride)
        count = self.count_from(first, ROWS)
        self.give(scratch.made, count, k.at(out, k.times(first, args.query_stride), I16), args.query_stride)

    def _by_keys(self, start: Value) -> None:
        """Add the contribution of 32 queries from `start` on to the gradients of keys and values."""
        k, scratch, args = self.k, self.room, self.given
        last = self.fill_up(args.num_keys, ROWS)
        seen = k.lesser(last, k.sum_of(start, AMX_KEYS))  # by any of the queries, if causal
        with k.loop(0, k.build.select(self.is_causal, seen, last), ROWS) as key:
            fresh = k.build.icmp_signed("==", start, k.number(0))
            is_new = k.build.and_(self.is_causal, k.build.icmp_signed(">=", key, start))
            for left, pairs, out in (
                (scratch.weight_rows, scratch.outer_pairs, scratch.value_gradient),
                (scratch.slope_rows, scratch.query_pairs, scratch.key_gradient),
            ):
                self.add_up(
                    k.at(left, k.times(key, k.lanes), I32),
                    k.number(amx.REGISTER_BYTES),
                    pairs,
                    self.pairs_of(self.count_from(start, AMX_KEYS)),
                    k.at(out, k.times(key, self.width)),
                    fresh=k.build.or_(fresh, is_new),
                )


def _true() -> Value:
    """Return the constant true."""
    return ir.Constant(ir.IntType(1), 1)
