"""Sums of gradients in float32: tensors to which kernels add the gradients of parameters as they compute them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.model.backend import Rows

_SUM = "sum_of_gradients"


def add_gradients_to(parameter: Tensor, total: Tensor) -> None:
    """Let kernels add a parameter's gradient to a float32 tensor of its shape, and return no gradient to PyTorch."""
    setattr(parameter, _SUM, total)


def sum_of_gradients(parameter: Tensor) -> Tensor | None:
    """Return the tensor to which kernels may add a parameter's gradient, or None if PyTorch must receive the gradient.

    PyTorch receives it if nobody has called `add_gradients_to`, or if the parameter has hooks, which must see it.
    """
    total: Tensor | None = None if parameter._backward_hooks else getattr(parameter, _SUM, None)
    return total


class LinearSums(NamedTuple):
    """The options of a linear layer, and the tensors to which its gradients are added."""

    rows: Rows
    activation: str | None
    """The name of the activation that follows; None: there is none."""
    weight_sum: Tensor | None
    bias_sum: Tensor | None


def linear_sums(weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None) -> LinearSums:
    """Return the options of a linear layer with these rows of a matrix (O, I) and a bias (O,); None: all rows.

    Raises:
        ValueError: the matrix has no such rows.
    """
    rows = rows or Rows(0, len(weight))
    if not 0 <= rows.start < rows.stop <= len(weight):
        raise ValueError(f"{rows} of a matrix of {len(weight)} rows")
    return LinearSums(rows, activation, sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias))


def known_or_new(known: Tensor | None, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a float32 sum for a parameter's gradient, and the same sum if it is new and PyTorch must receive it."""
    if known is not None:
        return known, None
    made = torch.zeros_like(parameter, dtype=torch.float32)
    return made, made


def in_kind_of(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return a gradient in the dtype of its parameter, as PyTorch expects it."""
    return None if gradient is None else gradient.to(parameter.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to `total`; bfloat16 products are summed in float32 on a GPU."""
    if right.dtype == total.dtype:
        torch.addmm(total, left, right, out=total)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


class RowSums(NamedTuple):
    """The options of an embedding lookup, and how its gradient is added to the matrix's sum."""

    scale: float
    frozen_row: int | None
    weight_sum: Tensor | None
    add_rows: Callable[[Tensor, Tensor, Tensor, float, int | None], None]
    """A function like `backend.TrainingKernels.add_rows_in_place`."""


def embed_rows(ids: Tensor, weight: Tensor, options: RowSums) -> Tensor:
    """Return rows of a matrix (V, D), multiplied by the scale: ids (…), int64, to (…, D)."""
    found: Tensor = _EmbeddedRows.apply(ids, weight, options)  # type: ignore[no-untyped-call]
    return found


class _EmbeddedRows(torch.autograd.Function):
    """An embedding lookup whose gradient is added to the matrix's float32 sum, if there is one."""

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
