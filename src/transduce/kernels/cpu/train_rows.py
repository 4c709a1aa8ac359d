"""Run the compiled row-wise kernels of training: dropout, norms, softmax, sums, and the gradient of embeddings.

Legend: N rows, D model width, V vocabulary size.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.kernels.cpu.decode_rows import ACTIVATION_EMITTERS, GATED_BY, emit_slope, exponential, means
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    find_integer_tile,
    kernel_of,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, I64, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.tile import Tile

# --- emitted kernels ---
# Legend: N rows, D model width, V vocabulary size.


_NEVER = float("-inf")
_PAGE_BYTES = 4096  # of memory
_HASHES = 16  # hashes per block of elements in dropout
_BLOCK = 64  # elements of such a block, one for each of the four bytes of a hash
_ROWS = 8  # rows that are added per update of the column sums
# Rounds of a 32-bit hash: xor with the value shifted right by the first number, then multiply by the second.
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))


class DropoutArguments(NamedTuple):
    """Arguments of the kernel `drop`: out = residual + dropout(x).

    Elements that are kept are multiplied by 256 / (256 - drop_256ths).
    """

    x: Any
    """Address of the array to which dropout is applied, float32 or bfloat16."""
    residual: Any
    """Address of an array that is added to the dropped-out input; 0: none. It may be that of x or of `out`."""
    out: Any
    """Address of the output, of the input's size and dtype."""
    count: Any
    """The number of elements of the input and of the output, a multiple of the vector length."""
    seed: Any
    """A 64-bit seed, from which the mask of dropped elements follows."""
    drop_256ths: Any
    """The dropout rate in 256ths; 0: nothing is dropped."""


class NormArguments(NamedTuple):
    """Arguments of the kernels `norm` and `norm_backward` (LayerNorm), `rms` and `rms_backward` (RMSNorm).

    The fields are addresses, unless stated otherwise, of float32 or bfloat16 arrays.
    """

    x: Any
    """Address of the norm's input, (N, D)."""
    weight: Any
    """Address of the norm's weight, (D,)."""
    bias: Any
    """Address of the norm's bias, (D,); for LayerNorm only."""
    rows: Any
    """The number N of rows, each of which is normalized by itself."""
    width: Any
    """The number D of elements of a row, a multiple of the vector length."""
    epsilon: Any
    """The bits of a float32 epsilon, which is added to the variance (LayerNorm) or mean square (RMSNorm)."""
    sums: Any
    """Address of two statistics of each row, float32 (N, 2): mean (0 for RMSNorm) and inverse deviation.

    The deviation is the standard deviation, for RMSNorm the root mean square. `norm` and `rms` write these statistics.
    """
    out: Any
    """Address of the output: the norm, or in the backward pass the gradient of x, (N, D)."""
    gradient: Any
    """Address of the gradient of the norm's output, (N, D), for the backward pass only."""
    kept: Any
    """Address of a gradient of x, (N, D), to add to the result, such as that of a residual connection; 0: none."""
    thread_gradients: Any
    """Address of scratch space for gradients of weight and bias in each thread, float32 (threads, 2, D)."""
    weight_sum: Any
    """Address of the float32 sum, (D,), to which the weight gradient is added."""
    bias_sum: Any
    """Address of the float32 sum, (D,), to which the bias gradient is added; for LayerNorm only."""


class SoftmaxArguments(NamedTuple):
    """Arguments of the kernel `softmax`, which replaces rows of logits by probabilities in place."""

    logits: Any
    """Address of the logits, (N, V), which become probabilities."""
    rows: Any
    """The number N of rows of logits."""
    width: Any
    """The number V of logits in a row, the vocabulary size."""
    normalizers: Any
    """Address of the output, float32 (N,): the log-sum-exp of each row."""
    scratch: Any
    """Address of scratch space, float32 (threads, V + lanes), where lanes are the elements of a float32 vector."""


class ColumnSumArguments(NamedTuple):
    """Arguments of the kernel `sum_columns`, which sums each column of a matrix.

    If there is a gate, elements count as zero where the gate is not positive.
    """

    source: Any
    """Address of the matrix whose rows are summed, (N, D)."""
    rows: Any
    """The number N of rows of the matrix."""
    width: Any
    """The number D of columns of the matrix, a multiple of the vector length."""
    sums: Any
    """Address of the output, float32 (threads, D): each thread's sum over the rows that it reads, initially zero."""
    gate: Any
    """Address of a gate (N, D), or 0: none; where it is not positive, the source counts as zero."""
    gated: Any
    """Address of the output (N, D): the source with zeros where the gate is not positive; used only with a gate."""


