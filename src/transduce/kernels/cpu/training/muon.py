"""Orthogonalize matrices for the Muon optimizer (`training/muon.py`) with a compiled kernel."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.decode_rows import transpose
from transduce.kernels.cpu.gemm.packing import Matrix, Packer
from transduce.kernels.cpu.gemm.train import Gemm, GemmEmitter
from transduce.kernels.cpu.gemm.train_calls import bfloat16_tile, gemm_emitter_of, require_gemm_tile
from transduce.kernels.cpu.jit.compiler import CompiledKernel, compile_kernels, float_bits, new_builder, raw_kernel
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, I64, POINTER, KernelBuilder, Value
from transduce.kernels.cpu.jit.tile import Tile
from transduce.model.backend import Polynomials

# --- emitted kernel ---
# Each thread takes one matrix. A matrix's multiplications run one after another, so intermediate results stay in the
# cache. Matrices that remain after every thread has had equally many are processed by all threads together.
# Legend: M matrices of R rows and C columns, F the smaller of R and C.


POLYNOMIALS = 3
"""The number of polynomials that are applied one after another."""
SCRATCH_SQUARES = 2 + POLYNOMIALS
"""F × F matrices in a thread's scratch space."""
_SUMS = 4  # accumulators of a sum of squares


class OrthogonalizeArguments(NamedTuple):
    """Arguments of the kernel `orthogonalize`: addresses, unless stated otherwise."""

    matrices: Any
    """M addresses of bfloat16 matrices (R, C)."""
    done: Any
    """Output, int64 (M,): 1 for matrices that were changed, 0 for those whose size exceeds `most`."""
    count: Any
    """The number of matrices M."""
    rows: Any
    """The number of rows R."""
    columns: Any
    """The number of columns C."""
    coefficients: Any
    """The coefficients a, b and c of each polynomial a x + b x³ + c x⁵, float32 (3, 3)."""
    margin: Any
    """The bits of a float32: matrices are divided by √‖x xᵀ‖, an upper bound of their spectral norm, times this."""
    most: Any
    """The bits of a float32: the upper limit of ‖x xᵀ‖ and of its inverse."""
    scale: Any
    """The bits of a float32 that the result is multiplied by."""
    by_gram_matrix: Any
    """Not 0 to evaluate the polynomials on x xᵀ and multiply x only once."""
    scratch: Any
    """Scratch space of `bytes_per_thread` for each thread."""
    bytes_per_thread: Any
    """The size in bytes of 2 × R × C + `SQUARES` × F² bfloat16 elements."""


class _Task(NamedTuple):
    """One matrix, with its scratch space and the threads that process it."""

    x: Value
    """The address of the matrix with F rows; transposed if R > C."""
    squares: list[Value]
    """The addresses of the F × F matrices."""
    packed: Value
    """The address of scratch space for a packed operand."""
    rows: Value
    """The number of rows F."""
    columns: Value
    """The number of columns, the greater of R and C."""
    threads: tuple[Value, Value]
    """The thread's index, and the number of threads."""


