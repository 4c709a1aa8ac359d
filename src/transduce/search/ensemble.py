"""Ensemble decoding: several models whose probabilities are averaged.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, S source length.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.coverage import AttentiveScorer
from transduce.search.scorer import Scorer


class Ensemble:
    """A `Scorer` that averages the probabilities of models with one vocabulary that decode the same batch."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = scorers

    def step(self, pieces: Tensor) -> Tensor:
        """Return the logarithm of the mean probability of each next token, float32 (B, W, V)."""
        each = torch.stack([scorer.step(pieces).float().log_softmax(dim=-1) for scorer in self.scorers])
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
