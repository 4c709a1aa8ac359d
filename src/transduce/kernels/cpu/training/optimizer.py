"""Update parameters by compiled CPU kernels: Adam (section 5.3), momentum, and Muon's orthogonalization.

The kernels also refresh the parameters' moving average and bfloat16 copy.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernel_interfaces import AdamScalars, Polynomials, UpdatedVectors
from transduce.kernels.cpu.decode_rows import transpose
from transduce.kernels.cpu.gemm.packing import Matrix, Packer
from transduce.kernels.cpu.gemm.train import Gemm, GemmEmitter
from transduce.kernels.cpu.gemm.train_calls import bfloat16_tile, gemm_emitter_of, require_gemm_tile
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    find_integer_tile,
    float_bits,
    kernel_of,
    raw_kernel,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.tile import Tile

# --- emitted kernels that update all parameters in one pass ---
# Separate operations would read and write every vector from memory, as parameters exceed the caches: some 70 bytes
# per parameter, against 42 in one pass.


class UpdateArguments(NamedTuple):
    """Arguments of the kernels `adam` and `apply`: addresses of float32 vectors, unless stated otherwise."""

    master: Any
    """Address of the float32 master parameters, which are updated."""
    gradient: Any
    """Address of the gradients, which the kernel sets to zero after the update."""
    average: Any
    """Address of the moving average of the parameters, which is updated; 0: none."""
    bfloat16_copy: Any
    """Address of a copy of the parameters in bfloat16, which is refreshed; 0: none."""
    count: Any
    """The number of elements of each vector."""
    average_decay: Any
    """The bits of a float32, the decay of the moving average: the weight of the old average in the new one."""
    rate: Any
    """The bits of a float32, the learning rate; for `adam` divided by 1 - β1^t, with t the number of the update."""
    first: Any = 0
    """Address of the first moments (running means of gradients), which are updated; for `adam` only."""
    second: Any = 0
    """Address of the second moments (running means of squares), which are updated; for `adam` only."""
    factor: Any = 0
    """The bits of a float32 by which the gradient is multiplied first, such as to clip it; for `adam` only."""
    beta1: Any = 0
    """The bits of a float32, Adam's β1, the decay of the first moment; for `adam` only."""
    beta2: Any = 0
    """The bits of a float32, Adam's β2, the decay of the second moment; for `adam` only."""
    inverse_root: Any = 0
    """The bits of a float32, 1 / √(1 - β2^t), with t the number of the update; for `adam` only."""
    epsilon: Any = 0
    """The bits of a float32, Adam's ε, which is added to the divisor; for `adam` only."""
    direction: Any = 0
    """Address of a vector that is subtracted from the parameters, times the rate; for `apply` only."""
    is_bfloat16: Any = 0
    """Not 0 if `direction` is bfloat16, 0 if it is float32; for `apply` only."""
    shrink: Any = 0
    """The bits of a float32 by which parameters are multiplied before `direction` is subtracted; for `apply` only."""


class MomentumArguments(NamedTuple):
    """Arguments of the kernel `momentum`: addresses of float32 vectors, unless stated otherwise."""

    gradient: Any
    """Address of the gradients, which do not change."""
    momentum: Any
    """Address of the momentum, which is updated."""
    out: Any
    """Address of the output, the direction of the update, float32 or bfloat16."""
    is_bfloat16: Any
    """Not 0 if `out` is bfloat16; 0 if it is float32."""
    count: Any
    """The number of elements of each vector."""
    factor: Any
    """The bits of a float32 by which the gradient is multiplied first."""
    decay: Any
    """The decay of the momentum, as the bits of a float32: the weight of the old momentum in the new one."""