class AddArguments(NamedTuple):
    """Arguments of the kernel `add`, which computes total += part element by element, in float32."""

    total: Any
    """Address of the float32 array, (count,), to which `part` is added in place."""
    part: Any
    """Address of the array to add, float32 or bfloat16 (count,)."""
    count: Any
    """The number of elements, a multiple of the vector length."""


def emit_hash(k: KernelBuilder, numbers: Value, seed: Value) -> Value:
    """Return (an IR value) a vector of 32-bit hashes, which are random numbers for dropout.

    Each hash is that of a 64-bit seed and one element of the vector `numbers`.
    """
    low, high = (k.splat(k.build.trunc(each, I32)) for each in (seed, k.build.lshr(seed, k.int64(32))))
    bits = k.build.add(numbers, low)
    for shift, factor in _ROUNDS:
        bits = k.build.xor(bits, k.build.lshr(bits, k.splat_int(shift)))
        bits = k.build.xor(k.build.mul(bits, k.splat_int(factor)), high)
    return bits


class RowKernelEmitter:
    """An emitter of the row-wise training kernels: dropout, LayerNorm, RMSNorm, softmax, column sums and addition."""

    names = ("drop", "norm", "norm_backward", "rms", "rms_backward", "softmax", "sum_columns", "add")
    """The names, a tuple, of the kernels that `write` emits."""

    def __init__(self, k: KernelBuilder, kind: Any) -> None:
        """Create an emitter of row-wise kernels for float32 (`kind` F32) or bfloat16 (I16) tensors."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """Emit all row-wise kernels of training: dropout, norms, softmax, column sums and addition."""
        k = self.k
        with kernel_of(k, "drop", DropoutArguments) as dropout:
            self._drop(*dropout)
        for name, is_centered in (("norm", True), ("rms", False)):
            with kernel_of(k, name, NormArguments) as (args, *share), k.loop(*k.thread_range(args.rows, *share)) as row:
                self._norm(args, row, is_centered=is_centered)
            with kernel_of(k, f"{name}_backward", NormArguments) as (args, *share):
                row_range = k.thread_range(args.rows, *share)
                self._clear_share(args, share[0])
                with k.loop(*row_range) as row:
                    self._norm_backward(args, row, share[0], is_centered=is_centered)
                k.barrier(share[1])
                self._add_shares(args, *share, is_centered=is_centered)
        with kernel_of(k, "softmax", SoftmaxArguments) as (softmax, *share):
            scratch = k.element_pointer(k.pointer(softmax.scratch), k.mul(share[0], k.add(softmax.width, k.lanes)))
            with k.loop(*k.thread_range(softmax.rows, *share)) as row:
                self._softmax(softmax, row, scratch)
        with kernel_of(k, "sum_columns", ColumnSumArguments) as summed:
            self._sum_columns(*summed)
        with kernel_of(k, "add", AddArguments) as (added, *share):
            first, last = k.thread_range(k.build.sdiv(added.count, k.int64(k.lanes)), *share)
            with k.loop(k.mul(first, k.lanes), k.mul(last, k.lanes), k.lanes) as number:
                part = k.load_as_float32(k.pointer(added.part), number, self.kind)
                target = k.element_pointer(k.pointer(added.total), number)
                k.store(k.build.fadd(k.load_floats(target), part), target)

    def _load(self, address: Value, row: Value | int, width: Value | int, column: Value) -> Value:
        """Return a float32 vector of matrix elements from column `column` of row `row` on.

        `address` is that of the matrix, and `width` its number of columns.
        """
        k = self.k
        return k.load_as_float32(k.pointer(address), k.add(k.mul(row, width), column), self.kind)

    def _store(self, values: Value, address: Value, row: Value, width: Value, column: Value) -> None:
        """Emit a store of a float32 vector from column `column` of a matrix row on, in the kernels' dtype."""
        k = self.k
        k.store_float32_as(values, k.pointer(address), k.add(k.mul(row, width), column), self.kind)

    def _fetch_later(self, address: Value, row: Value, width: Value, column: Value) -> None:
        """Emit a prefetch of the memory one page (4096 bytes) after a matrix element.

        The processor's own prefetching stops at the end of a page.
        """
        k = self.k
        pointer = k.element_pointer(k.pointer(address), k.add(k.mul(row, width), column), self.kind)
        k.prefetch(k.element_pointer(pointer, _PAGE_BYTES, I8), level=2)

    # --- dropout -----------------------------------------------------------------------------------------------------

    def _drop(self, args: DropoutArguments, thread: Value, threads: Value) -> None:
        """Emit out = residual + dropout(x) for the blocks of 64 elements that belong to the current thread."""
        k = self.k
        kept_of_256 = k.build.sitofp(k.build.sub(k.int64(256), args.drop_256ths), F32)
        scale = k.splat(k.build.fdiv(k.float32(256.0), kept_of_256))
        dropped = k.splat(k.build.trunc(args.drop_256ths, I32))
        first, last = k.thread_range(k.build.sdiv(k.add(args.count, _BLOCK - 1), k.int64(_BLOCK)), thread, threads)
        with k.loop(first, last) as block:
            for vector, bytes_ in self._random_bytes(block, args.seed):
                number = k.add(k.mul(block, _BLOCK), vector)
                with k.when(k.build.icmp_signed("<", number, args.count)):
                    self._drop_vector(args, number, k.build.icmp_signed(">=", bytes_, dropped), scale)

    def _drop_vector(self, args: DropoutArguments, number: Value, is_kept: Value, scale: Value) -> None:
        """Emit out = residual + dropout(x) for the vector that starts at element `number`.

        `is_kept` is a mask of the elements that are not dropped; these are multiplied by `scale`.
        """
        k = self.k
        value = k.build.fmul(k.load_as_float32(k.pointer(args.x), number, self.kind), scale)
        value = k.build.select(is_kept, value, k.splat(0.0))
        result = k.variable(value)
        with k.when(k.is_nonzero(args.residual)):
            k.store(k.build.fadd(value, k.load_as_float32(k.pointer(args.residual), number, self.kind)), result)
        k.store_float32_as(k.load_variable(result), k.pointer(args.out), number, self.kind)

    def _random_bytes(self, block: Value, seed: Value) -> Iterator[tuple[int, Value]]:
        """Emit random bytes for a block of 64 elements, one vector of the block at a time.

        For each vector, yield its first index in the block and its random numbers, 0 to 255. A 32-bit hash of the seed
        and an index has the bytes of four elements, which are 16 apart. 16 is the greatest vector length, so results
        are the same on every processor.
        """
        k = self.k
        start = k.splat(k.build.trunc(k.mul(block, _HASHES), I32))
        for first in range(0, _HASHES, k.lanes):
            indices = ir.Constant(k.ints, list(range(first, first + k.lanes)))
            bits = emit_hash(k, k.build.add(start, indices), seed)
            for byte in range(_BLOCK // _HASHES):
                shifted = k.build.lshr(bits, k.splat_int(8 * byte))
                yield byte * _HASHES + first, k.build.and_(shifted, k.splat_int(255))

    # --- sums over rows ----------------------------------------------------------------------------------------------

    def _sum_columns(self, args: ColumnSumArguments, thread: Value, threads: Value) -> None:
        """Emit the column sums over the rows of the current thread, several rows at a time, into `args.sums`."""
        k = self.k
        sums = k.element_pointer(k.pointer(args.sums), k.mul(thread, args.width))
        start, stop = k.thread_range(args.rows, thread, threads)
        blocked_end = k.add(start, k.mul(k.build.sdiv(k.build.sub(stop, start), k.int64(_ROWS)), _ROWS))
        for first, last, count in ((start, blocked_end, _ROWS), (blocked_end, stop, 1)):
            with k.loop(first, last, count) as row, k.loop(0, args.width, k.lanes) as column:
                total = k.load_floats(sums, column)
                for number in range(count):
                    total = k.build.fadd(total, self._gated(args, k.add(row, number), column))
                k.store(total, k.element_pointer(sums, column))

    def _gated(self, args: ColumnSumArguments, row: Value, column: Value) -> Value:
        """Return a vector of the source with zeros where the gate is not positive; emit its store to `gated`.

        Without a gate (address 0), nothing is stored, and the source is returned unchanged.
        """
        k = self.k
        value = self._load(args.source, row, args.width, column)
        passed = k.variable(value)
        with k.when(k.build.icmp_signed("!=", args.gate, k.int64(0))):
            gate = self._load(args.gate, row, args.width, column)
            is_closed = k.build.fcmp_ordered("<=", gate, k.splat(0.0))
            gated = k.build.select(is_closed, k.splat(0.0), value)
            self._store(gated, args.gated, row, args.width, column)
            k.store(gated, passed)
        return k.load_variable(passed)

    # --- LayerNorm ---------------------------------------------------------------------------------------------------

    def _norm(self, args: NormArguments, row: Value, *, is_centered: bool) -> None:
        """Emit the norm of a row of x, LayerNorm if `is_centered`, else RMSNorm, and store the row's statistics."""
        k, width = self.k, args.width

        def element(column: Value, *, is_first: bool = False) -> Value:
            """Return a vector of the row x from `column` on.

            If `is_first`, as in the first pass over the row, emit a prefetch too.
            """
            if is_first:
                self._fetch_later(args.x, row, width, column)
            return self._load(args.x, row, width, column)

        (mean,) = means(k, width, lambda column: [element(column, is_first=True)]) if is_centered else (k.float32(0.0),)
        mean_vector = k.splat(mean)

        def deviation(column: Value) -> Value:
            """Return a vector of the row x, from `column` on, minus the row's mean."""
            return k.build.fsub(element(column, is_first=not is_centered), mean_vector)

        (variance,) = means(k, width, lambda column: [self._square(deviation(column))])
        epsilon = k.float_from_bits(args.epsilon)
        root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(variance, epsilon))
        inverse = k.build.fdiv(k.float32(1.0), root)
        sums = k.element_pointer(k.pointer(args.sums), k.mul(row, 2))
        k.store(mean, k.element_pointer(sums, 0))
        k.store(inverse, k.element_pointer(sums, 1))
        scale = k.splat(inverse)
        with k.loop(0, width, k.lanes) as column:
            normalized = k.build.fmul(k.build.fsub(element(column), mean_vector), scale)
            weight = k.load_as_float32(k.pointer(args.weight), column, self.kind)
            value = k.build.fmul(normalized, weight)
            if is_centered:
                value = k.madd(normalized, weight, k.load_as_float32(k.pointer(args.bias), column, self.kind))
            self._store(value, args.out, row, width, column)

    def _norm_backward(self, args: NormArguments, row: Value, thread: Value, *, is_centered: bool) -> None:
        """Emit one row of a norm's backward pass: the gradient of x, and additions to the thread's parameter gradients.

        The gradient is (g w - mean(g w) - x' mean(g w x')) / deviation, where x' is the normalized row and g the
        output's gradient. The term mean(g w) is omitted for RMSNorm. `args.kept` is added to the result, if it exists.
        """
        k, width = self.k, args.width
        sums = k.element_pointer(k.pointer(args.sums), k.mul(row, 2))
        mean, inverse = (k.splat(k.load(k.element_pointer(sums, number))) for number in range(2))
        thread_gradients = k.element_pointer(k.pointer(args.thread_gradients), k.mul(thread, 2, width))

        def normalized(column: Value) -> Value:
            """Return a vector of the normalized row, (x - mean) / deviation, from `column` on."""
            return k.build.fmul(k.build.fsub(self._load(args.x, row, width, column), mean), inverse)

        def weighted(column: Value) -> Value:
            """Return a vector of the output's gradient times the norm's weight, from `column` on."""
            weight = k.load_as_float32(k.pointer(args.weight), column, self.kind)
            return k.build.fmul(self._load(args.gradient, row, width, column), weight)

        def terms_at(column: Value) -> list[Value]:
            """Emit the addition of one vector's terms to the weight and bias gradients; return the list [g w, g w x'].

            g, w and x' are vectors of the output's gradient, the weight and the normalized row, from `column` on.
            """
            for address in (args.x, args.gradient):
                self._fetch_later(address, row, width, column)
            gradient, x = self._load(args.gradient, row, width, column), normalized(column)
            terms = [(column, k.build.fmul(gradient, x)), (k.add(width, column), gradient)]
            for index, term in terms if is_centered else terms[:1]:
                k.store(
                    k.build.fadd(k.load_floats(thread_gradients, index), term),
                    k.element_pointer(thread_gradients, index),
                )
            weighted_gradient = weighted(column)
            return [weighted_gradient, k.build.fmul(weighted_gradient, x)]

        mean_gradient, mean_product = (k.splat(each) for each in means(self.k, width, terms_at, 2))
        with k.loop(0, width, k.lanes) as column:
            rest = k.build.fsub(weighted(column), mean_gradient) if is_centered else weighted(column)
            rest = k.build.fsub(rest, k.build.fmul(normalized(column), mean_product))
            result = k.build.fmul(rest, inverse)
            with_kept = k.variable(result)
            with k.when(k.is_nonzero(args.kept)):
                k.store(k.build.fadd(self._load(args.kept, row, width, column), result), with_kept)
            self._store(k.load_variable(with_kept), args.out, row, width, column)

    def _clear_share(self, args: NormArguments, thread: Value) -> None:
        """Emit code that zeros the scratch arrays in which a thread sums a norm's weight and bias gradients."""
        k = self.k
        size = k.mul(args.width, 2)
        with k.loop(0, size, k.lanes) as index:
            k.store(
                k.splat(0.0), k.element_pointer(k.pointer(args.thread_gradients), k.add(k.mul(thread, size), index))
            )

    def _add_shares(self, args: NormArguments, thread: Value, threads: Value, *, is_centered: bool) -> None:
        """Emit the addition of all threads' gradients of a norm's weight and bias to the totals.

        Each thread adds a range of columns.
        """
        k, width = self.k, args.width
        first, last = k.thread_range(k.build.sdiv(width, k.int64(k.lanes)), thread, threads)
        with k.loop(k.mul(first, k.lanes), k.mul(last, k.lanes), k.lanes) as column:
            for number, total in enumerate((args.weight_sum, args.bias_sum)[: 1 + is_centered]):
                target = k.element_pointer(k.pointer(total), column)
                total_sum = k.variable(k.load_floats(target))
                with k.loop(0, threads) as thread_index:
                    offset = k.add(k.mul(k.add(k.mul(thread_index, 2), number), width), column)
                    sum_so_far = k.load_variable(total_sum)
                    k.store(
                        k.build.fadd(sum_so_far, k.load_floats(k.pointer(args.thread_gradients), offset)), total_sum
                    )
                k.store(k.load_variable(total_sum), target)

    def _square(self, value: Value) -> Value:
        """Return the elementwise square of a vector."""
        return self.k.build.fmul(value, value)

    # --- softmax -----------------------------------------------------------------------------------------------------

    def _softmax(self, args: SoftmaxArguments, row: Value, scratch: Value) -> None:
        """Emit the in-place softmax of a row of logits, and store the row's log-sum-exp in `args.normalizers`.

        `scratch` points to the thread's scratch space for one row.
        """
        k, width = self.k, args.width
        maxima = k.accumulators(_NEVER)
        for column, inside, number in self._vectors(width):
            k.accumulate(maxima[number], self._logits(args, row, column, inside), k.maximum)
        greatest = k.reduce_max(k.combine_accumulators(maxima, k.maximum))
        totals = k.accumulators()
        for column, inside, number in self._vectors(width):
            value = self._logits(args, row, column, inside)
            value = exponential(k, k.build.fsub(value, k.splat(greatest)), keeps_nan=True)
            if inside is not None:
                value = k.build.select(inside, value, k.splat(0.0))
            k.store(value, k.element_pointer(scratch, column))
            k.accumulate(totals[number], value, k.build.fadd)
        total = k.reduce_sum(k.combine_accumulators(totals, k.build.fadd))
        logarithm = k.intrinsic("llvm.log.f32", F32, total)
        k.store(k.build.fadd(greatest, logarithm), k.element_pointer(k.pointer(args.normalizers), row))
        scale = k.splat(k.build.fdiv(k.float32(1.0), total))
        for column, inside, _ in self._vectors(width):
            value = k.build.fmul(k.load_floats(scratch, column), scale)
            offset = k.add(k.mul(row, width), column)
            k.store_float32_as(value, k.pointer(args.logits), offset, self.kind, mask=inside)

    def _logits(self, args: SoftmaxArguments, row: Value, column: Value, inside: Value | None) -> Value:
        """Return a float32 vector of a row's logits from `column` on; lanes outside the row are -inf.

        `inside` is a mask of the lanes inside the row; None: all are.
        """
        k = self.k
        offset = k.add(k.mul(row, args.width), column)
        value = k.load_as_float32(k.pointer(args.logits), offset, self.kind, mask=inside)
        return value if inside is None else k.build.select(inside, value, k.splat(_NEVER))

    def _vectors(self, width: Value) -> Iterator[tuple[Value, Value | None, int]]:
        """Emit a loop over the vectors of a row of `width` elements, and a last step for an incomplete vector.

        For each vector, yield (column, mask, number). `column` is that of the vector's first element. The mask is true
        for lanes inside the row, and None if all are inside. `number` is the index of the accumulator to use.
        """
        k = self.k
        vector_end = k.mul(k.build.sdiv(width, k.int64(k.lanes)), k.lanes)
        for column, number in k.each_vector(vector_end):
            yield column, None, number
        with k.when(k.build.icmp_signed("<", vector_end, width)):
            remaining = k.splat(k.build.trunc(k.build.sub(width, vector_end), I32))
            yield vector_end, k.build.icmp_signed("<", ir.Constant(k.ints, list(range(k.lanes))), remaining), 0


