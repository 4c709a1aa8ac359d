"""Provide LayerNorm and RMSNorm for training as a PyTorch autograd function.

Legend: N rows, D model width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.gradient_sums import in_kind_of, known_or_new, sum_of_gradients
from transduce.model.native.engine import address_of, float_bits
from transduce.model.native.fused_rows import describe, row_programs
from transduce.model.native.training_rows import NormPlaces


def fork_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x and its norm: LayerNorm, or RMSNorm without a bias; see `backend.TrainingKernels.fork_norm`."""
    for each in (weight, bias):
        if each is not None and (each.shape, each.dtype) != (x.shape[-1:], x.dtype):
            raise ValueError(f"{describe(each)} cannot be the weight or bias of a norm of {describe(x)}")
    return NormNode.apply(x, weight, bias, epsilon)  # type: ignore[no-any-return,no-untyped-call]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Apply LayerNorm over the last dimension of x."""
    return fork_norm(x, weight, bias, epsilon)[1]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Apply RMSNorm over the last dimension of x."""
    return fork_norm(x, weight, None, epsilon)[1]


class NormNode(torch.autograd.Function):
    """A norm as an autograd function that returns x and norm(x), for residual connections.

    It is LayerNorm, or RMSNorm without a bias. The backward pass adds the gradient of the returned x in the same pass,
    and adds weight and bias gradients to float32 sums where these exist.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        flat, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
        out, sums = torch.empty_like(flat), torch.empty(x.numel() // x.shape[-1], 2, dtype=torch.float32)
        _run("rms" if bias is None else "norm", (flat, weight, bias), epsilon, sums, out)
        ctx.save_for_backward(flat, weight, bias, sums)
        ctx.epsilon = epsilon
        return x, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        by_residual, by_out = gradients
        if by_out is None:
            return by_residual, None, None, None
        x, weight, bias, sums = ctx.saved_tensors
        by_out, by_residual = by_out.contiguous(), None if by_residual is None else by_residual.contiguous()
        by_x = torch.empty_like(x)
        total, by_weight = known_or_new(sum_of_gradients(weight), weight)
        bias_total, by_bias = (None, None) if bias is None else known_or_new(sum_of_gradients(bias), bias)
        shares = torch.empty(torch.get_num_threads(), 2, x.shape[-1], dtype=torch.float32)
        name, backward_tensors = (
            "rms_back" if bias is None else "norm_back",
            (by_out, by_residual, shares, total, bias_total),
        )
        _run(name, (x, weight, bias), ctx.epsilon, sums, by_x, backward_tensors)
        return by_x, in_kind_of(weight, by_weight), None if bias is None else in_kind_of(bias, by_bias), None


def _run(
    name: str,
    tensors: tuple[Tensor, Tensor, Tensor | None],
    epsilon: float,
    sums: Tensor,
    out: Tensor,
    backward_tensors: tuple[Tensor | None, ...] = (None,) * 5,
) -> None:
    """Run a norm kernel.

    For the backward pass, `backward_tensors` holds `gradient`, `kept`, `shares` and the two sums of `NormPlaces`.
    """
    x, weight, bias = tensors
    arguments = NormPlaces(
        x.data_ptr(),
        weight.data_ptr(),
        address_of(bias),
        len(sums),
        x.shape[-1],
        float_bits(epsilon),
        sums.data_ptr(),
        out.data_ptr(),
        *map(address_of, backward_tensors),
    )
    row_programs(x.dtype)[name].run(*arguments)