class UpdateEmitter:
    """An emitter of three optimizer kernels: `adam`, and `momentum` and `apply` for other optimizers, such as Muon."""

    names = ("adam", "apply", "momentum")
    """The names, a tuple, of the optimizer kernels that `write` emits."""

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k

    def write(self) -> None:
        """Emit the three optimizer kernels: `adam`, `apply` (subtract a vector from the parameters) and `momentum`."""
        k = self.k
        for name, work in (("adam", self._adam), ("apply", self._apply_update)):
            with kernel_of(k, name, UpdateArguments) as (args, *share):
                for number, inside in self._each_vector(args.count, *share):
                    self._update(args, number, inside, work)
        with kernel_of(k, "momentum", MomentumArguments) as (momentum_args, *share):
            for number, inside in self._each_vector(momentum_args.count, *share):
                self._momentum(momentum_args, number, inside)

    def _each_vector(self, count: Value, thread: Value, threads: Value) -> Iterator[tuple[Value, Value | None]]:
        """Emit a loop over the elements that a thread processes, one SIMD vector at a time.

        For each, yield the index of the vector's first element and a mask of its lanes. The mask is None except for the
        last, incomplete vector, which the last thread processes.
        """
        k = self.k
        full_vectors = k.build.sdiv(count, k.int64(k.lanes))
        first, last = k.thread_range(full_vectors, thread, threads)
        with k.loop(k.mul(first, k.lanes), k.mul(last, k.lanes), k.lanes) as number:
            yield number, None
        rest = k.build.sub(count, k.mul(full_vectors, k.lanes))
        is_last = k.build.icmp_signed("==", k.add(thread, 1), threads)
        with k.when(k.build.and_(is_last, k.build.icmp_signed(">", rest, k.int64(0)))):
            lanes = ir.Constant(k.ints, list(range(k.lanes)))
            yield k.mul(full_vectors, k.lanes), k.build.icmp_signed("<", lanes, k.splat(k.build.trunc(rest, I32)))

    def _momentum(self, args: "MomentumArguments", number: Value, inside: Value | None) -> None:
        """Emit Nesterov momentum for one SIMD vector: update the momentum, and write the update's direction.

        `number` is the index of the vector's first element, and `inside` a mask of its lanes; None: all.
        """
        k = self.k
        gradient = k.build.fmul(self._load(args.gradient, number, inside), self._splat_float(args.factor))
        momentum = self._update_moment(args.momentum, args.decay, gradient, number, inside)
        ahead = k.madd(self._splat_float(args.decay), k.build.fsub(momentum, gradient), gradient)
        with k.build.if_else(k.is_nonzero(args.is_bfloat16)) as (to_bfloat16, to_float32):
            with to_bfloat16:
                self._store(ahead, args.out, number, inside, I16)
            with to_float32:
                self._store(ahead, args.out, number, inside)

    def _update(
        self,
        args: UpdateArguments,
        number: Value,
        inside: Value | None,
        work: Callable[[UpdateArguments, Value, Value | None], Value],
    ) -> None:
        """Emit the update of one SIMD vector of parameters, after which the gradient is zero.

        The moving average and the bfloat16 copy are refreshed if their addresses are not 0.

        Args:
            args: the kernel's arguments.
            number: the index of the vector's first element.
            inside: a mask of the vector's lanes; None: all.
            work: emits the optimizer's own update of the parameters, and returns the new parameters.
        """
        k = self.k
        master = work(args, number, inside)
        self._store(k.splat(0.0), args.gradient, number, inside)
        with k.when(k.is_nonzero(args.average)):
            average = self._load(args.average, number, inside)
            decay = self._splat_float(args.average_decay)
            self._store(k.madd(decay, k.build.fsub(average, master), master), args.average, number, inside)
        with k.when(k.is_nonzero(args.bfloat16_copy)):
            self._store(master, args.bfloat16_copy, number, inside, I16)

    def _apply_update(self, args: UpdateArguments, number: Value, inside: Value | None) -> Value:
        """Emit the update master · shrink - rate · direction for one SIMD vector; return the new weights.

        `number` is the index of the vector's first element, and `inside` a mask of its lanes; None: all.
        """
        k = self.k
        shrunk = k.build.fmul(self._load(args.master, number, inside), self._splat_float(args.shrink))
        negative_rate = k.build.fsub(k.splat(0.0), self._splat_float(args.rate))
        result = k.variable(shrunk)
        with k.build.if_else(k.is_nonzero(args.is_bfloat16)) as (from_bfloat16, from_float32):
            for branch, kind in ((from_bfloat16, I16), (from_float32, F32)):
                with branch:
                    direction = k.load_as_float32(k.pointer(args.direction), number, kind, mask=inside)
                    k.store(k.madd(negative_rate, direction, shrunk), result)
        master = k.load_variable(result)
        self._store(master, args.master, number, inside)
        return master

    def _adam(self, args: UpdateArguments, number: Value, inside: Value | None) -> Value:
        """Emit Adam's update of the moments and the master weights for one SIMD vector; return the new weights.

        `number` is the index of the vector's first element, and `inside` a mask of its lanes; None: all.
        """
        k = self.k
        gradient = k.build.fmul(self._load(args.gradient, number, inside), self._splat_float(args.factor))
        first = self._update_moment(args.first, args.beta1, gradient, number, inside)
        second = self._update_moment(args.second, args.beta2, k.build.fmul(gradient, gradient), number, inside)
        root = k.intrinsic(f"llvm.sqrt.v{k.lanes}f32", k.floats, second)
        denominator = k.madd(root, self._splat_float(args.inverse_root), self._splat_float(args.epsilon))
        update = k.build.fdiv(k.build.fmul(first, self._splat_float(args.rate)), denominator)
        master = k.build.fsub(self._load(args.master, number, inside), update)
        self._store(master, args.master, number, inside)
        return master

    def _update_moment(self, address: Value, beta: Value, new: Value, number: Value, inside: Value | None) -> Value:
        """Return β · moment + (1 - β) · new for a SIMD vector of a moment, after emitting its store to memory."""
        k = self.k
        before = self._load(address, number, inside)
        moment = k.madd(self._splat_float(beta), k.build.fsub(before, new), new)
        self._store(moment, address, number, inside)
        return moment

    def _splat_float(self, bits: Value) -> Value:
        """Return a SIMD vector that repeats one float32 number, whose bits are in a 64-bit integer (an IR value)."""
        k = self.k
        return k.splat(k.float_from_bits(bits))

    def _load(self, address: Value, number: Value, inside: Value | None) -> Value:
        """Return a float32 SIMD vector, loaded at element `number` of an array; lanes outside `inside` are zero.

        `inside` is a mask of lanes; None: all lanes are loaded.
        """
        return self.k.load_as_float32(self.k.pointer(address), number, F32, mask=inside)

    def _store(self, value: Value, address: Value, number: Value, inside: Value | None, kind: Any = F32) -> None:
        """Emit a store of a float32 SIMD vector at element `number` of an array, as float32 or bfloat16 (`kind` I16).

        Lanes outside the mask `inside` are not written; None: all are.
        """
        self.k.store_float32_as(value, self.k.pointer(address), number, kind, mask=inside)


