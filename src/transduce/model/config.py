"""The configuration of a model: its sizes and components, named as in Table 3 of "Attention Is All You Need"."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from transduce.errors import TransduceError, explain_wrong_types

# --- validation ---


_SIZES = ("d_model", "d_ff", "num_heads")
_VOCABULARY_SIZES = ("source_vocabulary_size", "target_vocabulary_size")
_OPTIONAL_SIZES = ("embedding_size", "d_k", "d_v", "num_key_value_heads", "attention_window")
_POSITION_SIZES = ("max_positions", "relative_buckets", "relative_max_distance")
_PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout")
_POSITIVE = ("norm_epsilon", "rotary_base", "attention_scale", "output_scale")
_COUNTS = ("token_types", "num_labels", "position_offset")
_LAYERS = ("num_encoder_layers", "num_decoder_layers")
_LAYERS_OF = {"encoder": _LAYERS[:1], "decoder": _LAYERS[1:]}  # other kinds have both stacks
_SERIES_ONLY = ("num_series", "predicts_deviations")
# Settings of models that read tokens.
_NOT_SERIES = (
    "tie_source_target",
    "tie_output",
    "scale_embeddings",
    "zero_padding_row",
    "output_bias",
    "output_scale",
    "source_vocabulary_size",
    "target_vocabulary_size",
)
_ENCODER_ONLY = (
    *("masked_language_head", "pooler", "pooler_activation", "num_labels", "token_labels", "token_types"),
    "embedding_size",
)
_RECURRENT_ONLY = (
    "recurrent_cell",
    "bidirectional",
    "recurrent_attention",
    "input_feeding",
    "recurrent_self_attention",
    "recurrent_context",
    "recurrent_context_to",
)
_NOT_RECURRENT = (
    *("d_k", "d_v", "num_key_value_heads", "activation", "activation_dropout", "bias", "projection_bias"),
    *("attention_output_bias", "feed_forward_bias", "share_layers", "norm", "final_norm", "max_positions"),
    *("position_offset", "sinusoids_to_end", "relative_bias", "attention_window", "attention"),
)
UNUSED_BY_RECURRENT = ("d_ff", "num_heads", "norm_order")
"""Settings that a recurrent model ignores; they are not refused in its configuration, because every preset sets them.
"""
_TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", type(None): "None"}
ONLY_WITH = {
    "max_positions": ("learned",),
    "position_offset": ("sinusoidal", "learned"),
    "sinusoids_to_end": ("sinusoidal",),
    "rotary_base": ("rotary", "rotary-interleaved"),
    "rotary_scaling": ("rotary", "rotary-interleaved"),
    "relative_bias": ("sinusoidal", "learned"),
    "relative_buckets": ("relative",),
    "relative_max_distance": ("relative",),
}


def check_config(config: "ModelConfig") -> None:
    """Check that a model can be built from a configuration.

    Raises:
        TransduceError: a component's name is unknown, a number is outside its range, or settings contradict each other.
    """
    _check_types(config)
    _check_sizes(config)
    _check_ranges(config)
    _check_vocabularies(config)
    _check_kind(config)
    _check_attention(config)
    _check_positions(config)


# Names of components that users registered by `transduce.register`, by setting.
REGISTERED_NAMES: dict[str, set[str]] = {"activation": set(), "norm": set(), "attention": set()}
REGISTERED_NAMES |= {"attention_score": set(), "positions": set()}


def split_registered_names(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a model's settings into two dicts: those with built-in values, and those that name registered components.

    The second dict maps a setting, such as `norm`, to the name of the component that a user registered.
    """
    registered = {name: content[name] for name, known in REGISTERED_NAMES.items() if content.get(name) in tuple(known)}
    return {name: value for name, value in content.items() if name not in registered}, registered


def convert_config(content: Mapping[str, Any]) -> "ModelConfig":
    """Return the `ModelConfig` with the settings in `content`, a mapping from names to plain values as in a JSON file.

    Raises:
        msgspec.ValidationError: a value has the wrong type, or names no component.
        TransduceError: the values contradict each other.
    """
    plain, registered = split_registered_names(content)
    return msgspec.structs.replace(msgspec.convert(plain, ModelConfig), **registered)


