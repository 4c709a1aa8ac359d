"""Provide rotary embeddings for training as a PyTorch autograd function.

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


class _Arguments(NamedTuple):
    """Arguments of the kernel."""

    x: Any
    """Address of the input, (B × T, C)."""
    out: Any
    """Address of the output, (B × T, C)."""
    rows: Any
    """The number of rows B × T."""
    columns: Any
    """The number of columns C."""
    heads: Any
    """The number of heads to rotate, the first ones of each row."""
    length: Any
    """The number of positions T."""
    angles: Any
    """Address of float32 cosines, then sines, (T, K)."""


def suits_turning(x: Tensor, width: int) -> bool:
    """Return whether `turn` takes heads of this width, in x's dtype and on its device."""
    tile = find_tile()
    return tile is not None and width % (2 * tile.lanes) == 0 and suits_logits(x)


def turn(projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
    """Rotate the first `heads` heads of each row by its position (rotary embedding), and copy the rest.

    Args:
        projected: (B, T, C).
        rotation: the angles, (T, K / 2).
        heads: the number of heads to rotate.

    Returns:
        (B, T, C).
    """
    length, half = rotation.cosine.shape
    if projected.shape[1] != length or projected.shape[2] < 2 * half * heads:
        raise ValueError(f"{heads} heads of {2 * half} at {length} positions are not in {tuple(projected.shape)}")
    angles = torch.cat([rotation.cosine, rotation.sine], dim=1).float()
    out: Tensor = _Rotate.apply(projected, angles, heads, rotation.interleaved)  # type: ignore[no-untyped-call]
    return out


class _Rotate(torch.autograd.Function):
    """Rotary embedding as an autograd function whose gradient is rotated by the opposite angles."""

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
        inverse_angles = torch.cat([cosine, -sine], dim=1)
        return _run(gradients[0].contiguous(), inverse_angles, ctx.heads, interleaved=ctx.interleaved), None, None, None


def _run(x: Tensor, angles: Tensor, heads: int, *, interleaved: bool) -> Tensor:
    """Run the rotation kernel on x (B, T, C) with angles (T, K)."""
    out = torch.empty_like(x)
    length, width = angles.shape
    run = _rotation_kernel(x.dtype, own_tile(), width, interleaved=interleaved).run
    run(
        *_Arguments(
            x.data_ptr(), out.data_ptr(), x.numel() // x.shape[-1], x.shape[-1], heads, length, angles.data_ptr()
        )
    )
    return out


@cache
def _rotation_kernel(dtype: torch.dtype, tile: Tile, width: int, *, interleaved: bool) -> Program:
    """Compile the kernel for heads of this width; the columns behind the rotated heads are copied."""
    k, kind = new_emitter("turning", tile), KINDS[dtype]
    with program(k, "turn", len(_Arguments._fields)) as (numbers, *share):
        args = _Arguments(*numbers)
        first, last = k.share(args.rows, *share)
        with k.loop(first, last) as row:
            angles = k.at(k.place(args.angles), k.times(k.build.srem(row, args.length), width))
            pointers = [k.at(k.place(each), k.times(row, args.columns), kind) for each in (args.x, args.out)]
            with k.loop(0, args.heads) as head:
                column = k.times(head, width)
                source, target = (k.at(place, column, kind) for place in pointers)
                turn_head(k, width, (source, target), angles, interleaved=interleaved, kind=kind)
            with k.loop(k.times(args.heads, width), args.columns, k.lanes) as column:
                k.store_narrow(k.load_wide(pointers[0], column, kind), pointers[1], column, kind)
    return compile_programs(k, ("turn",))["turn"]
