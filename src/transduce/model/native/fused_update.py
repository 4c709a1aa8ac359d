"""An update of all parameters in machine code."""

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
    """See `backend.TrainingKernels`."""
    narrow = vectors.working is None or vectors.working.dtype == torch.bfloat16
    return find_tile() is not None and narrow and vectors.master.device.type == "cpu"


def update_by_adam(vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float) -> None:
    """See `backend.TrainingKernels`."""
    _run("adam", vectors, kept, moments, numbers)


def take_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """See `backend.TrainingKernels`."""
    for vector in (gradient, momentum, out):
        _check(vector, gradient.numel(), kinds=_WIDE + _NARROW if vector is out else _WIDE)
    places = MomentumPlaces(
        gradient=gradient.data_ptr(),
        momentum=momentum.data_ptr(),
        out=out.data_ptr(),
        is_narrow=int(out.dtype == torch.bfloat16),
        count=gradient.numel(),
        factor=float_bits(factor),
        decay=float_bits(decay),
    )
    _programs(own_tile())["momentum"].run(*places)


def follow_update(
    vectors: UpdatedVectors, kept: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """See `backend.TrainingKernels`."""
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
    count, narrow = vectors.master.numel(), vectors.working
    for vector in (*vectors[:3], *moments):
        if vector is not None:
            _check(vector, count)
    if narrow is not None:
        _check(narrow, count, kinds=_NARROW)
    first, second = (moment.data_ptr() for moment in moments) if moments else (0, 0)
    places = UpdatePlaces(
        master=vectors.master.data_ptr(),
        gradient=vectors.gradient.data_ptr(),
        average=address_of(vectors.average),
        working=address_of(narrow),
        count=count,
        kept=float_bits(kept),
        first=first,
        second=second,
        move=address_of(move),
        has_narrow_move=int(move is not None and move.dtype == torch.bfloat16),
        shrink=float_bits(shrink),
        **{field: float_bits(number) for field, number in numbers._asdict().items()},
    )
    _programs(own_tile())[name].run(*places)


def _check(vector: Tensor, count: int, *, kinds: tuple[torch.dtype, ...] = _WIDE) -> None:
    if vector.numel() != count or vector.dtype not in kinds or not vector.is_contiguous():
        raise ValueError(f"{vector.dtype} {tuple(vector.shape)} beside {count} parameters")


@cache
def _programs(tile: Tile) -> dict[str, Program]:
    k = new_emitter("update", tile)
    UpdateWriter(k).write()
    return compile_programs(k, UpdateWriter.names)
