"""Describe Hugging Face classes that can compute this package's models: required settings, and their config.json."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from transduce.interop.components import EXPORTABLE, MAXIMUM_POSITIONS, max_sequence_length
from transduce.interop.hugging_face import stored_names
from transduce.model.config import Kind, ModelConfig
from transduce.model.layer_graph import table

# --- huggingface family ---
# Description of a Hugging Face class: the settings under which it computes the same as this package's models.


ACTIVATIONS = {ours: theirs for theirs, ours in stored_names.ACTIVATIONS.items()}
GATES = {gated: ACTIVATIONS[plain] for plain, gated in stored_names.GATES.items()}


class Family(NamedTuple):
    """A Hugging Face class, and the settings that a model must have so that the class computes the same."""

    architecture: str
    """The name of the class, such as `MarianMTModel`."""
    model_type: str
    """The name of the family in config.json, such as `marian`."""
    kind: Kind
    """The kind of model that the class computes: `transformer` (encoder–decoder), `decoder` or `encoder`."""
    wanted: Mapping[str, object]
    """The values that the class requires of some of a model's settings, by the setting's name."""
    free: frozenset[str]
    """Names of settings that may have any value; a setting that is neither here nor in `wanted` must have its default
    value.
    """
    activations: Mapping[str, str]
    """The activation functions that the class supports: a dict from this package's name to Hugging Face's."""
    content: Callable[[ModelConfig], dict[str, Any]]
    """A function that returns the class-specific keys of config.json, a dict, for a model's configuration."""
    obstacles: Callable[[ModelConfig], list[str]] = lambda _: []
    """A function that returns a list of the names of settings whose combination the class does not support; empty if
    none.
    """
    automatic: str = "AutoModelForSeq2SeqLM"
    """The name of transformers' automatic class that opens the model, such as `AutoModelForCausalLM`."""
    stores_sinusoids: bool = False
    """True if the class stores tables of sinusoids in weights files, although they can be computed."""
    stores_output_bias: bool = True
    """True if the class always stores a bias on the logits, even if it is zero."""
    stores_tied_output: Callable[[ModelConfig], bool] = lambda _: False
    """A function that returns whether the output projection is stored a second time although it is tied."""
    rounds_weights: bool = False
    """True if some weights cannot be stored exactly. Only exports are then written for the class; model folders keep
    this package's names.
    """


def effective_settings(config: ModelConfig) -> dict[str, object]:
    """Return a configuration's settings as a dict by name, in which a setting that is None has the value in effect.

    Examples are the width of a head and the number of key/value heads, which follow from other settings.
    """
    return msgspec.structs.asdict(config) | {
        "num_key_value_heads": config.key_value_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
        "projection_bias": config.has_projection_bias,
        "attention_output_bias": config.has_attention_output_bias,
        "feed_forward_bias": config.has_feed_forward_bias,
    }


def _written(config: ModelConfig, keys: stored_names.Keys) -> dict[str, Any]:
    """Return a dict of the keys of Hugging Face's config.json that hold settings of this package as they are.

    Args:
        config: the model's configuration.
        keys: the family's keys by the names of this package's settings.
    """
    effective = effective_settings(config)
    return {key.name: effective[setting] for setting, key in keys.items()}


# --- huggingface decoders ---
# Hugging Face's decoder-only classes and their config.json: GPT-2, OPT, and the family of Llama.


