"""A loss and its gradients, recorded once and played again, as a GPU does it: nothing is launched by itself.

A step of training launches some 700 programs, and where the model is small the processor takes longer to ask for them
than the GPU to run them. What is recorded reads its batch and the seeds of its dropouts at fixed places. So batches
come in few sizes, and each size is recorded when it comes the second time.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.model.dropout import Dropout
from transduce.model.gpu import seeds
from transduce.model.gpu.recording import Pool, recording

Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
_MOST_SIZES = 128  # that are kept, of the paper's base model each with 5 MB of the GPU's memory

_LOG = logging.getLogger("transduce.training")


class LossRecorder:
    """Implements `backend.LossRecorder`. All that it records shares one memory."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self._known: OrderedDict[Hashable, _RecordedLoss] = OrderedDict()
        self._pool: Pool = None
        self._can_record = can_record(next(model.parameters()).device)
        self.launched: Tensor | None = None
        """The loss of a turn that was not played, for its gradients."""
        self.turn = 0
        """How often a loss was played: its gradients must be asked for before the next one is."""

    def __call__(self, size: Hashable, numbers: NDArray[np.int64], compute: Compute) -> tuple[Tensor, Tensor]:
        """See `backend.LossRecorder`."""
        drops = tuple(dropout.drop_of_256 for dropout in self._dropouts if dropout.training)
        key = size, drops
        if key not in self._known:
            device = next(self._model.parameters()).device
            self._known[key] = _RecordedLoss(self, compute, len(numbers), device)
            if len(self._known) > _MOST_SIZES:
                self._known.popitem(last=False)  # the one that was longest not asked for
        self._known.move_to_end(key)
        return self._known[key](numbers)

    def record(self, loss: "_RecordedLoss") -> None:
        """Has both passes written down; where that fails, nothing is recorded any more, and what was is given up."""
        if not self._can_record:
            return
        # Its graph knows on which stream gradients arrive. A recording on another one must not meet it.
        self.launched = None
        torch.cuda.empty_cache()  # what is launched by itself needs no room any more, and what is recorded has its own
        if self._pool is None:
            if not _has_room(next(self._model.parameters()).device):
                self._give_up("they would keep memory for themselves that validation may need")
                return
            self._pool = torch.cuda.graph_pool_handle()
        try:
            loss.record(self._pool, list(self._model.buffers()))
        except RuntimeError as error:  # memory that ran out, too
            self._give_up(str(error).strip().partition("\n")[0])

    def _give_up(self, reason: str) -> None:
        _LOG.warning("Steps are not recorded from now on, which makes them slower: %s", reason)
        self._can_record, self._pool = False, None
        self._known.clear()


def _has_room(device: torch.device) -> bool:
    """Whether a GPU has twice as much free as the steps so far took beside what stays."""
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] >= 2 * step


def can_record(device: torch.device) -> bool:
    """Whether anything is; elsewhere each batch is computed as the first one of its size."""
    return device.type == "cuda"


class _RecordedLoss:
    """Of batches of one size."""

    def __init__(self, recorder: LossRecorder, compute: Compute, count: int, device: torch.device) -> None:
        self._recorder, self._compute = recorder, compute
        self._places = torch.zeros(count + seeds.MOST, dtype=torch.int64, device=device)
        self._slope = torch.ones((), device=device)
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        self._out: tuple[Tensor, Tensor] | None = None
        self._read: list[Tensor] = []

    def __call__(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        given = torch.cat([torch.from_numpy(numbers), seeds.draw_seeds(seeds.MOST)])
        self._places.copy_(given.pin_memory() if self._places.is_cuda else given, non_blocking=True)
        if self._graphs is None and self._out is not None:
            self._recorder.record(self)
        return _Played.apply(self, self._anchor)  # type: ignore[no-any-return,no-untyped-call]

    def launch(self) -> tuple[Tensor, Tensor]:
        """What is recorded, operation by operation."""
        count = len(self._places) - seeds.MOST
        with torch.enable_grad(), seeds.seeds_from(self._places[count:]):
            return self._compute(self._places[:count])

    def record(self, pool: Pool, read: list[Tensor]) -> None:
        """Writes down both passes; what they read beside parameters stays as long as they do."""
        device = self._places.device
        with recording(device, pool) as forward:
            total, likelihood = self.launch()
        with recording(device, pool) as backward:
            total.backward(self._slope)
        self._out, self._read = (total.detach(), likelihood.detach()), read
        self._graphs = forward, backward

    def play(self) -> tuple[int, tuple[Tensor, Tensor]]:
        """The way there; gives the turn that it was, and what came out."""
        if self._graphs is not None:
            self._graphs[0].replay()
        else:  # a batch like any other; a recording then finds everything ready
            self._recorder.launched, likelihood = self.launch()
            self._out = self._recorder.launched.detach(), likelihood.detach()
        assert self._out is not None
        self._recorder.turn += 1
        return self._recorder.turn, (self._out[0].clone(), self._out[1].clone())

    def play_back(self, turn: int, slope: Tensor) -> None:
        """The way back of that turn, from the gradient by the total."""
        if turn != self._recorder.turn:
            raise RuntimeError(
                "the gradients of this batch are no longer there: they were asked for before, or another was computed"
            )
        self._recorder.turn += 1  # once
        if self._graphs is not None:
            self._slope.copy_(slope)
            self._graphs[1].replay()
        elif self._recorder.launched is not None:
            self._recorder.launched.backward(slope)
            self._recorder.launched = None


class _Played(torch.autograd.Function):
    """Both passes as one node of PyTorch's graph. Gradients go where they are summed."""

    @staticmethod
    def forward(ctx: Any, loss: _RecordedLoss, anchor: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        ctx.loss = loss
        ctx.turn, (total, likelihood) = loss.play()
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.loss.play_back(ctx.turn, gradients[0])
        return None, None
