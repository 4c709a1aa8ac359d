"""Float32 sums of bfloat16 tensors, mainly gradients."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from transduce.model.backend import training_kernels
from transduce.model.gradient_sums import add_gradients_to

_BLOCK_ELEMENTS = 1 << 18  # 1 MB in float32, which stays in a processor's cache
_NORM_ELEMENTS = 1 << 14


def add_to(total: Tensor, part: Tensor) -> None:
    """Compute total += part for tensors of equal shape, possibly of two dtypes, without a temporary copy.

    PyTorch's addition first converts all of `part` to the dtype of the total.
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
    """Return the Euclidean norm of a vector.

    On a CPU it combines norms of blocks: PyTorch adds all squares in one thread, and a float32 sum of 48 million of
    them was 0.8 % too small.
    """
    if vector.device.type != "cpu":
        return float(vector.norm())
    aligned = vector.numel() // _NORM_ELEMENTS * _NORM_ELEMENTS
    blocks = vector[:aligned].view(-1, _NORM_ELEMENTS).norm(dim=1)
    return float(torch.cat([blocks, vector[aligned:].norm()[None]]).norm())


def collect_gradients(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Make backward passes accumulate the gradients of parameters in one vector, in which they lie one after another.

    A gradient of the vector's dtype is a view of its part. Any other gradient is added and freed as soon as it is
    complete, during the backward pass: it is then still in the cache, and memory is needed for only one. Kernels may
    add to the vector directly and leave no gradient.
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
    """Zero the accumulated gradients, including those of an interrupted backward pass."""
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
