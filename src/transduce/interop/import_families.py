"""Registry of the Hugging Face model families that can be imported, by `model_type`."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from transduce.errors import TransduceError
from transduce.interop import import_names as names
from transduce.interop import import_settings as settings
from transduce.interop.import_settings import ConfigReader, Settings
from transduce.model.config import Kind


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
    "ForTokenClassification": "classifies each token",
    "ForQuestionAnswering": "finds answers in a text",
    "ForMultipleChoice": "chooses among several texts",
}
_CLASSIFIER_SUFFIX = "ForSequenceClassification"


def check_config(content: Mapping[str, Any], place: str) -> ImportFamily:
    """Check that the model of a `config.json` can be imported, and return its family.

    Args:
        content: the content of config.json.
        place: the name of the file, for messages.

    Raises:
        TransduceError: the configuration requires custom code, or its family or class cannot be imported.
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
    architectures = content.get("architectures")
    for name in filter(lambda each: isinstance(each, str), architectures if isinstance(architectures, list) else ()):
        purpose = next(
            (description for suffix, description in _UNSUPPORTED_HEADS.items() if name.endswith(suffix)), None
        )
        if name.endswith(_CLASSIFIER_SUFFIX) and family.kind != "encoder":
            purpose = "classifies a text by a decoder"
        if purpose is not None:
            raise TransduceError(f"{place}: {name} {purpose}, and a model with this head cannot be imported.")
    return family


def names_of(model_type: str, present: Collection[str]) -> names.Family:
    """Return the table of weight names of a `model_type`, in the variant that these stored names belong to."""
    return names.variant(FAMILIES[model_type].names, present)
