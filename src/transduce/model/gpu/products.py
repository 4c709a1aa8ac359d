"""Run linear layers on a GPU by cuBLAS, with weight gradients accumulated in float32.

PyTorch alone rounds each weight gradient to bfloat16, and adds it in a separate pass.

Legend: N rows, I inputs, O outputs, V vocabulary size, D columns of a matrix.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.backend import Rows
from transduce.model.gpu.rows import add_rows_in_place, add_sum_of_rows, positive_rows
from transduce.model.gradient_sums import (
    LinearSums,
    RowSums,
    add_product,
    embed_rows,
    in_kind_of,
    known_or_new,
    linear_sums,
    sum_of_gradients,
)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
) -> Tensor:
    """Return activation(x · weightᵀ + bias); see `backend.TrainingKernels.linear` for the shapes."""
    sums = linear_sums(weight, bias, rows, activation=activation)
    return LinearNode.apply(x, weight, bias, sums)  # type: ignore[no-any-return,no-untyped-call]


class LinearNode(torch.autograd.Function):
    """A linear layer as an autograd function that adds weight and bias gradients to float32 sums where these exist."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: LinearSums) -> Tensor:
        row_slice = slice(*options.rows)
        flat, rows_of_weight = x.reshape(-1, x.shape[-1]), weight[row_slice]
        if bias is None:
            out = flat @ rows_of_weight.t()
            out = out.relu_() if options.activation == "relu" else out
        elif options.activation == "relu":
            out = torch._addmm_activation(bias[row_slice], flat, rows_of_weight.t())
        else:
            out = torch.addmm(bias[row_slice], flat, rows_of_weight.t())
        ctx.options = options
        ctx.save_for_backward(flat, weight, bias, None if options.activation is None else out)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight, bias, out = ctx.saved_tensors
        options: LinearSums = ctx.options
        row_slice, by_out = slice(*options.rows), gradients[0]
        gradient = by_out.reshape(-1, by_out.shape[-1]).contiguous()
        total, by_weight = known_or_new(options.weight_sum, weight) if ctx.needs_input_grad[1] else (None, None)
        bias_total, by_bias = known_or_new(options.bias_sum, bias) if ctx.needs_input_grad[2] else (None, None)
        if out is not None:
            columns = flat.new_zeros(len(out[0]), dtype=torch.float32) if bias_total is None else bias_total[row_slice]
            gradient = positive_rows(gradient, out, columns)
        elif bias_total is not None:
            add_sum_of_rows(gradient, bias_total[row_slice])
        by_x = (gradient @ weight[row_slice]).view(*by_out.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        if total is not None:
            add_product(total[row_slice], gradient.t(), flat)
        return by_x, in_kind_of(weight, by_weight), in_kind_of(bias, by_bias), None


def embed(ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
    """Return rows of a weight (V, D) times `scale`: ids (…), int64, to (…, D); see `backend.TrainingKernels.embed`."""
    return embed_rows(ids, weight, RowSums(scale, frozen_row, sum_of_gradients(weight), add_rows_in_place))
