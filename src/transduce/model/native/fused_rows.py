"""Run the compiled row-wise kernels of training: dropout as an autograd function, softmax, and sums.

Legend: N rows, D model width, V vocabulary size.
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
"""LLVM types of the supported dtypes."""


def suits_rows(x: Tensor) -> bool:
    """Return whether the row-wise kernels take x: its width, dtype, device and layout."""
    tile = find_tile()
    return tile is not None and x.shape[-1] % tile.lanes == 0 and suits_logits(x)


def suits_logits(logits: Tensor) -> bool:
    """Return whether `softmax_` takes these logits."""
    kind_fits = logits.device.type == "cpu" and logits.dtype in KINDS and find_tile() is not None
    return kind_fits and logits.is_contiguous() and logits.numel() > 0


def drop_and_add(residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
    """Return residual + dropout(x), where `drop_of_256` of 256 elements are dropped."""
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(f"a residual of {describe(residual)} cannot be added to {describe(x)}")
    out: Tensor = DropNode.apply(residual, x, drop_of_256)  # type: ignore[no-untyped-call]
    return out


def softmax_(logits: Tensor) -> Tensor:
    """Replace logits (N, V) by their softmax, and return each row's log-sum-exp, float32 (N,)."""
    rows, width = logits.shape
    normalizers = torch.empty(rows, dtype=torch.float32)
    scratch = torch.empty(torch.get_num_threads(), width + own_tile().lanes, dtype=torch.float32)
    arguments = SoftmaxPlaces(logits.data_ptr(), rows, width, normalizers.data_ptr(), scratch.data_ptr())
    row_programs(logits.dtype)["softmax"].run(*arguments)
    return normalizers


def sum_columns(x: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum the rows of x (N, D); return x after gating, and the sums, float32 (D,).

    Elements count as zero where the gate (N, D), if any, is not positive.
    """
    gated = x if gate is None else torch.empty_like(x)
    sums = torch.zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float32)
    gate_address, gated_address = (0, 0) if gate is None else (gate.data_ptr(), gated.data_ptr())
    rows, width = x.shape
    row_programs(x.dtype)["sum_columns"].run(
        *SumPlaces(x.data_ptr(), rows, width, sums.data_ptr(), gate_address, gated_address)
    )
    return gated, sums.sum(dim=0)


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D), float32 (D,)."""
    return sum_columns(x, None)[1]


def add_in_place(total: Tensor, part: Tensor) -> None:
    """Add `part` to the float32 tensor `total`, in place."""
    if (total.shape, total.dtype) != (part.shape, torch.float32) or not total.is_contiguous():
        raise ValueError(f"{describe(part)} cannot be added to {describe(total)}")
    part = part.contiguous()
    row_programs(part.dtype)["add"].run(*AddPlaces(total.data_ptr(), part.data_ptr(), part.numel()))


def describe(x: Tensor) -> str:
    """Return a tensor's dtype and shape for a message."""
    return f"{x.dtype} {tuple(x.shape)}"


class DropNode(torch.autograd.Function):
    """Dropout and addition as an autograd function that keeps only the seed: the backward pass regenerates the mask."""

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
    """Run the kernel `drop`."""
    out = torch.empty_like(x)
    residual_address = 0 if residual is None else residual.data_ptr()
    row_programs(x.dtype)["drop"].run(
        *DropPlaces(x.data_ptr(), residual_address, out.data_ptr(), x.numel(), seed, drop_of_256)
    )
    return out


@cache
def _kernels_of(dtype: torch.dtype, tile: Tile) -> dict[str, Program]:
    """Compile the kernels of `RowWriter`."""
    k = new_emitter("rows", tile)
    RowWriter(k, KINDS[dtype]).write()
    return compile_programs(k, RowWriter.names)


def row_programs(dtype: torch.dtype) -> dict[str, Program]:
    """Return the compiled kernels of `RowWriter` for a dtype."""
    return _kernels_of(dtype, own_tile())
