"""Run the compiled row-wise kernels of training: dropout as an autograd function, softmax, and sums.

Legend: N rows, D model width, V vocabulary size.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.kernels.cpu.decode_rows import exponential, means
from transduce.kernels.cpu.jit.compiler import Program, compile_programs, find_tile, new_emitter, own_tile, program
from transduce.kernels.cpu.jit.ir_builder import F32, I8, I16, I32, I64, Emitter, Value
from transduce.kernels.cpu.jit.tile import Tile

# --- training rows ---
# Emit row-wise and elementwise kernels of training: dropout, norms and their gradients, softmax, and sums.
# Legend: N rows, D model width, V vocabulary size.


_NEVER = float("-inf")
_PAGE_BYTES = 4096  # of memory
_HASHES = 16  # hashes per block of elements in dropout
_BLOCK = 64  # elements of such a block, one for each of the four bytes of a hash
_ROWS = 8  # rows that are added per update of the column sums
# Rounds of a 32-bit hash: xor with the value shifted right by the first number, then multiply by the second.
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))


class DropPlaces(NamedTuple):
    """Arguments of the kernel `drop`: out = residual + dropout(x), scaled by 256 / (256 - drop_of_256)."""

    x: Any
    """Address of the input, float32 or bfloat16."""
    residual: Any
    """Address of the residual, or 0; it may equal x, and so may `out`."""
    out: Any
    """Address of the output."""
    count: Any
    """The number of elements, a multiple of the lanes."""
    seed: Any
    """A 64-bit seed."""
    drop_of_256: Any
    """The dropout rate in 256ths."""


class NormPlaces(NamedTuple):
    """Arguments of the kernels `norm` and `norm_back` (LayerNorm), `rms` and `rms_back` (RMSNorm).

    They are addresses, unless stated otherwise.
    """

    x: Any
    """Input, (N, D)."""
    weight: Any
    """Weight, (D,)."""
    bias: Any
    """Bias, (D,); for LayerNorm only."""
    rows: Any
    """The number of rows N."""
    width: Any
    """The width D, a multiple of the lanes."""
    epsilon: Any
    """The bits of a float32 epsilon."""
    sums: Any
    """float32 (N, 2): each row's mean (0 for RMSNorm) and the inverse of its standard deviation (root mean square)."""
    out: Any
    """Output: the norm, or in the backward pass the gradient of x, (N, D)."""
    gradient: Any
    """The gradient of the norm's output, (N, D); this and all that follow are for the backward pass only."""
    kept: Any
    """A gradient of x, (N, D), to add to the result; 0: none."""
    shares: Any
    """Scratch space, float32 (threads, 2, D): each thread's part of the weight and bias gradients."""
    weight_sum: Any
    """float32 (D,): the weight gradient is added to it."""
    bias_sum: Any
    """float32 (D,): the bias gradient is added to it; for LayerNorm only."""


class SoftmaxPlaces(NamedTuple):
    """Arguments of the kernel `softmax`, which replaces rows of logits by probabilities."""

    logits: Any
    """Address of the logits, (N, V)."""
    rows: Any
    """The number of rows N."""
    width: Any
    """The vocabulary size V."""
    normalizers: Any
    """Address of the output float32 (N,): each row's log-sum-exp."""
    room: Any
    """Address of scratch space, float32 (threads, V + lanes)."""


class SumPlaces(NamedTuple):
    """Arguments of the kernel `sum_columns`, which sums the rows of a matrix, optionally where a gate is positive."""

    source: Any
    """Address of the matrix, (N, D)."""
    rows: Any
    """The number of rows N."""
    width: Any
    """The width D, a multiple of the lanes."""
    sums: Any
    """Address of the output float32 (threads, D): each thread's part of the sum, initially zero."""
    gate: Any
    """Address of a gate (N, D), or 0; where it is not positive, the source counts as zero."""
    gated: Any
    """Address of the output (N, D): the source with these zeros; used only with a gate."""


class AddPlaces(NamedTuple):
    """Arguments of the kernel `add`: total += part."""

    total: Any
    """Address of the total, float32 (count,)."""
    part: Any
    """Address of the part, (count,)."""
    count: Any
    """The number of elements, a multiple of the lanes."""


