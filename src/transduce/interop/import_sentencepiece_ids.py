"""Token ids for folders that contain only a sentencepiece model, numbered by the rules of each model family."""

import re
from collections.abc import Mapping
from typing import Any

from transduce.errors import TransduceError
from transduce.interop.import_families import FAMILIES
from transduce.interop.import_tokenizer_files import TokenizerFiles

# Spellings of language tags in NLLB, mBART and M2M100.
LANGUAGE_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2,3}_[A-Z]{2}|__(?P<name>\w+)__")
_FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
_PEGASUS_OFFSET = 103
_MAX_ADDED = 100_000
# In the order of their tag ids; M2M100's files need not list the tags.
_M2M100_LANGUAGES = (  # noqa: SIM905
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
    "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
    "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
    "zu"
).split()


def sentencepiece_ids(files: TokenizerFiles, model_type: str, pieces: list[str]) -> dict[str, int]:
    """Return the id of each token by the numbering of a model family.

    Args:
        files: the files of the tokenizer.
        model_type: the model's family.
        pieces: the pieces of the sentencepiece model, in its order.

    Raises:
        TransduceError: the family's numbering is unknown.
    """
    settings = files.json("tokenizer_config.json")
    if model_type == "m2m_100" and files.read("vocab.json") is not None:
        return _m2m100_ids(files)
    if FAMILIES[model_type].fairseq:
        ids = _FAIRSEQ | {piece: id + 1 for id, piece in enumerate(pieces) if id > 2}
        tags = [text for text in files.extra_tokens() if LANGUAGE_TAG.fullmatch(text)]
        ids |= {tag: len(pieces) + 1 + number for number, tag in enumerate(tags)}
        return ids | {"<mask>": len(pieces) + 1 + len(tags)}
    if model_type in ("t5", "mt5"):
        extra = _added_count(settings, "extra_ids", 100)
        last = len(pieces) + extra - 1
        sentinels = {f"<extra_id_{number}>": last - number for number in range(extra)}
        return {piece: id for id, piece in enumerate(pieces)} | sentinels
    if model_type == "pegasus":
        offset = _added_count(settings, "offset", _PEGASUS_OFFSET)
        leading = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))]
        ids = {piece: id + offset for id, piece in enumerate(pieces)}
        return ids | {name: id for id, name in enumerate(leading[: offset + 2])}
    if FAMILIES[model_type].spaced:
        return {piece: id for id, piece in enumerate(pieces)}
    raise TransduceError(f"{files.place} must hold a tokenizer.json for a model of the type {model_type}.")


def _added_count(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Return the number of tokens that a family adds to those of its sentencepiece model."""
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ADDED:
        raise ValueError(f"`{name}` must be a whole number from 0 to {_MAX_ADDED:,}, but is {value!r}")
    return value


def _m2m100_ids(files: TokenizerFiles) -> dict[str, int]:
    """Return the ids of M2M100's vocab.json, followed by those of the language tags if the files do not list them."""
    ids = files.table("vocab.json")
    if any(LANGUAGE_TAG.fullmatch(text) for text in (*files.extra_tokens(), *files.json("added_tokens.json"))):
        return ids
    return ids | {f"__{code}__": len(ids) + number for number, code in enumerate(_M2M100_LANGUAGES)}
