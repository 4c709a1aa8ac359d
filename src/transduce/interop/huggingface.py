"""Our encoder–decoders as Hugging Face's: Pegasus, Marian, BART, mBART and M2M100 compute the same function.

A model folder holds the weights under the names of the class that fits, so that it opens there with no export step. A
configuration that no class can hold keeps our own names, and its `config.json` names no class.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.interop.exported import MAXIMUM_POSITIONS
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids

_SUBLAYERS = {
    "self_attention": "self_attn",
    "memory_attention": "encoder_attn",
}
_NORMS = {
    "self_attention_residual": "self_attn_layer_norm",
    "memory_attention_residual": "encoder_attn_layer_norm",
    "feed_forward_residual": "final_layer_norm",
}
_FEED_FORWARD = {"inner": "fc1", "outer": "fc2"}
_STACKS = {"source": "encoder", "target": "decoder", "encoder": "encoder", "decoder": "decoder"}
_ADDED = {"positions": "embed_positions", "norm": "layernorm_embedding"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu"}


class _Family(NamedTuple):
    """A class, and the settings without which it is another one's."""

    architecture: str
    model_type: str
    settings: Mapping[str, object]
    stores_sinusoids: bool = False


_LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
_FAMILIES = (
    _Family("PegasusForConditionalGeneration", "pegasus", {"norm_order": "pre"}, stores_sinusoids=True),
    _Family("MarianMTModel", "marian", {"norm_order": "post"}, stores_sinusoids=True),
    _Family("BartForConditionalGeneration", "bart", {"norm_order": "post"} | _LEARNED),
    _Family("MBartForConditionalGeneration", "mbart", {"norm_order": "pre"} | _LEARNED),
    _Family(
        "M2M100ForConditionalGeneration",
        "m2m_100",
        # The class counts positions of what is no padding, from the padding id on.
        {"norm_order": "pre", "position_offset": 2, "sinusoids_to_end": True, "pad_id": 1},
    ),
)
# What all of them leave open. Any other setting must have its default value, or the family's.
_FREE = {
    "source_vocabulary_size",
    "target_vocabulary_size",
    "num_encoder_layers",
    "num_decoder_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "max_positions",
    "scale_embeddings",
    "eos_id",
    "start_id",
}


def class_for(config: ModelConfig) -> str | None:
    """The class that computes this model, or None."""
    family = _family(config)
    return None if family is None else family.architecture


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Settings that the nearest class has no brick for; none where a class computes the model."""
    return min((_differences(config, family) for family in _FAMILIES), key=len)


def _family(config: ModelConfig) -> _Family | None:
    return next((family for family in _FAMILIES if not _differences(config, family)), None)


def _differences(config: ModelConfig, family: _Family) -> list[str]:
    fields = msgspec.structs.fields(ModelConfig)
    wanted = {field.name: field.default for field in fields if field.name not in _FREE} | dict(family.settings)
    if "pad_id" not in family.settings:
        del wanted["pad_id"]
    found = _explicit(config)
    differing = [name for name, value in wanted.items() if name != "activation" and found[name] != value]
    if config.activation not in _ACTIVATIONS:
        differing.append("activation")
    if family.model_type == "m2m_100" and config.start_id == config.pad_id:
        differing.append("start_id")
    return differing


def _explicit(config: ModelConfig) -> dict[str, object]:
    """The settings by name; a value that says what the default means is the default."""
    width = config.d_model / config.num_heads
    meant: dict[str, object] = {
        "num_key_value_heads": config.num_heads,
        "d_k": width,
        "d_v": width,
        "final_norm": config.norm_order != "post",
        "projection_bias": config.bias,
        "attention_output_bias": config.bias,
        "feed_forward_bias": config.bias,
    }
    found = msgspec.structs.asdict(config)
    return {name: None if name in meant and value == meant[name] else value for name, value in found.items()}


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of `config.json`: the class's own keys, and under "transduce" our configuration."""
    own = {"transduce": msgspec.to_builtins(config)}
    family = _family(config)
    if family is None:
        return {"model_type": "transduce", "is_encoder_decoder": True} | own
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "is_encoder_decoder": True,
        "vocab_size": config.target_vocabulary_size,
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": _ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "max_position_embeddings": config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": config.norm_order == "pre",
        "normalize_embedding": config.embedding_norm,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": None,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,
        "dtype": "float32",
    } | own


def to_folder_names(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our weights under the names that `model.safetensors` has for them."""
    family = _family(config)
    if family is None:
        return dict(weights)
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for new_name, part in zip(_folder_names(name), _parts(name, tensor, config), strict=True):
            renamed[new_name] = part.contiguous()
    if family.stores_sinusoids:
        table = sinusoids(MAXIMUM_POSITIONS, config.d_model)
        renamed["model.encoder.embed_positions.weight"] = table
        renamed["model.decoder.embed_positions.weight"] = table.clone()
    if family.model_type != "m2m_100":
        renamed["final_logits_bias"] = torch.zeros(1, config.target_vocabulary_size)
    return renamed


def expected_names(name: str, config: ModelConfig) -> list[str]:
    """The names under which a folder holds our parameter `name`, to be concatenated in this order."""
    return [name] if class_for(config) is None else _folder_names(name)


def derived_names(config: ModelConfig) -> set[str]:
    """Tensors that a folder may hold and that we compute ourselves."""
    family = _family(config)
    if family is None:
        return set()
    derived = {
        "final_logits_bias",
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    }
    tables = {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    return derived | tables if family.stores_sinusoids else derived


def _parts(name: str, tensor: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
    """Our projection holds [queries; keys; values]; the classes have three."""
    if ".projection." in name:
        queries, keys, values = tensor.split(config.num_heads * config.key_width)
        return queries, keys, values
    return (tensor,)


def _folder_names(name: str) -> list[str]:
    """From our name, encoder_layers.0.feed_forward.inner.bias, to theirs, model.encoder.layers.0.fc1.bias."""
    if name == "source_weight":
        return ["model.shared.weight"]
    first, *rest = name.split(".")
    stack = f"model.{_STACKS[first.split('_')[0]]}"
    if first.endswith("_embedding"):
        return [f"{stack}.{_ADDED[rest[0]]}.{rest[1]}"]
    if first.endswith("_norm"):
        return [f"{stack}.layer_norm.{rest[0]}"]
    number, block, *inside = rest
    layer, kind = f"{stack}.layers.{number}", inside[-1]
    if block in _NORMS:
        return [f"{layer}.{_NORMS[block]}.{kind}"]
    if block == "feed_forward":
        return [f"{layer}.{_FEED_FORWARD[inside[0]]}.{kind}"]
    attention = f"{layer}.{_SUBLAYERS[block]}"
    if inside[0] == "output":
        return [f"{attention}.out_proj.{kind}"]
    return [f"{attention}.{part}_proj.{kind}" for part in "qkv"]
