"""Convert the `config.json` and generation settings of Hugging Face model families to this package's settings."""

from collections.abc import Callable, Collection, Mapping
from types import UnionType
from typing import Any, Literal, NamedTuple, NoReturn

from transduce.errors import TransduceError
from transduce.interop.hugging_face import stored_names as names
from transduce.interop.hugging_face.stored_names import ACTIVATIONS, GATES, Settings, end_ids, start_id
from transduce.model.config import Kind
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings

# --- import settings ---


class ConfigReader:
    """A typed reader of Hugging Face's `config.json`, which refuses missing, mistyped or unsupported values."""

    def __init__(self, content: Mapping[str, Any], location: str) -> None:
        """Create a reader of a config.json.

        Args:
            content: the JSON object in a config.json.
            location: the name of the file in error messages.
        """
        self.content = content
        self.location = location

    def with_defaults(self, defaults: Mapping[str, Any]) -> "ConfigReader":
        """Return a reader of this config.json in which missing keys have the defaults of a class in transformers."""
        return ConfigReader({**defaults, **self.content}, self.location)

    def whole(self, name: str, default: int | None = None) -> int:
        """Return the integer under a key of config.json, or the default if the key is missing or null.

        Raises:
            TransduceError: the value is not an integer, or there is neither a value nor a default.
        """
        return int(self._value(name, default, int, "must be a whole number"))

    def size(self, name: str, default: int | None = None) -> int:
        """Return the positive integer under a key of config.json, or the default if the key is missing or null.

        Raises:
            TransduceError: the value is not an integer of at least 1, or there is neither a value nor a default.
        """
        value = self.whole(name, default)
        if value < 1:
            self.refuse(name, "must be at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        """Return the number under a key of config.json as a float, or the default if the key is missing or null.

        Raises:
            TransduceError: the value is not a number.
        """
        return float(self._value(name, default, int | float, "must be a number"))

    def flag(self, name: str, default: bool) -> bool:
        """Return the boolean under a key of config.json, or the default if the key is missing or null.

        Raises:
            TransduceError: the value is not a boolean.
        """
        return bool(self._value(name, default, bool, "must be true or false"))

    def optional_id(self, name: str) -> int | None:
        """Return the token id under a key of config.json, or the first id of a list; None without a value.

        Raises:
            TransduceError: the value is neither an integer nor such a list.
        """
        value = self.content.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            self.refuse(name, "must be a whole number")
        return value

    def activation(self, name: str, default: str) -> str:
        """Return this package's name of the activation function under a key of config.json.

        Args:
            name: the key.
            default: Hugging Face's name of the function if the key is missing or null.

        Raises:
            TransduceError: the function is not supported.
        """
        rule = f"must be one of {', '.join(ACTIVATIONS)}"
        value = self._value(name, default, str, rule)
        if value not in ACTIVATIONS:
            self.refuse(name, rule)
        return ACTIVATIONS[value]

    def same(self, first: str, second: str) -> int:
        """Return the common integer under two keys of config.json, for which this package has only one setting.

        Raises:
            TransduceError: a key is missing, or their values differ.
        """
        if self.whole(first) != self.whole(second):
            self.refuse(first, f"must equal `{second}`, {self.content[second]!r}")
        return self.whole(first)

    def must_be(self, wanted: Mapping[str, object]) -> None:
        """Check that keys of config.json have the required values, where a missing key is accepted.

        Args:
            wanted: the required values by key.

        Raises:
            TransduceError: a key has another value.
        """
        for name, value in wanted.items():
            if self.content.get(name, value) != value:
                self.refuse(name, f"must be {value!r}")

    def refuse(self, name: str, rule: str) -> NoReturn:
        """Raise a TransduceError for a key of config.json, whose message states the rule that the key's value breaks.

        Args:
            name: the key.
            rule: the rule, which follows the key in the sentence, such as `must be a number`.
        """
        raise TransduceError(
            f"{self.location}: `{name}` {rule} for a model that can be imported, but is {self.content.get(name)!r}."
        )

    def _value(self, name: str, default: object, kind: type | UnionType, rule: str) -> Any:
        """Return the value under a key of config.json, or the default if the key is missing or null.

        Args:
            name: the key.
            default: the default; None: the key must be present.
            kind: the type or types of the value; a boolean is no number.
            rule: the rule that a value of another type breaks, for the message.
        """
        value = self.content.get(name)
        if value is None:
            value = default
        if value is None:
            raise TransduceError(f"{self.location} must set `{name}`, but does not.")
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            self.refuse(name, rule)
        return value


def _read_keys(config: ConfigReader, keys: names.Keys) -> Settings:
    settings: Settings = {}
    for setting, (name, default) in keys.items():
        value = default(settings) if callable(default) else default
        if isinstance(value, bool):
            settings[setting] = config.flag(name, default=value)
        elif isinstance(value, float):
            settings[setting] = config.number(name, value)
        else:
            read = config.size if setting in ("d_model", "num_heads") else config.whole
            settings[setting] = read(name, value)
    return settings


# --- encoder and decoder ---


def _bart_like(config: ConfigReader) -> Settings:
    """Return a dict of the model settings that BART, mBART, Marian, Pegasus and M2M100 share, from a config.json."""
    return _read_keys(config, names.BART_KEYS) | {
        "d_ff": config.same("encoder_ffn_dim", "decoder_ffn_dim"),
        "num_heads": config.same("encoder_attention_heads", "decoder_attention_heads"),
        "activation": config.activation("activation_function", "gelu"),
    }


def bart(config: ConfigReader) -> Settings:
    """Convert a BART's config.json to a dict of model settings, with post-norm and learned positions."""
    config.must_be({"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True})
    return _bart_like(config) | _learned_positions(config) | {"norm_order": "post"}


def mbart(config: ConfigReader) -> Settings:
    """Convert an mBART's config.json to a dict of model settings: those of BART, but with pre-norm."""
    config.must_be({"normalize_before": True, "add_final_layer_norm": True, "normalize_embedding": True})
    return _bart_like(config) | _learned_positions(config) | {"norm_order": "pre"}


def _learned_positions(config: ConfigReader) -> Settings:
    return {
        "positions": "learned",
        "position_offset": 2,
        "max_positions": config.whole("max_position_embeddings", 1024),
        "embedding_norm": True,
    }


def marian(config: ConfigReader) -> Settings:
    """Convert a Marian model's config.json to a dict of model settings, with post-norm and sinusoidal positions."""
    config.must_be({"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True})
    return _bart_like(config) | {"norm_order": "post"}


def pegasus(config: ConfigReader) -> Settings:
    """Convert a Pegasus' config.json to a dict of model settings, with pre-norm and sinusoidal positions."""
    config.must_be({"normalize_before": True, "normalize_embedding": False, "static_position_embeddings": True})
    return _bart_like(config)


def m2m100(config: ConfigReader) -> Settings:
    """Convert the config.json of an M2M100 or NLLB to a dict of model settings, with pre-norm and sinusoids.

    Positions are numbered from the padding id + 1. The sinusoids' exponents are not the paper's (`sinusoids_to_end`).
    """
    defaults = {"activation_function": "relu", "attention_dropout": 0.1, "scale_embedding": True}
    settings = _bart_like(config.with_defaults(defaults))
    return settings | {"sinusoids_to_end": True, "position_offset": settings["pad_id"] + 1}


def t5(config: ConfigReader) -> Settings:
    """Convert a T5's config.json to a dict of model settings, with relative positions, and a gate if it has one."""
    settings = _read_keys(config, names.T5_KEYS)
    projection = config.content.get("feed_forward_proj", "relu")
    gated = isinstance(projection, str) and projection.startswith("gated-")
    name = str(projection).removeprefix("gated-")
    # T5's "gated-gelu" means the tanh approximation.
    name = "gelu_new" if gated and name == "gelu" else name
    # transformers also reads what follows from `feed_forward_proj` when a file states it.
    config.must_be({"is_gated_act": gated, "dense_act_fn": name})
    if name not in ACTIVATIONS:
        config.refuse("feed_forward_proj", "must be relu, gelu, silu, or one of these after `gated-`")
    activation = ACTIVATIONS[name]
    scales_output = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", default=True))
    return settings | {
        "activation": GATES[activation] if gated else activation,
        "norm": "rms",
        "bias": False,
        "positions": "relative",
        "attention_score": "dot",
        "scale_embeddings": False,
        "output_scale": settings["d_model"] ** -0.5 if scales_output else 1.0,
    }


def mt5(config: ConfigReader) -> Settings:
    """Convert an mT5's config.json to a dict of model settings: T5's, but the decoder's output is never scaled."""
    return t5(config.with_defaults({"feed_forward_proj": "gated-gelu"})) | {"output_scale": 1.0}


# --- an encoder alone ---


def bert(config: ConfigReader) -> Settings:
    """Convert a BERT's config.json to a dict of model settings of an encoder, with post-norm and learned positions."""
    config.must_be({"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"})
    return _read_keys(config, names.BERT_KEYS) | _bert_like(config.activation("hidden_act", "gelu"))


def _bert_like(activation: str) -> Settings:
    return {
        "activation": activation,
        "norm_order": "post",
        "positions": "learned",
        "embedding_norm": True,
        "scale_embeddings": False,
    }


def distilbert(config: ConfigReader) -> Settings:
    """Convert a DistilBERT's config.json to a dict of model settings: BERT's, but without token types.

    Positions are imported as a stored table, even if they are sinusoids (`sinusoidal_pos_embds`).
    """
    return (
        _read_keys(config, names.DISTILBERT_KEYS)
        | _bert_like(config.activation("activation", "gelu"))
        | {"norm_epsilon": 1e-12, "pooler_activation": "relu"}
    )


def electra(config: ConfigReader) -> Settings:
    """Convert an ELECTRA's config.json to a dict of model settings: BERT's, with embeddings of a width of their own.

    ELECTRA projects embeddings only if they are wider or narrower than the layers.
    """
    width = config.size("embedding_size", 128)
    own_width = {} if width == config.size("hidden_size") else {"embedding_size": width}
    return bert(config) | own_width | {"pooler_activation": "gelu"}


def albert(config: ConfigReader) -> Settings:
    """Convert an ALBERT's config.json to a dict of model settings: BERT's, with one set of weights for all layers.

    Embeddings are always projected. Layers in several groups with weights of their own are refused.
    """
    config.must_be({"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"})
    settings = _read_keys(config, names.ALBERT_KEYS) | _bert_like(config.activation("hidden_act", "gelu_new"))
    return settings | {"share_layers": True}


def roberta(config: ConfigReader) -> Settings:
    """Convert the config.json of RoBERTa, or of a model derived from it, to a dict of model settings.

    The settings are those of BERT, except that positions start after the padding id, and there are start and end ids.
    """
    return _numbered_by_padding(config, bert(config.with_defaults({"pad_token_id": 1})))


def mpnet(config: ConfigReader) -> Settings:
    """Convert an MPNet's config.json to a dict of model settings: RoBERTa's, with T5's bias, without token types.

    MPNet's class always has 32 buckets up to a distance of 128, and numbers positions after token 1 (transformers
    5.23). Another number of buckets or padding id is therefore refused.
    """
    config = config.with_defaults({"pad_token_id": 1})
    config.must_be({"relative_attention_num_buckets": 32, "pad_token_id": 1})
    settings = _read_keys(config, names.MPNET_KEYS) | _bert_like(config.activation("hidden_act", "gelu"))
    return _numbered_by_padding(config, settings) | {"relative_bias": True}


def _numbered_by_padding(config: ConfigReader, settings: Settings) -> Settings:
    """Return a dict of an encoder's settings, changed so that positions are numbered from the padding id + 1."""
    # The stored table also has rows for the unused positions below the offset.
    offset = settings["pad_id"] + 1
    eos_id = config.whole("eos_token_id", 2)
    return settings | {
        "position_offset": offset,
        "max_positions": settings["max_positions"] - offset,
        "eos_id": eos_id,
        "start_id": config.whole("bos_token_id", 0),
    }


# --- a decoder alone ---


def gpt2(config: ConfigReader) -> Settings:
    """Convert a GPT-2's config.json to a dict of model settings of a decoder, with pre-norm and learned positions."""
    config.must_be({"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True})
    return (
        _special_ids(config)
        | _read_keys(config, names.GPT2_KEYS)
        | {
            "activation": config.activation("activation_function", "gelu_new"),
            "positions": "learned",
            "scale_embeddings": False,
        }
    )


def llama(config: ConfigReader) -> Settings:
    """Convert a Llama's config.json to a dict of a decoder's settings, with RMS norm, rotary positions and a gate."""
    settings = _special_ids(config) | _rope(config) | _read_keys(config, names.LLAMA_KEYS)
    return settings | {
        "d_v": settings["d_k"],
        "dropout": 0.0,
        "activation": GATES[config.activation("hidden_act", "silu")],
        "norm": "rms",
        "bias": False,
        "attention_output_bias": settings["projection_bias"],
        "scale_embeddings": False,
    }


def mistral(config: ConfigReader) -> Settings:
    """Convert a Mistral's config.json to a dict of model settings: Llama's, with its window of attention.

    With `layer_types` it is a Ministral, whose window may apply to some layers only.
    """
    config = config.with_defaults({"sliding_window": 4096, "max_position_embeddings": 131072, "num_key_value_heads": 8})
    return llama(config) | _window(config)


def qwen2(config: ConfigReader) -> Settings:
    """Convert a Qwen2's config.json to a dict of model settings: Llama's, with biases of queries, keys and values."""
    config = config.with_defaults({"sliding_window": 4096, "max_position_embeddings": 32768, "max_window_layers": 28})
    settings = llama(config) | {"projection_bias": True}
    has_window = config.flag("use_sliding_window", default=False)
    return settings | (_window(config, first=config.whole("max_window_layers")) if has_window else {})


def qwen3(config: ConfigReader) -> Settings:
    """Convert a Qwen3's config.json to a dict of model settings: Llama's, but with norms of queries and keys."""
    config = config.with_defaults({"head_dim": 128, "num_key_value_heads": 32})
    bias = config.flag("attention_bias", default=False)
    return qwen2(config) | {"projection_bias": bias, "attention": "query-key-norm"}


def phi3(config: ConfigReader) -> Settings:
    """Convert a Phi-3's config.json to a dict of model settings: Llama's, with a window of attention if it has one.

    Positions that rotate only a part of a head, and longer ones by the scheme LongRoPE, are refused.
    """
    config.must_be({"partial_rotary_factor": 1.0, "layer_types": None})
    config = config.with_defaults({"rms_norm_eps": 1e-5, "max_position_embeddings": 4096})
    return llama(config) | {"dropout": config.number("resid_pdrop", 0.0)} | _window(config)


def gemma(config: ConfigReader) -> Settings:
    """Convert a Gemma's config.json to a dict of model settings: Llama's, with scaled embeddings and tanh-GeGLU.

    The "gelu" of old files means the tanh approximation.
    """
    if config.flag("use_bidirectional_attention", default=False):
        config.refuse("use_bidirectional_attention", "must be false")
    defaults = {"hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "num_key_value_heads": 16}
    settings = llama(config.with_defaults(defaults)) | {"scale_embeddings": True}
    return settings | ({"activation": "geglu-tanh"} if config.content.get("hidden_act") in (None, "gelu") else {})


def opt(config: ConfigReader) -> Settings:
    """Convert an OPT's config.json to a dict of model settings of a decoder, with pre-norm and learned positions."""
    config.must_be(
        {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True}
    )
    config = config.with_defaults({"word_embed_proj_dim": config.content.get("hidden_size")})
    config.same("word_embed_proj_dim", "hidden_size")
    return (
        _special_ids(config)
        | _read_keys(config, names.OPT_KEYS)
        | {
            "activation": config.activation("activation_function", "relu"),
            "positions": "learned",
            "position_offset": 2,
            "scale_embeddings": False,
        }
    )


def _window(config: ConfigReader, *, first: int = 0) -> Settings:
    """Return a dict with the setting of attention's window from a config.json.

    A window of n tokens has the query's own token and n - 1 earlier ones. The dict is empty if there is no window, or
    if no text is longer than the window. A window of some layers only is refused. Without `layer_types`, the window is
    that of the layers from number `first` on.
    """
    if config.content.get("sliding_window") is None:
        return {}
    size, layers = config.size("sliding_window"), config.whole("num_hidden_layers")
    if size >= config.whole("max_position_embeddings"):
        return {}
    types = config.content.get("layer_types")
    if types is None:
        types = ["full_attention" if number < first else "sliding_attention" for number in range(layers)]
    if types == ["full_attention"] * layers:
        return {}
    if types != ["sliding_attention"] * layers:
        config.refuse("sliding_window", "must apply to all layers or to none")
    return {"attention_window": size - 1}


def _rope(config: ConfigReader) -> Settings:
    """Return a dict of the model settings of rotary positions from a config.json: their base and Llama 3's scaling.

    The settings are read from `rope_parameters`, or in older files from `rope_theta` and `rope_scaling`. Other kinds of
    scaling are refused.
    """
    content = config.content.get("rope_parameters") or config.content.get("rope_scaling") or {}
    if not isinstance(content, dict):
        config.refuse("rope_scaling", "must be an object")
    rope = ConfigReader({"rope_theta": config.content.get("rope_theta")} | content, config.location)
    kind = rope.content.get("rope_type", rope.content.get("type", "default"))
    settings: Settings = {"positions": "rotary", "rotary_base": rope.number("rope_theta", 10000.0)}
    if kind not in ("default", "llama3") or rope.number("partial_rotary_factor", 1.0) != 1.0:
        name = "rope_parameters" if "rope_parameters" in config.content else "rope_scaling"
        config.refuse(name, "must be of the type default or llama3, and rotate whole heads,")
    if kind == "llama3":
        settings["rotary_scaling"] = {
            "factor": rope.number("factor", 8.0),
            "low_frequency_factor": rope.number("low_freq_factor", 1.0),
            "high_frequency_factor": rope.number("high_freq_factor", 4.0),
            "original_length": rope.whole("original_max_position_embeddings"),
        }
    return settings


def _special_ids(config: ConfigReader) -> Settings:
    """Return a dict of a decoder-only model's padding, start and end ids from its config.json.

    If one of the start and end ids is missing, the other one serves as both. The end id also serves as a missing
    padding. The dict is empty without both ids; the tokenizer may then have them.
    """
    pad_id, start_id, eos_id = map(config.optional_id, ("pad_token_id", "bos_token_id", "eos_token_id"))
    if eos_id is None:
        eos_id = start_id
    if eos_id is None:
        return {}
    return {
        "eos_id": eos_id,
        "pad_id": eos_id if pad_id is None or pad_id < 0 else pad_id,
        "start_id": eos_id if start_id is None else start_id,
    }


# --- the families that can be imported, by model_type ---


class ImportFamily(NamedTuple):
    """The properties of a Hugging Face model family that its import needs and that the files of its folders lack."""

    kind: Kind
    settings: Callable[[ConfigReader], Settings]
    """A function that converts the family's `config.json` (a `ConfigReader`) to a dict of this package's model
    settings.
    """
    names: names.StoredNames
    """The table of the names that the family's weights have in files."""
    begins_with_end: bool = False
    """True if the decoder of an encoder–decoder starts with the end symbol by default; if false, with padding."""
    stores_output: bool = False
    """True if the output projection is stored separately unless `tie_word_embeddings` is true."""
    begins_text: bool = False
    """True if the tokenizer puts a start symbol before a text by default."""
    end_is_separator: bool = False
    """True if a text ends with the tokenizer's separator, regardless of the configuration's end symbol."""
    spaced: bool = False
    """True if the family's tokenizers treat spaces differently from the sentencepiece library with the same model."""
    tagged: bool = False
    """True if source and target languages are selected by tags (tokens)."""
    gelu_head: bool = False
    """True if the head of a masked language model has the activation gelu, whatever the layers have."""
    numbers_by_padding: bool = False
    """True if positions are numbered from the padding id + 1, without tokens that have this id."""
    fairseq: bool = False
    """True if the sentencepiece model's token ids are shifted by 1, after the special tokens of fairseq."""


_ROBERTA = ImportFamily("encoder", roberta, names.ROBERTA, begins_text=True, gelu_head=True, numbers_by_padding=True)
_M2M100 = ImportFamily(
    "transformer", m2m100, names.SINUSOIDAL, begins_with_end=True, tagged=True, fairseq=True, numbers_by_padding=True
)
IMPORT_FAMILIES: Mapping[str, ImportFamily] = {
    "bart": ImportFamily("transformer", bart, names.BART, begins_with_end=True, begins_text=True),
    "mbart": ImportFamily("transformer", mbart, names.BART, begins_with_end=True, tagged=True, fairseq=True),
    "marian": ImportFamily("transformer", marian, names.SINUSOIDAL),
    "pegasus": ImportFamily("transformer", pegasus, names.SINUSOIDAL),
    "m2m_100": _M2M100,
    "t5": ImportFamily("transformer", t5, names.T5),
    "mt5": ImportFamily("transformer", mt5, names.T5),
    "bert": ImportFamily("encoder", bert, names.BERT, end_is_separator=True),
    "distilbert": ImportFamily("encoder", distilbert, names.DISTILBERT, end_is_separator=True),
    "electra": ImportFamily("encoder", electra, names.ELECTRA, end_is_separator=True, gelu_head=True),
    "albert": ImportFamily("encoder", albert, names.ALBERT, end_is_separator=True),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA._replace(fairseq=True),
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA._replace(settings=mpnet, names=names.MPNET),
    "gpt2": ImportFamily("decoder", gpt2, names.GPT2),
    "llama": ImportFamily("decoder", llama, names.LLAMA, stores_output=True, begins_text=True, spaced=True),
    "mistral": ImportFamily("decoder", mistral, names.LLAMA, stores_output=True, begins_text=True, spaced=True),
    "qwen2": ImportFamily("decoder", qwen2, names.LLAMA, stores_output=True),
    "qwen3": ImportFamily("decoder", qwen3, names.LLAMA, stores_output=True),
    "phi3": ImportFamily("decoder", phi3, names.PHI3, stores_output=True, begins_text=True, spaced=True),
    "gemma": ImportFamily("decoder", gemma, names.GEMMA, begins_text=True, spaced=True),
    "opt": ImportFamily("decoder", opt, names.OPT),
}
# Purposes of classes whose head has no counterpart in this package, by the suffix of the class name.
_UNSUPPORTED_HEADS = {
    "ForQuestionAnswering": "finds answers in a text",
    "ForMultipleChoice": "chooses among several texts",
}
# Purposes of classes whose head has a counterpart for an encoder alone.
_CLASSIFIERS = {
    "ForSequenceClassification": "classifies a text by a decoder",
    "ForTokenClassification": "classifies each token by a decoder",
}


def check_config(content: Mapping[str, Any], location: str) -> ImportFamily:
    """Check that the model of a `config.json` can be imported, and return its `ImportFamily`.

    Args:
        content: the content of config.json.
        location: the name of the file, for messages.

    Raises:
        TransduceError: the configuration requires custom code, or its family or class cannot be imported.
    """
    if "auto_map" in content:
        raise TransduceError(
            f"{location} asks for code of its own to be run (`auto_map`), which is never done: remove it."
        )
    model_type = content.get("model_type")
    family = IMPORT_FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise TransduceError(
            f"{location}: `model_type` must be one of {', '.join(IMPORT_FAMILIES)} to be imported, but is "
            f"{model_type!r}."
        )
    architectures = content.get("architectures")
    for name in filter(lambda each: isinstance(each, str), architectures if isinstance(architectures, list) else ()):
        heads = _UNSUPPORTED_HEADS | ({} if family.kind == "encoder" else _CLASSIFIERS)
        if (purpose := next((does for suffix, does in heads.items() if name.endswith(suffix)), None)) is not None:
            raise TransduceError(f"{location}: {name} {purpose}, and a model with this head cannot be imported.")
    return family


def names_of(model_type: str, present: Collection[str]) -> names.StoredNames:
    """Return the table (`StoredNames`) that maps this package's parameter names to those of a Hugging Face family.

    Args:
        model_type: the family's name in config.json.
        present: names of the stored tensors, which select among variants, such as T5 with gated layers.
    """
    return names.variant(IMPORT_FAMILIES[model_type].names, present)


# --- import generation ---
# Conversion of Hugging Face's `generation_config.json` to this package's search settings.


# Settings that change the generated text and have no counterpart in this package, with the values that disable them.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "num_beam_groups": (None, 1),
    "forced_decoder_ids": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, {}, []),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1, 1.0),
    "force_words_ids": (None, []),
    "constraints": (None, []),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "token_healing": (None, False),
    "watermarking_config": (None,),
    "stop_strings": (None, []),
    "max_time": (None,),
}
_STOPS: dict[object, Literal["full", "likely", "never"]] = {True: "full", False: "likely", "never": "never"}


def import_generation(
    generation: Mapping[str, Any], config: Mapping[str, Any], location: str, *, max_positions: int | None
) -> SearchSettings:
    """Convert a Hugging Face folder's generation settings to `SearchSettings` that generate the same.

    Unspecified settings have the defaults of `generate`, except that its limit of 20 tokens does not apply.

    Args:
        generation: the content of `generation_config.json`; empty if there is none.
        config: the content of `config.json`, whose generation settings count if there is no `generation_config.json`.
        location: the name of the folder, for messages.
        max_positions: the maximum number of tokens that the model has positions for; None: unlimited.

    Raises:
        TransduceError: a setting has no counterpart in this package.
    """
    _check_end(generation, config, location)
    location = f"{location}/{'generation_config.json' if generation else 'config.json'}"
    values = {name: value for name, value in (generation or config).items() if value is not None}
    for name, neutral_values in _UNSUPPORTED.items():
        if values.get(name) not in neutral_values:
            raise TransduceError(f"{location}: the generation setting `{name}` = {values[name]!r} cannot be imported.")
    reader = ConfigReader(values, location)
    max_length, min_length = _max_length(reader, max_positions), _min_length(reader)
    if max_length is not None and min_length >= max_length:
        limits = ("min_new_tokens", "min_length", "max_new_tokens", "max_length")
        stated = [f"`{name}` = {values[name]}" for name in limits if name in values]
        shown = ", ".join([*stated, *([f"{max_positions} positions"] if max_length == max_positions else [])])
        raise TransduceError(
            f"{location}: the minimum length of a text must be less than the maximum, but the file has {shown}: change "
            "one of them."
        )
    no_repeated_ngrams = reader.whole("no_repeat_ngram_size", 0)
    try:
        forbidden_ids = _forbidden_ids(values, end_ids(generation) or end_ids(config), location)
        if no_repeated_ngrams == 1:  # to `generate`, the start symbol is a token of the text, which must not repeat
            forbidden_ids |= _start_ids(generation, config)
        return SearchSettings(
            beam_size=reader.whole("num_beams", 1),
            length_penalty=reader.number("length_penalty", 1.0),
            max_length=max_length,
            min_length=min_length,
            no_repeated_ngrams=no_repeated_ngrams,
            repetition_penalty=reader.number("repetition_penalty", 1.0),
            generate=GenerateSettings(
                forced_first_id=_forced_first_id(reader),
                forced_last_id=reader.optional_id("forced_eos_token_id"),
                forbidden_ids=tuple(sorted(forbidden_ids)),
                stop=_STOPS[values.get("early_stopping", False)],
                renormalize=reader.flag("renormalize_logits", default=False),
            ),
        )
    except TransduceError as error:
        if str(error).startswith(location):
            raise
        raise TransduceError(f"{location}: the generation settings cannot be imported: {error}") from error
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise TransduceError(f"{location}: the generation settings cannot be read: {error}.") from error


def export_generation(search: SearchSettings, generate: GenerateSettings) -> dict[str, Any]:
    """Convert search settings to a dict of settings of `generation_config.json`.

    `generate` has the settings of Hugging Face's `generate` that `SearchSettings` lacks. This reverses
    `import_generation`, except for forbidden tokens. Settings with their default value are left out, except for the
    number of beams.
    """
    values = {
        "length_penalty": (search.length_penalty, 1.0),
        "max_length": (None if search.max_length is None else search.max_length + 1, None),
        "min_new_tokens": (search.min_length, 0),
        "no_repeat_ngram_size": (search.no_repeated_ngrams, 0),
        "repetition_penalty": (search.repetition_penalty, 1.0),
        "forced_bos_token_id": (generate.forced_first_id, None),
        "forced_eos_token_id": (generate.forced_last_id, None),
        "early_stopping": ({name: value for value, name in _STOPS.items()}[generate.stop], False),
        "renormalize_logits": (generate.renormalize, False),
    }
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {"num_beams": search.beam_size} | changed


def _check_end(generation: Mapping[str, Any], config: Mapping[str, Any], location: str) -> None:
    """Check that `generate` ends texts only at the model's one end symbol, by a Hugging Face folder's two JSON files.

    Raises:
        TransduceError: the files name several end symbols, or different ones.
    """
    ends, end = generation.get("eos_token_id"), config.get("eos_token_id")
    if isinstance(end, list) and len(set(end)) > 1:
        raise TransduceError(
            f"{location}: `eos_token_id` of an encoder–decoder must be one token, but config.json has {end!r}: leave "
            "only the one that ends the training texts."
        )
    end = end[0] if isinstance(end, list) and end else end
    if ends is not None and end is not None and ends not in (end, [end]):
        raise TransduceError(
            f"{location}: `eos_token_id` must be the same in generation_config.json and config.json for an "
            f"encoder–decoder, but is {ends!r} and {end!r}: make both {end!r} if texts end there."
        )


def _forced_first_id(values: ConfigReader) -> int | None:
    """Return the token id with which every generated text must begin by Hugging Face's settings; None without one.

    Old BART files set `force_bos_token_to_be_generated` instead of the id, which means the start symbol.
    """
    first = values.optional_id("forced_bos_token_id")
    if first is None and values.flag("force_bos_token_to_be_generated", default=False):
        return values.whole("bos_token_id", 0)
    return first


def _max_length(values: ConfigReader, max_positions: int | None) -> int | None:
    """Return the maximum number of new tokens, with the end symbol, by Hugging Face's generation settings.

    `max_new_tokens` takes precedence over `max_length`, which also counts the start symbol. The model's number of
    positions limits both; None if nothing does.
    """
    limits = [] if max_positions is None else [max_positions]
    if values.content.get("max_new_tokens") is not None:
        limits.append(values.whole("max_new_tokens"))
    elif values.content.get("max_length") is not None:
        limits.append(values.whole("max_length") - 1)
    return min(limits, default=None)


def _min_length(values: ConfigReader) -> int:
    """Return the minimum number of new tokens, without the end symbol, by Hugging Face's generation settings.

    The result is 0 if the settings state no minimum.
    """
    return max(0, values.whole("min_new_tokens", values.whole("min_length", 0) - 1))


def _forbidden_ids(values: Mapping[str, Any], ends: Collection[int], location: str) -> set[int]:
    """Return a set of the token ids that Hugging Face's generation settings forbid.

    An end symbol (one of `ends`) in `bad_words_ids` is ignored, as by `generate`. In `suppress_tokens`, it is
    forbidden.

    Raises:
        TransduceError: a sequence of several tokens is forbidden.
    """
    words = values.get("bad_words_ids") or []
    longer = next((word for word in words if len(word) > 1), None)
    if longer is not None:
        raise TransduceError(
            f"{location}: `bad_words_ids` may contain only single tokens, but contains {longer}: remove this entry."
        )
    return {*(word[0] for word in words if word[0] not in ends), *(values.get("suppress_tokens") or ())}


def _start_ids(generation: Mapping[str, Any], config: Mapping[str, Any]) -> set[int]:
    """Return a set with the one token id with which a folder's decoder starts.

    If the files do not state the id, the family's default is used: its end symbol or its padding. The set is empty if
    the files lack that id, too.
    """
    family = IMPORT_FAMILIES.get(str(config.get("model_type")))
    default = config.get("eos_token_id" if family is None or family.begins_with_end else "pad_token_id")
    start = start_id(generation, config)
    return {id for id in (default if start is None else start,) if isinstance(id, int)}
