"""Dropout, softmax and sums in machine code, as PyTorch's automatic differentiation sees them.

Legend: N rows, D model width, V vocabulary.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.native.emit import F32, I16
from transduce.model.native.engine import (
    Program,
    compile_programs,
    find_tile,
    new_emitter,
    own_tile,
)
from transduce.model.native.tile import Tile
from transduce.model.native.training_rows import (
    AddPlaces,
    DropPlaces,
    RowWriter,
    SoftmaxPlaces,
    SumPlaces,
)

KINDS = {torch.float32: F32, torch.bfloat16: I16}


def suits_rows(x: Tensor) -> bool:
    """See `backend.TrainingKernels`."""
    tile = find_tile()
    return tile is not None and x.shape[-1] % tile.lanes == 0 and suits_logits(x)


def suits_logits(logits: Tensor) -> bool:
    """See `backend.TrainingKernels`."""
    kind_fits = logits.device.type == "cpu" and logits.dtype in KINDS and find_tile() is not None
    return kind_fits and logits.is_contiguous() and logits.numel() > 0


def drop_and_add(residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
    """See `backend.TrainingKernels`."""
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(f"a residual of {describe(residual)} cannot be added to {describe(x)}")
    found: Tensor = DropNode.apply(residual, x, drop_of_256)  # type: ignore[no-untyped-call]
    return found


def softmax_(logits: Tensor) -> Tensor:
    """See `backend.TrainingKernels`."""
    rows, width = logits.shape
    normalizers = torch.empty(rows, dtype=torch.float32)
    room = torch.empty(torch.get_num_threads(), width + own_tile().lanes, dtype=torch.float32)
    places = SoftmaxPlaces(logits.data_ptr(), rows, width, normalizers.data_ptr(), room.data_ptr())
    row_programs(logits.dtype)["softmax"].run(*places)
    return normalizers


def sum_columns(x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """What rows of x, (N, D), add up to, float32 (D,), and x as it was counted: as zero where the gate, (N, D), is not
    positive.
    """
    counted = x if gate is None else torch.empty_like(x)
    sums = torch.zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float32)
    open_where, kept = (0, 0) if gate is None else (gate.data_ptr(), counted.data_ptr())
    rows, width = x.shape
    row_programs(x.dtype)["sum_columns"].run(*SumPlaces(x.data_ptr(), rows, width, sums.data_ptr(), open_where, kept))
    return counted, sums.sum(dim=0)


def sum_rows(x: Tensor) -> Tensor:
    """See `backend.TrainingKernels`."""
    return sum_columns(x, None)[1]


def add_in_place(total: Tensor, part: Tensor) -> None:
    """See `backend.TrainingKernels`."""
    if (total.shape, total.dtype) != (part.shape, torch.float32) or not total.is_contiguous():
        raise ValueError(f"{describe(part)} cannot be added to {describe(total)}")
    part = part.contiguous()
    row_programs(part.dtype)["add"].run(*AddPlaces(total.data_ptr(), part.data_ptr(), part.numel()))


def describe(x: Tensor) -> str:
    """For a message."""
    return f"{x.dtype} {tuple(x.shape)}"


class DropNode(torch.autograd.Function):
    """Which elements are dropped is known by a seed, which the gradient takes up again: no mask is stored."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
        seed = int(torch.empty((), dtype=torch.int64).random_())
        ctx.seed, ctx.drop_of_256 = seed, drop_of_256
        return _drop(x, None if residual is None else residual.contiguous(), seed, drop_of_256)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        gradient = gradients[0].contiguous()
        by_residual = gradient if ctx.needs_input_grad[0] else None
        return by_residual, _drop(gradient, None, ctx.seed, ctx.drop_of_256), None


def _drop(x: Tensor, residual: Tensor | None, seed: int, drop_of_256: int) -> Tensor:
    out = torch.empty_like(x)
    added = 0 if residual is None else residual.data_ptr()
    row_programs(x.dtype)["drop"].run(*DropPlaces(x.data_ptr(), added, out.data_ptr(), x.numel(), seed, drop_of_256))
    return out


@cache
def _programs_of(dtype: torch.dtype, tile: Tile) -> dict[str, Program]:
    k = new_emitter("rows", tile)
    RowWriter(k, KINDS[dtype]).write()
    return compile_programs(k, RowWriter.names)


def row_programs(dtype: torch.dtype) -> dict[str, Program]:
    """Of `RowWriter`."""
    return _programs_of(dtype, own_tile())
