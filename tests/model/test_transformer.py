"""Test the whole model: equal to PyTorch's layers, independent of the future, padding and batch, of the right size."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.masks import look_ahead_mask, padding_mask
from transduce.model.transformer import Transformer
from transduce.training.choices import PRESETS

PAD, EOS = 0, 1
TINY = ModelConfig(
    source_vocabulary_size=13,
    target_vocabulary_size=13,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=4,
    dropout=0.1,
    attention_dropout=0.1,
    activation_dropout=0.1,
)
SOURCE = torch.tensor([[5, 6, 7, 8, EOS]])
TARGET_INPUT = torch.tensor([[PAD, 4, 9, 2]])


def build(**changes: object) -> Transformer:
    """Return a tiny model in evaluation mode, with enlarged weights so that attention is far from uniform."""
    model = Transformer(msgspec.structs.replace(TINY, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(1.5)
    return model


# --- PyTorch's own layers ---


def names_of_pytorch(norm_first: bool, *, decoder: bool) -> dict[str, str]:
    """Return our parameters' prefixes by PyTorch's prefixes."""
    norm = "norm_before" if norm_first else "norm_after"
    names = {
        "self_attn.in_proj_": "self_attention.projection.",
        "self_attn.out_proj.": "self_attention.output.",
        "linear1.": "feed_forward.inner.",
        "linear2.": "feed_forward.outer.",
        "norm1.": f"self_attention_residual.{norm}.",
        "norm2.": f"feed_forward_residual.{norm}.",
    }
    if decoder:
        names |= {
            "multihead_attn.in_proj_": "memory_attention.projection.",
            "multihead_attn.out_proj.": "memory_attention.output.",
            "norm2.": f"memory_attention_residual.{norm}.",
            "norm3.": f"feed_forward_residual.{norm}.",
        }
    return names


def take_weights(ours: nn.Module, theirs: nn.Module, names: dict[str, str]) -> None:
    """Set random weights, the same in both layers."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    renamed = {}
    for name, tensor in theirs.state_dict().items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        renamed[names[prefix] + name.removeprefix(prefix)] = tensor
    ours.load_state_dict(renamed)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_layer_equals_pytorch(norm_first: bool, activation: str) -> None:
    config = msgspec.structs.replace(TINY, norm_order="pre" if norm_first else "post", activation=activation)
    ours = EncoderLayer(config).eval()
    theirs = nn.TransformerEncoderLayer(
        16, 4, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first
    )
    take_weights(ours, theirs, names_of_pytorch(norm_first, decoder=False))
    x = torch.randn(2, 5, 16)
    mask = padding_mask(torch.tensor([[3, 3, 3, 3, 3], [3, 3, 3, 0, 0]]), PAD)
    expected = theirs(x, src_key_padding_mask=~mask.allowed[:, 0, 0])
    torch.testing.assert_close(ours(x, mask), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_decoder_layer_equals_pytorch(norm_first: bool) -> None:
    ours = DecoderLayer(msgspec.structs.replace(TINY, norm_order="pre" if norm_first else "post")).eval()
    theirs = nn.TransformerDecoderLayer(16, 4, 24, dropout=0.0, batch_first=True, norm_first=norm_first)
    take_weights(ours, theirs, names_of_pytorch(norm_first, decoder=True))
    x, memory = torch.randn(2, 4, 16), torch.randn(2, 5, 16)
    mask = look_ahead_mask(4)
    memory_mask = padding_mask(torch.tensor([[3, 3, 3, 3, 3], [3, 3, 3, 0, 0]]), PAD)
    expected = theirs(x, memory, tgt_mask=~mask.allowed[0, 0], memory_key_padding_mask=~memory_mask.allowed[:, 0, 0])
    ours_out = ours(x, memory, mask=mask, memory_mask=memory_mask)
    torch.testing.assert_close(ours_out, expected, atol=1e-5, rtol=1e-5)


def test_the_norm_equals_pytorch_and_the_formula() -> None:
    norm = EncoderLayer(TINY).self_attention_residual.norm_before
    assert isinstance(norm, nn.LayerNorm)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    x = torch.randn(2, 3, 16) * 5 + 2
    by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), by_hand * norm.weight + norm.bias, atol=1e-5, rtol=1e-5)


