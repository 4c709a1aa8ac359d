"""Interfaces between search and its surroundings: the model, observers, and the hypotheses found.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

import msgspec
from torch import Tensor


class Scorer(Protocol):
    """A model during the decoding of a batch, with its KV cache."""

    def step(self, pieces: Tensor) -> Tensor:
        """Return the scores of the next token of each hypothesis.

        Args:
            pieces: the newest token of each hypothesis, (B, W); at the first step the start symbol, (B, 1).

        Returns:
            Logits, (B, W, V), of any floating dtype, minus infinity for tokens that are never written (padding, the
            start symbol). Search normalizes them, and rules may overwrite them.
        """

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by its parent, hypothesis parents[b, w]; parents is (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only these rows of the batch, as the other sentences are finished; rows are ascending, (B',)."""


class Observer(Protocol):
    """A callback after each step, which can end the search for sentences after a timeout or a closed connection."""

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """Handle a step that leaves sentences to be decoded.

        Args:
            rows: the indices of the sentences that are still decoded, (B,).
            pieces: their hypotheses so far, the best live one first, (B, W, t). The last one of a beam is the best
                finished one, if there is one, padded with end symbols. So the common prefix of all hypotheses is a
                prefix of the result.

        Returns:
            The indices of sentences to give up. They leave the batch at once with the hypotheses they have.
        """


class Bounds(NamedTuple):
    """The start and end symbol of hypotheses and their greatest lengths."""

    start_id: int
    """The first input of the decoder."""
    eos_id: int
    """The end symbol."""
    longest: Tensor
    """The greatest length of each hypothesis in tokens, including the end symbol, int64 (N,)."""


class Hypothesis(msgspec.Struct, frozen=True):
    """A target sequence found by search."""

    ids: tuple[int, ...]
    """The tokens, without start and end symbols."""
    piece_log_probabilities: tuple[float, ...]
    """Natural logarithms of the model's probabilities, without rules, one per token plus one for the end symbol if
    `ended`.
    """
    score: float
    """The ranking score: log-probability over the length penalty, plus the coverage penalty."""
    ended: bool
    """False if the hypothesis was cut at the greatest length or its sentence was given up."""

    @property
    def log_probability(self) -> float:
        """The sum over the tokens and the end symbol, in nats."""
        return sum(self.piece_log_probabilities)