def explained(error: msgspec.ValidationError) -> str:
    """Return the error message of an invalid configuration, without its final period.

    An unknown component gets another message, which says how to register the component.
    """
    found = re.fullmatch(r"Invalid enum value (.+) - at `\$\.(?:model\.)?(\w+)`", str(error))
    if found is None or found[2] not in REGISTERED_NAMES:
        return str(error).rstrip(".")
    return (
        f"`model.{found[2]}` is {found[1]}, which is no built-in component; pass the file that registers it "
        "(--plugin FILE.py)"
    )


@cache
def _type_hints() -> dict[str, Any]:
    return get_type_hints(ModelConfig)


def _check_types(config: "ModelConfig") -> None:
    """Refuse a value that its setting does not permit.

    Where a setting has a list of names, its value must be one of these or the name of a registered component. The value
    of another setting must have the setting's type, so that True is no number. An int is permitted for a float.

    Raises:
        TransduceError: a value is not permitted.
    """
    for name, hint in _type_hints().items():
        value, permitted = getattr(config, name), get_args(hint) or (hint,)
        if get_origin(hint) is Literal:
            if value not in permitted and value not in REGISTERED_NAMES.get(name, ()):
                raise TransduceError(f"`model.{name}` must be one of {', '.join(permitted)}, but is {value!r}.")
            continue
        # An int is a valid float. A bool is no number here, although Python makes it a subclass of int.
        actual = bool if isinstance(value, bool) else int if isinstance(value, int) else type(value)
        if actual not in permitted and not (actual is int and float in permitted):
            allowed = " or ".join(_TYPE_NAMES.get(each, f"a {each.__name__}") for each in permitted)
            raise TransduceError(f"`model.{name}` must be {allowed}, but is {value!r}.")


def _check_sizes(config: "ModelConfig") -> None:
    inputs = ("num_series",) if config.kind == "series" else _VOCABULARY_SIZES
    for name in (*inputs, *_SIZES, *_LAYERS_OF.get(config.kind, _LAYERS), *_POSITION_SIZES, *_OPTIONAL_SIZES):
        size = getattr(config, name)
        if size is not None and size < 1:
            raise TransduceError(f"`model.{name}` must be at least 1, but is {size!r}.")
    for name in _COUNTS:
        if (count := getattr(config, name)) < 0:
            raise TransduceError(f"`model.{name}` must be at least 0, but is {count!r}.")
    if config.embedding_width % 2 and (config.positions == "sinusoidal" or config.kind == "recurrent"):
        reason = "half for each direction" if config.kind == "recurrent" else "a sine and a cosine a pair"
        name = "d_model" if config.embedding_size is None else "embedding_size"
        raise TransduceError(f"`model.{name}` must be even ({reason}), but is {config.embedding_width}.")
    if config.kind != "recurrent" and None in (config.d_k, config.d_v) and config.d_model % config.num_heads:
        raise TransduceError(
            f"`model.d_model` must be a multiple of `model.num_heads`, but {config.d_model} is not one of "
            f"{config.num_heads}: change one of them, or set `model.d_k` and `model.d_v`."
        )


def _check_ranges(config: "ModelConfig") -> None:
    for name in _PROBABILITIES:
        if not 0.0 <= (share := getattr(config, name)) < 1.0:
            raise TransduceError(f"`model.{name}` must be in [0, 1), but is {share!r}.")
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and not 0.0 < value < float("inf"):
            raise TransduceError(f"`model.{name}` must be a positive number, but is {value!r}.")


def _check_vocabularies(config: "ModelConfig") -> None:
    if config.kind == "series":
        return
    sizes = (config.source_vocabulary_size, config.target_vocabulary_size)
    if config.tie_source_target and sizes[0] != sizes[1]:
        raise TransduceError(
            "`model.tie_source_target` shares one embedding matrix, so both vocabularies must have the same size, but "
            f"they have {sizes[0]} and {sizes[1]} tokens: use a joint vocabulary or untie the embeddings."
        )
    if config.kind in ("encoder", "decoder") and not config.tie_source_target:
        raise TransduceError(
            f"A model with `model.kind` = {config.kind} has one vocabulary: `model.tie_source_target` must be true."
        )
    for name in ("pad_id", "eos_id", "start_id"):
        if not 0 <= getattr(config, name) < config.target_vocabulary_size:
            raise TransduceError(
                f"`model.{name}` must be a token id of the target vocabulary, 0 to "
                f"{config.target_vocabulary_size - 1}, but is {getattr(config, name)}."
            )
    if config.pad_id >= config.source_vocabulary_size:
        raise TransduceError(
            f"`model.pad_id` must be a token id of the source vocabulary too, 0 to {sizes[0] - 1}, but is "
            f"{config.pad_id}."
        )


