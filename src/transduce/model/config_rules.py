"""What a model's configuration may not say: a `ModelConfig` asks as it is made."""

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from transduce.errors import TransduceError

_SIZES = ("d_model", "d_ff", "num_heads")
_VOCABULARY_SIZES = ("source_vocabulary_size", "target_vocabulary_size")
_OPTIONAL_SIZES = ("d_k", "d_v", "num_key_value_heads", "attention_window")
_POSITION_SIZES = ("max_positions", "relative_buckets", "relative_max_distance")
_PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout")
_POSITIVE = ("norm_epsilon", "rotary_base", "attention_scale", "output_scale")
_COUNTS = ("token_types", "num_labels", "position_offset")
_LAYERS_OF = {
    "transformer": ("num_encoder_layers", "num_decoder_layers"),
    "encoder": ("num_encoder_layers",),
    "decoder": ("num_decoder_layers",),
    "recurrent": ("num_encoder_layers", "num_decoder_layers"),
    "series": ("num_encoder_layers", "num_decoder_layers"),
}
_SERIES_ONLY = ("num_series", "foretells_deviations")
# What concerns pieces.
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
_ENCODER_ONLY = ("masked_language_head", "pooler", "num_labels", "token_types")
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
    *("position_offset", "sinusoids_to_end", "attention_window"),
)
# Sizes that recurrent models do not have; every preset says them, and stored models have them.
IDLE_OF_RECURRENT = ("d_ff", "num_heads", "norm_order")
_TYPE_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", type(None): "None"}
_ONLY_WITH = {
    "max_positions": ("learned",),
    "position_offset": ("sinusoidal", "learned"),
    "sinusoids_to_end": ("sinusoidal",),
    "rotary_base": ("rotary", "rotary-interleaved"),
    "rotary_scaling": ("rotary", "rotary-interleaved"),
    "relative_buckets": ("relative",),
    "relative_max_distance": ("relative",),
}


def check_config(config: Any) -> None:
    """Refuses what no model can be built by.

    Args:
        config: a `ModelConfig`, whose module this one serves.

    Raises:
        TransduceError: a word that names no brick, a size out of its range, or settings that contradict each other.
    """
    _check_words(config)
    _check_types(config)
    _check_sizes(config)
    _check_ranges(config)
    _check_vocabularies(config)
    _check_kind(config)
    _check_attention(config)
    _check_positions(config)


@cache
def _words_of(kind: Any) -> dict[str, tuple[str, ...]]:
    """What may be said where a setting is one of some words."""
    hints = get_type_hints(kind)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _check_words(config: Any) -> None:
    kind: Any = type(config)
    for name, words in _words_of(kind).items():
        if (said := getattr(config, name)) not in words:
            raise TransduceError(f"`model.{name}` must be {', '.join(words[:-1])} or {words[-1]}, but is {said!r}.")