class OrthogonalizeEmitter:
    """An emitter of the kernel `orthogonalize`."""

    names = ("orthogonalize",)
    """The kernel's name."""

    def __init__(self, k: KernelBuilder, multiplier: type[GemmEmitter]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "mix")

    def write(self) -> None:
        """Emit the kernel `orthogonalize` and the functions that it calls."""
        k = self.k
        self._write_symmetric()
        self._write_mixed()
        self._write_transposed()
        with k.function("one", POINTER, *[I64] * 4) as (numbers, matrix, scratch, *threads):
            pointers = (
                k.element_pointer(numbers, number, I64) for number in range(len(OrthogonalizeArguments._fields))
            )
            self._make(
                OrthogonalizeArguments(*(k.load(pointer, I64) for pointer in pointers)), matrix, scratch, threads
            )
        with raw_kernel(k, self.names[0]) as (numbers, thread, threads):
            count, scratch, bytes_per_thread = (
                k.load(k.element_pointer(numbers, OrthogonalizeArguments._fields.index(name), I64), I64)
                for name in ("count", "scratch", "bytes_per_thread")
            )
            count_each = k.build.sdiv(count, threads)
            thread_scratch = k.add(scratch, k.mul(thread, bytes_per_thread))
            with k.loop(k.mul(thread, count_each), k.mul(k.add(thread, 1), count_each)) as matrix:
                k.call("one", numbers, matrix, thread_scratch, k.int64(0), k.int64(1))
            k.barrier(threads)
            with k.loop(k.mul(threads, count_each), count) as matrix:
                k.call("one", numbers, matrix, scratch, thread, threads)

    def _make(self, args: OrthogonalizeArguments, matrix: Value, scratch: Value, threads: list[Value]) -> None:
        """Emit the orthogonalization of the matrix with index `matrix`."""
        k = self.k
        address = k.load(k.element_pointer(k.pointer(args.matrices), matrix, I64), I64)
        is_tall = k.build.icmp_signed(">", args.rows, args.columns)
        short_side, long_side = (k.build.select(is_tall, *pair) for pair in (args[4:2:-1], args[3:5]))
        size, square = k.mul(short_side, long_side, 2), k.mul(short_side, short_side, 2)
        transposed = k.add(scratch, size)
        squares = [k.add(transposed, size, k.mul(square, number)) for number in range(SCRATCH_SQUARES)]
        one = _Task(
            k.build.select(is_tall, transposed, address),
            squares,
            scratch,
            short_side,
            long_side,
            (threads[0], threads[1]),
        )
        with k.when(is_tall):
            k.call("transposed", address, transposed, args.rows, args.columns, *threads)
        self._multiply(one, one.x, one.x, squares[0], columns=long_side)
        length = self._length(squares[0], k.mul(short_side, short_side))
        limit = k.float_from_bits(args.most)
        fits = (
            k.build.fcmp_ordered("<", length, limit),
            k.build.fcmp_ordered(">", k.build.fmul(length, limit), k.float32(1)),
        )
        is_done = k.build.and_(*fits)
        k.store(k.build.zext(is_done, I64), k.element_pointer(k.pointer(args.done), matrix, I64))
        with k.when(is_done):
            shrink = k.build.fmul(k.float_from_bits(args.margin), k.intrinsic("llvm.sqrt.f32", F32, length))
            shrink = k.build.fdiv(k.float32(1), shrink)
            with k.build.if_else(k.is_nonzero(args.by_gram_matrix)) as (by_gram_matrix, one_by_one):
                with by_gram_matrix:
                    self._by_gram_matrix(args, one, shrink)
                with one_by_one:
                    self._one_by_one(args, one, shrink)
            with k.when(is_tall):
                k.call("transposed", transposed, address, args.columns, args.rows, *threads)
        k.barrier(threads[1])  # before the scratch space is reused

    def _length(self, square: Value, elements: Value) -> Value:
        """Return the Euclidean norm of `elements` bfloat16 elements, a multiple of `_SUMS` vectors."""
        k = self.k
        sums = [k.variable(k.splat(0.0)) for _ in range(_SUMS)]
        with k.loop(0, elements, _SUMS * k.lanes) as start:
            for number, variable in enumerate(sums):
                value = k.load_as_float32(k.pointer(square), k.add(start, number * k.lanes), I16)
                k.store(k.madd(value, value, k.load_variable(variable, value)), variable)
        total = [k.load_variable(variable, k.splat(0.0)) for variable in sums]
        return k.intrinsic(
            "llvm.sqrt.f32", F32, k.reduce_sum(k.build.fadd(k.build.fadd(*total[:2]), k.build.fadd(*total[2:])))
        )

    def _coefficients(self, args: OrthogonalizeArguments, number: int, shrink: Value) -> tuple[Value, Value, Value]:
        """Return a, b and c of a polynomial in x xᵀ, adjusted for an x that must still be multiplied by `shrink`.

        They are the coefficients of I, x xᵀ and (x xᵀ)².
        """
        k, pointer = self.k, self.k.pointer(args.coefficients)
        a, b, c = (k.load(k.element_pointer(pointer, 3 * number + n)) for n in range(3))
        square = k.build.fmul(shrink, shrink)
        return a, k.build.fmul(b, square), k.build.fmul(c, k.build.fmul(square, square))

    def _one_by_one(self, args: OrthogonalizeArguments, one: _Task, shrink: Value) -> None:
        """Emit the polynomials applied to x one after another, as `muon._one_by_one` does."""
        k, (gram, factor) = self.k, one.squares[:2]
        for number in range(POLYNOMIALS):
            if number:
                shrink = k.float32(1)
                self._multiply(one, one.x, one.x, gram, columns=one.columns)
            a, b, c = self._coefficients(args, number, shrink)
            self._multiply(one, gram, gram, factor, other=gram, factors=(b, c))
            scale = k.build.fmul(shrink, k.float_from_bits(args.scale)) if number == POLYNOMIALS - 1 else shrink
            self._replace(one, factor, other=one.x, factors=(k.build.fmul(scale, a), scale))

    def _by_gram_matrix(self, args: OrthogonalizeArguments, one: _Task, shrink: Value) -> None:
        """Emit the polynomials evaluated on the Gram matrix x xᵀ, as `muon._by_gram_matrix` does."""
        k, (gram, product, *values) = self.k, one.squares
        scale, none = shrink, k.float32(0)
        for number, value in enumerate(values):
            if number:
                previous = values[number - 1]
                self._multiply(one, previous, gram, product, factors=(none, k.build.fmul(scale, scale)))
                self._multiply(one, product, previous, gram)
                scale = k.float32(1)
            a, b, c = self._coefficients(args, number, scale)
            self._multiply(one, gram, gram, value, other=gram, factors=(b, c), diagonal=a)
        self._multiply(one, values[1], values[0], product)
        self._multiply(one, values[2], product, gram)
        self._replace(one, gram, other=None, factors=(none, k.build.fmul(shrink, k.float_from_bits(args.scale))))

    def _multiply(
        self,
        one: _Task,
        left: Value,
        right: Value,
        out: Value,
        *,
        columns: Value | None = None,
        other: Value | None = None,
        factors: tuple[Value, Value] | None = None,
        diagonal: Value | None = None,
    ) -> None:
        """Emit a symmetric out = f1 · other + f2 · left · rightᵀ + diagonal · I of F × F elements.

        Args:
            one: the matrix that is processed.
            left: the address of the left operand, (F, columns).
            right: the address of the right operand, (F, columns).
            out: the address of the result.
            columns: F if None.
            other: the address of the matrix to add, or None.
            factors: f1 and f2; 0 and 1 if None.
            diagonal: a number; 0 if None.
        """
        k = self.k
        addend_factor, product_factor = factors or (k.float32(0), k.float32(1))
        addresses, sizes = (left, right, other or k.int64(0), out), (one.rows, columns or one.rows)
        numbers = addend_factor, product_factor, diagonal or k.float32(0)
        k.call("symmetric", *addresses, *numbers, *sizes, one.packed, *one.threads)

    def _replace(self, one: _Task, factor: Value, *, other: Value | None, factors: tuple[Value, Value]) -> None:
        """Emit a call that replaces x by f1 · other + f2 · factor · x, where `factors` is (f1, f2)."""
        k = self.k
        k.call("mixed", factor, one.x, other or k.int64(0), *factors, one.rows, one.columns, one.packed, *one.threads)

    # --- functions -----------------------------------------------------------------------------------------------

    def _write_symmetric(self) -> None:
        """Emit `symmetric(left, right, other, out, f1, f2, diagonal, F, C, packed, thread, threads)`: see `_multiply`.

        Only the lower half is multiplied; the upper half is mirrored.
        """
        k = self.k
        with k.function("symmetric", *[I64] * 4, *[F32] * 3, *[I64] * 5) as (left, right, other, out, *more):
            addend_factor, product_factor, diagonal, rows, columns, packed, thread, threads = more
            self._packer(thread, threads).pack_transposed(Matrix(k.pointer(right), rows, columns), k.pointer(packed))
            k.barrier(threads)
            gemm = self._product((left, packed, out), (rows, columns, rows), (other, addend_factor, product_factor))
            self.multiplier.multiply_lower_triangle(gemm, thread, threads)
            k.barrier(threads)
            self._mirror(k.pointer(out), rows, diagonal, thread, threads)
            k.barrier(threads)

    def _write_mixed(self) -> None:
        """Emit `mixed(left, right, other, f1, f2, F, C, packed, thread, threads)`: see `_replace`.

        left is (F, F); right is (F, C) and is replaced by the result.
        """
        k = self.k
        with k.function("mixed", *[I64] * 3, *[F32] * 2, *[I64] * 5) as (left, right, other, *more):
            addend_factor, product_factor, rows, columns, packed, thread, threads = more
            self._packer(thread, threads).pack(Matrix(k.pointer(right), rows, columns), k.pointer(packed))
            k.barrier(threads)
            gemm = self._product((left, packed, right), (rows, rows, columns), (other, addend_factor, product_factor))
            self.multiplier.multiply(gemm, thread, threads)
            k.barrier(threads)

    def _product(self, addresses: tuple[Value, ...], sizes: tuple[Value, ...], mixture: tuple[Value, ...]) -> Gemm:
        """Describe a GEMM with the ending `mix`.

        Args:
            addresses: of the left operand, the packed right operand and the result.
            sizes: rows, columns of the left operand, columns of the result.
            mixture: see `Gemm.values`.
        """
        k, (left, packed, out), (rows, inner, columns) = self.k, addresses, sizes
        return Gemm(
            left=k.pointer(left),
            rows=rows,
            panels=k.pointer(packed),
            columns=columns,
            pairs=k.build.sdiv(inner, k.int64(2)),
            out=out,
            ending="mix",
            values=mixture,
        )

    def _packer(self, thread: Value, threads: Value) -> Packer:
        """Return a packer for the layout of the GEMM that the kernel uses."""
        return self.multiplier.packer(self.k, self.multiplier.layout, thread, threads)

    def _mirror(self, out: Value, rows: Value, diagonal: Value, thread: Value, threads: Value) -> None:
        """Make a matrix symmetric: copy the part below the diagonal to above it, and add `diagonal` to the diagonal."""
        k = self.k
        squares = k.build.sdiv(rows, k.int64(k.lanes))
        kind = ir.VectorType(I16, k.lanes)
        lanes = ir.Constant(k.ints, list(range(k.lanes)))
        with k.loop(thread, squares, threads) as number:
            first = k.mul(number, k.lanes)
            with k.loop(0, first, k.lanes) as column:
                square = self._square(out, first, column, rows)
                for n, vector in enumerate(transpose(k, square)):
                    offset = k.add(k.mul(k.add(column, n), rows), first)
                    k.store(k.build.trunc(vector, kind), k.element_pointer(out, offset, I16))
            for n in range(k.lanes):
                offset = k.add(k.mul(k.add(first, n), rows), first)
                is_diagonal = k.build.icmp_signed("==", lanes, k.splat_int(n))
                addend = k.build.select(is_diagonal, k.splat(diagonal), k.splat(0.0))
                k.store_float32_as(k.build.fadd(k.load_as_float32(out, offset, I16), addend), out, offset, I16)

    def _square(self, matrix: Value, row: Value, column: Value, columns: Value) -> list[Value]:
        """Load a square block of `lanes` rows and columns of bfloat16, as 32-bit integers."""
        k, kind = self.k, ir.VectorType(I16, self.k.lanes)
        offsets = (k.add(k.mul(k.add(row, n), columns), column) for n in range(k.lanes))
        return [k.build.zext(k.load(k.element_pointer(matrix, offset, I16), kind), k.ints) for offset in offsets]

    def _write_transposed(self) -> None:
        """Emit `transposed(matrix, out, R, C, thread, threads)`, the transpose of a bfloat16 matrix.

        It processes as many rows at a time as fill a cache line of `out`.
        """
        k = self.k
        block_rows, kind = 2 * k.lanes, ir.VectorType(I16, k.lanes)
        order = ir.Constant(ir.VectorType(I32, block_rows), list(range(block_rows)))
        with k.function("transposed", *[I64] * 6) as (matrix, out, rows, columns, thread, threads):
            first, last = k.thread_range(k.build.sdiv(rows, k.int64(block_rows)), thread, threads)
            each_row = k.loop(k.mul(first, block_rows), k.mul(last, block_rows), block_rows)
            with each_row as row, k.loop(0, columns, k.lanes) as column:
                halves = [
                    transpose(k, self._square(k.pointer(matrix), k.add(row, half), column, columns))
                    for half in (0, k.lanes)
                ]
                for n, pair in enumerate(zip(*halves, strict=True)):
                    low, high = (k.build.trunc(vector, kind) for vector in pair)
                    target = k.element_pointer(k.pointer(out), k.add(k.mul(k.add(column, n), rows), row), I16)
                    k.store(k.build.shuffle_vector(low, high, order), target)
            k.barrier(threads)


