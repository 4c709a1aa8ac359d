"""Interfaces between search and its surroundings: the model, observers, and the hypotheses found.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec
import torch
from torch import Tensor

from transduce.search.coverage import AttentiveScorer


class Scorer(Protocol):
    """A model during the decoding of a batch, with its KV cache."""

    def step(self, tokens: Tensor) -> Tensor:
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

    def after_step(self, rows: Tensor, tokens: Tensor) -> Collection[int]:
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
    token_log_probabilities: tuple[float, ...]
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
        return sum(self.token_log_probabilities)


# --- loop ---
# The search loop: it advances a search step by step until no sentence is left.
# Legend: B sentences still in the batch, W hypotheses of each, t tokens so far.


_MANY = 2**31  # steps: no limit before all sentences are finished


class Search(Protocol):
    """A search in progress for the target sequences of a batch."""

    @property
    def rows(self) -> Tensor:
        """The indices of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int = 1) -> None:
        """Take one step, or up to `steps` if that is faster.

        In a step every hypothesis grows by one token, and finished sentences leave the batch.
        """

    def hypotheses(self) -> Tensor:
        """Return the hypotheses for `Observer.after_step`, (B, W, t)."""

    def abandon(self, places: Collection[int]) -> None:
        """Remove sentences from the batch with the hypotheses they have; indices of finished sentences are ignored."""

    def found(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of all finished sentences, best first; empty lists for the others."""


def run(search: Search, observer: Observer | None = None) -> list[list[Hypothesis]]:
    """Run a search to its end.

    Args:
        search: a search at its first step or later.
        observer: is called after every step.

    Returns:
        The hypotheses of each sentence. A sentence that was given up may have none.
    """
    while len(search.rows):
        search.advance(_MANY if observer is None else 1)
        if observer is not None and len(search.rows):
            search.abandon(observer.after_step(search.rows, search.hypotheses()))
    return search.found()


# --- ensemble ---
# Ensemble decoding: several models whose probabilities are averaged.
# Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, S source length.


class Ensemble:
    """A `Scorer` that averages the probabilities of models with one vocabulary that decode the same batch."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = scorers

    def step(self, tokens: Tensor) -> Tensor:
        """Return the logarithm of the mean probability of each next token, float32 (B, W, V)."""
        each = torch.stack([scorer.step(tokens).float().log_softmax(dim=-1) for scorer in self.scorers])
        return each.logsumexp(dim=0) - math.log(len(self.scorers))

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by its parent, hypothesis parents[b, w]."""
        for scorer in self.scorers:
            scorer.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        for scorer in self.scorers:
            scorer.keep_sentences(rows)


class MeanAttention:
    """An `AttentiveScorer` that averages the attention of several models."""

    def __init__(self, scorers: Sequence[AttentiveScorer]) -> None:
        self.scorers = scorers

    def attention(self) -> Tensor:
        """Return the mean attention, (B, W, S)."""
        return torch.stack([scorer.attention() for scorer in self.scorers]).mean(dim=0)
