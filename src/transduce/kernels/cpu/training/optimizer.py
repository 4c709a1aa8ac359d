"""Update all parameters in one pass with compiled kernels: Adam (section 5.3), moving average, and bfloat16 copies."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    find_integer_tile,
    float_bits,
    kernel,
    new_builder,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, KernelBuilder, Value
from transduce.kernels.cpu.jit.tile import Tile
from transduce.model.backend import AdamScalars, UpdatedVectors

# --- emitted kernels ---
# Separate operations would read and write every vector from memory, as parameters exceed the caches: some 70 bytes
# per parameter, against 42 in one pass.


class UpdateArguments(NamedTuple):
    """Arguments of the kernels `adam` and `apply`: addresses of float32 vectors, unless stated otherwise."""

    master: Any
    """The float32 master parameters."""
    gradient: Any
    """The gradients, which are zeroed."""
    average: Any
    """The moving average of the parameters; 0: none."""
    bfloat16_copy: Any
    """The parameters rounded to bfloat16; 0: none."""
    count: Any
    """The number of elements."""
    average_decay: Any
    """The decay of the moving average.

    It and all numbers below are the bits of a float32, unless stated otherwise.
    """
    first: Any
    """Address of the first moments; for `adam` only."""
    second: Any
    """Address of the second moments; for `adam` only."""
    factor: Any
    """The factor of the gradient, applied first; for `adam` only."""
    beta1: Any
    """Adam's β1; for `adam` only."""
    beta2: Any
    """Adam's β2; for `adam` only."""
    rate: Any
    """The learning rate; for `adam` divided by 1 - β1^t."""
    inverse_root: Any
    """1 / √(1 - β2^t); for `adam` only."""
    epsilon: Any
    """Adam's epsilon; for `adam` only."""
    update: Any
    """Address of a vector that is subtracted from the parameters, times the rate; 0: none; for `apply` only."""
    has_bfloat16_move: Any
    """Not 0 if `move` is bfloat16; for `apply` only."""
    shrink: Any
    """The factor of the parameters before `move` is subtracted; for `apply` only."""


class MomentumArguments(NamedTuple):
    """Arguments of the kernel `momentum`: addresses of float32 vectors, unless stated otherwise."""

    gradient: Any
    """The gradients."""
    momentum: Any
    """The momentum, which is updated."""
    out: Any
    """The output, float32 or bfloat16."""
    is_narrow: Any
    """Not 0 if `out` is bfloat16."""
    count: Any
    """The number of elements."""
    factor: Any
    """The bits of a float32 factor of the gradient, applied first."""
    decay: Any
    """The bits of a float32 decay of the momentum."""


