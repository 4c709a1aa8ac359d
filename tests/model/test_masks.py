"""Test attention masks: which positions may attend to which, and the term that is added to the scores."""

import pytest
import torch

from transduce.errors import TransduceError
from transduce.model.attention import attend
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask, BiasedMask, ancestry_mask, look_ahead_mask, padding_mask, target_mask
from transduce.model.transformer import Transformer

PAD = 0


def test_look_ahead_and_padding_together_are_the_five_by_five_matrix() -> None:
    """With three words and two paddings: a triangle, and two columns that nothing attends to."""
    mask = target_mask(torch.tensor([[7, 8, 9, PAD, PAD]]), PAD)
    assert mask.allowed.shape == (1, 1, 5, 5)
    assert mask.allowed[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
    ]


def test_the_five_by_five_matrix_as_the_term_added_to_the_scores() -> None:
    low = torch.finfo(torch.float32).min
    bias = target_mask(torch.tensor([[7, 8, 9, PAD, PAD]]), PAD).bias(torch.float32)
    assert bias[0, 0].tolist() == [
        [0, low, low, low, low],
        [0, 0, low, low, low],
        [0, 0, 0, low, low],
        [0, 0, 0, low, low],
        [0, 0, 0, low, low],
    ]


def test_a_start_symbol_that_is_the_padding_id_counts() -> None:
    mask = target_mask(torch.tensor([[PAD, 8, 9, PAD]]), PAD)
    assert mask.allowed[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]


def test_target_mask_does_not_modify_its_ids() -> None:
    ids = torch.tensor([[PAD, 8, PAD]])
    target_mask(ids, PAD)
    assert ids.tolist() == [[PAD, 8, PAD]]


def test_padding_hides_keys_of_each_row() -> None:
    mask = padding_mask(torch.tensor([[5, 6, PAD], [5, PAD, PAD]]), PAD)
    assert mask.allowed.shape == (2, 1, 1, 3)
    assert mask.allowed[:, 0, 0].int().tolist() == [[1, 1, 0], [1, 0, 0]]


def test_look_ahead_after_cached_positions() -> None:
    assert look_ahead_mask(2, cached=3).allowed[0, 0].int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_ancestry_mask_allows_each_hypothesis_its_own_past() -> None:
    ancestors = torch.tensor([[[1, 0, 1], [0, 1, 1]]], dtype=torch.bool)
    assert torch.equal(ancestry_mask(ancestors).allowed, ancestors[:, None])


def test_two_masks_together_allow_what_both_allow() -> None:
    both = look_ahead_mask(2) & padding_mask(torch.tensor([[PAD, 4]]), PAD)
    assert both.allowed[0, 0].int().tolist() == [[0, 0], [0, 1]]


def test_the_additive_bias_of_a_mask_is_cached_per_dtype() -> None:
    mask = look_ahead_mask(3)
    assert mask.bias(torch.float32) is mask.bias(torch.float32)
    assert mask.bias(torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [3, 300])  # 300 × 300 scores go through the library's kernel
def test_a_row_that_may_attend_to_nothing_stays_finite(dtype: torch.dtype, length: int) -> None:
    allowed = torch.ones(1, 1, length, length, dtype=torch.bool)
    allowed[0, 0, 1] = False
    q, k, v = (torch.randn(1, 2, length, 4, dtype=dtype).mul_(9).requires_grad_() for _ in range(3))
    mask = AttentionMask(allowed)
    assert mask.bias(dtype).isfinite().all()
    out = attend(q, k, v, mask)
    out.float().sum().backward()
    assert out.isfinite().all()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (q, k, v))
    # Every key counts the same.
    torch.testing.assert_close(out[0, :, 1].float(), v[0].float().mean(1), atol=0.2 if length == 3 else 0.1, rtol=0.05)


def test_a_mask_must_be_boolean() -> None:
    with pytest.raises(TransduceError, match=r"A mask must be a boolean .* of the type torch.float32 and .* \(1, 1"):
        AttentionMask(torch.ones(1, 1, 2, 2))


def test_a_mask_must_have_four_axes() -> None:
    with pytest.raises(
        TransduceError, match=r"axes \(batch, heads, queries, keys\).* torch.bool and .* \(2, 2\): pass"
    ):
        AttentionMask(torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("radius", [None, 2])
@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
@pytest.mark.parametrize("length", [9, 40])  # a window computes long inputs in blocks
def test_a_model_adds_the_bias_of_a_mask_with_every_kind_of_positions(
    positions: str, radius: int | None, length: int
) -> None:
    """A very low term hides a key as the boolean mask does."""
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_encoder_layers=2,
        num_decoder_layers=1,
        d_model=16,
        d_ff=32,
        num_heads=2,
        positions=positions,  # type: ignore[arg-type]
        attention_window=radius,
        dropout=0.0,
    )
    model, x = build_model(config).eval(), torch.randn(1, length, 16)
    assert isinstance(model, Transformer)
    visible = torch.ones(1, 1, 1, length, dtype=torch.bool)
    allowed = visible.clone()
    allowed[..., 3] = False
    term = torch.zeros(1, 1, 1, length).masked_fill(~allowed, -1e9)
    with torch.no_grad():
        hidden, by_term = (
            model.encode_embedded(x, mask) for mask in (AttentionMask(allowed), BiasedMask(visible, term))
        )
        seen = model.encode_embedded(x, AttentionMask(visible))
    others = [position for position in range(length) if position != 3]
    assert torch.allclose(by_term[:, others], hidden[:, others], atol=1e-5)
    assert not torch.allclose(by_term[:, others], seen[:, others], atol=1e-3)


def test_combining_masks_adds_their_biases() -> None:
    one, other = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[10.0, 20.0]]]])
    allowed = torch.tensor([[[[True, False]]]])
    biased, plain = BiasedMask(torch.ones_like(allowed), one), AttentionMask(allowed)
    for mask in (biased & plain, plain & biased):
        assert torch.equal(mask.allowed, allowed)
        assert mask.bias(torch.float32)[0, 0, 0, 0] == 1.0
    assert (biased & BiasedMask(torch.ones_like(allowed), other)).bias(torch.float32).tolist() == [[[[11.0, 22.0]]]]
