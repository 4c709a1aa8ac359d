"""Products with learnt matrices, with what surrounds them in machine code, for PyTorch's automatic differentiation.

The products are PyTorch's library's. Of the rest PyTorch makes passes of its own: the sums of the gradient by the bias,
where ReLU was closed, and the gradient by the matrix once in bfloat16 and once more as it is added up in float32.
Legend: N positions, I inputs and O outputs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.fused import Rows, sum_of_gradients
from transduce.model.native.engine import find_tile
from transduce.model.native.fused_rows import KINDS, add_in_place, sum_columns


def suits_linear(x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
    """See `fused.TrainingKernels`."""
    tile = find_tile()
    kinds = x.dtype == weight.dtype and x.dtype in KINDS and x.device.type == weight.device.type == "cpu"
    if tile is None or not kinds or not weight.is_contiguous() or x.shape[-1] != weight.shape[1]:
        return False
    start, stop = rows or Rows(0, len(weight))
    return start % tile.lanes == stop % tile.lanes == weight.shape[1] % tile.lanes == 0 and x.numel() > 0


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, relu: bool) -> Tensor:
    """See `fused.TrainingKernels`."""
    rows = rows or Rows(0, len(weight))
    if not 0 <= rows.start < rows.stop <= len(weight):
        raise ValueError(f"{rows} of a matrix of {len(weight)} rows")
    sums = sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias)
    found: Tensor = _Linear.apply(x.contiguous(), weight, bias, _Options(rows, relu, *sums))  # type: ignore[no-untyped-call]
    return found


class _Options(NamedTuple):
    rows: Rows
    relu: bool
    weight_sum: Tensor | None
    bias_sum: Tensor | None


class _Linear(torch.autograd.Function):
    """Gradients by weight and bias are added to their sums in float32 if there are any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> Tensor:
        rows = slice(*options.rows)
        out = F.linear(x, weight[rows], None if bias is None else bias[rows])
        out = out.relu_() if options.relu else out
        ctx.options = options
        ctx.save_for_backward(x, weight, bias, out if options.relu else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, bias, out = ctx.saved_tensors
        options: _Options = ctx.options
        rows, (by_x_asked, by_weight_asked, by_bias_asked) = slice(*options.rows), ctx.needs_input_grad[:3]
        gradient = gradients[0].contiguous().view(-1, gradients[0].shape[-1])
        sums = torch.empty(0)
        if out is not None or by_bias_asked:
            gradient, sums = sum_columns(gradient, None if out is None else out.view_as(gradient))
        by_x = (gradient @ weight[rows]).view_as(x) if by_x_asked else None
        by_weight = by_bias = None
        if by_weight_asked:
            total, by_weight = _sums(options.weight_sum, weight)
            _add_product(total[rows], gradient.t(), x.view(-1, x.shape[-1]))
        if by_bias_asked:
            total, by_bias = _sums(options.bias_sum, bias)
            total[rows] += sums
        return by_x, _as(by_weight, weight), _as(by_bias, bias), None


def _sums(known: Tensor | None, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a gradient is added in float32; and the same, unless it is a sum that somebody keeps."""
    if known is not None:
        return known, None
    made = torch.zeros_like(parameter, dtype=torch.float32)
    return made, made


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right."""
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    else:
        add_in_place(total, left @ right)


def _as(gradient: Tensor | None, parameter: Tensor) -> Tensor | None:
    return None if gradient is None else gradient.to(parameter.dtype)
