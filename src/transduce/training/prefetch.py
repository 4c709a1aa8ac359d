"""Prepare batches ahead of time: prefetch in a background thread, pack without padding, and compute packed losses.

Legend: B sentences, S source length, T target length, M source tokens, N target tokens of all sentences.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches import Batch, Plan
from transduce.kernel_interfaces import LossRecorder, PackedAttention, TrainingKernels
from transduce.model.backend import backend_in_use
from transduce.model.masks import PackedBatch, Packing
from transduce.model.transformer import Transformer
from transduce.training.loss import Loss, row_cross_entropy

# --- prefetching ---


@runtime_checkable
class Prefetching(Protocol):
    """An interface of loss functions that can prepare a batch on the CPU before its loss is computed."""

    def prefetch(self, batch: Any) -> None:
        """Prepare a batch on the CPU before its loss is computed; any thread may call this."""


class PrefetchedBatches:
    """A wrapper of a plan of batches that prepares each batch in a background thread while the one before is computed.

    The wrapper is for training on a GPU. On a CPU, the thread would take time from the computation.
    """

    def __init__(self, batches: Plan[Any], loss: object = None) -> None:
        """Create a wrapper of `batches`; if the loss has the method `prefetch`, the thread also calls it."""
        self._batches = batches
        self._prefetch = loss.prefetch if isinstance(loss, Prefetching) else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[tuple[int, int], Future[Any]] | None = None

    def __len__(self) -> int:
        """Return the number of micro-batches in an epoch."""
        return len(self._batches)

    def batch(self, epoch: int, position: int) -> Any:
        """Return a micro-batch, and start preparing the next one in the background thread."""
        requested, prefetched = (epoch, position), self._next
        future = prefetched[1] if prefetched is not None and prefetched[0] == requested else self._begin(requested)
        batch = future.result()
        following = divmod(epoch * len(self) + position + 1, len(self))
        self._next = following, self._begin(following)
        return batch

    def _begin(self, position: tuple[int, int]) -> "Future[Any]":
        return self._thread.submit(self._make, position)

    def _make(self, position: tuple[int, int]) -> Any:
        batch = self._batches.batch(*position)
        if self._prefetch is not None:
            self._prefetch(batch)
        return batch


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array of a batch as a tensor on `device`; a copy to a GPU overlaps with computation on it."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


# --- packing ---
# Batches are packed on the CPU from the arrays of the corpus, so that no step waits for the GPU.


Ids = NDArray[np.int64]

# Capacity steps between two powers of two: a 32nd of the capacity is unused on average. Training steps have similar
# numbers of target tokens, for which finer steps fit better.
_STEPS, _TARGET_STEPS = 32, 64
_MIN_STEP, _MIN_LENGTH = 64, 16


class PackedSize(NamedTuple):
    """The sizes of a packed batch (without padding), possibly rounded up; batches of equal sizes share a CUDA graph."""

    sentences: int
    source: int
    """The number M of source tokens of the whole batch, including any padding at its end."""
    target: int
    """The number N of target tokens of the whole batch, including any padding at its end."""
    max_lengths: tuple[int, int]
    """The length of the longest source and of the longest target, in tokens."""
    counted: bool = False
    """True if the batch's array also stores the number of real target tokens, because the sizes include padding."""


class PackedArrays(NamedTuple):
    """A batch without padding as one array, `numbers`, which is copied to a GPU at once instead of as ten tensors."""

    numbers: Ids
    size: PackedSize


