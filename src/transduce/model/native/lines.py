"""Emit operations on one row of logits: block-wise top-k, log-sum-exp, and recomputation of the likeliest logits.

Legend: V vocabulary size.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.rows import exponential

_VECTORS = 4  # per block
_NEVER = float("-inf")
_LIKELY = 2.0  # logits so close to the greatest are recomputed; rounding changes a logit by at most a tenth of that


class Line:
    """One row of logits during a top-k search, divided into blocks whose maxima are kept, and a remainder."""

    def __init__(self, k: Emitter, place: Value, width: Value, maxima: Value) -> None:
        """Describe a row of `width` logits.

        `maxima` points to scratch space for one float32 per block and for two vectors.
        """
        self.k = k
        self.place = place
        self.width = width
        self.maxima = maxima
        self.block = block_size(k)
        self.blocks = k.build.sdiv(width, k.number(self.block))

    def find_maxima(self) -> None:
        """Emit the computation of all blocks' maxima; the remainder counts as one more block."""
        k = self.k
        with k.loop(0, self.blocks) as number:
            k.store(self._block_maximum(number), k.at(self.maxima, number))
        k.store(self._rest_maximum(), k.at(self.maxima, self.blocks))
        k.store(k.splat(_NEVER), k.at(self.maxima, k.sum_of(self.blocks, 1)))  # pads to whole vectors

    def _block_maximum(self, number: Value) -> Value:
        """Return the maximum of a block."""
        k, start = self.k, self.k.times(number, self.block)
        return k.greatest(_greatest_of_vectors(k, self.place, start, _VECTORS))

    def _rest_maximum(self) -> Value:
        """Return the maximum of the remainder behind the last whole block."""
        k, greatest = self.k, self.k.variable(self.k.real(_NEVER))
        with k.loop(k.times(self.blocks, self.block), self.width) as index:
            value, best = k.load(k.at(self.place, index)), k.get(greatest, k.real(0.0))
            k.store(k.greater(value, best), greatest)
        return k.get(greatest, k.real(0.0))

    def greatest(self) -> tuple[Value, Value]:
        """Return the greatest logit and the first block that contains it."""
        return find_greatest(self.k, self.maxima, self.k.sum_of(self.blocks, 1))

    def take_greatest_of(self, count: Value, values: Value, places: Value) -> None:
        """Emit the storing of the `count` greatest logits and of their indices (int64), best first.

        The row is unchanged afterwards.
        """
        k = self.k
        with k.loop(0, count) as number:
            value, index = self._take_greatest()
            k.store(value, k.at(values, number))
            k.store(index, k.at(places, number, I64))
        with k.loop(0, count) as number:
            # In reverse order: if only -inf was left, an index may occur twice.
            last = k.build.sub(k.sum_of(count, -1), number)
            index = k.load(k.at(places, last, I64), I64)
            k.store(k.load(k.at(values, last)), k.at(self.place, index))

    def _take_greatest(self) -> tuple[Value, Value]:
        """Return the greatest logit and its index, and replace it in the row by -inf."""
        k = self.k
        value, number = self.greatest()
        index = self._find_in_row(value, k.times(number, self.block))
        k.store(k.real(_NEVER), k.at(self.place, index))
        inside = k.build.icmp_signed("<", number, self.blocks)
        new_maximum = k.variable(k.real(0.0))
        with k.build.if_else(inside) as (then, otherwise):
            with then:
                k.store(self._block_maximum(number), new_maximum)
            with otherwise:
                k.store(self._rest_maximum(), new_maximum)
        k.store(k.get(new_maximum, value), k.at(self.maxima, number))
        return value, index

    def _find_in_row(self, value: Value, start: Value) -> Value:
        """Return the index of the first element from `start` on that equals a value; the last index if none does (NaN).

        It compares single elements, so nothing behind the last row is read.
        """
        k, last = self.k, self.k.sum_of(self.width, -1)
        start = k.build.select(k.build.icmp_signed("<", start, last), start, last)
        index = k.variable(start)
        with k.until() as done:
            current = k.get(index, start)
            k.store(k.sum_of(current, 1), index)
            equal = k.build.fcmp_ordered("==", k.load(k.at(self.place, current)), value)
            done(k.build.or_(equal, k.build.icmp_signed(">=", k.sum_of(current, 1), self.width)))
        return k.sum_of(k.get(index, start), -1)

    def log_normalizer(self) -> Value:
        """Return the log-sum-exp of the row."""
        greatest = self.greatest()[0]
        total = self.k.intrinsic("llvm.log.f32", F32, self._sum_of_exponentials(greatest))
        return self.k.build.fadd(greatest, total)

    def _sum_of_exponentials(self, greatest: Value) -> Value:
        """Return the sum of exp(logit - greatest)."""
        k, greatest_vector = self.k, self.k.splat(greatest)
        total = k.variable(k.splat(0.0))
        blocked_end = k.times(self.blocks, self.block)
        with k.loop(0, blocked_end, self.block) as start:
            for vector in range(_VECTORS):
                logits = k.load_floats(self.place, k.sum_of(start, vector * k.lanes))
                term = exponential(k, k.build.fsub(logits, greatest_vector))
                k.store(k.build.fadd(k.get(total, term), term), total)
        rest = k.variable(k.total(k.get(total, k.splat(0.0))))
        with k.loop(blocked_end, self.width) as index:
            logits = k.splat(k.load(k.at(self.place, index)))
            term = k.build.extract_element(
                exponential(k, k.build.fsub(logits, greatest_vector)), ir.Constant(ir.IntType(32), 0)
            )
            k.store(k.build.fadd(k.get(rest, term), term), rest)
        return k.get(rest, k.real(0.0))


