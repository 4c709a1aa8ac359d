"""Where the gradients by parameters are added up in float32, by whoever computes them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.backend import Rows

_SUM = "sum_of_gradients"


def add_gradients_to(parameter: Tensor, total: Tensor) -> None:
    """From now on kernels may add the gradient by a parameter to a float32 tensor of its shape, and give it none."""
    setattr(parameter, _SUM, total)


def sum_of_gradients(parameter: Tensor) -> Tensor | None:
    """Where kernels may add the gradient by a parameter; None: they give it to PyTorch, for its hooks to see."""
    found: Tensor | None = None if parameter._backward_hooks else getattr(parameter, _SUM, None)
    return found


class LinearSums(NamedTuple):
    """What a product with a matrix, or with some of its rows, goes by, and where its gradients are added up."""

    rows: Rows
    activation: str | None
    """The name of the activation that follows; None: there is none."""
    weight_sum: Tensor | None
    bias_sum: Tensor | None


def linear_sums(weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None) -> LinearSums:
    """Of a product with these rows of a matrix (O, I) and a bias (O,), or all of them.

    Raises:
        ValueError: there are no such rows.
    """
    rows = rows or Rows(0, len(weight))
    if not 0 <= rows.start < rows.stop <= len(weight):
        raise ValueError(f"{rows} of a matrix of {len(weight)} rows")
    return LinearSums(rows, activation, sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias))


def known_or_new(known: Tensor | None, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a gradient is added in float32; and the same, unless it is a sum that somebody keeps."""
    if known is not None:
        return known, None
    made = torch.zeros_like(parameter, dtype=torch.float32)
    return made, made


def in_kind_of(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """What PyTorch is given."""
    return None if gradient is None else gradient.to(parameter.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right; of bfloat16 on a GPU, too, it is summed in float32 all the way."""
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


class RowSums(NamedTuple):
    """What rows of a matrix are multiplied by, and where and how their gradients are added up."""

    scale: float
    frozen_row: int | None
    weight_sum: Tensor | None
    add_rows: Callable[[Tensor, Tensor, Tensor, float, int | None], None]
    """As `backend.TrainingKernels.add_rows_in_place`."""


def embed_rows(ids: Tensor, weight: Tensor, options: RowSums) -> Tensor:
    """Rows of a matrix (V, D), times the scale: ids (…), int64, to (…, D)."""
    found: Tensor = _EmbeddedRows.apply(ids, weight, options)  # type: ignore[no-untyped-call]
    return found


class _EmbeddedRows(torch.autograd.Function):
    """The rows' gradients are added to the matrix' sum in float32 if there is one."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, options: RowSums) -> Tensor:
        ctx.options = options
        ctx.save_for_backward(ids, weight)
        rows = F.embedding(ids, weight)
        return rows if options.scale == 1.0 else rows.mul_(options.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        ids, weight = ctx.saved_tensors
        scale, frozen_row, known, add_rows = ctx.options
        total, by_weight = known_or_new(known, weight)
        add_rows(total, ids, gradients[0], scale, frozen_row)
        return None, in_kind_of(weight, by_weight), None
