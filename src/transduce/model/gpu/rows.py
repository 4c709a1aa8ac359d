"""Run row-wise operations of training on a GPU by Triton kernels: dropout, sums over rows, vocabulary softmax.

Each kernel reads its inputs once and writes its result once: memory bandwidth limits such operations.

Legend: N rows, D columns, V vocabulary size.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.gpu.programs import rows as programs
from transduce.model.gpu.seeds import next_seed
from transduce.model.gpu.sizes import ceil_div, power_of_2

_EIGHTS = 256  # groups of 8 elements per program of dropout
_SUM_ROWS, _SUM_COLUMNS, _ROWS_EACH = 32, 128, 256  # of sums: block of a program, and its rows in all


def drop_and_add(residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
    """Return residual + dropout(x), where `drop_of_256` of 256 elements are dropped."""
    return DropNode.apply(residual, x, drop_of_256)  # type: ignore[no-any-return,no-untyped-call]


class DropNode(torch.autograd.Function):
    """Dropout and addition as an autograd function that keeps only the seed: the backward pass regenerates the mask."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
        ctx.seed, ctx.drop_of_256 = next_seed(), drop_of_256
        ctx.has_residual = residual is not None
        return _drop(ctx, None if residual is None else residual.contiguous(), x.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        return gradients[0] if ctx.has_residual else None, _drop(ctx, None, gradients[0].contiguous()), None


def _drop(ctx: Any, residual: Tensor | None, x: Tensor) -> Tensor:
    """Run the dropout kernel with the seed and rate of an autograd context."""
    out, count = torch.empty_like(x), x.numel()
    residual_or_x, has_residual = (x, False) if residual is None else (residual, True)
    scale = 256.0 / (256 - ctx.drop_of_256)
    grid = (ceil_div(count, 8 * _EIGHTS),)
    is_address = isinstance(ctx.seed, Tensor)
    programs.drop[grid](
        residual_or_x, x, out, ctx.seed, count, ctx.drop_of_256, scale, has_residual, is_address, _EIGHTS
    )
    return out


def add_sum_of_rows(x: Tensor, total: Tensor) -> None:
    """Add the sum of the rows of x (N, D) to total, float32 (D,)."""
    _sum(x, x, x, total, masked=False)


def positive_rows(x: Tensor, kept: Tensor, total: Tensor) -> Tensor:
    """Return x where `kept`, of the same shape, is positive, else 0.

    Also adds the sum of the result's rows to total, float32 (D,).
    """
    out = torch.empty_like(x)
    _sum(x, kept, out, total, masked=True)
    return out


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D), float32 (D,)."""
    total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
    add_sum_of_rows(x.contiguous(), total)
    return total


def _sum(x: Tensor, kept: Tensor, out: Tensor, total: Tensor, *, masked: bool) -> None:
    """Run the kernel that sums rows."""
    count, width = x.shape
    grid = (ceil_div(width, _SUM_COLUMNS), ceil_div(count, _ROWS_EACH))
    programs.sum_rows[grid](x, kept, out, total, count, width, _ROWS_EACH, masked, _SUM_ROWS, _SUM_COLUMNS)


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """Add factor · part[n] (N, D) to total[ids[n]] (V, D), except to the frozen row."""
    width = part.shape[-1]
    block = min(1024, power_of_2(width))
    frozen = -1 if frozen_row is None else frozen_row
    grid = (ids.numel(), ceil_div(width, block))
    programs.add_rows[grid](total, ids.contiguous(), part.contiguous(), factor, frozen, width, block)


def softmax_(logits: Tensor) -> Tensor:
    """Replace logits (N, V) by their softmax, and return each row's log-sum-exp, float32 (N,)."""
    normalizers = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    block = min(4096, power_of_2(logits.shape[1]))
    programs.softmax_[(len(logits),)](logits, normalizers, logits.shape[1], block, num_warps=8 if block > 1024 else 4)
    return normalizers
