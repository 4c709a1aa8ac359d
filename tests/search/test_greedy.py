"""Test greedy search, which selects the best token at each step, for each sentence."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, SequenceLimits, length_penalty, length_power, run_search

START, END = 0, 1


class ScriptedScorer:
    """A scorer that generates a fixed sequence of tokens for each sentence, each with probability 0.6."""

    def __init__(self, scripts: list[list[int]], vocabulary_size: int = 6) -> None:
        self.scripts = scripts
        self.vocabulary_size = vocabulary_size
        self.given: list[list[int]] = []

    def step(self, pieces: Tensor) -> Tensor:
        place = len(self.given)
        self.given.append(pieces[:, 0].tolist())
        rest = 0.4 / (self.vocabulary_size - 1)
        probabilities = torch.full((len(pieces), 1, self.vocabulary_size), rest)
        for row, script in enumerate(self.scripts):
            probabilities[row, 0, script[place]] = 0.6
        return (probabilities.log() - 3.0).bfloat16() if self.vocabulary_size == 7 else probabilities.log() - 3.0

    def reorder(self, parents: Tensor) -> None:
        raise AssertionError(f"greedy search has nothing to reorder, but asked for {parents.tolist()}")

    def keep_sentences(self, rows: Tensor) -> None:
        self.scripts = [self.scripts[row] for row in rows.tolist()]


def run(scorer: ScriptedScorer, longest: list[int], alpha: float = 0.0, rules: Sequence[Rule] = ()) -> list[Hypothesis]:
    limits = SequenceLimits(START, END, torch.tensor(longest))
    found = run_search(GreedySearch(scorer, limits, take_argmax, alpha=alpha, rules=rules))
    return [hypothesis for (hypothesis,) in found]


def test_the_best_token_at_each_step_until_the_end_symbol() -> None:
    (found,) = run(ScriptedScorer([[4, 2, 5, END]]), [10])
    assert found.ids == (4, 2, 5)
    assert found.ended
    assert found.token_log_probabilities == pytest.approx([math.log(0.6)] * 4)
    assert found.log_probability == pytest.approx(4 * math.log(0.6))


def test_the_model_is_given_the_start_symbol_then_its_own_tokens() -> None:
    scorer = ScriptedScorer([[4, 2, END]])
    run(scorer, [10])
    assert scorer.given == [[START], [4], [2]]


def test_finished_sentences_leave_the_batch_and_order_is_kept() -> None:
    scorer = ScriptedScorer([[4, 2, END], [END], [3, 3, 3, 3], [5, END]])
    found = run(scorer, [9, 9, 4, 9])
    assert [hypothesis.ids for hypothesis in found] == [(4, 2), (), (3, 3, 3, 3), (5,)]
    assert [hypothesis.ended for hypothesis in found] == [True, True, False, True]
    assert scorer.given == [[START] * 4, [4, 3, 5], [2, 3], [3]]


def test_the_greatest_length_counts_the_end_symbol() -> None:
    (whole,) = run(ScriptedScorer([[4, 2, END]]), [3])
    (cut,) = run(ScriptedScorer([[4, 2, END]]), [2])
    assert (whole.ids, whole.ended) == ((4, 2), True)
    assert (cut.ids, cut.ended) == ((4, 2), False)


def test_the_length_penalty_changes_the_score_alone() -> None:
    (plain,) = run(ScriptedScorer([[4, 2, 5, END]]), [9], alpha=0.0)
    (penalised,) = run(ScriptedScorer([[4, 2, 5, END]]), [9], alpha=0.6)
    assert penalised.ids == plain.ids
    assert plain.score == pytest.approx(4 * math.log(0.6))
    assert penalised.score == pytest.approx(4 * math.log(0.6) / (9 / 6) ** 0.6)


def test_log_probabilities_are_taken_in_float32() -> None:
    """bfloat16 logits have three digits; the sum over a vocabulary must not lose more."""
    (found,) = run(ScriptedScorer([[4, END]], vocabulary_size=7), [9])
    assert found.token_log_probabilities == pytest.approx([math.log(0.6)] * 2, abs=0.02)


def test_no_sentences_are_no_hypotheses() -> None:
    assert run(ScriptedScorer([]), []) == []


class ForbidAll:
    """A rule that forbids every token after the first `after` ones."""

    def __init__(self, after: int) -> None:
        self.after = after

    def apply(self, logits: Tensor, pieces: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        return logits if pieces.shape[-1] < self.after else torch.full_like(logits, -math.inf)


def test_where_every_token_is_forbidden_a_hypothesis_is_cut() -> None:
    scorer = ScriptedScorer([[2, 3, 4, 5, END], [2, END, 2, 2, 2]])
    first, second = run(scorer, [5, 5], rules=[ForbidAll(after=2)])
    assert (first.ids, first.ended, len(first.token_log_probabilities)) == ((2, 3), False, 2)
    assert first.score == pytest.approx(2 * math.log(0.6))
    assert (second.ids, second.ended) == ((2,), True)


def test_where_no_first_token_is_permitted_the_hypothesis_is_empty_whatever_the_length_penalty() -> None:
    for divisor in (length_penalty, length_power):
        limits = SequenceLimits(START, END, torch.tensor([5]))
        forbidding = ForbidAll(after=0)
        search = GreedySearch(
            ScriptedScorer([[2, END]]), limits, take_argmax, alpha=1.0, divisor=divisor, rules=[forbidding]
        )
        ((found,),) = run_search(search)
        assert (found.ids, found.score, found.ended) == ((), 0.0, False)
