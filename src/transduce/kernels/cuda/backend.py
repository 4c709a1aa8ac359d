"""Train on a GPU with Triton kernels: optimizer updates, and the backend that offers all kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transduce.kernels.cuda import attention, layer, rows
from transduce.kernels.cuda import rows as norms
from transduce.kernels.cuda.graphs import ceil_div
from transduce.kernels.cuda.loss_graph import LossRecorder
from transduce.kernels.cuda.triton import rows as triton_kernels
from transduce.kernels.training_executor import execute, is_known, packed_hidden
from transduce.model.backend import AdamScalars, Polynomials, Projection, Rows, UpdatedVectors
from transduce.model.masks import PackedBatch
from transduce.model.positions import Rotation
from transduce.model.transformer import Transformer

# --- optimizer updates ---


_BLOCK = 1024


def update_by_adam(
    vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], numbers: AdamScalars, average_decay: float
) -> None:
    """Update parameters by Adam, and refresh their moving average and bfloat16 copies.

    `backend.TrainingKernels.update_by_adam` describes the arguments.
    """
    triton_kernels.adam[_grid(vectors.master)](
        *_pointers(vectors), *moments, vectors.master.numel(), *numbers, average_decay, *_has(vectors), _BLOCK
    )


def update_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum from gradients, and write the update's direction to `out`.

    `backend.TrainingKernels.update_momentum` describes the arguments.
    """
    triton_kernels.update_momentum[_grid(gradient)](gradient, momentum, out, gradient.numel(), factor, decay, _BLOCK)


def apply_update(
    vectors: UpdatedVectors, average_decay: float, move: Tensor | None = None, rate: float = 0.0, shrink: float = 1.0
) -> None:
    """Subtract rate × move from the parameters × shrink, and refresh their moving average and bfloat16 copies.

    `backend.TrainingKernels.apply_update` describes the arguments.
    """
    has_move = move is not None
    if shrink != 1.0:
        vectors.master.mul_(shrink)
    triton_kernels.apply_update[_grid(vectors.master)](
        *_pointers(vectors), move if has_move else vectors.master, vectors.master.numel(), rate, average_decay,
        has_move, *_has(vectors), _BLOCK,
    )  # fmt: skip


def _grid(vector: Tensor) -> tuple[int]:
    """Return the launch grid of a kernel that processes a vector in blocks."""
    return (ceil_div(vector.numel(), _BLOCK),)


def _pointers(vectors: UpdatedVectors) -> list[Tensor]:
    """Return the vectors in the kernel's argument order; the master weights fill the arguments of absent vectors."""
    return [vectors.master if vector is None else vector for vector in vectors]


def _has(vectors: UpdatedVectors) -> tuple[bool, bool]:
    """Return whether an update includes a moving average, and whether it includes a bfloat16 copy."""
    return vectors.average is not None, vectors.working is not None


def supports_update(vectors: UpdatedVectors) -> bool:
    """Return whether the optimizer kernels take these vectors."""
    return vectors.working is None or vectors.working.dtype == torch.bfloat16


# --- backend ---


_KINDS = (torch.bfloat16, torch.float32)
_MAX_COLUMNS = 8192  # a row is held in registers


class _PackedBatches(attention.PackedHeads):
    """Attention and losses of packed batches on a GPU (implements `backend.PackedAttention`)."""

    record_losses = staticmethod(LossRecorder)

    def supports(self, model: nn.Module, longest: int) -> bool:
        """Return whether each component of a Transformer is known, and its attention fits into a multiprocessor."""
        return (
            isinstance(model, Transformer)
            and model.config.can_be_packed
            and self.supports_heads(model.config, longest, model.source_weight)
            and is_known(model)
        )

    def hidden(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the output of the decoder's last layer for a packed batch, (1, N, D)."""
        return packed_hidden(model, batch)


class GpuTraining:
    """A training backend of Triton kernels for one GPU (implements `backend.TrainingKernels`)."""

    def __init__(self, device: str) -> None:
        """Make this GPU the one on which PyTorch and Triton launch kernels."""
        gpu = torch.device(device)
        self._device_type = gpu.type
        if gpu.type == "cuda" and gpu.index is not None:
            torch.cuda.set_device(gpu)

    packed = _PackedBatches()
    linear_activations = frozenset(("relu",))
    run_layer = staticmethod(layer.run_layer)
    dropout_add = staticmethod(rows.drop_and_add)
    layer_norm = staticmethod(norms.layer_norm)
    rms_norm = staticmethod(norms.rms_norm)
    residual_norm = staticmethod(norms.residual_norm)
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
        """Return whether all tensors are on this GPU and in a dtype that the kernels support."""
        return all(each.device.type == self._device_type and each.dtype in _KINDS for each in tensors)

    def supports_rows(self, x: Tensor) -> bool:
        """Return whether the row-wise kernels support x."""
        return self._has(x) and 0 < x.shape[-1] <= _MAX_COLUMNS and x.numel() > 0

    def supports_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:  # noqa: ARG002
        """Return whether a linear layer of these tensors is supported."""
        return self._has(x, weight) and x.dtype == weight.dtype and x.numel() > 0

    def project(self, hidden: Tensor, weight: Tensor) -> Projection | None:  # noqa: ARG002
        """Return None: PyTorch's output projection accumulates in float32 on a GPU."""
        return None

    def supports_logits(self, logits: Tensor) -> bool:
        """Return whether the in-place softmax supports these logits."""
        return self._has(logits) and logits.is_contiguous()

    def supports_update(self, vectors: UpdatedVectors) -> bool:
        """Return whether the optimizer kernels support these vectors."""
        return self._has(vectors.master) and supports_update(vectors)

    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        """Add `part` to `total` in place."""
        total += part

    def supports_attention(self, x: Tensor, num_keys: int, width: int) -> bool:  # noqa: ARG002
        """Return False: PyTorch's attention to padded sentences is as fast."""
        return False

    def attend(self, projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
        """Raise NotImplementedError, since `supports_attention` returns False."""
        raise NotImplementedError

    def supports_rotary(self, x: Tensor, width: int) -> bool:  # noqa: ARG002
        """Return False: there is no rotary embedding kernel."""
        return False

    def apply_rotary(self, projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
        """Raise NotImplementedError, since `supports_rotary` returns False."""
        raise NotImplementedError

    def supports_orthogonalization(self, matrices: Sequence[Tensor]) -> bool:  # noqa: ARG002
        """Return False: cuBLAS is as fast as a kernel would be."""
        return False

    def orthogonalize_in_place(
        self, matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
    ) -> list[bool]:
        """Raise NotImplementedError, since `supports_orthogonalization` returns False."""
        raise NotImplementedError
