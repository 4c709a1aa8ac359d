"""Run the compiled optimizer kernels, which update all parameters in one pass."""

from functools import cache

import torch
from torch import Tensor

from transduce.model.backend import AdamNumbers, UpdatedVectors
from transduce.model.native.engine import (
    Program,
    address_of,
    compile_programs,
    find_tile,
    float_bits,
    new_emitter,
    own_tile,
)
from transduce.model.native.tile import Tile
from transduce.model.native.training_update import MomentumPlaces, UpdatePlaces, UpdateWriter

_WIDE, _NARROW = (torch.float32,), (torch.bfloat16,)


def suits_update(vectors: UpdatedVectors) -> bool:
    """Return whether the optimizer kernels take these vectors."""
    working_fits = vectors.working is None or vectors.working.dtype == torch.bfloat16
    return find_tile() is not None and working_fits and vectors.master.device.type == "cpu"


def update_by_adam(vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float) -> None:
    """Update parameters by Adam, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.update_by_adam`.
    """
    _run("adam", vectors, kept, moments, numbers)


def take_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum from gradients, and write the update's direction to `out`.

    See `backend.TrainingKernels.take_momentum`.
    """
    for vector in (gradient, momentum, out):
        _check(vector, gradient.numel(), kinds=_WIDE + _NARROW if vector is out else _WIDE)
    arguments = MomentumPlaces(
        gradient=gradient.data_ptr(),
        momentum=momentum.data_ptr(),
        out=out.data_ptr(),
        is_narrow=int(out.dtype == torch.bfloat16),
        count=gradient.numel(),
        factor=float_bits(factor),
        decay=float_bits(decay),
    )
    _kernels(own_tile())["momentum"].run(*arguments)


def follow_update(
    vectors: UpdatedVectors, kept: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """Subtract rate × move from the parameters × shrink, and update their moving average and bfloat16 copies.

    See `backend.TrainingKernels.follow_update`.
    """
    if move is not None:
        _check(move, vectors.master.numel(), kinds=_WIDE + _NARROW)
    nothing = AdamNumbers(*[0.0] * len(AdamNumbers._fields))._replace(rate=rate)
    _run("follow", vectors, kept, (), nothing, move=move, shrink=shrink)


def _run(
    name: str,
    vectors: UpdatedVectors,
    kept: float,
    moments: tuple[Tensor, ...],
    numbers: AdamNumbers,
    *,
    move: Tensor | None = None,
    shrink: float = 1.0,
) -> None:
    """Check the vectors and run the kernel `adam` or `follow`."""
    count, working = vectors.master.numel(), vectors.working
    for vector in (*vectors[:3], *moments):
        if vector is not None:
            _check(vector, count)
    if working is not None:
        _check(working, count, kinds=_NARROW)
    first, second = (moment.data_ptr() for moment in moments) if moments else (0, 0)
    arguments = UpdatePlaces(
        master=vectors.master.data_ptr(),
        gradient=vectors.gradient.data_ptr(),
        average=address_of(vectors.average),
        working=address_of(working),
        count=count,
        kept=float_bits(kept),
        first=first,
        second=second,
        move=address_of(move),
        has_narrow_move=int(move is not None and move.dtype == torch.bfloat16),
        shrink=float_bits(shrink),
        **{field: float_bits(number) for field, number in numbers._asdict().items()},
    )
    _kernels(own_tile())[name].run(*arguments)


def _check(vector: Tensor, count: int, *, kinds: tuple[torch.dtype, ...] = _WIDE) -> None:
    """Raise ValueError unless a vector has `count` elements, one of these dtypes, and no gaps."""
    if vector.numel() != count or vector.dtype not in kinds or not vector.is_contiguous():
        raise ValueError(f"{vector.dtype} {tuple(vector.shape)} beside {count} parameters")


@cache
def _kernels(tile: Tile) -> dict[str, Program]:
    """Compile the kernels of `UpdateWriter`."""
    k = new_emitter("update", tile)
    UpdateWriter(k).write()
    return compile_programs(k, UpdateWriter.names)