# --- activation functions ---
# ReLU without dropout is part of the GEMM. Legend: N rows, F inner width of the feed-forward network.


class ActivationArguments(NamedTuple):
    """Arguments of the kernels `activate` and `activate_backward`: addresses, unless stated otherwise."""

    projected: Any
    """Address of the first linear layer's output, (N, F); if gated, (N, 2 F), each row's gate before its value."""
    out: Any
    """Address of the output: the activation, (N, F); in the backward pass the gradient of `projected`, in its shape."""
    rows: Any
    """The number N of rows, each a token's."""
    width: Any
    """The inner width F of the feed-forward network, a multiple of the vector length."""
    gradient: Any
    """Address of the gradient of the activation's output, (N, F), for `activate_backward`.

    The address may be that of `out` unless the activation is gated.
    """


class ActivationEmitter:
    """An emitter of the kernels `activate` and `activate_backward` for one activation of feed-forward networks."""

    names = ("activate", "activate_backward")
    """The names, a tuple, of the kernels that `write` emits."""

    def __init__(self, k: KernelBuilder, kind: Any, name: str) -> None:
        """Create an emitter for rows of float32 (`kind` F32) or bfloat16 (I16) and the activation `name`."""
        self.k, self.kind = k, kind
        self.is_gated = name in GATED_BY
        self.name = GATED_BY.get(name, name)

    def write(self) -> None:
        """Emit the kernels `activate` and `activate_backward`, in which each thread computes some rows."""
        k = self.k
        for name, work in zip(self.names, (self._activate, self._backward), strict=True):
            with kernel_of(k, name, ActivationArguments) as (args, *share):
                rows = k.loop(*k.thread_range(args.rows, *share))
                with rows as row, k.loop(0, args.width, k.lanes) as column:
                    target = k.add(k.mul(row, args.width), column)
                    projected = k.add(target, k.mul(row, args.width)) if self.is_gated else target
                    work(args, projected, target)

    def _load(self, address: Value, index: Value) -> Value:
        return self.k.load_as_float32(self.k.pointer(address), index, self.kind)

    def _store(self, values: Value, address: Value, index: Value) -> None:
        self.k.store_float32_as(values, self.k.pointer(address), index, self.kind)

    def _activate(self, args: ActivationArguments, projected: Value, target: Value) -> None:
        """Emit the activation of one vector, from `args.projected` to `args.out`.

        `projected` is the index of the vector's first input (or gate), and `target` that of its first output.
        """
        k = self.k
        value = ACTIVATION_EMITTERS[self.name](k, self._load(args.projected, projected))
        if self.is_gated:
            value = k.build.fmul(value, self._load(args.projected, k.add(projected, args.width)))
        self._store(value, args.out, target)

    def _backward(self, args: ActivationArguments, projected: Value, target: Value) -> None:
        """Emit an activation's backward pass for one vector.

        `projected` is the index of the vector's first input (the first gate if the activation is gated). `target` is
        the index of the vector's first output.
        """
        k = self.k
        gradient, x = self._load(args.gradient, target), self._load(args.projected, projected)
        slope = emit_slope(k, self.name, x)
        if self.is_gated:
            behind = k.add(projected, args.width)
            grad_value = k.build.fmul(gradient, ACTIVATION_EMITTERS[self.name](k, x))
            gradient = k.build.fmul(gradient, self._load(args.projected, behind))
            self._store(grad_value, args.out, behind)
        self._store(k.build.fmul(gradient, slope), args.out, projected)


