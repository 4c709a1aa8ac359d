"""The classes of Hugging Face that compute what our models compute: under which settings, and how their config.json
says these.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from transduce.interop.components import MAXIMUM_POSITIONS, READABLE
from transduce.model.config import Kind, ModelConfig
from transduce.model.layer_graph import table

# --- huggingface family ---
# What a class of Hugging Face is to us: the settings under which it computes what our models compute.


ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu"}
GATES = {"reglu": "relu", "geglu": "gelu", "geglu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


class Family(NamedTuple):
    """A class, and the settings without which it is another one's."""

    architecture: str
    model_type: str
    kind: Kind
    wanted: Mapping[str, object]
    """Settings that must have these values."""
    free: frozenset[str]
    """Settings that may have any value. All others must have the default one."""
    activations: Mapping[str, str]
    """Their names of the functions that the class has."""
    content: Callable[[ModelConfig], dict[str, Any]]
    """The class's own keys of config.json."""
    unless: Callable[[ModelConfig], list[str]] = lambda _: []
    """Settings that do not go together there."""
    automatic: str = "AutoModelForSeq2SeqLM"
    """What opens it."""
    stores_sinusoids: bool = False
    stores_output_bias: bool = True
    """A bias on the logits is stored, zero or not."""


def meant_settings(config: ModelConfig) -> dict[str, object]:
    """The settings by name; where nothing was said, what that means."""
    return msgspec.structs.asdict(config) | {
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
        "projection_bias": config.bias if config.projection_bias is None else config.projection_bias,
        "attention_output_bias": config.bias if config.attention_output_bias is None else config.attention_output_bias,
        "feed_forward_bias": config.bias if config.feed_forward_bias is None else config.feed_forward_bias,
    }


# --- huggingface decoders ---
# The classes of Hugging Face for a decoder alone: GPT-2, Llama and Qwen2.


def _gpt2(config: ModelConfig) -> dict[str, Any]:
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


