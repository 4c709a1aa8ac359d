"""Test attention scores by their formulas, hard attention and its gradient, and shared key/value heads."""

import math

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import KeyValueCache, MultiHeadAttention, ScoredAttention, attend, straight_through
from transduce.model.config import AttentionKind, AttentionScore
from transduce.model.masks import AttentionMask, look_ahead_mask

H, K = 2, 5


def scored(score: AttentionScore, kind: AttentionKind = "soft", scale: float | None = None) -> ScoredAttention:
    made = ScoredAttention(score=score, kind=kind, scale=scale, num_heads=H, d_k=K)
    made.reset_parameters()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def random_inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, H, 4, K), torch.randn(3, H, 6, K), torch.randn(3, H, 6, 7)


@torch.no_grad()
def score_by_hand(made: ScoredAttention, score: str, scale: float | None, head: int, q: Tensor, k: Tensor) -> float:
    match score:
        case "dot":
            return float(q @ k)
        case "general":
            assert made.matrix is not None
            return float(q @ made.matrix[head] @ k)
        case "additive":
            assert made.vector is not None
            return float(made.vector[head] @ torch.tanh(q + k))
    return float(q @ k) * (1 / math.sqrt(K) if scale is None else scale)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize(
    ("score", "scale"), [("scaled", None), ("scaled", 0.9), ("dot", None), ("general", None), ("additive", None)]
)
def test_each_score_equals_its_formula_applied_word_by_word(
    score: AttentionScore, scale: float | None, kind: AttentionKind
) -> None:
    made = scored(score, kind, scale)
    query, key, value = random_inputs()
    allowed = torch.rand(3, 1, 4, 6) > 0.3
    allowed[..., 0] = True
    weights: list[Tensor] = []
    output = made(query, key, value, AttentionMask(allowed), weights_out=weights)
    for batch in range(3):
        for head in range(H):
            for place in range(4):
                scores = [
                    score_by_hand(made, score, scale, head, query[batch, head, place], other) if ok else float("-inf")
                    for other, ok in zip(key[batch, head], allowed[batch, 0, place].tolist(), strict=True)
                ]
                expected = torch.tensor(scores).softmax(0)
                if kind == "hard":
                    expected = nn.functional.one_hot(expected.argmax(), 6).float()
                torch.testing.assert_close(weights[0][batch, head, place], expected, atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(
                    output[batch, head, place], expected @ value[batch, head], atol=1e-5, rtol=1e-4
                )


def test_the_general_score_is_initialized_as_the_scaled_dot_product() -> None:
    made = ScoredAttention(score="general", kind="soft", scale=None, num_heads=H, d_k=K)
    made.reset_parameters()
    query, key, value = random_inputs()
    torch.testing.assert_close(made(query, key, value), attend(query, key, value))


def test_the_additive_score_of_projections_is_that_of_bahdanau() -> None:
    """The paper's score is v · tanh(W s + U h)."""
    attention = MultiHeadAttention(d_model=8, num_heads=1, d_k=8, d_v=8, score=None)
    made = ScoredAttention(score="additive", kind="soft", scale=None, num_heads=1, d_k=8)
    made.reset_parameters()
    attention.score = made
    states, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    w, u, _ = attention.projection.weight.split(8)
    w_bias, u_bias, _ = attention.projection.bias.split(8)
    assert made.vector is not None
    by_hand = torch.tanh((states @ w.T + w_bias)[:, :, None] + (memory @ u.T + u_bias)[:, None]) @ made.vector[0]
    weights: list[Tensor] = []
    attention(states, memory, weights_out=weights)
    torch.testing.assert_close(weights[0][:, 0], by_hand.softmax(-1))


def test_hard_weights_have_the_gradient_of_soft_ones() -> None:
    scores = torch.randn(4, 6, requires_grad=True)
    direction = torch.randn(4, 6)
    hard = straight_through(scores.softmax(-1))
    assert torch.equal(hard.sum(-1), torch.ones(4))
    assert set(hard.flatten().tolist()) == {0.0, 1.0}
    (through,) = torch.autograd.grad((hard * direction).sum(), scores)
    (soft,) = torch.autograd.grad((scores.softmax(-1) * direction).sum(), scores)
    torch.testing.assert_close(through, soft)


def test_hard_attention_gives_masked_keys_no_weight() -> None:
    made = scored("dot", "hard")
    query, key, value = random_inputs()
    weights: list[Tensor] = []
    made(query, key[:, :, :4], value[:, :, :4], look_ahead_mask(4), weights_out=weights)
    assert not weights[0].triu(1).any()
    assert torch.equal(weights[0].sum(-1), torch.ones(3, H, 4))


# --- heads that share keys and values ---


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_shared_heads_equal_repeated_ones(shared: int) -> None:
    grouped = MultiHeadAttention(d_model=8, num_heads=4, d_k=3, d_v=5, num_key_value_heads=shared)
    full = MultiHeadAttention(d_model=8, num_heads=4, d_k=3, d_v=5)
    query, key, value = grouped.projection.weight.split(grouped.widths)
    repeated = [
        part.unflatten(0, (shared, -1)).repeat_interleave(4 // shared, 0).flatten(0, 1) for part in (key, value)
    ]
    with torch.no_grad():
        full.projection.weight.copy_(torch.cat([query, *repeated]))
        full.projection.bias.zero_()
        grouped.projection.bias.zero_()
    full.output.load_state_dict(grouped.output.state_dict())
    x, memory = torch.randn(2, 6, 8), torch.randn(2, 3, 8)
    torch.testing.assert_close(grouped(x, mask=look_ahead_mask(6)), full(x, mask=look_ahead_mask(6)))
    torch.testing.assert_close(grouped(x, memory), full(x, memory))


def test_the_cache_of_grouped_query_attention_holds_only_shared_heads() -> None:
    grouped = MultiHeadAttention(d_model=8, num_heads=4, d_k=3, d_v=5, num_key_value_heads=2)
    cache = KeyValueCache()
    grouped(torch.randn(1, 6, 8), cache=cache)
    keys, values = cache.content()
    assert (keys.shape, values.shape) == ((1, 2, 6, 3), (1, 2, 6, 5))


def test_biases_of_projection_and_output_are_chosen_apart() -> None:
    attention = MultiHeadAttention(d_model=8, num_heads=2, d_k=4, d_v=4, bias=True, output_bias=False)
    assert attention.projection.bias is not None
    assert attention.output.bias is None


@pytest.mark.parametrize("shared", [1, 2])
def test_a_step_with_shared_heads_is_the_last_position_of_all_at_once(shared: int) -> None:
    torch.manual_seed(5)
    attention = MultiHeadAttention(d_model=8, num_heads=4, d_k=3, d_v=5, num_key_value_heads=shared).eval()
    x, cache, present = torch.randn(2, 6, 8), KeyValueCache(), torch.ones(2, 6, dtype=torch.bool)
    present[1, 1:3] = False
    whole = attention(x, mask=AttentionMask(present[:, None, None]) & look_ahead_mask(6))
    for place in range(6):
        mask = AttentionMask(present[:, None, None, : place + 1])
        found = attention(x[:, place : place + 1], mask=mask, cache=cache)
        torch.testing.assert_close(found[:, 0], whole[:, place], atol=1e-6, rtol=1e-5)