@cache
def _types_of(kind: Any) -> dict[str, tuple[type, ...]]:
    """What else may be said: types, None among them where nothing may be."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in _words_of(kind)}
    return {name: get_args(hint) or (hint,) for name, hint in hints.items()}


def _check_types(config: Any) -> None:
    """Refuses what a folder could not keep: True for a size, a word for yes or no."""
    kind: Any = type(config)
    for name, types in _types_of(kind).items():
        value = getattr(config, name)
        # A whole number is a number too; yes and no are none, though Python counts them among these.
        found = bool if isinstance(value, bool) else int if isinstance(value, int) else type(value)
        if found not in types and not (found is int and float in types) and not _is_word(value, types):
            wanted = " or ".join(dict.fromkeys(_TYPE_WORDS.get(each, f"a {each.__name__}") for each in types))
            raise TransduceError(f"`model.{name}` must be {wanted}, but is {value!r}.")


def _is_word(value: Any, types: tuple[Any, ...]) -> bool:
    """Whether it is one of the words of a type that may also be None."""
    return any(value in get_args(each) for each in types if get_origin(each) is Literal)


def _check_sizes(config: Any) -> None:
    own = ("num_series",) if config.kind == "series" else _VOCABULARY_SIZES
    for name in (*own, *_SIZES, *_LAYERS_OF[config.kind], *_POSITION_SIZES, *_OPTIONAL_SIZES):
        size = getattr(config, name)
        if size is not None and not (isinstance(size, int) and size >= 1):
            raise TransduceError(f"`model.{name}` must be at least 1, but is {size!r}.")
    for name in _COUNTS:
        if not (isinstance(count := getattr(config, name), int) and count >= 0):
            raise TransduceError(f"`model.{name}` must be at least 0, but is {count!r}.")
    if config.d_model % 2 and (config.positions == "sinusoidal" or config.kind == "recurrent"):
        reason = "half for each direction" if config.kind == "recurrent" else "a sine and a cosine a pair"
        raise TransduceError(f"`model.d_model` must be even ({reason}), but is {config.d_model}.")
    if config.kind != "recurrent" and None in (config.d_k, config.d_v) and config.d_model % config.num_heads:
        raise TransduceError(
            f"`model.d_model` must be a multiple of `model.num_heads`, but {config.d_model} is not one of "
            f"{config.num_heads}: change one of them, or set `model.d_k` and `model.d_v`."
        )


def _check_ranges(config: Any) -> None:
    for name in _PROBABILITIES:
        if not (isinstance(share := getattr(config, name), float | int) and 0.0 <= share < 1.0):
            raise TransduceError(f"`model.{name}` must be in [0, 1), but is {share!r}.")
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and not (isinstance(value, float | int) and 0.0 < value < float("inf")):
            raise TransduceError(f"`model.{name}` must be a positive number, but is {value!r}.")


def _check_vocabularies(config: Any) -> None:
    if config.kind == "series":
        return
    sizes = (config.source_vocabulary_size, config.target_vocabulary_size)
    if config.tie_source_target and sizes[0] != sizes[1]:
        raise TransduceError(
            "`model.tie_source_target` shares one embedding, so both vocabularies must have one size, but they "
            f"have {sizes[0]} and {sizes[1]} pieces: use a joint vocabulary or untie the embeddings."
        )
    if config.kind in ("encoder", "decoder") and not config.tie_source_target:
        raise TransduceError(
            f"A model with `model.kind` = {config.kind} has one vocabulary: `model.tie_source_target` must be true."
        )
    for name in ("pad_id", "eos_id", "start_id"):
        if not 0 <= getattr(config, name) < config.target_vocabulary_size:
            raise TransduceError(
                f"`model.{name}` must be a piece of the target vocabulary, 0 to {config.target_vocabulary_size - 1}, "
                f"but is {getattr(config, name)}."
            )
    if config.pad_id >= config.source_vocabulary_size:
        raise TransduceError(
            f"`model.pad_id` must be a piece of the source vocabulary too, 0 to {sizes[0] - 1}, but is {config.pad_id}."
        )


def _check_kind(config: Any) -> None:
    changed = config.changed()
    foreign = {"recurrent": _NOT_RECURRENT}.get(config.kind, _RECURRENT_ONLY)
    if config.kind != "encoder":
        foreign = (*foreign, *_ENCODER_ONLY)
    foreign = (*foreign, *(_NOT_SERIES if config.kind == "series" else _SERIES_ONLY))
    if config.kind == "series":
        sizes = {name: getattr(config, name) for name in _VOCABULARY_SIZES}
        changed |= {name: size for name, size in sizes.items() if size}
    for name in foreign:
        if name in changed:
            raise TransduceError(
                f"`model.{name}` = {changed[name]} means nothing where `model.kind` is {config.kind}: leave it out."
            )
    if config.kind == "recurrent" and config.positions not in ("sinusoidal", "none"):
        raise TransduceError(
            "A recurrent model reads in order and has no positions, but `model.positions` is "
            f"{config.positions}: leave it out."
        )
    if config.input_feeding and config.recurrent_attention != "luong":
        raise TransduceError(
            "`model.input_feeding` feeds what Luong's attention found into the next step, but "
            f"`model.recurrent_attention` is {config.recurrent_attention}: set it to luong."
        )


def _check_attention(config: Any) -> None:
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


def _check_positions(config: Any) -> None:
    changed = config.changed()
    for name, kinds in _ONLY_WITH.items():
        if name in changed and config.positions not in kinds:
            raise TransduceError(
                f"`model.{name}` = {changed[name]} means nothing where `model.positions` is {config.positions}: "
                "leave it out."
            )
    if config.positions == "relative" and (
        config.relative_buckets < 4 or config.relative_max_distance <= config.relative_buckets
    ):
        raise TransduceError(
            "`model.relative_buckets` must be at least 4 and below `model.relative_max_distance`, but they are "
            f"{config.relative_buckets} and {config.relative_max_distance}."
        )
    if not config.positions.startswith("rotary"):
        return
    if config.key_width % 2:
        raise TransduceError(f"Rotary positions turn pairs, so `model.d_k` must be even, but it is {config.key_width}.")
    if config.attention_score not in ("scaled", "dot"):
        raise TransduceError(
            "Rotary positions act through the dot product, but `model.attention_score` is "
            f"{config.attention_score}: use scaled or dot, or other positions."
        )
