"""Export of a vocabulary to Hugging Face's ``tokenizer.json``, with the same ids and without that library.

The steps repeat sentencepiece's. Spaces are trimmed and collapsed, one is put in front, and each becomes ▁. Words are
split before ▁, the model is applied (no token spans two words), and characters without a token become bytes. If a
vocabulary keeps all spaces, none are trimmed or collapsed, and a run of them stays with the word after it. One
difference cannot be expressed in that file: the library reads "</s>", "<pad>" and "<unk>" in a text as special
tokens. sentencepiece reads them as plain characters, as does the library with `encode_special_tokens`.
"""

import re

from transduce.text.sentencepiece_model import Piece, PieceType, is_bpe, keeps_spaces, puts_space_first, read_pieces
from transduce.text.vocabulary import Vocabulary

_SPACE = "▁"
# sentencepiece removes all spaces at the start of a sentence; the library needs a number.
_MAX_LEADING_SPACES = 1_000


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, object]:
    """Return the content of tokenizer.json, whose ids equal the vocabulary's; the end symbol is appended."""
    pieces = read_pieces(vocabulary.model_bytes)
    merging = is_bpe(vocabulary.model_bytes)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special_token(id, vocabulary.token(id)) for id in _special_ids(vocabulary)],
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": _word_cutter(pieces, merging),
        "post_processor": _end_appender(vocabulary),
        "decoder": _decoder(vocabulary.model_bytes),
        "model": _bpe(pieces) if merging else _unigram(pieces),
    }


def tokenizer_config(vocabulary: Vocabulary, model_max_length: int) -> dict[str, object]:
    """Return the content of tokenizer_config.json; ``model_max_length`` is the longest input in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens_map(vocabulary),
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }


def special_tokens_map(vocabulary: Vocabulary) -> dict[str, object]:
    """Return the content of special_tokens_map.json."""
    return {
        "pad_token": vocabulary.token(vocabulary.pad_id),
        "eos_token": vocabulary.token(vocabulary.eos_id),
        "unk_token": vocabulary.token(vocabulary.unk_id),
    }


def _special_ids(vocabulary: Vocabulary) -> list[int]:
    return sorted((vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id))


def _special_token(id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags}


def _texts(pieces: list[Piece], type: PieceType) -> list[str]:
    return [piece.text for piece in pieces if piece.type is type]


def _normalizer(vocabulary: Vocabulary) -> dict[str, object]:
    steps = [] if keeps_spaces(vocabulary.model_bytes) else _one_space_between_words()
    if puts_space_first(vocabulary.model_bytes):
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append(_replace({"String": " "}, _SPACE))
    return {"type": "Sequence", "normalizers": [{"type": "NFC"}, *steps] if vocabulary.nfc else steps}


def _one_space_between_words() -> list[dict[str, object]]:
    return [
        _replace({"Regex": " +"}, " "),
        _replace({"Regex": r"\A "}, ""),
        # A literal ▁ at the end counts as a space, as in sentencepiece.
        _replace({"Regex": rf"[ {_SPACE}]+\z"}, ""),
    ]


def _replace(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _word_cutter(pieces: list[Piece], merging: bool) -> dict[str, object]:
    """Return the pre-tokenizer, which splits around user symbols, longest first, and before each ▁ or run of ▁."""
    cutters = []
    symbols = _texts(pieces, PieceType.USER_DEFINED)
    if symbols:
        longest_first = sorted(symbols, key=len, reverse=True)
        cutters.append(_split({"Regex": "|".join(map(re.escape, longest_first))}, "Isolated"))
    if _texts(pieces, PieceType.BYTE) and (symbols or not merging):
        # If whole words are looked up, the six characters "<0x41>" in a text must not match the byte token.
        cutters.append(_split({"Regex": "<(?=0x[0-9A-F]{2}>)"}, "Isolated"))
    if symbols or not merging:
        # Nor may "</s>" match the end symbol. If "<" and "/" have no tokens, they are one unknown token together.
        names = [*_texts(pieces, PieceType.CONTROL), *_texts(pieces, PieceType.UNKNOWN)]
        cutters.append(
            _split({"Regex": "|".join(re.sub("^(</?)(.*)", r"\1(?=\2)", name) for name in names)}, "Isolated")
        )
    has_runs = any(piece.text.startswith(2 * _SPACE) for piece in pieces)
    cutters.append(_split({"Regex": f"{_SPACE}+"} if has_runs else {"String": _SPACE}, "MergedWithNext"))
    return {"type": "Sequence", "pretokenizers": cutters}


def _split(pattern: dict[str, str], behavior: str) -> dict[str, object]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


def _end_appender(vocabulary: Vocabulary) -> dict[str, object]:
    end = vocabulary.token(vocabulary.eos_id)
    special = {"SpecialToken": {"id": end, "type_id": 0}}
    first, second = ({"Sequence": {"id": side, "type_id": 0}} for side in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, special],
        "pair": [first, second, special],
        "special_tokens": {end: {"id": end, "ids": [vocabulary.eos_id], "tokens": [end]}},
    }


def _decoder(model_bytes: bytes) -> dict[str, object]:
    steps: list[dict[str, object]] = [
        _replace({"String": _SPACE}, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if puts_space_first(model_bytes):
        max_spaces = 1 if keeps_spaces(model_bytes) else _MAX_LEADING_SPACES
        steps.append({"type": "Strip", "content": " ", "start": max_spaces, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _bpe(pieces: list[Piece]) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": _texts(pieces, PieceType.UNKNOWN)[0],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": bool(_texts(pieces, PieceType.BYTE)),
        # A user symbol is a separate word without merges, so whole words are looked up.
        "ignore_merges": bool(_texts(pieces, PieceType.USER_DEFINED)),
        "vocab": {piece.text: id for id, piece in enumerate(pieces)},
        "merges": _merges(pieces),
    }


def _merges(pieces: list[Piece]) -> list[list[str]]:
    """Return all pairs of pieces that form a learned piece, ordered by the piece's score.

    sentencepiece joins any two neighbors whose union is a piece, the highest score first; merges in the order of the
    scores do the same.
    """
    ranks = {piece.text: -piece.score for piece in pieces if piece.type is PieceType.NORMAL}
    merges = []
    for text in sorted(ranks, key=ranks.__getitem__):
        halves = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        valid = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(valid, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return [list(pair) for pair in merges]


def _unigram(pieces: list[Piece]) -> dict[str, object]:
    return {
        "type": "Unigram",
        "unk_id": next(id for id, piece in enumerate(pieces) if piece.type is PieceType.UNKNOWN),
        "byte_fallback": bool(_texts(pieces, PieceType.BYTE)),
        "vocab": [[piece.text, piece.score] for piece in pieces],
    }
