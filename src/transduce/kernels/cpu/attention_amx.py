"""Emit the training attention kernels for AMX: 16 queries in the lanes of a vector, by 16 keys at a time.

Maxima, sums and weighted means of a query thus need no reductions across lanes. Attention weights and score gradients
are rounded to bfloat16 before the next multiplication, as between any two bfloat16 operations.

Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from typing_extensions import override

from transduce.kernels.cpu.attention import (
    AMX_KEYS,
    AttentionArguments,
    AttentionEmitter,
    AttentionShape,
    HeadAddresses,
    amx_scratch_sizes,
)
from transduce.kernels.cpu.decode_rows import exponential, transpose
from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, BFloat, KernelBuilder, Value

# --- one head with AMX ---
# A left-hand operand is 16 rows of bfloat16, with the summed dimension along the columns. A right-hand operand stores
# the summed dimension as rows of pairs (`gemm/amx.py`). So a matrix whose columns are summed over is used as it is on
# the left and transposed on the right; one whose rows are summed over is interleaved by pairs of rows.


ROWS = amx.REGISTER_ROWS
_BLOCKS = 4  # blocks of columns whose sums are in tile registers at once
_LEFT, _RIGHT = 4, 5  # tile registers of the operands; sums are in 0 to 3
_HALF_LEFT, _HALF_RIGHT = 6, 7  # tile registers for half as many pairs: see `amx.configure`
_HALF = amx.REGISTER_ROWS // 2


class AmxScratch(NamedTuple):
    """Pointers (IR values) to one thread's scratch arrays in the AMX attention kernels, for one head.

    `amx_scratch_sizes` returns the arrays' sizes. Elements are bfloat16, unless stated otherwise.
    """

    keys: Value
    """Pointer to a copy of the sentence's keys, (L, K), used where the keys cannot be read in place."""
    values: Value
    """Pointer to a copy of the sentence's values, (L, K), used where the values cannot be read in place."""
    key_pairs: Value
    """Pointer to keys, rows 2n and 2n + 1 interleaved element by element, as a right operand of AMX products."""
    value_pairs: Value
    """Pointer to values, rows 2n and 2n + 1 interleaved element by element, as a right operand of AMX products."""
    query_columns: Value
    """Pointer to 16 queries, transposed as a right operand of AMX products: for each two columns, a pair per query."""
    output_gradient_columns: Value
    """Pointer to the gradients of 16 attention outputs, transposed: for each two columns, a pair per output."""
    scores: Value
    """Pointer to the attention scores of each key for 16 queries, float32.

    In the backward pass, attention weights replace the scores.
    """
    weight_gradients: Value
    """Pointer to the gradient of the attention weights of each key for 16 queries, float32."""
    weight_pairs: Value
    """Pointer to 16 queries' attention weights, two keys interleaved; in the backward pass, to score gradients."""
    transposed: Value
    """Pointer to a transposed copy of `weight_pairs` (attention weights or score gradients): one row per query."""
    context_sums: Value
    """Pointer to sums of values or keys, weighted for each of 16 queries, K float32 each."""
    inverses: Value
    """Pointer to the inverse of the sum of exponentials of each of 16 queries, float32."""
    query_pairs: Value
    """Pointer to 32 queries, rows 2n and 2n + 1 interleaved element by element, as a right operand of AMX products."""
    output_gradient_pairs: Value
    """Pointer to the gradients of 32 attention outputs, rows 2n and 2n + 1 interleaved, as an AMX right operand."""
    weight_rows: Value
    """Pointer to the attention weights of 32 queries, a row of 32 for each key."""
    score_gradient_rows: Value
    """Pointer to the score gradients of 32 queries, a row of 32 for each key."""
    key_gradient: Value
    """Pointer to the gradient of the sentence's keys, (L, K) float32, summed over queries."""
    value_gradient: Value
    """Pointer to the gradient of the sentence's values, (L, K) float32, summed over queries."""