def _gpt2_config(config: ModelConfig) -> dict[str, Any]:
    return _written(config, stored_names.GPT2_KEYS) | {
        "activation_function": ACTIVATIONS[config.activation],
        "embd_pdrop": config.dropout,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _llama_config(config: ModelConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rotary_scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": config.rotary_scaling.factor,
            "low_freq_factor": config.rotary_scaling.low_frequency_factor,
            "high_freq_factor": config.rotary_scaling.high_frequency_factor,
            "original_max_position_embeddings": config.rotary_scaling.original_length,
        }
    return _written(config, stored_names.LLAMA_KEYS) | {
        "hidden_act": GATES[config.activation],
        "max_position_embeddings": MAXIMUM_POSITIONS,
        # transformers 5 reads `rope_parameters`; version 4 reads `rope_theta` and `rope_scaling`.
        "rope_parameters": rope | {"rope_theta": config.rotary_base},
        "rope_theta": config.rotary_base,
        "rope_scaling": rope if config.rotary_scaling is not None else None,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _llama_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that Llama's config.json cannot express; empty if none.

    Llama's config.json has one bias setting for all four projections, and one width for all heads.
    """
    effective = effective_settings(config)
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


def _opt_config(config: ModelConfig) -> dict[str, Any]:
    return _written(config, stored_names.OPT_KEYS) | {
        "activation_function": ACTIVATIONS[config.activation],
        "enable_bias": config.has_feed_forward_bias,
        "do_layer_norm_before": True,
        "word_embed_proj_dim": config.d_model,
        "tie_word_embeddings": config.tie_output,
        "bos_token_id": config.start_id,
    }


def _opt_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's bias settings that OPT cannot express; empty if none.

    OPT's layers have all biases or none. The list has the settings that differ from `feed_forward_bias`.
    """
    names = ("projection_bias", "attention_output_bias", "feed_forward_bias")
    effective = effective_settings(config)
    return [name for name in names if effective[name] != effective["feed_forward_bias"]]


OPT = GPT2._replace(
    architecture="OPTForCausalLM",
    model_type="opt",
    wanted=dict(GPT2.wanted) | {"position_offset": 2},
    free=frozenset(("tie_output", "projection_bias", "attention_output_bias", "feed_forward_bias")),
    content=_opt_config,
    obstacles=_opt_obstacles,
)


def _without(config: ModelConfig, *names: str) -> dict[str, Any]:
    """Return a dict of the class-specific keys of Llama's config.json, except the keys in `names`."""
    return {name: value for name, value in _llama_config(config).items() if name not in names}


def _gemma_config(config: ModelConfig) -> dict[str, Any]:
    # "gelu" would mean the tanh approximation.
    exact = {"hidden_act": "gelu_python"} if config.activation == "geglu" else {}
    return _without(config, "mlp_bias") | exact


def _mistral_config(config: ModelConfig) -> dict[str, Any]:
    return _without(config, "attention_bias", "mlp_bias") | {"sliding_window": _sliding_window(config)}


def _sliding_window(config: ModelConfig) -> int | None:
    """Return the number of tokens in the window of attention, with the query's own; None: there is no window."""
    return None if config.attention_window is None else config.attention_window + 1


def _qwen_config(config: ModelConfig, *without: str) -> dict[str, Any]:
    """Return a dict of the class-specific keys of a Qwen's config.json.

    The keys are Llama's, except those in `without`, and Qwen's own keys of a window of attention.
    """
    has_window = config.attention_window is not None
    window = {"sliding_window": _sliding_window(config), "max_window_layers": 0} if has_window else {}
    return _without(config, *without) | {"use_sliding_window": has_window} | window


def _qwen2_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that Qwen2's config.json cannot express; empty if none.

    They are the settings that Llama cannot express, except that Qwen2 has a bias on queries, keys and values without a
    bias on the attention's output.
    """
    return [name for name in _llama_obstacles(config) if name != "attention_output_bias"]


_NO_BIAS = {"projection_bias": False, "attention_output_bias": False, "feed_forward_bias": False}
_BIASES = frozenset(_NO_BIAS)
GEMMA = LLAMA._replace(
    architecture="GemmaForCausalLM",
    model_type="gemma",
    wanted={"positions": "rotary", "norm": "rms", "feed_forward_bias": False},
    free=LLAMA.free - {"feed_forward_bias"},
    content=_gemma_config,
    rounds_weights=True,  # of norms, which are stored less 1
)
MISTRAL = LLAMA._replace(
    architecture="MistralForCausalLM",
    model_type="mistral",
    wanted=dict(LLAMA.wanted) | _NO_BIAS,
    free=(LLAMA.free - _BIASES) | {"attention_window"},
    content=_mistral_config,
)
QWEN2 = LLAMA._replace(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    wanted=dict(LLAMA.wanted) | _NO_BIAS | {"projection_bias": True},
    free=MISTRAL.free,
    content=lambda config: _qwen_config(config, "attention_bias", "mlp_bias"),
    obstacles=_qwen2_obstacles,
)
QWEN3 = LLAMA._replace(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    wanted=dict(LLAMA.wanted) | {"attention": "query-key-norm", "feed_forward_bias": False},
    free=(LLAMA.free - {"feed_forward_bias"}) | {"attention_window"},
    content=lambda config: _qwen_config(config, "mlp_bias"),
)


# --- families ---


# T5's "gated-gelu" means the tanh approximation.
_T5_ACTIVATIONS = {
    "relu": "relu",
    "gelu-tanh": "gelu_new",
    "silu": "silu",
    "reglu": "gated-relu",
    "geglu-tanh": "gated-gelu",
    "swiglu": "gated-silu",
}


HUGGING_FACE = table(
    "the export to Hugging Face", **EXPORTABLE | {"class_": "Transformer Encoder Decoder", "parametrization": ""}
)
"""A table of the model components that Hugging Face classes can compute; the settings select the class."""


def family_for(config: ModelConfig) -> Family | None:
    """Return the first Hugging Face class, as `Family`, that computes a model with this configuration, or None."""
    return next((family for family in EXPORT_FAMILIES if not differences(config, family)), None)


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of settings that the nearest Hugging Face class does not support.

    The nearest class is the class for the same kind of model that needs the fewest changes. The list is empty if a
    class computes the model. It is ["kind"] if there is no class for this kind.
    """
    family = _nearest(config)
    return ["kind"] if family is None else differences(config, family)


def huggingface_remedy(config: ModelConfig) -> dict[str, object]:
    """Return a dict of new values of settings with which the nearest Hugging Face class computes a model.

    The dict is empty if a class computes the model already, if the nearest class requires other positions, or if new
    values are not enough.
    """
    family, obstacles = _nearest(config), huggingface_obstacles(config)
    required = {} if family is None else _required(config, family)
    values = {name: required.get(name) for name in obstacles}
    if family is None or "positions" in values or None in values.values():
        return {}
    # A class can also restrict combinations of settings, which one value at a time does not repair.
    return {} if differences(msgspec.structs.replace(config, **values), family) else values


def _nearest(config: ModelConfig) -> Family | None:
    """Return the Hugging Face class, as `Family`, whose settings differ least from a model's.

    Only classes for the same kind of model are compared, and different position encodings count as three settings. The
    result is None if there is no class for this kind.
    """

    def distance(family: Family) -> int:
        differing = differences(config, family)
        return len(differing) + 2 * ("positions" in differing)

    return min((family for family in EXPORT_FAMILIES if family.kind == config.kind), key=distance, default=None)


def _required(config: ModelConfig, family: Family) -> dict[str, object]:
    return _default_values(config) | dict(family.wanted) | {"kind": family.kind}


def differences(config: ModelConfig, family: Family) -> list[str]:
    """Return a list of a model's settings, by name, that a Hugging Face class does not support.

    The order is that of `ModelConfig`. The result is empty if the class computes the model.
    """
    effective, required = effective_settings(config), _required(config, family)
    differing = {name for name, value in required.items() if name not in family.free and effective[name] != value}
    if config.activation not in family.activations:
        differing.add("activation")
    differing |= set(family.obstacles(config))
    return [name for name in msgspec.structs.asdict(config) if name in differing]


def _default_values(config: ModelConfig) -> dict[str, object]:
    """Return a dict of the values that a model's settings must have unless a Hugging Face class requires others.

    The values are the defaults of `ModelConfig`, with sizes of heads that follow from the model's. Settings that any
    class allows, such as the width, are left out.
    """
    fields = msgspec.structs.fields(ModelConfig)
    defaults = {field.name: field.default for field in fields if field.name not in _ALWAYS_FREE}
    width = config.d_model // config.num_heads
    heads = {"num_key_value_heads": config.num_heads, "d_k": width, "d_v": width}
    biases = dict.fromkeys(("projection_bias", "attention_output_bias", "feed_forward_bias"), True)
    return defaults | heads | biases | {"final_norm": config.norm_order != "post"}


# Sizes, ids, settings of training only, and settings that are checked elsewhere (`activation`, the three of `bias`).
_ALWAYS_FREE = frozenset(
    (
        *("source_vocabulary_size", "target_vocabulary_size", "num_encoder_layers", "num_decoder_layers", "d_model"),
        *("d_ff", "num_heads", "dropout", "attention_dropout", "activation_dropout", "activation", "bias"),
        *("max_positions", "zero_padding_row", "pad_id", "eos_id", "start_id"),
    )
)


# --- encoder and decoder ---


def _bart_like_config(config: ModelConfig) -> dict[str, Any]:
    """Return a dict of the keys that the config.json of BART, mBART, Marian, Pegasus and M2M100 share, for a model."""
    return _written(config, stored_names.BART_KEYS) | {
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": ACTIVATIONS[config.activation],
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "max_position_embeddings": max_sequence_length(config),
        "share_encoder_decoder_embeddings": config.tie_source_target,
        "tie_word_embeddings": True,
        "normalize_before": config.norm_order == "pre",
        "normalize_embedding": config.embedding_norm,
        "bos_token_id": None,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,
    }


def _t5_config(config: ModelConfig) -> dict[str, Any]:
    return _written(config, stored_names.T5_KEYS) | {
        "feed_forward_proj": _T5_ACTIVATIONS[config.activation],
        # transformers 4.57 scales the decoder's output if and only if `tie_word_embeddings` is true.
        "tie_word_embeddings": config.tie_output and config.output_scale != 1.0,
        "scale_decoder_outputs": config.output_scale != 1.0,
        "decoder_start_token_id": config.start_id,
    }


def _t5_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that T5's class cannot express; empty if none.

    * Values must be as wide as keys.
    * The decoder may not be deeper than the encoder: `generate` makes a cache with as many layers as the encoder has
      (transformers 5.23).
    * The output scale must be 1. It may be 1/√d_model if the output is tied.
    """
    scales = (config.d_model**-0.5, 1.0) if config.tie_output else (1.0,)
    return [
        *(["num_decoder_layers"] if config.num_decoder_layers > config.num_encoder_layers else []),
        *(["d_v"] if config.value_width != config.key_width else []),
        *(["output_scale"] if config.output_scale not in scales else []),
    ]


_BART_FREE = frozenset(("scale_embeddings", "output_bias"))
_LEARNED: dict[str, object] = {"positions": "learned", "position_offset": 2, "embedding_norm": True}
_PEGASUS = Family(
    "PegasusForConditionalGeneration",
    "pegasus",
    "transformer",
    {},
    _BART_FREE,
    ACTIVATIONS,
    _bart_like_config,
    stores_sinusoids=True,
)
_MARIAN = _PEGASUS._replace(architecture="MarianMTModel", model_type="marian", wanted={"norm_order": "post"})
_MBART = _PEGASUS._replace(
    architecture="MBartForConditionalGeneration", model_type="mbart", wanted=_LEARNED, stores_sinusoids=False
)
_BART = _MBART._replace(
    architecture="BartForConditionalGeneration", model_type="bart", wanted=_LEARNED | {"norm_order": "post"}
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
    _t5_config,
    _t5_obstacles,
    stores_output_bias=False,
    # Without scaled outputs, transformers 4.57 does not tie the projection and reads it from the file.
    stores_tied_output=lambda config: config.tie_output and config.output_scale == 1.0,
)
# The class numbers non-padding positions from the padding id + 1.
_M2M100 = _MBART._replace(
    architecture="M2M100ForConditionalGeneration",
    model_type="m2m_100",
    wanted={"position_offset": 2, "sinusoids_to_end": True},
    free=frozenset(("scale_embeddings",)),
    obstacles=lambda config: [
        *(["pad_id"] if config.pad_id != 1 else []),
        *(["start_id"] if config.start_id == config.pad_id else []),
    ],
    stores_output_bias=False,
)


# --- an encoder alone ---


def _bert_config(config: ModelConfig) -> dict[str, Any]:
    return _written(config, stored_names.BERT_KEYS) | {
        "hidden_act": ACTIVATIONS[config.activation],
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }


def _roberta_config(config: ModelConfig) -> dict[str, Any]:
    return _bert_config(config) | {
        # The class's table of positions begins with rows that no position uses.
        "max_position_embeddings": config.max_positions + config.position_offset,
        "bos_token_id": config.start_id,
    }


def _distilbert_config(config: ModelConfig) -> dict[str, Any]:
    return _written(config, stored_names.DISTILBERT_KEYS) | {
        "activation": ACTIVATIONS[config.activation],
        "seq_classif_dropout": config.dropout,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
    }


def _bert_obstacles(config: ModelConfig) -> list[str]:
    return ["token_types"] if config.token_types == 0 else []


def _roberta_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that RoBERTa's classes cannot express; empty if none.

    The classes number positions from the padding id + 1, as XLM-R and CamemBERT do.
    """
    return [
        *_bert_obstacles(config),
        *(["position_offset"] if config.position_offset != config.pad_id + 1 else []),
        # The head for hidden tokens has gelu, whatever the layers have.
        *(["activation"] if config.masked_language_head and config.activation != "gelu" else []),
    ]


def _albert_config(config: ModelConfig) -> dict[str, Any]:
    return (
        _bert_config(config)
        | _written(config, stored_names.ALBERT_KEYS)
        | {
            "classifier_dropout_prob": config.dropout,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            # The class ignores these ids, but its configuration has others by default.
            "bos_token_id": config.start_id,
        }
    )


def _albert_obstacles(config: ModelConfig) -> list[str]:
    return [*_bert_obstacles(config), *(["embedding_size"] if config.embedding_size is None else [])]


def _mpnet_config(config: ModelConfig) -> dict[str, Any]:
    content = _roberta_config(config) | {"relative_attention_num_buckets": config.relative_buckets}
    return {name: value for name, value in content.items() if name != "type_vocab_size"}


def _mpnet_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that MPNet's classes cannot express; empty if none.

    The classes lack what RoBERTa's lack, and also token types and padding ids other than 1.
    """
    token_types = ["token_types"] if config.token_types else []
    others = [name for name in _roberta_obstacles(config) if name != "token_types"]
    return [*token_types, *others, *(["pad_id"] if config.pad_id != 1 else [])]


# The classes of encoders without a head, from which `_with_head` makes the others.
_BERT = Family(
    "BertModel",
    "bert",
    "encoder",
    {"norm_order": "post", "positions": "learned", "embedding_norm": True, "scale_embeddings": False},
    frozenset(("output_bias", "norm_epsilon", "token_types")),
    ACTIVATIONS,
    _bert_config,
    _bert_obstacles,
    automatic="AutoModel",
    stores_output_bias=False,
)
_ROBERTA = _BERT._replace(
    architecture="RobertaModel",
    model_type="roberta",
    free=_BERT.free | {"position_offset"},
    content=_roberta_config,
    obstacles=_roberta_obstacles,
)
_DISTILBERT = _BERT._replace(
    architecture="DistilBertModel",
    model_type="distilbert",
    wanted=dict(_BERT.wanted) | {"norm_epsilon": 1e-12},
    free=frozenset(("output_bias",)),
    content=_distilbert_config,
    obstacles=lambda _: [],
)
_ALBERT = _BERT._replace(
    architecture="AlbertModel",
    model_type="albert",
    wanted=dict(_BERT.wanted) | {"share_layers": True},
    free=_BERT.free | {"embedding_size"},
    content=_albert_config,
    obstacles=_albert_obstacles,
)
_MPNET = _ROBERTA._replace(
    architecture="MPNetModel",
    model_type="mpnet",
    wanted=dict(_BERT.wanted) | {"relative_bias": True},
    content=_mpnet_config,
    obstacles=_mpnet_obstacles,
)
_MASKED: dict[str, object] = {"masked_language_head": True, "num_labels": 0}
_CLASSES: dict[str, object] = {"masked_language_head": False}
_LABELS: dict[str, object] = {"masked_language_head": False, "token_labels": True}


def _with_head(base: Family, head: str, wanted: Mapping[str, object], *free: str) -> Family:
    """Return the Hugging Face class, as `Family`, that has the layers of an encoder and a head.

    Args:
        base: the class without a head, such as `BertModel`.
        head: the end of the class's name, such as `ForMaskedLM`; empty: the class has no head.
        wanted: the settings that the class requires besides those of the layers.
        *free: the names of further settings that may have any value, except that `num_labels` may not be 0.
    """

    def obstacles(config: ModelConfig) -> list[str]:
        lacks_labels = "num_labels" in free and config.num_labels == 0
        return [*base.obstacles(config), *(["num_labels"] if lacks_labels else [])]

    return base._replace(
        architecture=base.architecture.removesuffix("Model") + (head or "Model"),
        automatic=f"AutoModel{head}",
        wanted=dict(base.wanted) | dict(wanted),
        free=base.free | set(free),
        obstacles=obstacles,
        stores_output_bias=bool(wanted["masked_language_head"]),
    )


def _with_label_heads(base: Family) -> list[Family]:
    """Return a list of the Hugging Face classes with the layers of `base` and BERT's classifiers or no head."""
    return [
        _with_head(base, "ForSequenceClassification", _CLASSES, "pooler", "num_labels"),
        _with_head(base, "ForTokenClassification", _LABELS | {"pooler": False}, "num_labels"),
        _with_head(base, "", _CLASSES | {"num_labels": 0, "pooler": True}),
    ]


EXPORT_FAMILIES = (
    _PEGASUS,
    _MARIAN,
    # Only Marian's class supports separate source and target embeddings; both then use the same padding id.
    _MARIAN._replace(wanted={"norm_order": "post", "tie_source_target": False}),
    _BART,
    _MBART,
    _M2M100,
    _T5,
    _with_head(_BERT, "ForMaskedLM", _MASKED, "pooler"),
    # The second head is next-sentence prediction.
    _with_head(_BERT, "ForPreTraining", _MASKED | {"num_labels": 2}, "pooler"),
    *_with_label_heads(_BERT),
    _with_head(_ROBERTA, "ForMaskedLM", _MASKED, "pooler"),
    *_with_label_heads(_ROBERTA),
    _with_head(_ALBERT, "ForMaskedLM", _MASKED),
    *_with_label_heads(_ALBERT),
    _with_head(_MPNET, "ForMaskedLM", _MASKED),
    *_with_label_heads(_MPNET),
    _with_head(_DISTILBERT, "ForMaskedLM", _MASKED, "pooler_activation"),
    _with_head(
        _DISTILBERT, "ForSequenceClassification", _CLASSES | {"pooler_activation": "relu"}, "pooler", "num_labels"
    ),
    _with_head(_DISTILBERT, "ForTokenClassification", _LABELS, "num_labels", "pooler_activation"),
    _with_head(_DISTILBERT, "", _CLASSES, "pooler_activation"),
    GPT2,
    OPT,
    LLAMA,
    GEMMA,
    MISTRAL,
    QWEN2,
    QWEN3,
)
