"""Emit the training attention kernels for AMX: 16 queries in the lanes of a vector, by 16 keys at a time.

So maxima, sums and weighted means of a query need no reductions across lanes. Attention weights and score gradients are
rounded to bfloat16 before the next multiplication, as between any two bfloat16 operations. Legend: B sentences, H
heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.attention import (
    AMX_KEYS,
    AttentionPlaces,
    AttentionShape,
    AttentionWriter,
    HeadPlaces,
    amx_room,
)
from transduce.kernels.cpu.decode_rows import exponential, transpose
from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, BFloat, Emitter, Value

# --- amx head ---
# Emit the packing and multiplications of one attention head with AMX, for the kernels of `amx_attention.py`.
# A left-hand operand is 16 rows of bfloat16, with the summed dimension along the columns. A right-hand operand
# stores the summed dimension as rows of pairs (`amx.py`). So a matrix whose columns are summed over is used as it
# is on the left and transposed on the right; one whose rows are summed over is interleaved by pairs of rows.
# Legend: Q queries, L keys, K width of a head's queries, keys and values.


ROWS = amx.REGISTER_ROWS
_BLOCKS = 4  # blocks of columns whose sums are in tile registers at once
_LEFT, _RIGHT = 4, 5  # tile registers of the operands; sums are in 0 to 3
_HALF_LEFT, _HALF_RIGHT = 6, 7  # tile registers for half as many pairs: see `amx.configure`
_HALF = amx.REGISTER_ROWS // 2


class AmxRoom(NamedTuple):
    """Arrays in one thread's scratch space, sized by `attention_places.amx_room`; pairs are padded with zeros."""

    keys: Value
    """A copy of the keys, (L, K), used where they cannot be read in place."""
    values: Value
    """A copy of the values, (L, K), used where they cannot be read in place."""
    key_pairs: Value
    """Keys with rows 2n and 2n + 1 interleaved."""
    value_pairs: Value
    """Values with rows 2n and 2n + 1 interleaved."""
    query_columns: Value
    """16 queries transposed: 16 pairs for each pair of columns."""
    outer_columns: Value
    """The gradient of 16 contexts, transposed in the same way."""
    scores: Value
    """Scores of each key with 16 queries, float32; in the backward pass overwritten by the attention weights."""
    slopes: Value
    """The gradient of the attention weights, of each key with 16 queries, float32."""
    weight_pairs: Value
    """Attention weights of 16 queries, with keys interleaved; in the backward pass, the score gradients."""
    turned: Value
    """`weight_pairs` transposed to one row for each query."""
    made: Value
    """Sums for 16 queries, K float32 each."""
    inverses: Value
    """The inverse of the sum of exponentials of each of 16 queries."""
    query_pairs: Value
    """32 queries, with rows interleaved."""
    outer_pairs: Value
    """The gradient of 32 contexts, with rows interleaved."""
    weight_rows: Value
    """The attention weights of 32 queries for each key."""
    slope_rows: Value
    """The score gradients of 32 queries for each key."""
    key_gradient: Value
    """The gradient of the keys, (L, K) float32."""
    value_gradient: Value
    """The gradient of the values, (L, K) float32."""


