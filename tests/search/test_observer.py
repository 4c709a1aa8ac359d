"""Test that an observer of a search sees every step, and can abandon sentences at once."""

from collections.abc import Collection

import pytest
import torch
from torch import Tensor

from transduce.search.beam import BeamOptions, BeamSearch, GenerateSearch, LogProbabilities
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.rules import GenerateSettings
from transduce.search.scorer import Search, SequenceLimits, run_search

START, END, A, B = 0, 1, 2, 3


class SlowScorer:
    """A scorer that generates a, b, a, b, … without an end before `length` tokens; then the end symbol is certain."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.position = 0
        self.batches: list[int] = []

    def step(self, pieces: Tensor) -> Tensor:
        self.batches.append(len(pieces))
        logits = torch.full((*pieces.shape, 4), -20.0)
        for row, length in enumerate(self.lengths):
            first, second = (END, A) if self.position >= length else ((A, B) if self.position % 2 == 0 else (B, A))
            logits[row, :, first] = 0.0
            logits[row, :, second] = -1.0
        self.position += 1
        return logits

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        self.lengths = [self.lengths[row] for row in rows.tolist()]


class Watcher:
    """An observer that records its calls, and abandons specified sentences at specified steps."""

    def __init__(self, orders: dict[int, set[int]] | None = None) -> None:
        self.orders = orders or {}
        self.rows: list[list[int]] = []
        self.pieces: list[Tensor] = []

    def after_step(self, sentence_indices: Tensor, pieces: Tensor) -> Collection[int]:
        assert len(sentence_indices) == len(pieces)
        self.rows.append(sentence_indices.tolist())
        self.pieces.append(pieces)
        return self.orders.get(len(self.rows), ())


def search_for(lengths: list[int], beam_size: int) -> tuple[Search, SlowScorer]:
    scorer = SlowScorer(lengths)
    limits = SequenceLimits(START, END, torch.full((len(lengths),), 12))
    if beam_size == 1:
        return GreedySearch(scorer, limits, take_argmax), scorer
    return BeamSearch(scorer, limits, BeamOptions(beam_size=beam_size, n_best=2, alpha=0.0)), scorer


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_observer_sees_the_positions_that_are_left_and_their_tokens(beam_size: int) -> None:
    search, _ = search_for([2, 5], beam_size)
    watcher = Watcher()
    found = run_search(search, watcher)
    assert watcher.rows[0] == [0, 1]
    assert watcher.rows[-1] == [1]
    assert [pieces.shape[-1] for pieces in watcher.pieces] == list(range(1, len(watcher.pieces) + 1))
    assert watcher.pieces[3][-1, 0].tolist() == [A, B, A, B]
    assert found[1][0].ids == (A, B, A, B, A)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_observer_that_stops_nothing_changes_no_result(beam_size: int) -> None:
    assert run_search(search_for([3, 1, 6], beam_size)[0]) == run_search(search_for([3, 1, 6], beam_size)[0], Watcher())


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_stopped_sentence_leaves_the_batch_with_its_tokens_so_far(beam_size: int) -> None:
    search, scorer = search_for([9, 9, 3], beam_size)
    found = run_search(search, Watcher({2: {1, 77}}))
    assert scorer.batches[:3] == [3, 3, 2]
    assert (found[1][0].ids, found[1][0].ended) == ((A, B), False)
    assert len(found[1][0].token_log_probabilities) == 2
    others, _ = search_for([9, 9, 3], beam_size)
    expected = run_search(others)
    assert (found[0], found[2]) == (expected[0], expected[2])


def test_a_sentence_stopped_when_another_ends_keeps_its_tokens_in_generate_search() -> None:
    """Sentences that have left must not shift what is known of those that stay."""
    limits = SequenceLimits(START, END, torch.full((2,), 12))
    search = GenerateSearch(
        LogProbabilities(SlowScorer([1, 9])), limits, BeamOptions(beam_size=2, alpha=1.0), GenerateSettings(stop="full")
    )
    while 0 in search.sentence_indices.tolist():
        search.advance()
    assert search.sentence_indices.tolist() == [1]
    search.abandon({1})
    first, second = search.results()
    assert first[0].ended
    assert second
    assert not any(each.ended for each in second)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_stopping_all_sentences_ends_the_search(beam_size: int) -> None:
    search, scorer = search_for([9, 9], beam_size)
    found = run_search(search, Watcher({1: {0, 1}}))
    assert scorer.batches == [2]
    assert [hypotheses[0].ids for hypotheses in found] == [(A,), (A,)]


class UndecidedScorer:
    """A scorer with the same probabilities at every step: end symbol 0.4, a 0.6."""

    def step(self, pieces: Tensor) -> Tensor:
        return torch.tensor([0.0, 0.4, 0.6, 0.0]).log().repeat(*pieces.shape, 1)

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def search_undecided() -> Search:
    limits = SequenceLimits(START, END, torch.tensor([12]))
    return BeamSearch(UndecidedScorer(), limits, BeamOptions(beam_size=2, n_best=2, alpha=0.0))


def test_ended_hypotheses_come_before_stopped_ones() -> None:
    (found,) = run_search(search_undecided(), Watcher({1: {0}}))
    assert [(hypothesis.ids, hypothesis.ended) for hypothesis in found] == [((), True), ((A,), False)]
    assert found[0].score < found[1].score


def test_a_beam_shows_the_best_that_ended_last_filled_up_with_end_symbols() -> None:
    watcher = Watcher()
    run_search(search_undecided(), watcher)
    assert watcher.pieces[0][0, -1].tolist() == [END]
    assert watcher.pieces[1][0].tolist()[0] == [A, A]
    assert watcher.pieces[1][0].tolist()[-1] == [END, END]
    search, _ = search_for([2], 3)
    watcher = Watcher()
    run_search(search, watcher)
    first, *_, last = watcher.pieces[0][0].tolist()
    assert first == last  # nothing has ended yet
