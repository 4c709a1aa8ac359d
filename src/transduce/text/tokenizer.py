"""Tokenize texts for a model, by a vocabulary for the source side and one for the target side, often the same.

The vocabularies can also be written as Hugging Face's tokenizer files.
"""

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from transduce.atomic_io import json_bytes, write_file, write_json
from transduce.errors import TransduceError, explain_wrong_types
from transduce.text.corpus import Pair
from transduce.text.files import compose, is_decodable
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import (
    MAX_TRAINING_LINES,
    SPACE,
    Piece,
    PieceType,
    TokenizerSettings,
    is_bpe,
    is_plain,
    keeps_spaces,
    puts_space_first,
    read_pieces,
    train_model,
)
from transduce.text.vocabulary import Vocabulary, without_spaces_before

_FORMAT_VERSION = 1
TOKENIZER_CARD = "tokenizer_settings.json"
_JOINT_NAMES = ("sentencepiece.model",)
_SEPARATE_NAMES = ("source.spm", "target.spm")


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of a file beside the sentencepiece models: the tokenizer's settings that the models do not store."""

    format_version: int
    joint: bool
    nfc: bool


@explain_wrong_types
class Tokenizer:
    """A translation model's tokenizer: a source and a target vocabulary, one object if the vocabulary is joint."""

    def __init__(self, source: Vocabulary, target: Vocabulary | None = None) -> None:
        """Create a tokenizer from vocabularies.

        Args:
            source: the vocabulary of source texts.
            target: the vocabulary of target texts; None: the source vocabulary serves both sides.
        """
        self.source = source
        self.target = target if target is not None else source
        self.joint = self.target is self.source

    @classmethod
    def train(
        cls, read_pairs: Callable[[], Iterable[Pair]], settings: TokenizerSettings, *, adjust: bool = False
    ) -> "Tokenizer":
        """Learn a tokenizer's vocabularies from sentence pairs; the same pairs give the same files on every run.

        ``read_pairs`` is called several times and must return the same pairs each time. Texts are composed (Unicode
        NFC). A corpus of more than 2,000,000 lines is sampled evenly. If the vocabulary size does not fit the text,
        other sizes are tried with ``adjust``, at most two. The size in use is that of the vocabulary, such as
        ``source.size``.

        Raises:
            TransduceError: the vocabulary size does not fit the text, there is no text, or the kind is `word`.
        """
        if settings.kind == "word":
            raise TransduceError(
                "`Tokenizer.train` learns parts of words, but `kind` is word: choose bpe, unigram or character, or "
                "train with `tokenizer.kind` = word in the settings of a run."
            )
        count = sum(1 for _ in read_pairs())

        def learn(*sides: int) -> Vocabulary:
            def read_lines() -> Iterator[str]:
                for pair in _sample(read_pairs(), count, MAX_TRAINING_LINES // len(sides)):
                    texts = ((pair.source, pair.target)[side] for side in sides)
                    yield from map(compose, filter(is_decodable, texts))

            return Vocabulary(train_model(read_lines, settings, adjust=adjust), nfc=settings.nfc)

        return cls(learn(0, 1)) if settings.joint else cls(learn(0), learn(1))

    def for_target(self, language: str) -> "Tokenizer":
        """Return a copy of the tokenizer whose source sentences start with the token of a target language.

        Raises:
            TransduceError: the vocabulary has no token for the language.
        """
        tokenizer = copy.copy(self)
        tokenizer.source = self.source.for_target(language)
        return tokenizer

    def for_tag(self, tag: str) -> "Tokenizer":
        """Return a copy of the tokenizer whose source sentences start with the token of a tag, such as a domain.

        Raises:
            TransduceError: the vocabulary has no token for the tag.
        """
        tokenizer = copy.copy(self)
        tokenizer.source = self.source.for_tag(tag)
        return tokenizer

    @property
    def writes_line_feeds(self) -> bool:
        """True if both vocabularies have a token for line feeds in texts to translate."""
        return self.source.writes_line_feeds and self.target.writes_line_feeds

    @property
    def fingerprint(self) -> str:
        """The SHA-256 (hexadecimal) of all that determines token ids, equal for models with the same tokenizer."""
        digest = hashlib.sha256(self._card())
        for vocabulary in self._vocabularies():
            digest.update(hashlib.sha256(vocabulary.model_bytes).digest())
        return digest.hexdigest()

    def save(self, folder: str | Path, *, model_max_length: int = 1024) -> None:
        """Write the tokenizer to a folder: sentencepiece models, Hugging Face's files, and settings.

        A joint vocabulary is written as sentencepiece.model, tokenizer.json, tokenizer_config.json and
        special_tokens_map.json. AutoTokenizer can open the folder. Two vocabularies are written as source.spm and
        target.spm, each with a file such as source.tokenizer.json. AutoTokenizer cannot open these, since it holds one
        vocabulary. Hugging Face's files are left out for a sentencepiece model that they cannot describe, such as one
        that rewrites characters.

        Args:
            folder: the folder, created if missing.
            model_max_length: the longest input in tokens, for tokenizer_config.json.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = _JOINT_NAMES if self.joint else _SEPARATE_NAMES
        for name, vocabulary in zip(names, self._vocabularies(), strict=True):
            write_file(folder / name, vocabulary.model_bytes)
            if is_plain(vocabulary.model_bytes):
                json_name = "tokenizer.json" if self.joint else f"{Path(name).stem}.tokenizer.json"
                write_json(folder / json_name, tokenizer_json(vocabulary), indent=1)
        if self.joint and is_plain(self.source.model_bytes):
            write_json(folder / "tokenizer_config.json", tokenizer_config(self.source, model_max_length), indent=1)
            write_json(folder / "special_tokens_map.json", special_tokens_map(self.source), indent=1)
        write_file(folder / TOKENIZER_CARD, self._card())

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Load a tokenizer from a folder that ``save`` has written.

        Raises:
            TransduceError: a file is missing or broken, or of another format version.
        """
        card = _read_card(Path(folder) / TOKENIZER_CARD)
        names = _JOINT_NAMES if card.joint else _SEPARATE_NAMES
        return cls(*(Vocabulary.read(Path(folder) / name, nfc=card.nfc) for name in names))

    def _vocabularies(self) -> tuple[Vocabulary, ...]:
        return (self.source,) if self.joint else (self.source, self.target)

    def _card(self) -> bytes:
        card = _Card(format_version=_FORMAT_VERSION, joint=self.joint, nfc=self.source.nfc)
        return json_bytes(card)


def placeholder_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a tuple of the placeholder tokens (for protected text) that both vocabularies of a tokenizer have.

    The tuple is empty for a model that was trained without placeholders.
    """
    sides = {id(side): side for side in (tokenizer.source, tokenizer.target)}.values()
    return tuple(token for token in PLACEHOLDER_TOKENS if all(side.has_special_token(token) for side in sides))


def without_bare_spaces(ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Remove single-space tokens directly before placeholder tokens from token ids; return the others as a list.

    Training data never have a space token there. All ids stay if the vocabulary has no placeholders or no such space
    token.
    """
    placeholders = _placeholder_ids(vocabulary)
    return without_spaces_before(placeholders, ids, vocabulary) if placeholders else list(ids)


@lru_cache(maxsize=16)
def _placeholder_ids(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(vocabulary.id(token) for token in PLACEHOLDER_TOKENS if vocabulary.has_special_token(token))


def _sample(pairs: Iterable[Pair], count: int, sample_size: int) -> Iterator[Pair]:
    """Yield an evenly spaced sample of `sample_size` out of `count` sentence pairs, or all pairs if they are fewer."""
    for index, pair in enumerate(pairs):
        if (index + 1) * sample_size // count > index * sample_size // count:
            yield pair


def _read_card(path: Path) -> _Card:
    try:
        card = msgspec.json.decode(path.read_bytes(), type=_Card)
    except FileNotFoundError:
        raise TransduceError(
            f"{path} does not exist: {path.parent} holds no tokenizer, choose another folder."
        ) from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} is not a tokenizer's description ({error}): copy the folder again.") from None
    if card.format_version != _FORMAT_VERSION:
        raise TransduceError(
            f"{path} has format {card.format_version}, but this version reads format {_FORMAT_VERSION}: "
            "use the version that wrote it."
        )
    return card


# --- export to Hugging Face's tokenizer.json ---
# The steps repeat sentencepiece's, with the same ids. Spaces are trimmed and collapsed, one is put in front, and each
# becomes ▁. Words are split before ▁, the model is applied (no token spans two words), and characters without a token
# become bytes. If a vocabulary keeps all spaces, none are trimmed or collapsed, and a run of them stays with the word
# after it. One difference cannot be expressed in that file: the library reads "</s>", "<pad>" and "<unk>" in a text as
# special tokens. sentencepiece reads them as plain characters, as does the library with `encode_special_tokens`.

# sentencepiece removes all spaces at the start of a sentence; the library needs a number.
_MAX_LEADING_SPACES = 1_000


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, object]:
    """Return the content of Hugging Face's tokenizer.json for a vocabulary, as a dict.

    The tokenizer in the file has the same token ids as the vocabulary, and appends the end symbol to every text.
    """
    pieces = read_pieces(vocabulary.model_bytes)
    merging = is_bpe(vocabulary.model_bytes)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _special_token(id, vocabulary.token(id))
            for id in sorted((vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id))
        ],
        "normalizer": _normalizer(vocabulary),
        "pre_tokenizer": _word_splitter(pieces, merging),
        "post_processor": _end_appender(vocabulary),
        "decoder": _decoder(vocabulary.model_bytes),
        "model": _bpe(pieces) if merging else _unigram(pieces),
    }