# --- gradient of embeddings ---
# Adds rows to indexed rows of a matrix. Legend: N positions, D model width, V vocabulary size.


class ScatterArguments(NamedTuple):
    """Arguments of the kernel `scatter`: total[ids[n]] += factor · part[n], except for the frozen (padding) row."""

    total: Any
    """Address of the matrix to whose rows others are added, float32 (V, D), such as an embedding's gradient."""
    ids: Any
    """Address of int64 (N,): for each row of `part`, the index of the row of `total` to which it is added."""
    part: Any
    """Address of the rows to add, (N, D), float32 or bfloat16."""
    rows: Any
    """The number N of rows to add."""
    width: Any
    """The number D of columns of both matrices, a multiple of the vector length."""
    factor: Any
    """The bits of a float32 by which the rows to add are multiplied."""
    frozen: Any
    """The index of the row of `total` to which nothing is added, such as that of padding; -1: none."""


@outlined
def emit_scatter(k: KernelBuilder, kind: Any) -> None:
    """Emit the kernel `scatter` for rows to add in float32 (`kind` F32) or bfloat16 (I16).

    Each thread adds a range of the columns of all rows. So two threads never update the same element, even if ids
    repeat.
    """
    with kernel_of(k, "scatter", ScatterArguments) as (args, thread, threads):
        first, last = k.thread_range(k.build.sdiv(args.width, k.int64(k.lanes)), thread, threads)
        factor = k.splat(k.float_from_bits(args.factor))
        with k.loop(0, args.rows) as row:
            row_id = k.load(k.element_pointer(k.pointer(args.ids), row, I64), I64)
            with k.when(k.build.icmp_signed("!=", row_id, args.frozen)):
                columns = k.loop(k.mul(first, k.lanes), k.mul(last, k.lanes), k.lanes)
                target_row, source_row = k.mul(row_id, args.width), k.mul(row, args.width)
                with columns as column:
                    target = k.element_pointer(k.pointer(args.total), k.add(target_row, column))
                    value = k.load_as_float32(k.pointer(args.part), k.add(source_row, column), kind)
                    k.store(k.madd(value, factor, k.load_floats(target)), target)


