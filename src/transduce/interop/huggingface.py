"""Our encoder–decoders as Hugging Face's Pegasus (pre-norm) and Marian (post-norm), which compute the same function.

A model folder holds the weights under these classes' names, so that it opens there with no export step. A
configuration that neither class can hold keeps our own names, and its `config.json` names no class.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids

MAXIMUM_POSITIONS = 1024

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


def class_for(config: ModelConfig) -> str | None:
    """The class that computes this model, or None."""
    fits = (
        config.activation in ("relu", "gelu")
        and config.positions == "sinusoidal"
        and config.bias
        and config.tie_source_target
        and config.tie_output
        and config.key_width == config.value_width == config.d_model / config.num_heads
        and config.norm_epsilon == 1e-5
    )
    if not fits:
        return None
    return {"pre": "PegasusForConditionalGeneration", "post": "MarianMTModel"}[config.norm_order]


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of `config.json`: the class's own keys, and under "transduce" our configuration."""
    own = {"transduce": msgspec.to_builtins(config)}
    architecture = class_for(config)
    if architecture is None:
        return {"model_type": "transduce", "is_encoder_decoder": True} | own
    return {
        "architectures": [architecture],
        "model_type": "pegasus" if architecture.startswith("Pegasus") else "marian",
        "is_encoder_decoder": True,
        "vocab_size": config.target_vocabulary_size,
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "max_position_embeddings": MAXIMUM_POSITIONS,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": config.norm_order == "pre",
        "normalize_embedding": False,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": None,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,
        "dtype": "float32",
    } | own


def to_folder_names(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our weights under the names that `model.safetensors` has for them."""
    if class_for(config) is None:
        return dict(weights)
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        for new_name, part in zip(_folder_names(name), _parts(name, tensor, config), strict=True):
            renamed[new_name] = part.contiguous()
    table = sinusoids(MAXIMUM_POSITIONS, config.d_model)
    renamed["model.encoder.embed_positions.weight"] = table
    renamed["model.decoder.embed_positions.weight"] = table.clone()
    renamed["final_logits_bias"] = torch.zeros(1, config.target_vocabulary_size)
    return renamed


def expected_names(name: str, config: ModelConfig) -> list[str]:
    """The names under which a folder holds our parameter `name`, to be concatenated in this order."""
    return [name] if class_for(config) is None else _folder_names(name)


def derived_names(config: ModelConfig) -> set[str]:
    """Tensors that a folder may hold and that we compute ourselves."""
    if class_for(config) is None:
        return set()
    return {
        "model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight",
        "final_logits_bias",
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    }


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
    stack = f"model.{first.split('_')[0]}"
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