def block_size(k: Emitter) -> int:
    """Return the number of logits per block."""
    return k.lanes * _VECTORS


def find_greatest(k: Emitter, array: Value, count: Value) -> tuple[Value, Value]:
    """Return the maximum of a float32 array and its first index.

    One vector behind the array is read too; its elements must be lower.
    """
    greatest = k.variable(k.splat(_NEVER))
    with k.loop(0, count, k.lanes) as number:
        value, best = k.load_floats(array, number), k.get(greatest, k.splat(0.0))
        k.store(k.greater(value, best), greatest)
    value = k.greatest(k.get(greatest, k.splat(0.0)))
    return value, _find(k, array, value, count)


def _find(k: Emitter, array: Value, value: Value, end: Value) -> Value:
    """Return the index of the first of `end` elements that equals a value; the last index if none does (NaN)."""
    bits_kind = ir.IntType(k.lanes)
    bits_variable, index = k.variable(ir.Constant(bits_kind, 0)), k.variable(k.number(0))
    with k.until() as done:
        current = k.get(index, end)
        equal = k.build.fcmp_ordered("==", k.load_floats(array, current), k.splat(value))
        bits = k.build.bitcast(equal, bits_kind)
        k.store(bits, bits_variable)
        k.store(k.sum_of(current, k.lanes), index)
        at_end = k.build.icmp_signed(">=", k.sum_of(current, k.lanes), end)
        done(k.build.or_(k.build.icmp_unsigned("!=", bits, ir.Constant(bits_kind, 0)), at_end))
    offset = k.lowest_bit(k.get(bits_variable, ir.Constant(bits_kind, 0)))
    index_found = k.sum_of(k.get(index, end), -k.lanes, offset)
    last = k.sum_of(end, -1)
    return k.build.select(k.build.icmp_signed("<", index_found, last), index_found, last)


