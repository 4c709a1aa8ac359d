"""Emit code for rows of logits: top-k search, log-sum-exp, and more exact values of the likeliest logits.

Legend: N rows, V vocabulary size, D model width, P columns of padded logits.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.decode_rows import exponential
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.memory import row_pointer

_VECTORS = 4  # per block
_MINUS_INFINITY = float("-inf")
_LIKELY = 2.0  # logits so close to the greatest are recomputed; rounding changes a logit by at most a tenth of that


class LogitsRow:
    """An emitter of code for one row of logits: top-k search and log-sum-exp.

    The row is divided into blocks, and the maximum of each block is stored. So a search for the greatest logit reads
    the maxima and one block, not the whole row.
    """

    def __init__(self, k: KernelBuilder, pointer: Value, width: Value, maxima: Value) -> None:
        """Describe a row of `width` logits to which `pointer` points.

        `maxima` points to scratch space for one float32 per block and for two vectors.
        """
        self.k = k
        self.pointer = pointer
        self.width = width
        self.maxima = maxima
        self.block = block_size(k)
        self.blocks = k.build.sdiv(width, k.int64(self.block))

    def find_maxima(self) -> None:
        """Emit the computation of each block's maximum, which is written to the scratch space `maxima`.

        Logits after the last whole block count as one more block.
        """
        k = self.k
        with k.loop(0, self.blocks) as number:
            k.store(self._block_maximum(number), k.element_pointer(self.maxima, number))
        k.store(self._rest_maximum(), k.element_pointer(self.maxima, self.blocks))
        padding = k.element_pointer(self.maxima, k.add(self.blocks, 1))  # up to a whole vector
        k.store(k.splat(_MINUS_INFINITY), padding)

    def _block_maximum(self, number: Value) -> Value:
        """Return (an IR value) the maximum of the logits in block `number` of the row."""
        k, start = self.k, self.k.mul(number, self.block)
        return k.reduce_max(_greatest_of_vectors(k, self.pointer, start, _VECTORS))

    def _rest_maximum(self) -> Value:
        """Return (an IR value) the maximum of the logits after the last whole block; -inf if there are none."""
        k, greatest = self.k, self.k.variable(self.k.float32(_MINUS_INFINITY))
        with k.loop(k.mul(self.blocks, self.block), self.width) as index:
            k.accumulate(greatest, k.load(k.element_pointer(self.pointer, index)), k.maximum)
        return k.load_variable(greatest)

    def greatest(self) -> tuple[Value, Value]:
        """Return (IR values) the greatest logit of the row, and the index of the first block that contains it."""
        return emit_argmax(self.k, self.maxima, self.k.add(self.blocks, 1))

    def store_top_k(self, count: Value, values: Value, indices: Value) -> None:
        """Emit the storing of the `count` greatest logits in `values`, and of their indices in `indices`, best first.

        Indices are int64. The row is unchanged afterwards.
        """
        k = self.k
        with k.loop(0, count) as number:
            value, index = self.take_greatest()
            k.store(value, k.element_pointer(values, number))
            k.store(index, k.element_pointer(indices, number, I64))
        with k.loop(0, count) as number:
            # In reverse order: if only -inf was left, an index may occur twice.
            last = k.build.sub(k.add(count, -1), number)
            index = k.load(k.element_pointer(indices, last, I64), I64)
            k.store(k.load(k.element_pointer(values, last)), k.element_pointer(self.pointer, index))

    def replace(self, index: Value, value: Value) -> None:
        """Emit the replacement of the logit with index `index`, and the update of its block's maximum."""
        k = self.k
        k.store(value, k.element_pointer(self.pointer, index))
        self._renew_maximum(k.minimum(k.build.sdiv(index, k.int64(self.block)), self.blocks))

    def take_greatest(self) -> tuple[Value, Value]:
        """Emit the removal of the row's greatest logit; return (IR values) the logit and its index.

        The logit is replaced by -inf, so the next call finds the second greatest.
        """
        k = self.k
        value, number = self.greatest()
        index = self._find_in_row(value, k.mul(number, self.block))
        k.store(k.float32(_MINUS_INFINITY), k.element_pointer(self.pointer, index))
        self._renew_maximum(number)
        return value, index

    def _renew_maximum(self, number: Value) -> None:
        """Emit a new computation of the maximum of block `number`, in which a logit has changed.

        Logits after the last whole block count as one more block.
        """
        k = self.k
        inside = k.build.icmp_signed("<", number, self.blocks)
        new_maximum = k.variable(k.float32(0.0))
        with k.build.if_else(inside) as (then, otherwise):
            with then:
                k.store(self._block_maximum(number), new_maximum)
            with otherwise:
                k.store(self._rest_maximum(), new_maximum)
        k.store(k.load_variable(new_maximum), k.element_pointer(self.maxima, number))

    def _find_in_row(self, value: Value, start: Value) -> Value:
        """Return (an IR value) the first index from `start` on at which the row has a value.

        If no logit equals the value, as with NaN, the result is the row's last index. Nothing after the row is read.
        """
        k, last = self.k, self.k.add(self.width, -1)
        start = k.build.select(k.build.icmp_signed("<", start, last), start, last)
        index = k.variable(start)
        with k.do_while() as done:
            current = k.load_variable(index)
            k.store(k.add(current, 1), index)
            equal = k.build.fcmp_ordered("==", k.load(k.element_pointer(self.pointer, current)), value)
            done(k.build.or_(equal, k.build.icmp_signed(">=", k.add(current, 1), self.width)))
        return k.add(k.load_variable(index), -1)

    def log_sum_exp(self) -> Value:
        """Return (an IR value) the log-sum-exp of the row of logits.

        The code of `find_maxima` must come before.
        """
        greatest = self.greatest()[0]
        total = self.k.intrinsic("llvm.log.f32", F32, self.sum_of_exponentials(greatest))
        return self.k.build.fadd(greatest, total)

    def sum_of_exponentials(self, greatest: Value, factor: Value | None = None) -> Value:
        """Return (an IR value) the sum of exp((logit - greatest) × factor) over the row.

        `greatest` is the greatest logit of the row. If `factor` is None, it is 1.
        """
        k, greatest_vector = self.k, self.k.splat(greatest)
        factors = None if factor is None else k.splat(factor)

        def exponent(logits: Value) -> Value:
            difference = k.build.fsub(logits, greatest_vector)
            return difference if factors is None else k.build.fmul(difference, factors)

        total = k.variable(k.splat(0.0))
        blocked_end = k.mul(self.blocks, self.block)
        with k.loop(0, blocked_end, self.block) as start:
            for vector in range(_VECTORS):
                logits = k.load_floats(self.pointer, k.add(start, vector * k.lanes))
                term = exponential(k, exponent(logits))
                k.store(k.build.fadd(k.load_variable(total), term), total)
        rest = k.variable(k.reduce_sum(k.load_variable(total)))
        with k.loop(blocked_end, self.width) as index:
            logits = k.splat(k.load(k.element_pointer(self.pointer, index)))
            term = k.build.extract_element(exponential(k, exponent(logits)), ir.Constant(ir.IntType(32), 0))
            k.store(k.build.fadd(k.load_variable(rest), term), rest)
        return k.load_variable(rest)


