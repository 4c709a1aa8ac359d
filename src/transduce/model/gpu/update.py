"""An update of all parameters in one pass, on a GPU."""

import torch
from torch import Tensor

from transduce.model.backend import AdamNumbers, UpdatedVectors
from transduce.model.gpu.programs import update as programs
from transduce.model.gpu.sizes import ceil_div

_BLOCK = 1024


def update_by_adam(vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamNumbers, kept: float) -> None:
    """See `backend.TrainingKernels`."""
    programs.adam[_programs(vectors.master)](
        *_pointers(vectors), *moments, vectors.master.numel(), *numbers, kept, *_has(vectors), _BLOCK
    )


def take_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """See `backend.TrainingKernels`."""
    programs.take_momentum[_programs(gradient)](gradient, momentum, out, gradient.numel(), factor, decay, _BLOCK)


def follow_update(
    vectors: UpdatedVectors, kept: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """See `backend.TrainingKernels`."""
    has_move = move is not None
    if shrink != 1.0:
        vectors.master.mul_(shrink)
    programs.follow[_programs(vectors.master)](
        *_pointers(vectors), move if has_move else vectors.master, vectors.master.numel(), rate, kept,
        has_move, *_has(vectors), _BLOCK,
    )  # fmt: skip


def _programs(vector: Tensor) -> tuple[int]:
    return (ceil_div(vector.numel(), _BLOCK),)


def _pointers(vectors: UpdatedVectors) -> list[Tensor]:
    """The masters stand for what there is none of."""
    return [vectors.master if vector is None else vector for vector in vectors]


def _has(vectors: UpdatedVectors) -> tuple[bool, bool]:
    return vectors.average is not None, vectors.working is not None


def suits_update(vectors: UpdatedVectors) -> bool:
    """Whether the kinds of numbers are those that the kernels know."""
    return vectors.working is None or vectors.working.dtype == torch.bfloat16