def _check_kind(config: "ModelConfig") -> None:
    changed = config.changed()
    unused = (
        *(_NOT_RECURRENT if config.kind == "recurrent" else _RECURRENT_ONLY),
        *(() if config.kind == "encoder" else _ENCODER_ONLY),
        *(_NOT_SERIES if config.kind == "series" else _SERIES_ONLY),
    )
    if config.kind == "series":
        sizes = {name: getattr(config, name) for name in _VOCABULARY_SIZES}
        changed |= {name: size for name, size in sizes.items() if size}
    for name in unused:
        if name in changed:
            raise TransduceError(
                f"`model.{name}` = {changed[name]} means nothing where `model.kind` is {config.kind}: leave it out."
            )
    if config.token_labels and not config.num_labels:
        raise TransduceError("`model.token_labels` needs labels to predict: set `model.num_labels`.")
    if config.kind == "recurrent" and config.positions not in ("sinusoidal", "none"):
        raise TransduceError(
            "A recurrent model reads in order and has no positions, but `model.positions` is "
            f"{config.positions}: leave it out."
        )
    if config.input_feeding and config.recurrent_attention != "luong":
        raise TransduceError(
            "`model.input_feeding` passes the attentional vector of Luong's attention to the next step, but "
            f"`model.recurrent_attention` is {config.recurrent_attention}: set it to luong."
        )


def _check_attention(config: "ModelConfig") -> None:
    shared = config.num_key_value_heads
    if shared is not None and config.num_heads % shared:
        raise TransduceError(
            "`model.num_heads` must be a multiple of `model.num_key_value_heads`, but "
            f"{config.num_heads} is not one of {shared}."
        )
    if config.attention_scale is not None and config.attention_score != "scaled":
        raise TransduceError(
            "`model.attention_scale` is the factor of the scaled dot product, but `model.attention_score` is "
            f"{config.attention_score}: leave one of them out."
        )


def _check_positions(config: "ModelConfig") -> None:
    changed = config.changed()
    present = {config.positions, *(("relative",) if config.relative_bias else ())}
    for name, kinds in ONLY_WITH.items():
        if name in changed and not present.intersection(kinds):
            raise TransduceError(
                f"`model.{name}` = {changed[name]} means nothing where `model.positions` is {config.positions}: "
                "leave it out."
            )
    if config.has_relative_bias and (
        config.relative_buckets < 4 or config.relative_max_distance <= config.relative_buckets
    ):
        raise TransduceError(
            "`model.relative_buckets` must be at least 4 and below `model.relative_max_distance`, but they are "
            f"{config.relative_buckets} and {config.relative_max_distance}."
        )
    if not config.positions.startswith("rotary"):
        return
    if config.key_width % 2:
        raise TransduceError(
            f"Rotary positions rotate pairs of dimensions, so `model.d_k` must be even, but it is {config.key_width}."
        )
    if config.attention_score not in ("scaled", "dot"):
        raise TransduceError(
            "Rotary positions act through the dot product, but `model.attention_score` is "
            f"{config.attention_score}: use scaled or dot, or other positions."
        )


# --- configuration ---


