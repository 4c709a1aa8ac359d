"""Tokenizer files for Hugging Face's classes, where these need other content than `Tokenizer.save` writes.

Hugging Face's tokenizers add special tokens: the end symbol after a sentence to translate, [CLS] and [SEP] around an
encoder's input, and the end-of-line symbol before a language model's prompt.
"""

from collections.abc import Sequence
from typing import Any

from transduce.interop.components import MAXIMUM_POSITIONS
from transduce.interop.hugging_face.families import family_for
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.hugging_face.token_pipelines import TokenizerJson
from transduce.model.config import ModelConfig
from transduce.text.sentencepiece_model import is_plain
from transduce.text.special_tokens import CLS, MASK, SEP, SPECIAL_TOKENS, Symbol, find_special_tokens
from transduce.text.tokenizer import Tokenizer, special_tokens_map, tokenizer_config, tokenizer_json
from transduce.text.vocabulary import Vocabulary, language_token, tag_token

_SPACE = "▁"
# "</s>" in a text is plain characters, as in this package. Not for encoders and prompts, which contain special tokens.
_SPLIT_SPECIAL = {"split_special_tokens": True}


def tokenizer_files(
    tokenizer: Tokenizer, config: ModelConfig, languages: tuple[str | None, str | None]
) -> dict[str, Any]:
    """Return the tokenizer's JSON files for Hugging Face by name, which replace the files of `Tokenizer.save`.

    Args:
        tokenizer: the model's tokenizer.
        config: the model's configuration.
        languages: source and target language; None if unknown.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return {}
    if not tokenizer.joint:
        return _marian_files(tokenizer, languages) if has_tokenizer(tokenizer, config) else {}
    if not is_plain(tokenizer.source.model_bytes):
        return {}
    if config.kind == "encoder":
        return _encoder_files(tokenizer.source, config) if find_special_tokens(tokenizer.source) is not None else {}
    card = _config_content(tokenizer.source, config, ("input_ids", "attention_mask"))
    if config.kind != "decoder":
        return {"tokenizer_config.json": card | _SPLIT_SPECIAL} | _files_with_prefix(tokenizer.source)
    vocabulary = tokenizer.source
    start = vocabulary.token(config.start_id)
    return {
        "tokenizer.json": tokenizer_json(vocabulary) | {"post_processor": _post_processor((start,), (), vocabulary)},
        # Padding at the left aligns the ends of a batch's prompts for generation.
        "tokenizer_config.json": card | {"bos_token": start, "padding_side": "left"},
        "special_tokens_map.json": special_tokens_map(vocabulary) | {"bos_token": start},
    }


def has_tokenizer(tokenizer: Tokenizer, config: ModelConfig) -> bool:
    """Return whether Hugging Face has a class for this tokenizer.

    For separate vocabularies, only Marian's class exists. A joint sentencepiece model must be one that tokenizer.json
    can express.
    """
    if isinstance(tokenizer, ImportedTokenizer):
        return False
    if tokenizer.joint:
        return is_plain(tokenizer.source.model_bytes)
    family = family_for(config)
    return family is not None and family.model_type == "marian" and not tokenizer.source.nfc


def pipeline_files(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of the files of a tokenizer that was read from a tokenizer.json of the user's own, by name.

    The result is empty for other tokenizers. The caller must check that the files tokenize like the tokenizer.
    """
    if not isinstance(tokenizer, ImportedTokenizer) or tokenizer.record.target is not None:
        return {}
    record = tokenizer.record.source
    is_framed = record.before or record.forced or tokenizer.record.languages is not None
    if not isinstance(record.cutting, TokenizerJson) or record.after != (record.eos_id,) or is_framed:
        return {}
    names = {id: token for token, id in record.ids.items()}
    special = {record.pad_id, record.eos_id, record.unk_id, *record.silent}
    symbols = [Symbol(each) if isinstance(each, str) else each for each in record.symbols]
    added = {id: {"id": id, "content": names[id], **_FLAGS, "special": True} for id in special if id in names}
    for symbol in symbols:
        flags = {"lstrip": symbol.spaces_before, "rstrip": symbol.spaces_after, "single_word": symbol.whole_word}
        id = record.ids[symbol.text]
        added[id] = {"id": id, "content": symbol.text, **flags, "normalized": symbol.normalized, "special": False}
    vocabulary = tokenizer.source
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [added[id] for id in sorted(added)],
            **record.cutting.content,
            "post_processor": _post_processor((), (names[record.eos_id],), vocabulary),
        },
        "tokenizer_config.json": tokenizer_config(vocabulary, MAXIMUM_POSITIONS)
        | {"model_input_names": ["input_ids", "attention_mask"]},
        "special_tokens_map.json": special_tokens_map(vocabulary),
    }


