"""Packing of a batch on the CPU, from the arrays as they were read, so that no step waits for the GPU.

Legend: B sentences, S source length, T target length, M source tokens, N target tokens of all sentences.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.packing import PackedBatch, Packing

Ids = NDArray[np.int64]

# Capacity steps between two powers of two: a 32nd of the capacity is unused on average. Training steps have similar
# numbers of target tokens, for which finer steps fit better.
_STEPS, _TARGET_STEPS = 32, 64
_LEAST_STEP, _LEAST_LENGTH = 64, 16


class PackedSize(NamedTuple):
    """The sizes of a packed batch, on which alone a recorded step depends."""

    sentences: int
    source: int
    """M, the number of source tokens."""
    target: int
    """N, the number of target tokens."""
    longest: tuple[int, int]
    """The length of the longest source and of the longest target, in tokens."""
    counted: bool = False
    """Whether the batch stores its number of target tokens, since the buffers are larger."""


class LaidOut(NamedTuple):
    """A batch as one array, which is copied to a GPU at once instead of as ten tensors."""

    numbers: Ids
    size: PackedSize


def lay_out(source: Ids, target: Ids, *, pad_id: int, start_id: int, rooms_for: int | None = None) -> LaidOut | None:
    """Return a batch without its padding.

    Args:
        source: (B, S), padded at the right.
        target: (B, T), padded at the right.
        pad_id: the padding id.
        start_id: the first input of the decoder.
        rooms_for: if batches must have few distinct sizes: the greatest permitted sentence length. Unused capacity is
            filled with sentences of padding, which do not count. None: the sizes are exact.

    Returns:
        None if a sentence is empty or has padding between tokens.
    """
    sources, targets = _Side.of(source, pad_id), _Side.of(target, pad_id)
    if sources is None or targets is None:
        return None
    inputs = np.concatenate([np.full_like(target[:, :1], start_id), target[:, :-1]], axis=1)
    ids = [sources.take(source), targets.take(inputs), targets.take(target)]
    longest = int(sources.counts.max()), int(targets.counts.max())
    if rooms_for is None:
        size = PackedSize(len(source), len(ids[0]), len(ids[1]), longest)
        return LaidOut(_concatenated(ids, sources.counts, targets.counts), size)
    capacity_length = max(*longest, min(rooms_for, max(_LEAST_LENGTH, _power_of_2(max(longest)))))
    size = _padded_size(len(source), len(ids[0]), len(ids[1]), capacity_length)
    empty = size.source - len(ids[0]), size.target - len(ids[1])
    ends = empty[0], empty[1], empty[1]
    ids = [np.pad(each, (0, end), constant_values=pad_id) for each, end in zip(ids, ends, strict=True)]
    # A filler's target attends to its source, which must have a token: `_padded_size` leaves enough.
    fillers = max(-(-left // capacity_length) for left in empty)
    no_tokens = np.zeros(size.sentences - len(source) - fillers, np.int64)
    source_counts = np.concatenate([sources.counts, _shares(empty[0], fillers), no_tokens])
    target_counts = np.concatenate([targets.counts, _shares(empty[1], fillers), no_tokens])
    return LaidOut(np.append(_concatenated(ids, source_counts, target_counts), len(targets.offsets)), size)


def unpack(numbers: Tensor, size: PackedSize) -> PackedBatch:
    """Split a laid-out batch into the tensors of a packed batch, on its device, without waiting for its values."""
    source, target, labels, *rest = numbers.split(_lengths(size))
    packings = [
        Packing(starts.to(torch.int32), counts.to(torch.int32), positions, longest)
        for (positions, starts, counts), longest in zip((rest[:3], rest[3:6]), size.longest, strict=True)
    ]
    present = torch.arange(size.target, device=numbers.device) < rest[6] if size.counted else None
    return PackedBatch(source[None], packings[0], target[None], packings[1], labels[None], present)


def _lengths(size: PackedSize) -> list[int]:
    sentences = size.sentences
    sides = [size.source, sentences, sentences, size.target, sentences, sentences]
    return [size.source, size.target, size.target, *sides, *[1] * size.counted]


class _Side(NamedTuple):
    """The tokens of the sources or of the targets of a padded batch."""

    offsets: Ids
    """The offset of each token in the flattened padded batch."""
    counts: Ids
    """The number of tokens of each sentence, (B,)."""

    @staticmethod
    def of(ids: Ids, pad_id: int) -> "_Side | None":
        """Return the tokens of a padded batch; None if a sentence is empty or has padding between tokens."""
        present = ids != pad_id
        counts = present.sum(axis=1)
        if not len(ids) or counts.min() < 1 or not np.array_equal(present, np.arange(ids.shape[1]) < counts[:, None]):
            return None
        return _Side(np.flatnonzero(present), counts)

    def take(self, ids: Ids) -> Ids:
        """Return the tokens of a padded array as one vector."""
        return ids.ravel()[self.offsets]


def _concatenated(ids: list[Ids], *counts: Ids) -> Ids:
    """Return the ids and, for each side, positions, starts and counts as one vector, which `unpack` splits."""
    parts = list(ids)
    for each in counts:
        starts = np.cumsum(each) - each
        parts += [np.arange(int(each.sum())) - np.repeat(starts, each), starts, each]
    return np.concatenate(parts)


def _padded_size(sentences: int, source: int, target: int, longest: int) -> PackedSize:
    """Return capacities for a number of sentences and tokens, with filler sentences of length `longest`."""
    targets = _rounded_up(target, _TARGET_STEPS)
    sources = _rounded_up(source + -(-(targets - target) // longest), _STEPS)
    fillers = max(-(-left // longest) for left in (targets - target, sources - source))
    return PackedSize(_power_of_2(sentences + fillers), sources, targets, (longest, longest), counted=True)


def _rounded_up(tokens: int, steps: int) -> int:
    """Round a number of tokens up to a capacity."""
    step = max(_LEAST_STEP, _power_of_2(tokens) // (2 * steps))
    return -(-tokens // step) * step


def _shares(total: int, count: int) -> Ids:
    """Split `total` into `count` numbers that differ by at most one, larger ones first."""
    return np.full(count, total // max(1, count)) + (np.arange(count) < total % max(1, count))


def _power_of_2(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
