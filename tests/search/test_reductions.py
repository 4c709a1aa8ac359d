"""Test that reductions by blocks equal PyTorch's for any vocabulary size."""

import pytest
import torch

from transduce.acceleration import search_reductions
from transduce.inference.decoding import make_search
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.beam import BeamOptions, beam_search
from transduce.search.scorer import SequenceLimits, run_search
from transduce.search.selection import argmax_token, log_sum_exp, top_tokens, use_kernels

SIZES = [5, 1000, 1024, 8000, 8001, 8063]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_greatest_are_those_of_topk(size: int, count: int) -> None:
    logits = torch.randn(3, 4, size, generator=torch.Generator().manual_seed(size))
    logits[0, 0, -1] = 100.0  # behind the last whole block
    values, places = top_tokens(logits, count)
    expected = logits.topk(count, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)
    assert torch.equal(argmax_token(logits), logits.argmax(dim=-1))


def test_equal_values_are_each_found_once() -> None:
    values, places = top_tokens(torch.zeros(2, 4096), 8)
    assert values.tolist() == [[0.0] * 8] * 2
    assert all(len(set(row)) == 8 for row in places.tolist())


def test_forbidden_tokens_come_last() -> None:
    logits = torch.full((1, 2048), -torch.inf)
    logits[0, [7, 2000]] = torch.tensor([1.0, 2.0])
    values, places = top_tokens(logits, 3)
    assert places[0, :2].tolist() == [2000, 7]
    assert values[0].tolist() == [2.0, 1.0, -torch.inf]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_the_normalizer_is_the_logarithm_of_the_sum(size: int, spread: float) -> None:
    logits = torch.randn(2, 3, size, generator=torch.Generator().manual_seed(1)) * spread
    logits[..., 1] = -torch.inf
    expected = logits.double().logsumexp(dim=-1, keepdim=True)
    torch.testing.assert_close(log_sum_exp(logits).double(), expected, atol=1e-5, rtol=1e-6)


class Watching:
    """A scorer with the same logits at each step, which records the log-sum-exp that is computed during a search."""

    def __init__(self) -> None:
        self.logits = torch.randn(2, 1, 5000, generator=torch.Generator().manual_seed(2))
        self.found: list[torch.Tensor] = []

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.found.append(log_sum_exp(self.logits))
        return self.logits.expand(-1, tokens.shape[1], -1).clone()

    def reorder(self, parents: torch.Tensor) -> None:
        pass

    def keep_sentences(self, rows: torch.Tensor) -> None:
        self.logits = self.logits[rows]


@pytest.mark.parametrize("beam_size", [1, 2])
def test_kernels_of_one_search_leave_other_searches_as_they_are(beam_size: int) -> None:
    limits, beam = SequenceLimits(0, 1, torch.tensor([4, 4])), BeamOptions(beam_size=beam_size)
    own, scorer = Watching(), Watching()
    with use_kernels(None):
        expected = log_sum_exp(own.logits)
    config = ModelConfig(source_vocabulary_size=100, target_vocabulary_size=100, d_model=16, num_heads=2, d_ff=16)
    EncoderDecoderScorer(Transformer(config).eval(), torch.tensor([[3, 1]]))
    run_search(make_search(scorer, limits, beam, rules=[]))
    assert torch.equal(log_sum_exp(own.logits), expected)
    if (kernels := search_reductions()) is not None:
        assert torch.equal(scorer.found[0], kernels.log_sum_exp(own.logits))
    found = beam_search(own, start_id=0, eos_id=1, max_lengths=torch.tensor([4, 4]), beam_size=beam_size)
    assert torch.equal(own.found[0], expected)
    assert len(found) == 2
