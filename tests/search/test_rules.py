"""Test rules on logits, the search settings, and the messages about impossible ones."""

import math

import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.decoding import scored_for
from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.rules import (
    Forbid,
    ForcedPrefix,
    MinimumLength,
    NoRepeatedNgrams,
    RepetitionPenalty,
    Rule,
    apply_rules,
)
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search
from transduce.search.settings import SearchSettings

START, END, A, B = 0, 1, 2, 3


class ConstantScorer:
    """A scorer with the same probabilities at every step: end symbol 0.5, a 0.3, b 0.2."""

    def step(self, pieces: Tensor) -> Tensor:
        return torch.tensor([0.0, 0.5, 0.3, 0.2]).log().repeat(*pieces.shape, 1)

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def search(beam_size: int, rules: list[Rule], longest: int = 8) -> Hypothesis:
    ((found,),) = search_all(beam_size, rules, [longest])
    return found


def search_all(beam_size: int, rules: list[Rule], longest: list[int]) -> list[list[Hypothesis]]:
    limits = SequenceLimits(START, END, torch.tensor(longest))
    if beam_size == 1:
        return run_search(GreedySearch(ConstantScorer(), limits, take_argmax, rules=rules))
    beam = BeamOptions(beam_size=beam_size, alpha=0.0)
    return run_search(BeamSearch(ConstantScorer(), limits, beam, rules=rules))


def test_forbidden_tokens_have_no_score() -> None:
    logits = Forbid([0, 3]).apply(torch.zeros(2, 1, 4), torch.empty(2, 1, 0), torch.arange(2))
    assert logits[1, 0].tolist() == [-math.inf, 0.0, 0.0, -math.inf]


def test_the_end_symbol_has_no_score_before_the_minimum_length() -> None:
    rule = MinimumLength(2, END)
    for length, expected in ((0, -math.inf), (1, -math.inf), (2, 0.0)):
        logits = rule.apply(torch.zeros(1, 1, 4), torch.zeros(1, 1, length, dtype=torch.int64), torch.arange(1))
        assert logits[0, 0].tolist() == [0.0, expected, 0.0, 0.0]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_without_rules_the_empty_sentence_wins(beam_size: int) -> None:
    assert search(beam_size, []).ids == ()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_minimum_length_is_kept_and_not_exceeded(beam_size: int) -> None:
    found = search(beam_size, [MinimumLength(3, END)])
    assert (found.ids, found.ended) == ((A, A, A), True)
    # The model's own probabilities, whatever the rule forbids.
    assert found.token_log_probabilities == pytest.approx([math.log(0.3)] * 3 + [math.log(0.5)])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_several_rules_apply_together(beam_size: int) -> None:
    found = search(beam_size, [Forbid([A]), MinimumLength(2, END)])
    assert found.ids == (B, B)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_that_forbids_the_end_symbol_cuts_at_the_maximum_length(beam_size: int) -> None:
    found = search(beam_size, [Forbid([END])], longest=3)
    assert (found.ids, found.ended) == ((A, A, A), False)


def test_the_defaults_are_the_papers() -> None:
    """Section 6.1: beam 4, alpha 0.6, at most 50 tokens more than the source has."""
    settings = SearchSettings()
    assert (settings.beam_size, settings.length_penalty, settings.max_length_for(30)) == (4, 0.6, 80)


def test_a_greatest_length_that_is_set_holds_for_all_sources() -> None:
    settings = SearchSettings(max_length=7, max_length_factor=2.0)
    assert [settings.max_length_for(pieces) for pieces in (1, 100)] == [7, 7]


