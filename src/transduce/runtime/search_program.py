"""Greedy search and beam search in one program, of machine code or on a GPU, where nothing sways the choice of pieces.

Legend: B sentences still in the batch, W hypotheses of each, t pieces so far.
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
    """The same hypotheses as those of `BeamSearch`, or of one hypothesis, of `Walk`. Implements `loop.Search`."""

    def __init__(self, search: BatchSearch, bounds: Bounds, beam: Beam) -> None:
        """Of a search at its first step."""
        self.search = search
        self.beam = beam
        self.eos_id = bounds.eos_id
        self._given_up: dict[int, list[Hypothesis]] = {}
        self._sentences = len(bounds.longest)

    @property
    def rows(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""
        return self.search.active

    def advance(self, steps: int = 1) -> None:
        """At most so many steps."""
        self.search.advance(steps)

    def hypotheses(self) -> Tensor:
        """The live ones, best first, and of a beam the best one that has ended, (B, W + 1, t)."""
        pieces, scores = self.search.live()
        if self.beam.beam_size == 1:
            return pieces
        order = scores.argsort(dim=1, descending=True, stable=True)[..., None].expand(-1, -1, pieces.shape[-1])
        live = pieces.gather(1, order)
        last = live[:, 0].clone()
        for row, place in enumerate(self.search.active.tolist()):
            for found in self.search.found(place, 1):
                last[row].fill_(self.eos_id)[: len(found.pieces)] = torch.as_tensor(found.pieces)
        return torch.cat([live, last[:, None]], dim=1)

    def give_up(self, places: Collection[int]) -> None:
        """The sentences at these places leave; their live hypotheses count as they are."""
        active = self.search.active.tolist()
        rows = [row for row, place in enumerate(active) if place in places]
        if not rows:
            return
        for row, live in zip(rows, self.search.give_up(rows), strict=True):
            found = [*self.search.found(active[row], self.beam.beam_size), *live]
            hypotheses = [self._hypothesis(each.pieces, each.log_probabilities, ended=each.ended) for each in found]
            self._given_up[active[row]] = sorted(hypotheses, key=lambda each: (not each.ended, -each.score))

    def found(self) -> list[list[Hypothesis]]:
        """The n best of each sentence that has left, best first."""
        decoding = set(self.search.active.tolist())
        return [[] if place in decoding else self._best(place) for place in range(self._sentences)]

    def _best(self, place: int) -> list[Hypothesis]:
        if place in self._given_up:
            return self._given_up[place][: self.beam.n_best]
        found = self.search.found(place, self.beam.n_best)
        return [self._hypothesis(each.pieces, each.log_probabilities, ended=each.ended) for each in found]

    def _hypothesis(
        self, pieces: Tensor | NDArray[Any], log_probabilities: Tensor | NDArray[Any], *, ended: bool
    ) -> Hypothesis:
        history = pieces.tolist(), log_probabilities.tolist()
        return make_hypothesis(*history, ended=ended, alpha=self.beam.alpha)


def find_search_program(scorer: Scorer, bounds: Bounds, beam: Beam) -> SearchProgram | None:
    """The search of a scorer at its first step, without rules; None where there is no program, or no room, for it.

    Args:
        scorer: of one model.
        bounds: where hypotheses begin and end.
        beam: how many there are; with one, search is greedy.
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
    """The length penalty of 0, 1, … pieces, so many blocks of 64, float64."""
    return torch.tensor([length_penalty(length, alpha) for length in range(64 * blocks)], dtype=torch.float64)
