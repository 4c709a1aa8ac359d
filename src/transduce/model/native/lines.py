"""Writing what is done with one row of logits: its greatest are found by blocks, and its exponentials added up.

Legend: V vocabulary.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, I64, POINTER, Emitter, Value
from transduce.model.native.rows import exponential

_VECTORS = 4  # of a block
_NEVER = float("-inf")
_LIKELY = 2.0  # nats; rounding moves a logit by a tenth of that


class Line:
    """One row of logits: whole blocks of it, of each of which the greatest is known, and a rest."""

    def __init__(self, k: Emitter, place: Value, width: Value, maxima: Value) -> None:
        """`maxima` has room for a number for each block, and two vectors."""
        self.k = k
        self.place = place
        self.width = width
        self.maxima = maxima
        self.block = block_size(k)
        self.blocks = k.build.sdiv(width, k.number(self.block))

    def find_maxima(self) -> None:
        """Of all blocks; the rest is one more."""
        k = self.k
        with k.loop(0, self.blocks) as number:
            k.store(self._block_maximum(number), k.at(self.maxima, number))
        k.store(self._rest_maximum(), k.at(self.maxima, self.blocks))
        k.store(k.splat(_NEVER), k.at(self.maxima, k.sum_of(self.blocks, 1)))  # fills up a vector

    def _block_maximum(self, number: Value) -> Value:
        k, start = self.k, self.k.times(number, self.block)
        return k.greatest(_greatest_of_vectors(k, self.place, start, _VECTORS))

    def _rest_maximum(self) -> Value:
        k, most = self.k, self.k.variable(self.k.real(_NEVER))
        with k.loop(k.times(self.blocks, self.block), self.width) as place:
            value, known = k.load(k.at(self.place, place)), k.get(most, k.real(0.0))
            k.store(k.greater(value, known), most)
        return k.get(most, k.real(0.0))

    def greatest(self) -> tuple[Value, Value]:
        """The greatest of all, and the first block that has it."""
        return find_greatest(self.k, self.maxima, self.k.sum_of(self.blocks, 1))

    def take_greatest_of(self, count: Value, values: Value, places: Value) -> None:
        """The greatest `count` and their places, best first; afterwards all is as before."""
        k = self.k
        with k.loop(0, count) as number:
            value, place = self._take_greatest()
            k.store(value, k.at(values, number))
            k.store(place, k.at(places, number, I64))
        with k.loop(0, count) as number:
            # The last one first: where nothing but minus infinity was left, a place may be there twice.
            last = k.build.sub(k.sum_of(count, -1), number)
            place = k.load(k.at(places, last, I64), I64)
            k.store(k.load(k.at(values, last)), k.at(self.place, place))

    def _take_greatest(self) -> tuple[Value, Value]:
        """The greatest and its place; it is minus infinity afterwards."""
        k = self.k
        value, number = self.greatest()
        place = self._find_in_row(value, k.times(number, self.block))
        k.store(k.real(_NEVER), k.at(self.place, place))
        inside = k.build.icmp_signed("<", number, self.blocks)
        left = k.variable(k.real(0.0))
        with k.build.if_else(inside) as (then, otherwise):
            with then:
                k.store(self._block_maximum(number), left)
            with otherwise:
                k.store(self._rest_maximum(), left)
        k.store(k.get(left, value), k.at(self.maxima, number))
        return value, place

    def _find_in_row(self, value: Value, start: Value) -> Value:
        """An element at a time, so that nothing behind the last row is read; the last one where none is equal (NaN)."""
        k, last = self.k, self.k.sum_of(self.width, -1)
        start = k.build.select(k.build.icmp_signed("<", start, last), start, last)
        place = k.variable(start)
        with k.until() as done:
            here = k.get(place, start)
            k.store(k.sum_of(here, 1), place)
            equal = k.build.fcmp_ordered("==", k.load(k.at(self.place, here)), value)
            done(k.build.or_(equal, k.build.icmp_signed(">=", k.sum_of(here, 1), self.width)))
        return k.sum_of(k.get(place, start), -1)

    def log_normalizer(self) -> Value:
        """The logarithm of the sum of all exponentials."""
        greatest = self.greatest()[0]
        total = self.k.intrinsic("llvm.log.f32", F32, self._sum_of_exponentials(greatest))
        return self.k.build.fadd(greatest, total)

    def _sum_of_exponentials(self, greatest: Value) -> Value:
        """Of exp(logit - greatest)."""
        k, most = self.k, self.k.splat(greatest)
        total = k.variable(k.splat(0.0))
        whole = k.times(self.blocks, self.block)
        with k.loop(0, whole, self.block) as start:
            for vector in range(_VECTORS):
                own = k.load_floats(self.place, k.sum_of(start, vector * k.lanes))
                term = exponential(k, k.build.fsub(own, most))
                k.store(k.build.fadd(k.get(total, term), term), total)
        rest = k.variable(k.total(k.get(total, k.splat(0.0))))
        with k.loop(whole, self.width) as place:
            own = k.splat(k.load(k.at(self.place, place)))
            term = k.build.extract_element(exponential(k, k.build.fsub(own, most)), ir.Constant(ir.IntType(32), 0))
            k.store(k.build.fadd(k.get(rest, term), term), rest)
        return k.get(rest, k.real(0.0))


def block_size(k: Emitter) -> int:
    """Numbers of a block."""
    return k.lanes * _VECTORS


def find_greatest(k: Emitter, array: Value, count: Value) -> tuple[Value, Value]:
    """The greatest of an array and the first place that has it; a vector behind the array is read and must be low."""
    most = k.variable(k.splat(_NEVER))
    with k.loop(0, count, k.lanes) as number:
        value, known = k.load_floats(array, number), k.get(most, k.splat(0.0))
        k.store(k.greater(value, known), most)
    value = k.greatest(k.get(most, k.splat(0.0)))
    return value, _find(k, array, value, count)


def _find(k: Emitter, array: Value, value: Value, end: Value) -> Value:
    """The place of the first element before `end` that is this value; the last one where there is none (NaN)."""
    bits_kind = ir.IntType(k.lanes)
    bits_place, place = k.variable(ir.Constant(bits_kind, 0)), k.variable(k.number(0))
    with k.until() as done:
        here = k.get(place, end)
        equal = k.build.fcmp_ordered("==", k.load_floats(array, here), k.splat(value))
        bits = k.build.bitcast(equal, bits_kind)
        k.store(bits, bits_place)
        k.store(k.sum_of(here, k.lanes), place)
        at_end = k.build.icmp_signed(">=", k.sum_of(here, k.lanes), end)
        done(k.build.or_(k.build.icmp_unsigned("!=", bits, ir.Constant(bits_kind, 0)), at_end))
    offset = k.lowest_bit(k.get(bits_place, ir.Constant(bits_kind, 0)))
    found = k.sum_of(k.get(place, end), -k.lanes, offset)
    last = k.sum_of(end, -1)
    return k.build.select(k.build.icmp_signed("<", found, last), found, last)


def write_refining(k: Emitter, vectors: int) -> None:
    """`refine(x, N, D, weights, bias, logits, P, thread, threads)`.

    Of each row of logits (N, P), P a multiple of so many vectors' elements, those that are less than `_LIKELY` below
    the greatest become x (N, D) times the float32 weights' row (O, D), plus the bias (O,).
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, I64, I64)
    with k.function("refine", *kinds) as (x, rows, width, weights, bias, logits, stride, *share):
        output = _Output(F32, vectors, width, weights, bias, stride)
        first, last = k.share(rows, *share)
        with k.loop(first, last) as row:
            _refine_line(k, output, k.at(x, k.times(row, width)), k.at(logits, k.times(row, stride)))


