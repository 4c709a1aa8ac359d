"""What looks at one position at a time, on a GPU: dropout, sums over rows, the softmax over a vocabulary.

Each program reads what it needs once and writes its result once, which is all that such operations take time for.
Legend: N rows, D columns, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.gpu.programs import rows as programs
from transduce.model.gpu.seeds import next_seed
from transduce.model.gpu.sizes import ceil_div, power_of_2

_EIGHTS = 256  # times 8 elements that a program of dropout takes
_SUM_ROWS, _SUM_COLUMNS, _ROWS_EACH = 32, 128, 256  # of sums: at a time, and in all, by one program


def drop_and_add(residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
    """See `backend.TrainingKernels`."""
    return DropNode.apply(residual, x, drop_of_256)  # type: ignore[no-any-return,no-untyped-call]


class DropNode(torch.autograd.Function):
    """residual + dropout(x). Only the seed is kept: what was dropped is found anew."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_of_256: int) -> Tensor:
        ctx.seed, ctx.drop_of_256 = next_seed(), drop_of_256
        ctx.has_residual = residual is not None
        return _drop(ctx, None if residual is None else residual.contiguous(), x.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        return gradients[0] if ctx.has_residual else None, _drop(ctx, None, gradients[0].contiguous()), None


def _drop(ctx: Any, residual: Tensor | None, x: Tensor) -> Tensor:
    out, count = torch.empty_like(x), x.numel()
    base, has_residual = (x, False) if residual is None else (residual, True)
    scale = 256.0 / (256 - ctx.drop_of_256)
    grid = (ceil_div(count, 8 * _EIGHTS),)
    is_place = isinstance(ctx.seed, Tensor)
    programs.drop[grid](base, x, out, ctx.seed, count, ctx.drop_of_256, scale, has_residual, is_place, _EIGHTS)
    return out


def add_sum_of_rows(x: Tensor, total: Tensor) -> None:
    """total += what the rows of x, (N, D), add up to; float32, (D,)."""
    _sum(x, x, x, total, masked=False)


def positive_rows(x: Tensor, kept: Tensor, total: Tensor) -> Tensor:
    """x where `kept`, as large, is positive, else 0; and total += what those rows add up to: float32, (D,)."""
    out = torch.empty_like(x)
    _sum(x, kept, out, total, masked=True)
    return out


def sum_rows(x: Tensor) -> Tensor:
    """See `backend.TrainingKernels`."""
    total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
    add_sum_of_rows(x.contiguous(), total)
    return total


def _sum(x: Tensor, kept: Tensor, out: Tensor, total: Tensor, *, masked: bool) -> None:
    count, width = x.shape
    grid = (ceil_div(width, _SUM_COLUMNS), ceil_div(count, _ROWS_EACH))
    programs.sum_rows[grid](x, kept, out, total, count, width, _ROWS_EACH, masked, _SUM_ROWS, _SUM_COLUMNS)


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """See `backend.TrainingKernels`."""
    width = part.shape[-1]
    block = min(1024, power_of_2(width))
    frozen = -1 if frozen_row is None else frozen_row
    grid = (ids.numel(), ceil_div(width, block))
    programs.add_rows[grid](total, ids.contiguous(), part.contiguous(), factor, frozen, width, block)


def softmax_(logits: Tensor) -> Tensor:
    """See `backend.TrainingKernels`."""
    normalizers = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    block = min(4096, power_of_2(logits.shape[1]))
    programs.softmax_[(len(logits),)](logits, normalizers, logits.shape[1], block, num_warps=8 if block > 1024 else 4)
    return normalizers
