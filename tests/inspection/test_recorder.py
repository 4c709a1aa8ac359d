"""Test the recorder of activations: equal outputs, values that the model's own modules give, edits, and refusals."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.inspection.recorder import hook_points, record_activations
from transduce.model.attention import AttentionTrace, MultiHeadAttention
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Transformer

SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 3}
IDS: dict[str, Any] = {"source_vocabulary_size": 30, "target_vocabulary_size": 30}
VARIANTS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm_order": "post"},
    "sandwich": {"norm_order": "sandwich", "norm": "rms"},
    "shared layers": {"share_layers": True},
    "shared keys": {"num_key_value_heads": 2, "positions": "rotary"},
    "gated": {"activation": "swiglu", "attention_score": "additive"},
    "window": {"attention_window": 2},
    "encoder": {"kind": "encoder", "masked_language_head": True},
    "classes": {"kind": "encoder", "num_labels": 3},
    "decoder": {"kind": "decoder", "positions": "learned", "max_positions": 50},
    "recurrent": {"kind": "recurrent", "attention_score": "general"},
    "bahdanau": {"kind": "recurrent", "recurrent_attention": "bahdanau", "recurrent_self_attention": True},
    "series": {"kind": "series", "num_series": 2, "source_vocabulary_size": 0, "target_vocabulary_size": 0},
}


def build(**settings: Any) -> Any:
    torch.manual_seed(1)
    return build_any_model(ModelConfig(**(IDS | SIZES | settings))).eval()


def compute(model: Any) -> Tensor:
    """Run a model with an input for its kind."""
    source, target = torch.tensor([[5, 6, 7, 8, 1], [9, 4, 1, 0, 0]]), torch.tensor([[0, 8, 9], [0, 3, 2]])
    with torch.inference_mode():
        if isinstance(model, SeriesTransformer):
            output = model(torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(1)), torch.zeros(2, 3, 2)).means
        elif model.config.kind == "decoder":
            output = model(target)
        elif model.config.kind == "encoder":
            states = model.encode(source)[0]
            output = model.classify(states) if model.config.num_labels else model.project(model.head_states(states))
        else:
            output = model(source, target)
    assert isinstance(output, Tensor)
    return output


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_recorded_model_gives_the_same_outputs(variant: str) -> None:
    model = build(**VARIANTS[variant])
    before = compute(model)
    with record_activations(model) as recording:
        during = compute(model)
    assert torch.equal(during, before)
    assert torch.equal(compute(model), before)
    assert set(recording) == {point.name for point in hook_points(model)}
    for point in hook_points(model):
        assert recording[point.name].dim() == len(point.shape.split())
        if point.name.endswith("weights"):
            assert torch.allclose(recording[point.name].sum(dim=-1), torch.ones(()), atol=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("variant", VARIANTS)
def test_edits_that_return_the_activation_change_nothing(variant: str) -> None:
    model = build(**VARIANTS[variant])
    before = compute(model)
    edits = {point.name: torch.clone for point in hook_points(model) if point.can_edit}
    with record_activations(model, (), edit=edits):
        assert torch.equal(compute(model), before)


def test_recorded_tensors_are_those_of_the_modules() -> None:
    model = build()
    assert isinstance(model, Transformer)
    with record_activations(model) as recording:
        logits = compute(model)
    attention = model.decoder_layers[1].self_attention
    assert isinstance(attention, MultiHeadAttention)
    name = "decoder.1.self_attention"
    with torch.inference_mode():
        query, key, value = attention._project_self(recording[f"{name}.norm_before"])
        for part, tensor in (("queries", query), ("keys", key), ("values", value)):
            assert torch.equal(recording[f"{name}.{part}"], tensor)
        heads = recording[f"{name}.weights"] @ value  # (B, H, Q, V)
        assert torch.allclose(recording[f"{name}.heads"], heads.transpose(1, 2), atol=1e-6)
        output = attention.output(recording[f"{name}.heads"].flatten(2))
        assert torch.allclose(recording[f"{name}.output"], output, atol=1e-6)
        added = [
            recording[f"decoder.1.{part}.output"] for part in ("self_attention", "memory_attention", "feed_forward")
        ]
        assert torch.allclose(recording["decoder.0.residual"] + sum(added), recording["decoder.1.residual"], atol=1e-5)
        assert torch.equal(recording["decoder.1.residual"], recording["decoder.2.self_attention.input"])
        assert torch.allclose(model.decoder_norm(recording["decoder.2.residual"]), recording["decoder.norm"], atol=1e-6)
        assert torch.equal(model.project(recording["decoder.norm"]), logits)
        assert torch.equal(recording["logits"], logits)
    assert [layer.shape for layer in recording.layers("encoder", "self_attention.weights")] == [(2, 4, 5, 5)] * 2


def test_an_edit_acts_on_its_own_layer_even_if_layers_share_their_weights() -> None:
    model = build(share_layers=True)
    before = compute(model)
    with record_activations(model, "decoder.*.residual") as plain:
        compute(model)
    edit = {"decoder.1.self_attention.heads": torch.zeros_like}
    with record_activations(model, "decoder.*.residual", edit=edit) as edited:
        assert not torch.allclose(compute(model), before, atol=1e-4)
    assert torch.equal(edited["decoder.0.residual"], plain["decoder.0.residual"])
    assert not torch.allclose(edited["decoder.1.residual"], plain["decoder.1.residual"], atol=1e-4)


def test_an_edited_value_is_that_of_an_edited_weight() -> None:
    model = build()
    assert isinstance(model, Transformer)
    attention = model.encoder_layers[0].self_attention
    assert isinstance(attention, MultiHeadAttention)
    with record_activations(model, (), edit={"encoder.0.self_attention.values": torch.zeros_like}):
        edited = compute(model)
    with torch.no_grad():
        first = attention.widths[0] + attention.widths[1]
        attention.projection.weight[first:] = 0.0
        if attention.projection.bias is not None:
            attention.projection.bias[first:] = 0.0
    assert torch.allclose(compute(model), edited, atol=1e-6)


def test_steps_are_joined_along_the_positions() -> None:
    model = build(**VARIANTS["decoder"])
    assert isinstance(model, Decoder)
    ids = torch.tensor([[0, 8, 9, 3]])
    with torch.inference_mode():
        with record_activations(model) as whole:
            model(ids)
        with record_activations(model) as steps:
            cache = model.new_cache()
            for position in range(4):
                model.project(model.decode(ids[:, position : position + 1], cache=cache))
    assert len(steps.calls("decoder.0.residual")) == 4
    for name in whole:
        assert torch.allclose(steps[name], whole[name], atol=1e-5), name


def test_classes_of_several_calls_are_not_joined() -> None:
    model = build(**VARIANTS["classes"])
    with record_activations(model, "logits") as recording:
        compute(model)
        compute(model)
    assert len(recording.calls("logits")) == 2
    with pytest.raises(TransduceError, match=r"`logits` was recorded in 2 calls, each for other texts"):
        recording["logits"]


def test_calls_of_different_batches_are_not_joined() -> None:
    model = build(**VARIANTS["decoder"])
    with torch.inference_mode(), record_activations(model) as recording:
        model(torch.tensor([[0, 8]]))
        model(torch.tensor([[0, 8], [0, 9]]))
    assert [len(call) for call in recording.calls("decoder.0.residual")] == [1, 2]
    with pytest.raises(TransduceError, match="recorded in 2 calls for batches of several sizes"):
        recording["decoder.0.residual"]


def in_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(timeout=60.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_calls_of_other_threads_are_neither_recorded_nor_edited(variant: str) -> None:
    model = build(**VARIANTS[variant])
    before = compute(model)
    edits = {point.name: torch.zeros_like for point in hook_points(model) if point.can_edit}
    with record_activations(model, edit=edits) as recording:
        assert torch.equal(in_another_thread(lambda: compute(model)), before)
        assert not recording
        assert not torch.equal(compute(model), before)
        assert set(recording) == {point.name for point in hook_points(model)}


def test_recordings_of_two_threads_that_end_in_another_order_leave_the_model_as_it_was() -> None:
    model = build()
    before = compute(model)
    first, second = record_activations(model, "logits"), record_activations(model, "logits")
    one = first.__enter__()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(second.__enter__).result()
        compute(model)
        assert len(one.calls("logits")) == 1
        first.__exit__(None, None, None)  # before the second one
        pool.submit(compute, model).result()
        assert len(other.calls("logits")) == 1
        pool.submit(second.__exit__, None, None, None).result()
    assert "project" not in vars(model)
    assert torch.equal(compute(model), before)
    assert len(one.calls("logits")) == len(other.calls("logits")) == 1


def test_unknown_points_and_wrong_edits_are_refused() -> None:
    model = build()
    with (
        pytest.raises(TransduceError, match=r"no hook point `decoder.9.residual`: .* such as `decoder\.\d\.residual`"),
        record_activations(model, "decoder.9.residual"),
    ):
        pass
    with (
        pytest.raises(TransduceError, match=r"`encoder.0.self_attention.weights` can be recorded, but not edited"),
        record_activations(model, edit={"encoder.0.self_attention.weights": torch.zeros_like}),
    ):
        pass
    with (
        pytest.raises(TransduceError, match=r"`encoder.norm` returned \(2, 5\) for \(2, 5, 16\)"),
        record_activations(model, edit={"encoder.norm": lambda x: x[..., 0]}),
    ):
        compute(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(TransduceError, match="this is a Linear"):
        hook_points(nn.Linear(2, 2))


class Weightless(MultiHeadAttention):
    def forward(self, *args: Any, weights_out: object = None, **options: Any) -> Tensor:  # noqa: ARG002
        return super().forward(*args, **options)


def test_an_attention_that_records_no_weights_is_named() -> None:
    model = build()
    model.encoder_layers[0].self_attention.__class__ = Weightless
    with (
        pytest.raises(TransduceError, match=r"The weights of `Weightless` are needed.* pass on `weights_out`"),
        record_activations(model),
    ):
        compute(model)
    with pytest.raises(TransduceError, match="The weights of cross-attention are needed"):
        AttentionTrace().of_memory()