def write_widening(k: Emitter, vectors: int) -> None:
    """`widen(x, N, D, weights, bias, rounded, V, logits, P, thread, threads)`.

    The same from logits (N, V) that were rounded to bfloat16, as x and the weights are; the bias and the result are
    float32. What fills a row up is minus infinity.
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
    whole = k.times(k.build.sdiv(outputs, k.number(k.lanes)), k.lanes)
    with k.loop(0, whole, k.lanes) as column:
        k.store(k.load_wide(rounded, column, I16), k.at(line, column))
    with k.loop(whole, outputs) as column:
        bits = k.build.shl(k.build.zext(k.load(k.at(rounded, column, I16), I16), I32), ir.Constant(I32, 16))
        k.store(k.build.bitcast(bits, F32), k.at(line, column))
    with k.loop(outputs, stride) as column:
        k.store(k.real(_NEVER), k.at(line, column))


class _Output(NamedTuple):
    """A projection's sizes and places."""

    kind: Any
    """Of the elements of its weights and of states."""
    vectors: int
    """Of a block of logits."""
    width: Value
    weights: Value
    bias: Value
    stride: Value


def _refine_line(k: Emitter, output: _Output, x: Value, line: Value) -> None:
    """Computes the likeliest of one row of logits once more, by its row of states."""
    block = output.vectors * k.lanes
    most = k.variable(k.splat(_NEVER))
    with k.loop(0, output.stride, block) as column:
        known = k.get(most, k.splat(0.0))
        k.store(k.greater(_greatest_of_vectors(k, line, column, output.vectors), known), most)
    bound = k.splat(k.build.fsub(k.greatest(k.get(most, k.splat(0.0))), k.real(_LIKELY)))
    with k.loop(0, output.stride, block) as column:
        some = k.build.fcmp_ordered(">", _greatest_of_vectors(k, line, column, output.vectors), bound)
        with k.where_any(some), k.loop(column, k.sum_of(column, block), k.lanes) as start:
            likely = k.build.fcmp_ordered(">", k.load_floats(line, start), bound)
            with k.each_set(likely) as place:
                number = k.sum_of(start, place)
                exact = _dot(k, output, x, k.at(output.weights, k.times(number, output.width), output.kind))
                k.store(k.build.fadd(exact, k.load(k.at(output.bias, number))), k.at(line, number))


def _dot(k: Emitter, output: _Output, one: Value, other: Value) -> Value:
    """The sum of the products of two rows."""
    total = k.variable(k.splat(0.0))
    with k.loop(0, output.width, k.lanes) as column:
        known, kind = k.get(total, k.splat(0.0)), output.kind
        k.store(k.madd(k.load_wide(one, column, kind), k.load_wide(other, column, kind), known), total)
    return k.total(k.get(total, k.splat(0.0)))


def _greatest_of_vectors(k: Emitter, array: Value, start: Value, count: int) -> Value:
    """A vector of the greatest in the same place of each of so many, a power of two."""
    vectors = [k.load_floats(array, k.sum_of(start, number * k.lanes)) for number in range(count)]
    while len(vectors) > 1:
        vectors = [k.greater(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
