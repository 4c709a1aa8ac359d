"""The coverage penalty for source tokens that received little attention (Wu et al. 2016, equation 14).

cp = β Σ over source tokens i of log(min(Σ over target tokens j of p(i, j), 1)), where p(i, j) is the attention from
target token j to source token i, here the mean over the heads of all layers.
Legend: B sentences still in the batch, W hypotheses of each, S source length.
"""

import torch
from torch import Tensor

from transduce.search.scorer import AttentiveScorer

_MIN_ATTENTION = 1e-6  # minimum attention, so that no hypothesis gets an infinite penalty


class Coverage:
    """The attention that each source token has received so far, summed over the steps of each hypothesis."""

    def __init__(self, scorer: AttentiveScorer, beta: float) -> None:
        self.scorer = scorer
        self.beta = beta
        self.sums: Tensor | None = None  # (B, W, S)
        self._penalties: list[list[float]] | None = None  # computed from `sums` on demand

    def add_step(self) -> None:
        """Add the newest step's attention weights to the sums over the steps."""
        newest = self.scorer.attention()
        self.sums = newest if self.sums is None else self.sums + newest
        self._penalties = None

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by its parent, hypothesis parents[b, w]; parents is (B, W)."""
        if self.sums is not None:
            self.sums = self.sums.gather(1, parents[..., None].expand(-1, -1, self.sums.shape[-1]))
            self._penalties = None

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences at these rows, and remove the others from the batch."""
        if self.sums is not None:
            self.sums = self.sums.index_select(0, rows)
            self._penalties = None

    def penalty(self, row: int, beam: int) -> float:
        """Return the penalty to add to a hypothesis's score, in nats, at most 0."""
        if self.sums is None:
            return 0.0
        if self._penalties is None:  # one transfer for all, since each one stalls a GPU
            self._penalties = (self.beta * torch.log(self.sums.clamp(_MIN_ATTENTION, 1.0)).sum(dim=-1)).tolist()
        return self._penalties[row][beam]