class AmxHead(HeadPlaces):
    """One head of one sentence, with a thread's scratch space for AMX."""

    def __init__(self, k: Emitter, shape: AttentionShape, given: AttentionPlaces, *where: Value) -> None:
        """Address the rows and the scratch space; `where` is the sentence, the head and the thread's index."""
        *sentence_and_head, thread = where
        super().__init__(k, shape, given, *sentence_and_head)
        self.width = shape.width
        self.filled = self.fill_up(given.num_keys, AMX_KEYS)
        sizes = amx_room(shape.width)
        self.room = AmxRoom(*self.places_of(thread, [k.sum_of(k.times(self.filled, n), rest) for n, rest in sizes]))
        self.lanes = ir.Constant(k.ints, list(range(k.lanes)))

    # --- rows of bfloat16 ------------------------------------------------------------------------------------------

    def rows_of(self, rows: Value, room: Value) -> tuple[Value, Value]:
        """Return a pointer and a row stride by which blocks of 16 keys or values can be read, beyond the last one too.

        Rows are copied to `room` if too little memory follows the last one.
        """
        k, args, kind = self.k, self.given, ir.VectorType(I16, 2 * self.k.lanes)
        rows_available = k.times(k.build.sub(args.batch, self.sentence), args.num_keys)
        pointer, stride = k.variable(rows), k.variable(args.key_stride)
        with k.where(k.build.icmp_signed("<", rows_available, self.fill_up(self.length, ROWS))):
            with k.loop(0, self.length) as row:
                for column in range(0, self.width, 2 * k.lanes):
                    value = k.load(k.at(rows, k.sum_of(k.times(row, args.key_stride), column), I16), kind)
                    k.store(value, k.at(room, k.sum_of(k.times(row, self.width), column), I16))
            k.store(room, pointer)
            k.store(k.number(self.width), stride)
        return k.get(pointer, rows), k.get(stride, args.key_stride)

    def _clear(self, pointer: Value, words: int) -> None:
        """Zero `words` 32-bit elements."""
        k = self.k
        for start in range(0, words, k.lanes):
            k.store(ir.Constant(k.ints, None), k.at(pointer, start, I32))

    def interleave(self, rows: Value, stride: Value, count: Value, out: Value) -> None:
        """Interleave `count` rows by pairs, padded with zero pairs up to half a tile register."""
        k, none = self.k, ir.Constant(ir.VectorType(I16, self.k.lanes), None)
        full_pairs = k.build.sdiv(count, k.number(2))
        with k.loop(0, full_pairs) as pair:
            for column in range(0, self.width, k.lanes):
                low, high = (self._narrow_row(rows, k.sum_of(k.times(pair, 2), n), stride, column) for n in range(2))
                self._put_pairs(low, high, out, pair, column)
        last = k.times(full_pairs, 2)
        with k.where(k.build.icmp_signed("<", last, count)):
            for column in range(0, self.width, k.lanes):
                self._put_pairs(self._narrow_row(rows, last, stride, column), none, out, full_pairs, column)
        pairs = self.pairs_of(count)
        with k.loop(pairs, self._filled_pairs(pairs)) as pair:
            self._clear(k.at(out, k.times(pair, self.width), I32), self.width)

    def pairs_of(self, count: Value) -> Value:
        """Return the number of pairs of `count` rows; the last pair may hold a single row."""
        return self.k.build.sdiv(self.k.sum_of(count, 1), self.k.number(2))

    def _whole_pairs(self, pairs: Value) -> Value:
        """Return how many of the pairs are multiplied in whole tile registers; half a register takes the others."""
        return self.fill_up(self.k.sum_of(pairs, -_HALF), ROWS)

    def _filled_pairs(self, pairs: Value) -> Value:
        """Return the number of pairs that are read, zero padding included."""
        k, whole_pairs = self.k, self._whole_pairs(pairs)
        has_half = k.build.icmp_signed(">", pairs, whole_pairs)
        return k.build.select(has_half, k.sum_of(whole_pairs, _HALF), whole_pairs)

    def _narrow_row(self, rows: Value, row: Value, stride: Value, column: int) -> Value:
        """Load a bfloat16 vector of a row."""
        k = self.k
        return k.load(k.at(rows, k.sum_of(k.times(row, stride), column), I16), ir.VectorType(I16, k.lanes))

    def _put_pairs(self, low: Value, high: Value, out: Value, pair: Value, column: int) -> None:
        """Store a vector of pairs."""
        target = self.k.at(out, self.k.sum_of(self.k.times(pair, self.width), column), I32)
        self.k.store(self.join(low, high), target)

    def join(self, low: Value, high: Value) -> Value:
        """Return the pairs of two vectors of bfloat16."""
        k = self.k
        low, high = (k.build.zext(each, k.ints) for each in (low, high))
        return k.build.or_(low, k.build.shl(high, k.all_ints(16)))

    def turn(self, rows: Value, stride: Value, first: Value, out: Value) -> None:
        """Transpose 16 queries from `first` on; the last query pads the block, and the padding is ignored."""
        k = self.k
        last = k.sum_of(self.given.num_queries, -1)
        starts = [k.times(k.lesser(k.sum_of(first, n), last), stride) for n in range(ROWS)]
        for column in range(0, self.width, 2 * k.lanes):
            square = [k.load(k.at(rows, k.sum_of(start, column), I16), k.ints) for start in starts]
            for n, vector in enumerate(transpose(k, square)):
                k.store(vector, k.at(out, (column // 2 + n) * k.lanes, I32))

    def turn_weights(self, limit: Value) -> Value:
        """Transpose the weight pairs of `limit` keys to a row for each of 16 queries; return the number of pairs."""
        k, scratch, pairs = self.k, self.room, self.pairs_of(limit)
        row, whole_pairs = k.build.sdiv(self.filled, k.number(2)), self._whole_pairs(pairs)
        with k.loop(pairs, self._filled_pairs(pairs)) as pair:
            self._clear(k.at(scratch.weight_pairs, k.times(pair, k.lanes), I32), k.lanes)

        def transpose_block(start: Value, count: int) -> None:
            """Transpose `count` pairs of keys from `start` on, for all 16 queries."""
            pointers = (k.at(scratch.weight_pairs, k.times(k.sum_of(start, n), k.lanes), I32) for n in range(count))
            square = [k.load(pointer, k.ints) for pointer in pointers]
            square += [ir.Constant(k.ints, None)] * (k.lanes - count)
            for n, vector in enumerate(transpose(k, square)):
                if count < k.lanes:
                    vector = k.build.shuffle_vector(
                        vector, vector, ir.Constant(ir.VectorType(I32, count), list(range(count)))
                    )
                k.store(vector, k.at(scratch.turned, k.sum_of(k.times(row, n), start), I32))

        with k.loop(0, whole_pairs, k.lanes) as start:
            transpose_block(start, k.lanes)
        with k.where(k.build.icmp_signed("<", whole_pairs, pairs)):
            transpose_block(whole_pairs, _HALF)
        return pairs

    # --- sixteen queries -------------------------------------------------------------------------------------------

    def count_from(self, first: Value, most: int) -> Value:
        """Return how many queries there are from `first` on, at most `most`."""
        return self.k.lesser(self.k.build.sub(self.given.num_queries, first), self.k.number(most))

    def limit_of(self, first: Value) -> Value:
        """Return how many keys at least one of 16 queries may attend to."""
        k = self.k
        return k.build.select(self.is_causal, k.lesser(self.length, k.sum_of(first, ROWS)), self.length)

    def seen_by(self, key: Value, first: Value, limit: Value) -> Value:
        """Return a mask of the queries that may attend to a key."""
        k = self.k
        earliest = k.build.select(self.is_causal, k.build.sub(key, first), k.number(0))
        earliest = k.build.select(k.build.icmp_signed("<", key, limit), earliest, k.number(ROWS))
        return k.build.icmp_signed(">=", self.lanes, k.splat(k.build.trunc(earliest, I32)))

    def fewer_than(self, count: Value) -> Value:
        """Return a mask of the first `count` lanes."""
        return self.k.build.icmp_signed("<", self.lanes, self.k.splat(self.k.build.trunc(count, I32)))

    # --- products ----------------------------------------------------------------------------------------------------

    def multiply_rows(self, limit: Value, *products: tuple[tuple[Value, Value], Value, Value]) -> None:
        """Emit matrix multiplications of `limit` key rows by 16 queries' columns, 16 rows at a time, to float32.

        Each product is ((rows, row stride), columns, result).
        """
        k = self.k
        with k.loop(0, limit, ROWS) as key:
            for number in range(len(products)):
                amx.zero(k, number)
            for column in range(0, self.width, 2 * k.lanes):
                for number, ((rows, stride), columns, _) in enumerate(products):
                    left, right = _LEFT - 2 * number, _RIGHT - 2 * number
                    row_block = k.at(rows, k.sum_of(k.times(key, stride), column), I16)
                    amx.load(k, left, row_block, k.times(stride, 2))
                    amx.load(k, right, k.at(columns, column // 2 * k.lanes, I32), k.number(amx.REGISTER_BYTES))
                    self._multiply(number, left, right)
            for number, (*_, out) in enumerate(products):
                amx.store(k, number, k.at(out, k.times(key, k.lanes)))

    def add_up(self, left: Value, row_bytes: Value, right: Value, pairs: Value, out: Value, *, fresh: Value) -> None:
        """Emit the multiplication of 16 left-hand rows by pairs, and add the sums to rows of K float32.

        With `fresh`, the sums replace what `out` holds.
        """
        k, whole_pairs = self.k, self._whole_pairs(pairs)
        row = self.width * 4
        for start in range(0, self.width, _BLOCKS * k.lanes):
            columns = range(start, min(start + _BLOCKS * k.lanes, self.width), k.lanes)
            with k.build.if_else(fresh) as (new, more):
                with new:
                    for number in range(len(columns)):
                        amx.zero(k, number)
                with more:
                    for number, column in enumerate(columns):
                        amx.load(k, number, k.at(out, column), k.number(row))

            def add(pair: Value, registers: tuple[int, int], columns: range = columns) -> None:
                """Multiply one register of pairs by all column blocks."""
                amx.load(k, registers[0], k.at(left, pair, I32), row_bytes)
                for number, column in enumerate(columns):
                    pointer = k.at(right, k.sum_of(k.times(pair, self.width), column), I32)
                    amx.load(k, registers[1], pointer, k.number(row))
                    self._multiply(number, *registers)

            with k.loop(0, whole_pairs, ROWS) as pair:
                add(pair, (_LEFT, _RIGHT))
            with k.where(k.build.icmp_signed("<", whole_pairs, pairs)):
                add(whole_pairs, (_HALF_LEFT, _HALF_RIGHT))
            for number, column in enumerate(columns):
                amx.store(k, number, k.at(out, column), row)

    def _multiply(self, *registers: int) -> None:
        """Emit an AMX multiplication of bfloat16 pairs: sums, left and right tile register."""
        self.k.intrinsic("llvm.x86.tdpbf16ps", ir.VoidType(), *map(amx.register, registers))

    def give(self, made: Value, count: Value, out: Value, stride: Value, factors: Value | None = None) -> None:
        """Convert `count` rows of float32 to bfloat16, each multiplied by its factor if there are factors."""
        k, kind = self.k, ir.VectorType(BFloat(), 2 * self.k.lanes)
        with k.loop(0, count) as row:
            factor = None if factors is None else k.splat(k.load(k.at(factors, row)))
            for column in range(0, self.width, 2 * k.lanes):
                offset = k.sum_of(k.times(row, self.width), column)
                low, high = (k.load_floats(made, k.sum_of(offset, n)) for n in (0, k.lanes))
                if factor is not None:
                    low, high = (k.build.fmul(each, factor) for each in (low, high))
                narrow = k.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, high, low)
                bits = k.build.bitcast(narrow, ir.VectorType(I16, 2 * k.lanes))
                k.store(bits, k.at(out, k.sum_of(k.times(row, stride), column), I16))


# --- attention amx ---


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
