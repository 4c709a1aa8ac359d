"""Embeddings in machine code, as PyTorch's automatic differentiation sees them.

PyTorch's gradient by embeddings is a matrix of the whole vocabulary, nearly all zeros, for each use of it: for a model
of 6 + 6 layers × 512 with 8,000 pieces to make and add these took an eighth of all that is no matrix product.
Legend: N positions, D model width, V vocabulary.
"""

from functools import cache

import torch
from torch import Tensor

from transduce.model.gradient_sums import RowSums, embed_rows, sum_of_gradients
from transduce.model.native.engine import Program, compile_programs, float_bits, new_emitter, own_tile
from transduce.model.native.fused_rows import KINDS
from transduce.model.native.tile import Tile
from transduce.model.native.training_scatter import ScatterPlaces, ScatterWriter


def embed(ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
    """See `backend.TrainingKernels`."""
    return embed_rows(ids, weight, RowSums(scale, frozen_row, sum_of_gradients(weight), add_rows_in_place))


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """See `backend.TrainingKernels`."""
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


@cache
def _programs(dtype: torch.dtype, tile: Tile) -> dict[str, Program]:
    k = new_emitter("scatter", tile)
    ScatterWriter(k, KINDS[dtype]).write()
    return compile_programs(k, ScatterWriter.names)