# --- calls ---


_TOGETHER = 32  # the numbers of rows and columns must be multiples of this
_MARGIN = 1.01  # safety factor for rounding: the polynomials grow fast beyond 1
_MOST = 1e15  # limit on ‖x xᵀ‖ and its inverse, whose squares must fit in float32
_BYTES = 2  # of an element


def supports_orthogonalization(matrices: Sequence[Tensor]) -> bool:
    """Return whether `orthogonalize_in_place` supports all of these matrices."""
    return bfloat16_tile() is not None and all(_suits(each) for each in matrices)


def _suits(matrix: Tensor) -> bool:
    """Return whether `orthogonalize_in_place` supports this matrix."""
    fits = matrix.shape[0] % _TOGETHER == matrix.shape[1] % _TOGETHER == 0 and matrix.numel() > 0
    return fits and matrix.dtype == torch.bfloat16 and matrix.device.type == "cpu" and matrix.is_contiguous()


def orthogonalize_in_place(
    matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
) -> list[bool]:
    """Orthogonalize matrices of one shape in place by odd polynomials (implements `backend.TrainingKernels`).

    Returns:
        For each matrix whether it was changed; False if it was too large or too small for float32.
    """
    if len({each.shape for each in matrices}) > 1 or len(polynomials) != POLYNOMIALS:
        raise ValueError("matrices have one shape, and there are three polynomials")
    rows, columns = matrices[0].shape
    scratch_bytes = _BYTES * (2 * rows * columns + SCRATCH_SQUARES * min(rows, columns) ** 2)
    threads = torch.get_num_threads()
    scratch_count = threads if len(matrices) >= threads else 1  # fewer matrices are processed by all threads together
    scratch = torch.empty(scratch_count * scratch_bytes, dtype=torch.uint8)
    addresses, done = np.array([each.data_ptr() for each in matrices], np.int64), np.zeros(len(matrices), np.int64)
    coefficients = np.array(polynomials, np.float32)
    arguments = OrthogonalizeArguments(
        matrices=addresses.ctypes.data,
        done=done.ctypes.data,
        count=len(matrices),
        rows=rows,
        columns=columns,
        coefficients=coefficients.ctypes.data,
        margin=float_bits(_MARGIN),
        most=float_bits(_MOST),
        scale=float_bits(scale),
        by_gram_matrix=int(by_gram_matrix),
        scratch=scratch.data_ptr(),
        bytes_per_thread=scratch_bytes,
    )
    _kernels(require_gemm_tile(torch.bfloat16))["orthogonalize"].run(*arguments)
    return [bool(each) for each in done]


@cache
def _kernels(tile: Tile) -> dict[str, CompiledKernel]:
    """Compile the kernel `orthogonalize` of `OrthogonalizeEmitter`."""
    k = new_builder("squares", tile)
    OrthogonalizeEmitter(k, gemm_emitter_of(tile)).write()
    return compile_kernels(k, OrthogonalizeEmitter.names)
