"""Sentences one after another, with no padding in between: a batch as a GPU trains on it.

Everything but attention looks at one position at a time, so a batch (B, T) can be one row of its N pieces. Who may
attend to whom is then told by where each sentence begins and how long it is.
Legend: B sentences, S source length, T target length, M source pieces of all sentences, N target pieces of all.
"""

from typing import NamedTuple

from torch import Tensor


class Packing(NamedTuple):
    """Where the sentences of a packed batch stand."""

    starts: Tensor
    """The first place of each, int32, (B,)."""
    counts: Tensor
    """Its pieces, at least one, int32, (B,)."""
    positions: Tensor
    """Of every piece in its sentence, int64, (N,)."""
    longest: int


class PackedMask(NamedTuple):
    """Each query attends to the keys of its own sentence, and with `causal` to none that follow it."""

    queries: Packing
    keys: Packing
    causal: bool = False


class PackedBatch(NamedTuple):
    """Pairs of sentences."""

    source: Tensor
    """Piece ids, int64, (1, M)."""
    source_packing: Packing
    target_input: Tensor
    """What the decoder is given: the target shifted right by the start symbol, int64, (1, N)."""
    target_packing: Packing
    labels: Tensor
    """The pieces to predict, int64, (1, N)."""
    present: Tensor | None = None
    """Which of them count, (N,), where rooms are larger than what is in them; None: all."""