def test_the_greatest_length_grows_with_the_source() -> None:
    assert SearchSettings(max_length_factor=1.5, max_length_extra=10).max_length_for(5) == 17


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, r"`beam_size` must be at least 1, but is 0\."),
        ({"n_best": 5}, r"`n_best` must be at most `beam_size` \(4\), but is 5: raise `beam_size`\."),
        ({"n_best": 0}, r"`n_best` must be at least 1, but is 0\."),
        ({"length_penalty": -0.5}, r"`length_penalty` must not be negative, but is -0\.5\."),
        ({"length_penalty": math.nan}, r"`length_penalty` must not be negative, but is nan\."),
        ({"max_length": 0}, r"`max_length` must be at least 1, but is 0\."),
        ({"max_length_factor": -1.0}, r"`max_length_factor` must not be negative, but is -1\.0\."),
        ({"max_length_extra": -3}, r"`max_length_extra` must not be negative, but is -3\."),
        ({"min_length": -1}, r"`min_length` must not be negative, but is -1\."),
        ({"no_repeated_ngrams": -1}, r"`no_repeated_ngrams` must not be negative, but is -1\."),
        ({"repetition_penalty": 0}, r"`repetition_penalty` must be greater than 0 and at most 100, but is 0: 1 has no"),
        (
            {"presence_penalty": math.nan},
            r"`presence_penalty` must be between -100 and 100, but is nan: 0 has no",
        ),
        ({"frequency_penalty": -0.5}, r"`frequency_penalty` must not be negative in beam search, but is -0\.5: set"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        SearchSettings(**changes)  # type: ignore[arg-type]


def test_no_repeated_ngrams_forbids_repeated_ngrams() -> None:
    """After 5 6 7 5 6 the runs of three are 5 6 7, 6 7 5 and 7 5 6: 7 would complete the first one again."""
    pieces = torch.tensor([[[5, 6, 7, 5, 6], [5, 6, 7, 6, 5]]])
    logits = torch.arange(-4.0, 5.0).repeat(1, 2, 1)
    ruled = NoRepeatedNgrams(3).apply(logits.clone(), pieces, torch.arange(1))
    expected = logits.clone()
    expected[0, 0, 7] = -math.inf
    assert torch.equal(ruled, expected)
    assert torch.equal(NoRepeatedNgrams(6).apply(logits.clone(), pieces, torch.arange(1)), logits)


def test_penalties_of_repeated_tokens() -> None:
    """The prompt has 2 and 7, the output 7, 7 and 1: token 7 is scaled once and pays for two occurrences."""
    rule = RepetitionPenalty([[0], [2, 7]], repetition=2.0, frequency=0.25, presence=0.5)
    ruled = rule.apply(torch.arange(-4.0, 5.0).repeat(1, 1, 1), torch.tensor([[[7, 7, 1]]]), torch.tensor([1]))
    assert ruled.tolist() == [[[-4.0, -6.75, -4.0, -1.0, 0.0, 1.0, 2.0, 0.5, 4.0]]]


@pytest.mark.parametrize("written", [[], [5], [0]], ids=str)
@pytest.mark.parametrize("others", [[], [[2, 7]], [[0]]], ids=str)
def test_a_sentence_without_tokens_before_its_output_pays_only_for_the_output(
    others: list[list[int]], written: list[int]
) -> None:
    before = [[], *others]
    rule, tokens = RepetitionPenalty(before, repetition=2.0), torch.tensor([[written]] * len(before)).long()
    ruled = rule.apply(torch.full((len(before), 1, 9), 4.0), tokens, torch.arange(len(before)))
    for row, ids in zip(ruled[:, 0].tolist(), before, strict=True):
        assert row == [2.0 if id in (*ids, *written) else 4.0 for id in range(9)]


class Wrapper:
    """A rule that applies others, which search does not know by its class."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        return apply_rules(self.rules, logits, tokens, sentence_indices)


@pytest.mark.parametrize("generates", [False, True])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_penalty_within_any_rule_changes_the_scores_that_it_changes_alone(beam_size: int, generates: bool) -> None:
    """A beam search gives the penalty log-probabilities; without a beam, it changes logits."""
    tokens, sentences, found = torch.tensor([[[A, B]]]), torch.arange(1), []
    penalty = RepetitionPenalty([[START]], repetition=2.0)
    all_given: list[list[Rule]] = [[penalty], [Wrapper([penalty])], [Forbid([START]), Wrapper([Wrapper([penalty])])]]
    for given in all_given:
        scorer, rules = scored_for(UnnormalizedScorer(), given, generates=generates, is_beam=beam_size > 1)
        scores = apply_rules(rules, scorer.step(torch.tensor([[B]])), tokens, sentences)
        found.append(scores[..., [END, A, B]])
    assert all(torch.equal(scores, found[0]) for scores in found)


class UnnormalizedScorer(ConstantScorer):
    """A scorer of logits that are no log-probabilities."""

    def step(self, pieces: Tensor) -> Tensor:
        return super().step(pieces) + 3.0


@pytest.mark.parametrize("beam_size", [1, 3])
def test_without_repeated_tokens_each_comes_once(beam_size: int) -> None:
    found = search(beam_size, [MinimumLength(2, END), NoRepeatedNgrams(1), Forbid([START])])
    assert sorted(found.ids) == [A, B]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_prefix_is_kept_and_scored_by_the_model(beam_size: int) -> None:
    found = search_all(beam_size, [ForcedPrefix([[B, B], [A]])], [8, 8])
    assert [hypotheses[0].ids for hypotheses in found] == [(B, B), (A,)]
