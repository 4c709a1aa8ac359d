"""Products that making matrices orthogonal takes, in machine code: see `training_squares.py`.

Legend: M matrices, R rows, C columns.
"""

from functools import cache

import torch
from torch import Tensor

from transduce.model.fused import ALONE, Mixture
from transduce.model.native.engine import (
    Program,
    address_of,
    compile_programs,
    float_bits,
    new_emitter,
)
from transduce.model.native.fused_products import multiplier_of, own_pair_tile, pair_tile
from transduce.model.native.tile import Tile
from transduce.model.native.training_squares import SquarePlaces, SquareWriter

_TOGETHER = 32  # columns


def suits_squares(matrices: Tensor) -> bool:
    """See `fused.TrainingKernels`."""
    fits = matrices.shape[1] % _TOGETHER == matrices.shape[2] % _TOGETHER == 0 and matrices.numel() > 0
    return fits and matrices.dtype == torch.bfloat16 and matrices.device.type == "cpu" and pair_tile() is not None


def multiply_symmetric(left: Tensor, right: Tensor, mixture: Mixture = ALONE) -> Tensor:
    """See `fused.SquareProducts`."""
    if left.shape != right.shape:
        raise ValueError(f"{tuple(left.shape)} by the transpose of {tuple(right.shape)}")
    return _run("symmetric", left, right, mixture, left.new_empty(len(left), left.shape[1], left.shape[1]))


def multiply_mixed(left: Tensor, right: Tensor, mixture: Mixture = ALONE) -> Tensor:
    """See `fused.SquareProducts`."""
    if left.shape != (*right.shape[:2], right.shape[1]) or mixture.diagonal:
        raise ValueError(f"{tuple(left.shape)} by {tuple(right.shape)}, with {mixture.diagonal} on the diagonal")
    return _run("mixed", left, right, mixture, torch.empty_like(right, memory_format=torch.contiguous_format))


def _run(name: str, left: Tensor, right: Tensor, mixture: Mixture, out: Tensor) -> Tensor:
    other = mixture.other
    if other is not None and other.shape != out.shape:
        raise ValueError(f"{tuple(other.shape)} cannot be added to {tuple(out.shape)}")
    left, right, other = left.contiguous(), right.contiguous(), None if other is None else other.contiguous()
    matrices, rows, columns = right.shape
    room = right.new_empty(torch.get_num_threads(), rows, columns)
    of_other, of_product, diagonal = (float_bits(factor) for factor in mixture[1:])
    places = SquarePlaces(
        left=left.data_ptr(),
        right=right.data_ptr(),
        other=address_of(other),
        out=out.data_ptr(),
        matrices=matrices,
        rows=rows,
        columns=columns,
        of_other=of_other,
        of_product=of_product,
        diagonal=diagonal,
        room=room.data_ptr(),
    )
    _programs(own_pair_tile())[name].run(*places)
    return out


@cache
def _programs(tile: Tile) -> dict[str, Program]:
    k = new_emitter("squares", tile)
    SquareWriter(k, multiplier_of(tile)).write()
    return compile_programs(k, SquareWriter.names)
