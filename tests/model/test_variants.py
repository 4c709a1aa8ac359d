"""Test what every component must preserve: caching, and independence of other hypotheses, padding, batch and future."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.kernels.select import has_kernels, kernels_for_training, start_fast, start_prompts
from transduce.model.backend import using_backend
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, DecodingState, Transformer

PAD, EOS, V = 0, 1, 17
SOURCES = torch.tensor([[5, 6, 7, 8, EOS], [9, 3, EOS, PAD, PAD], [4, EOS, PAD, PAD, PAD]])

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned", "max_positions": 64},
    "offset": {"positions": "learned", "position_offset": 2, "pad_id": 1, "eos_id": 2, "start_id": 2},
    "rotary": {"positions": "rotary"},
    "rotary-interleaved": {"positions": "rotary-interleaved"},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12},
    "sinusoids-to-end": {"sinusoids_to_end": True, "position_offset": 2},
    "rms": {"norm": "rms"},
    "batch-norm": {"norm": "batch"},
    "annotated-norm": {"norm": "annotated", "norm_epsilon": 0.1},
    "sandwich": {"norm_order": "sandwich"},
    "embedding-norm": {"norm_order": "post", "embedding_norm": True, "output_bias": True, "zero_padding_row": False},
    "final-norm": {"norm_order": "post", "final_norm": True},
    "no-final-norm": {"final_norm": False},
    "dot": {"attention_score": "dot", "bias": False, "scale_embeddings": False, "output_scale": 0.3},
    "general": {"attention_score": "general"},
    "additive": {"attention_score": "additive"},
    "scale": {"attention_scale": 1.3},
    "hard": {"attention_kind": "hard"},
    "hard-additive": {"attention_kind": "hard", "attention_score": "additive"},
    "window": {"attention_window": 3},
    "window-rotary": {"attention_window": 2, "positions": "rotary"},
    "window-relative": {
        "attention_window": 3,
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 12,
    },
    "grouped": {"num_key_value_heads": 2, "positions": "rotary"},
    "multi-query": {"num_key_value_heads": 1, "attention_score": "additive"},
    "query-key-norm": {"attention": "query-key-norm", "num_key_value_heads": 2, "positions": "rotary"},
    "shared": {"share_layers": True, "num_encoder_layers": 3},
    "biases": {"bias": False, "projection_bias": True, "feed_forward_bias": True},
    "silu": {"activation": "silu"},
    "gelu-tanh": {"activation": "gelu-tanh"},
    "geglu": {"activation": "geglu"},
    "geglu-tanh": {"activation": "geglu-tanh"},
    "reglu": {"activation": "reglu"},
    "start": {"start_id": 3},
}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt-2": {"positions": "learned", "activation": "gelu-tanh", "scale_embeddings": False},
    "llama": {
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
        "bias": False,
        "num_key_value_heads": 2,
        "tie_output": False,
    },
    "relative-window": {
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 12,
        "attention_window": 3,
    },
    "sinusoidal": {"share_layers": True},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"recurrent_cell": "gru"},
    "one-direction": {"bidirectional": False, "recurrent_context": "last"},
    "no-attention": {"recurrent_attention": "none", "recurrent_context_to": "both"},
    "no-attention-steps": {"recurrent_attention": "none", "recurrent_context_to": "steps", "recurrent_context": "mean"},
    "bahdanau": {"recurrent_attention": "bahdanau", "attention_score": "additive", "recurrent_cell": "gru"},
    "bahdanau-context": {"recurrent_attention": "bahdanau", "recurrent_context_to": "both", "num_decoder_layers": 1},
    "general": {"attention_score": "general"},
    "dot-input-feeding": {"attention_score": "dot", "input_feeding": True},
    "hard": {"attention_kind": "hard", "recurrent_context": "last"},
    "past": {"recurrent_self_attention": True, "attention_score": "additive"},
    "past-gru": {"recurrent_self_attention": True, "recurrent_cell": "gru", "recurrent_attention": "none"},
    "past-feeding": {"recurrent_self_attention": True, "input_feeding": True, "num_encoder_layers": 1},
}
ALL = (
    [pytest.param("transformer", changes, id=name) for name, changes in TRANSFORMERS.items()]
    + [pytest.param("decoder", changes, id=f"decoder-{name}") for name, changes in DECODERS.items()]
    + [pytest.param("recurrent", changes, id=f"recurrent-{name}") for name, changes in RECURRENT.items()]
)
each_variant = pytest.mark.parametrize(("kind", "changes"), ALL)

Variant = Transformer | Decoder | Recurrent


def build(kind: str, changes: dict[str, Any]) -> Variant:
    """Return a tiny model in evaluation mode.

    Its weights are perturbed, so that attention is not uniform and biases are not zero.
    """
    shape: dict[str, Any] = {
        "kind": kind,
        "source_vocabulary_size": V,
        "target_vocabulary_size": V,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
        "dropout": 0.0,
    }
    model = build_model(ModelConfig(**(shape | changes)))
    assert isinstance(model, Variant)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    if model.config.norm == "batch":  # collects BatchNorm's statistics
        model.train()
        for _ in range(20):
            model(sources(model), random_targets(model, 3, 9))
    return model.eval()


def sources(model: Variant) -> Tensor:
    """Return the source sentences in the model's ids."""
    config = model.config
    ids = SOURCES.where(SOURCES > EOS, EOS) + 3 * (SOURCES > EOS)
    return ids.where(SOURCES != EOS, config.eos_id).where(SOURCES != PAD, config.pad_id).clamp(max=V - 1)


