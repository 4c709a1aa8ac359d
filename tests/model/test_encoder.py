"""Test encoder-only models: heads by hand, token types, padding, and the layers shared with the Transformer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Encoder, Transformer
from transduce.training.loss import projected_cross_entropy

PAD, V = 0, 13
IDS = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, PAD, PAD]])


def build(**changes: Any) -> Encoder:
    shape: dict[str, Any] = {
        "kind": "encoder",
        "source_vocabulary_size": V,
        "target_vocabulary_size": V,
        "num_encoder_layers": 2,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
        "dropout": 0.0,
        "positions": "learned",
        "max_positions": 32,
        "norm_order": "post",
        "embedding_norm": True,
        "activation": "gelu",
    }
    model = build_model(ModelConfig(**(shape | changes))).eval()
    assert isinstance(model, Encoder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-4)


def test_an_encoder_is_the_encoder_of_a_transformer() -> None:
    changes = {"positions": "sinusoidal", "max_positions": 1024, "norm_order": "pre", "embedding_norm": False}
    alone = build(**changes, masked_language_head=False)
    config = ModelConfig(
        source_vocabulary_size=V,
        target_vocabulary_size=V,
        num_encoder_layers=2,
        num_decoder_layers=1,
        d_model=16,
        d_ff=24,
        num_heads=4,
        dropout=0.0,
        activation="gelu",
    )
    whole = Transformer(config).eval()
    # "layers.0…", "norm.weight" and "source_weight"
    renamed = {name if name == "source_weight" else f"encoder_{name}": t for name, t in alone.state_dict().items()}
    own = whole.state_dict()
    assert renamed.keys() < own.keys()
    whole.load_state_dict(own | renamed)
    assert torch.equal(alone.encode(IDS)[0], whole.encode(IDS)[0])


def test_padding_and_batch_mates_change_nothing() -> None:
    model = build(token_types=2)
    types = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    together = model(IDS, types)
    close(together[1:, :3], model(IDS[1:, :3], types[1:, :3]))
    close(together[:1], model(IDS[:1], types[:1]))


def test_every_token_sees_every_other() -> None:
    model = build()
    before = model(IDS[:1])
    for place in range(5):
        other = IDS[:1].clone()
        other[0, place] = 11
        assert not torch.isclose(before, model(other), atol=1e-4).all(-1).any()


def test_token_types_are_added_to_the_embeddings() -> None:
    model = build(token_types=3, embedding_norm=False)
    types = torch.tensor([[0, 2, 1, 1, 0], [0, 0, 0, 0, 0]])
    plain = model.embedding(IDS, model.source_weight)
    typed = model.embedding(IDS, model.source_weight, token_types=types)
    assert model.embedding.token_types is not None
    close(typed - plain, model.embedding.token_types[types] - model.embedding.token_types[0])


def test_the_masked_language_head_by_hand() -> None:
    model = build(output_bias=True, norm_epsilon=1e-12)
    states, _ = model.encode(IDS)
    head = model.masked_language_head
    assert head is not None
    inner = F.gelu(states @ head.dense.weight.T + head.dense.bias)
    normed = F.layer_norm(inner, (16,), head.norm.weight, head.norm.bias, 1e-12)
    assert model.output_bias is not None
    close(model(IDS), normed @ model.source_weight.T + model.output_bias)


def test_masked_positions_may_be_projected_alone() -> None:
    model = build()
    states, _ = model.encode(IDS)
    chosen = torch.tensor([[True, False, True, False, False], [False, True, False, False, False]])
    close(model.project(model.head_states(states[chosen])), model(IDS)[chosen])


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({}, torch.tanh),
        ({"pooler_activation": "relu"}, lambda x: x.clamp(min=0)),
        ({"pooler_activation": "gelu"}, lambda x: x / 2 * (1 + torch.erf(x / 2**0.5))),
    ],
)
def test_pooler_and_classifier_by_hand(changes: dict[str, Any], activation: Callable[[Tensor], Tensor]) -> None:
    model = build(num_labels=3, **changes)
    states, _ = model.encode(IDS)
    assert model.pooler is not None
    assert model.classifier is not None
    pooled = activation(states[:, 0] @ model.pooler.weight.T + model.pooler.bias)
    close(model.pool(states), pooled)
    close(model.classify(states), pooled @ model.classifier.weight.T + model.classifier.bias)
    assert model.classify(states).shape == (2, 3)


def test_an_encoder_has_only_the_heads_that_are_configured() -> None:
    bare = build(masked_language_head=False)
    names = {name.partition(".")[0] for name in bare.state_dict()}
    assert names == {"source_weight", "embedding", "layers"}
    states, _ = bare.encode(IDS)
    assert bare.head_states(states) is states
    with pytest.raises(TransduceError, match=r"has no pooler: set `model\.pooler` or `model\.num_labels`\."):
        bare.pool(states)
    with pytest.raises(TransduceError, match=r"has no classes of texts: set `model\.num_labels`\."):
        build(pooler=True).classify(states)


def test_every_weight_learns() -> None:
    model = build(num_labels=3, token_types=2, output_bias=True, norm_order="sandwich").train()
    states, _ = model.encode(IDS, token_types=(IDS > 6).long())
    (model.project(model.head_states(states)).square().mean() + (model.classify(states) ** 3).sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_traced_weights_ignore_padding() -> None:
    model, trace = build(), AttentionTrace()
    model.encode(IDS, trace=trace)
    assert [weights.shape for weights in trace.encoder] == [(2, 4, 5, 5)] * 2
    assert not trace.encoder[1][1, :, :, 3:].any()


def test_the_projecting_loss_includes_the_output_bias() -> None:
    model = build(output_bias=True)
    states, _ = model.encode(IDS)
    labels = torch.tensor([[4, 0, 5, 0, 0], [0, 7, 0, 0, 0]])
    hidden, frozen = model.head_states(states), model.config.frozen_row
    loss = projected_cross_entropy(
        hidden, model.output_weight, labels, pad_id=PAD, bias=model.output_bias, frozen_row=frozen
    )
    expected = F.cross_entropy(model(IDS).flatten(0, 1), labels.flatten(), ignore_index=PAD, reduction="sum")
    close(loss.total, expected)
    (ours,) = torch.autograd.grad(loss.total, [p for p in [model.output_bias] if p is not None], retain_graph=True)
    (theirs,) = torch.autograd.grad(expected, [p for p in [model.output_bias] if p is not None])
    close(ours[1:], theirs[1:])  # the padding token gets no gradient
