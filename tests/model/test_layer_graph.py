"""Test that an unlisted component takes the reference path in every search, and that exporters refuse it."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from transduce.errors import TransduceError
from transduce.kernels.select import (
    decoding_model,
    has_kernels,
    make_inference_copy,
    quantize,
    select_decoder,
    start_fast,
    start_prompts,
)
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import ACTIVATIONS, FeedForward
from transduce.model.known_classes import checked_once, global_change, is_same_function
from transduce.model.layer_graph import LayerGraph, Unsupported, graph_of
from transduce.model.layers import DecoderLayer, StackPositions
from transduce.model.masks import BiasedMask
from transduce.model.norms import LayerNorm
from transduce.model.transformer import Decoder, Transformer
from transduce.training.lora import LowRankSettings, adapt

SOURCES = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, 0, 0]])
TARGETS = torch.tensor([[0, 7, 9, 12], [0, 5, 6, 7]])
SIZES: dict[str, Any] = {
    "source_vocabulary_size": 64,
    "target_vocabulary_size": 64,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 64,
    "d_ff": 128,
    "num_heads": 2,
}


class Gated(MultiHeadAttention):
    """An attention that halves its output."""

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        return super().forward(*arguments, **named) / 2.0


class ToyNorm(nn.Module):
    """A norm that divides by the largest magnitude."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax(dim=-1, keepdim=True)


class Distances(StackPositions):
    """A position scheme that lowers scores by the distance between query and key (ALiBi)."""

    # Written before the argument `end` existed.
    def forward(  # type: ignore[override]
        self, x: Tensor, mask: Any, positions: Tensor | None = None, cache: Any = None
    ) -> Any:
        known = 0 if cache is None else cache.length
        positions = torch.arange(known, known + x.shape[1]) if positions is None else positions
        keys = positions if cache is None else cache.append_positions(positions)
        mask, position_effect = (
            super().forward(x, mask, None, None) if mask is None else (mask, super().forward(x, mask)[1])
        )
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask.allowed
        distance = (keys[..., None, :] - positions[..., :, None]).abs()
        bias = -0.5 * (distance if distance.dim() == 3 else distance[None])[:, None].float()
        return BiasedMask(allowed, bias), position_effect


