"""Rotations of queries and keys in machine code, as PyTorch's automatic differentiation sees them.

Legend: B sentences, T positions, C columns of a row, K width of a head.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, own_tile, program
from transduce.model.native.fused_rows import KINDS, suits_logits
from transduce.model.native.position_tables import turn_head
from transduce.model.native.tile import Tile
from transduce.model.positions import Rotation


class _Places(NamedTuple):
    """The numbers of the program."""

    x: Any
    """(B × T, C)."""
    out: Any
    """(B × T, C)."""
    rows: Any
    """A number: B × T."""
    columns: Any
    """A number: C."""
    heads: Any
    """A number: how many are turned, the first of each row."""
    length: Any
    """A number: T."""
    angles: Any
    """float32, cosines, then sines, (T, K)."""


def suits_turning(x: Tensor, width: int) -> bool:
    """See `backend.TrainingKernels`."""
    tile = find_tile()
    return tile is not None and width % (2 * tile.lanes) == 0 and suits_logits(x)


def turn(projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
    """See `backend.TrainingKernels`."""
    length, half = rotation.cosine.shape
    if projected.shape[1] != length or projected.shape[2] < 2 * half * heads:
        raise ValueError(f"{heads} heads of {2 * half} at {length} positions are not in {tuple(projected.shape)}")
    angles = torch.cat([rotation.cosine, rotation.sine], dim=1).float()
    found: Tensor = _Turn.apply(projected, angles, heads, rotation.interleaved)  # type: ignore[no-untyped-call]
    return found


class _Turn(torch.autograd.Function):
    """The gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor, heads: int, interleaved: bool) -> Tensor:
        ctx.save_for_backward(angles)
        ctx.heads, ctx.interleaved = heads, interleaved
        return _run(x, angles, heads, interleaved=interleaved)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (angles,) = ctx.saved_tensors
        cosine, sine = angles.chunk(2, dim=1)
        back = torch.cat([cosine, -sine], dim=1)
        return _run(gradients[0].contiguous(), back, ctx.heads, interleaved=ctx.interleaved), None, None, None


def _run(x: Tensor, angles: Tensor, heads: int, *, interleaved: bool) -> Tensor:
    out = torch.empty_like(x)
    length, width = angles.shape
    run = _program_of(x.dtype, own_tile(), width, interleaved=interleaved).run
    run(*_Places(x.data_ptr(), out.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], heads, length, angles.data_ptr()))
    return out


@cache
def _program_of(dtype: torch.dtype, tile: Tile, width: int, *, interleaved: bool) -> Program:
    """Heads of this width turned, the rest of each row copied."""
    k, kind = new_emitter("turning", tile), KINDS[dtype]
    with program(k, "turn", len(_Places._fields)) as (numbers, *share):
        given = _Places(*numbers)
        first, last = k.share(given.rows, *share)
        with k.loop(first, last) as row:
            angles = k.at(k.place(given.angles), k.times(k.build.srem(row, given.length), width))
            places = [k.at(k.place(each), k.times(row, given.columns), kind) for each in (given.x, given.out)]
            with k.loop(0, given.heads) as head:
                column = k.times(head, width)
                source, target = (k.at(place, column, kind) for place in places)
                turn_head(k, width, (source, target), angles, interleaved=interleaved, kind=kind)
            with k.loop(k.times(given.heads, width), given.columns, k.lanes) as column:
                k.store_narrow(k.load_wide(places[0], column, kind), places[1], column, kind)
    return compile_programs(k, ("turn",))["turn"]
