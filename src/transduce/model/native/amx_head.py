"""Emit the packing and multiplications of one attention head with AMX, for the kernels of `amx_attention.py`.

A left-hand operand is 16 rows of bfloat16, with the summed dimension along the columns. A right-hand operand stores the
summed dimension as rows of pairs (`amx.py`). So a matrix whose columns are summed over is used as it is on the left and
transposed on the right; one whose rows are summed over is interleaved by pairs of rows. Legend: Q queries, L keys, K
width of a head's queries, keys and values.
"""

from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native import amx
from transduce.model.native.attention_head import HeadPlaces
from transduce.model.native.attention_places import AMX_KEYS, AttentionPlaces, AttentionShape, amx_room
from transduce.model.native.emit import I16, I32, BFloat, Emitter, Value
from transduce.model.native.rows import transpose

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