class UpdateEmitter:
    """An emitter of the optimizer kernels: `adam`, and for other optimizers `momentum` and `apply`."""

    names = ("adam", "apply", "momentum")
    """The kernels' names."""

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k

    def write(self) -> None:
        """Emit the optimizer kernels that the attribute `names` lists."""
        k = self.k
        for name, work in (("adam", self._adam), ("apply", self._take)):
            with kernel(k, name, len(UpdateArguments._fields)) as (numbers, thread, threads):
                args = UpdateArguments(*numbers)
                for number, inside in self._each_vector(args.count, thread, threads):
                    self._follow(args, number, inside, work)
        with kernel(k, "momentum", len(MomentumArguments._fields)) as (numbers, thread, threads):
            momentum_args = MomentumArguments(*numbers)
            for number, inside in self._each_vector(momentum_args.count, thread, threads):
                self._momentum(momentum_args, number, inside)

    def _each_vector(self, count: Value, thread: Value, threads: Value) -> Iterator[tuple[Value, Value | None]]:
        """Emit a loop over the thread's share of vectors; yields the first element and a mask of valid lanes or None.

        The last thread also processes the last, incomplete vector, which has a mask.
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
        """Emit Nesterov momentum: update the momentum with the gradient, and write the direction of the update."""
        k = self.k
        gradient = k.build.fmul(self._get(args.gradient, number, inside), self._real(args.factor))
        momentum = self._mean(args.momentum, args.decay, gradient, number, inside)
        ahead = k.madd(self._real(args.decay), k.build.fsub(momentum, gradient), gradient)
        with k.build.if_else(k.is_nonzero(args.is_narrow)) as (narrow, wide):
            with narrow:
                self._put(ahead, args.out, number, inside, I16)
            with wide:
                self._put(ahead, args.out, number, inside)

    def _follow(
        self,
        args: UpdateArguments,
        number: Value,
        inside: Value | None,
        work: Callable[[UpdateArguments, Value, Value | None], Value],
    ) -> None:
        """Emit an update of the parameters by `work` and what follows an update.

        This clears gradients, and refreshes the moving average and the bfloat16 copy.
        """
        k = self.k
        master = work(args, number, inside)
        self._put(k.splat(0.0), args.gradient, number, inside)
        with k.when(k.is_nonzero(args.average)):
            average = self._get(args.average, number, inside)
            decay = self._real(args.average_decay)
            self._put(k.madd(decay, k.build.fsub(average, master), master), args.average, number, inside)
        with k.when(k.is_nonzero(args.bfloat16_copy)):
            self._put(master, args.bfloat16_copy, number, inside, I16)

    def _take(self, args: UpdateArguments, number: Value, inside: Value | None) -> Value:
        """Emit the update master · shrink - rate · move of the parameters, and return the new parameters."""
        k = self.k
        before = self._get(args.master, number, inside)
        master, shrunk = k.variable(before), k.build.fmul(before, self._real(args.shrink))
        rate = k.build.fsub(k.splat(0.0), self._real(args.rate))
        has_move, is_narrow = (
            k.build.icmp_signed("!=", each, k.int64(0)) for each in (args.update, args.has_bfloat16_move)
        )
        with k.when(has_move), k.build.if_else(is_narrow) as (narrow, wide):
            for branch, kind in ((narrow, I16), (wide, F32)):
                with branch:
                    update = k.load_as_float32(k.pointer(args.update), number, kind, mask=inside)
                    new_master = k.madd(rate, update, shrunk)
                    k.store(new_master, master)
                    self._put(new_master, args.master, number, inside)
        return k.load_variable(master, rate)

    def _adam(self, args: UpdateArguments, number: Value, inside: Value | None) -> Value:
        """Emit Adam's update of the moments and parameters, and return the new parameters."""
        k = self.k
        gradient = k.build.fmul(self._get(args.gradient, number, inside), self._real(args.factor))
        first = self._mean(args.first, args.beta1, gradient, number, inside)
        second = self._mean(args.second, args.beta2, k.build.fmul(gradient, gradient), number, inside)
        root = k.intrinsic(f"llvm.sqrt.v{k.lanes}f32", k.floats, second)
        denominator = k.madd(root, self._real(args.inverse_root), self._real(args.epsilon))
        update = k.build.fdiv(k.build.fmul(first, self._real(args.rate)), denominator)
        master = k.build.fsub(self._get(args.master, number, inside), update)
        self._put(master, args.master, number, inside)
        return master

    def _mean(self, address: Value, beta: Value, new: Value, number: Value, inside: Value | None) -> Value:
        """Update a moment to β · moment + (1 - β) · new, and return it."""
        k = self.k
        before = self._get(address, number, inside)
        moment = k.madd(self._real(beta), k.build.fsub(before, new), new)
        self._put(moment, address, number, inside)
        return moment

    def _real(self, bits: Value) -> Value:
        """Return a vector that repeats the float32 number whose bits an integer argument holds."""
        k = self.k
        return k.splat(k.float_from_bits(bits))

    def _get(self, address: Value, number: Value, inside: Value | None) -> Value:
        """Load a float32 vector from element `number` of an array."""
        return self.k.load_as_float32(self.k.pointer(address), number, F32, mask=inside)

    def _put(self, value: Value, address: Value, number: Value, inside: Value | None, kind: Any = F32) -> None:
        """Store a vector at element `number` of an array, as float32 or, with `kind` I16, as bfloat16."""
        self.k.store_float32_as(value, self.k.pointer(address), number, kind, mask=inside)


