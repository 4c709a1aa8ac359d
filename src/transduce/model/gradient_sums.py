"""Where the gradients by parameters are added up in float32, by whoever computes them."""

from typing import NamedTuple

import torch
from torch import Tensor

from transduce.model.fused import Rows

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
    relu: bool
    weight_sum: Tensor | None
    bias_sum: Tensor | None


def linear_sums(weight: Tensor, bias: Tensor | None, rows: Rows | None, *, relu: bool) -> LinearSums:
    """Of a product with these rows of a matrix (O, I) and a bias (O,), or all of them.

    Raises:
        ValueError: there are no such rows.
    """
    rows = rows or Rows(0, len(weight))
    if not 0 <= rows.start < rows.stop <= len(weight):
        raise ValueError(f"{rows} of a matrix of {len(weight)} rows")
    return LinearSums(rows, relu, sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias))


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
