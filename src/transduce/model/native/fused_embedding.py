"""Embeddings in machine code, as PyTorch's automatic differentiation sees them.

PyTorch's gradient by embeddings is a matrix of the whole vocabulary, nearly all zeros, for each use of it: for a model
of 6 + 6 layers × 512 with 8,000 pieces to make and add these took an eighth of all that is no matrix product.
Legend: N positions, D model width, V vocabulary.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.gradient_sums import sum_of_gradients
from transduce.model.native.engine import Program, compile_programs, float_bits, new_emitter, own_tile
from transduce.model.native.fused_rows import KINDS
from transduce.model.native.tile import Tile
from transduce.model.native.training_scatter import ScatterPlaces, ScatterWriter


def embed(ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
    """See `fused.TrainingKernels`."""
    options = _Options(scale, frozen_row, sum_of_gradients(weight))
    found: Tensor = _Embed.apply(ids, weight, options)  # type: ignore[no-untyped-call]
    return found


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """See `fused.TrainingKernels`."""
    ids, part = ids.flatten().contiguous(), part.reshape(-1, part.shape[-1]).contiguous()
    fits = total.dim() == 2 and total.shape[1:] == part.shape[1:] and len(ids) == len(part)
    if not fits or total.dtype != torch.float32 or ids.dtype != torch.int64 or not total.is_contiguous():
        raise ValueError(
            f"rows of {part.dtype} {tuple(part.shape)} cannot be added by {ids.dtype} {tuple(ids.shape)} "
            f"to {total.dtype} {tuple(total.shape)}"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(total):
        raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} of a matrix of {len(total)}")
    places = ScatterPlaces(
        total=total.data_ptr(),
        ids=ids.data_ptr(),
        part=part.data_ptr(),
        rows=len(ids),
        width=part.shape[1],
        factor=float_bits(factor),
        frozen=-1 if frozen_row is None else frozen_row,
    )
    _programs(part.dtype, own_tile())["scatter"].run(*places)


class _Options(NamedTuple):
    scale: float
    frozen_row: int | None
    weight_sum: Tensor | None


class _Embed(torch.autograd.Function):
    """The rows' gradients are added to the matrix' sum in float32 if there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, options: _Options) -> Tensor:
        ctx.options, ctx.shape, ctx.dtype = options, weight.shape, weight.dtype
        ctx.save_for_backward(ids)
        rows = F.embedding(ids, weight)
        return rows if options.scale == 1.0 else rows.mul_(options.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        (ids,) = ctx.saved_tensors
        scale, frozen_row, known = ctx.options
        total = torch.zeros(ctx.shape, dtype=torch.float32) if known is None else known
        add_rows_in_place(total, ids, gradients[0], scale, frozen_row)
        return None, (total.to(ctx.dtype) if known is None else None), None


@cache
def _programs(dtype: torch.dtype, tile: Tile) -> dict[str, Program]:
    k = new_emitter("scatter", tile)
    ScatterWriter(k, KINDS[dtype]).write()
    return compile_programs(k, ScatterWriter.names)
