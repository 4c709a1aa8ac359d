"""Conversion of Hugging Face's `generation_config.json` to this package's search settings."""

from collections.abc import Mapping
from typing import Any, Literal

from transduce.errors import TransduceError
from transduce.interop.import_families import FAMILIES
from transduce.search.forced import GenerateSettings
from transduce.search.settings import SearchSettings

# Settings that change the generated text and have no counterpart in this package, with the values that disable them.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (None, 1, 1.0),
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
}
_STOPS: dict[object, Literal["full", "likely", "never"]] = {True: "full", False: "likely", "never": "never"}


def import_generation(
    generation: Mapping[str, Any], config: Mapping[str, Any], place: str, *, greatest: int | None
) -> SearchSettings:
    """Convert a folder's generation settings to search settings.

    Settings that neither file specifies have the defaults of `generate`, but without its limit of 20 tokens.

    Args:
        generation: the content of `generation_config.json`; empty if there is none.
        config: the content of `config.json`, in which older folders store generation settings.
        place: the name of the folder, for messages.
        greatest: the maximum number of tokens that the model has positions for; None: unlimited.

    Raises:
        TransduceError: a setting has no counterpart in this package.
    """
    values = {**config, **{name: value for name, value in generation.items() if value is not None}}
    for name, neutral_values in _UNSUPPORTED.items():
        if values.get(name) not in neutral_values:
            raise TransduceError(f"{place}: the generation setting `{name}` = {values[name]!r} cannot be imported.")
    try:
        return SearchSettings(
            beam_size=_integer(values, "num_beams", 1),
            length_penalty=float(values.get("length_penalty", 1.0)),
            max_length=_max_length(values, greatest),
            min_length=max(0, _integer(values, "min_new_tokens", _integer(values, "min_length", 0) - 1)),
            no_repeated_ngrams=_integer(values, "no_repeat_ngram_size", 0),
            generate=GenerateSettings(
                forced_first_id=_forced_first_id(values),
                forced_last_id=_optional_id(values, "forced_eos_token_id"),
                forbidden_ids=_forbidden_ids(values, place),
                stop=_STOPS[values.get("early_stopping", False)],
                renormalize=_flag(values, "renormalize_logits"),
            ),
        )
    except TransduceError:
        raise
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise TransduceError(f"{place}: the generation settings cannot be read: {error}.") from error


def _integer(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{name}` must be a whole number, but is {value!r}")
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, but is {value!r}")
    return bool(value)


def _optional_id(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    return _integer({name: value[0] if isinstance(value, list) else value}, name, 0) if value is not None else None


def _forced_first_id(values: Mapping[str, Any]) -> int | None:
    """Return the forced first id; the first BART configurations set `force_bos_token_to_be_generated` instead."""
    if values.get("forced_bos_token_id") is None and _flag(values, "force_bos_token_to_be_generated"):
        return _integer(values, "bos_token_id", 0)
    return _optional_id(values, "forced_bos_token_id")


def _max_length(values: Mapping[str, Any], greatest: int | None) -> int | None:
    """Return the maximum number of new tokens including the end symbol, which is `max_length` without the start
    symbol.
    """
    longest = values.get("max_new_tokens")
    if longest is None and values.get("max_length") is not None:
        longest = _integer(values, "max_length", 0) - 1
    limits = [limit for limit in (longest, greatest) if limit is not None]
    return min(limits) if limits else None


def _forbidden_ids(values: Mapping[str, Any], place: str) -> tuple[int, ...]:
    words = values.get("bad_words_ids") or []
    longer = next((word for word in words if len(word) > 1), None)
    if longer is not None:
        raise TransduceError(
            f"{place}: `bad_words_ids` may contain only single tokens, but contains {longer}: remove this entry."
        )
    return tuple(sorted({*(word[0] for word in words), *(values.get("suppress_tokens") or ())}))


def start_id(model_type: str, generation: Mapping[str, Any], config: Mapping[str, Any], ids: tuple[int, int]) -> int:
    """Return the id with which an encoder–decoder's decoder starts: the one in its files, else the family's default.

    Args:
        model_type: the model's family.
        generation: the content of `generation_config.json`.
        config: the content of `config.json`.
        ids: the ids of padding and end.
    """
    for content in (generation, config):
        if isinstance(content.get("decoder_start_token_id"), int):
            return int(content["decoder_start_token_id"])
    return ids[1] if FAMILIES[model_type].begins_with_end else ids[0]