class AmxHead(HeadAddresses):
    """An emitter of attention for one head in one sentence with AMX, in a thread's scratch space."""

    def __init__(self, k: KernelBuilder, shape: AttentionShape, args: AttentionArguments, *where: Value) -> None:
        """Emit pointers to scratch arrays; `where` has the indices of sentence, head and thread."""
        *sentence_and_head, thread = where
        super().__init__(k, shape, args, *sentence_and_head)
        self.width = shape.width
        self.filled = self.round_up_to_lanes(args.num_keys, AMX_KEYS)
        sizes = [k.add(k.mul(self.filled, n), rest) for n, rest in amx_scratch_sizes(shape.width)]
        self.scratch = AmxScratch(*self.scratch_addresses(thread, sizes))
        self.lanes = ir.Constant(k.ints, list(range(k.lanes)))

    # --- rows of bfloat16 ------------------------------------------------------------------------------------------

    def readable_rows(self, rows: Value, scratch: Value) -> tuple[Value, Value]:
        """Return a pointer and a stride (in elements) by which keys or values can be read in blocks of 16 rows.

        AMX reads whole blocks, so code is emitted that copies the rows to `scratch` if too little memory follows the
        last row.
        """
        k, args, kind = self.k, self.args, ir.VectorType(I16, 2 * self.k.lanes)
        rows_available = k.mul(k.build.sub(args.batch, self.sentence), args.num_keys)
        pointer, stride = k.variable(rows), k.variable(args.key_stride)
        with k.when(k.build.icmp_signed("<", rows_available, self.round_up_to_lanes(self.length, ROWS))):
            with k.loop(0, self.length) as row:
                for column in range(0, self.width, 2 * k.lanes):
                    value = k.load(k.element_pointer(rows, k.add(k.mul(row, args.key_stride), column), I16), kind)
                    k.store(value, k.element_pointer(scratch, k.add(k.mul(row, self.width), column), I16))
            k.store(scratch, pointer)
            k.store(k.int64(self.width), stride)
        return k.load_variable(pointer), k.load_variable(stride)

    def _clear(self, pointer: Value, words: int) -> None:
        """Emit code that zeros `words` 32-bit elements from `pointer` on; `words` is a multiple of the vector size."""
        k = self.k
        for start in range(0, words, k.lanes):
            k.store(ir.Constant(k.ints, None), k.element_pointer(pointer, start, I32))

    def interleave(self, rows: Value, stride: Value, count: Value, out: Value) -> None:
        """Emit code that interleaves rows 2n and 2n + 1 of `count` bfloat16 rows, as a right operand of AMX products.

        Rows of zeros are appended up to the number that tile registers read. `stride` is the number of elements between
        rows.
        """
        k, none = self.k, ir.Constant(ir.VectorType(I16, self.k.lanes), None)
        full_pairs = k.build.sdiv(count, k.int64(2))
        with k.loop(0, full_pairs) as pair:
            for column in range(0, self.width, k.lanes):
                low, high = (self._narrow_row(rows, k.add(k.mul(pair, 2), n), stride, column) for n in range(2))
                self._put_pairs(low, high, out, pair, column)
        last = k.mul(full_pairs, 2)
        with k.when(k.build.icmp_signed("<", last, count)):
            for column in range(0, self.width, k.lanes):
                self._put_pairs(self._narrow_row(rows, last, stride, column), none, out, full_pairs, column)
        pairs = self.pairs_of(count)
        with k.loop(pairs, self._filled_pairs(pairs)) as pair:
            self._clear(k.element_pointer(out, k.mul(pair, self.width), I32), self.width)

    def pairs_of(self, count: Value) -> Value:
        """Return (an IR value) how many pairs of rows `count` rows form; the last pair may hold a single row."""
        return self.k.build.sdiv(self.k.add(count, 1), self.k.int64(2))

    def _whole_pairs(self, pairs: Value) -> Value:
        """Return (an IR value) how many of `pairs` row pairs are multiplied in whole tile registers, a multiple of 16.

        A register holds 16 pairs. If at most 8 pairs remain for the last register, half a register multiplies them
        instead. If more than 8 remain, the last register is whole, too.
        """
        return self.round_up_to_lanes(self.k.add(pairs, -_HALF), ROWS)

    def _filled_pairs(self, pairs: Value) -> Value:
        """Return (an IR value) the number of row pairs that tile registers read: `pairs`, and zero padding."""
        k, whole_pairs = self.k, self._whole_pairs(pairs)
        has_half = k.build.icmp_signed(">", pairs, whole_pairs)
        return k.build.select(has_half, k.add(whole_pairs, _HALF), whole_pairs)

    def _narrow_row(self, rows: Value, row: Value, stride: Value, column: int) -> Value:
        """Return a vector of `lanes` bfloat16 elements (half a register) of row `row`, from column `column` on."""
        k = self.k
        return k.load(k.element_pointer(rows, k.add(k.mul(row, stride), column), I16), ir.VectorType(I16, k.lanes))

    def _put_pairs(self, low: Value, high: Value, out: Value, pair: Value, column: int) -> None:
        """Emit the interleaving of two bfloat16 vectors, and the store of the resulting 32-bit pairs in `out`.

        `pair` is the index of the row of pairs, and `column` that of the first pair in the row.
        """
        target = self.k.element_pointer(out, self.k.add(self.k.mul(pair, self.width), column), I32)
        self.k.store(self.join(low, high), target)

    def join(self, low: Value, high: Value) -> Value:
        """Return a vector of 32-bit pairs, interleaved from two bfloat16 vectors, with `low` in the lower 16 bits."""
        k = self.k
        low, high = (k.build.zext(each, k.ints) for each in (low, high))
        return k.build.or_(low, k.build.shl(high, k.splat_int(16)))

    def transpose_queries(self, rows: Value, stride: Value, first: Value, out: Value) -> None:
        """Emit the transposition of 16 queries from `first` on to `out`, as the right operand of AMX products.

        If fewer than 16 queries remain, copies of the last query fill the block; what they yield is ignored.
        """
        k = self.k
        last = k.add(self.args.num_queries, -1)
        starts = [k.mul(k.minimum(k.add(first, n), last), stride) for n in range(ROWS)]
        for column in range(0, self.width, 2 * k.lanes):
            square = [k.load(k.element_pointer(rows, k.add(start, column), I16), k.ints) for start in starts]
            for n, vector in enumerate(transpose(k, square)):
                k.store(vector, k.element_pointer(out, (column // 2 + n) * k.lanes, I32))

    def transpose_weights(self, limit: Value) -> Value:
        """Emit the transposition of `limit` keys' attention weights to rows, one row for each of 16 queries.

        Weights are in pairs of keys, as AMX multiplies them. Return the number of pairs (an IR value).
        """
        k, scratch, pairs = self.k, self.scratch, self.pairs_of(limit)
        row, whole_pairs = k.build.sdiv(self.filled, k.int64(2)), self._whole_pairs(pairs)
        with k.loop(pairs, self._filled_pairs(pairs)) as pair:
            self._clear(k.element_pointer(scratch.weight_pairs, k.mul(pair, k.lanes), I32), k.lanes)

        def transpose_block(start: Value, count: int) -> None:
            """Emit the transposition of the weights of `count` pairs of keys from `start` on, for all 16 queries."""
            offsets = (k.mul(k.add(start, n), k.lanes) for n in range(count))
            square = [k.load(k.element_pointer(scratch.weight_pairs, each, I32), k.ints) for each in offsets]
            square += [ir.Constant(k.ints, None)] * (k.lanes - count)
            for n, vector in enumerate(transpose(k, square)):
                if count < k.lanes:
                    vector = k.shuffle(vector, vector, range(count))
                k.store(vector, k.element_pointer(scratch.transposed, k.add(k.mul(row, n), start), I32))

        with k.loop(0, whole_pairs, k.lanes) as start:
            transpose_block(start, k.lanes)
        with k.when(k.build.icmp_signed("<", whole_pairs, pairs)):
            transpose_block(whole_pairs, _HALF)
        return pairs

    # --- sixteen queries -------------------------------------------------------------------------------------------

    def remaining_queries(self, first: Value, max_queries: int) -> Value:
        """Return (an IR value) the number of queries from index `first` on, at most `max_queries`."""
        return self.k.minimum(self.k.build.sub(self.args.num_queries, first), self.k.int64(max_queries))

    def limit_of(self, first: Value) -> Value:
        """Return (an IR value) the number of leading keys that any of the 16 queries from `first` on may attend to."""
        k = self.k
        return k.build.select(self.is_causal, k.minimum(self.length, k.add(first, ROWS)), self.length)

    def visible_to(self, key: Value, first: Value, limit: Value) -> Value:
        """Return a vector mask, one lane for each of 16 queries from `first` on: true if the query may attend to `key`.

        No query may attend to a key from `limit` on.
        """
        k = self.k
        earliest = k.build.select(self.is_causal, k.build.sub(key, first), k.int64(0))
        earliest = k.build.select(k.build.icmp_signed("<", key, limit), earliest, k.int64(ROWS))
        return k.build.icmp_signed(">=", self.lanes, k.splat(k.build.trunc(earliest, I32)))

    def fewer_than(self, count: Value) -> Value:
        """Return a vector mask that is true in the first `count` lanes, such as those of queries that exist."""
        return self.k.build.icmp_signed("<", self.lanes, self.k.splat(self.k.build.trunc(count, I32)))

    # --- products ----------------------------------------------------------------------------------------------------

    def multiply_rows(self, limit: Value, *products: tuple[tuple[Value, Value], Value, Value]) -> None:
        """Emit products of `limit` key (or value) rows with 16 transposed queries, 16 rows at a time, in float32.

        Each item of `products` is ((pointer to rows, row stride in elements), transposed queries, pointer to the
        result).
        """
        k = self.k
        with k.loop(0, limit, ROWS) as key:
            for number in range(len(products)):
                amx.zero(k, number)
            for column in range(0, self.width, 2 * k.lanes):
                for number, ((rows, stride), columns, _) in enumerate(products):
                    left, right = _LEFT - 2 * number, _RIGHT - 2 * number
                    row_block = k.element_pointer(rows, k.add(k.mul(key, stride), column), I16)
                    amx.load(k, left, row_block, k.mul(stride, 2))
                    pairs = k.element_pointer(columns, column // 2 * k.lanes, I32)
                    amx.load(k, right, pairs, k.int64(amx.REGISTER_BYTES))
                    self._multiply(number, left, right)
            for number, (*_, out) in enumerate(products):
                amx.store(k, number, k.element_pointer(out, k.mul(key, k.lanes)))

    def multiply_and_add(
        self, left: Value, row_bytes: Value, right: Value, pairs: Value, out: Value, *, fresh: Value
    ) -> None:
        """Emit the product of 16 rows and a right operand, both of bfloat16 pairs, added to 16 rows of K float32.

        Args:
            left: pointer to the 16 rows, `row_bytes` apart.
            row_bytes: bytes from one of these rows to the next.
            right: pointer to the right operand, interleaved rows of K pairs.
            pairs: the number of pairs to sum.
            out: pointer to the sums.
            fresh: a condition; if it is true, the sums replace what `out` holds.
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
                        amx.load(k, number, k.element_pointer(out, column), k.int64(row))

            def add(pair: Value, registers: tuple[int, int], columns: range = columns) -> None:
                """Emit the product of one tile register, 16 rows of pairs, with all blocks of the right operand."""
                amx.load(k, registers[0], k.element_pointer(left, pair, I32), row_bytes)
                for number, column in enumerate(columns):
                    pointer = k.element_pointer(right, k.add(k.mul(pair, self.width), column), I32)
                    amx.load(k, registers[1], pointer, k.int64(row))
                    self._multiply(number, *registers)

            with k.loop(0, whole_pairs, ROWS) as pair:
                add(pair, (_LEFT, _RIGHT))
            with k.when(k.build.icmp_signed("<", whole_pairs, pairs)):
                add(whole_pairs, (_HALF_LEFT, _HALF_RIGHT))
            for number, column in enumerate(columns):
                amx.store(k, number, k.element_pointer(out, column), row)

    def _multiply(self, *registers: int) -> None:
        """Emit an AMX multiplication of bfloat16 pairs, for three tile registers: sums, left and right operand."""
        self.k.intrinsic("llvm.x86.tdpbf16ps", ir.VoidType(), *map(amx.register, registers))

    def store_rows(self, rows: Value, count: Value, out: Value, stride: Value, factors: Value | None = None) -> None:
        """Emit the store of `count` float32 rows of K elements as bfloat16, each times its factor, if any.

        `factors` points to one float32 per row, or is None. `stride` is the number of elements between the rows of
        `out`.
        """
        k, kind = self.k, ir.VectorType(BFloat(), 2 * self.k.lanes)
        with k.loop(0, count) as row:
            factor = None if factors is None else k.splat(k.load(k.element_pointer(factors, row)))
            for column in range(0, self.width, 2 * k.lanes):
                offset = k.add(k.mul(row, self.width), column)
                low, high = (k.load_floats(rows, k.add(offset, n)) for n in (0, k.lanes))
                if factor is not None:
                    low, high = (k.build.fmul(each, factor) for each in (low, high))
                narrow = k.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", kind, high, low)
                bits = k.build.bitcast(narrow, ir.VectorType(I16, 2 * k.lanes))
                k.store(bits, k.element_pointer(out, k.add(k.mul(row, stride), column), I16))


# --- forward and backward kernels ---


_NEVER = float("-inf")
_TRUE = ir.Constant(ir.IntType(1), 1)


class AmxAttentionEmitter(AttentionEmitter):
    """An emitter of the training attention kernels `attend` and `attend_backward` with AMX, for bfloat16."""

    def __init__(self, k: KernelBuilder, shape: AttentionShape) -> None:
        super().__init__(k, shape)
        k.features |= {"amx-tile", "amx-bf16"}

    @override
    def write(self) -> None:
        for name, work in (("attend", _AmxForwardPass), ("attend_backward", _AmxBackwardPass)):
            self._write(name, work)

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Emit the configuration of AMX's tile registers before a thread's heads, and their release after them."""
        amx.configure(self.k, halves=True)
        yield
        amx.release(self.k)


class _AmxForwardPass(AmxHead):
    """An emitter of attention's forward pass for one head of one sentence, with AMX."""

    def write(self) -> None:
        """Emit the forward pass of attention for one head of one sentence, 16 queries at a time."""
        k, args, scratch = self.k, self.args, self.scratch
        keys, values = self.key_and_value_pointers()
        self.keys = self.readable_rows(keys, scratch.keys)
        self.interleave(values, args.key_stride, self.length, scratch.value_pairs)
        with k.loop(0, args.num_queries, ROWS) as first:
            self._attend(first)

    def _attend(self, first: Value) -> None:
        """Emit attention's forward pass for the 16 queries from `first` on: scores, exponentials, weighted values."""
        k, args, scratch = self.k, self.args, self.scratch
        queries = self.start_of(args.queries, args.num_queries, args.query_stride)
        count, limit = self.remaining_queries(first, ROWS), self.limit_of(first)
        self.transpose_queries(queries, args.query_stride, first, scratch.query_columns)
        self.multiply_rows(limit, (self.keys, scratch.query_columns, scratch.scores))
        greatest = k.build.fmul(self._greatest(first, limit), k.splat(self.shape.scale))
        inverse = k.build.fdiv(k.splat(1.0), self._exponentials(first, limit, greatest))
        k.store(inverse, scratch.inverses)
        self._store_sums(first, count, greatest, inverse)
        pairs = self.transpose_weights(limit)
        row_bytes = k.mul(self.filled, 2)
        sums = scratch.context_sums
        self.multiply_and_add(scratch.transposed, row_bytes, scratch.value_pairs, pairs, sums, fresh=_TRUE)
        out, stride = self.start_of_context(), self.context_stride()
        self.store_rows(sums, count, k.element_pointer(out, k.mul(first, stride), I16), stride, scratch.inverses)

    def _greatest(self, first: Value, limit: Value) -> Value:
        """Return a vector: the greatest attention score, not yet scaled, of each of 16 queries from `first` on."""
        k = self.k
        greatest = k.variable(k.splat(_NEVER))
        with k.loop(0, limit) as key:
            score = k.load_floats(self.scratch.scores, k.mul(key, k.lanes))
            score_or_never = k.build.select(self.visible_to(key, first, limit), score, k.splat(_NEVER))
            k.accumulate(greatest, score_or_never, k.maximum)
        return k.load_variable(greatest)

    def _exponentials(self, first: Value, limit: Value, greatest: Value) -> Value:
        """Emit the scores' exponentials, stored as bfloat16 pairs of two keys; return a vector of each query's sum.

        The sums are in float32. `greatest` is a vector of each query's greatest scaled score.
        """
        k, total = self.k, self.k.variable(self.k.splat(0.0))
        with k.loop(0, limit, 2) as even:
            pair = []
            for key in (even, k.add(even, 1)):
                score = k.load_floats(self.scratch.scores, k.mul(key, k.lanes))
                below = k.build.fsub(k.build.fmul(score, k.splat(self.shape.scale)), greatest)
                seen = self.visible_to(key, first, limit)
                weight = exponential(k, k.build.select(seen, below, k.splat(0.0)), keeps_nan=True)
                weight = k.build.select(seen, weight, k.splat(0.0))
                k.accumulate(total, weight, k.build.fadd)
                pair.append(k.to_bfloat16(weight))
            k.store(self.join(*pair), k.element_pointer(self.scratch.weight_pairs, k.mul(even, k.lanes // 2), I32))
        return k.load_variable(total)

    def _store_sums(self, first: Value, count: Value, greatest: Value, inverse: Value) -> None:
        """Emit the store of each query's greatest score and inverse sum of exponentials, for the backward pass.

        `count` of the 16 queries from `first` on exist.
        """
        k = self.k
        for half in range(2):
            start = half * k.lanes // 2
            order = [n // 2 + start + n % 2 * k.lanes for n in range(k.lanes)]
            values = k.shuffle(greatest, inverse, order)
            offset = k.mul(k.add(first, start), 2)
            inside = self.fewer_than(k.mul(k.add(count, -start), 2))
            k.store_float32_as(values, self.start_of_sums(), offset, F32, mask=inside)


class _AmxBackwardPass(AmxHead):
    """An emitter of attention's backward pass for one head of one sentence, with AMX."""

    def write(self) -> None:
        """Emit attention's backward pass for one head of one sentence, 32 queries (16 pairs of rows) at a time."""
        k, args, scratch = self.k, self.args, self.scratch
        keys, values = self.key_and_value_pointers()
        self.output_gradient = self.start_of_context(), self.context_stride()
        self.queries = self.start_of(args.queries, args.num_queries, args.query_stride), args.query_stride
        self.fetch_next(*self.output_gradient, args.num_queries)
        self.keys, self.values = self.readable_rows(keys, scratch.keys), self.readable_rows(values, scratch.values)
        self.interleave(keys, args.key_stride, self.length, scratch.key_pairs)
        with k.loop(0, args.num_queries, AMX_KEYS) as start:
            self._load_queries(start)
            stop = k.minimum(k.add(start, AMX_KEYS), args.num_queries)
            with k.loop(start, stop, ROWS) as first:
                self._score_gradients(first, k.build.sub(first, start))
                self._by_queries(first)
            self._by_keys(start)
        gradients = (scratch.key_gradient, args.key_gradient), (scratch.value_gradient, args.value_gradient)
        for gradient, address in gradients:
            out = self.start_of(address, args.num_keys, args.key_stride)
            self.store_rows(gradient, args.num_keys, out, args.key_stride)

    def _load_queries(self, start: Value) -> None:
        """Emit the interleaving of 32 queries, and of their outputs' gradients, as right operands of AMX products.

        The products are the gradients of keys and values. The arrays of attention weights and score gradients are
        zeroed.
        """
        k, scratch = self.k, self.scratch
        count = self.remaining_queries(start, AMX_KEYS)
        for (rows, stride), out in (
            (self.queries, scratch.query_pairs),
            (self.output_gradient, scratch.output_gradient_pairs),
        ):
            self.interleave(k.element_pointer(rows, k.mul(start, stride), I16), stride, count, out)
        with k.loop(0, self.round_up_to_lanes(self.args.num_keys, ROWS)) as key:
            for rows in (scratch.weight_rows, scratch.score_gradient_rows):
                k.store(ir.Constant(k.ints, None), k.element_pointer(rows, k.mul(key, k.lanes), I32))

    def _score_gradients(self, first: Value, column: Value) -> None:
        """Emit the attention weights of 16 queries, computed again, and their scores' gradients, into scratch space.

        `column` is the index of query `first` among the current 32. A score's gradient is scale × weight × (gradient of
        the weight - weighted mean of the gradients of the weights).
        """
        k, scratch, limit = self.k, self.scratch, self.limit_of(first)
        self.transpose_queries(*self.queries, first, scratch.query_columns)
        self.transpose_queries(*self.output_gradient, first, scratch.output_gradient_columns)
        scores = self.keys, scratch.query_columns, scratch.scores
        self.multiply_rows(limit, scores, (self.values, scratch.output_gradient_columns, scratch.weight_gradients))
        greatest, inverse = self._load_sums(first)
        mean = k.variable(k.splat(0.0))
        exists = self.fewer_than(k.build.sub(self.args.num_queries, first))
        factor = k.splat(self.shape.scale)
        with k.loop(0, limit) as key:
            at = k.element_pointer(scratch.scores, k.mul(key, k.lanes))
            seen = k.build.and_(self.visible_to(key, first, limit), exists)
            below = k.build.fsub(k.build.fmul(k.load(at, k.floats), factor), greatest)
            below = k.build.select(seen, below, k.splat(0.0))
            weight = k.build.fmul(exponential(k, below, keeps_nan=True), inverse)
            weight = k.build.select(seen, weight, k.splat(0.0))
            k.store(weight, at)
            grad_weight = k.load_floats(scratch.weight_gradients, k.mul(key, k.lanes))
            k.store(k.madd(weight, grad_weight, k.load_variable(mean)), mean)
        self._store_score_gradients(limit, column, k.load_variable(mean))

    def _load_sums(self, first: Value) -> tuple[Value, Value]:
        """Return two vectors that the forward pass stored: greatest scores, and inverse sums of exponentials.

        Lane n is that of query `first` + n.
        """
        k = self.k
        remaining = k.build.sub(self.args.num_queries, first)
        halves = []
        for start in (0, k.lanes // 2):
            offset, inside = k.mul(k.add(first, start), 2), self.fewer_than(k.mul(k.add(remaining, -start), 2))
            halves.append(k.load_as_float32(self.start_of_sums(), offset, F32, mask=inside))
        greatest, inverse = (k.shuffle(halves[0], halves[1], range(which, 2 * k.lanes, 2)) for which in range(2))
        return greatest, inverse

    def _store_score_gradients(self, limit: Value, column: Value, mean: Value) -> None:
        """Emit the store of the score gradients and weights of `limit` keys for 16 queries as bfloat16.

        Weights and score gradients are stored as one row per key; score gradients also as pairs of two keys per query,
        which is the order of an AMX operand. `mean` is the mean of the weights' gradients, weighted by the weights.
        """
        k, scratch, factor = self.k, self.scratch, self.k.splat(self.shape.scale)
        with k.loop(0, limit, 2) as even:
            pair = []
            for key in (even, k.add(even, 1)):
                slope = k.variable(ir.Constant(ir.VectorType(I16, k.lanes), None))
                with k.when(k.build.icmp_signed("<", key, limit)):
                    weight, grad_weight = (
                        k.load_floats(each, k.mul(key, k.lanes)) for each in (scratch.scores, scratch.weight_gradients)
                    )
                    slope_of_weight = k.build.fmul(weight, k.build.fsub(grad_weight, mean))
                    grad_score = k.to_bfloat16(k.build.fmul(slope_of_weight, factor))
                    k.store(grad_score, slope)
                    offset = k.add(k.mul(key, AMX_KEYS), column)
                    k.store(k.to_bfloat16(weight), k.element_pointer(scratch.weight_rows, offset, I16))
                    k.store(grad_score, k.element_pointer(scratch.score_gradient_rows, offset, I16))
                pair.append(slope)
            low, high = (k.build.load(each) for each in pair)
            k.store(self.join(low, high), k.element_pointer(scratch.weight_pairs, k.mul(even, k.lanes // 2), I32))

    def _by_queries(self, first: Value) -> None:
        """Emit the gradient of the 16 queries from `first` on: the sum over keys of score gradient × key."""
        k, args, scratch = self.k, self.args, self.scratch
        pairs = self.transpose_weights(self.limit_of(first))
        row_bytes, sums, stride = k.mul(self.filled, 2), scratch.context_sums, args.query_stride
        self.multiply_and_add(scratch.transposed, row_bytes, scratch.key_pairs, pairs, sums, fresh=_TRUE)
        out = k.element_pointer(self.start_of(args.query_gradient, args.num_queries, stride), k.mul(first, stride), I16)
        self.store_rows(sums, self.remaining_queries(first, ROWS), out, stride)

    def _by_keys(self, start: Value) -> None:
        """Emit the addition of the contributions of 32 queries from `start` on to the gradients of keys and values."""
        k, scratch, args = self.k, self.scratch, self.args
        last = self.round_up_to_lanes(args.num_keys, ROWS)
        seen = k.minimum(last, k.add(start, AMX_KEYS))  # by any of the queries, if causal
        with k.loop(0, k.build.select(self.is_causal, seen, last), ROWS) as key:
            fresh = k.build.icmp_signed("==", start, k.int64(0))
            is_new = k.build.and_(self.is_causal, k.build.icmp_signed(">=", key, start))
            for left, pairs, out in (
                (scratch.weight_rows, scratch.output_gradient_pairs, scratch.value_gradient),
                (scratch.score_gradient_rows, scratch.query_pairs, scratch.key_gradient),
            ):
                rows, sums = (
                    k.element_pointer(left, k.mul(key, k.lanes), I32),
                    k.element_pointer(out, k.mul(key, self.width)),
                )
                row_bytes, count = k.int64(amx.REGISTER_BYTES), self.pairs_of(self.remaining_queries(start, AMX_KEYS))
                self.multiply_and_add(rows, row_bytes, pairs, count, sums, fresh=k.build.or_(fresh, is_new))
