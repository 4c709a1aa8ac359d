"""Test attention in a window: it equals full attention with the window's mask, at a cost of length × radius."""

import msgspec
import pytest
import torch
from torch import Tensor

from transduce.model.attention import (
    MultiHeadAttention,
    ScoredAttention,
    Window,
    attend,
    attend_in_window,
    block_length,
)
from transduce.model.build import build_model
from transduce.model.config import AttentionScore, ModelConfig
from transduce.model.masks import AttentionMask, BiasedMask, look_ahead_mask, window_mask
from transduce.model.positions import RelativePositions
from transduce.model.transformer import Decoder, Transformer

H, K = 2, 4


def full_mask(length: int, radius: int, *, causal: bool, present: Tensor | None) -> AttentionMask:
    places = torch.arange(length)
    mask = window_mask(places, places, radius)
    if causal:
        mask = mask & look_ahead_mask(length)
    return mask if present is None else mask & AttentionMask(present[:, None, None])


def relative_positions(*, bidirectional: bool) -> RelativePositions:
    relative = RelativePositions(num_buckets=8, max_distance=20, num_heads=H, bidirectional=bidirectional)
    torch.nn.init.normal_(relative.weight)
    return relative


@pytest.mark.parametrize("at_once", [1, 2**30], ids=["block by block", "all blocks at once"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "radius"), [(1, 3), (31, 5), (64, 32), (97, 1), (150, 40), (200, 33), (100, 300)])
def test_blocks_equal_full_attention(
    length: int, radius: int, causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.model.attention._MAX_SCORES", at_once)
    query, key, value = (torch.randn(2, H, length, K) for _ in range(3))
    present = torch.arange(length) < torch.tensor([[length], [(length + 1) // 2]])
    blocks: list[Tensor] = []
    full: list[Tensor] = []
    ours = attend_in_window(attend, query, key, value, Window(radius, causal, present, None), weights_out=blocks)
    expected = attend(query, key, value, full_mask(length, radius, causal=causal, present=present), weights_out=full)
    for row, exists in enumerate(present):  # outputs at padding are arbitrary
        torch.testing.assert_close(ours[row][:, exists], expected[row][:, exists], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(blocks[0][row][:, exists], full[0][row][:, exists], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_by_distance_is_added_in_blocks(causal: bool) -> None:
    query, key, value = (torch.randn(1, H, 150, K) for _ in range(3))
    relative = relative_positions(bidirectional=not causal)
    places = torch.arange(150)
    mask = BiasedMask(full_mask(150, 9, causal=causal, present=None).allowed, relative(places, places))
    ours = attend_in_window(attend, query, key, value, Window(9, causal, None, relative))
    torch.testing.assert_close(ours, attend(query, key, value, mask), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("score", ["general", "additive"])
def test_any_score_works_in_blocks(score: AttentionScore) -> None:
    made = ScoredAttention(score=score, kind="soft", scale=None, num_heads=H, d_k=K)
    made.reset_parameters()
    query, key, value = (torch.randn(1, H, 100, K) for _ in range(3))
    ours = attend_in_window(made, query, key, value, Window(7, True, None, None))
    expected = made(query, key, value, full_mask(100, 7, causal=True, present=None))
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


def test_gradients_flow_to_all_that_is_near_and_to_nothing_else() -> None:
    query, key, value = (torch.randn(1, 1, 200, K, requires_grad=True) for _ in range(3))
    attend_in_window(attend, query, key, value, Window(10, False, None, None))[0, 0, 100].sum().backward()
    assert value.grad is not None
    touched = value.grad[0, 0].any(dim=-1).nonzero().flatten().tolist()
    assert touched == list(range(90, 111))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
def test_a_model_computes_the_same_in_blocks_and_with_a_mask(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=16,
        d_ff=16,
        num_heads=H,
        positions=positions,  # type: ignore[arg-type]
        attention_window=6,
    )
    model = build_model(config).eval()
    assert isinstance(model, Transformer)
    source, target = torch.randint(2, 20, (2, 130)), torch.randint(2, 20, (2, 120))
    source[1, 70:] = 0
    in_blocks = model(source, target)
    monkeypatch.setattr("transduce.model.layers.block_length", lambda radius: 1000)  # noqa: ARG005
    torch.testing.assert_close(in_blocks, model(source, target), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("positions", ["rotary", "relative"])
def test_a_long_past_that_was_computed_in_blocks_is_continued_from_the_cache(positions: str) -> None:
    config = ModelConfig(
        kind="decoder",
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_decoder_layers=2,
        d_model=16,
        d_ff=16,
        num_heads=H,
        positions=positions,  # type: ignore[arg-type]
        attention_window=6,
    )
    model = build_model(config).eval()
    assert isinstance(model, Decoder)
    ids = torch.randint(2, 20, (2, 125))
    cache = model.new_cache()
    with torch.inference_mode():
        parts = [model.decode(part, cache=cache) for part in ids.split([120, 1, 1, 3], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model.hidden(ids), atol=1e-5, rtol=1e-4)


def test_a_window_as_wide_as_the_sequence_is_no_window() -> None:
    config = ModelConfig(
        source_vocabulary_size=20, target_vocabulary_size=20, num_encoder_layers=1, num_decoder_layers=1, d_model=16
    )
    wide = build_model(msgspec.structs.replace(config, attention_window=99)).eval()
    free = build_model(config).eval()
    free.load_state_dict(wide.state_dict())
    source, target = torch.randint(2, 20, (1, 30)), torch.randint(2, 20, (1, 30))
    torch.testing.assert_close(wide(source, target), free(source, target), atol=1e-5, rtol=1e-4)


def test_windowed_attention_allocates_no_tensor_larger_than_length_times_window() -> None:
    """A mask or scores of length × length would have 268 million elements; the largest tensor has 16 million."""
    length, radius = 16384, 64
    attention = MultiHeadAttention(d_model=8, num_heads=2, d_k=4, d_v=4)
    largest = LargestTensor()
    with torch.inference_mode(), largest:
        output = attention(torch.randn(1, length, 8), mask=Window(radius, False, None, None))
    assert output.shape == (1, length, 8)
    assert largest.elements <= 2 * length * 3 * block_length(radius)


class LargestTensor(torch.overrides.TorchFunctionMode):
    """A dispatch mode that records the size of the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result
