"""Run optimizer kernels on a GPU, which update all parameters in one pass."""

import torch
from torch import Tensor

from transduce.model.backend import AdamNumbers, UpdatedVectors
from transduce.model.gpu.programs import update as programs
from transduce.model.gpu.sizes import ceil_div

_BLOCK = 1024


def update_by_adam(vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float) -> None:
    """Update parameters by Adam, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.update_by_adam`.
    """
    programs.adam[_grid(vectors.master)](
        *_pointers(vectors), *moments, vectors.master.numel(), *numbers, kept, *_has(vectors), _BLOCK
    )


def take_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum from gradients, and write the update's direction to `out`.

    See `backend.TrainingKernels.take_momentum`.
    """
    programs.take_momentum[_grid(gradient)](gradient, momentum, out, gradient.numel(), factor, decay, _BLOCK)


def follow_update(
    vectors: UpdatedVectors, kept: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """Subtract rate × move from the parameters × shrink, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.follow_update`.
    """
    has_move = move is not None
    if shrink != 1.0:
        vectors.master.mul_(shrink)
    programs.follow[_grid(vectors.master)](
        *_pointers(vectors), move if has_move else vectors.master, vectors.master.numel(), rate, kept,
        has_move, *_has(vectors), _BLOCK,
    )  # fmt: skip


def _grid(vector: Tensor) -> tuple[int]:
    """Return the launch grid for a vector."""
    return (ceil_div(vector.numel(), _BLOCK),)


def _pointers(vectors: UpdatedVectors) -> list[Tensor]:
    """Return the vectors; the masters stand in for absent ones, which the kernel does not access."""
    return [vectors.master if vector is None else vector for vector in vectors]


def _has(vectors: UpdatedVectors) -> tuple[bool, bool]:
    """Return whether there are a moving average and a bfloat16 copy."""
    return vectors.average is not None, vectors.working is not None


def suits_update(vectors: UpdatedVectors) -> bool:
    """Return whether the optimizer kernels take these vectors."""
    return vectors.working is None or vectors.working.dtype == torch.bfloat16