def block_size(k: KernelBuilder) -> int:
    """Return the number of logits in a block whose maximum a top-k search keeps."""
    return k.lanes * _VECTORS


def emit_argmax(k: KernelBuilder, array: Value, count: Value) -> tuple[Value, Value]:
    """Return (IR values) the maximum of a float32 array of `count` elements, and the first index at which it occurs.

    The array is read in whole SIMD vectors. So up to one vector after the array must be readable. Its elements must not
    be greater than the maximum; -inf is safe.
    """
    greatest = k.variable(k.splat(_MINUS_INFINITY))
    with k.loop(0, count, k.lanes) as number:
        k.accumulate(greatest, k.load_floats(array, number), k.maximum)
    value = k.reduce_max(k.load_variable(greatest))
    return value, _find(k, array, value, count)


def _find(k: KernelBuilder, array: Value, value: Value, end: Value) -> Value:
    """Return (an IR value) the first index below `end` at which an array has a value.

    If no element equals the value, as with NaN, the result is `end` - 1.
    """
    bits_kind = ir.IntType(k.lanes)
    bits_variable, index = k.variable(ir.Constant(bits_kind, 0)), k.variable(k.int64(0))
    with k.do_while() as done:
        current = k.load_variable(index)
        equal = k.build.fcmp_ordered("==", k.load_floats(array, current), k.splat(value))
        bits = k.build.bitcast(equal, bits_kind)
        k.store(bits, bits_variable)
        k.store(k.add(current, k.lanes), index)
        at_end = k.build.icmp_signed(">=", k.add(current, k.lanes), end)
        done(k.build.or_(k.build.icmp_unsigned("!=", bits, ir.Constant(bits_kind, 0)), at_end))
    offset = k.lowest_bit(k.load_variable(bits_variable))
    index_found = k.add(k.load_variable(index), -k.lanes, offset)
    last = k.add(end, -1)
    return k.build.select(k.build.icmp_signed("<", index_found, last), index_found, last)


