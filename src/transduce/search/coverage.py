"""The coverage penalty: what was never looked at was probably not translated (Wu et al. 2016, equation 14).

cp = β Σ over source pieces i of log(min(Σ over target pieces j of p(i, j), 1)), where p(i, j) is the attention from
target piece j to source piece i, here the mean over the heads of all layers.
Legend: B sentences still in the batch, W hypotheses of each, S source length.
"""

from typing import Protocol

import torch
from torch import Tensor

_LEAST = 1e-6  # attention is taken to be at least so much, so that no hypothesis is ruled out altogether


class AttentiveScorer(Protocol):
    """A scorer that tells what it attends to."""

    def attention(self) -> Tensor:
        """From what each hypothesis predicts in the newest step to each source piece, float32 (B, W, S).

        It is 1 where there is nothing to translate: at padding and the end symbol.
        """


class Coverage:
    """How much attention each source piece has received from each hypothesis so far."""

    def __init__(self, scorer: AttentiveScorer, beta: float) -> None:
        self.scorer = scorer
        self.beta = beta
        self.sums: Tensor | None = None  # (B, W, S)
        self._penalties: list[list[float]] | None = None  # of these sums, once they were asked for

    def add_step(self) -> None:
        """Adds the newest step's attention."""
        newest = self.scorer.attention()
        self.sums = newest if self.sums is None else self.sums + newest
        self._penalties = None

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]; (B, W)."""
        if self.sums is not None:
            self.sums = self.sums.gather(1, parents[..., None].expand(-1, -1, self.sums.shape[-1]))
            self._penalties = None

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        if self.sums is not None:
            self.sums = self.sums.index_select(0, rows)
            self._penalties = None

    def penalty(self, row: int, beam: int) -> float:
        """What is added to a hypothesis' score, in nats: 0 or less."""
        if self.sums is None:
            return 0.0
        if self._penalties is None:  # all at once, for each reading makes a GPU wait
            self._penalties = (self.beta * torch.log(self.sums.clamp(_LEAST, 1.0)).sum(dim=-1)).tolist()
        return self._penalties[row][beam]
