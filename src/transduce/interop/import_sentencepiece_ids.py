"""The ids of pieces where a folder has nothing but a sentencepiece model: each family numbers them in its own way."""

import re
from collections.abc import Mapping
from typing import Any

from transduce.errors import TransduceError
from transduce.interop.import_families import FAMILIES
from transduce.interop.import_tokenizer_files import TokenizerFiles

# How tags of languages are written: NLLB's, mBART's, M2M100's.
LANGUAGE_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2,3}_[A-Z]{2}|__(?P<name>\w+)__")
_FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
_PEGASUS_OFFSET = 103
_MOST_ADDED = 100_000
# In the order of their tags, which M2M100's files need not list.
_M2M100_LANGUAGES = (  # noqa: SIM905
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
    "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
    "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
    "zu"
).split()


def sentencepiece_ids(files: TokenizerFiles, model_type: str, pieces: list[str]) -> dict[str, int]:
    """The ids that a family gives to the pieces of its sentencepiece model.

    Args:
        files: of the tokenizer.
        model_type: of the model.
        pieces: of the sentencepiece model, in its own order.

    Raises:
        TransduceError: none is known for this family.
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
        extra = _count(settings, "extra_ids", 100)
        last = len(pieces) + extra - 1
        own = {f"<extra_id_{number}>": last - number for number in range(extra)}
        return {piece: id for id, piece in enumerate(pieces)} | own
    if model_type == "pegasus":
        offset = _count(settings, "offset", _PEGASUS_OFFSET)
        named = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))]
        ids = {piece: id + offset for id, piece in enumerate(pieces)}
        return ids | {name: id for id, name in enumerate(named[: offset + 2])}
    if FAMILIES[model_type].spaced:
        return {piece: id for id, piece in enumerate(pieces)}
    raise TransduceError(f"{files.place} must hold a tokenizer.json for a model of the type {model_type}.")


def _count(settings: Mapping[str, Any], name: str, usual: int) -> int:
    """How many pieces a family puts beside the learned ones."""
    said = settings.get(name, usual)
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said <= _MOST_ADDED:
        raise ValueError(f"`{name}` must be a whole number from 0 to {_MOST_ADDED:,}, but is {said!r}")
    return said


def _m2m100_ids(files: TokenizerFiles) -> dict[str, int]:
    """Those of its table, and behind them the tags of its languages."""
    ids = files.table("vocab.json")
    if any(LANGUAGE_TAG.fullmatch(text) for text in (*files.extra_tokens(), *files.json("added_tokens.json"))):
        return ids
    return ids | {f"__{code}__": len(ids) + number for number, code in enumerate(_M2M100_LANGUAGES)}
