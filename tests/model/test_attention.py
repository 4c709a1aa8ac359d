"""Test attention against a tutorial's example, PyTorch's module, and a loop over words."""

import math

import pytest
import torch
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention, QueryKeyNormAttention, attend
from transduce.model.feed_forward import Dropout
from transduce.model.masks import AttentionMask, look_ahead_mask, padding_mask

# One query, three keys and their values. The products with the keys are 2, 4 and 4.
QUERY = torch.tensor([[[[1.0, 0.0, 2.0]]]])
KEYS = torch.tensor([[[[0.0, 1.0, 1.0], [4.0, 4.0, 0.0], [2.0, 3.0, 1.0]]]])
VALUES = torch.tensor([[[[1.0, 2.0, 3.0], [2.0, 8.0, 0.0], [2.0, 6.0, 3.0]]]])


def worked_example(query: Tensor) -> tuple[list[float], list[float]]:
    weights: list[Tensor] = []
    output = attend(query, KEYS, VALUES, weights_out=weights)
    return weights[0].flatten().tolist(), output.flatten().tolist()


def test_the_worked_example_without_scaling() -> None:
    """softmax(2, 4, 4) is not the (0, 0.5, 0.5) that the tutorial prints: the first word keeps 6 % of the weight."""
    weights, output = worked_example(QUERY * math.sqrt(3))  # undoes the division by √d_k
    assert weights == pytest.approx([0.0634, 0.4683, 0.4683], abs=5e-5)
    assert weights != pytest.approx([0.0, 0.5, 0.5], abs=5e-2)
    assert output == pytest.approx([1.9366, 6.6831, 1.5951], abs=5e-5)


def test_the_worked_example_scaled_by_the_square_root_of_the_key_width() -> None:
    weights, output = worked_example(QUERY)
    assert weights == pytest.approx([0.1361, 0.4319, 0.4319], abs=1e-4)
    first, second, third = weights
    assert output == pytest.approx(
        [first + 2 * second + 2 * third, 2 * first + 8 * second + 6 * third, 3 * first + 3 * third], abs=1e-6
    )


def test_the_loop_over_words_equals_the_matrix_form() -> None:
    query, key, value = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 3)
    one_by_one = []
    for word in query:
        scores = [float(word @ other) / math.sqrt(4) for other in key]
        total = sum(math.exp(score) for score in scores)
        one_by_one.append(
            sum((math.exp(score) / total * row for score, row in zip(scores, value, strict=True)), torch.zeros(3))
        )
    matrix = attend(query[None, None], key[None, None], value[None, None])[0, 0]
    torch.testing.assert_close(torch.stack(one_by_one), matrix)


def our_attention_and_pytorch(d_model: int, num_heads: int, *, bias: bool) -> tuple[MultiHeadAttention, nn.Module]:
    width = d_model // num_heads
    ours = MultiHeadAttention(d_model=d_model, num_heads=num_heads, d_k=width, d_v=width, bias=bias)
    theirs = nn.MultiheadAttention(d_model, num_heads, bias=bias, batch_first=True)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(d_model))
    state = theirs.state_dict()
    renamed = {"projection.weight": state["in_proj_weight"], "output.weight": state["out_proj.weight"]}
    if bias:
        renamed |= {"projection.bias": state["in_proj_bias"], "output.bias": state["out_proj.bias"]}
    ours.load_state_dict(renamed)
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("d_model", "num_heads"), [(16, 1), (16, 4), (24, 3)])
def test_self_attention_equals_pytorch(d_model: int, num_heads: int, bias: bool) -> None:
    ours, theirs = our_attention_and_pytorch(d_model, num_heads, bias=bias)
    x = torch.randn(3, 6, d_model)
    weights: list[Tensor] = []
    mask = look_ahead_mask(6)
    expected, expected_weights = theirs(x, x, x, attn_mask=~mask.allowed[0, 0], average_attn_weights=False)
    torch.testing.assert_close(ours(x, mask=mask, weights_out=weights), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights[0], expected_weights, atol=1e-6, rtol=1e-5)