def write_refining(k: Emitter, vectors: int) -> None:
    """Emit `refine(x, N, D, weights, bias, logits, P, thread, threads)`: recompute the likeliest logits in float32.

    In each row of logits (N, P), those that are less than `_LIKELY` below the greatest become x (N, D) · weightsᵀ (O,
    D) + bias (O,). P is a multiple of `vectors` vectors.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, I64, I64)
    with k.function("refine", *kinds) as (x, rows, width, weights, bias, logits, stride, *share):
        output = _Output(F32, vectors, width, weights, bias, stride)
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            _refine_line(k, output, k.at(x, k.times(row, width)), k.at(logits, k.times(row, stride)))


def write_widening(k: Emitter, vectors: int) -> None:
    """Emit `widen(x, N, D, weights, bias, rounded, V, logits, P, thread, threads)`, `refine` for bfloat16 logits.

    It converts rounded (N, V) in bfloat16 to float32 logits (N, P), and pads the rows with -inf. Then it recomputes the
    likeliest logits from x and weights in bfloat16 and a float32 bias.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, POINTER, I64, I64, I64)
    with k.function("widen", *kinds) as (x, rows, width, weights, bias, rounded, outputs, logits, stride, *share):
        output = _Output(I16, vectors, width, weights, bias, stride)
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            line = k.at(logits, k.times(row, stride))
            _widen_line(k, k.at(rounded, k.times(row, outputs), I16), outputs, line, stride)
            _refine_line(k, output, k.at(x, k.times(row, width), I16), line)


def _widen_line(k: Emitter, rounded: Value, outputs: Value, line: Value, stride: Value) -> None:
    """Convert a row of bfloat16 logits to float32, padded with -inf."""
    vector_end = k.times(k.build.sdiv(outputs, k.number(k.lanes)), k.lanes)
    with k.loop(0, vector_end, k.lanes) as column:
        k.store(k.load_wide(rounded, column, I16), k.at(line, column))
    with k.loop(vector_end, outputs) as column:
        bits = k.build.shl(k.build.zext(k.load(k.at(rounded, column, I16), I16), I32), ir.Constant(I32, 16))
        k.store(k.build.bitcast(bits, F32), k.at(line, column))
    with k.loop(outputs, stride) as column:
        k.store(k.real(_NEVER), k.at(line, column))


class _Output(NamedTuple):
    """The sizes and pointers of a vocabulary projection."""

    kind: Any
    """The element type of weights and states."""
    vectors: int
    """Vectors per block of logits."""
    width: Value
    weights: Value
    bias: Value
    stride: Value


def _refine_line(k: Emitter, output: _Output, x: Value, line: Value) -> None:
    """Emit the recomputation of the likeliest logits of one row from its state x."""
    block = output.vectors * k.lanes
    greatest = k.variable(k.splat(_NEVER))
    with k.loop(0, output.stride, block) as column:
        best = k.get(greatest, k.splat(0.0))
        k.store(k.greater(_greatest_of_vectors(k, line, column, output.vectors), best), greatest)
    bound = k.splat(k.build.fsub(k.greatest(k.get(greatest, k.splat(0.0))), k.real(_LIKELY)))
    with k.loop(0, output.stride, block) as column:
        is_likely_block = k.build.fcmp_ordered(">", _greatest_of_vectors(k, line, column, output.vectors), bound)
        with k.where_any(is_likely_block), k.loop(column, k.sum_of(column, block), k.lanes) as start:
            likely = k.build.fcmp_ordered(">", k.load_floats(line, start), bound)
            with k.each_set(likely) as lane:
                number = k.sum_of(start, lane)
                exact = _dot(k, output, x, k.at(output.weights, k.times(number, output.width), output.kind))
                k.store(k.build.fadd(exact, k.load(k.at(output.bias, number))), k.at(line, number))


def _dot(k: Emitter, output: _Output, first: Value, second: Value) -> Value:
    """Return the dot product of two rows."""
    total = k.variable(k.splat(0.0))
    with k.loop(0, output.width, k.lanes) as column:
        sum_so_far, kind = k.get(total, k.splat(0.0)), output.kind
        k.store(k.madd(k.load_wide(first, column, kind), k.load_wide(second, column, kind), sum_so_far), total)
    return k.total(k.get(total, k.splat(0.0)))


def _greatest_of_vectors(k: Emitter, array: Value, start: Value, count: int) -> Value:
    """Return the elementwise maximum of `count` consecutive vectors; count is a power of two."""
    vectors = [k.load_floats(array, k.sum_of(start, number * k.lanes)) for number in range(count)]
    while len(vectors) > 1:
        vectors = [k.greater(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
