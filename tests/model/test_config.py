"""Test that each impossible combination of settings is refused with one sentence."""

from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig, RotaryScaling
from transduce.model.transformer import Transformer

SHAPE: dict[str, Any] = {
    "source_vocabulary_size": 13,
    "target_vocabulary_size": 13,
    "d_model": 16,
    "d_ff": 24,
    "num_heads": 4,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 0}, r"`model\.num_key_value_heads` must be at least 1, but is 0\."),
        ({"num_heads": True}, r"`model\.num_heads` must be a whole number, but is True\."),
        ({"bias": "no"}, r"`model\.bias` must be true or false, but is 'no'\."),
        ({"tie_output": None}, r"`model\.tie_output` must be true or false, but is None\."),
        ({"final_norm": 1}, r"`model\.final_norm` must be true or false or None, but is 1\."),
        ({"d_k": 2.0}, r"`model\.d_k` must be a whole number or None, but is 2\.0\."),
        ({"eos_id": "x"}, r"`model\.eos_id` must be a whole number, but is 'x'\."),
        ({"positions": "rotary", "rotary_scaling": {"factor": 2.0}}, r"must be a RotaryScaling or None, but is \{"),
        ({"num_key_value_heads": 3}, r"must be a multiple of `model\.num_key_value_heads`, but 4 is not one of 3\."),
        ({"attention_window": 0}, r"`model\.attention_window` must be at least 1, but is 0\."),
        ({"attention_scale": 0.0}, r"`model\.attention_scale` must be a positive number, but is 0\.0\."),
        ({"attention_scale": 1.0, "attention_score": "dot"}, r"but `model\.attention_score` is dot: leave one of them"),
        ({"norm_epsilon": float("nan")}, r"`model\.norm_epsilon` must be a positive number, but is nan\."),
        ({"token_types": -1}, r"`model\.token_types` must be at least 0, but is -1\."),
        ({"source_vocabulary_size": -3}, r"`model\.source_vocabulary_size` must be at least 1, but is -3\."),
        ({"pad_id": 13}, r"`model\.pad_id` must be a token id of the target vocabulary, 0 to 12, but is 13\."),
        ({"start_id": -1}, r"`model\.start_id` must be a token id of the target vocabulary, 0 to 12, but is -1\."),
        (
            {"pad_id": 12, "source_vocabulary_size": 5, "tie_source_target": False},
            r"`model\.pad_id` must be a token id of the source vocabulary too, 0 to 4, but is 12\.",
        ),
        ({"positions": "rotary", "d_k": 3}, r"`model\.d_k` must be even, but it is 3\."),
        ({"positions": "rotary", "attention_score": "additive"}, r"Rotary positions act through the dot product, but"),
        ({"positions": "rotary-interleaved", "attention_score": "general"}, r"`model\.attention_score` is general"),
        ({"rotary_base": 500.0}, r"`model\.rotary_base` = 500\.0 means nothing where `model\.positions` is sinusoidal"),
        ({"max_positions": 0, "positions": "learned"}, r"`model\.max_positions` must be at least 1, but is 0\."),
        ({"max_positions": 9}, r"`model\.max_positions` = 9 means nothing where `model\.positions` is sinusoidal"),
        ({"position_offset": 2, "positions": "none"}, r"`model\.position_offset` = 2 means nothing where"),
        (
            {"positions": "relative", "relative_buckets": 2},
            r"must be at least 4 and below .*, but they are 2 and 128\.",
        ),
        ({"positions": "relative", "relative_max_distance": 32}, r"but they are 32 and 32\."),
        ({"kind": "encoder", "tie_source_target": False}, r"= encoder has one vocabulary: `model\.tie_source_target`"),
        (
            {"num_labels": 3},
            r"`model\.num_labels` = 3 means nothing where `model\.kind` is transformer: leave it out\.",
        ),
        ({"kind": "decoder", "pooler": True}, r"`model\.pooler` = True means nothing where `model\.kind` is decoder"),
        ({"recurrent_cell": "gru"}, r"`model\.recurrent_cell` = gru means nothing where `model\.kind` is transformer"),
        ({"kind": "encoder", "num_encoder_layers": 0}, r"`model\.num_encoder_layers` must be at least 1, but is 0\."),
        ({"kind": "recurrent", "norm": "rms"}, r"`model\.norm` = rms means nothing where `model\.kind` is recurrent"),
        ({"kind": "recurrent", "activation": "gelu"}, r"`model\.activation` = gelu means nothing where"),
        ({"kind": "recurrent", "bias": False}, r"`model\.bias` = False means nothing where"),
        ({"kind": "recurrent", "attention_window": 4}, r"`model\.attention_window` = 4 means nothing where"),
        ({"kind": "recurrent", "share_layers": True}, r"`model\.share_layers` = True means nothing where"),
        ({"kind": "recurrent", "positions": "learned"}, r"reads in order and has no positions, but .* is learned"),
        (
            {"kind": "recurrent", "d_model": 15},
            r"`model\.d_model` must be even \(half for each direction\), but is 15\.",
        ),
        (
            {"kind": "recurrent", "input_feeding": True, "recurrent_attention": "none"},
            r"but `model\.recurrent_attention` is none: set it to luong\.",
        ),
    ],
    ids=str,
)
def test_an_impossible_combination_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        ModelConfig(**(SHAPE | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.5}, r"a factor of at least 1, .*but has 0\.5, 40 and 1\.0\."),
        ({"high_frequency_factor": 1.0}, r"a high_frequency_factor above its low_frequency_factor, but they are 1\.0"),
    ],
    ids=str,
)
def test_an_impossible_scaling_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        RotaryScaling(**({"factor": 8.0, "original_length": 40} | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "encoder", "num_decoder_layers": 0},
        {"kind": "decoder", "num_encoder_layers": 0},
        {"kind": "recurrent", "num_heads": 3},
        {"d_model": 15, "num_heads": 5, "positions": "learned"},
    ],
    ids=str,
)
def test_settings_that_a_kind_of_model_does_not_use_are_not_checked(changes: dict[str, Any]) -> None:
    changed = ModelConfig(**(SHAPE | changes)).changed()
    assert {name: changed[name] for name in changes} == changes


