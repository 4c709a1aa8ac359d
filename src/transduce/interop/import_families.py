"""The families of Hugging Face's models that can be imported: one row a `model_type`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from transduce.errors import TransduceError
from transduce.interop import import_names as names
from transduce.interop import import_settings as settings
from transduce.interop.import_settings import ConfigReader, Settings
from transduce.model.config import Kind


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
