"""An update of all parameters in machine code."""

import struct
from functools import cache

import torch
from torch import Tensor

from transduce.model.fused import AdamNumbers, UpdatedVectors
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, own_tile
from transduce.model.native.tile import Tile
from transduce.model.native.training_update import UpdatePlaces, UpdateWriter


def suits_update(vectors: UpdatedVectors) -> bool:
    """See `fused.TrainingKernels`."""
    narrow = vectors.working is None or vectors.working.dtype == torch.bfloat16
    return find_tile() is not None and narrow and vectors.master.device.type == "cpu"


def update_by_adam(vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float) -> None:
    """See `fused.TrainingKernels`."""
    _run("adam", vectors, kept, moments, numbers)


def follow_update(vectors: UpdatedVectors, kept: float) -> None:
    """See `fused.TrainingKernels`."""
    _run("follow", vectors, kept, (), AdamNumbers(*[0.0] * len(AdamNumbers._fields)))


def _run(name: str, vectors: UpdatedVectors, kept: float, moments: tuple[Tensor, ...], numbers: AdamNumbers) -> None:
    count, narrow = vectors.master.numel(), vectors.working
    for vector in (*vectors, *moments):
        wanted = torch.bfloat16 if vector is narrow else torch.float32
        if vector is not None and ((vector.numel(), vector.dtype) != (count, wanted) or not vector.is_contiguous()):
            raise ValueError(f"{vector.dtype} {tuple(vector.shape)} beside {count} parameters")
    first, second = (moment.data_ptr() for moment in moments) if moments else (0, 0)
    places = UpdatePlaces(
        master=vectors.master.data_ptr(),
        gradient=vectors.gradient.data_ptr(),
        average=0 if vectors.average is None else vectors.average.data_ptr(),
        working=0 if narrow is None else narrow.data_ptr(),
        count=count,
        kept=_bits(kept),
        first=first,
        second=second,
        **{field: _bits(number) for field, number in numbers._asdict().items()},
    )
    _programs(own_tile())[name].run(*places)


def _bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


@cache
def _programs(tile: Tile) -> dict[str, Program]:
    k = new_emitter("update", tile)
    UpdateWriter(k).write()
    return compile_programs(k, UpdateWriter.names)
