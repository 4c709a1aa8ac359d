"""Packed batches: sentences one after another without padding, as a GPU trains on them.

Only attention looks at more than one position, so a batch (B, T) can be one row of its N tokens. The start and the
length of each sentence then say which positions attend to each other.
Legend: B sentences, S source length, T target length, M source tokens of all sentences, N target tokens of all.
"""

from typing import NamedTuple

from torch import Tensor


class Packing(NamedTuple):
    """The positions of the sentences in a packed batch."""

    starts: Tensor
    """The index of each sentence's first token, int32, (B,)."""
    counts: Tensor
    """The number of tokens of each sentence, at least one, int32, (B,)."""
    positions: Tensor
    """The position of each token in its sentence, int64, (N,)."""
    longest: int


class PackedMask(NamedTuple):
    """A mask by which each query attends to the keys of its own sentence, and if `causal` to none that follow it."""

    queries: Packing
    keys: Packing
    causal: bool = False


class PackedBatch(NamedTuple):
    """Pairs of sentences in one packed batch."""

    source: Tensor
    """Token ids, int64, (1, M)."""
    source_packing: Packing
    target_input: Tensor
    """The decoder's input: the target shifted right by the start symbol, int64, (1, N)."""
    target_packing: Packing
    labels: Tensor
    """The token ids to predict, int64, (1, N)."""
    present: Tensor | None = None
    """Which labels count, (N,), if the buffers are larger than their contents; None: all."""
