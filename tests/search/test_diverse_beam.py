"""Test diverse beam search, whose groups avoid each other's tokens, on steps computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search
from transduce.search.selection import BestSelection, DiverseSelection, Step

START, END, A, B, C = 0, 1, 2, 3, 4
FIRST = {END: 0.05, A: 0.5, B: 0.3, C: 0.15}


class TwoStepScorer:
    """A scorer that gives a, b and c the logits FIRST, without normalization, and then the end symbol."""

    def __init__(self) -> None:
        self.position = 0

    def step(self, pieces: Tensor) -> Tensor:
        row = torch.full((5,), -math.inf)
        follows = FIRST if self.position == 0 else {END: 1.0}
        for piece, probability in follows.items():
            row[piece] = math.log(probability) + 3.0
        self.position += 1
        return row.repeat(*pieces.shape, 1)

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def search(beam_size: int, n_best: int, groups: int, penalty: float) -> list[Hypothesis]:
    selection = DiverseSelection(beam_size=beam_size, groups=groups, penalty=penalty, eos_id=END)
    beam = BeamOptions(beam_size=beam_size, n_best=n_best, alpha=0.0, groups=groups)
    limits = SequenceLimits(START, END, torch.tensor([5]))
    (found,) = run_search(BeamSearch(TwoStepScorer(), limits, beam, selection=selection))
    return found


def test_groups_take_different_tokens_if_the_penalty_is_high() -> None:
    found = search(beam_size=3, n_best=3, groups=3, penalty=10.0)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (B,), (C,)]


def test_without_a_penalty_equal_results_of_groups_are_merged() -> None:
    assert [hypothesis.ids for hypothesis in search(beam_size=3, n_best=3, groups=3, penalty=0.0)] == [(A,)]


def test_the_penalty_counts_how_often_a_token_was_taken() -> None:
    """ln(0.5 / 0.3) is 0.51: with 0.4 the second group still takes a, and the third, after two of them, takes b."""
    assert [hypothesis.ids for hypothesis in search(3, 3, 3, 0.4)] == [(A,), (B,)]
    assert [hypothesis.ids for hypothesis in search(3, 3, 3, 0.6)] == [(A,), (B,)]
    assert [hypothesis.ids for hypothesis in search(2, 2, 2, 0.4)] == [(A,)]
    assert [hypothesis.ids for hypothesis in search(2, 2, 2, 0.6)] == [(A,), (B,)]


def test_scores_are_the_models_whatever_the_penalty() -> None:
    found = search(beam_size=3, n_best=3, groups=3, penalty=10.0)
    assert [hypothesis.score for hypothesis in found] == pytest.approx([math.log(FIRST[piece]) for piece in (A, B, C)])


def test_the_n_best_alternate_between_groups() -> None:
    """Groups of two: the first has a and b, the second, for which both cost much, c and the empty sentence."""
    found = search(beam_size=4, n_best=2, groups=2, penalty=10.0)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (C,)]
    assert [h.ids for h in search(4, 4, 2, 10.0)][:3] == [(A,), (B,), (C,)]


def test_diverse_selection_with_one_group_equals_beam_selection() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, 4, 9, generator=generator)
    scores = torch.randn(3, 4, generator=generator)
    pieces = torch.zeros(3, 4, 2, dtype=torch.int64)
    step = Step(logits, scores, pieces, torch.arange(3))
    plain = BestSelection(beam_size=4, eos_id=END).select(step)
    grouped = DiverseSelection(beam_size=4, groups=1, penalty=5.0, eos_id=END).select(step)
    for expected, values in zip((*plain.live, *plain.ended), (*grouped.live, *grouped.ended), strict=True):
        assert torch.allclose(expected.float(), values.float(), atol=1e-6)


def test_each_group_continues_its_own_hypotheses() -> None:
    logits = torch.zeros(1, 4, 6)
    logits[0, :2, 2] = 5.0  # whatever the first group likes is nothing to the second
    logits[0, 2:, 3] = 1.0
    scores = torch.tensor([[0.0, -0.1, -50.0, -50.1]])
    pieces = torch.zeros(1, 4, 1, dtype=torch.int64)
    step = Step(logits, scores, pieces, torch.arange(1))
    live = DiverseSelection(beam_size=4, groups=2, penalty=0.0, eos_id=END).select(step).live
    assert live.parents.tolist() == [[0, 1, 2, 3]]
    assert live.tokens.tolist() == [[2, 2, 3, 3]]
