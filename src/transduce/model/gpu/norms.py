"""Run LayerNorm and RMSNorm on a GPU by Triton kernels.

Legend: N rows, D columns.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.gpu.programs import norms as programs
from transduce.model.gpu.sizes import ceil_div, power_of_2
from transduce.model.gradient_sums import sum_of_gradients

# The backward pass: number of programs, elements per iteration, and warps. Programs are few, as all of them add their
# weight and bias gradients to the same sums.
_PROGRAMS, _ELEMENTS, _WARPS = 132 * 2, 4096, 4


def fork_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x and its norm: LayerNorm, or RMSNorm without a bias; see `backend.TrainingKernels.fork_norm`."""
    return NormNode.apply(x, weight, bias, epsilon)  # type: ignore[no-any-return,no-untyped-call]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Apply LayerNorm over the last dimension of x."""
    return fork_norm(x, weight, bias, epsilon)[1]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Apply RMSNorm over the last dimension of x."""
    return fork_norm(x, weight, None, epsilon)[1]


def add_and_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x + y and its norm (LayerNorm, or RMSNorm without a bias), without gradients; x and y are contiguous."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    count, width = x.numel() // x.shape[-1], x.shape[-1]
    rows, block, warps = _launch_shape(width)
    shift, centered = (weight, False) if bias is None else (bias, True)
    programs.add_and_norm[(ceil_div(count, rows),)](
        x, y, weight, shift, total, out, count, width, epsilon, centered, rows, block, num_warps=warps
    )
    return total, out


class NormNode(torch.autograd.Function):
    """A norm as an autograd function that returns x and norm(x), for residual connections.

    The backward pass adds the gradient of the returned x in the same pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        flat = x.contiguous()
        count, width = flat.numel() // flat.shape[-1], flat.shape[-1]
        out = torch.empty_like(flat)
        means, roots = torch.empty(2, count, dtype=torch.float32, device=x.device)
        rows, block, warps = _launch_shape(width)
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
        by_residual, by_out = gradients
        if by_out is None:
            return by_residual, None, None, None
        x, weight, means, roots = ctx.saved_tensors
        count, width = x.numel() // x.shape[-1], x.shape[-1]
        by_x, by_out = torch.empty_like(x), by_out.contiguous()
        by_weight, by_bias = (
            torch.zeros_like(weight, dtype=torch.float32) if gradient_sum is None else gradient_sum
            for gradient_sum in ctx.slots
        )
        block = power_of_2(width)
        rows, warps = max(1, _ELEMENTS // block), max(_WARPS, block // 1024)
        residual_gradient, has_residual = (by_out, False) if by_residual is None else (by_residual.contiguous(), True)
        programs.norm_back[(min(_PROGRAMS, ceil_div(count, rows)),)](
            x, weight, by_out, residual_gradient, means, roots, by_x, by_weight, by_bias, count, width,
            ctx.centered, has_residual, rows, block, num_warps=warps,
        )  # fmt: skip
        weight_gradient = by_weight.to(weight.dtype) if ctx.slots[0] is None else None
        bias_gradient = by_bias.to(weight.dtype) if ctx.centered and ctx.slots[1] is None else None
        return by_x, weight_gradient, bias_gradient, None


def _launch_shape(width: int) -> tuple[int, int, int]:
    """Return rows per program, their width rounded up to a power of two, and warps.

    A row uses few warps, so that they rarely wait for one another.
    """
    block = power_of_2(width)
    return max(1, 1024 // block), block, max(1, block // 1024)
