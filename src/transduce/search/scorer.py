"""What search asks of a model: one step, and what became of the hypotheses.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary.
"""

from typing import Protocol

import msgspec
from torch import Tensor


class Scorer(Protocol):
    """A model in the middle of decoding a batch. Holds the cache."""

    def step(self, pieces: Tensor) -> Tensor:
        """Scores of the next piece after each hypothesis.

        Args:
            pieces: the newest piece of each hypothesis, (B, W); at the first step the start symbol, (B, 1).

        Returns:
            Logits, (B, W, V), of any floating type; search normalises them, and rules may write into them.
        """

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]; (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences are finished and leave the batch; rows are distinct and ascending, (B',)."""


class Hypothesis(msgspec.Struct, frozen=True):
    """One target sequence found by search."""

    ids: tuple[int, ...]
    """The pieces, without start and end symbols."""
    piece_log_probabilities: tuple[float, ...]
    """Natural logarithms, one a piece and, when `ended`, one for the end symbol."""
    score: float
    """What hypotheses are ranked by: the log-probability over the length penalty."""
    ended: bool
    """False where the maximum length cut it."""

    @property
    def log_probability(self) -> float:
        """The sum over the pieces and the end symbol, in nats."""
        return sum(self.piece_log_probabilities)