def test_attention_to_a_padded_memory_equals_pytorch() -> None:
    ours, theirs = our_attention_and_pytorch(16, 4, bias=True)
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    mask = padding_mask(torch.tensor([[3, 3, 3, 3, 3], [3, 3, 0, 0, 0]]), 0)
    expected, _ = theirs(x, memory, memory, key_padding_mask=~mask.allowed[:, 0, 0])
    torch.testing.assert_close(ours(x, memory, mask=mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_long_sequences_take_the_library_kernel_with_the_same_result(masked: bool) -> None:
    query, key, value = (torch.randn(1, 2, 300, 8) for _ in range(3))
    mask = look_ahead_mask(300) if masked else None
    by_kernel = attend(query, key, value, mask)
    by_hand = attend(query, key, value, mask, weights_out=[])
    torch.testing.assert_close(by_kernel, by_hand, atol=1e-5, rtol=1e-4)


def test_key_and_value_widths_may_differ_from_d_model_over_heads() -> None:
    attention = MultiHeadAttention(d_model=12, num_heads=3, d_k=5, d_v=7)
    assert attention.projection.weight.shape == (3 * (5 + 5 + 7), 12)
    assert attention.output.weight.shape == (12, 3 * 7)
    x = torch.randn(2, 4, 12)
    joined = attention(x)
    assert joined.shape == (2, 4, 12)
    # Head by head, out of slices of the one matrix.
    query, key, value = (part.unflatten(-1, (3, -1)) for part in attention.projection(x).split([15, 15, 21], dim=-1))
    heads = []
    for head in range(3):
        weights = (query[:, :, head] @ key[:, :, head].transpose(1, 2) / math.sqrt(5)).softmax(-1)
        heads.append(weights @ value[:, :, head])
    torch.testing.assert_close(attention.output(torch.cat(heads, dim=-1)), joined)


def test_queries_and_keys_of_each_head_are_normalized_before_their_product() -> None:
    attention = QueryKeyNormAttention(d_model=12, num_heads=3, num_key_value_heads=1, d_k=4, d_v=4, norm_epsilon=0.01)
    with torch.no_grad():
        attention.query_norm.weight.normal_()
        attention.key_norm.weight.normal_()

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 0.01).sqrt() * weight

    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    for others in (None, memory):
        query, _, _ = attention.projection(x).split([12, 4, 4], dim=-1)
        _, key, value = attention.projection(x if others is None else others).split([12, 4, 4], dim=-1)
        query = normed(query.unflatten(-1, (3, 4)), attention.query_norm.weight)
        key = normed(key, attention.key_norm.weight)
        heads = [(query[:, :, n] @ key.transpose(1, 2) / math.sqrt(4)).softmax(-1) @ value for n in range(3)]
        torch.testing.assert_close(attention(x, others), attention.output(torch.cat(heads, dim=-1)))


def test_self_attention_is_attention_to_itself_as_memory() -> None:
    attention = MultiHeadAttention(d_model=8, num_heads=2, d_k=4, d_v=4)
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(attention(x), attention(x, x))


def test_recorded_weights_sum_to_one_and_recording_changes_nothing() -> None:
    attention = MultiHeadAttention(d_model=8, num_heads=2, d_k=4, d_v=4)
    x, mask = torch.randn(2, 5, 8), look_ahead_mask(5)
    weights: list[Tensor] = []
    assert torch.equal(attention(x, mask=mask, weights_out=weights), attention(x, mask=mask))
    assert weights[0].shape == (2, 2, 5, 5)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(2, 2, 5))
    assert not weights[0].triu(1).any()
    assert not weights[0].requires_grad


def test_dropout_acts_on_weights_in_training_alone() -> None:
    query, key = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 64, 4)
    value = torch.ones(1, 1, 64, 1)  # the output is the sum of the weights
    dropout = Dropout(0.5)
    dropped = attend(query, key, value, dropout=dropout)
    assert (dropped - 1).abs().max() > 1e-3
    torch.testing.assert_close(attend(query, key, value, dropout=dropout.eval()), torch.ones(1, 1, 4, 1))


@pytest.mark.parametrize("size", [100, 300])
def test_a_dropout_that_rounds_to_zero_drops_nothing_at_any_length(size: int) -> None:
    query, key = torch.randn(1, 1, size, 4), torch.randn(1, 1, size, 4)
    output = attend(query, key, torch.ones(1, 1, size, 4), dropout=Dropout(0.0015))
    torch.testing.assert_close(output, torch.ones(1, 1, size, 4))


def test_recorded_weights_are_those_before_dropout() -> None:
    weights: list[Tensor] = []
    q, k, v = (torch.randn(1, 1, 8, 4) for _ in range(3))
    attend(q, k, v, dropout=Dropout(0.5), weights_out=weights)
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(1, 1, 8))


def test_masked_keys_receive_no_gradient() -> None:
    query, key, value = (torch.randn(1, 1, 3, 4, requires_grad=True) for _ in range(3))
    allowed = torch.tensor([True, True, False]).expand(1, 1, 3, 3)
    attend(query, key, value, AttentionMask(allowed)).sum().backward()
    assert key.grad is not None
    assert value.grad is not None
    assert not key.grad[0, 0, 2].any()
    assert not value.grad[0, 0, 2].any()
    assert key.grad[0, 0, :2].any()