class Doubled(nn.Module):
    """A parametrization that doubles a weight, which no kernel supports."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2.0 * weight


def build(**changes: Any) -> Transformer:
    torch.manual_seed(3)
    model = Transformer(ModelConfig(**(SIZES | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def decoder_layer(model: nn.Module) -> DecoderLayer:
    layer = model.get_submodule("decoder_layers.0")
    assert isinstance(layer, DecoderLayer)
    return layer


def subclassed_attention(model: Transformer) -> None:
    decoder_layer(model).self_attention.__class__ = Gated


def replaced_attention(model: Transformer) -> None:
    layer = decoder_layer(model)
    gated = Gated(d_model=64, num_heads=2, d_k=32, d_v=32)
    gated.load_state_dict(layer.memory_attention.state_dict())
    layer.memory_attention = gated.eval()


def overridden_forward(model: Transformer) -> None:
    network = decoder_layer(model).feed_forward
    forward = network.forward
    network.forward = lambda x: forward(x) / 2.0  # type: ignore[method-assign]


def overridden_method(model: Transformer) -> None:
    attention = decoder_layer(model).self_attention
    attention._attend = lambda query, *_: torch.zeros_like(query)  # type: ignore[method-assign]


def hook(model: Transformer) -> None:
    decoder_layer(model).feed_forward.register_forward_hook(lambda _, inputs, output: output / 2.0)  # noqa: ARG005


def hook_before(model: Transformer) -> None:
    decoder_layer(model).feed_forward.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2.0,))


def hook_of_a_norm(model: Transformer) -> None:
    model.decoder_norm.register_forward_hook(lambda _, inputs, output: output / 2.0)  # noqa: ARG005


def parametrization(model: Transformer) -> None:
    parametrize.register_parametrization(decoder_layer(model).feed_forward.inner, "weight", Doubled())


def norm(model: Transformer) -> None:
    decoder_layer(model).feed_forward_residual.norm_before = ToyNorm()


def activation(model: Transformer) -> None:
    network = decoder_layer(model).feed_forward
    assert isinstance(network, FeedForward)
    network.activation = F.mish


def other_activation(model: Transformer) -> None:
    network = decoder_layer(model).feed_forward
    assert isinstance(network, FeedForward)
    network.activation = ACTIVATIONS["silu"]


def positions(model: Transformer) -> None:
    distances = Distances(model.config, causal=True)
    model.decoder_positions = distances


def sequential(model: Transformer) -> None:
    layer = decoder_layer(model)
    layer.feed_forward = nn.Sequential(layer.feed_forward, nn.Tanh())  # type: ignore[assignment]


def other_width(model: Transformer) -> None:
    decoder_layer(model).feed_forward = FeedForward(d_model=64, d_ff=256).eval()


def kept_dropout(model: Transformer) -> None:
    decoder_layer(model).feed_forward_residual.dropout.train()


CHANGES: list[Callable[[Transformer], None]] = [
    subclassed_attention,
    replaced_attention,
    overridden_forward,
    overridden_method,
    hook,
    hook_before,
    hook_of_a_norm,
    parametrization,
    norm,
    activation,
    other_activation,
    positions,
    sequential,
    other_width,
]
needs_kernels = pytest.mark.skipif(not has_kernels(), reason="there are no compiled kernels to test")
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


def steps(model: Transformer) -> Tensor:
    """Return the logits of decoding steps along the targets."""
    state = start_fast(model, SOURCES)
    hidden = torch.cat([state.step(TARGETS[:, step : step + 1]) for step in range(4)], dim=1)
    return model.project(hidden.to(model.output_weight.dtype))


def agree(model: Transformer) -> None:
    torch.testing.assert_close(steps(model), model(SOURCES, TARGETS), atol=1e-4, rtol=1e-4)


@each_change
@needs_kernels
@torch.inference_mode()
def test_a_component_that_is_not_listed_is_decoded_by_the_model(change: Callable[[Transformer], None]) -> None:
    model = build()
    make_inference_copy(model, torch.float32)
    plain = model(SOURCES, TARGETS)
    assert select_decoder(model).backend == "compiled"
    agree(model)
    change(model)
    assert not torch.allclose(model(SOURCES, TARGETS), plain, atol=1e-3)
    choice = select_decoder(model)
    assert choice.backend == "reference"
    assert "which the compiled decoder does not know" in choice.refused["compiled"]
    agree(model)


def fused_step(model: Transformer) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    with torch.enable_grad():
        model(SOURCES, TARGETS).square().mean().backward()
    optimizer.step()


def replaced_data(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.5


def numbers_in_numpy(model: Transformer) -> None:
    weight = model.get_parameter("encoder_layers.0.feed_forward.inner.weight").detach()
    if weight.dtype == torch.float32:  # NumPy has no bfloat16
        weight.numpy()[:, :8] *= 9.0  # a block of columns alone
    else:
        weight.data[:, :8] *= 9.0


@pytest.mark.parametrize(
    "change",
    [
        fused_step,
        replaced_data,
        numbers_in_numpy,
        lambda model: decoder_layer(model).feed_forward.outer.weight.data.mul_(3.0),
        lambda model: model.target_weight.data.mul_(2.0),
        lambda model: decoder_layer(model).feed_forward.inner.bias.data.add_(1.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@needs_kernels
@torch.no_grad()
def test_changes_of_weights_that_pytorch_does_not_count_reach_the_kernels(
    dtype: torch.dtype, change: Callable[[Transformer], None]
) -> None:
    model = build()
    make_inference_copy(model, dtype)
    before = steps(model).float()
    change(model)
    assert select_decoder(model).backend == "compiled"
    expected, found = model(SOURCES, TARGETS).float(), steps(model).float()
    far = float((before - expected).norm() / expected.norm())
    assert float((found - expected).norm() / expected.norm()) < min(0.02, far / 4)


@needs_kernels
@torch.no_grad()
def test_unchanged_weights_are_not_prepacked_again() -> None:
    model = build()
    model.get_parameter("encoder_layers.0.feed_forward.inner.bias")[3] = torch.nan  # which differs from itself
    make_inference_copy(model, torch.float32)
    first = decoding_model(model)
    assert first is decoding_model(model)
    assert first is not model


@needs_kernels
@torch.inference_mode()
def test_a_hook_that_is_removed_gives_the_backend_back() -> None:
    model = build()
    make_inference_copy(model, torch.float32)
    before = select_decoder(model).backend
    handle = decoder_layer(model).feed_forward.register_forward_hook(lambda _, inputs, output: output / 2.0)  # noqa: ARG005
    assert select_decoder(model).backend == "reference"
    handle.remove()
    assert select_decoder(model).backend == before
    agree(model)


@needs_kernels
@torch.inference_mode()
def test_global_hooks_and_replaced_forward_methods_take_the_reference_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    make_inference_copy(model, torch.float32)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: output / 2.0 if isinstance(module, FeedForward) else None  # noqa: ARG005
    )
    assert select_decoder(model).refused["compiled"].startswith("a global hook is registered for all modules")
    agree(model)
    handle.remove()
    assert select_decoder(model).backend == "compiled"
    monkeypatch.setattr(LayerNorm, "forward", lambda _, x: x / 2.0)
    assert select_decoder(model).refused["compiled"].startswith("LayerNorm.forward was replaced")
    agree(model)
    monkeypatch.undo()
    assert select_decoder(model).backend == "compiled"
    monkeypatch.setattr("transduce.model.attention.attend", lambda query, *_, **__: query)
    assert select_decoder(model).refused["compiled"].startswith("model.attention.attend was replaced")
    agree(model)


def test_a_replaced_forward_is_noticed_after_batches_of_two_threads_overlapped(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = checked_once(), checked_once()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert global_change() is None
    monkeypatch.setattr(LayerNorm, "forward", lambda _, x: x)
    assert global_change() == "LayerNorm.forward was replaced"


@each_change
@needs_kernels
def test_quantizing_a_changed_component_to_int8_is_refused(change: Callable[[Transformer], None]) -> None:
    model = build()
    change(model)
    with pytest.raises(TransduceError, match=r"^The weights cannot be prepacked, because .* use `fp32` or `bf16`\.$"):
        quantize(model)


@needs_kernels
@torch.inference_mode()
def test_a_hook_on_a_quantized_model_takes_the_reference_path() -> None:
    model = quantize(build())
    assert select_decoder(model).backend == "compiled"
    hook(model)
    assert select_decoder(model).backend == "reference"
    agree(model)


@needs_kernels
@torch.inference_mode()
def test_dropout_that_is_switched_on_takes_the_reference_path() -> None:
    model = quantize(build())
    kept_dropout(model)
    assert select_decoder(model).refused["compiled"] == "the model is in training mode"


@torch.inference_mode()
def test_a_hook_on_a_decoder_only_model_takes_the_reference_path() -> None:
    torch.manual_seed(3)
    model = Decoder(ModelConfig(kind="decoder", **SIZES)).eval()
    make_inference_copy(model, torch.float32)
    prompts, lengths = SOURCES[:1], torch.tensor([5])
    for change in (lambda: None, lambda: model.norm.register_forward_hook(lambda _, inputs, output: output / 2.0)):  # noqa: ARG005
        change()
        state = start_prompts(model, prompts, lengths)
        found = torch.cat([state.step(torch.tensor([[each]])) for each in (0, 7, 9)], dim=1)
        expected = model.hidden(torch.cat([prompts, torch.tensor([[7, 9]])], dim=1))[:, -3:]
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_setting_value_that_nobody_has_listed_is_refused() -> None:
    model = build(positions="none")
    config = copy.copy(model.config)
    msgspec.structs.force_setattr(config, "positions", "alibi")
    model.config = config
    assert graph_of(model) == Unsupported("source_embedding has the positions none, but `model.positions` is alibi")
    with torch.inference_mode():
        assert select_decoder(model).backend == "reference"


def test_an_activation_without_a_kernel_takes_another_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from transduce.model import layer_graph

    monkeypatch.setitem(ACTIVATIONS, "mish", F.mish)
    monkeypatch.setitem(layer_graph._ACTIVATIONS, "mish", F.mish)
    model = build()
    config = copy.copy(model.config)
    msgspec.structs.force_setattr(config, "activation", "mish")
    model.config = config
    for layer in (*model.encoder_layers, *model.decoder_layers):
        layer.feed_forward.activation = F.mish
    assert not isinstance(graph_of(model), Unsupported)
    make_inference_copy(model, torch.float32)
    refused = select_decoder(model).refused
    assert refused["compiled"].startswith("encoder_layers.0.feed_forward has activation `mish`")
    with torch.inference_mode():
        agree(model)


# --- exporters ---


@each_change
def test_exporters_refuse_changed_components_in_one_sentence(
    change: Callable[[Transformer], None], tmp_path: Path
) -> None:
    from transduce.interop.components import check_components
    from transduce.interop.ctranslate2 import write_ctranslate2
    from transduce.interop.hugging_face.families import HUGGING_FACE
    from transduce.interop.onnx.export import write_onnx

    model, tokenizer = build(), None
    change(model)
    for write in (
        lambda: write_onnx(model, tmp_path),
        lambda: write_ctranslate2(model, tokenizer, tmp_path),  # type: ignore[arg-type]
        lambda: check_components(HUGGING_FACE, model),
    ):
        with pytest.raises(TransduceError, match=r"^The model cannot be exported, because .* does not know\.$"):
            write()  # type: ignore[no-untyped-call]


# --- descriptions ---


def test_a_layer_is_a_list_of_operations() -> None:
    found = graph_of(decoder_layer(build()))
    assert isinstance(found, LayerGraph)
    names = [[type(operation).__name__ for operation in sublayer.operations] for sublayer in found.sublayers]
    attention = ["Norm", "LinearOperation", "Attend", "LinearOperation", "DropoutAdd"]
    assert names == [attention, attention, ["Norm", "LinearOperation", "Activate", "LinearOperation", "DropoutAdd"]]
    post = graph_of(decoder_layer(build(norm_order="post", activation="swiglu")))
    assert isinstance(post, LayerGraph)
    assert [type(operation).__name__ for operation in post.sublayers[0].operations][-2:] == ["DropoutAdd", "Norm"]
    assert post.sublayers[2].activation is not None
    assert post.sublayers[2].activation.name == "swiglu"


def test_the_reason_names_the_component() -> None:
    model = build()
    subclassed_attention(model)
    assert graph_of(model) == Unsupported("decoder_layers.0.self_attention is of class Gated")


def test_lora_parametrizations_are_recognized() -> None:
    model = build()
    adapt(model, LowRankSettings(rank=2))
    found = graph_of(model)
    assert not isinstance(found, Unsupported)
    assert {fact.value for fact in found.facts if fact.aspect == "parametrization"} == {"LowRankUpdate"}
    with torch.inference_mode():
        agree(model)


def test_a_description_is_made_once_and_keeps_no_model() -> None:
    import gc
    import weakref

    model = build()
    assert graph_of(model) is graph_of(model)
    known = weakref.ref(model)
    del model
    gc.collect()
    assert known() is None


@pytest.fixture(autouse=True)
def _no_hooks_left() -> Iterator[None]:
    yield
    assert not nn.modules.module._global_forward_hooks


def scaling(factor: float, at: str) -> Any:
    if at == "closure":
        return lambda x: factor * x
    if at == "default":
        return lambda x, by=factor: by * x
    if at == "keyword":
        return lambda x, *, by=factor: by * x
    return partial(mul, factor)


@pytest.mark.parametrize("at", ["closure", "default", "keyword", "partial"])
def test_functions_are_equal_if_all_their_variables_are(at: str) -> None:
    assert is_same_function(scaling(2.0, at), scaling(2.0, at))
    assert not is_same_function(scaling(2.0, at), scaling(3.0, at))
    assert not is_same_function(scaling(2.0, at), scaling(2, at))
    assert not is_same_function(scaling(2.0, at), F.relu)