class RowWriter:
    """An emitter of the kernels `drop`, `norm`, `rms`, their `…_back`, `softmax`, `sum_columns` and `add`."""

    names = ("drop", "norm", "norm_back", "rms", "rms_back", "softmax", "sum_columns", "add")
    """The kernels' names."""

    def __init__(self, k: Emitter, kind: Any) -> None:
        """Prepare for elements of type F32, or I16 for bfloat16."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """Emit the kernels that `names` lists."""
        k = self.k
        with program(k, "drop", len(DropPlaces._fields)) as (numbers, *share):
            self._drop(DropPlaces(*numbers), *share)
        for name, work, is_centred in (
            ("norm", self._norm, True),
            ("norm_back", self._norm_back, True),
            ("rms", self._norm, False),
            ("rms_back", self._norm_back, False),
        ):
            with program(k, name, len(NormPlaces._fields)) as (numbers, *share):
                args = NormPlaces(*numbers)
                first, last = k.share(args.rows, *share)
                if work == self._norm_back:
                    self._clear_share(args, share[0])
                with k.loop(first, last) as row:
                    work(args, row, share[0], is_centred=is_centred)
                if work == self._norm_back:
                    k.barrier(share[1])
                    self._add_shares(args, *share, is_centred=is_centred)
        with program(k, "softmax", len(SoftmaxPlaces._fields)) as (numbers, *share):
            softmax = SoftmaxPlaces(*numbers)
            scratch = k.at(k.place(softmax.room), k.times(share[0], k.sum_of(softmax.width, k.lanes)))
            first, last = k.share(softmax.rows, *share)
            with k.loop(first, last) as row:
                self._softmax(softmax, row, scratch)
        with program(k, "sum_columns", len(SumPlaces._fields)) as (numbers, *share):
            self._sum_columns(SumPlaces(*numbers), *share)
        with program(k, "add", len(AddPlaces._fields)) as (numbers, *share):
            added = AddPlaces(*numbers)
            first, last = k.share(k.build.sdiv(added.count, k.number(k.lanes)), *share)
            with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as number:
                part, target = k.load_wide(k.place(added.part), number, self.kind), k.at(k.place(added.total), number)
                k.store(k.build.fadd(k.load_floats(target), part), target)

    def _load(self, address: Value, row: Value | int, width: Value | int, column: Value) -> Value:
        """Load a vector of a row as float32."""
        k = self.k
        return k.load_wide(k.place(address), k.sum_of(k.times(row, width), column), self.kind)

    def _store(self, values: Value, address: Value, row: Value, width: Value, column: Value) -> None:
        """Store a float32 vector to a row."""
        k = self.k
        k.store_narrow(values, k.place(address), k.sum_of(k.times(row, width), column), self.kind)

    def _fetch_later(self, address: Value, row: Value, width: Value, column: Value) -> None:
        """Prefetch the element a page (4096 bytes) ahead: the hardware prefetcher stops at page boundaries."""
        k = self.k
        pointer = k.at(k.place(address), k.sum_of(k.times(row, width), column), self.kind)
        k.fetch(k.at(pointer, _PAGE_BYTES, I8), level=2)

    # --- dropout -----------------------------------------------------------------------------------------------------

    def _drop(self, args: DropPlaces, thread: Value, threads: Value) -> None:
        """Emit dropout of the thread's share of blocks."""
        k = self.k
        kept_of_256 = k.build.sitofp(k.build.sub(k.number(256), args.drop_of_256), F32)
        scale = k.splat(k.build.fdiv(k.real(256.0), kept_of_256))
        dropped = k.splat(k.build.trunc(args.drop_of_256, I32))
        first, last = k.share(k.build.sdiv(k.sum_of(args.count, _BLOCK - 1), k.number(_BLOCK)), thread, threads)
        with k.loop(first, last) as block:
            for vector, bytes_ in self._random_bytes(block, args.seed):
                number = k.sum_of(k.times(block, _BLOCK), vector)
                with k.where(k.build.icmp_signed("<", number, args.count)):
                    self._drop_vector(args, number, k.build.icmp_signed(">=", bytes_, dropped), scale)

    def _drop_vector(self, args: DropPlaces, number: Value, is_kept: Value, scale: Value) -> None:
        """Emit dropout of the vector that starts at element `number`."""
        k = self.k
        value = k.build.fmul(k.load_wide(k.place(args.x), number, self.kind), scale)
        value = k.build.select(is_kept, value, k.splat(0.0))
        result = k.variable(value)
        with k.where(k.is_given(args.residual)):
            k.store(k.build.fadd(value, k.load_wide(k.place(args.residual), number, self.kind)), result)
        k.store_narrow(k.get(result, value), k.place(args.out), number, self.kind)

    def _random_bytes(self, block: Value, seed: Value) -> Iterator[tuple[int, Value]]:
        """Yield each vector's first element within a block, and a random byte for each of its elements.

        A 32-bit hash of the seed and an index provides bytes for four elements, which are 16 apart. 16 is the greatest
        vector length, so results are the same on every processor.
        """
        k = self.k
        low, high = (k.splat(k.build.trunc(each, I32)) for each in (seed, k.build.lshr(seed, k.number(32))))
        start = k.splat(k.build.trunc(k.times(block, _HASHES), I32))
        for first in range(0, _HASHES, k.lanes):
            indices = ir.Constant(k.ints, list(range(first, first + k.lanes)))
            bits = k.build.add(k.build.add(start, indices), low)
            for shift, factor in _ROUNDS:
                bits = k.build.xor(bits, k.build.lshr(bits, k.all_ints(shift)))
                bits = k.build.xor(k.build.mul(bits, k.all_ints(factor)), high)
            for byte in range(_BLOCK // _HASHES):
                shifted = k.build.lshr(bits, k.all_ints(8 * byte))
                yield byte * _HASHES + first, k.build.and_(shifted, k.all_ints(255))

    # --- sums over rows ----------------------------------------------------------------------------------------------

    def _sum_columns(self, args: SumPlaces, thread: Value, threads: Value) -> None:
        """Emit the column sums of the thread's share of rows, several rows at a time."""
        k = self.k
        sums = k.at(k.place(args.sums), k.times(thread, args.width))
        start, stop = k.share(args.rows, thread, threads)
        blocked_end = k.sum_of(start, k.times(k.build.sdiv(k.build.sub(stop, start), k.number(_ROWS)), _ROWS))
        for first, last, count in ((start, blocked_end, _ROWS), (blocked_end, stop, 1)):
            with k.loop(first, last, count) as row, k.loop(0, args.width, k.lanes) as column:
                total = k.load_floats(sums, column)
                for number in range(count):
                    total = k.build.fadd(total, self._gated(args, k.sum_of(row, number), column))
                k.store(total, k.at(sums, column))

    def _gated(self, args: SumPlaces, row: Value, column: Value) -> Value:
        """Load a vector of the source; with a gate, zero and store what does not pass."""
        k = self.k
        value = self._load(args.source, row, args.width, column)
        passed = k.variable(value)
        with k.where(k.build.icmp_signed("!=", args.gate, k.number(0))):
            gate = self._load(args.gate, row, args.width, column)
            is_closed = k.build.fcmp_ordered("<=", gate, k.splat(0.0))
            gated = k.build.select(is_closed, k.splat(0.0), value)
            self._store(gated, args.gated, row, args.width, column)
            k.store(gated, passed)
        return k.get(passed, value)

    # --- LayerNorm ---------------------------------------------------------------------------------------------------

    def _norm(self, args: NormPlaces, row: Value, _thread: Value, *, is_centred: bool) -> None:
        """Emit the norm of a row: LayerNorm if `is_centred`, else RMSNorm."""
        k, width = self.k, args.width

        def element(column: Value, *, is_first: bool = False) -> Value:
            """Load a vector of x, with a prefetch on the first pass."""
            if is_first:
                self._fetch_later(args.x, row, width, column)
            return self._load(args.x, row, width, column)

        (mean,) = means(k, width, lambda column: [element(column, is_first=True)]) if is_centred else (k.real(0.0),)
        mean_vector = k.splat(mean)

        def deviation(column: Value) -> Value:
            """Return a vector of x minus the mean."""
            return k.build.fsub(element(column, is_first=not is_centred), mean_vector)

        (variance,) = means(k, width, lambda column: [self._square(deviation(column))])
        epsilon = k.float_of(args.epsilon)
        root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(variance, epsilon))
        inverse = k.build.fdiv(k.real(1.0), root)
        sums = k.at(k.place(args.sums), k.times(row, 2))
        k.store(mean, k.at(sums, 0))
        k.store(inverse, k.at(sums, 1))
        scale = k.splat(inverse)
        with k.loop(0, width, k.lanes) as column:
            normalized = k.build.fmul(k.build.fsub(element(column), mean_vector), scale)
            weight = k.load_wide(k.place(args.weight), column, self.kind)
            value = k.build.fmul(normalized, weight)
            if is_centred:
                value = k.madd(normalized, weight, k.load_wide(k.place(args.bias), column, self.kind))
            self._store(value, args.out, row, width, column)

    def _norm_back(self, args: NormPlaces, row: Value, thread: Value, *, is_centred: bool) -> None:
        """Emit a row's gradient of x, and add to the thread's weight and bias gradients.

        The gradient is (g w - mean(g w) - x' mean(g w x')) / deviation, where x' is the normalized row and g the
        output's gradient. The term mean(g w) is omitted for RMSNorm.
        """
        k, width = self.k, args.width
        sums = k.at(k.place(args.sums), k.times(row, 2))
        mean, inverse = (k.splat(k.load(k.at(sums, number))) for number in range(2))
        shares = k.at(k.place(args.shares), k.times(thread, 2, width))

        def normalized(column: Value) -> Value:
            """Return a vector of the normalized row."""
            return k.build.fmul(k.build.fsub(self._load(args.x, row, width, column), mean), inverse)

        def weighted(column: Value) -> Value:
            """Return a vector of the gradient times the weight."""
            weight = k.load_wide(k.place(args.weight), column, self.kind)
            return k.build.fmul(self._load(args.gradient, row, width, column), weight)

        def terms_at(column: Value) -> list[Value]:
            """Add to the weight and bias gradients, and return the two terms whose means are needed."""
            for address in (args.x, args.gradient):
                self._fetch_later(address, row, width, column)
            gradient, x = self._load(args.gradient, row, width, column), normalized(column)
            terms = [(column, k.build.fmul(gradient, x)), (k.sum_of(width, column), gradient)]
            for index, term in terms if is_centred else terms[:1]:
                k.store(k.build.fadd(k.load_floats(shares, index), term), k.at(shares, index))
            weighted_gradient = weighted(column)
            return [weighted_gradient, k.build.fmul(weighted_gradient, x)]

        mean_gradient, mean_product = (k.splat(each) for each in means(self.k, width, terms_at, 2))
        with k.loop(0, width, k.lanes) as column:
            rest = k.build.fsub(weighted(column), mean_gradient) if is_centred else weighted(column)
            rest = k.build.fsub(rest, k.build.fmul(normalized(column), mean_product))
            result = k.build.fmul(rest, inverse)
            with_kept = k.variable(result)
            with k.where(k.is_given(args.kept)):
                k.store(k.build.fadd(self._load(args.kept, row, width, column), result), with_kept)
            self._store(k.get(with_kept, result), args.out, row, width, column)

    def _clear_share(self, args: NormPlaces, thread: Value) -> None:
        """Zero a thread's part of the weight and bias gradients."""
        k = self.k
        size = k.times(args.width, 2)
        with k.loop(0, size, k.lanes) as index:
            k.store(k.splat(0.0), k.at(k.place(args.shares), k.sum_of(k.times(thread, size), index)))

    def _add_shares(self, args: NormPlaces, thread: Value, threads: Value, *, is_centred: bool) -> None:
        """Add all threads' weight and bias gradients to their sums, for the thread's share of columns."""
        k, width = self.k, args.width
        first, last = k.share(k.build.sdiv(width, k.number(k.lanes)), thread, threads)
        with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as column:
            for number, total in enumerate((args.weight_sum, args.bias_sum) if is_centred else (args.weight_sum,)):
                target = k.at(k.place(total), column)
                total_sum = k.variable(k.load_floats(target))
                with k.loop(0, threads) as thread_index:
                    offset = k.sum_of(k.times(k.sum_of(k.times(thread_index, 2), number), width), column)
                    sum_so_far = k.get(total_sum, k.splat(0.0))
                    k.store(k.build.fadd(sum_so_far, k.load_floats(k.place(args.shares), offset)), total_sum)
                k.store(k.get(total_sum, k.splat(0.0)), target)

    def _square(self, value: Value) -> Value:
        """Return value²."""
        return self.k.build.fmul(value, value)

    # --- softmax -----------------------------------------------------------------------------------------------------

    def _softmax(self, args: SoftmaxPlaces, row: Value, scratch: Value) -> None:
        """Emit the softmax of a row."""
        k, width = self.k, args.width
        maxima = k.sums(_NEVER)
        for column, inside, number in self._vectors(width):
            k.add_to(maxima, number, self._logits(args, row, column, inside), k.greater)
        greatest = k.greatest(k.joined(maxima, k.greater))
        totals = k.sums()
        for column, inside, number in self._vectors(width):
            value = self._logits(args, row, column, inside)
            value = exponential(k, k.build.fsub(value, k.splat(greatest)), keeps_nan=True)
            if inside is not None:
                value = k.build.select(inside, value, k.splat(0.0))
            k.store(value, k.at(scratch, column))
            k.add_to(totals, number, value, k.build.fadd)
        total = k.total(k.joined(totals, k.build.fadd))
        logarithm = k.intrinsic("llvm.log.f32", F32, total)
        k.store(k.build.fadd(greatest, logarithm), k.at(k.place(args.normalizers), row))
        scale = k.splat(k.build.fdiv(k.real(1.0), total))
        for column, inside, _ in self._vectors(width):
            value = k.build.fmul(k.load_floats(scratch, column), scale)
            offset = k.sum_of(k.times(row, width), column)
            k.store_narrow(value, k.place(args.logits), offset, self.kind, inside=inside)

    def _logits(self, args: SoftmaxPlaces, row: Value, column: Value, inside: Value | None) -> Value:
        """Load a vector of logits; lanes outside the row are -inf."""
        k = self.k
        offset = k.sum_of(k.times(row, args.width), column)
        value = k.load_wide(k.place(args.logits), offset, self.kind, inside=inside)
        return value if inside is None else k.build.select(inside, value, k.splat(_NEVER))

    def _vectors(self, width: Value) -> Iterator[tuple[Value, Value | None, int]]:
        """Emit loops over a row's vectors; yields (column, mask or None, accumulator number).

        The mask selects the lanes inside the row of an incomplete last vector.
        """
        k = self.k
        vector_end = k.times(k.build.sdiv(width, k.number(k.lanes)), k.lanes)
        for column, number in k.each_vector(vector_end):
            yield column, None, number
        with k.where(k.build.icmp_signed("<", vector_end, width)):
            remaining = k.splat(k.build.trunc(k.build.sub(width, vector_end), I32))
            yield vector_end, k.build.icmp_signed("<", ir.Constant(k.ints, list(range(k.lanes))), remaining), 0