def test_pre_norm_ends_each_stack_with_a_norm_and_post_norm_does_not() -> None:
    pre, post = build(norm_order="pre"), build(norm_order="post")
    assert isinstance(pre.encoder_norm, nn.LayerNorm)
    assert isinstance(pre.decoder_norm, nn.LayerNorm)
    assert isinstance(post.encoder_norm, nn.Identity)
    assert isinstance(post.decoder_norm, nn.Identity)


# --- what an output may depend on ---


def test_two_evaluations_of_one_input_are_equal() -> None:
    model = build()
    assert torch.equal(model(SOURCE, TARGET_INPUT), model(SOURCE, TARGET_INPUT))
    model.train()
    assert not torch.equal(model(SOURCE, TARGET_INPUT), model(SOURCE, TARGET_INPUT))


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("changed", [1, 2, 3])
def test_a_future_target_token_changes_no_earlier_logit(changed: int, norm_order: str) -> None:
    model = build(norm_order=norm_order)
    other = TARGET_INPUT.clone()
    other[0, changed] = 11
    before, after = model(SOURCE, TARGET_INPUT), model(SOURCE, other)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert not torch.isclose(before[:, changed:], after[:, changed:]).all(-1).any()


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_padding_changes_nothing(norm_order: str) -> None:
    model = build(norm_order=norm_order)
    alone = model(SOURCE, TARGET_INPUT)
    source = torch.cat([SOURCE, torch.full((1, 4), PAD)], dim=1)
    target = torch.cat([TARGET_INPUT, torch.full((1, 3), PAD)], dim=1)
    torch.testing.assert_close(model(source, target)[:, :4], alone, atol=1e-5, rtol=1e-5)


def test_batch_mates_change_nothing() -> None:
    model = build()
    alone = model(SOURCE, TARGET_INPUT)
    for mate in (3, 12):
        source = torch.full((3, 9), mate)
        source[1] = PAD
        source[1, :5] = SOURCE
        target = torch.full((3, 6), mate)
        target[1] = PAD
        target[1, :4] = TARGET_INPUT
        torch.testing.assert_close(model(source, target)[1:2, :4], alone, atol=1e-5, rtol=1e-5)


def test_the_order_of_the_source_counts() -> None:
    model = build()
    order = torch.tensor([3, 1, 4, 0, 2])
    assert not torch.allclose(model(SOURCE, TARGET_INPUT), model(SOURCE[:, order], TARGET_INPUT), atol=1e-2)


def test_without_positions_a_permuted_source_permutes_the_memory_alone() -> None:
    model = build(positions="none")
    order = torch.tensor([3, 1, 4, 0, 2])
    memory, _ = model.encode(SOURCE)
    permuted, _ = model.encode(SOURCE[:, order])
    torch.testing.assert_close(permuted, memory[:, order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(SOURCE, TARGET_INPUT), model(SOURCE[:, order], TARGET_INPUT), atol=1e-5, rtol=1e-5)


def test_every_source_token_counts() -> None:
    model = build()
    before = model(SOURCE, TARGET_INPUT)
    for place in range(4):
        other = SOURCE.clone()
        other[0, place] = 12
        assert not torch.allclose(before, model(other, TARGET_INPUT), atol=1e-3)


# --- attention weights ---


def test_traced_weights_have_rows_that_sum_to_one_and_asking_changes_nothing() -> None:
    model, trace = build(), AttentionTrace()
    source = torch.tensor([[5, 6, 7, 8, EOS], [5, 6, EOS, PAD, PAD]])
    target = torch.tensor([[PAD, 4, 9, 2], [PAD, 3, PAD, PAD]])
    memory, mask = model.encode(source, trace=trace)
    hidden = model.decode(target, memory, mask, trace=trace)
    assert torch.equal(model.project(hidden), model(source, target))
    for kind, shape in (("encoder", (2, 4, 5, 5)), ("decoder", (2, 4, 4, 4)), ("memory", (2, 4, 4, 5))):
        layers: list[Tensor] = getattr(trace, kind)
        assert [layer.shape for layer in layers] == [shape, shape]
        for layer in layers:
            torch.testing.assert_close(layer.sum(-1), torch.ones(shape[:-1]))
    assert not trace.encoder[0][1, :, :, 3:].any()
    assert not trace.memory[1][1, :, :, 3:].any()
    assert not trace.decoder[0].triu(1).any()


# --- sizes and components ---


def count_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config).parameters())


