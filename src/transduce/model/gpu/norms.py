"""LayerNorm and RMSNorm on a GPU.

Legend: N rows, D columns.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.gpu.programs import norms as programs
from transduce.model.gpu.sizes import ceil_div, power_of_2
from transduce.model.gradient_sums import sum_of_gradients

# The way back: programs that go over all rows together, and what each takes at a time. Few, as they add what they have
# summed where all others do.
_PROGRAMS, _ELEMENTS, _WARPS = 132 * 2, 4096, 4


def fork_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """See `backend.TrainingKernels`."""
    return NormNode.apply(x, weight, bias, epsilon)  # type: ignore[no-any-return,no-untyped-call]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """See `backend.TrainingKernels`."""
    return fork_norm(x, weight, bias, epsilon)[1]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """See `backend.TrainingKernels`."""
    return fork_norm(x, weight, None, epsilon)[1]


def add_and_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """x + y, both contiguous, and its norm, without a gradient: LayerNorm's, or without a bias RMSNorm's."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    count, width = x.numel() // x.shape[-1], x.shape[-1]
    rows, block, warps = _shape(width)
    shift, centered = (weight, False) if bias is None else (bias, True)
    programs.add_and_norm[(ceil_div(count, rows),)](
        x, y, weight, shift, total, out, count, width, epsilon, centered, rows, block, num_warps=warps
    )
    return total, out


class NormNode(torch.autograd.Function):
    """x itself, and its norm: the gradient by x, which a residual connection leads on, is added in the same pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        flat = x.contiguous()
        count, width = flat.numel() // flat.shape[-1], flat.shape[-1]
        out = torch.empty_like(flat)
        means, roots = torch.empty(2, count, dtype=torch.float32, device=x.device)
        rows, block, warps = _shape(width)
        shift, centered = (weight, False) if bias is None else (bias, True)
        programs.norm[(ceil_div(count, rows),)](
            flat, weight, shift, out, means, roots, count, width, epsilon, centered, rows, block, num_warps=warps
        )
        ctx.save_for_backward(flat, weight, means, roots)
        ctx.centered = centered
        ctx.slots = sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias)
        return x, out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        by_kept, by_out = gradients
        if by_out is None:
            return by_kept, None, None, None
        x, weight, means, roots = ctx.saved_tensors
        count, width = x.numel() // x.shape[-1], x.shape[-1]
        by_x, by_out = torch.empty_like(x), by_out.contiguous()
        by_weight, by_bias = (
            torch.zeros_like(weight, dtype=torch.float32) if slot is None else slot for slot in ctx.slots
        )
        block = power_of_2(width)
        rows, warps = max(1, _ELEMENTS // block), max(_WARPS, block // 1024)
        kept, is_kept = (by_out, False) if by_kept is None else (by_kept.contiguous(), True)
        programs.norm_back[(min(_PROGRAMS, ceil_div(count, rows)),)](
            x, weight, by_out, kept, means, roots, by_x, by_weight, by_bias, count, width,
            ctx.centered, is_kept, rows, block, num_warps=warps,
        )  # fmt: skip
        own = by_weight.to(weight.dtype) if ctx.slots[0] is None else None
        own_bias = by_bias.to(weight.dtype) if ctx.centered and ctx.slots[1] is None else None
        return by_x, own, own_bias, None


def _shape(width: int) -> tuple[int, int, int]:
    """Rows at a time, their width as a power of two, and warps: a row to a warp, or few, waits for no other warp."""
    block = power_of_2(width)
    return max(1, 1024 // block), block, max(1, block // 1024)
