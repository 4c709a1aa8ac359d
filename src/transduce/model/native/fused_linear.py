"""Provide linear layers for training as a PyTorch autograd function, with fused bias, ReLU and gradient sums.

The GEMMs are compiled kernels where these are faster (`fused_products.py`), else PyTorch's. PyTorch alone takes
separate passes for the bias gradient and the ReLU mask. It also computes the weight gradient in bfloat16 first, and
adds it up in float32 afterwards.

Legend: N positions, I inputs and O outputs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.backend import Rows
from transduce.model.gradient_sums import LinearSums, in_kind_of, known_or_new, linear_sums
from transduce.model.native.engine import find_tile
from transduce.model.native.fused_products import Sums, multiply, multiply_back, suits_product
from transduce.model.native.fused_rows import KINDS, add_in_place, sum_columns


def suits_linear(x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
    """Return whether `linear` takes this input, this weight and these rows of it."""
    tile = find_tile()
    kinds = x.dtype == weight.dtype and x.dtype in KINDS and x.device.type == weight.device.type == "cpu"
    if tile is None or not kinds or not weight.is_contiguous() or x.shape[-1] != weight.shape[1]:
        return False
    start, stop = rows or Rows(0, len(weight))
    return start % tile.lanes == stop % tile.lanes == weight.shape[1] % tile.lanes == 0 and x.numel() > 0


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
) -> Tensor:
    """Return activation(x · weightᵀ + bias); see `backend.TrainingKernels.linear` for the shapes."""
    sums = linear_sums(weight, bias, rows, activation=activation)
    out: Tensor = _Linear.apply(x.contiguous(), weight, bias, sums)  # type: ignore[no-untyped-call]
    return out


class _Linear(torch.autograd.Function):
    """A linear layer as an autograd function that adds weight and bias gradients to float32 sums where these exist."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: LinearSums) -> Tensor:
        rows = slice(*options.rows)
        flat, rows_of_weight, rows_of_bias = x.view(-1, x.shape[-1]), weight[rows], None if bias is None else bias[rows]
        if suits_product(flat, rows_of_weight):
            out = multiply(flat, rows_of_weight, rows_of_bias, activation=options.activation).view(
                *x.shape[:-1], len(rows_of_weight)
            )
        else:
            out = F.linear(x, rows_of_weight, rows_of_bias)
            out = out.relu_() if options.activation == "relu" else out
        ctx.options = options
        ctx.save_for_backward(x, weight, bias, None if options.activation is None else out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_saved, weight, bias, out = ctx.saved_tensors
        options: LinearSums = ctx.options
        rows, (needs_x, needs_weight, needs_bias) = slice(*options.rows), ctx.needs_input_grad[:3]
        x, gradient = x_saved.view(-1, x_saved.shape[-1]), gradients[0].contiguous().view(-1, gradients[0].shape[-1])
        gate = None if out is None else out.view_as(gradient)
        total, by_weight = known_or_new(options.weight_sum, weight) if needs_weight else (None, None)
        bias_total, by_bias = known_or_new(options.bias_sum, bias) if needs_bias else (None, None)
        sums = Sums(*(None if each is None else each[rows] for each in (total, bias_total)))
        if suits_product(x, weight[rows]):
            if gate is not None:
                gradient = torch.ops.aten.threshold_backward(gradient, gate, 0.0)
            by_x = multiply_back(gradient, x, weight[rows], sums, by_x=needs_x)
        else:
            by_x = _backward_by_pytorch(gradient, x, weight[rows], gate, sums, by_x=needs_x)
        by_x = None if by_x is None else by_x.view_as(x_saved)
        return by_x, in_kind_of(weight, by_weight), in_kind_of(bias, by_bias), None


def _backward_by_pytorch(
    gradient: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, sums: Sums, *, by_x: bool
) -> Tensor | None:
    """Compute the gradients of a linear layer by PyTorch's GEMM: see `fused_products.multiply_back`."""
    if gate is not None or sums.bias is not None:
        gradient, columns = sum_columns(gradient, gate)
        if sums.bias is not None:
            sums.bias.add_(columns)
    if sums.weight is not None:
        _add_matmul(sums.weight, gradient.t(), x)
    return gradient @ weight if by_x else None


def _add_matmul(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to total, in place."""
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    else:
        add_in_place(total, left @ right)
