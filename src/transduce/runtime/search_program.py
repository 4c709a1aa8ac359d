"""Run greedy search and beam search without rules as one compiled search, in machine code or on a GPU.

Legend: B sentences still in the batch, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.fast import find_batch_search
from transduce.model.searching import BatchSearch, SearchBounds
from transduce.runtime.scorer import TransformerScorer
from transduce.search.beam import Beam
from transduce.search.greedy import make_hypothesis
from transduce.search.penalty import length_penalty
from transduce.search.scorer import Bounds, Hypothesis, Scorer


class SearchProgram:
    """Implements `loop.Search` as a compiled search, equal to `BeamSearch`, or to `Walk` for a beam of one."""

    def __init__(self, search: BatchSearch, bounds: Bounds, beam: Beam) -> None:
        """Wrap a compiled search at its first step."""
        self.search = search
        self.beam = beam
        self.eos_id = bounds.eos_id
        self._given_up: dict[int, list[Hypothesis]] = {}
        self._sentences = len(bounds.longest)

    @property
    def rows(self) -> Tensor:
        """Indices in the batch of the sentences that are still decoded, (B,)."""
        return self.search.active

    def advance(self, steps: int = 1) -> None:
        """Run at most `steps` decoding steps."""
        self.search.advance(steps)

    def hypotheses(self) -> Tensor:
        """Return the live hypotheses, best first, and for a beam also the best finished one, (B, W + 1, t)."""
        tokens, scores = self.search.live()
        if self.beam.beam_size == 1:
            return tokens
        order = scores.argsort(dim=1, descending=True, stable=True)[..., None].expand(-1, -1, tokens.shape[-1])
        live = tokens.gather(1, order)
        last = live[:, 0].clone()
        for row, index in enumerate(self.search.active.tolist()):
            for finished in self.search.found(index, 1):
                last[row].fill_(self.eos_id)[: len(finished.pieces)] = torch.as_tensor(finished.pieces)
        return torch.cat([live, last[:, None]], dim=1)

    def give_up(self, places: Collection[int]) -> None:
        """Stop decoding the sentences with these indices; their live hypotheses become results."""
        active = self.search.active.tolist()
        rows = [row for row, index in enumerate(active) if index in places]
        if not rows:
            return
        for row, live in zip(rows, self.search.give_up(rows), strict=True):
            results = [*self.search.found(active[row], self.beam.beam_size), *live]
            hypotheses = [self._hypothesis(each.pieces, each.log_probabilities, ended=each.ended) for each in results]
            self._given_up[active[row]] = sorted(hypotheses, key=lambda each: (not each.ended, -each.score))

    def found(self) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence; an empty list for sentences that are still decoded."""
        decoding = set(self.search.active.tolist())
        return [[] if index in decoding else self._best(index) for index in range(self._sentences)]

    def _best(self, index: int) -> list[Hypothesis]:
        if index in self._given_up:
            return self._given_up[index][: self.beam.n_best]
        results = self.search.found(index, self.beam.n_best)
        return [self._hypothesis(each.pieces, each.log_probabilities, ended=each.ended) for each in results]

    def _hypothesis(
        self, pieces: Tensor | NDArray[Any], log_probabilities: Tensor | NDArray[Any], *, ended: bool
    ) -> Hypothesis:
        history = pieces.tolist(), log_probabilities.tolist()
        return make_hypothesis(*history, ended=ended, alpha=self.beam.alpha)


def find_search_program(scorer: Scorer, bounds: Bounds, beam: Beam) -> SearchProgram | None:
    """Return a compiled search for a scorer at its first step; None if there is none for it, or not enough memory.

    Args:
        scorer: the scorer, of a single model.
        bounds: start token, end token and maximum lengths.
        beam: the beam's size; 1: greedy search.
    """
    if not isinstance(scorer, TransformerScorer) or beam.groups > 1:
        return None
    longest: list[int] = bounds.longest.tolist()
    limits = SearchBounds(
        start_id=bounds.start_id,
        eos_id=bounds.eos_id,
        never_written=scorer.never_written,
        longest=longest,
        beam_size=beam.beam_size,
        n_best=beam.n_best,
        penalties=_penalties(beam.alpha, 1 + (max(longest) + 2) // 64),
    )
    search = find_batch_search(scorer.state, limits)
    return None if search is None else SearchProgram(search, bounds, beam)


@lru_cache(maxsize=64)
def _penalties(alpha: float, blocks: int) -> Tensor:
    """Return the length penalty of 0, 1, … tokens, for `blocks` × 64 lengths, float64."""
    return torch.tensor([length_penalty(length, alpha) for length in range(64 * blocks)], dtype=torch.float64)
