"""Sums in float32 of what is computed in bfloat16: gradients, above all."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transduce.model.backend import training_kernels
from transduce.model.gradient_sums import add_gradients_to

_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32, which stays in a processor's cache
_NORM_ELEMENTS = 1 << 14


def add_to(total: Tensor, part: Tensor) -> None:
    """total += part, of one shape and perhaps two dtypes, without room of its own.

    PyTorch's own sum copies the whole part into the dtype of the total first.
    """
    kernels = training_kernels() if total.dtype != part.dtype and part.dim() else None
    if kernels is not None and kernels.suits_rows(part):
        kernels.add_in_place(total, part)
        return
    if total.dtype == part.dtype or total.device.type != "cpu" or total.numel() <= _BLOCK_ELEMENTS:
        total += part
        return
    rows = max(1, _BLOCK_ELEMENTS // part[0].numel())
    for block, addend in zip(total.split(rows), part.split(rows), strict=True):
        block += addend


def norm_of(vector: Tensor) -> float:
    """The Euclidean norm of a vector.

    On a processor, of the norms of its blocks: PyTorch adds up all squares in one thread, and a sum of 48 million of
    them in float32 was 0.8 % short.
    """
    if vector.device.type != "cpu":
        return float(vector.norm())
    whole = vector.numel() // _NORM_ELEMENTS * _NORM_ELEMENTS
    blocks = vector[:whole].view(-1, _NORM_ELEMENTS).norm(dim=1)
    return float(torch.cat([blocks, vector[whole:].norm()[None]]).norm())


def collect_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """From now on backward passes add up the gradients of parameters in a vector, where they lie one after another.

    A gradient of the vector's dtype is a view of its part. Another one lives from when it is complete, while the
    backward pass goes on, until it is added: it is still in the cache then, and there is room for one at a time alone.
    Kernels may add to the vector themselves, and then there is none when it is complete.
    """
    parts = vector.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        slot = part.view(parameter.shape)
        add_gradients_to(parameter, slot)
        if parameter.dtype == vector.dtype:
            parameter.grad = slot
        else:
            parameter.register_post_accumulate_grad_hook(_move_to(slot))


def forget_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Zero everywhere, also where a backward pass was cut."""
    vector.zero_()
    for parameter in parameters:
        if parameter.dtype != vector.dtype:
            parameter.grad = None


def _move_to(slot: Tensor) -> Callable[[Tensor], None]:
    def move(parameter: Tensor) -> None:
        if parameter.grad is not None:
            add_to(slot, parameter.grad)
            parameter.grad = None

    return move