# --- calls ---


_WIDE, _NARROW = (torch.float32,), (torch.bfloat16,)


def supports_update(vectors: UpdatedVectors) -> bool:
    """Return whether the optimizer kernels support these vectors of parameters."""
    working_fits = vectors.working is None or vectors.working.dtype == torch.bfloat16
    return find_integer_tile() is not None and working_fits and vectors.master.device.type == "cpu"


def update_by_adam(
    vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamScalars, average_decay: float
) -> None:
    """Update parameters by Adam, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.update_by_adam`.
    """
    _run("adam", vectors, average_decay, moments, numbers)


def update_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum from gradients, and write the update's direction to `out`.

    See `backend.TrainingKernels.update_momentum`.
    """
    for vector in (gradient, momentum, out):
        _check(vector, gradient.numel(), kinds=_WIDE + _NARROW if vector is out else _WIDE)
    arguments = MomentumArguments(
        gradient=gradient.data_ptr(),
        momentum=momentum.data_ptr(),
        out=out.data_ptr(),
        is_narrow=int(out.dtype == torch.bfloat16),
        count=gradient.numel(),
        factor=float_bits(factor),
        decay=float_bits(decay),
    )
    _kernels(require_integer_tile())["momentum"].run(*arguments)


def apply_update(
    vectors: UpdatedVectors, average_decay: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """Subtract rate × move from the parameters × shrink, and update their moving average and bfloat16 copies.

    See `backend.TrainingKernels.apply_update`.
    """
    if move is not None:
        _check(move, vectors.master.numel(), kinds=_WIDE + _NARROW)
    nothing = AdamScalars(*[0.0] * len(AdamScalars._fields))._replace(rate=rate)
    _run("apply", vectors, average_decay, (), nothing, move=move, shrink=shrink)


def _run(
    name: str,
    vectors: UpdatedVectors,
    average_decay: float,
    moments: tuple[Tensor, ...],
    numbers: AdamScalars,
    *,
    move: Tensor | None = None,
    shrink: float = 1.0,
) -> None:
    """Check the vectors and run the kernel `adam` or `apply`."""
    count, bfloat16_copy = vectors.master.numel(), vectors.working
    for vector in (*vectors[:3], *moments):
        if vector is not None:
            _check(vector, count)
    if bfloat16_copy is not None:
        _check(bfloat16_copy, count, kinds=_NARROW)
    first, second = (moment.data_ptr() for moment in moments) if moments else (0, 0)
    arguments = UpdateArguments(
        master=vectors.master.data_ptr(),
        gradient=vectors.gradient.data_ptr(),
        average=address_of(vectors.average),
        bfloat16_copy=address_of(bfloat16_copy),
        count=count,
        average_decay=float_bits(average_decay),
        first=first,
        second=second,
        update=address_of(move),
        has_bfloat16_move=int(move is not None and move.dtype == torch.bfloat16),
        shrink=float_bits(shrink),
        **{field: float_bits(number) for field, number in numbers._asdict().items()},
    )
    _kernels(require_integer_tile())[name].run(*arguments)


def _check(vector: Tensor, count: int, *, kinds: tuple[torch.dtype, ...] = _WIDE) -> None:
    """Raise ValueError unless a vector has `count` elements, one of these dtypes, and no gaps."""
    if vector.numel() != count or vector.dtype not in kinds or not vector.is_contiguous():
        raise ValueError(f"{vector.dtype} {tuple(vector.shape)} beside {count} parameters")


@cache
def _kernels(tile: Tile) -> dict[str, CompiledKernel]:
    """Compile the kernels of `UpdateEmitter`."""
    k = new_builder("update", tile)
    UpdateEmitter(k).write()
    return compile_kernels(k, UpdateEmitter.names)