@pytest.mark.parametrize(
    ("preset", "count", "millions"), [("paper-base", 63_082_496, 63), ("paper-big", 214_245_376, 214)]
)
def test_the_paper_models_have_their_size_with_37000_shared_tokens(preset: str, count: int, millions: int) -> None:
    """Table 3 gives 65 and 213 million parameters; attention has 4 d² + 4 d and a norm 2 d, with d = d_model."""
    sizes = PRESETS[preset]
    config = ModelConfig(
        source_vocabulary_size=37_000,
        target_vocabulary_size=37_000,
        num_encoder_layers=sizes.num_encoder_layers,
        num_decoder_layers=sizes.num_decoder_layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        num_heads=sizes.num_heads,
        norm_order="post",
    )
    d, f = sizes.d_model, sizes.d_ff
    feed_forward = 2 * d * f + d + f
    by_hand = 37_000 * d + 6 * (4 * d * d + 8 * d + feed_forward) + 6 * (8 * d * d + 14 * d + feed_forward)
    assert count_parameters(config) == by_hand == count
    assert round(count / 1e6) == millions
    assert sizes.norm_order == "post"


def test_untied_matrices_are_parameters_of_their_own() -> None:
    tied = count_parameters(TINY)
    untied = msgspec.structs.replace(TINY, tie_source_target=False, tie_output=False, target_vocabulary_size=7)
    assert count_parameters(untied) == tied + 2 * 7 * 16
    model = build(tie_source_target=False, tie_output=False, target_vocabulary_size=7)
    assert model(SOURCE, TARGET_INPUT.clamp(max=6)).shape == (1, 4, 7)
    assert len({id(w) for w in (model.source_weight, model.target_weight, model.output_weight)}) == 3


def test_ties_are_one_matrix() -> None:
    model = build()
    assert model.source_weight is model.target_weight is model.output_weight
    half_tied = build(tie_source_target=False)
    assert half_tied.source_weight is not half_tied.target_weight
    assert half_tied.target_weight is half_tied.output_weight


@pytest.mark.parametrize(
    "changes",
    [
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"d_k": 3, "d_v": 5},
        {"d_model": 18, "d_k": 3, "d_v": 5},  # 18 is no multiple of 4 heads
        {"activation": "swiglu", "activation_dropout": 0.2},
        {"activation": "gelu", "bias": False},
        {"scale_embeddings": False, "norm_order": "post"},
    ],
    ids=str,
)
def test_every_component_makes_a_model_that_learns_in_all_its_parts(changes: dict[str, object]) -> None:
    model = Transformer(msgspec.structs.replace(TINY, **changes)).train()
    logits = model(SOURCE, TARGET_INPUT)
    assert logits.shape == (1, 4, 13)
    logits.square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_a_different_depth_of_encoder_and_decoder() -> None:
    model = build(num_encoder_layers=3, num_decoder_layers=1)
    assert (len(model.encoder_layers), len(model.decoder_layers)) == (3, 1)


def test_swiglu_is_its_formula() -> None:
    encoder_layer = build(activation="swiglu").encoder_layers[0]
    assert isinstance(encoder_layer, EncoderLayer)
    layer = encoder_layer.feed_forward
    x = torch.randn(1, 2, 16)
    gate, linear = layer.inner.weight[:24], layer.inner.weight[24:]
    gate_bias, linear_bias = layer.inner.bias[:24], layer.inner.bias[24:]
    opened = x @ gate.T + gate_bias
    by_hand = (opened * opened.sigmoid() * (x @ linear.T + linear_bias)) @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), by_hand, atol=1e-5, rtol=1e-5)


def test_embeddings_are_scaled_and_padding_is_the_zero_vector() -> None:
    model = build(positions="none")
    embedded = model.source_embedding(torch.tensor([[7, PAD]]), model.source_weight)
    torch.testing.assert_close(embedded[0, 0], model.source_weight[7] * 4.0)  # √16
    assert not Transformer(TINY).source_weight[PAD].any()


def test_the_padding_row_gets_no_gradient_through_embeddings() -> None:
    model = build(tie_output=False)
    model(torch.tensor([[5, EOS, PAD]]), TARGET_INPUT).square().sum().backward()
    assert model.source_weight.grad is not None
    assert not model.source_weight.grad[PAD].any()
    assert model.source_weight.grad[5].any()


