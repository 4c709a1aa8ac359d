"""What search asks of a model, what it tells whoever watches, and what it finds.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec
from torch import Tensor


class Scorer(Protocol):
    """A model in the middle of decoding a batch. Holds the cache."""

    def step(self, pieces: Tensor) -> Tensor:
        """Scores of the next piece after each hypothesis.

        Args:
            pieces: the newest piece of each hypothesis, (B, W); at the first step the start symbol, (B, 1).

        Returns:
            Logits, (B, W, V), of any floating type, minus infinity where a piece is never written (padding, the start
            symbol). Search normalises them, and rules may write into them.
        """

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]; (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences are finished and leave the batch; rows are distinct and ascending, (B',)."""


class Observer(Protocol):
    """Watches a search from step to step, and may have sentences given up: whoever asked has gone, or time is up."""

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """Called after every step that leaves sentences to be decoded.

        Args:
            rows: the places of the sentences that are still decoded, (B,).
            pieces: their hypotheses so far, the best live one first, (B, W, t). The last one of a beam is the best that
                has ended already, where there is one, filled up with end symbols: what all hypotheses begin with is
                what the result will begin with.

        Returns:
            The places to give up. These sentences leave the batch at once and come back with what they have.
        """


class Bounds(NamedTuple):
    """Where hypotheses begin and end."""

    start_id: int
    """What the decoder is given first."""
    eos_id: int
    """The end symbol."""
    longest: Tensor
    """The greatest number of pieces of each sentence, end symbol included, int64 (N,)."""


class Hypothesis(msgspec.Struct, frozen=True):
    """One target sequence found by search."""

    ids: tuple[int, ...]
    """The pieces, without start and end symbols."""
    piece_log_probabilities: tuple[float, ...]
    """Natural logarithms, one a piece and, when `ended`, one for the end symbol: the model's own, whatever the rules
    forbade."""
    score: float
    """What hypotheses are ranked by: the log-probability over the length penalty, and the coverage penalty."""
    ended: bool
    """False where the maximum length cut it, or the search for it was given up."""

    @property
    def log_probability(self) -> float:
        """The sum over the pieces and the end symbol, in nats."""
        return sum(self.piece_log_probabilities)