def test_changed_lists_the_settings_that_differ_from_the_default() -> None:
    config = ModelConfig(**SHAPE, positions="rotary", rotary_scaling=RotaryScaling(factor=2.0, original_length=8))
    assert config.changed() == {
        "d_model": 16,
        "d_ff": 24,
        "num_heads": 4,
        "positions": "rotary",
        "rotary_scaling": RotaryScaling(factor=2.0, original_length=8),
    }


def test_a_configuration_survives_json() -> None:
    config = ModelConfig(**SHAPE, positions="rotary", rotary_scaling=RotaryScaling(factor=2.0, original_length=8))
    assert msgspec.json.decode(msgspec.json.encode(config), type=ModelConfig) == config


def test_a_configuration_of_the_first_version_is_read() -> None:
    """The settings of existing model folders must keep their names and meaning."""
    stored = SHAPE | {
        "kind": "transformer",
        "num_encoder_layers": 2,
        "num_decoder_layers": 3,
        "d_k": None,
        "d_v": None,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation": "swiglu",
        "norm": "layer",
        "norm_order": "post",
        "norm_epsilon": 1e-5,
        "positions": "none",
        "attention_score": "scaled",
        "bias": True,
        "tie_source_target": True,
        "tie_output": True,
        "scale_embeddings": True,
        "pad_id": 0,
        "eos_id": 1,
        "start_id": 0,
    }
    config = msgspec.convert(stored, ModelConfig)
    assert (config.num_decoder_layers, config.norm_order, config.has_final_norm) == (3, "post", False)


@pytest.mark.parametrize(
    ("name", "word", "words"),
    [
        ("positions", "alibi", "sinusoidal, learned, rotary, rotary-interleaved, relative, none"),
        ("norm", "rmsnorm", "layer, rms, batch, annotated"),
        ("norm_order", "Post", "pre, post, sandwich"),
        ("attention_kind", "Hard", "soft, hard"),
        ("activation", "relu6", "relu, gelu, "),
        ("kind", "encoder-decoder", "transformer, encoder, decoder, recurrent, series"),
    ],
)
def test_an_unknown_component_name_is_refused_with_the_known_ones(name: str, word: str, words: str) -> None:
    changes: dict[str, Any] = {name: word}
    with pytest.raises(TransduceError, match=rf"`model\.{name}` must be one of {words}.*, but is '{word}'"):
        ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9, **changes)


def test_a_transformer_refuses_the_configuration_of_another_kind() -> None:
    config = ModelConfig(kind="recurrent", source_vocabulary_size=9, target_vocabulary_size=9)
    with pytest.raises(TransduceError, match=r"but `kind` of its configuration is recurrent"):
        Transformer(config)


@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_settings_that_are_none_follow_others(bias: bool, own: bool | None) -> None:
    config = ModelConfig(
        source_vocabulary_size=9,
        target_vocabulary_size=9,
        bias=bias,
        projection_bias=own,
        attention_output_bias=own,
        feed_forward_bias=own,
    )
    in_effect = bias if own is None else own
    assert config.has_projection_bias is config.has_attention_output_bias is config.has_feed_forward_bias is in_effect
    assert config.key_value_heads == config.num_heads == 8
    assert msgspec.structs.replace(config, num_key_value_heads=2).key_value_heads == 2
