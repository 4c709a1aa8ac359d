"""Test that reductions by blocks equal PyTorch's for any vocabulary size."""

import pytest
import torch

from transduce.search.selection import argmax_token, log_sum_exp, top_tokens

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