def tokenizer_config(vocabulary: Vocabulary, model_max_length: int) -> dict[str, object]:
    """Return the content of Hugging Face's tokenizer_config.json, a dict.

    Inputs have at most ``model_max_length`` tokens.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens_map(vocabulary),
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
    }


def special_tokens_map(vocabulary: Vocabulary) -> dict[str, object]:
    """Return the content of Hugging Face's special_tokens_map.json, a dict: the padding, end and unknown tokens."""
    return {
        "pad_token": vocabulary.token(vocabulary.pad_id),
        "eos_token": vocabulary.token(vocabulary.eos_id),
        "unk_token": vocabulary.token(vocabulary.unk_id),
    }


def _special_token(id: int, content: str) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content, **flags}


def _texts(pieces: list[Piece], type: PieceType) -> list[str]:
    return [piece.text for piece in pieces if piece.type is type]


def _normalizer(vocabulary: Vocabulary) -> dict[str, object]:
    steps = [] if keeps_spaces(vocabulary.model_bytes) else _one_space_between_words()
    if puts_space_first(vocabulary.model_bytes):
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(replace_step({"String": " "}, SPACE))
    return {"type": "Sequence", "normalizers": [{"type": "NFC"}, *steps] if vocabulary.composes else steps}


def _one_space_between_words() -> list[dict[str, object]]:
    return [
        replace_step({"Regex": " +"}, " "),
        replace_step({"Regex": r"\A "}, ""),
        # A literal ▁ at the end counts as a space, as in sentencepiece.
        replace_step({"Regex": rf"[ {SPACE}]+\z"}, ""),
    ]


