"""Registry of the Hugging Face model families that can be imported, by `model_type`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

from transduce.errors import TransduceError
from transduce.interop.hugging_face import import_names as names
from transduce.interop.hugging_face import import_settings as settings
from transduce.interop.hugging_face.import_settings import ConfigReader, Settings
from transduce.model.config import Kind
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings


class ImportFamily(NamedTuple):
    """A model family's properties that cannot be read from the files of its folders."""

    kind: Kind
    settings: Callable[[ConfigReader], Settings]
    """Converts the family's `config.json` to this package's model settings."""
    names: names.Family
    """The family's names of weights."""
    begins_with_end: bool = False
    """By default, an encoder–decoder's decoder starts with the end symbol; otherwise with padding."""
    stores_output: bool = False
    """The output projection is stored separately, unless `tie_word_embeddings` is true."""
    begins_text: bool = False
    """By default, the tokenizer puts a start symbol before a text."""
    end_is_separator: bool = False
    """A text ends with the tokenizer's separator, regardless of the configuration's end symbol."""
    spaced: bool = False
    """The family's sentencepiece models tokenize differently from the sentencepiece library."""
    tagged: bool = False
    """Languages are selected by tags."""
    fairseq: bool = False
    """Token ids are those of the sentencepiece model, shifted by fairseq's special tokens."""


FAMILIES: Mapping[str, ImportFamily] = {
    "bart": ImportFamily("transformer", settings.bart, names.BART, begins_with_end=True, begins_text=True),
    "mbart": ImportFamily("transformer", settings.mbart, names.BART, begins_with_end=True, tagged=True, fairseq=True),
    "marian": ImportFamily("transformer", settings.marian, names.SINUSOIDAL),
    "pegasus": ImportFamily("transformer", settings.pegasus, names.SINUSOIDAL),
    "m2m_100": ImportFamily(
        "transformer", settings.m2m100, names.SINUSOIDAL, begins_with_end=True, tagged=True, fairseq=True
    ),
    "t5": ImportFamily("transformer", settings.t5, names.T5),
    "mt5": ImportFamily("transformer", settings.mt5, names.T5),
    "bert": ImportFamily("encoder", settings.bert, names.BERT, end_is_separator=True),
    "roberta": ImportFamily("encoder", settings.roberta, names.ROBERTA, begins_text=True),
    "xlm-roberta": ImportFamily("encoder", settings.roberta, names.ROBERTA, begins_text=True, fairseq=True),
    "camembert": ImportFamily("encoder", settings.roberta, names.ROBERTA, begins_text=True),
    "gpt2": ImportFamily("decoder", settings.gpt2, names.GPT2),
    "llama": ImportFamily("decoder", settings.llama, names.LLAMA, stores_output=True, begins_text=True, spaced=True),
    "mistral": ImportFamily(
        "decoder", settings.mistral, names.LLAMA, stores_output=True, begins_text=True, spaced=True
    ),
    "qwen2": ImportFamily("decoder", settings.qwen2, names.LLAMA, stores_output=True),
}
# Purposes of classes whose head has no counterpart in this package, by the suffix of the class name.
_UNSUPPORTED_HEADS = {
    "ForQuestionAnswering": "finds answers in a text",
    "ForMultipleChoice": "chooses among several texts",
}
_CLASSIFIER_SUFFIXES = {"ForSequenceClassification": "a text", "ForTokenClassification": "each token"}


def check_config(content: Mapping[str, Any], location: str) -> ImportFamily:
    """Check that the model of a `config.json` can be imported, and return its family.

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
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise TransduceError(
            f"{location}: `model_type` must be one of {', '.join(FAMILIES)} to be imported, but is {model_type!r}."
        )
    architectures = content.get("architectures")
    for name in filter(lambda each: isinstance(each, str), architectures if isinstance(architectures, list) else ()):
        purpose = next(
            (description for suffix, description in _UNSUPPORTED_HEADS.items() if name.endswith(suffix)), None
        )
        classified = next((what for suffix, what in _CLASSIFIER_SUFFIXES.items() if name.endswith(suffix)), None)
        if classified is not None and family.kind != "encoder":
            purpose = f"classifies {classified} by a decoder"
        if purpose is not None:
            raise TransduceError(f"{location}: {name} {purpose}, and a model with this head cannot be imported.")
    return family


def names_of(model_type: str, present: Collection[str]) -> names.Family:
    """Return the table of weight names of a `model_type`, in the variant that these stored names belong to."""
    return names.variant(FAMILIES[model_type].names, present)


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
}
_STOPS: dict[object, Literal["full", "likely", "never"]] = {True: "full", False: "likely", "never": "never"}


def import_generation(
    generation: Mapping[str, Any], config: Mapping[str, Any], location: str, *, max_positions: int | None
) -> SearchSettings:
    """Convert a folder's generation settings to search settings.

    Settings that neither file specifies have the defaults of `generate`, but without its limit of 20 tokens.

    Args:
        generation: the content of `generation_config.json`; empty if there is none.
        config: the content of `config.json`, in which older folders store generation settings.
        location: the name of the folder, for messages.
        max_positions: the maximum number of tokens that the model has positions for; None: unlimited.

    Raises:
        TransduceError: a setting has no counterpart in this package.
    """
    values = {**config, **{name: value for name, value in generation.items() if value is not None}}
    for name, neutral_values in _UNSUPPORTED.items():
        if values.get(name) not in neutral_values:
            raise TransduceError(f"{location}: the generation setting `{name}` = {values[name]!r} cannot be imported.")
    try:
        return SearchSettings(
            beam_size=_integer(values, "num_beams", 1),
            length_penalty=float(values.get("length_penalty", 1.0)),
            max_length=_max_length(values, max_positions),
            min_length=max(0, _integer(values, "min_new_tokens", _integer(values, "min_length", 0) - 1)),
            no_repeated_ngrams=_integer(values, "no_repeat_ngram_size", 0),
            repetition_penalty=float(values.get("repetition_penalty") or 1.0),
            generate=GenerateSettings(
                forced_first_id=_forced_first_id(values),
                forced_last_id=_optional_id(values, "forced_eos_token_id"),
                forbidden_ids=_forbidden_ids(values, location),
                stop=_STOPS[values.get("early_stopping", False)],
                renormalize=_flag(values, "renormalize_logits"),
            ),
        )
    except TransduceError:
        raise
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise TransduceError(f"{location}: the generation settings cannot be read: {error}.") from error


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


def _max_length(values: Mapping[str, Any], max_positions: int | None) -> int | None:
    """Return the maximum number of new tokens, including the end symbol, or None without a limit.

    Hugging Face's `max_length` also counts the start symbol; `max_new_tokens` takes precedence over it.
    """
    longest = values.get("max_new_tokens")
    if longest is None and values.get("max_length") is not None:
        longest = _integer(values, "max_length", 0) - 1
    limits = [limit for limit in (longest, max_positions) if limit is not None]
    return min(limits) if limits else None


def _forbidden_ids(values: Mapping[str, Any], location: str) -> tuple[int, ...]:
    words = values.get("bad_words_ids") or []
    longer = next((word for word in words if len(word) > 1), None)
    if longer is not None:
        raise TransduceError(
            f"{location}: `bad_words_ids` may contain only single tokens, but contains {longer}: remove this entry."
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
