"""Packs a batch on the processor, from the arrays as they were read, so that nobody waits for the GPU.

Legend: B sentences, S source length, T target length, M source pieces, N target pieces of all sentences.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.packing import PackedBatch, Packing

Ids = NDArray[np.int64]

# Of rooms for pieces, between two powers of two: a 32nd is empty on average. Steps of training have about as many
# target pieces all of them, for which rooms fit better.
_STEPS, _TARGET_STEPS = 32, 64
_LEAST_STEP, _LEAST_LENGTH = 64, 16


class PackedSize(NamedTuple):
    """Of a packed batch: all that a recorded step goes by."""

    sentences: int
    source: int
    """M."""
    target: int
    """N."""
    longest: tuple[int, int]
    """Pieces of a source, and of a target, at most."""
    counted: bool = False
    """Whether it is told how many of the target's pieces there are: rooms are larger."""


class LaidOut(NamedTuple):
    """A batch as a GPU is given it: in one copy, in place of ten."""

    numbers: Ids
    size: PackedSize


def lay_out(source: Ids, target: Ids, *, pad_id: int, start_id: int, rooms_for: int | None = None) -> LaidOut | None:
    """A batch without its padding.

    Args:
        source: (B, S), padded at the right.
        target: (B, T), likewise.
        pad_id: fills short rows.
        start_id: what the decoder is given first.
        rooms_for: where batches are to come in few sizes: how long a sentence may be at all. What is left of a room is
            filled with sentences of padding, which do not count. None: as large as the batch is.

    Returns:
        None where a sentence has no piece, or padding in between.
    """
    sources, targets = _Side.of(source, pad_id), _Side.of(target, pad_id)
    if sources is None or targets is None:
        return None
    inputs = np.concatenate([np.full_like(target[:, :1], start_id), target[:, :-1]], axis=1)
    ids = [sources.take(source), targets.take(inputs), targets.take(target)]
    longest = int(sources.counts.max()), int(targets.counts.max())
    if rooms_for is None:
        size = PackedSize(len(source), len(ids[0]), len(ids[1]), longest)
        return LaidOut(_joined(ids, sources.counts, targets.counts), size)
    room = max(*longest, min(rooms_for, max(_LEAST_LENGTH, _power_of_2(max(longest)))))
    size = _rooms(len(source), len(ids[0]), len(ids[1]), room)
    empty = size.source - len(ids[0]), size.target - len(ids[1])
    ends = empty[0], empty[1], empty[1]
    ids = [np.pad(each, (0, end), constant_values=pad_id) for each, end in zip(ids, ends, strict=True)]
    # A filler's target looks at its source, which so must have a piece: `_rooms` leaves as many.
    fillers = max(-(-left // room) for left in empty)
    nobody = np.zeros(size.sentences - len(source) - fillers, np.int64)
    source_counts = np.concatenate([sources.counts, _shares(empty[0], fillers), nobody])
    target_counts = np.concatenate([targets.counts, _shares(empty[1], fillers), nobody])
    return LaidOut(np.append(_joined(ids, source_counts, target_counts), len(targets.places)), size)


def unpack(numbers: Tensor, size: PackedSize) -> PackedBatch:
    """What was laid out, once it is where it is wanted; nothing waits for its values."""
    source, target, labels, *others = numbers.split(_lengths(size))
    packings = [
        Packing(starts.to(torch.int32), counts.to(torch.int32), positions, longest)
        for (positions, starts, counts), longest in zip((others[:3], others[3:6]), size.longest, strict=True)
    ]
    present = torch.arange(size.target, device=numbers.device) < others[6] if size.counted else None
    return PackedBatch(source[None], packings[0], target[None], packings[1], labels[None], present)


def _lengths(size: PackedSize) -> list[int]:
    sentences = size.sentences
    sides = [size.source, sentences, sentences, size.target, sentences, sentences]
    return [size.source, size.target, size.target, *sides, *[1] * size.counted]


class _Side(NamedTuple):
    places: Ids
    """Of every piece in the padded batch, flattened."""
    counts: Ids
    """Pieces of each sentence, (B,)."""

    @staticmethod
    def of(ids: Ids, pad_id: int) -> "_Side | None":
        present = ids != pad_id
        counts = present.sum(axis=1)
        if not len(ids) or counts.min() < 1 or not np.array_equal(present, np.arange(ids.shape[1]) < counts[:, None]):
            return None
        return _Side(np.flatnonzero(present), counts)

    def take(self, ids: Ids) -> Ids:
        return ids.ravel()[self.places]


def _joined(ids: list[Ids], *counts: Ids) -> Ids:
    """As `unpack` cuts it: ids, and of each side positions, starts and counts."""
    parts = list(ids)
    for each in counts:
        starts = np.cumsum(each) - each
        parts += [np.arange(int(each.sum())) - np.repeat(starts, each), starts, each]
    return np.concatenate(parts)


def _rooms(sentences: int, source: int, target: int, longest: int) -> PackedSize:
    """Rooms for so many sentences and pieces, and for sentences of so many."""
    targets = _room(target, _TARGET_STEPS)
    sources = _room(source + -(-(targets - target) // longest), _STEPS)
    fillers = max(-(-left // longest) for left in (targets - target, sources - source))
    return PackedSize(_power_of_2(sentences + fillers), sources, targets, (longest, longest), counted=True)


def _room(pieces: int, steps: int) -> int:
    step = max(_LEAST_STEP, _power_of_2(pieces) // (2 * steps))
    return -(-pieces // step) * step


def _shares(total: int, count: int) -> Ids:
    """So many numbers, as equal as they can be, the larger ones first."""
    return np.full(count, total // max(1, count)) + (np.arange(count) < total % max(1, count))


def _power_of_2(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