Kind = Literal["transformer", "encoder", "decoder", "recurrent", "series"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu"]
Norm = Literal["layer", "rms", "batch", "annotated"]
NormOrder = Literal["pre", "post", "sandwich"]
Positions = Literal["sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "none"]
AttentionScore = Literal["scaled", "dot", "general", "additive"]
AttentionKind = Literal["soft", "hard"]
AttentionName = Literal["multi-head", "query-key-norm"]


class RotaryScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The scaling of rotary embeddings by which Llama 3 reads longer sequences than in its pre-training.

    Wavelengths above original_length / low_frequency_factor become `factor` times as long. Wavelengths below
    original_length / high_frequency_factor stay, and between the two limits the change is gradual.
    """

    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int

    def __post_init__(self) -> None:
        if self.factor < 1.0 or self.original_length < 1 or not self.low_frequency_factor > 0:
            raise TransduceError(
                "`model.rotary_scaling` must have a factor of at least 1, a positive original_length and a positive "
                f"low_frequency_factor, but has {self.factor}, {self.original_length} and {self.low_frequency_factor}."
            )
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise TransduceError(
                "`model.rotary_scaling` must have a high_frequency_factor above its low_frequency_factor, but they "
                f"are {self.high_frequency_factor} and {self.low_frequency_factor}."
            )


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings from which a model is built, stored with its weights; training has settings of its own."""

    kind: Kind = "transformer"
    """Architecture: encoder and decoder (`transformer`), an encoder alone (BERT), a decoder alone (GPT), an LSTM or GRU
    (`recurrent`), or encoder and decoder over numbers (`series`)."""

    source_vocabulary_size: int
    """Tokens of the source vocabulary; 0 for a model of numbers. An encoder-only or decoder-only model has one
    vocabulary, and both sizes are the same.
    """

    target_vocabulary_size: int
    """Number of tokens in the target vocabulary; 0 for a model of numbers."""

    # --- sizes (Table 3) ---

    num_encoder_layers: int = 6
    """Encoder layers: N of Table 3. A decoder-only model does not use it."""

    num_decoder_layers: int = 6
    """Decoder layers: N of Table 3. An encoder-only model does not use it."""

    d_model: int = 512
    """Width of the embeddings and of every layer's output: a multiple of `num_heads` unless `d_k` and `d_v` are set,
    and even for sinusoids and recurrent models."""

    embedding_size: int | None = None
    """Width of an encoder's token embeddings, to which positions are added, and of its output projection; a linear
    layer maps the embeddings to `d_model` (ALBERT, Lan et al. 2020). None: `d_model`, without this layer."""

    d_ff: int = 2048
    """Width inside the feed-forward layer."""

    num_heads: int = 8
    """Heads of each attention: h of Table 3."""

    num_key_value_heads: int | None = None
    """Key/value heads, each shared by a group of query heads (Ainslie et al. 2023); None: `num_heads`."""

    d_k: int | None = None
    """Width of one head's queries and keys; None: d_model / num_heads."""

    d_v: int | None = None
    """Width of one head's values; None: d_model / num_heads."""

    share_layers: bool = False
    """Use one set of weights for all layers of a stack (ALBERT, Lan et al. 2020)."""

    # --- dropout ---

    dropout: float = 0.1
    """Dropout on every sub-layer's output and on the sums of embeddings and positions (section 5.4)."""

    attention_dropout: float = 0.0
    """Dropout on attention weights; not in the paper."""

    activation_dropout: float = 0.0
    """Dropout inside the feed-forward layer; not in the paper."""

    # --- layers ---

    activation: Activation = "relu"
    """Activation of the feed-forward layer: relu (the paper's), gelu and its tanh form, silu; or a gate by silu
    (swiglu), gelu (geglu, geglu-tanh) or relu (reglu) as in Shazeer 2020."""

    norm: Norm = "layer"
    """LayerNorm, RMSNorm (Zhang and Sennrich 2019), BatchNorm with running statistics, or the norm of "The Annotated
    Transformer", which divides by the sample standard deviation plus epsilon (`annotated`)."""

    norm_order: NormOrder = "pre"
    """`pre`: x + f(norm(x)); `post`, the paper's: norm(x + f(x)); `sandwich`: x + norm(f(norm(x)))."""

    norm_epsilon: float = 1e-5
    """The number that a norm adds to the variance, or to the standard deviation for `annotated`."""

    final_norm: bool | None = None
    """A norm after the last layer of each stack; None: unless `norm_order` is `post`."""

    bias: bool = True
    """Biases in projections and feed-forward layers, unless `projection_bias`, `attention_output_bias` or
    `feed_forward_bias` is set.
    """

    projection_bias: bool | None = None
    """Biases of the projections to queries, keys and values; None: `bias`."""

    attention_output_bias: bool | None = None
    """Biases of the projections that join the heads; None: `bias`."""

    feed_forward_bias: bool | None = None
    """Biases of the feed-forward layers; None: `bias`."""

    # --- positions ---

    positions: Positions = "sinusoidal"
    """Position encoding: sinusoids (section 3.5), a learned table, a rotation of queries and keys in halves or in
    neighboring pairs (Su et al. 2021), T5's bias by distance (Raffel et al. 2020), or none."""

    max_positions: int = 1024
    """Positions of the table of learned positions: the length of the longest sequence."""

    position_offset: int = 0
    """Row of the table of learned or sinusoidal positions for the first position; BART and M2M100 start with row 2."""

    sinusoids_to_end: bool = False
    """Use the exponent 2i / (d_model - 2) for sinusoids, as in M2M100, instead of the paper's."""

    rotary_base: float = 10000.0
    """Base of the rotary wavelengths 2π · base^(2i / d_k); the longest wavelength is below 2π times the base."""

    rotary_scaling: RotaryScaling | None = None
    """Longer rotary wavelengths for longer sequences, as in Llama 3; None: no scaling."""

    relative_bias: bool = False
    """Add T5's bias by distance to attention scores, besides sinusoidal or learned `positions`, as in MPNet."""

    relative_buckets: int = 32
    """Number of buckets of distances for the relative bias."""

    relative_max_distance: int = 128
    """Distances of at least this many positions share the last bucket of the relative bias."""

    # --- attention ---

    attention: AttentionName = "multi-head"
    """`multi-head`: section 3.2.2; `query-key-norm`: with an RMSNorm of each head's queries and keys, as in Qwen3; or
    the name of an attention of your own (`transduce.register`).
    """

    attention_score: AttentionScore = "scaled"
    """`scaled`: the dot product over √d_k (section 3.2.1); `dot`: unscaled; `general`: Q W Kᵀ (Luong et al. 2015);
    `additive`: v · tanh(Q + K) (Bahdanau et al. 2015)."""

    attention_kind: AttentionKind = "soft"
    """`soft`: an average of the values; `hard`: the value with the best score, with the soft gradient (straight-
    through)."""

    attention_scale: float | None = None
    """Factor of the scaled dot product; None: 1 / √d_k."""

    attention_window: int | None = None
    """Positions to each side that self-attention reaches, at a cost of length × window; None: all."""

    # --- embeddings and output ---

    tie_source_target: bool = True
    """Share one embedding matrix between both sides (section 3.4); needs a joint vocabulary."""

    tie_output: bool = True
    """Use the target's embedding matrix as the output projection too (section 3.4)."""

    scale_embeddings: bool = True
    """Multiply embeddings by √d_model (section 3.4)."""

    embedding_norm: bool = False
    """A norm after the sum of embeddings and positions, as in BERT and BART."""

    token_types: int = 0
    """Rows of BERT's table of token types (segments); 0: none."""

    zero_padding_row: bool = True
    """Keep the padding token's row of the embeddings at zero, without a gradient."""

    output_bias: bool = False
    """A bias on the logits."""

    output_scale: float = 1.0
    """Factor of the last layer's output before the output projection; T5's is 1 / √d_model."""

    # --- encoder alone ---

    masked_language_head: bool = True
    """An output head for masked tokens, as in BERT: linear layer, activation and LayerNorm (whatever `norm` is) before
    the output projection."""

    pooler: bool = False
    """A linear layer and `pooler_activation` over the first position, as in BERT."""

    pooler_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """Activation of the pooler: tanh as in BERT, relu as in DistilBERT, gelu as in ELECTRA."""

    num_labels: int = 0
    """Classes that are predicted from the pooled first position, or labels of each token; 0: none."""

    token_labels: bool = False
    """Predict one of `num_labels` labels for each token from its state, as in BertForTokenClassification."""

    # --- numbers instead of tokens ---

    num_series: int = 0
    """Number of time series, each with one value at a point in time, that are read and predicted; 0: the model reads
    tokens.
    """

    predicts_deviations: bool = False
    """Predict the standard deviation of each number of a time series too."""

    # --- recurrent ---

    recurrent_cell: Literal["lstm", "gru"] = "lstm"
    """LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000) or GRU (Cho et al. 2014, reset after
    the matrix multiplication), as in PyTorch."""

    bidirectional: bool = True
    """The encoder reads forward and backward, and each direction has half of d_model."""

    recurrent_attention: Literal["luong", "bahdanau", "none"] = "luong"
    """Attention of the decoder state to the encoder output: after each step (`luong`), before each step (`bahdanau`),
    or never (`none`).
    """

    input_feeding: bool = False
    """Each step also receives the attentional vector of the step before (Luong et al. 2015, section 3.3)."""

    recurrent_self_attention: bool = False
    """Decoder cells continue an attention average over all their past states (Cheng et al. 2016)."""

    recurrent_context: Literal["last", "linear", "mean"] = "linear"
    """The vector that summarizes the source: its last state (of both directions), or tanh of a linear map of the last
    state (`linear`) or of the mean of all states (`mean`)."""

    recurrent_context_to: Literal["initial", "steps", "both"] = "initial"
    """Use of the source's summary: as the decoder's first state, as a part of every step's input, or both."""

    # --- special tokens ---

    pad_id: int = 0
    """Id of the padding token."""

    eos_id: int = 1
    """Id of the end-of-sentence token."""

    start_id: int = 0
    """Id of the decoder's first input: the padding id for Pegasus and T5, the end-of-sentence id for BART."""

    @explain_wrong_types
    def __post_init__(self) -> None:
        check_config(self)

    @property
    def embedding_width(self) -> int:
        """The width of the embedding matrices and of what is added to embeddings."""
        return self.d_model if self.embedding_size is None else self.embedding_size

    @property
    def has_relative_bias(self) -> bool:
        """True if attention scores have T5's bias by distance, alone or besides positions that are embedded."""
        return self.relative_bias or self.positions == "relative"

    @property
    def key_width(self) -> int:
        """The width d_k of one head's queries and keys."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """The width d_v of one head's values."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def has_projection_bias(self) -> bool:
        """True if the projections of queries, keys and values have biases."""
        return self.bias if self.projection_bias is None else self.projection_bias

    @property
    def has_attention_output_bias(self) -> bool:
        """True if the output projection of attention has a bias."""
        return self.bias if self.attention_output_bias is None else self.attention_output_bias

    @property
    def has_feed_forward_bias(self) -> bool:
        """True if the linear layers of feed-forward networks have biases."""
        return self.bias if self.feed_forward_bias is None else self.feed_forward_bias

    @property
    def forbidden_tokens(self) -> list[int]:
        """A sorted list of the token ids that search never outputs: padding and start symbol.

        The end symbol's id is not among them, even if padding or start symbol have the same id.
        """
        return sorted({self.pad_id, self.start_id} - {self.eos_id})

    @property
    def frozen_row(self) -> int | None:
        """The padding id, whose row of the embeddings stays zero and gets no gradient; None: all rows are trained."""
        return self.pad_id if self.zero_padding_row else None

    @property
    def has_final_norm(self) -> bool:
        """True if a norm follows the last layer of each stack."""
        return self.norm_order != "post" if self.final_norm is None else self.final_norm

    @property
    def has_plain_attention(self) -> bool:
        """True if attention is the paper's: scaled dot product and softmax, without a window or effects of positions.

        Positions that are added to embeddings have no effect on attention. A recurrent model's attention is not the
        paper's.
        """
        parts = self.attention, self.attention_score, self.attention_kind, self.attention_scale, self.attention_window
        is_plain = parts == ("multi-head", "scaled", "soft", None, None)
        has_effect = self.relative_bias or self.positions not in ("sinusoidal", "learned", "none")
        return self.kind != "recurrent" and is_plain and not has_effect

    @property
    def can_be_packed(self) -> bool:
        """True if a training batch may concatenate its sentences without padding.

        Packing needs the paper's attention, without dropout of attention weights, and no BatchNorm.
        """
        return self.has_plain_attention and not self.attention_dropout and self.norm != "batch"

    def changed(self) -> dict[str, object]:
        """Return a dict, by name, of the settings that differ from their defaults.

        Settings without a default are left out.
        """
        fields = msgspec.structs.fields(type(self))
        values = {field.name: (getattr(self, field.name), field.default) for field in fields if not field.required}
        return {name: value for name, (value, default) in values.items() if value != default}
