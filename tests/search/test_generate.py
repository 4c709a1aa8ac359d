"""Test search by the rules of `generate`, with models whose next token depends on all previous tokens."""

import math
import random

import pytest
import torch
from torch import Tensor

from transduce.search.beam import BeamOptions, GenerateSearch, LogProbabilities
from transduce.search.rules import GenerateSettings
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search
from transduce.search.selection import DiverseSelection

START, END = 0, 1
History = tuple[int, ...]


class RandomScorer:
    """A scorer whose random logits depend on the history alone."""

    def __init__(self, seed: int, vocabulary_size: int) -> None:
        self.seed, self.size = seed, vocabulary_size
        self.histories: list[list[History]] = [[()]]

    def step(self, pieces: Tensor) -> Tensor:
        self.histories = [
            [(*past, piece) for past, piece in zip(pasts, newest, strict=True)]
            for pasts, newest in zip(self.histories, pieces.tolist(), strict=True)
        ]
        return torch.stack([torch.stack([self._logits(past) for past in pasts]) for pasts in self.histories])

    def _logits(self, past: History) -> Tensor:
        drawn = random.Random(f"{self.seed} {past}")
        return torch.tensor([-math.inf, *(2.0 * drawn.gauss(0.0, 1.0) for _ in range(self.size - 1))])

    def reorder(self, parents: Tensor) -> None:
        self.histories = [
            [pasts[parent] for parent in chosen] for pasts, chosen in zip(self.histories, parents.tolist(), strict=True)
        ]

    def keep_sentences(self, rows: Tensor) -> None:
        self.histories = [self.histories[row] for row in rows.tolist()]


@pytest.mark.parametrize("stop", ["full", "likely", "never"])
def test_each_group_keeps_its_own_live_hypotheses_when_a_sentence_breaks_off(stop: str) -> None:
    """Whichever groups have hypotheses that end in the last step."""
    for seed in range(60):
        for groups, size, longest in ((3, 1, 3), (2, 2, 3), (2, 1, 2)):
            beam = BeamOptions(beam_size=groups * size, n_best=groups * size, alpha=1.0, groups=groups)
            search = GenerateSearch(
                LogProbabilities(RandomScorer(seed, 8)),
                SequenceLimits(START, END, torch.tensor([longest])),
                beam,
                GenerateSettings(stop=stop),  # type: ignore[arg-type]
                selection=DiverseSelection(beam_size=beam.beam_size, groups=groups, penalty=0.5, eos_id=END),
            )
            (found,) = run_search(search)
            assert all(search.finished[0]), (seed, groups, size)
            assert len({(each.ids, each.ended) for each in found}) <= len(found)


def test_the_best_score_of_all_groups_comes_first_whether_or_not_its_hypothesis_ended() -> None:
    beam = BeamOptions(beam_size=2, n_best=1, alpha=1.0, groups=2)
    limits = SequenceLimits(START, END, torch.tensor([4]))
    search = GenerateSearch(LogProbabilities(RandomScorer(1, 8)), limits, beam, GenerateSettings())
    search.abandon([0])
    search.finished[0] = [
        [Hypothesis((2,), (-2.0, 0.0), score=-1.0, ended=True)],
        [Hypothesis((3, 4), (-0.5, -0.5), score=-0.5, ended=False)],
    ]
    ((best,),) = search.results()
    assert best.ids == (3, 4)