def _llama(config: ModelConfig) -> dict[str, Any]:
    meant = meant_settings(config)
    rotation: dict[str, Any] = {"rope_type": "default"}
    if config.rotary_scaling is not None:
        rotation = {
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
        "num_key_value_heads": meant["num_key_value_heads"],
        "head_dim": config.key_width,
        "hidden_act": GATES[config.activation],
        "max_position_embeddings": MAXIMUM_POSITIONS,
        "rms_norm_eps": config.norm_epsilon,
        "attention_bias": meant["projection_bias"],
        "mlp_bias": meant["feed_forward_bias"],
        "attention_dropout": config.attention_dropout,
        # What transformers 5 reads, and what version 4 does.
        "rope_parameters": rotation | {"rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,
        "rope_scaling": rotation if config.rotary_scaling is not None else None,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _unless_llama(config: ModelConfig) -> list[str]:
    """One setting there stands for the biases of all four projections, and one for the widths of all heads."""
    meant = meant_settings(config)
    return [
        *(["d_v"] if config.value_width != config.key_width else []),
        *(["num_heads"] if config.d_model % config.num_heads else []),
        *(["attention_output_bias"] if meant["projection_bias"] != meant["attention_output_bias"] else []),
    ]


GPT2 = Family(
    "GPT2LMHeadModel",
    "gpt2",
    "decoder",
    {"positions": "learned", "scale_embeddings": False},
    frozenset(("norm_epsilon", "tie_output")),
    ACTIVATIONS,
    _gpt2,
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
    _llama,
    _unless_llama,
    automatic="AutoModelForCausalLM",
    stores_output_bias=False,
)


def _qwen2(config: ModelConfig) -> dict[str, Any]:
    content = _llama(config)
    for name in ("attention_bias", "mlp_bias"):
        del content[name]
    return content | {"use_sliding_window": False}


def _unless_qwen2(config: ModelConfig) -> list[str]:
    """Queries, keys and values have biases there, and nothing else has."""
    return [name for name in _unless_llama(config) if name != "attention_output_bias"]


QWEN2 = LLAMA._replace(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    wanted=dict(LLAMA.wanted) | {"projection_bias": True, "attention_output_bias": False, "feed_forward_bias": False},
    free=LLAMA.free - {"projection_bias", "attention_output_bias", "feed_forward_bias"},
    content=_qwen2,
    unless=_unless_qwen2,
)


# --- families ---


# T5's name for the tanh form after a gate is "gelu", which it has always been.
_T5_ACTIVATIONS = {
    "relu": "relu",
    "gelu-tanh": "gelu_new",
    "silu": "silu",
    "reglu": "gated-relu",
    "geglu-tanh": "gated-gelu",
    "swiglu": "gated-silu",
}


HUGGING_FACE = table(
    "the export to Hugging Face", **READABLE | {"class_": "Transformer Encoder Decoder", "parametrization": ""}
)
"""The models whose weights can be stored for a class of Hugging Face; the settings choose the class."""


def family_for(config: ModelConfig) -> Family | None:
    """The class that computes this model, or None."""
    return next((family for family in FAMILIES if not differences(config, family)), None)


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Settings that the nearest class has no brick for; none where a class computes the model."""
    family = _nearest(config)
    return ["kind"] if family is None else differences(config, family)


def huggingface_remedy(config: ModelConfig) -> dict[str, object]:
    """Values of these settings with which that class would compute it; none where that asks for other positions, or for
    more than a value.
    """
    family, obstacles = _nearest(config), huggingface_obstacles(config)
    wanted = {} if family is None else _wanted(config, family)
    values = {name: wanted.get(name) for name in obstacles}
    return {} if "positions" in values or None in values.values() else values


def _nearest(config: ModelConfig) -> Family | None:
    """The class of this kind with the fewest differences: one with other positions is far, however alike the rest."""

    def distance(family: Family) -> int:
        found = differences(config, family)
        return len(found) + 2 * ("positions" in found)

    return min((family for family in FAMILIES if family.kind == config.kind), key=distance, default=None)


def _wanted(config: ModelConfig, family: Family) -> dict[str, object]:
    return _usual(config) | dict(family.wanted) | {"kind": family.kind}


def differences(config: ModelConfig, family: Family) -> list[str]:
    """Settings that keep a model from being of this class, in the order of the configuration."""
    found, wanted = meant_settings(config), _wanted(config, family)
    differing = {name for name, value in wanted.items() if name not in family.free and found[name] != value}
    if config.activation not in family.activations:
        differing.add("activation")
    differing |= set(family.unless(config))
    return [name for name in msgspec.structs.asdict(config) if name in differing]


def _usual(config: ModelConfig) -> dict[str, object]:
    """The values that settings have where a class does not ask for others."""
    fields = msgspec.structs.fields(ModelConfig)
    defaults = {field.name: field.default for field in fields if field.name not in _ALWAYS_FREE}
    width = config.d_model // config.num_heads
    meant = {"num_key_value_heads": config.num_heads, "d_k": width, "d_v": width}
    biases = dict.fromkeys(("projection_bias", "attention_output_bias", "feed_forward_bias"), True)
    return defaults | meant | biases | {"final_norm": config.norm_order != "post"}


# Sizes, ids, what acts in training alone; and `activation`, of which each class has a table. `bias` is three settings.
_ALWAYS_FREE = frozenset(
    (
        *("source_vocabulary_size", "target_vocabulary_size", "num_encoder_layers", "num_decoder_layers", "d_model"),
        *("d_ff", "num_heads", "dropout", "attention_dropout", "activation_dropout", "activation", "bias"),
        *("max_positions", "zero_padding_row", "pad_id", "eos_id", "start_id"),
    )
)


# --- encoder and decoder ----------------------------------------------------------------------------------------


def _bart_like(config: ModelConfig) -> dict[str, Any]:
    """What BART, mBART, Marian, Pegasus and M2M100 are told."""
    return {
        "vocab_size": config.source_vocabulary_size,
        "decoder_vocab_size": config.target_vocabulary_size,
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "max_position_embeddings": config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS,
        "scale_embedding": config.scale_embeddings,
        "share_encoder_decoder_embeddings": config.tie_source_target,
        "tie_word_embeddings": True,
        "normalize_before": config.norm_order == "pre",
        "normalize_embedding": config.embedding_norm,
        "bos_token_id": None,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,
    }


def _t5(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.target_vocabulary_size,
        "d_model": config.d_model,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "num_heads": config.num_heads,
        "d_kv": config.key_width,
        "d_ff": config.d_ff,
        "feed_forward_proj": _T5_ACTIVATIONS[config.activation],
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_epsilon,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "tie_word_embeddings": config.tie_output,
        "decoder_start_token_id": config.start_id,
    }


def _unless_t5(config: ModelConfig) -> list[str]:
    """The factor before the output projection follows from whether it is tied.

    A decoder may not be deeper: `generate` makes a cache of as many layers as the encoder has (transformers 5.23).
    """
    wanted = config.d_model**-0.5 if config.tie_output else 1.0
    return [
        *(["num_decoder_layers"] if config.num_decoder_layers > config.num_encoder_layers else []),
        *(["d_v"] if config.value_width != config.key_width else []),
        *(["output_scale"] if config.output_scale != wanted else []),
    ]


_BART_FREE = frozenset(("scale_embeddings", "output_bias"))
_LEARNED = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
# A model with its own table for each side is Marian's alone; the padding id is then an id of both.
_APART = {"norm_order": "post", "tie_source_target": False}


def _of_bart(
    architecture: str, model_type: str, wanted: Mapping[str, object], *, stores_sinusoids: bool = False
) -> Family:
    return Family(
        architecture,
        model_type,
        "transformer",
        wanted,
        _BART_FREE,
        ACTIVATIONS,
        _bart_like,
        stores_sinusoids=stores_sinusoids,
    )


_T5 = Family(
    "T5ForConditionalGeneration",
    "t5",
    "transformer",
    {
        "norm": "rms",
        "positions": "relative",
        "attention_score": "dot",
        "scale_embeddings": False,
        "projection_bias": False,
        "attention_output_bias": False,
        "feed_forward_bias": False,
    },
    frozenset(
        (
            *("d_k", "d_v", "norm_epsilon", "relative_buckets", "relative_max_distance", "tie_output"),
            "output_scale",
        )
    ),
    _T5_ACTIVATIONS,
    _t5,
    _unless_t5,
    stores_output_bias=False,
)
# The class counts positions of what is no padding, from the padding id on.
_M2M100 = Family(
    "M2M100ForConditionalGeneration",
    "m2m_100",
    "transformer",
    {"position_offset": 2, "sinusoids_to_end": True},
    frozenset(("scale_embeddings",)),
    ACTIVATIONS,
    _bart_like,
    lambda config: [
        *(["pad_id"] if config.pad_id != 1 else []),
        *(["start_id"] if config.start_id == config.pad_id else []),
    ],
    stores_output_bias=False,
)


# --- an encoder alone -------------------------------------------------------------------------------------------


def _bert(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.source_vocabulary_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.num_encoder_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.d_ff,
        "hidden_act": ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": config.norm_epsilon,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }


def _of_bert(
    architecture: str,
    automatic: str,
    wanted: Mapping[str, object],
    *free: str,
    unless: Callable[[ModelConfig], list[str]] = lambda _: [],
) -> Family:
    bricks = {"norm_order": "post", "positions": "learned", "embedding_norm": True, "scale_embeddings": False}
    return Family(
        architecture,
        "bert",
        "encoder",
        bricks | dict(wanted),
        frozenset(("norm_epsilon", "token_types", "output_bias", *free)),
        ACTIVATIONS,
        _bert,
        lambda config: [*(["token_types"] if config.token_types == 0 else []), *unless(config)],
        automatic=automatic,
        stores_output_bias=wanted["masked_language_head"] is True,
    )


FAMILIES = (
    _of_bart("PegasusForConditionalGeneration", "pegasus", {}, stores_sinusoids=True),
    _of_bart("MarianMTModel", "marian", {"norm_order": "post"}, stores_sinusoids=True),
    _of_bart("MarianMTModel", "marian", _APART, stores_sinusoids=True),
    _of_bart("BartForConditionalGeneration", "bart", _LEARNED | {"norm_order": "post"}),
    _of_bart("MBartForConditionalGeneration", "mbart", _LEARNED),
    _M2M100,
    _T5,
    _of_bert("BertForMaskedLM", "AutoModelForMaskedLM", {"masked_language_head": True, "num_labels": 0}, "pooler"),
    # Its second head tells whether the second stretch follows.
    _of_bert(
        "BertForPreTraining", "AutoModelForPreTraining", {"masked_language_head": True, "num_labels": 2}, "pooler"
    ),
    _of_bert(
        "BertForSequenceClassification",
        "AutoModelForSequenceClassification",
        {"masked_language_head": False},
        "pooler",
        "num_labels",
        unless=lambda config: ["num_labels"] if config.num_labels == 0 else [],
    ),
    _of_bert("BertModel", "AutoModel", {"masked_language_head": False, "num_labels": 0, "pooler": True}),
    GPT2,
    LLAMA,
    QWEN2,
)