@outlined
def emit_refinement(k: KernelBuilder, vectors: int) -> None:
    """Emit the function `refine`, which computes the likeliest logits again in float32.

    The function's arguments are (x, N, D, weights, file rows, bias, logits, P, thread, threads). In each row of logits
    (N, P), every logit that is less than 2 below the greatest is computed again as x (N, D) · weightsᵀ + bias. So
    rounding does not change the order of likely tokens. P is a multiple of `vectors` SIMD vectors. `file rows` points
    to the tensor that `memory.file_rows` returns for the weights.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, POINTER, I64, I64, I64)
    with k.function("refine", *kinds) as (x, rows, width, weights, file, bias, logits, stride, *share):
        output = _Output(F32, vectors, width, weights, bias, stride, file, k.build.alloca(F32, size=width))
        with k.thread_loop(rows, share) as row:
            line = k.element_pointer(logits, k.mul(row, stride))
            _refine_line(k, output, k.element_pointer(x, k.mul(row, width)), line)


@outlined
def emit_bfloat16_refinement(k: KernelBuilder, vectors: int) -> None:
    """Emit the function `widen`, which converts bfloat16 logits to float32 and computes the likeliest again.

    The function's arguments are (x, N, D, weights, bias, rounded, V, logits, P, thread, threads). It converts the
    bfloat16 logits `rounded` (N, V) to float32 `logits` (N, P), and pads each row with -inf. Then every logit that is
    less than 2 below the greatest of its row is computed again as x (N, D) · weightsᵀ + bias. x and the weights are
    bfloat16; the bias and all sums are float32. P is a multiple of `vectors` SIMD vectors.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, POINTER, I64, I64, I64)
    with k.function("widen", *kinds) as (x, rows, width, weights, bias, rounded, outputs, logits, stride, *share):
        output = _Output(I16, vectors, width, weights, bias, stride)
        with k.thread_loop(rows, share) as row:
            line = k.element_pointer(logits, k.mul(row, stride))
            _widen_line(k, k.element_pointer(rounded, k.mul(row, outputs), I16), outputs, line, stride)
            _refine_line(k, output, k.element_pointer(x, k.mul(row, width), I16), line)


