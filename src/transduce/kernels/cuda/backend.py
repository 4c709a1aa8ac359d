"""The backend that trains on a GPU with kernels in Triton."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transduce.kernels.cuda import attention, layer, rows
from transduce.kernels.cuda import rows as norms
from transduce.kernels.cuda.graphs import ceil_div
from transduce.kernels.cuda.loss_graph import LossRecorder
from transduce.kernels.cuda.triton import rows as programs
from transduce.kernels.training_executor import execute, is_known, packed_hidden
from transduce.model.backend import AdamScalars, Polynomials, Projection, Rows, UpdatedVectors
from transduce.model.masks import PackedBatch
from transduce.model.positions import Rotation
from transduce.model.transformer import Transformer

# --- update ---
# Run optimizer kernels on a GPU, which update all parameters in one pass.


_BLOCK = 1024


def update_by_adam(
    vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamScalars, average_decay: float
) -> None:
    """Update parameters by Adam, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.update_by_adam`.
    """
    programs.adam[_grid(vectors.master)](
        *_pointers(vectors), *moments, vectors.master.numel(), *numbers, average_decay, *_has(vectors), _BLOCK
    )


def update_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum from gradients, and write the update's direction to `out`.

    See `backend.TrainingKernels.take_momentum`.
    """
    programs.take_momentum[_grid(gradient)](gradient, momentum, out, gradient.numel(), factor, decay, _BLOCK)


def apply_update(
    vectors: UpdatedVectors, average_decay: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """Subtract rate × move from the parameters × shrink, and refresh their moving average and bfloat16 copies.

    See `backend.TrainingKernels.apply_update`.
    """
    has_move = move is not None
    if shrink != 1.0:
        vectors.master.mul_(shrink)
    programs.follow[_grid(vectors.master)](
        *_pointers(vectors), move if has_move else vectors.master, vectors.master.numel(), rate, average_decay,
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


def supports_update(vectors: UpdatedVectors) -> bool:
    """Return whether the optimizer kernels take these vectors."""
    return vectors.working is None or vectors.working.dtype == torch.bfloat16


# --- backend ---


_KINDS = (torch.bfloat16, torch.float32)
_MOST_COLUMNS = 8192  # of rows that are held at once


class _Packed(attention.PackedHeads):
    """Implements `backend.PackedAttention` on a GPU."""

    record_losses = staticmethod(LossRecorder)

    def supports(self, model: nn.Module, longest: int) -> bool:
        """Return whether each component of a Transformer is known, and its attention fits into a multiprocessor."""
        return (
            isinstance(model, Transformer)
            and model.config.can_be_packed
            and self.suits_heads(model.config, longest, model.source_weight)
            and is_known(model)
        )

    def hidden(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the decoder's last layer for a packed batch, (1, N, D)."""
        return packed_hidden(model, batch)


class GpuTraining:
    """Implements `backend.TrainingKernels` on a GPU."""

    def __init__(self, device: str) -> None:
        """For one GPU, which becomes the one that PyTorch and Triton launch on."""
        place = torch.device(device)
        self._device_type = place.type
        if place.type == "cuda" and place.index is not None:
            torch.cuda.set_device(place)

    packed = _Packed()
    linear_activations = frozenset(("relu",))
    run_layer = staticmethod(layer.run_layer)
    dropout_add = staticmethod(rows.drop_and_add)
    layer_norm = staticmethod(norms.layer_norm)
    rms_norm = staticmethod(norms.rms_norm)
    residual_norm = staticmethod(norms.fork_norm)
    sum_rows = staticmethod(rows.sum_rows)
    embed = staticmethod(layer.embed)
    add_rows_in_place = staticmethod(rows.add_rows_in_place)
    linear = staticmethod(layer.linear)
    update_by_adam = staticmethod(update_by_adam)
    update_momentum = staticmethod(update_momentum)
    apply_update = staticmethod(apply_update)
    softmax_ = staticmethod(rows.softmax_)

    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Compute `component(*args, **kwargs)`, with these kernels where they compute the same function."""
        return execute(self, component, *args, **kwargs)

    def _has(self, *tensors: Tensor) -> bool:
        return all(each.device.type == self._device_type and each.dtype in _KINDS for each in tensors)

    def supports_rows(self, x: Tensor) -> bool:
        """See `backend.TrainingKernels`."""
        return self._has(x) and 0 < x.shape[-1] <= _MOST_COLUMNS and x.numel() > 0

    def supports_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:  # noqa: ARG002
        """See `backend.TrainingKernels`."""
        return self._has(x, weight) and x.dtype == weight.dtype and x.numel() > 0

    def project(self, hidden: Tensor, weight: Tensor) -> Projection | None:  # noqa: ARG002
        """PyTorch's products, which add up in float32 there."""
        return None

    def supports_logits(self, logits: Tensor) -> bool:
        """See `backend.TrainingKernels`."""
        return self._has(logits) and logits.is_contiguous()

    def supports_update(self, vectors: UpdatedVectors) -> bool:
        """See `backend.TrainingKernels`."""
        return self._has(vectors.master) and supports_update(vectors)

    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        """See `backend.TrainingKernels`."""
        total += part

    def supports_attention(self, x: Tensor, num_keys: int, width: int) -> bool:  # noqa: ARG002
        """Of padded sentences PyTorch's does as well."""
        return False

    def attend(self, projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
        """Not offered."""
        raise NotImplementedError

    def supports_rotary(self, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Not offered."""
        return False

    def apply_rotary(self, projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
        """Not offered."""
        raise NotImplementedError

    def supports_orthogonalization(self, matrices: Sequence[Tensor]) -> bool:  # noqa: ARG002
        """The library's products are as fast."""
        return False

    def orthogonalize_in_place(
        self, matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
    ) -> list[bool]:
        """Not offered."""
        raise NotImplementedError