def pack_arrays(
    source: Ids, target: Ids, *, pad_id: int, start_id: int, capacity_for: int | None = None
) -> PackedArrays | None:
    """Concatenate the sentences of a batch, without their padding, in one array.

    The array also holds the positions of the tokens, and the start and length of each sentence. `unpack` splits it.

    Args:
        source: token ids, (B, S), padded at the right.
        target: token ids, (B, T), padded at the right.
        pad_id: the padding id.
        start_id: the first input of the decoder.
        capacity_for: the maximum permitted sentence length, if sizes are to be rounded up so that few distinct sizes
            occur. Sentences of padding then fill the difference, and do not count in the loss. None: exact sizes.

    Returns:
        The array and its sizes; None if a sentence is empty or has padding between tokens.
    """
    sources, targets = _SidePositions.of(source, pad_id), _SidePositions.of(target, pad_id)
    if sources is None or targets is None:
        return None
    inputs = np.concatenate([np.full_like(target[:, :1], start_id), target[:, :-1]], axis=1)
    ids = [sources.take(source), targets.take(inputs), targets.take(target)]
    max_lengths = int(sources.counts.max()), int(targets.counts.max())
    if capacity_for is None:
        size = PackedSize(len(source), len(ids[0]), len(ids[1]), max_lengths)
        return PackedArrays(_concatenated(ids, sources.counts, targets.counts), size)
    capacity_length = max(*max_lengths, min(capacity_for, max(_MIN_LENGTH, _power_of_2(max(max_lengths)))))
    size = _padded_size(len(source), len(ids[0]), len(ids[1]), capacity_length)
    empty = size.source - len(ids[0]), size.target - len(ids[1])
    ends = empty[0], empty[1], empty[1]
    ids = [np.pad(each, (0, end), constant_values=pad_id) for each, end in zip(ids, ends, strict=True)]
    # A filler's target attends to its source, which must have a token: `_padded_size` leaves enough.
    fillers = max(-(-left // capacity_length) for left in empty)
    no_tokens = np.zeros(size.sentences - len(source) - fillers, np.int64)
    source_counts = np.concatenate([sources.counts, _shares(empty[0], fillers), no_tokens])
    target_counts = np.concatenate([targets.counts, _shares(empty[1], fillers), no_tokens])
    return PackedArrays(np.append(_concatenated(ids, source_counts, target_counts), len(targets.offsets)), size)


def unpack(numbers: Tensor, size: PackedSize) -> PackedBatch:
    """Split the vector of a packed batch (without padding) into its tensors, a `PackedBatch` on the same device.

    Nothing is read back from a GPU.
    """
    source, target, labels, *rest = numbers.split(_lengths(size))
    packings = [
        Packing(starts.to(torch.int32), counts.to(torch.int32), positions, max_length)
        for (positions, starts, counts), max_length in zip((rest[:3], rest[3:6]), size.max_lengths, strict=True)
    ]
    present = torch.arange(size.target, device=numbers.device) < rest[6] if size.counted else None
    return PackedBatch(source[None], packings[0], target[None], packings[1], labels[None], present)


def _lengths(size: PackedSize) -> list[int]:
    sentences = size.sentences
    sides = [size.source, sentences, sentences, size.target, sentences, sentences]
    return [size.source, size.target, size.target, *sides, *[1] * size.counted]


class _SidePositions(NamedTuple):
    """The positions of the tokens of one side of a batch, sources or targets, in the padded array."""

    offsets: Ids
    """The offset of each token in the padded batch (B, L), flattened."""
    counts: Ids
    """The number of tokens of each sentence, (B,)."""

    @staticmethod
    def of(ids: Ids, pad_id: int) -> "_SidePositions | None":
        """Locate the tokens of a padded batch (B, L); None if a sentence is empty or has padding between tokens."""
        present = ids != pad_id
        counts = present.sum(axis=1)
        if not len(ids) or counts.min() < 1 or not np.array_equal(present, np.arange(ids.shape[1]) < counts[:, None]):
            return None
        return _SidePositions(np.flatnonzero(present), counts)

    def take(self, ids: Ids) -> Ids:
        """Return, as one vector, the elements of an array (B, L) at the positions of this side's tokens."""
        return ids.ravel()[self.offsets]


def _concatenated(ids: list[Ids], *counts: Ids) -> Ids:
    """Join the parts of a packed batch (without padding) into one vector, which `unpack` splits again.

    Args:
        ids: vectors of token ids.
        counts: for the sources and for the targets, the number of tokens of each sentence. The positions of tokens and
            the starts of sentences are derived from `counts`.
    """
    parts = list(ids)
    for each in counts:
        starts = np.cumsum(each) - each
        parts += [np.arange(int(each.sum())) - np.repeat(starts, each), starts, each]
    return np.concatenate(parts)


def _padded_size(sentences: int, source: int, target: int, max_length: int) -> PackedSize:
    """Return the sizes of a packed batch, rounded up so that few distinct sizes, and CUDA graphs, occur.

    Sentences of padding, of at most `max_length` tokens, fill the difference.
    """
    targets = _rounded_up(target, _TARGET_STEPS)
    sources = _rounded_up(source + -(-(targets - target) // max_length), _STEPS)
    fillers = max(-(-left // max_length) for left in (targets - target, sources - source))
    return PackedSize(_power_of_2(sentences + fillers), sources, targets, (max_length, max_length), counted=True)


def _rounded_up(tokens: int, steps: int) -> int:
    """Round a number of tokens up to a multiple of a power of 2, so that few sizes and CUDA graphs occur.

    The power of 2 is at least 64 and grows with the number; a larger `steps` gives more sizes.
    """
    step = max(_MIN_STEP, _power_of_2(tokens) // (2 * steps))
    return -(-tokens // step) * step


def _shares(total: int, count: int) -> Ids:
    """Split `total` into an array of `count` integers that differ by at most one, larger ones first."""
    return np.full(count, total // max(1, count)) + (np.arange(count) < total % max(1, count))


def _power_of_2(minimum: int) -> int:
    """Return the smallest power of 2 that is at least `minimum`."""
    return 1 << max(0, minimum - 1).bit_length()


# --- loss of a packed batch ---


class _Recording:
    """A namespace for the process's switch that disables CUDA graphs, because a replayed graph runs no hooks."""

    is_disabled = False


@contextmanager
def recording_disabled() -> Iterator[None]:
    """Disable recorded CUDA graphs in the body of `with`, so that hooks on modules and gradients run."""
    before, _Recording.is_disabled = _Recording.is_disabled, True
    try:
        yield
    finally:
        _Recording.is_disabled = before


class PackedLoss:
    """A loss function for packed batches: the teacher-forced cross-entropy of a Transformer, summed over tokens."""

    def __init__(self, model: Transformer, label_smoothing: float, *, cuda_graphs: bool = False) -> None:
        """Create the loss function of a model; `cuda_graphs`: record training steps as CUDA graphs and replay them."""
        self._model, self._label_smoothing, self._records = model, label_smoothing, cuda_graphs
        self._recorder: LossRecorder | None = None
        self._prefetched: WeakKeyDictionary[Batch, PackedArrays] = WeakKeyDictionary()

    def __call__(self, batch: Batch) -> Loss | None:
        """Return the loss of a batch, computed without padding.

        The result is None if the batch cannot be packed, or the backend has no kernels for that: the caller must then
        compute the loss otherwise.
        """
        model = self._model
        packed = _packed_attention(model, batch)
        if packed is None:
            return None
        records = self._records_batch(batch) and model.training and torch.is_grad_enabled()
        arrays = self._prefetched.pop(batch, None)
        if arrays is None or arrays.size.counted != records:
            arrays = self._pack(batch, with_capacity=records)
        if arrays is None:
            return None
        if records:
            self._recorder = self._recorder or packed.record_losses(model)
            return self._replay(packed, self._recorder, arrays, batch.target_tokens)
        device = model.source_weight.device
        weights = token_weights(batch, device, model.config.pad_id)
        return self._loss(packed, unpack(to_device(arrays.numbers, device), arrays.size), weights)

    def prefetch(self, batch: Batch) -> None:
        """Pack a batch (remove its padding) ahead of time, and keep the arrays until its loss is computed."""
        if _packed_attention(self._model, batch) is not None:
            arrays = self._pack(batch, with_capacity=self._records_batch(batch))
            if arrays is not None:
                self._prefetched[batch] = arrays

    def _records_batch(self, batch: Batch) -> bool:
        """Return whether a batch's loss may come from a recorded CUDA graph.

        The result is False if the batch's pairs have weights, and in the body of `recording_disabled`, because a graph
        runs no hooks.
        """
        return self._records and batch.weights is None and not _Recording.is_disabled

    def _pack(self, batch: Batch, *, with_capacity: bool) -> PackedArrays | None:
        """Pack a batch without padding; None if the batch has an empty sentence or padding between tokens.

        `with_capacity` rounds the batch's sizes up to one of few, for recorded CUDA graphs.
        """
        config = self._model.config
        max_length = config.max_positions if config.positions == "learned" else 1 << 30
        capacity_for = max_length if with_capacity else None
        return pack_arrays(
            batch.source, batch.target, pad_id=config.pad_id, start_id=config.start_id, capacity_for=capacity_for
        )

    def _replay(self, packed: PackedAttention, recorder: LossRecorder, arrays: PackedArrays, tokens: int) -> Loss:
        """Return the loss of a packed batch, computed by the CUDA graph for batches of its sizes.

        `tokens` is the number of target tokens.
        """

        def compute(numbers: Tensor) -> tuple[Tensor, Tensor]:
            return self._loss(packed, unpack(numbers, arrays.size))[:2]

        return Loss(*recorder(arrays.size, arrays.numbers, compute), tokens)

    def _loss(self, packed: PackedAttention, batch: PackedBatch, factors: Tensor | None = None) -> Loss:
        return row_cross_entropy(
            packed.hidden(self._model, batch)[0],
            self._model.output_weight,
            batch.labels[0],
            bias=self._model.output_bias,
            present=batch.present,
            frozen_row=self._model.config.frozen_row,
            label_smoothing=self._label_smoothing,
            factors=factors,
        )


def sentence_weights(batch: Batch, device: torch.device) -> Tensor | None:
    """Return the weight of each pair of a batch, (B,), on a device; None if the pairs have no weights."""
    return None if batch.weights is None else to_device(batch.weights, device)


def token_weights(batch: Batch, device: torch.device, pad_id: int) -> Tensor | None:
    """Return the weight of each target token of a batch, (N,), on a device; None if the pairs have no weights."""
    if batch.weights is None:
        return None
    return to_device(np.repeat(batch.weights, (batch.target != pad_id).sum(axis=1)), device)


def _packed_attention(model: Transformer, batch: Batch) -> PackedAttention | None:
    """Return the backend's kernels that compute the model on a batch without padding.

    The result is None if there is no backend, or its kernels do not support the model or the longest sentence.
    """
    kernels: TrainingKernels | None = backend_in_use()
    packed = None if kernels is None else kernels.packed
    max_length = max(batch.source.shape[1], batch.target.shape[1])
    return packed if packed is not None and packed.supports(model, max_length) else None