def _widen_line(k: KernelBuilder, rounded: Value, outputs: Value, line: Value, stride: Value) -> None:
    """Emit the conversion of a row of `outputs` bfloat16 logits to float32, padded with -inf to `stride` elements."""
    vector_end = k.mul(k.build.sdiv(outputs, k.int64(k.lanes)), k.lanes)
    with k.loop(0, vector_end, k.lanes) as column:
        k.store(k.load_as_float32(rounded, column, I16), k.element_pointer(line, column))
    with k.loop(vector_end, outputs) as column:
        bits = k.build.zext(k.load(k.element_pointer(rounded, column, I16), I16), I32)
        bits = k.build.shl(bits, ir.Constant(I32, 16))
        k.store(k.build.bitcast(bits, F32), k.element_pointer(line, column))
    with k.loop(outputs, stride) as column:
        k.store(k.float32(_MINUS_INFINITY), k.element_pointer(line, column))


class _Output(NamedTuple):
    """The output projection to the vocabulary, by which single logits are computed again; mostly IR values."""

    kind: Any
    """The LLVM element type of weights and states."""
    vectors: int
    """The number of vectors of logits in a block, which is checked at once."""
    width: Value
    weights: Value
    bias: Value
    stride: Value
    file: Value = None
    """Pointer to the elements of the tensor that `memory.file_rows` returned for the weights.

    None: the weights are read by their address.
    """
    scratch: Value = None
    """Pointer to scratch space for a row of the weights that is read from a file; None if there is no file."""

    def row(self, k: KernelBuilder, number: Value) -> Value:
        """Return a pointer to the row of the weights that belongs to token `number`."""
        if self.file is None:
            return k.element_pointer(self.weights, k.mul(number, self.width), self.kind)
        return row_pointer(k, self.weights, self.file, number, self.width, self.scratch)


def _refine_line(k: KernelBuilder, output: _Output, x: Value, line: Value) -> None:
    """Emit a more exact computation of the likeliest logits of one row, in float32.

    A logit is likely if it is less than 2 below the greatest. `x` points to the row's hidden state, and `line` to the
    row's logits.
    """
    block = output.vectors * k.lanes
    greatest = k.variable(k.splat(_MINUS_INFINITY))
    with k.loop(0, output.stride, block) as column:
        k.accumulate(greatest, _greatest_of_vectors(k, line, column, output.vectors), k.maximum)
    bound = k.splat(k.build.fsub(k.reduce_max(k.load_variable(greatest)), k.float32(_LIKELY)))
    with k.loop(0, output.stride, block) as column:
        is_likely_block = k.build.fcmp_ordered(">", _greatest_of_vectors(k, line, column, output.vectors), bound)
        with k.when_any(is_likely_block), k.loop(column, k.add(column, block), k.lanes) as start:
            likely = k.build.fcmp_ordered(">", k.load_floats(line, start), bound)
            with k.each_true_lane(likely) as lane:
                number = k.add(start, lane)
                exact = _dot(k, output, x, output.row(k, number))
                exact = k.build.fadd(exact, k.load(k.element_pointer(output.bias, number)))
                k.store(exact, k.element_pointer(line, number))


def _dot(k: KernelBuilder, output: _Output, first: Value, second: Value) -> Value:
    """Return (an IR value) the dot product, in float32, of two rows of float32 or bfloat16 elements.

    `first` and `second` point to the rows, whose width and element type are those of `output`.
    """
    total = k.variable(k.splat(0.0))
    with k.loop(0, output.width, k.lanes) as column:
        sum_so_far = k.load_variable(total)
        one, other = (k.load_as_float32(row, column, output.kind) for row in (first, second))
        k.store(k.madd(one, other, sum_so_far), total)
    return k.reduce_sum(k.load_variable(total))


def _greatest_of_vectors(k: KernelBuilder, array: Value, start: Value, count: int) -> Value:
    """Return (an IR value) the elementwise maximum of `count` consecutive SIMD vectors of an array.

    The first vector begins at element `start`. `count` is a power of two.
    """
    vectors = [k.load_floats(array, k.add(start, number * k.lanes)) for number in range(count)]
    while len(vectors) > 1:
        vectors = [k.maximum(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]
