"""Test the coverage penalty against its formula and its effect; and ensembles of models."""

import math

import pytest
import torch
from torch import Tensor

from transduce.search.beam import AttentionCoverage, BeamOptions, BeamSearch
from transduce.search.scorer import Ensemble, Hypothesis, MeanAttention, Scorer, SequenceLimits, run_search

START, END, A, B = 0, 1, 2, 3


class LookingScorer:
    """A scorer that ends with probability 0.6 after each token, and attends to one source token after another."""

    def __init__(self) -> None:
        self.position = 0

    def step(self, pieces: Tensor) -> Tensor:
        first = torch.tensor([0.0, 0.0, 1.0, 0.0]).log()
        later = torch.tensor([0.0, 0.6, 0.0, 0.4]).log()
        self.position += 1
        return (first if self.position == 1 else later).repeat(*pieces.shape, 1)

    def attention(self) -> Tensor:
        """Return attention that is mostly on each step's source token."""
        looking = torch.full((1, 1 if self.position == 1 else 2, 4), 0.1)
        looking[..., min(self.position, 3) - 1] = 0.8
        looking[..., 3] = 1.0  # the end symbol
        return looking

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def search(beta: float) -> list[Hypothesis]:
    scorer = LookingScorer()
    limits = SequenceLimits(START, END, torch.tensor([4]))
    coverage = AttentionCoverage(scorer, beta) if beta else None
    beam = BeamOptions(beam_size=2, n_best=2, alpha=0.0)
    (found,) = run_search(BeamSearch(scorer, limits, beam, coverage=coverage))
    return found


def test_without_the_penalty_the_shortest_wins() -> None:
    assert [hypothesis.ids for hypothesis in search(0.0)] == [(A,), (A, B)]


def test_the_penalty_is_the_papers() -> None:
    """After two steps the source tokens have 0.9, 0.9 and 0.2 (and the end symbol 1); after three 1.0, 1.0, 1.0."""
    found = {hypothesis.ids: hypothesis.score for hypothesis in search(0.5)}
    assert found[(A,)] == pytest.approx(math.log(0.6) + 0.5 * (2 * math.log(0.9) + math.log(0.2)), abs=1e-5)
    assert found[(A, B)] == pytest.approx(math.log(0.4 * 0.6), abs=1e-5)


def test_with_the_coverage_penalty_the_complete_translation_wins() -> None:
    assert search(2.0)[0].ids == (A, B)


def test_hypotheses_take_their_coverage_along() -> None:
    class Fixed:
        def attention(self) -> Tensor:
            return torch.tensor([[[0.5, 0.1], [0.2, 0.3]], [[0.4, 0.4], [0.6, 0.7]]])

    coverage = AttentionCoverage(Fixed(), 1.0)
    coverage.add_step()
    coverage.reorder(torch.tensor([[1, 1], [0, 1]]))
    assert coverage.penalty(0, 0) == pytest.approx(math.log(0.2) + math.log(0.3), abs=1e-5)
    coverage.keep_sentences(torch.tensor([1]))
    assert coverage.penalty(0, 1) == pytest.approx(math.log(0.6) + math.log(0.7), abs=1e-5)


class OneStepScorer:
    """A scorer with fixed probabilities at the first step and the end symbol at the second."""

    def __init__(self, probabilities: list[float], shift: float) -> None:
        self.probabilities = probabilities
        self.shift = shift
        self.position = 0
        self.calls: list[str] = []

    def step(self, pieces: Tensor) -> Tensor:
        self.position += 1
        row = self.probabilities if self.position == 1 else [0.0, 1.0, 0.0, 0.0]
        return torch.tensor(row).log().repeat(*pieces.shape, 1) + self.shift

    def attention(self) -> Tensor:
        return torch.full((1, 1, 2), self.shift)

    def reorder(self, parents: Tensor) -> None:
        self.calls.append(f"reorder {parents.tolist()}")

    def keep_sentences(self, rows: Tensor) -> None:
        self.calls.append(f"keep {rows.tolist()}")


def test_an_ensemble_averages_probabilities() -> None:
    """One is all but sure of a, the other prefers b a little: (0.9 + 0.4) / 2 against (0.1 + 0.6) / 2."""
    scorers = [OneStepScorer([0.0, 0.0, 0.9, 0.1], 3.0), OneStepScorer([0.0, 0.0, 0.4, 0.6], -2.0)]
    limits = SequenceLimits(START, END, torch.tensor([4]))
    ((best, second),) = run_search(BeamSearch(Ensemble(scorers), limits, BeamOptions(beam_size=2, n_best=2, alpha=0.0)))
    assert (best.ids, second.ids) == ((A,), (B,))
    assert best.token_log_probabilities == pytest.approx([math.log(0.65), 0.0], abs=1e-6)
    assert scorers[0].calls == scorers[1].calls
    assert scorers[0].calls[0] == "reorder [[0, 0]]"
    assert scorers[0].calls[-1] == "keep []"


def test_an_ensemble_of_one_is_that_one() -> None:
    def found(scorer: Scorer) -> Hypothesis:
        limits = SequenceLimits(START, END, torch.tensor([4]))
        ((best,),) = run_search(BeamSearch(scorer, limits, BeamOptions(beam_size=2, alpha=0.0)))
        return best

    alone = found(OneStepScorer([0.0, 0.0, 0.7, 0.3], 1.0))
    together = found(Ensemble([OneStepScorer([0.0, 0.0, 0.7, 0.3], 1.0)]))
    assert alone.ids == together.ids
    assert alone.score == pytest.approx(together.score, abs=1e-6)


def test_an_ensemble_averages_attention() -> None:
    scorers = [OneStepScorer([1.0], 0.2), OneStepScorer([1.0], 0.6)]
    assert MeanAttention(scorers).attention().tolist() == [[pytest.approx([0.4, 0.4])]]
