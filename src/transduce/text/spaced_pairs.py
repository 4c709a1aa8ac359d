"""BPE over characters with ▁ for spaces, by a list of merges, as `tokenizer.json` represents sentencepiece's BPE.

NLLB and the first Llamas use it. If sentencepiece's own model file is available, that is used instead.
"""

import re
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache

import msgspec
from sentencepiece import SentencePieceProcessor

from transduce.text.byte_level import merge
from transduce.text.foreign_sentencepiece import normalizer_model
from transduce.text.vocabulary import byte_of

_SPACE = "▁"


class SpacedPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="spaced-pairs"):
    """Settings of a tokenizer that splits text before spaces and then merges characters."""

    merges: tuple[tuple[str, str], ...]
    """Pairs of tokens to merge, in order of priority."""
    space_first: bool = True
    """Whether a space is inserted before a text that has none."""
    split: bool = True
    """Whether no token crosses a space."""
    collapse: bool = True
    """Whether runs of spaces become one."""
    byte_fallback: bool = False
    """Whether characters without a token are encoded as bytes; otherwise a run of them is one unknown token."""
    rules: bytes = b""
    """A normalizer's table, as compiled by sentencepiece; empty: characters are not normalized."""

    def prepare(self, known: Container[str]) -> "SpacedPairCutter":
        """Return a tokenizer with these settings for a vocabulary of known tokens."""
        return SpacedPairCutter(self, known)


class SpacedPairCutter:
    """A tokenizer of BPE over characters."""

    def __init__(self, settings: SpacedPairs, known: Container[str]) -> None:
        self._settings = settings
        self._known = known
        self._ranks = {pair: rank for rank, pair in enumerate(settings.merges)}
        model = normalizer_model(settings.rules) if settings.rules else None
        self._normalizer = None if model is None else SentencePieceProcessor(model_proto=model)
        self._cut_word = lru_cache(maxsize=1 << 16)(self._merge)

    def normalize(self, text: str) -> str:
        """Return the text unchanged, as symbols are matched in the original text."""
        return text

    def cut(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        if self._normalizer is not None:
            # The model's normalizer writes spaces as ▁.
            text = self._normalizer.normalize(text).replace(_SPACE, " ")
        if self._settings.collapse:
            text = re.sub(" {2,}", " ", text)
        text = text.replace(" ", _SPACE)
        if self._settings.space_first and not text.startswith(_SPACE):
            text = _SPACE + text
        words = re.findall(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}", text) if self._settings.split else [text]
        return [piece for word in words for piece in self._cut_word(word)]

    def join(self, pieces: Sequence[str]) -> str:
        """Return the text of tokens."""
        content = bytearray()
        for piece in pieces:
            byte = byte_of(piece) if self._settings.byte_fallback else None
            content += piece.replace(_SPACE, " ").encode() if byte is None else bytes([byte])
        text = content.decode("utf-8", "replace")
        return text.removeprefix(" ") if self._settings.space_first else text

    def _merge(self, word: str) -> tuple[str, ...]:
        return tuple(merge(list(self._characters(word)), self._ranks))

    def _characters(self, word: str) -> Iterator[str]:
        """Yield a word's characters, with those outside the vocabulary as bytes or runs."""
        unknown = ""
        for character in word:
            if character in self._known:
                if unknown:
                    yield unknown
                unknown = ""
                yield character
            elif self._settings.byte_fallback:
                yield from (f"<0x{byte:02X}>" for byte in character.encode())
            else:
                unknown += character
        if unknown:
            yield unknown