# --- training scatter ---
# Emit the kernel that adds rows to indexed rows of a matrix: the gradient of an embedding.
# Legend: N positions, D model width, V vocabulary size.


class ScatterPlaces(NamedTuple):
    """Arguments of the kernel `scatter`: total[ids[n]] += factor · part[n], except for a frozen row."""

    total: Any
    """Address of the matrix, float32 (V, D)."""
    ids: Any
    """Address of row indices, int64 (N,)."""
    part: Any
    """Address of the rows to add, (N, D)."""
    rows: Any
    """The number of rows to add N."""
    width: Any
    """The width D, a multiple of the lanes."""
    factor: Any
    """The bits of a float32 factor."""
    frozen: Any
    """The row that nothing is added to, or -1."""


class ScatterWriter:
    """An emitter of the kernel `scatter`."""

    names = ("scatter",)
    """The kernel's name."""

    def __init__(self, k: Emitter, kind: Any) -> None:
        """Prepare for rows of type F32, or I16 for bfloat16."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """Emit the kernel, in which a thread adds some columns of all rows.

        Ids repeat, so splitting by rows would let two threads update one element.
        """
        k = self.k
        with program(k, "scatter", len(ScatterPlaces._fields)) as (numbers, thread, threads):
            args = ScatterPlaces(*numbers)
            first, last = k.share(k.build.sdiv(args.width, k.number(k.lanes)), thread, threads)
            factor = k.splat(k.float_of(args.factor))
            with k.loop(0, args.rows) as row:
                row_id = k.load(k.at(k.place(args.ids), row, I64), I64)
                with k.where(k.build.icmp_signed("!=", row_id, args.frozen)):
                    self._add(args, (row_id, row), (k.times(first, k.lanes), k.times(last, k.lanes)), factor)

    def _add(self, args: ScatterPlaces, rows: tuple[Value, Value], columns: tuple[Value, Value], factor: Value) -> None:
        """Add a range of columns of one row; `rows` is the target and the source row."""
        k = self.k
        target_row, source_row = (k.times(row, args.width) for row in rows)
        with k.loop(*columns, k.lanes) as column:
            target = k.at(k.place(args.total), k.sum_of(target_row, column))
            value = k.load_wide(k.place(args.part), k.sum_of(source_row, column), self.kind)
            k.store(k.madd(value, factor, k.load_floats(target)), target)


# --- train rows ---


KINDS = {torch.float32: F32, torch.bfloat16: I16}
"""LLVM types of the supported dtypes."""


def suits_rows(x: Tensor) -> bool:
    """Return whether the row-wise kernels take x: its width, dtype, device and layout."""
    tile = find_tile()
    return tile is not None and x.shape[-1] % tile.lanes == 0 and suits_logits(x)


def suits_logits(logits: Tensor) -> bool:
    """Return whether `softmax_` takes these logits."""
    kind_fits = logits.device.type == "cpu" and logits.dtype in KINDS and find_tile() is not None
    return kind_fits and logits.is_contiguous() and logits.numel() > 0


def drop_and_add(residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
    """Return residual + dropout(x), where `drop_of_256` of 256 elements are dropped."""
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(f"a residual of {describe(residual)} cannot be added to {describe(x)}")
    out: Tensor = DropNode.apply(residual, x, drop_of_256)  # type: ignore[no-untyped-call]
    return out


def softmax_(logits: Tensor) -> Tensor:
    """Replace logits (N, V) by their softmax, and return each row's log-sum-exp, float32 (N,)."""
    rows, width = logits.shape
    normalizers = torch.empty(rows, dtype=torch.float32)
    scratch = torch.empty(torch.get_num_threads(), width + own_tile().lanes, dtype=torch.float32)
    arguments = SoftmaxPlaces(logits.data_ptr(), rows, width, normalizers.data_ptr(), scratch.data_ptr())
    row_programs(logits.dtype)["softmax"].run(*arguments)
    return normalizers