# --- PyTorch functions ---


LLVM_TYPES = {torch.float32: F32, torch.bfloat16: I16}
"""A dict from the dtypes that training kernels support to LLVM types; bfloat16 is stored as 16-bit integers."""


def supports_rows(x: Tensor) -> bool:
    """Return whether the row-wise training kernels support the width, dtype, device and memory layout of x.

    x must be a non-empty contiguous float32 or bfloat16 tensor on a CPU whose last dimension fills whole vectors.
    """
    tile = find_integer_tile()
    return tile is not None and x.shape[-1] % tile.lanes == 0 and supports_logits(x)


def supports_logits(logits: Tensor) -> bool:
    """Return whether `softmax_` supports the device, dtype and memory layout of a tensor of logits.

    The logits must be float32 or bfloat16, contiguous, not empty, and on a CPU with compiled kernels. Any width is
    allowed.
    """
    kind_fits = logits.device.type == "cpu" and logits.dtype in LLVM_TYPES and find_integer_tile() is not None
    return kind_fits and logits.is_contiguous() and logits.numel() > 0


def dropout_add(residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
    """Return residual + dropout(x), where each element is dropped with probability drop_256ths / 256.

    If `residual` is None, return dropout(x). Raises ValueError if residual and x differ in shape or dtype.
    """
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(f"a residual of {describe(residual)} cannot be added to {describe(x)}")
    out: Tensor = DropNode.apply(residual, x, drop_256ths)  # type: ignore[no-untyped-call]
    return out


def softmax_(logits: Tensor) -> Tensor:
    """Replace logits (N, V) by their softmax, and return each row's log-sum-exp, float32 (N,)."""
    rows, width = logits.shape
    normalizers = torch.empty(rows, dtype=torch.float32)
    scratch = torch.empty(torch.get_num_threads(), width + require_integer_tile().lanes, dtype=torch.float32)
    arguments = SoftmaxArguments(logits.data_ptr(), rows, width, normalizers.data_ptr(), scratch.data_ptr())
    row_kernels(logits.dtype)["softmax"].run(*arguments)
    return normalizers


def sum_columns(x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return a gated copy of x (N, D), in x's dtype, and the sum of the copy's rows, float32 (D,).

    The copy has zeros where `gate` (N, D) is not positive. If `gate` is None, x itself is returned.
    """
    gated = x if gate is None else torch.empty_like(x)
    sums = torch.zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float32)
    addresses, (rows, width) = (sums.data_ptr(), address_of(gate), gated.data_ptr()), x.shape
    row_kernels(x.dtype)["sum_columns"].run(*ColumnSumArguments(x.data_ptr(), rows, width, *addresses))
    return gated, sums.sum(dim=0)


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D), float32 (D,)."""
    return sum_columns(x, None)[1]


def add_in_place(total: Tensor, part: Tensor) -> None:
    """Add `part`, float32 or bfloat16, to the float32 tensor `total` of equal shape, in place.

    Raises ValueError if the shapes differ, or if `total` is not contiguous float32.
    """
    if (total.shape, total.dtype) != (part.shape, torch.float32) or not total.is_contiguous():
        raise ValueError(f"{describe(part)} cannot be added to {describe(total)}")
    part = part.contiguous()
    row_kernels(part.dtype)["add"].run(*AddArguments(total.data_ptr(), part.data_ptr(), part.numel()))


def supports_activation(name: str, x: Tensor, width: int) -> bool:
    """Return whether `activate` computes the activation `name` for this output width, in x's dtype on x's device.

    The result is False for an unknown name, an empty x, or a width that does not fill whole vectors.
    """
    tile, kind_fits = find_integer_tile(), x.device.type == "cpu" and x.dtype in LLVM_TYPES
    is_known = name in ACTIVATION_EMITTERS or name in GATED_BY
    return tile is not None and kind_fits and is_known and width % tile.lanes == 0 and x.numel() > 0


def activate(projected: Tensor, name: str) -> Tensor:
    """Apply an activation to the output of a linear layer; return (…, F).

    The input is (…, F). For a gated activation it is (…, 2 F), with gates before values. `supports_activation` must
    accept the activation.
    """
    return ActivationNode.apply(projected, name)  # type: ignore[no-any-return,no-untyped-call]


def describe(x: Tensor) -> str:
    """Return a text with a tensor's dtype and shape, for error messages."""
    return f"{x.dtype} {tuple(x.shape)}"


class DropNode(torch.autograd.Function):
    """Dropout and residual addition as an autograd function, which saves only the seed of the mask.

    The backward pass computes the mask of dropped elements again.
    """

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_())
        ctx.seed, ctx.drop_256ths = seed, drop_256ths
        return _drop(x, None if residual is None else residual.contiguous(), seed, drop_256ths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        gradient = gradients[0].contiguous()
        grad_residual = gradient if ctx.needs_input_grad[0] else None
        return grad_residual, _drop(gradient, None, ctx.seed, ctx.drop_256ths), None


def _drop(x: Tensor, residual: Tensor | None, seed: int, drop_256ths: int) -> Tensor:
    """Run the kernel `drop`: return residual + dropout(x), with the mask that follows from the seed.

    If `residual` is None, return dropout(x).
    """
    out = torch.empty_like(x)
    addresses = x.data_ptr(), address_of(residual), out.data_ptr()
    row_kernels(x.dtype)["drop"].run(*DropoutArguments(*addresses, x.numel(), seed, drop_256ths))
    return out


class ActivationNode(torch.autograd.Function):
    """An activation as an autograd function, which saves the activation's input for the backward pass."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, name: str) -> Tensor:
        ctx.name, projected = name, projected.contiguous()
        ctx.save_for_backward(projected)
        *before, width = projected.shape
        out = projected.new_empty(*before, width // (2 if name in GATED_BY else 1))
        _run_activation("activate", name, projected, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (projected,) = ctx.saved_tensors
        out = torch.empty_like(projected)
        _run_activation("activate_backward", ctx.name, projected, out, gradients[0].contiguous())
        return out, None


def _run_activation(
    kernel_name: str, name: str, projected: Tensor, out: Tensor, gradient: Tensor | None = None
) -> None:
    """Run one kernel of the activation `name`, which writes its result to `out`.

    `kernel_name` is "activate", or "activate_backward" with the gradient of the activation's output.
    """
    width = projected.shape[-1] // (2 if name in GATED_BY else 1)
    rows = projected.numel() // projected.shape[-1]
    addresses = projected.data_ptr(), out.data_ptr()
    activation_kernels(name, projected.dtype)[kernel_name].run(
        *ActivationArguments(*addresses, rows, width, address_of(gradient))
    )


@cache
def activation_kernels(name: str, dtype: torch.dtype) -> dict[str, CompiledKernel]:
    """Return a dict with the kernels `activate` and `activate_backward` of an activation, compiled on first use."""
    kind, names = LLVM_TYPES[dtype], ActivationEmitter.names
    return compile_kernels("activation", require_integer_tile(), names, lambda k: _emit_activation(k, kind, name))


@outlined
def _emit_activation(k: KernelBuilder, kind: Any, name: str) -> None:
    """Emit the kernels `activate` and `activate_backward` of an activation, for elements of an LLVM type."""
    ActivationEmitter(k, kind, name).write()


@cache
def row_kernels(dtype: torch.dtype, tile: Tile | None = None) -> dict[str, CompiledKernel]:
    """Return a dict from names to the row-wise training kernels for a dtype (dropout, norms, softmax, sums).

    The kernels are compiled on first use, for the vector length of `tile`; None: this processor's.
    """
    kind, names = LLVM_TYPES[dtype], RowKernelEmitter.names
    return compile_kernels("rows", tile or require_integer_tile(), names, lambda k: _emit_row_kernels(k, kind))


@outlined
def _emit_row_kernels(k: KernelBuilder, kind: Any) -> None:
    """Emit the row-wise training kernels for elements of an LLVM type."""
    RowKernelEmitter(k, kind).write()
