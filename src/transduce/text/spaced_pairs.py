"""BPE over characters with ▁ for spaces, by a list of merges: what `tokenizer.json` makes of sentencepiece's BPE.

Of NLLB and the first Llamas. Where sentencepiece's own model is at hand, that is used instead.
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
    """Cuts before each space where it may, then merges characters."""

    merges: tuple[tuple[str, str], ...]
    """Pairs of pieces that become one, those that were learned first before others."""
    space_first: bool = True
    """A text begins with a space, said or not."""
    split: bool = True
    """No piece goes on over a space."""
    collapse: bool = True
    """Runs of spaces are one."""
    byte_fallback: bool = False
    """Characters without a piece are spelt by bytes; otherwise runs of them are one unknown piece."""
    rules: bytes = b""
    """A normaliser's table, as sentencepiece compiles it; empty: characters stay as they are."""

    def prepare(self, known: Container[str]) -> "SpacedPairCutter":
        """What cuts into these pieces."""
        return SpacedPairCutter(self, known)


class SpacedPairCutter:
    """BPE over characters at work."""

    def __init__(self, settings: SpacedPairs, known: Container[str]) -> None:
        self._settings = settings
        self._known = known
        self._ranks = {pair: rank for rank, pair in enumerate(settings.merges)}
        model = normalizer_model(settings.rules) if settings.rules else None
        self._normalizer = None if model is None else SentencePieceProcessor(model_proto=model)
        self._cut_word = lru_cache(maxsize=1 << 16)(self._merge)

    def normalize(self, text: str) -> str:
        """The text itself: symbols are looked for in what is written."""
        return text

    def cut(self, text: str) -> list[str]:
        """The pieces of a text."""
        if self._normalizer is not None:
            # The model's normaliser writes spaces as ▁.
            text = self._normalizer.normalize(text).replace(_SPACE, " ")
        if self._settings.collapse:
            text = re.sub(" {2,}", " ", text)
        text = text.replace(" ", _SPACE)
        if self._settings.space_first and not text.startswith(_SPACE):
            text = _SPACE + text
        words = re.findall(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}", text) if self._settings.split else [text]
        return [piece for word in words for piece in self._cut_word(word)]

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""
        content = bytearray()
        for piece in pieces:
            byte = byte_of(piece) if self._settings.byte_fallback else None
            content += piece.replace(_SPACE, " ").encode() if byte is None else bytes([byte])
        text = content.decode("utf-8", "replace")
        return text.removeprefix(" ") if self._settings.space_first else text

    def _merge(self, word: str) -> tuple[str, ...]:
        return tuple(merge(list(self._characters(word)), self._ranks))

    def _characters(self, word: str) -> Iterator[str]:
        """A word's characters, those without a piece as bytes or as runs."""
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
