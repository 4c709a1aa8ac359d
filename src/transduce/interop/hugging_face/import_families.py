"""The families of Hugging Face's models that can be imported: one row a `model_type`."""

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
    """What is known of a `model_type` beside what its folders say."""

    kind: Kind
    settings: Callable[[ConfigReader], Settings]
    """Ours, by its `config.json`."""
    names: names.Family
    """Where its weights are."""
    begins_with_end: bool = False
    """A decoder beside an encoder is given the end symbol first, where nothing is said; otherwise padding."""
    stores_output: bool = False
    """The output matrix is stored, unless `tie_word_embeddings` says that it is the embeddings'."""
    begins_text: bool = False
    """Its tokenizer puts a start symbol before a text, where its files say no other."""
    end_is_separator: bool = False
    """A text ends with its tokenizer's separator, whatever its configuration calls the end."""
    spaced: bool = False
    """Its sentencepiece models cut otherwise than sentencepiece."""
    tagged: bool = False
    """It is told languages by tags."""
    fairseq: bool = False
    """Its ids are those of its sentencepiece model behind fairseq's own symbols."""


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
# What a class is for whose head has no counterpart here, by the end of its name.
_OTHER_HEADS = {
    "ForTokenClassification": "tells the class of each piece",
    "ForQuestionAnswering": "finds answers in a text",
    "ForMultipleChoice": "chooses among several texts",
}
_CLASSIFIES = "ForSequenceClassification"


def check_config(content: Mapping[str, Any], place: str) -> ImportFamily:
    """The family of a `config.json`.

    Args:
        content: of the file.
        place: names it in messages.

    Raises:
        TransduceError: it asks for code of its own, or is of a family or a class that cannot be imported.
    """
    if "auto_map" in content:
        raise TransduceError(
            f"{place} asks for code of its own to be run (`auto_map`), which is never done: remove it."
        )
    model_type = content.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise TransduceError(
            f"{place}: `model_type` must be one of {', '.join(FAMILIES)} to be imported, but is {model_type!r}."
        )
    listed = content.get("architectures")
    for name in filter(lambda each: isinstance(each, str), listed if isinstance(listed, list) else ()):
        purpose = next((said for end, said in _OTHER_HEADS.items() if name.endswith(end)), None)
        if name.endswith(_CLASSIFIES) and family.kind != "encoder":
            purpose = "tells the class of a text by a decoder"
        if purpose is not None:
            raise TransduceError(f"{place}: {name} {purpose}, and a model with this head cannot be imported.")
    return family


def names_of(model_type: str, present: Collection[str]) -> names.Family:
    """Where the weights of a `model_type` are, in the variant that these tensors are of."""
    return names.variant(FAMILIES[model_type].names, present)


# --- import generation ---
# What `generation_config.json` says of searching, as our settings.


# What changes which pieces are written and has no counterpart here, with the value that means nothing.
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
    """How a folder's makers searched; where they said nothing, as `generate` does, but without its limit of 20 pieces.

    Args:
        generation: of `generation_config.json`; empty where there is none.
        config: of `config.json`, where older folders say the same.
        place: names the folder in messages.
        greatest: pieces that the model has positions for; None: any number.

    Raises:
        TransduceError: a setting asks for something that has no counterpart here.
    """
    said = {**config, **{name: value for name, value in generation.items() if value is not None}}
    for name, harmless in _UNSUPPORTED.items():
        if said.get(name) not in harmless:
            raise TransduceError(f"{place}: `{name}` = {said[name]!r} in the way to generate cannot be imported.")
    try:
        return SearchSettings(
            beam_size=_whole(said, "num_beams", 1),
            length_penalty=float(said.get("length_penalty", 1.0)),
            max_length=_longest(said, greatest),
            min_length=max(0, _whole(said, "min_new_tokens", _whole(said, "min_length", 0) - 1)),
            no_repeated_ngrams=_whole(said, "no_repeat_ngram_size", 0),
            generate=GenerateSettings(
                forced_first_id=_forced_first(said),
                forced_last_id=_optional_id(said, "forced_eos_token_id"),
                forbidden_ids=_forbidden(said, place),
                stop=_STOPS[said.get("early_stopping", False)],
                renormalize=_flag(said, "renormalize_logits"),
            ),
        )
    except TransduceError:
        raise
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise TransduceError(f"{place}: the way to generate cannot be read: {error}.") from error


def _whole(said: Mapping[str, Any], name: str, default: int) -> int:
    value = said.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{name}` must be a whole number, but is {value!r}")
    return value


def _flag(said: Mapping[str, Any], name: str) -> bool:
    value = said.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"`{name}` must be true or false, but is {value!r}")
    return bool(value)


def _optional_id(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return _whole({name: value[0] if isinstance(value, list) else value}, name, 0) if value is not None else None


def _forced_first(said: Mapping[str, Any]) -> int | None:
    """The first BARTs say it in words."""
    if said.get("forced_bos_token_id") is None and _flag(said, "force_bos_token_to_be_generated"):
        return _whole(said, "bos_token_id", 0)
    return _optional_id(said, "forced_bos_token_id")


def _longest(said: Mapping[str, Any], greatest: int | None) -> int | None:
    """New pieces, the end symbol included; `max_length` counts the start symbol too."""
    longest = said.get("max_new_tokens")
    if longest is None and said.get("max_length") is not None:
        longest = _whole(said, "max_length", 0) - 1
    limits = [limit for limit in (longest, greatest) if limit is not None]
    return min(limits) if limits else None


def _forbidden(said: Mapping[str, Any], place: str) -> tuple[int, ...]:
    words = said.get("bad_words_ids") or []
    longer = next((word for word in words if len(word) > 1), None)
    if longer is not None:
        raise TransduceError(
            f"{place}: `bad_words_ids` may forbid single pieces to be imported, but forbids {longer}: take it out."
        )
    return tuple(sorted({*(word[0] for word in words), *(said.get("suppress_tokens") or ())}))


def start_id(model_type: str, generation: Mapping[str, Any], config: Mapping[str, Any], ids: tuple[int, int]) -> int:
    """What the decoder of an encoder–decoder begins with: what is said, else as the family does.

    `ids` are those of padding and end.
    """
    for content in (generation, config):
        if isinstance(content.get("decoder_start_token_id"), int):
            return int(content["decoder_start_token_id"])
    return ids[1] if FAMILIES[model_type].begins_with_end else ids[0]