def replace_step(pattern: dict[str, str], content: str) -> dict[str, Any]:
    """Return a tokenizer.json step (a dict) that replaces each match of a pattern by `content`.

    The pattern is `{"String": …}` or `{"Regex": …}`.
    """
    return {"type": "Replace", "pattern": pattern, "content": content}


def _word_splitter(pieces: list[Piece], merging: bool) -> dict[str, object]:
    """Return the `pre_tokenizer` of a tokenizer.json, a dict; it splits a text before each space symbol ▁.

    If a piece of the vocabulary begins with ▁▁, the text is split before each run of ▁ instead. User-defined symbols
    become words of their own. A name of a special token in the text, such as `</s>`, is split so that it does not
    become that token. BPE without user-defined symbols does not need this.

    Args:
        pieces: the pieces of the vocabulary.
        merging: True for BPE, False for a unigram model.
    """
    cutters = []
    symbols = _texts(pieces, PieceType.USER_DEFINED)
    if symbols:
        longest_first = sorted(symbols, key=len, reverse=True)
        cutters.append(split_step({"Regex": "|".join(map(re.escape, longest_first))}, "Isolated"))
    if _texts(pieces, PieceType.BYTE) and (symbols or not merging):
        # Where whole words are looked up, the six characters "<0x41>" in a text must not match the byte token.
        cutters.append(split_step({"Regex": "<(?=0x[0-9A-F]{2}>)"}, "Isolated"))
    if symbols or not merging:
        # Nor may "</s>" match the end symbol. If "<" and "/" have no tokens, they are one unknown token together.
        names = [*_texts(pieces, PieceType.CONTROL), *_texts(pieces, PieceType.UNKNOWN)]
        cutters.append(
            split_step({"Regex": "|".join(re.sub("^(</?)(.*)", r"\1(?=\2)", name) for name in names)}, "Isolated")
        )
    has_runs = any(piece.text.startswith(2 * SPACE) for piece in pieces)
    cutters.append(split_step({"Regex": f"{SPACE}+"} if has_runs else {"String": SPACE}, "MergedWithNext"))
    return {"type": "Sequence", "pretokenizers": cutters}


def split_step(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    """Return a tokenizer.json step (a dict) that splits a text at each match of a pattern.

    Args:
        pattern: `{"String": …}` or `{"Regex": …}`.
        behavior: what becomes of the matched text, by a name of the `tokenizers` package such as Isolated.
    """
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
    steps: list[dict[str, object]] = [replace_step({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
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
    """Return the merges of a BPE vocabulary, a list of [left, right] pieces.

    Any two pieces whose concatenation is a piece are a merge. The merges are ordered by the score of the concatenation,
    highest first, as sentencepiece applies them.
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