# --- calls ---


_FLOAT32, _BFLOAT16 = (torch.float32,), (torch.bfloat16,)


def supports_update(vectors: UpdatedVectors) -> bool:
    """Return whether the compiled optimizer kernels support the device and the dtypes of an update's vectors.

    The vectors must be on a CPU for which kernels can be compiled, and the working copy, if any, must be bfloat16.
    """
    working_fits = vectors.working is None or vectors.working.dtype == torch.bfloat16
    return find_integer_tile() is not None and working_fits and vectors.master.device.type == "cpu"


def update_by_adam(
    vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], scalars: AdamScalars, average_decay: float
) -> None:
    """Update parameters by Adam in place, zero their gradients, and refresh their moving average and bfloat16 copy.

    This function implements `TrainingKernels.update_by_adam`, which describes the arguments. Raises ValueError
    if the vectors do not fit together.
    """
    for moment in moments:
        _check(moment, vectors.master.numel())
    first, second = (moment.data_ptr() for moment in moments)
    bits = {name: float_bits(scalar) for name, scalar in scalars._asdict().items()}
    _run("adam", vectors, average_decay, first=first, second=second, **bits)


def update_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum in place from gradients, and write the update's direction to `out`.

    This function implements `TrainingKernels.update_momentum`, which describes the arguments. Raises ValueError
    if the vectors do not fit together.
    """
    for vector in (gradient, momentum, out):
        _check(vector, gradient.numel(), kinds=_FLOAT32 + _BFLOAT16 if vector is out else _FLOAT32)
    arguments = MomentumArguments(
        gradient=gradient.data_ptr(),
        momentum=momentum.data_ptr(),
        out=out.data_ptr(),
        is_bfloat16=int(out.dtype == torch.bfloat16),
        count=gradient.numel(),
        factor=float_bits(factor),
        decay=float_bits(decay),
    )
    _kernels()["momentum"].run(*arguments)


def apply_update(vectors: UpdatedVectors, average_decay: float, direction: Tensor, rate: float, shrink: float) -> None:
    """Replace parameters by parameters × shrink - rate × direction, in place.

    The moving average and the bfloat16 copy of the parameters are refreshed, and the gradients are set to zero. This
    function implements `TrainingKernels.apply_update`. Raises ValueError if the vectors do not fit together.
    """
    _check(direction, vectors.master.numel(), kinds=_FLOAT32 + _BFLOAT16)
    scalars = {"rate": float_bits(rate), "shrink": float_bits(shrink)}
    is_bfloat16 = int(direction.dtype == torch.bfloat16)
    _run("apply", vectors, average_decay, direction=direction.data_ptr(), is_bfloat16=is_bfloat16, **scalars)


def _run(name: str, vectors: UpdatedVectors, average_decay: float, **arguments: int) -> None:
    """Run the compiled kernel `adam` or `apply` on the vectors of an optimizer update, in place.

    `arguments` are the fields of `UpdateArguments` that do not follow from `vectors` and `average_decay`. Raises
    ValueError if lengths, dtypes or memory layouts do not fit together.
    """
    count = vectors.master.numel()
    for vector in vectors[:3]:
        if vector is not None:
            _check(vector, count)
    if vectors.working is not None:
        _check(vectors.working, count, kinds=_BFLOAT16)
    common = UpdateArguments(
        master=vectors.master.data_ptr(),
        gradient=vectors.gradient.data_ptr(),
        average=address_of(vectors.average),
        bfloat16_copy=address_of(vectors.working),
        count=count,
        average_decay=float_bits(average_decay),
        rate=0,
    )
    _kernels()[name].run(*common._replace(**arguments))


def _check(vector: Tensor, count: int, *, kinds: tuple[torch.dtype, ...] = _FLOAT32) -> None:
    """Raise ValueError unless a vector has `count` elements, one of the dtypes `kinds`, and contiguous memory."""
    if vector.numel() != count or vector.dtype not in kinds or not vector.is_contiguous():
        raise ValueError(f"{vector.dtype} {tuple(vector.shape)} beside {count} parameters")


@cache
def _kernels() -> dict[str, CompiledKernel]:
    """Return a dict of the compiled optimizer kernels: `adam`, `apply` (another optimizer's update) and `momentum`."""
    return compile_kernels("update", require_integer_tile(), UpdateEmitter.names, _emit_updates)


@outlined
def _emit_updates(k: KernelBuilder) -> None:
    """Emit the optimizer kernels `adam`, `apply` and `momentum`."""
    UpdateEmitter(k).write()


# --- emitted kernel that orthogonalizes matrices for Muon (`training/muon.py`) ---
# Each thread takes one matrix. A matrix's multiplications run one after another, so intermediate results stay in the
# cache. Matrices that remain after every thread has had equally many are processed by all threads together.
# Legend: M matrices of R rows and C columns, F the smaller of R and C.


POLYNOMIALS = 3
"""The number of polynomials that Muon's orthogonalization applies one after another."""
SCRATCH_SQUARES = 2 + POLYNOMIALS
"""The number of square matrices in a thread's scratch space, whose side is the shorter side of the matrix."""
_SUMS = 4  # accumulators of a sum of squares


class OrthogonalizeArguments(NamedTuple):
    """Arguments of the kernel `orthogonalize`, which replaces matrices by nearly orthogonal ones (optimizer Muon).

    A matrix x is changed only if both ‖x xᵀ‖ (the Frobenius norm) and 1 / ‖x xᵀ‖ are below `max_square_norm`. Each
    field is an integer: an address, a number, or the bits of a float32.
    """

    matrices: Any
    """The address of an array of addresses: those of the bfloat16 matrices, each of R rows and C columns."""
    done: Any
    """Address of the output, int64 for each matrix: 1 if the matrix was changed, 0 if `max_square_norm` excludes it."""
    count: Any
    """The number of matrices to orthogonalize."""
    rows: Any
    """The number of rows R of each matrix."""
    columns: Any
    """The number of columns C of each matrix."""
    coefficients: Any
    """Address of the coefficients a, b and c of each polynomial a x + b x³ + c x⁵, float32 (3, 3)."""
    margin: Any
    """The bits of a float32, slightly above 1, that guards against rounding.

    A matrix x is divided by √‖x xᵀ‖, an upper bound of its spectral norm, times this number.
    """
    max_square_norm: Any
    """The bits of a float32, the limit below which both ‖x xᵀ‖ and 1 / ‖x xᵀ‖ must be for a matrix x to be changed."""
    scale: Any
    """The bits of a float32 by which each orthogonalized matrix is multiplied."""
    by_gram_matrix: Any
    """Not 0 to evaluate the polynomials on the Gram matrix x xᵀ and multiply x only once; 0 to apply each to x."""
    scratch: Any
    """The address of the scratch space, `bytes_per_thread` for each thread."""
    bytes_per_thread: Any
    """The size in bytes of a thread's scratch space.

    The space holds 2 × R × C + `SCRATCH_SQUARES` × min(R, C)² bfloat16 elements.
    """


class _Task(NamedTuple):
    """The orthogonalization of one of Muon's matrices, as IR values: addresses, sizes and threads."""

    x: Value
    """The address of the matrix, or of its transposed copy if it has more rows than columns."""
    squares: list[Value]
    """A list of the addresses of `SCRATCH_SQUARES` scratch matrices of `rows` × `rows` elements."""
    packed: Value
    """The address of scratch space for the right operand of a GEMM, which is packed first."""
    rows: Value
    """The number of rows of x, the shorter side of the matrix."""
    columns: Value
    """The number of columns of x, the longer side of the matrix."""
    threads: tuple[Value, Value]
    """The index of the current thread, and the number of threads that process the matrix together."""


class OrthogonalizeEmitter:
    """An emitter of the kernel `orthogonalize`, which orthogonalizes matrices in place by odd polynomials (Muon)."""

    names = ("orthogonalize",)
    """The name, in a tuple, of the kernel that `write` emits."""

    def __init__(self, k: KernelBuilder, multiplier: type[GemmEmitter]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "mix")

    def write(self) -> None:
        """Emit the kernel `orthogonalize`, which orthogonalizes Muon's matrices, and the functions that it calls."""
        k = self.k
        self._write_symmetric()
        self._write_mixed()
        self._write_transposed()
        with k.function("orthogonalize_one", POINTER, *[I64] * 4) as (numbers, matrix, scratch, *threads):
            count = len(OrthogonalizeArguments._fields)
            values = (k.load(k.element_pointer(numbers, number, I64), I64) for number in range(count))
            self._orthogonalize(OrthogonalizeArguments(*values), matrix, scratch, threads)
        with raw_kernel(k, self.names[0]) as (numbers, thread, threads):
            count, scratch, bytes_per_thread = (
                k.load(k.element_pointer(numbers, OrthogonalizeArguments._fields.index(name), I64), I64)
                for name in ("count", "scratch", "bytes_per_thread")
            )
            count_each = k.build.sdiv(count, threads)
            thread_scratch = k.add(scratch, k.mul(thread, bytes_per_thread))
            with k.loop(k.mul(thread, count_each), k.mul(k.add(thread, 1), count_each)) as matrix:
                k.call("orthogonalize_one", numbers, matrix, thread_scratch, k.int64(0), k.int64(1))
            k.barrier(threads)
            with k.loop(k.mul(threads, count_each), count) as matrix:
                k.call("orthogonalize_one", numbers, matrix, scratch, thread, threads)

    def _orthogonalize(self, args: OrthogonalizeArguments, matrix: Value, scratch: Value, threads: list[Value]) -> None:
        """Emit the orthogonalization of matrix number `matrix` by Muon's polynomials, in place.

        The matrix x is changed only if both ‖x xᵀ‖ (the Frobenius norm) and 1 / ‖x xᵀ‖ are below
        `args.max_square_norm`. The matrix's entry of `args.done` becomes 1 if the matrix is changed, else 0.
        """
        k = self.k
        address = k.load(k.element_pointer(k.pointer(args.matrices), matrix, I64), I64)
        is_tall = k.build.icmp_signed(">", args.rows, args.columns)
        short_side, long_side = (k.build.select(is_tall, *pair) for pair in (args[4:2:-1], args[3:5]))
        size, square = k.mul(short_side, long_side, 2), k.mul(short_side, short_side, 2)
        transposed = k.add(scratch, size)
        squares = [k.add(transposed, size, k.mul(square, number)) for number in range(SCRATCH_SQUARES)]
        x = k.build.select(is_tall, transposed, address)
        task = _Task(x, squares, scratch, short_side, long_side, (threads[0], threads[1]))
        with k.when(is_tall):
            k.call("transposed", address, transposed, args.rows, args.columns, *threads)
        self._multiply(task, task.x, task.x, squares[0], columns=long_side)
        length = self._norm(squares[0], k.mul(short_side, short_side))
        limit = k.float_from_bits(args.max_square_norm)
        is_small = k.build.fcmp_ordered("<", length, limit)
        is_large = k.build.fcmp_ordered(">", k.build.fmul(length, limit), k.float32(1))
        is_done = k.build.and_(is_small, is_large)
        k.store(k.build.zext(is_done, I64), k.element_pointer(k.pointer(args.done), matrix, I64))
        with k.when(is_done):
            shrink = k.build.fmul(k.float_from_bits(args.margin), k.intrinsic("llvm.sqrt.f32", F32, length))
            shrink = k.build.fdiv(k.float32(1), shrink)
            with k.build.if_else(k.is_nonzero(args.by_gram_matrix)) as (by_gram_matrix, one_by_one):
                with by_gram_matrix:
                    self._by_gram_matrix(args, task, shrink)
                with one_by_one:
                    self._one_by_one(args, task, shrink)
            with k.when(is_tall):
                k.call("transposed", transposed, address, args.columns, args.rows, *threads)
        k.barrier(threads[1])  # before the scratch space is reused

    def _norm(self, square: Value, elements: Value) -> Value:
        """Return (an IR value) the Euclidean norm of an array of bfloat16 numbers, in float32.

        `elements` is the number of elements, a multiple of `_SUMS` SIMD vectors.
        """
        k = self.k
        sums = [k.variable(k.splat(0.0)) for _ in range(_SUMS)]
        with k.loop(0, elements, _SUMS * k.lanes) as start:
            for number, variable in enumerate(sums):
                value = k.load_as_float32(k.pointer(square), k.add(start, number * k.lanes), I16)
                k.store(k.madd(value, value, k.load_variable(variable)), variable)
        total = [k.load_variable(variable) for variable in sums]
        return k.intrinsic(
            "llvm.sqrt.f32", F32, k.reduce_sum(k.build.fadd(k.build.fadd(*total[:2]), k.build.fadd(*total[2:])))
        )

    def _coefficients(self, args: OrthogonalizeArguments, number: int, shrink: Value) -> tuple[Value, Value, Value]:
        """Return (IR values) the coefficients a, b and c of Muon's polynomial number `number`.

        The polynomial is a I + b x xᵀ + c (x xᵀ)², evaluated for the matrix x times `shrink`. x itself is not
        multiplied: instead, b is returned times shrink², and c times shrink⁴.
        """
        k, pointer = self.k, self.k.pointer(args.coefficients)
        a, b, c = (k.load(k.element_pointer(pointer, 3 * number + n)) for n in range(3))
        square = k.build.fmul(shrink, shrink)
        return a, k.build.fmul(b, square), k.build.fmul(c, k.build.fmul(square, square))

    def _one_by_one(self, args: OrthogonalizeArguments, task: _Task, shrink: Value) -> None:
        """Emit Muon's polynomials, applied to the matrix x one after another, as `muon._one_by_one` does.

        `shrink` is the factor by which x must be multiplied first, so that its spectral norm is below 1.
        """
        k, (gram, factor) = self.k, task.squares[:2]
        for number in range(POLYNOMIALS):
            if number:
                shrink = k.float32(1)
                self._multiply(task, task.x, task.x, gram, columns=task.columns)
            a, b, c = self._coefficients(args, number, shrink)
            self._multiply(task, gram, gram, factor, other=gram, factors=(b, c))
            scale = k.build.fmul(shrink, k.float_from_bits(args.scale)) if number == POLYNOMIALS - 1 else shrink
            self._multiply_into_x(task, factor, other=task.x, factors=(k.build.fmul(scale, a), scale))

    def _by_gram_matrix(self, args: OrthogonalizeArguments, task: _Task, shrink: Value) -> None:
        """Emit Muon's polynomials, evaluated on the Gram matrix x xᵀ, as `muon._by_gram_matrix` does.

        `shrink` is the factor by which x must be multiplied first, so that its spectral norm is below 1.
        """
        k, (gram, product, *values) = self.k, task.squares
        scale, none = shrink, k.float32(0)
        for number, value in enumerate(values):
            if number:
                previous = values[number - 1]
                self._multiply(task, previous, gram, product, factors=(none, k.build.fmul(scale, scale)))
                self._multiply(task, product, previous, gram)
                scale = k.float32(1)
            a, b, c = self._coefficients(args, number, scale)
            self._multiply(task, gram, gram, value, other=gram, factors=(b, c), diagonal=a)
        self._multiply(task, values[1], values[0], product)
        self._multiply(task, values[2], product, gram)
        self._multiply_into_x(
            task, gram, other=None, factors=(none, k.build.fmul(shrink, k.float_from_bits(args.scale)))
        )

    def _multiply(
        self,
        task: _Task,
        left: Value,
        right: Value,
        out: Value,
        *,
        columns: Value | None = None,
        other: Value | None = None,
        factors: tuple[Value, Value] | None = None,
        diagonal: Value | None = None,
    ) -> None:
        """Emit a call that computes a symmetric square matrix, out = f1 · other + f2 · left · rightᵀ + diagonal · I.

        Args:
            task: the matrix that is orthogonalized, with F rows.
            left: the address of the left operand, (F, columns).
            right: the address of the right operand, (F, columns).
            out: the address of the result, (F, F).
            columns: F if None.
            other: the address of the matrix to add, or None.
            factors: f1 and f2; 0 and 1 if None.
            diagonal: a number; 0 if None.
        """
        k = self.k
        addend_factor, product_factor = factors or (k.float32(0), k.float32(1))
        addresses, sizes = (left, right, other or k.int64(0), out), (task.rows, columns or task.rows)
        numbers = addend_factor, product_factor, diagonal or k.float32(0)
        k.call("symmetric", *addresses, *numbers, *sizes, task.packed, *task.threads)

    def _multiply_into_x(
        self, task: _Task, factor: Value, *, other: Value | None, factors: tuple[Value, Value]
    ) -> None:
        """Emit a call that replaces the matrix `task.x` by f1 · other + f2 · factor · x.

        `factors` is (f1, f2); None as `other` counts as zero.
        """
        k = self.k
        k.call(
            "mixed", factor, task.x, other or k.int64(0), *factors, task.rows, task.columns, task.packed, *task.threads
        )

    # --- functions -----------------------------------------------------------------------------------------------

    def _write_symmetric(self) -> None:
        """Emit the function `symmetric`, which computes out = f1 · other + f2 · left · rightᵀ + diagonal · I.

        The arguments are (left, right, other, out, f1, f2, diagonal, F, C, packed, thread, threads); left and right are
        (F, C). Only the half below the diagonal is multiplied; the other half is mirrored.
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
        """Emit the function `mixed`, which replaces right by f1 · other + f2 · left · right.

        The arguments are (left, right, other, f1, f2, F, C, packed, thread, threads); left is (F, F), right is (F, C).
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
        """Return a `Gemm` that computes f1 · other + f2 · left · right.

        Args:
            addresses: those of the left operand, of the packed right operand and of the result.
            sizes: the number of rows and columns of the left operand, and the number of columns of the result.
            mixture: the address of the matrix `other`, then f1 and f2.
        """
        k, (left, packed, out), (rows, inner, columns) = self.k, addresses, sizes
        return Gemm(
            left=k.pointer(left),
            rows=rows,
            panels=k.pointer(packed),
            columns=columns,
            pairs=k.build.sdiv(inner, k.int64(2)),
            out=out,
            epilogue="mix",
            values=mixture,
        )

    def _packer(self, thread: Value, threads: Value) -> Packer:
        """Return an emitter that packs matrices for the GEMMs of the kernel `orthogonalize`, for one thread."""
        return self.multiplier.packer(self.k, self.multiplier.layout, thread, threads)

    def _mirror(self, out: Value, rows: Value, diagonal: Value, thread: Value, threads: Value) -> None:
        """Emit code that makes a bfloat16 matrix of `rows` × `rows` symmetric, and adds `diagonal` to its diagonal.

        The elements below the diagonal are copied to above it. Threads alternate in blocks of rows.
        """
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
        """Return a list of vectors (IR values), the rows of a block of `lanes` × `lanes` bfloat16 numbers of a matrix.

        `row` and `column` are those of the block's first element, and `columns` is the width of the matrix. Each number
        is widened to 32 bits, of which the upper 16 are zero.
        """
        k, kind = self.k, ir.VectorType(I16, self.k.lanes)
        offsets = (k.add(k.mul(k.add(row, n), columns), column) for n in range(k.lanes))
        return [k.build.zext(k.load(k.element_pointer(matrix, offset, I16), kind), k.ints) for offset in offsets]

    def _write_transposed(self) -> None:
        """Emit `transposed(matrix, out, R, C, thread, threads)`, which transposes a bfloat16 matrix into `out`.

        The function takes as many rows at a time as fill a cache line of `out`.
        """
        k = self.k
        block_rows, kind = 2 * k.lanes, ir.VectorType(I16, k.lanes)
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
                    k.store(k.shuffle(low, high, range(block_rows)), target)
            k.barrier(threads)


# --- calls ---


_MULTIPLE = 32  # the numbers of rows and columns must be multiples of this
_MARGIN = 1.01  # safety factor for rounding: the polynomials grow fast beyond 1
_MAX_SQUARE_NORM = 1e15  # limit on ‖x xᵀ‖ and its inverse, whose squares must fit in float32
_BYTES = 2  # of an element


def supports_orthogonalization(matrices: Sequence[Tensor]) -> bool:
    """Return whether `orthogonalize_in_place` (for the optimizer Muon) supports all of a sequence of matrices.

    The matrices must be bfloat16, contiguous, on a CPU with bfloat16 kernels, and have rows and columns in multiples of
    32.
    """
    return bfloat16_tile() is not None and all(_supports_matrix(each) for each in matrices)


def _supports_matrix(matrix: Tensor) -> bool:
    """Return whether `orthogonalize_in_place` supports a matrix, by its dtype, device, size and memory layout."""
    fits = matrix.shape[0] % _MULTIPLE == matrix.shape[1] % _MULTIPLE == 0 and matrix.numel() > 0
    return fits and matrix.dtype == torch.bfloat16 and matrix.device.type == "cpu" and matrix.is_contiguous()


def orthogonalize_in_place(
    matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
) -> list[bool]:
    """Orthogonalize matrices of one shape in place by three odd polynomials, for the optimizer Muon.

    This function implements `TrainingKernels.orthogonalize_in_place`.

    Returns:
        A list with True for each matrix that was changed, and False for one too large or too small for float32.

    Raises:
        ValueError: the matrices differ in shape, or there are not three polynomials.
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
        max_square_norm=float_bits(_MAX_SQUARE_NORM),
        scale=float_bits(scale),
        by_gram_matrix=int(by_gram_matrix),
        scratch=scratch.data_ptr(),
        bytes_per_thread=scratch_bytes,
    )
    _orthogonalize_kernels(require_gemm_tile(torch.bfloat16))["orthogonalize"].run(*arguments)
    return [bool(each) for each in done]


@cache
def _orthogonalize_kernels(tile: Tile) -> dict[str, CompiledKernel]:
    """Return a dict with the compiled kernel `orthogonalize` (for Muon's matrices), whose GEMMs use a given `Tile`."""
    return compile_kernels("squares", tile, OrthogonalizeEmitter.names, lambda k: _emit_orthogonalization(k, tile))


@outlined
def _emit_orthogonalization(k: KernelBuilder, tile: Tile) -> None:
    """Emit the kernel `orthogonalize`, whose GEMMs use a given `Tile`."""
    OrthogonalizeEmitter(k, gemm_emitter_of(tile)).write()
