"""The order in which pairs are read: pure functions of lengths, seed, epoch and block.

A corpus is cut into chunks of consecutive pairs, and the seed assigns the chunks to blocks, once for all epochs.
Inside a block, pairs are sorted by length. From epoch to epoch, only these change: the order of the blocks, the order
of the batches in a block, and the order of pairs of equal lengths.
"""

import numpy as np
from numpy.typing import NDArray

CHUNK_PAIRS = 256
BLOCK_PAIRS = 65_536
_CHUNKS = 1  # makes this random order independent of the others
_HALF = 1 << 31  # makes differences of lengths positive

Run = tuple[int, int]
Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]


def permutation(size: int, *key: int) -> Indices:
    """Return a random order of ``range(size)`` that depends only on the key.

    It sorts the raw bits of a counter-based generator (Philox), which numpy keeps stable across versions.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(size)
    return np.argsort(bits, kind="stable")


class Blocks:
    """An assignment of the corpus's pairs to blocks of at least ``BLOCK_PAIRS``; a small corpus is one block."""

    def __init__(self, pairs: int, seed: int) -> None:
        chunks = -(-pairs // CHUNK_PAIRS)
        self.pairs = pairs
        self.count = max(1, pairs // BLOCK_PAIRS)
        self._chunks = np.array_split(permutation(chunks, seed, _CHUNKS), self.count)

    def runs(self, block: int) -> list[Run]:
        """Return a block's pairs as runs (start, stop) of consecutive pairs, in ascending order."""
        chunks = np.sort(self._chunks[block])
        breaks = np.flatnonzero(np.diff(chunks) > 1) + 1
        return [
            (int(run[0]) * CHUNK_PAIRS, min(int(run[-1] + 1) * CHUNK_PAIRS, self.pairs))
            for run in np.split(chunks, breaks)
        ]


def length_order(source_lengths: Lengths, target_lengths: Lengths, ties: Indices) -> Indices:
    """Return an order of the pairs in which neighbors have similar lengths; ties are sorted by ``ties``.

    Pairs are sorted by the length of their longer side. Within one such length the order leads from a long source
    with a short target, over equal lengths, to a short source with a long target; within the next length it runs in
    reverse. So neighbors never differ by much, and a batch that spans two lengths has little padding.
    """
    longer = np.maximum(source_lengths, target_lengths)
    difference = target_lengths - source_lengths
    return np.lexsort((ties, np.where(longer % 2 == 0, difference, -difference), longer))


def in_length_order(source_lengths: Lengths, target_lengths: Lengths) -> tuple[Lengths, Lengths]:
    """Return the lengths in the order of ``length_order``, ignoring ties, which is several times as fast."""
    longer = np.maximum(source_lengths, target_lengths).astype(np.int64)
    difference = target_lengths.astype(np.int64) - source_lengths
    key = longer << 32 | np.where(longer % 2 == 0, difference, -difference) + _HALF
    key.sort()
    longer, signed = key >> 32, (key & 0xFFFFFFFF) - _HALF
    difference = np.where(longer % 2 == 0, signed, -signed)
    source, target = longer - np.maximum(difference, 0), longer + np.minimum(difference, 0)
    return source.astype(np.int32), target.astype(np.int32)


def cut_batches(source_lengths: Lengths, target_lengths: Lengths, batch_tokens: int, max_padded_tokens: int) -> Indices:
    """Return where batches begin and the last one ends, for pairs sorted by length: (batches + 1,).

    Each batch is the longest run with at most ``batch_tokens`` target tokens, and at most ``max_padded_tokens`` per
    side with padding; a pair that exceeds these limits alone is a batch.
    """
    target_before = np.concatenate(([0], np.cumsum(target_lengths, dtype=np.int64)))
    starts = [0]
    while starts[-1] < len(target_lengths):
        start = starts[-1]
        stop = int(np.searchsorted(target_before, target_before[start] + batch_tokens, side="right")) - 1
        for lengths in (source_lengths[start:stop], target_lengths[start:stop]):
            if not len(lengths) or int(lengths.max()) * len(lengths) <= max_padded_tokens:
                continue  # padded size grows with every row, so smaller prefixes fit too
            padded = np.maximum.accumulate(lengths.astype(np.int64)) * np.arange(1, len(lengths) + 1)
            stop = min(stop, start + int(np.searchsorted(padded, max_padded_tokens, side="right")))
        starts.append(max(stop, start + 1))
    return np.array(starts, dtype=np.int64)
