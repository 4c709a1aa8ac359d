"""The loss of a packed batch, for kernels that need packed batches; a step runs directly or as a recorded CUDA graph.

Legend: N target tokens of all sentences.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from transduce.data.batches import Batch
from transduce.model.backend import LossRecorder, PackedAttention, training_kernels
from transduce.model.packing import PackedBatch
from transduce.model.transformer import Transformer
from transduce.training.ahead import to_device
from transduce.training.loss import Loss, cross_entropy_of_rows
from transduce.training.packed import LaidOut, lay_out, unpack


class _Recording:
    """A switch that disables recorded steps while hooks must see every operation."""

    is_watched = False


@contextmanager
def nothing_recorded() -> Iterator[None]:
    """Disable recorded steps in the body of `with`, so that hooks of modules and gradients run."""
    before, _Recording.is_watched = _Recording.is_watched, True
    try:
        yield
    finally:
        _Recording.is_watched = before


class PackedLoss:
    """Teacher-forced cross-entropy of a Transformer, summed over the target tokens."""

    def __init__(self, model: Transformer, label_smoothing: float, *, record: bool = False) -> None:
        """Compute the loss of a model; `record` replays training steps as CUDA graphs, in a single process only."""
        self._model, self._label_smoothing, self._records = model, label_smoothing, record
        self._recorder: LossRecorder | None = None
        self._prefetched: WeakKeyDictionary[Batch, LaidOut] = WeakKeyDictionary()

    def __call__(self, batch: Batch) -> Loss | None:
        """Return the loss of a batch; None if packing does not suit the batch."""
        model = self._model
        packed = _packed_attention(model, batch)
        if packed is None:
            return None
        records = self._records and not _Recording.is_watched and model.training and torch.is_grad_enabled()
        laid = self._prefetched.pop(batch, None)
        if laid is None or laid.size.counted != records:
            laid = self._lay_out(batch, in_rooms=records)
        if laid is None:
            return None
        if records:
            self._recorder = self._recorder or packed.record_losses(model)
            return self._play(packed, self._recorder, laid, batch.target_tokens)
        return self._loss(packed, unpack(to_device(laid.numbers, model.source_weight.device), laid.size))

    def look_ahead(self, batch: Batch) -> None:
        """Pack a training batch before it is computed; this implements `ahead.LooksAhead`."""
        if _packed_attention(self._model, batch) is not None:
            laid = self._lay_out(batch, in_rooms=self._records)
            if laid is not None:
                self._prefetched[batch] = laid

    def _lay_out(self, batch: Batch, *, in_rooms: bool) -> LaidOut | None:
        config = self._model.config
        longest = config.max_positions if config.positions == "learned" else 1 << 30
        rooms_for = longest if in_rooms else None
        return lay_out(batch.source, batch.target, pad_id=config.pad_id, start_id=config.start_id, rooms_for=rooms_for)

    def _play(self, packed: PackedAttention, recorder: LossRecorder, laid: LaidOut, tokens: int) -> Loss:
        def compute(numbers: Tensor) -> tuple[Tensor, Tensor]:
            return self._loss(packed, unpack(numbers, laid.size))[:2]

        return Loss(*recorder(laid.size, laid.numbers, compute), tokens)

    def _loss(self, packed: PackedAttention, batch: PackedBatch) -> Loss:
        hidden, weight = self._model.logit_factors(packed.hidden(self._model, batch))
        return cross_entropy_of_rows(
            hidden[0],
            weight,
            batch.labels[0],
            present=batch.present,
            frozen_row=self._model.config.frozen_row,
            label_smoothing=self._label_smoothing,
        )


def _packed_attention(model: Transformer, batch: Batch) -> PackedAttention | None:
    """Return the kernels for packed batches; None if the batch must not be packed."""
    kernels = training_kernels()
    packed = None if kernels is None else kernels.packed
    longest = max(batch.source.shape[1], batch.target.shape[1])
    return packed if packed is not None and packed.suits(model, longest) else None
