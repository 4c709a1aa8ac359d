"""Test dropout by random bytes: its rate and scale, the same mask forward and backward, no effect outside training."""

import math

import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout
from transduce.model.transformer import Transformer

DTYPES = [torch.float32, torch.bfloat16, torch.float64]  # the last takes PyTorch's own dropout
RATES = [0.1, 0.3, 0.5, 0.9]


def exact_rate(p: float, dtype: torch.dtype) -> float:
    """Return the dropout rate rounded to a multiple of 1/256."""
    return p if dtype == torch.float64 else round(p * 256) / 256


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", RATES)
def test_elements_are_dropped_at_the_rate_and_the_others_scaled(p: float, dtype: torch.dtype) -> None:
    rate = exact_rate(p, dtype)
    out = Dropout(p)(torch.ones(400, 501, dtype=dtype))
    kept = out != 0
    # Six standard deviations of the share of n independent elements.
    assert abs(1 - kept.float().mean().item() - rate) < 6 * math.sqrt(rate * (1 - rate) / out.numel())
    expected = torch.tensor(1 / (1 - rate), dtype=dtype)
    torch.testing.assert_close(out[kept], expected.expand(int(kept.sum())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_lane_and_neighbour_is_independent(dtype: torch.dtype) -> None:
    """Four bytes of a random word serve four distant elements: each has the rate, and all are independent."""
    kept = (Dropout(0.5)(torch.ones(4, 50_000, dtype=dtype)) != 0).double()
    correlations = torch.corrcoef(torch.cat([kept, kept.roll(1, dims=1)]))
    correlations.fill_diagonal_(0)
    assert correlations.abs().max() < 6 / math.sqrt(50_000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (2, 3, 11), (1, 1, 1, 1), (0, 4)], ids=str)
def test_shapes_of_any_size_are_dropped_or_scaled(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    out = Dropout(0.5)(x)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert torch.equal(out, torch.where(out == 0, torch.zeros_like(x), x * 2))


def test_non_contiguous_tensors_are_dropped_or_scaled() -> None:
    x = torch.randn(6, 10).T
    out = Dropout(0.5)(x)
    assert torch.equal(out, torch.where(out == 0, torch.zeros_like(x), x * 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_seed_determines_the_mask(dtype: torch.dtype) -> None:
    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return Dropout(0.5)(torch.ones(1000, dtype=dtype))  # type: ignore[no-any-return]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_each_call_draws_a_new_mask() -> None:
    dropout = Dropout(0.5)
    assert not torch.equal(dropout(torch.ones(1000)), dropout(torch.ones(1000)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_uses_the_same_mask(dtype: torch.dtype) -> None:
    x = torch.randn(9, 31, dtype=dtype, requires_grad=True)
    out = Dropout(0.25)(x)
    out.sum().backward()
    expected = torch.where(out.detach() == 0, 0.0, 1 / 0.75).to(dtype)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_with_residual_equals_dropout_then_addition(dtype: torch.dtype) -> None:
    residual = torch.randn(9, 31, dtype=dtype, requires_grad=True)
    x = torch.randn(9, 31, dtype=dtype, requires_grad=True)
    dropout = Dropout(0.5)
    torch.manual_seed(3)
    together = dropout(x, residual=residual)
    torch.manual_seed(3)
    torch.testing.assert_close(together, residual + dropout(x))
    factor = torch.randn(9, 31, dtype=dtype)
    together.backward(factor)
    torch.testing.assert_close(residual.grad, factor)
    kept = (together != residual).detach()
    torch.testing.assert_close(x.grad, torch.where(kept, factor * 2, torch.zeros_like(factor)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_evaluation_is_the_identity(dtype: torch.dtype) -> None:
    x, residual = torch.randn(4, 4, dtype=dtype), torch.randn(4, 4, dtype=dtype)
    dropout = Dropout(0.5).eval()
    assert dropout(x) is x
    assert torch.equal(dropout(x, residual=residual), residual + x)


def test_rate_zero_is_the_identity_in_training() -> None:
    x = torch.randn(4, 4)
    assert Dropout(0.0)(x) is x
    assert torch.equal(Dropout(0.0)(x, residual=x), x + x)


def test_a_rate_near_one_still_keeps_one_in_256() -> None:
    out = Dropout(0.9999)(torch.ones(100_000))
    assert 0 < (out != 0).float().mean().item() < 2 / 256
    assert set(out.unique().tolist()) == {0.0, 256.0}


def test_printing_shows_the_rate() -> None:
    assert repr(Dropout(0.3)) == "Dropout(p=0.3)"


@pytest.mark.parametrize("dtype", DTYPES)
def test_setting_p_sets_the_rate_as_in_pytorch(dtype: torch.dtype) -> None:
    module, x = Dropout(0.5), torch.ones(10_000, dtype=dtype)
    assert isinstance(module, torch.nn.Dropout)
    module.p = 0.0
    assert torch.equal(module(x), x)
    module.p = 0.9
    assert 0.85 < float((module(x) == 0).double().mean()) < 0.95


@pytest.mark.parametrize("p", [1.0, 1.5, -0.1, math.nan])
def test_probabilities_that_are_negative_or_not_below_1_are_refused(p: float) -> None:
    module = Dropout(0.5)
    with pytest.raises(TransduceError, match=f"must be at least 0 and below 1, but is {p}"):
        module.p = p
    assert module.p == 0.5


def test_dropout_is_switched_on_alone_to_sample_predictions() -> None:
    """Monte Carlo dropout (Gal and Ghahramani 2016) leaves the other modules in evaluation mode."""
    config = ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9, d_model=16, d_ff=24, num_heads=2)
    model = Transformer(config).eval()
    ids = torch.randint(2, 9, (2, 5))
    expected = model(ids, ids)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.train()
    assert not torch.allclose(model(ids, ids), model(ids, ids))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert torch.equal(model(ids, ids), expected)