_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _config_content(vocabulary: Vocabulary, config: ModelConfig, inputs: Sequence[str]) -> dict[str, Any]:
    longest = config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS
    return tokenizer_config(vocabulary, longest) | {"model_input_names": list(inputs)}


def _files_with_prefix(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the tokenizer.json, by file name, of a vocabulary with language tokens or tags; else an empty dict.

    If the vocabulary has a selected target language, the tokenizer puts the language's token before each text.
    Otherwise a text may start with a token such as `>>cs<<`; the space after this token is not part of the text.
    """
    if vocabulary.before:
        before = [vocabulary.token(id) for id in vocabulary.before]
        end = (vocabulary.token(vocabulary.eos_id),)
        return {
            "tokenizer.json": tokenizer_json(vocabulary) | {"post_processor": _post_processor(before, end, vocabulary)}
        }
    names = (*map(language_token, vocabulary.target_languages), *map(tag_token, vocabulary.tags))
    if not names:
        return {}
    content: dict[str, Any] = tokenizer_json(vocabulary)
    # Special tokens would be split (`split_special_tokens`), so these are ordinary added tokens.
    added = [
        {"id": vocabulary.id(name), "content": name, **_FLAGS, "special": False} | {"rstrip": True} for name in names
    ]
    return {
        "tokenizer.json": content
        | {"added_tokens": sorted([*content["added_tokens"], *added], key=lambda token: int(token["id"]))}
    }


# --- an encoder alone -------------------------------------------------------------------------------------------


def _encoder_files(vocabulary: Vocabulary, config: ModelConfig) -> dict[str, Any]:
    named = {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    content: dict[str, Any] = tokenizer_json(vocabulary)
    # Special tokens are matched after normalization, which removes the space (▁) before them.
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": True}
    marks = [{"id": vocabulary.id(mark), "content": mark} | flags for mark in SPECIAL_TOKENS]
    content["added_tokens"] = sorted([*content["added_tokens"], *marks], key=lambda token: int(token["id"]))
    content["normalizer"]["normalizers"] += [
        {"type": "Replace", "pattern": {"String": _SPACE + mark}, "content": mark} for mark in SPECIAL_TOKENS
    ]
    content["post_processor"] = _post_processor((CLS,), (SEP,), vocabulary)
    return {
        "tokenizer.json": content,
        "tokenizer_config.json": _config_content(vocabulary, config, ("input_ids", "token_type_ids", "attention_mask"))
        | named,
        "special_tokens_map.json": special_tokens_map(vocabulary) | named,
    }


def _post_processor(before: Sequence[str], after: Sequence[str], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return a post-processor that adds special tokens before and after a text, and after the second text of a pair."""

    def special_tokens(names: Sequence[str], side: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": side}} for name in names]

    first, second = ({"Sequence": {"id": name, "type_id": side}} for side, name in enumerate("AB"))
    single = [*special_tokens(before, 0), first, *special_tokens(after, 0)]
    token_ids = {name: {"id": name, "ids": [vocabulary.id(name)], "tokens": [name]} for name in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second, *special_tokens(after, 1)],
        "special_tokens": token_ids,
    }


# --- two vocabularies -------------------------------------------------------------------------------------------


def _marian_files(tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> dict[str, Any]:
    """Return the contents of the files that Marian's tokenizer needs in addition to source.spm and target.spm.

    The files contain the ids of the tokens, the special tokens, and the settings of the tokenizer.
    """
    source, target = tokenizer.source, tokenizer.target
    special_tokens = special_tokens_map(source)
    language_settings = {"source_lang": languages[0], "target_lang": languages[1]}
    return {
        "vocab.json": _ids(source),
        "target_vocab.json": _ids(target),
        "special_tokens_map.json": special_tokens,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            **special_tokens,
            **language_settings,
            "separate_vocabs": True,
            "model_max_length": MAXIMUM_POSITIONS,
            "clean_up_tokenization_spaces": False,
            **_SPLIT_SPECIAL,
        },
    }


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: id for id, piece in enumerate(vocabulary.tokens(range(vocabulary.size)))}