def sum_columns(x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum the rows of x (N, D); return x after gating, and the sums, float32 (D,).

    Elements count as zero where the gate (N, D), if any, is not positive.
    """
    gated = x if gate is None else torch.empty_like(x)
    sums = torch.zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float32)
    gate_address, gated_address = (0, 0) if gate is None else (gate.data_ptr(), gated.data_ptr())
    rows, width = x.shape
    row_programs(x.dtype)["sum_columns"].run(
        *SumPlaces(x.data_ptr(), rows, width, sums.data_ptr(), gate_address, gated_address)
    )
    return gated, sums.sum(dim=0)


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D), float32 (D,)."""
    return sum_columns(x, None)[1]


def add_in_place(total: Tensor, part: Tensor) -> None:
    """Add `part` to the float32 tensor `total`, in place."""
    if (total.shape, total.dtype) != (part.shape, torch.float32) or not total.is_contiguous():
        raise ValueError(f"{describe(part)} cannot be added to {describe(total)}")
    part = part.contiguous()
    row_programs(part.dtype)["add"].run(*AddPlaces(total.data_ptr(), part.data_ptr(), part.numel()))


def describe(x: Tensor) -> str:
    """Return a tensor's dtype and shape for a message."""
    return f"{x.dtype} {tuple(x.shape)}"


class DropNode(torch.autograd.Function):
    """Dropout and addition as an autograd function that keeps only the seed: the backward pass regenerates the mask."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_())
        ctx.seed, ctx.drop_of_256 = seed, drop_of_256
        return _drop(x, None if residual is None else residual.contiguous(), seed, drop_of_256)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        gradient = gradients[0].contiguous()
        by_residual = gradient if ctx.needs_input_grad[0] else None
        return by_residual, _drop(gradient, None, ctx.seed, ctx.drop_of_256), None


def _drop(x: Tensor, residual: Tensor | None, seed: int, drop_of_256: int) -> Tensor:
    """Run the kernel `drop`."""
    out = torch.empty_like(x)
    residual_address = 0 if residual is None else residual.data_ptr()
    row_programs(x.dtype)["drop"].run(
        *DropPlaces(x.data_ptr(), residual_address, out.data_ptr(), x.numel(), seed, drop_of_256)
    )
    return out


@cache
def _kernels_of(dtype: torch.dtype, tile: Tile) -> dict[str, Program]:
    """Compile the kernels of `RowWriter`."""
    k = new_emitter("rows", tile)
    RowWriter(k, KINDS[dtype]).write()
    return compile_programs(k, RowWriter.names)


def row_programs(dtype: torch.dtype) -> dict[str, Program]:
    """Return the compiled kernels of `RowWriter` for a dtype."""
    return _kernels_of(dtype, own_tile())
