"""The tokenizer's files as Hugging Face's class for a model needs them, where `Tokenizer.save` writes something else.

A tokenizer there puts around a text what its model expects: the end symbol after a sentence to translate, [CLS] and
[SEP] around what an encoder reads, the end of a line before what a language model continues.
"""

from collections.abc import Sequence
from typing import Any

from transduce.interop.components import MAXIMUM_POSITIONS
from transduce.interop.hugging_face.families import family_for
from transduce.interop.hugging_face.imported_tokenizer import ForeignTokenizer
from transduce.model.config import ModelConfig
from transduce.text.special_tokens import CLS, MASK, SEP, SPECIAL_TOKENS, find_special_tokens
from transduce.text.tokenizer import Tokenizer
from transduce.text.tokenizer_json import special_tokens_map, tokenizer_config, tokenizer_json
from transduce.text.vocabulary import Vocabulary

_SPACE = "▁"
# "</s>" in a text is four characters, as in ours. Encoders must know [MASK], though, and prompts have ends of lines.
_SPELT = {"split_special_tokens": True}


def tokenizer_files(
    tokenizer: Tokenizer, config: ModelConfig, languages: tuple[str | None, str | None]
) -> dict[str, Any]:
    """Contents of JSON files by name, which replace those of `Tokenizer.save`.

    Args:
        tokenizer: of the model.
        config: of the model.
        languages: source and target.
    """
    if isinstance(tokenizer, ForeignTokenizer):
        return {}
    if not tokenizer.joint:
        return _marian_files(tokenizer, languages) if has_tokenizer(tokenizer, config) else {}
    if config.kind == "encoder":
        return _encoder_files(tokenizer.source, config) if find_special_tokens(tokenizer.source) is not None else {}
    card = _card(tokenizer.source, config, ("input_ids", "attention_mask"))
    if config.kind != "decoder":
        return {"tokenizer_config.json": card | _SPELT}
    vocabulary = tokenizer.source
    start = vocabulary.piece(config.start_id)
    return {
        "tokenizer.json": tokenizer_json(vocabulary) | {"post_processor": _around((start,), (), vocabulary)},
        # Rows of a batch end together, so that all go on with their next piece.
        "tokenizer_config.json": card | {"bos_token": start, "padding_side": "left"},
        "special_tokens_map.json": special_tokens_map(vocabulary) | {"bos_token": start},
    }


def has_tokenizer(tokenizer: Tokenizer, config: ModelConfig) -> bool:
    """Whether Hugging Face has a tokenizer for this one: with a vocabulary for each side, Marian's alone."""
    if isinstance(tokenizer, ForeignTokenizer):
        return False
    if tokenizer.joint:
        return True
    family = family_for(config)
    return family is not None and family.model_type == "marian" and not tokenizer.source.nfc


def _card(vocabulary: Vocabulary, config: ModelConfig, inputs: Sequence[str]) -> dict[str, Any]:
    longest = config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS
    return tokenizer_config(vocabulary, longest) | {"model_input_names": list(inputs)}


# --- an encoder alone -------------------------------------------------------------------------------------------


def _encoder_files(vocabulary: Vocabulary, config: ModelConfig) -> dict[str, Any]:
    named = {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    content: dict[str, Any] = tokenizer_json(vocabulary)
    # They are looked for in what the normalizer made, which has no space before a mask: a mask stands for that too.
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}
    marks = [{"id": vocabulary.id(mark), "content": mark} | flags for mark in SPECIAL_TOKENS]
    content["added_tokens"] = sorted([*content["added_tokens"], *marks], key=lambda token: int(token["id"]))
    content["normalizer"]["normalizers"] += [
        {"type": "Replace", "pattern": {"String": _SPACE + mark}, "content": mark} for mark in SPECIAL_TOKENS
    ]
    content["post_processor"] = _around((CLS,), (SEP,), vocabulary)
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _card(vocabulary, config, ("input_ids", "token_type_ids", "attention_mask")) | named,
        "special_tokens_map.json": special_tokens_map(vocabulary) | named,
    }


def _around(before: Sequence[str], after: Sequence[str], vocabulary: Vocabulary) -> dict[str, Any]:
    """What stands before and after a text, and after the second of a pair."""

    def pieces(names: Sequence[str], side: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": side}} for name in names]

    first, second = ({"Sequence": {"id": name, "type_id": side}} for side, name in enumerate("AB"))
    single = [*pieces(before, 0), first, *pieces(after, 0)]
    tokens = {name: {"id": name, "ids": [vocabulary.id(name)], "tokens": [name]} for name in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *pieces(after, 1)],
        "special_tokens": tokens,
    }


# --- two vocabularies -------------------------------------------------------------------------------------------


def _marian_files(tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> dict[str, Any]:
    """Beside source.spm and target.spm, which `Tokenizer.save` writes: the ids of their pieces."""
    source, target = tokenizer.source, tokenizer.target
    named = special_tokens_map(source)
    said = {"source_lang": languages[0], "target_lang": languages[1]}
    return {
        "vocab.json": _ids(source),
        "target_vocab.json": _ids(target),
        "special_tokens_map.json": named,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **named,
            **said,
            "separate_vocabs": True,
            "model_max_length": MAXIMUM_POSITIONS,
            "clean_up_tokenization_spaces": False,
            **_SPELT,
        },
    }


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: id for id, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}
