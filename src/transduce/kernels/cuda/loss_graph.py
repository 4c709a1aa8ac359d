"""Record a loss and its gradients as CUDA graphs, and replay them for later batches of the same size.

A training step launches some 700 kernels, and for small models the CPU takes longer to launch them than the GPU to run
them. A graph reads its batch and dropout seeds at fixed addresses. So batches come in few sizes, and each size is
recorded when it occurs for the second time.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.kernels.cuda import rows
from transduce.kernels.cuda.graphs import Pool, recording
from transduce.model.feed_forward import Dropout

Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
_MAX_SIZES = 128  # recorded sizes to keep; for the paper's base model each takes 5 MB of the GPU's memory

_LOG = logging.getLogger("transduce.training")


class LossRecorder:
    """A recorder of losses by batch size, with one memory pool for all CUDA graphs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self._known: OrderedDict[Hashable, _RecordedLoss] = OrderedDict()
        self._pool: Pool = None
        self._can_record = can_record(next(model.parameters()).device)
        self.eager_loss: Tensor | None = None
        """The latest loss that was computed eagerly, from which its gradients are computed."""
        self.sequence_number = 0
        """The number of the latest loss; its gradients must be computed before the next loss is."""

    def __call__(self, size: Hashable, numbers: NDArray[np.int64], compute: Compute) -> tuple[Tensor, Tensor]:
        """Compute the loss of a batch; see `backend.LossRecorder.__call__`."""
        drops = tuple(dropout.drop_of_256 for dropout in self._dropouts if dropout.training)
        key = size, drops
        if key not in self._known:
            device = next(self._model.parameters()).device
            self._known[key] = _RecordedLoss(self, compute, len(numbers), device)
            if len(self._known) > _MAX_SIZES:
                self._known.popitem(last=False)  # the least recently used one
        self._known.move_to_end(key)
        return self._known[key](numbers)

    def record(self, loss: "_RecordedLoss") -> None:
        """Record the forward and backward passes of a loss; after a failure, drop all graphs and record no more."""
        if not self._can_record:
            return
        # An eager loss' autograd graph is tied to its stream, which must not meet a recording on another stream.
        self.eager_loss = None
        torch.cuda.empty_cache()  # eager steps need no memory from now on, and graphs have their own pool
        if self._pool is None:
            if not _has_free_memory(next(self._model.parameters()).device):
                self._give_up("CUDA graphs would hold memory that validation may need")
                return
            self._pool = torch.cuda.graph_pool_handle()
        try:
            loss.record(self._pool, list(self._model.buffers()))
        except RuntimeError as error:  # includes running out of memory
            self._give_up(str(error).strip().partition("\n")[0])

    def _give_up(self, reason: str) -> None:
        """Drop all graphs, and compute every later loss without graphs."""
        _LOG.warning("Training steps are not recorded as CUDA graphs from now on, which is slower: %s", reason)
        self._can_record, self._pool = False, None
        self._known.clear()


def _has_free_memory(device: torch.device) -> bool:
    """Return whether a GPU has twice as much free memory as the temporary tensors of the eager steps took."""
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] >= 2 * step


def can_record(device: torch.device) -> bool:
    """Return whether a device supports recording; on others every batch is computed eagerly."""
    return device.type == "cuda"


class _RecordedLoss:
    """A loss of batches of one size, with its input buffer and, once recorded, its two CUDA graphs."""

    def __init__(self, recorder: LossRecorder, compute: Compute, count: int, device: torch.device) -> None:
        self._recorder, self._compute = recorder, compute
        self._inputs = torch.zeros(count + rows.MAX_SEEDS, dtype=torch.int64, device=device)
        self._slope = torch.ones((), device=device)
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        self._out: tuple[Tensor, Tensor] | None = None
        self._read: list[Tensor] = []

    def __call__(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Copy a batch and new dropout seeds to the graph's input buffer, and compute the loss."""
        inputs = torch.cat([torch.from_numpy(numbers), rows.draw_seeds(rows.MAX_SEEDS)])
        self._inputs.copy_(inputs.pin_memory() if self._inputs.is_cuda else inputs, non_blocking=True)
        if self._graphs is None and self._out is not None:
            self._recorder.record(self)
        return _ReplayedLoss.apply(self, self._anchor)  # type: ignore[no-any-return,no-untyped-call]

    def launch(self) -> tuple[Tensor, Tensor]:
        """Compute the loss of the batch in the input buffer, eagerly or while a graph is recorded."""
        count = len(self._inputs) - rows.MAX_SEEDS
        with torch.enable_grad(), rows.seeds_from_buffer(self._inputs[count:]):
            return self._compute(self._inputs[:count])

    def record(self, pool: Pool, read: list[Tensor]) -> None:
        """Record the forward and backward passes of the loss as CUDA graphs.

        Keeps a reference to the tensors `read`, whose memory the graphs use besides the parameters'.
        """
        device = self._inputs.device
        with recording(device, pool) as forward:
            total, likelihood = self.launch()
        with recording(device, pool) as backward:
            total.backward(self._slope)
        self._out, self._read = (total.detach(), likelihood.detach()), read
        self._graphs = forward, backward

    def run_forward(self) -> tuple[int, tuple[Tensor, Tensor]]:
        """Run the forward pass; returns the sequence number of this loss, and the two values of the loss."""
        if self._graphs is not None:
            self._graphs[0].replay()
        else:  # the first batch of a size runs eagerly: recording needs initialized libraries and compiled kernels
            self._recorder.eager_loss, likelihood = self.launch()
            self._out = self._recorder.eager_loss.detach(), likelihood.detach()
        assert self._out is not None
        self._recorder.sequence_number += 1
        return self._recorder.sequence_number, (self._out[0].clone(), self._out[1].clone())

    def run_backward(self, replay: int, slope: Tensor) -> None:
        """Run the backward pass of loss number `replay`, given the gradient of its total."""
        if replay != self._recorder.sequence_number:
            raise RuntimeError(
                "the gradients of this batch are gone: they were computed before, or another batch's loss was computed"
            )
        self._recorder.sequence_number += 1  # a second backward pass of this loss must fail
        if self._graphs is not None:
            self._slope.copy_(slope)
            self._graphs[1].replay()
        elif self._recorder.eager_loss is not None:
            self._recorder.eager_loss.backward(slope)
            self._recorder.eager_loss = None


class _ReplayedLoss(torch.autograd.Function):
    """Both passes of a recorded loss as an autograd function; gradients go to the float32 sums of the parameters."""

    @staticmethod
    def forward(ctx: Any, loss: _RecordedLoss, anchor: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        ctx.loss = loss
        ctx.turn, (total, likelihood) = loss.run_forward()
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.loss.run_backward(ctx.turn, gradients[0])
        return None, None