def test_gradients_of_single_sentences_by_vmap_equal_those_of_batches_of_one() -> None:
    model = build()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    sources, targets = torch.randint(2, 13, (3, 5)), torch.randint(2, 13, (3, 4))
    sources[1, 3:] = PAD

    def loss(weights: dict[str, Tensor], source: Tensor, target: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, weights, (source[None], target[None]))
        return logits.square().mean()  # type: ignore[no-any-return]

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, sources, targets)
    for number in range(3):
        model.zero_grad()
        model(sources[number : number + 1], targets[number : number + 1]).square().mean().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][number], parameter.grad, atol=1e-6, rtol=1e-4)


def test_a_bfloat16_model_is_near_the_float32_one() -> None:
    model = Transformer(TINY).eval()
    wide = model(SOURCE, TARGET_INPUT)
    narrow = model.bfloat16()(SOURCE, TARGET_INPUT)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.1, rtol=0.1)


def test_a_bfloat16_model_trains() -> None:
    model = Transformer(TINY).bfloat16().train()
    model(SOURCE, TARGET_INPUT).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in model.parameters())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


# --- what a configuration may not say ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_encoder_layers": 0}, r"`model\.num_encoder_layers` must be at least 1, but is 0\."),
        ({"num_decoder_layers": 0}, r"`model\.num_decoder_layers` must be at least 1, but is 0\."),
        ({"d_ff": -2}, r"`model\.d_ff` must be at least 1, but is -2\."),
        ({"d_k": 0, "d_v": 2}, r"`model\.d_k` must be at least 1, but is 0\."),
        ({"d_k": 2, "d_v": -1}, r"`model\.d_v` must be at least 1, but is -1\."),
        ({"d_model": 15}, r"`model\.d_model` must be even \(a sine and a cosine a pair\), but is 15\."),
        ({"num_heads": 3}, r"16 is not one of 3: change one of them, or set `model\.d_k` and `model\.d_v`\."),
        ({"num_heads": 3, "d_k": 5}, r"must be a multiple of `model\.num_heads`"),
        ({"dropout": 1.0}, r"`model\.dropout` must be in \[0, 1\), but is 1\.0\."),
        ({"attention_dropout": -0.1}, r"`model\.attention_dropout` must be in \[0, 1\), but is -0\.1\."),
        ({"activation_dropout": float("nan")}, r"`model\.activation_dropout` must be in \[0, 1\), but is nan\."),
        ({"target_vocabulary_size": 9}, r"they have 13 and 9 tokens: use a joint vocabulary or untie the embeddings\."),
    ],
    ids=str,
)
def test_an_impossible_configuration_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        ModelConfig(**{**msgspec.structs.asdict(TINY), **changes})


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (
            [[5, 1]],
            torch.ones(1, 2, dtype=torch.long),
            r"`source_ids` must be a tensor of token ids, .* but is \[\[5, 1",
        ),
        (
            torch.ones(2, dtype=torch.long),
            torch.ones(1, 2, dtype=torch.long),
            r"the type torch.int64 and the shape \(2,\)",
        ),
        (
            torch.ones(1, 2),
            torch.ones(1, 2, dtype=torch.long),
            r"`source_ids` must .* but it has the type torch.float32",
        ),
        (
            torch.ones(2, 3, dtype=torch.long),
            torch.ones(1, 2, dtype=torch.long),
            "there are 2 rows of `source_ids` and 1",
        ),
        (
            torch.tensor([[5, TINY.source_vocabulary_size]]),
            torch.tensor([[0, 5]]),
            rf"`source_ids` must hold ids from 0 to .* but one is {TINY.source_vocabulary_size}: ",
        ),
        (torch.tensor([[5, 1]]), torch.tensor([[0, -3]]), r"`target_input_ids` must hold .* but one is -3: "),
    ],
)
def test_inputs_that_are_no_batch_of_ids_are_refused(source: Any, target: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        Transformer(TINY)(source, target)


def test_arguments_that_are_no_configuration_are_refused() -> None:
    anything: Any = 512
    with pytest.raises(TransduceError, match="A model is built from a `ModelConfig`, not from 512"):
        Transformer(anything)
    for settings, message in (
        ({"source_vocabulary_size": "100"}, "`model.source_vocabulary_size` must be a whole number, but is '100'"),
        ({"num_heads": 8.0}, "`model.num_heads` must be a whole number, but is 8.0"),
        ({"dropout": "0.1"}, "`model.dropout` must be a number, but is '0.1'"),
    ):
        sizes: dict[str, Any] = {"source_vocabulary_size": 9, "target_vocabulary_size": 9} | settings
        with pytest.raises(TransduceError, match=message):
            ModelConfig(**sizes)
