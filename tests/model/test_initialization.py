"""Test initial weights: the scale of each matrix, and a first loss near ln V."""

import math

import msgspec
import pytest
import torch

from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layers import EncoderLayer
from transduce.model.transformer import Transformer
from transduce.training.loss import projected_cross_entropy

CONFIG = ModelConfig(
    source_vocabulary_size=1000,
    target_vocabulary_size=1000,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=64,
    d_ff=160,
    num_heads=4,
    dropout=0.0,
)


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary_size", [1000, 8000])
def test_the_first_loss_is_within_one_nat_of_ln_v(norm_order: str, tied: bool, vocabulary_size: int) -> None:
    model = Transformer(
        msgspec.structs.replace(
            CONFIG,
            norm_order=norm_order,
            tie_source_target=tied,
            tie_output=tied,
            source_vocabulary_size=vocabulary_size,
            target_vocabulary_size=vocabulary_size,
        )
    )
    source, target = (torch.randint(1, vocabulary_size, (16, 20)) for _ in range(2))
    hidden = model.hidden(source, torch.cat([torch.zeros(16, 1, dtype=torch.int64), target[:, :-1]], dim=1))
    loss = projected_cross_entropy(hidden, model.output_weight, target, pad_id=0)
    assert abs(float(loss.negative_log_likelihood) / loss.tokens - math.log(vocabulary_size)) < 1.0


def test_scaled_embeddings_have_variance_one() -> None:
    model = Transformer(CONFIG)
    assert (model.source_weight[1:] * 8).std().item() == pytest.approx(1.0, abs=0.02)


def test_the_padding_row_is_zero_in_every_matrix() -> None:
    model = Transformer(msgspec.structs.replace(CONFIG, tie_source_target=False, tie_output=False, pad_id=3))
    for weight in (model.source_weight, model.target_weight, model.output_weight):
        assert not weight[3].any()
        assert weight[0].any()


def xavier_bound(rows: int, columns: int) -> float:
    return math.sqrt(6 / (rows + columns))


def check_uniform(part: torch.Tensor, bound: float) -> None:
    """Check that the largest of some thousand uniform numbers is just below the bound."""
    assert 0.99 * bound < part.abs().max().item() <= bound * (1 + 1e-6)


def test_queries_keys_and_values_are_each_xavier_uniform_by_their_own_shape() -> None:
    layer = Transformer(msgspec.structs.replace(CONFIG, d_k=12, d_v=40)).encoder_layers[0]
    assert isinstance(layer, EncoderLayer)
    attention = layer.self_attention
    assert isinstance(attention, MultiHeadAttention)
    query, key, value = attention.projection.weight.detach().split([48, 48, 160])
    check_uniform(query, xavier_bound(48, 64))
    check_uniform(key, xavier_bound(48, 64))
    check_uniform(value, xavier_bound(160, 64))
    check_uniform(attention.output.weight.detach(), xavier_bound(64, 160))
    assert not attention.projection.bias.any()


def test_feed_forward_matrices_are_xavier_uniform() -> None:
    layer = Transformer(CONFIG).encoder_layers[0]
    assert isinstance(layer, EncoderLayer)
    assert isinstance(layer.feed_forward, FeedForward)
    check_uniform(layer.feed_forward.inner.weight.detach(), xavier_bound(160, 64))
    check_uniform(layer.feed_forward.outer.weight.detach(), xavier_bound(160, 64))
    assert not layer.feed_forward.inner.bias.any()


def test_the_halves_of_a_gated_layer_are_each_xavier_uniform() -> None:
    layer = Transformer(msgspec.structs.replace(CONFIG, activation="swiglu")).encoder_layers[0]
    assert isinstance(layer, EncoderLayer)
    assert isinstance(layer.feed_forward, GatedFeedForward)
    for half in layer.feed_forward.inner.weight.detach().chunk(2):
        check_uniform(half, xavier_bound(160, 64))


def test_a_seed_determines_the_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in Transformer(CONFIG).parameters()])

    assert torch.equal(weights(5), weights(5))
    assert not torch.equal(weights(5), weights(6))