def random_targets(model: Variant, sentences: int, length: int) -> Tensor:
    targets = torch.randint(3, V, (sentences, length))
    targets[:, 0] = model.config.start_id
    return targets


def decoder_of(model: Variant, source: Tensor) -> Callable[..., Tensor]:
    """Return a function from target inputs to the last layer's output.

    It attends to the sources if the model has any.
    """
    if isinstance(model, Decoder):
        return model.decode
    memory, mask = model.encode(source)
    return lambda ids, cache=None: model.decode(ids, memory, mask, cache=cache)


def last_logits(model: Variant, source: Tensor, pieces: list[int]) -> Tensor:
    """Return the logits (V,) after the last of these tokens, without cache, padding or other sentences."""
    source = source[source != model.config.pad_id][None]
    if isinstance(model, Decoder):
        return model(torch.cat([source[0], torch.tensor(pieces[1:], dtype=torch.int64)])[None])[0, -1]  # type: ignore[no-any-return]
    return model(source, torch.tensor([pieces]))[0, -1]  # type: ignore[no-any-return]


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=5e-5, rtol=1e-4)


@each_variant
def test_cached_equals_uncached_decoding(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    target = random_targets(model, 3, 20)
    with torch.inference_mode():
        decode = decoder_of(model, sources(model))
        expected = decode(target)
        cache = model.new_cache()
        parts = [decode(part, cache=cache) for part in target.split([1, 1, 5, 1, 3, 1, 8], dim=1)]
        close(torch.cat(parts, dim=1), expected)
        assert cache.length == 20


@each_variant
def test_beam_hypotheses_in_one_batch_equal_each_alone(kind: str, changes: dict[str, Any]) -> None:
    """Use a state as beam search does: random parents, sentences that leave, and more steps than a window holds."""
    model, width = build(kind, changes), 3
    generator = torch.Generator().manual_seed(4)
    source, start = sources(model), model.config.start_id
    with torch.inference_mode():
        state: DecodingState = model.start(source)
        histories = [[[start]] for _ in range(3)]
        sentences, newest = [0, 1, 2], torch.full((3, 1), start)
        for step in range(9):
            logits = model.project(state.step(newest))
            for row, sentence in enumerate(sentences):
                for hypothesis, pieces in enumerate(histories[row]):
                    close(logits[row, hypothesis], last_logits(model, source[sentence], pieces))
            parents = torch.randint(len(histories[0]), (len(sentences), width), generator=generator)
            newest = torch.randint(3, V, (len(sentences), width), generator=generator)
            state.reorder(parents)
            histories = [
                [[*histories[row][parent], piece] for parent, piece in zip(chosen, added, strict=True)]
                for row, (chosen, added) in enumerate(zip(parents.tolist(), newest.tolist(), strict=True))
            ]
            if step in {2, 5}:
                rows = torch.tensor([0, 2] if step == 2 else [1])
                state.keep_sentences(rows)
                newest = newest[rows]
                histories = [histories[row] for row in rows.tolist()]
                sentences = [sentences[row] for row in rows.tolist()]
    assert sentences == [2]


@each_variant
def test_padding_and_batch_mates_change_nothing(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    source, target = sources(model)[1:2, :3], random_targets(model, 1, 4)
    alone = decoder_of(model, source)(target)
    for mate in (3, 12):
        many = torch.full((3, 9), mate)
        many[1] = model.config.pad_id
        many[1, :3] = source
        targets = torch.full((3, 6), mate)
        targets[1] = model.config.pad_id
        targets[1, :4] = target
        close(decoder_of(model, many)(targets)[1:2, :4], alone)


@pytest.mark.filterwarnings("ignore:std\\(\\)")  # of nothing, in PyTorch
@each_variant
def test_a_batch_without_sentences_gives_empty_logits_and_zero_gradients(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    source, target = sources(model)[:0], random_targets(model, 1, 4)[:0]
    logits = model(target) if isinstance(model, Decoder) else model(source, target)
    assert logits.shape == (0, 4, V)
    logits.sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


@each_variant
def test_the_future_changes_nothing_and_the_past_does(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    target = random_targets(model, 1, 5)
    other = target.clone()
    other[0, 3] = 3 if int(target[0, 3]) != 3 else 4
    decode = decoder_of(model, sources(model)[:1])
    before, after = decode(target), decode(other)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.isclose(before[:, 3:], after[:, 3:]).all(-1).any()


@each_variant
def test_every_weight_learns(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes).train()
    target = random_targets(model, 3, 6)
    logits = model(target) if isinstance(model, Decoder) else model(sources(model), target)
    assert logits.shape == (3, 6, V)
    (logits * torch.randn_like(logits)).sum().backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert idle == set()


@each_variant
def test_a_model_built_on_the_meta_device_takes_assigned_weights(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    with torch.device("meta"):
        skeleton = build_model(model.config)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    skeleton.load_state_dict(weights, assign=True)
    assert isinstance(skeleton, Variant)
    source, target = sources(model), random_targets(model, 3, 6)
    assert torch.equal(decoder_of(skeleton.eval(), source)(target), decoder_of(model, source)(target))


@each_variant
def test_a_bfloat16_model_is_near_the_float32_one(kind: str, changes: dict[str, Any]) -> None:
    if changes.get("attention_kind") == "hard":
        pytest.skip("a choice between two near scores may fall either way")
    model = build(kind, changes)
    source, target = sources(model), random_targets(model, 3, 6)
    wide = decoder_of(model, source)(target)
    model = model.bfloat16()
    narrow = decoder_of(model, source)(target)
    assert narrow.dtype == torch.bfloat16
    difference = (narrow.float() - wide).norm() / wide.norm()
    assert difference < 0.05


@each_variant
def test_the_selected_decoder_computes_what_the_model_computes(kind: str, changes: dict[str, Any]) -> None:
    model = build(kind, changes)
    source, target = sources(model), random_targets(model, 3, 7)
    with torch.inference_mode():
        expected = decoder_of(model, source)(target)
        if isinstance(model, Decoder):
            state = start_prompts(model, target[:, :3], torch.full((3,), 3))
            target, expected = target[:, 2:], expected[:, 2:]  # the first step gives the layer after the prompt
        else:
            state = start_fast(model, source)
        steps = [state.step(column) for column in target.split(1, dim=1)]
        close(torch.cat(steps, dim=1), expected)


@each_variant
def test_using_backend_kernels_computes_what_the_model_computes(kind: str, changes: dict[str, Any]) -> None:
    if not has_kernels():
        pytest.skip("there are no kernels for this machine")
    model = build(kind, changes).train()
    source, target = sources(model), random_targets(model, 3, 7)
    own = decoder_of(model, source)(target)
    weights = torch.randn_like(own)
    (own * weights).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    with using_backend(kernels_for_training("native", "cpu")):
        found = decoder_of(model, source)(target)
        (found * weights).sum().backward()
    close(found, own)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=2e-3, rtol=1e-3, msg=name)
