"""Hugging Face's decoder-only classes and their config.json: GPT-2, Llama and Qwen2."""

from typing import Any

from transduce.interop.exported import MAXIMUM_POSITIONS
from transduce.interop.huggingface_family import ACTIVATIONS, GATES, Family, meant_settings
from transduce.model.config import ModelConfig


def _gpt2_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.target_vocabulary_size,
        "n_embd": config.d_model,
        "n_layer": config.num_decoder_layers,
        "n_head": config.num_heads,
        "n_inner": config.d_ff,
        "n_positions": config.max_positions,
        "activation_function": ACTIVATIONS[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _llama_config(config: ModelConfig) -> dict[str, Any]:
    effective = meant_settings(config)
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rotary_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": config.rotary_scaling.factor,
            "low_freq_factor": config.rotary_scaling.low_frequency_factor,
            "high_freq_factor": config.rotary_scaling.high_frequency_factor,
            "original_max_position_embeddings": config.rotary_scaling.original_length,
        }
    return {
        "vocab_size": config.target_vocabulary_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.num_decoder_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": effective["num_key_value_heads"],
        "head_dim": config.key_width,
        "hidden_act": GATES[config.activation],
        "max_position_embeddings": MAXIMUM_POSITIONS,
        "rms_norm_eps": config.norm_epsilon,
        "attention_bias": effective["projection_bias"],
        "mlp_bias": effective["feed_forward_bias"],
        "attention_dropout": config.attention_dropout,
        # transformers 5 reads `rope_parameters`; version 4 reads `rope_theta` and `rope_scaling`.
        "rope_parameters": rope | {"rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,
        "rope_scaling": rope if config.rotary_scaling is not None else None,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _llama_obstacles(config: ModelConfig) -> list[str]:
    """Return the settings that Llama's config.json cannot express: it has one bias setting for all four projections,
    and one width for all heads.
    """
    effective = meant_settings(config)
    return [
        *(["d_v"] if config.value_width != config.key_width else []),
        *(["num_heads"] if config.d_model % config.num_heads else []),
        *(["attention_output_bias"] if effective["projection_bias"] != effective["attention_output_bias"] else []),
    ]


GPT2 = Family(
    "GPT2LMHeadModel",
    "gpt2",
    "decoder",
    {"positions": "learned", "scale_embeddings": False},
    frozenset(("norm_epsilon", "tie_output")),
    ACTIVATIONS,
    _gpt2_config,
    automatic="AutoModelForCausalLM",
    stores_output_bias=False,
)
LLAMA = Family(
    "LlamaForCausalLM",
    "llama",
    "decoder",
    {"positions": "rotary", "norm": "rms", "scale_embeddings": False},
    frozenset(
        (
            *("norm_epsilon", "tie_output", "num_key_value_heads", "d_k", "d_v", "rotary_base", "rotary_scaling"),
            *("projection_bias", "attention_output_bias", "feed_forward_bias"),
        )
    ),
    GATES,
    _llama_config,
    _llama_obstacles,
    automatic="AutoModelForCausalLM",
    stores_output_bias=False,
)


def _qwen2_config(config: ModelConfig) -> dict[str, Any]:
    content = _llama_config(config)
    for name in ("attention_bias", "mlp_bias"):
        del content[name]
    return content | {"use_sliding_window": False}


def _qwen2_obstacles(config: ModelConfig) -> list[str]:
    """Return the settings that Qwen2's config.json cannot express; unlike Llama, only queries, keys and values have
    biases.
    """
    return [name for name in _llama_obstacles(config) if name != "attention_output_bias"]


QWEN2 = LLAMA._replace(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    wanted=dict(LLAMA.wanted) | {"projection_bias": True, "attention_output_bias": False, "feed_forward_bias": False},
    free=LLAMA.free - {"projection_bias", "attention_output_bias", "feed_forward_bias"},
    content=_qwen2_config,
    unless=_qwen2_obstacles,
)
