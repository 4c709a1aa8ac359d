"""Test that modules accept boolean tensors as masks, and that wrong inputs are reported in one clear sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce import AttentionMask, ModelConfig, MultiHeadAttention, Recurrent, TransduceError, Transformer
from transduce.acceleration import kernels_for_training
from transduce.model.attention import ScoredAttention, attend
from transduce.model.backend import using_backend
from transduce.model.feed_forward import Dropout, FeedForward, GatedFeedForward
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.masks import look_ahead_mask
from transduce.model.norms import AnnotatedNorm, BatchNorm
from transduce.model.transformer import Decoder, Encoder

CONFIG = ModelConfig(source_vocabulary_size=13, target_vocabulary_size=13, d_model=8, num_heads=2, d_ff=16)
X = torch.linspace(-1, 1, 120).view(3, 5, 8)
MEMORY = torch.linspace(1, -1, 96).view(3, 4, 8)
MASK = look_ahead_mask(5)


def test_attention_names_an_input_that_is_no_tensor() -> None:
    anything: Any = [[1.0]]
    with pytest.raises(TransduceError, match="`x` of `MultiHeadAttention` must be a tensor, but is a `list`"):
        attention()(anything)


def attention(**sizes: Any) -> MultiHeadAttention:
    torch.manual_seed(1)
    return MultiHeadAttention(d_model=8, num_heads=2, **sizes)


def test_a_boolean_tensor_as_mask_equals_the_attention_mask() -> None:
    allowed = torch.ones(3, 2, 5, 5, dtype=torch.bool).tril()
    layer, decoder_layer = attention(), DecoderLayer(CONFIG).eval()
    assert torch.equal(layer(X, mask=allowed), layer(X, mask=AttentionMask(allowed)))
    assert not torch.allclose(layer(X, mask=allowed), layer(X))
    hides = torch.ones(3, 1, 1, 4, dtype=torch.bool)
    hides[0, :, :, 2:] = False
    expected = decoder_layer(X, MEMORY, mask=MASK, memory_mask=AttentionMask(hides))
    any_mask: Any = hides
    assert torch.equal(decoder_layer(X, MEMORY, mask=MASK, memory_mask=any_mask), expected)
    query = X.view(3, 5, 2, 4).transpose(1, 2)
    score = ScoredAttention(score="dot", kind="soft", scale=None, num_heads=2, d_k=4)
    for compute in (attend, score):
        as_tensor: Any = allowed
        assert torch.equal(compute(query, query, query, as_tensor), attend_with(compute, query, AttentionMask(allowed)))


def attend_with(compute: Callable[..., Tensor], query: Tensor, mask: AttentionMask) -> Tensor:
    return compute(query, query, query, mask)


def test_a_boolean_mask_trains_as_an_attention_mask_does_with_kernels() -> None:
    layer = EncoderLayer(CONFIG).train()
    hides = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    hides[1, :, :, 3:] = False
    gradients = []
    for mask in (hides, AttentionMask(hides)):
        layer.zero_grad()
        for module in layer.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        with using_backend(kernels_for_training("native", "cpu")):
            layer(X, mask).sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in layer.parameters()]))  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients)


def test_a_look_ahead_mask_of_another_length_is_refused_with_kernels() -> None:
    layer = EncoderLayer(
        ModelConfig(source_vocabulary_size=13, target_vocabulary_size=13, d_model=32, num_heads=2, d_ff=64)
    )
    x = torch.linspace(-1, 1, 3 * 5 * 32).view(3, 5, 32)
    with (
        using_backend(kernels_for_training("native", "cpu")),
        pytest.raises(TransduceError, match="the size 1 or that of"),
    ):
        layer.train()(x, look_ahead_mask(4)).sum().backward()


def test_the_width_of_a_head_is_the_models_width_divided_by_the_number_of_heads() -> None:
    layer = attention()
    assert (layer.d_k, layer.d_v) == (4, 4)
    assert attention(d_k=3).d_v == 4
    with pytest.raises(TransduceError, match="8 is not a multiple of 3: set `d_k` and `d_v`"):
        MultiHeadAttention(d_model=8, num_heads=3)
    with pytest.raises(TransduceError, match="but 2 is not a multiple of 4"):
        attention(num_key_value_heads=4)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            torch.ones(5, 5, dtype=torch.bool),
            r"shape \(5, 5\): pass `mask\[None, None\]` for \(queries, keys\).*`~mask`",
        ),
        (torch.ones(3, 5, 5, dtype=torch.bool), r"shape \(3, 5, 5\): insert the missing axes by `None`"),
        (torch.zeros(1, 1, 5, 5), r"type torch.float32 .*: pass `mask == 0` for a mask that is added to scores"),
        (torch.ones(1, 1, 5, 5, dtype=torch.int64), "type torch.int64 .*: pass `mask != 0`"),
        ([[True]], "but this one is a `list`"),
        (torch.ones(1, 1, 5, 6, dtype=torch.bool), r"here \(3, 2, 5, 5\), but its shape is \(1, 1, 5, 6\)"),
        (torch.ones(1, 4, 5, 5, dtype=torch.bool), r"but its shape is \(1, 4, 5, 5\)"),
        (torch.ones(2, 1, 1, 5, dtype=torch.bool), r"but its shape is \(2, 1, 1, 5\)"),
    ],
)
def test_a_wrong_mask_is_reported_by_attention_and_by_layers(mask: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        attention()(X, mask=mask)
    with pytest.raises(TransduceError, match=message):
        EncoderLayer(CONFIG)(X, mask)


@pytest.mark.parametrize("length", [5, 300])  # the longer one is computed by PyTorch's fused kernel
def test_a_look_ahead_mask_of_another_number_of_keys_is_refused(length: int) -> None:
    attention = MultiHeadAttention(d_model=8, num_heads=2).eval()
    x, memory = torch.randn(1, length, 8), torch.randn(1, length + 100, 8)
    with pytest.raises(TransduceError, match=r"`mask` of `MultiHeadAttention` must have the size 1 or that of"):
        attention(x, memory, mask=look_ahead_mask(length))


@pytest.mark.parametrize(
    ("x", "mask"),
    [(X[:1], torch.ones(3, 1, 1, 5, dtype=torch.bool)), (X[:, :1], torch.ones(3, 1, 5, 1, dtype=torch.bool))],
)
def test_a_mask_that_would_enlarge_the_output_is_refused(x: Tensor, mask: Tensor) -> None:
    with pytest.raises(TransduceError, match="must have the size 1 or that of"):
        attention()(x, mask=mask)


LAYERS: dict[str, nn.Module] = {
    "MultiHeadAttention": attention(),
    "EncoderLayer": EncoderLayer(CONFIG),
    "FeedForward": FeedForward(d_model=8, d_ff=16),
    "GatedFeedForward": GatedFeedForward(d_model=8, d_ff=16),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X[..., :7], r"of width 8, but its shape is \(3, 5, 7\)\."),
        (
            X.double(),
            r"dtype of the weights, torch.float32, but has torch.float64: convert it by `x.to\(torch.float32\)`",
        ),
        (X.long(), "must hold vectors of the type torch.float32, but has torch.int64: embed token ids first"),
    ],
)
def test_a_wrong_input_of_a_layer_is_reported(name: str, x: Any, message: str) -> None:
    arguments = (None,) if name == "EncoderLayer" else ()
    with pytest.raises(TransduceError, match=rf"`x` of `{name}` .*{message}"):
        LAYERS[name](x, *arguments)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_attention_without_the_axis_of_the_batch_is_refused(num_heads: int) -> None:
    for x in (X[0], X[None]):
        with pytest.raises(TransduceError, match=r"axes \(batch, positions, width\), here of width 8, but its shape"):
            MultiHeadAttention(d_model=8, num_heads=num_heads)(x)


def test_a_wrong_memory_is_reported() -> None:
    with pytest.raises(
        TransduceError, match=r"`memory` of `MultiHeadAttention` must .* of width 8, but its shape is \(3, 4, 7"
    ):
        DecoderLayer(CONFIG)(X, MEMORY[..., :7], mask=MASK, memory_mask=None)
    for x, memory in ((X, MEMORY[:2]), (X[:1], MEMORY)):
        with pytest.raises(TransduceError, match="`x` and `memory` must have the same batch size"):
            attention()(x, memory)


@pytest.mark.parametrize("norm", [BatchNorm(8), AnnotatedNorm(8)])
def test_a_norm_refuses_another_width(norm: nn.Module) -> None:
    for width in (1, 7):
        with pytest.raises(TransduceError, match=rf"`{type(norm).__name__}` .* width 8, .* \(3, 5, {width}\)"):
            norm(X[..., :width])


@pytest.mark.parametrize("model", [Encoder, Decoder])
def test_models_of_one_stack_report_wrong_ids(model: type[Encoder | Decoder]) -> None:
    changes = {"kind": "encoder" if model is Encoder else "decoder"}
    built = model(ModelConfig(**{**CONFIG_FIELDS, **changes}))
    for ids, message in (
        (torch.tensor([[5, 13]]), "`ids` must hold ids from 0 to 12, the model's vocabulary, but one is 13"),
        (torch.tensor([5, 1]), r"`ids` must be a tensor of token ids, .* the shape \(2,\)"),
    ):
        with pytest.raises(TransduceError, match=message):
            built(ids)


CONFIG_FIELDS: dict[str, Any] = {
    "source_vocabulary_size": 13,
    "target_vocabulary_size": 13,
    "d_model": 8,
    "num_heads": 2,
    "d_ff": 16,
}


@pytest.mark.parametrize(
    ("model", "kind"),
    [(Transformer, "transformer"), (Recurrent, "recurrent"), (Encoder, "encoder"), (Decoder, "decoder")],
)
def test_a_model_refuses_the_configuration_of_another_kind(model: type[Transformer], kind: str) -> None:
    other = "decoder" if kind == "encoder" else "encoder"
    rule = f"A model of the class {model.__name__} has the kind {kind}, but `kind` of its configuration is {other}"
    with pytest.raises(TransduceError, match=rule):
        model(ModelConfig(**{**CONFIG_FIELDS, "kind": other}))


def test_encoding_ids_without_the_axis_of_the_batch_is_refused() -> None:
    model = Transformer(CONFIG)
    with pytest.raises(TransduceError, match=r"`source_ids` must be a tensor of token ids, .* the shape \(2,\)"):
        model.encode(torch.tensor([5, 1]))
    memory, mask = model.encode(torch.tensor([[5, 1]]))
    with pytest.raises(TransduceError, match=r"`ids` must be a tensor of token ids, .* the shape \(2,\)"):
        model.decode(torch.tensor([0, 1]), memory, mask)


def test_a_compiled_layer_accepts_masks_and_reports_wrong_ones() -> None:
    layer = attention()
    expected = layer(X, mask=MASK)
    layer.compile(dynamic=True, fullgraph=True, backend="eager")
    torch.testing.assert_close(layer(X, mask=MASK), expected)
    torch.testing.assert_close(layer(X[:2, :3], mask=look_ahead_mask(3)), expected[:2, :3])
    with pytest.raises(TransduceError, match=r"width 8, but its shape is \(3, 5, 7\)"):
        layer(X[..., :7], mask=MASK)


class GatedByAnother(MultiHeadAttention):
    """An attention of one's own, whose second argument is no memory, and which fails by itself."""

    @override
    def forward(self, x: Tensor, gate: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
        raise RuntimeError("the gate is closed")


def test_an_error_of_an_overridden_forward_is_not_explained_by_the_rules_of_its_parent() -> None:
    with pytest.raises(RuntimeError, match="the gate is closed"):
        GatedByAnother(d_model=8, num_heads=2)(X, torch.ones(1))
    replaced = attention()

    def fail(_: Tensor, __: Tensor) -> Tensor:
        raise RuntimeError("the gate is closed")

    replaced.forward = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="the gate is closed"):
        replaced(X, torch.ones(1))
