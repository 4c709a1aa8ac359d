"""Byte-level BPE, as GPT-2, BART, RoBERTa, Llama 3 and Qwen2 have it (Radford et al. 2019).

A text is cut into words by a pattern, each word's UTF-8 bytes are written as printable characters, and neighbours are
merged, the pair that was learned first before all others.
"""

import re
import unicodedata
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Literal

import msgspec

PatternName = Literal["gpt2", "llama3", "qwen2", "none"]
_WRITTEN: dict[PatternName, str] = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
PATTERNS: dict[str, PatternName] = {pattern: name for name, pattern in _WRITTEN.items()}
"""The patterns that are known, as tokenizer.json writes them."""


def _over_outlines(pattern: str) -> str:
    """The same over characters that stand for their classes: see `_outline`."""
    for kind, inside in ((r"\p{L}", "A-Za-z"), (r"\p{N}", "0-9")):
        pattern = re.sub(rf"\[([^\]]*){re.escape(kind)}", rf"[\g<1>{inside}", pattern).replace(kind, f"[{inside}]")
    return pattern


_PATTERNS = {name: _over_outlines(pattern) for name, pattern in _WRITTEN.items()}

# Unicode's White_Space, of which Python's own list differs.
_SPACES = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(code) for code in range(0x2000, 0x200B)
}
_REMEMBERED_WORDS = 1 << 16


class ByteLevelPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="byte-level"):
    """Cuts into words, then merges bytes."""

    merges: tuple[tuple[str, str], ...]
    """Pairs of pieces that become one, those that were learned first before others."""
    pattern: PatternName = "gpt2"
    """How words are told apart; `none`: they are not, and pieces may reach across."""
    space_first: bool = False
    """A text that does not begin with a space gets one."""
    whole_words: bool = False
    """A word that is a piece is not merged together but taken as it is."""
    composed: bool = False
    """A text is brought into Unicode's form NFC first."""

    def prepare(self, known: Container[str]) -> "BytePairCutter":
        """What cuts into these pieces."""
        return BytePairCutter(self, known)


class BytePairCutter:
    """Byte-level BPE at work. It remembers words."""

    def __init__(self, settings: ByteLevelPairs, known: Container[str]) -> None:
        self._settings = settings
        self._known = known
        self._ranks = {pair: rank for rank, pair in enumerate(settings.merges)}
        self._remembered: dict[str, Sequence[str]] = {}

    def normalize(self, text: str) -> str:
        """The text that is cut, but for the space that may be put before it."""
        return unicodedata.normalize("NFC", text) if self._settings.composed else text

    def cut(self, text: str) -> list[str]:
        """The pieces of a text."""
        text = self.normalize(text)
        if self._settings.space_first and text and text[0] not in _SPACES:
            text = f" {text}"
        return [piece for word in split_words(text, self._settings.pattern) for piece in self._cut_word(word)]

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces. What is no piece of bytes stands as it is; broken characters become U+FFFD."""
        return b"".join(map(self.bytes_of, pieces)).decode("utf-8", "replace")

    def bytes_of(self, piece: str) -> bytes:
        """What a piece spells in UTF-8, which may be a part of a character."""
        found = (_BYTES.get(character, character) for character in piece)
        return b"".join(bytes([each]) if isinstance(each, int) else each.encode() for each in found)

    def _cut_word(self, word: str) -> Sequence[str]:
        known = self._remembered.get(word)
        if known is None:
            if len(self._remembered) >= _REMEMBERED_WORDS:
                self._remembered.clear()
            known = self._remembered[word] = self._merge("".join(_CHARACTERS[byte] for byte in word.encode()))
        return known

    def _merge(self, word: str) -> Sequence[str]:
        """Merges neighbours until no pair was learned."""
        if self._settings.whole_words and word in self._known:
            return [word]
        return merge(list(word), self._ranks)


def split_words(text: str, pattern: PatternName) -> list[str]:
    """The words of a text by a known pattern."""
    if pattern == "none":
        return [text] if text else []
    return [text[match.start() : match.end()] for match in re.finditer(_PATTERNS[pattern], _outline(text))]


def _outline(text: str) -> str:
    """The text with a character for each class in place of all others of it, so that a plain pattern can tell them."""
    return text if text.isascii() and not _RARE.search(text) else "".join(map(_stand_in, text))


@lru_cache(maxsize=1 << 16)
def _stand_in(character: str) -> str:
    if character in _SPACES:
        return character if character in " \r\n" else "\t"
    if character.isascii() and character.isprintable():
        return character
    return {"L": "a", "N": "0"}.get(unicodedata.category(character)[0], "!")


_RARE = re.compile(r"[\x1c-\x1f]")  # spaces to Python alone


def _byte_alphabet() -> dict[int, str]:
    """A printable character for each byte: itself where it is one, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


_CHARACTERS = _byte_alphabet()
_BYTES = {character: byte for byte, character in _CHARACTERS.items()}


def merge(parts: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Neighbours that have a rank become one, the lowest rank and the leftmost first, until none has."""
    parts = [*parts, ""]  # the last one's neighbour, of which no pair is known
    after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
    waiting = [(rank, place) for place, pair in enumerate(pairwise(parts)) if (rank := ranks.get(pair)) is not None]
    heapify(waiting)
    while waiting:
        rank, place = heappop(waiting)
        if not parts[place] or ranks.get((parts[place], parts[after[place]])) != rank:
            continue  # one of the two has become a part of another
        gone = after[place]
        parts[place] += parts[gone]
        parts[gone] = ""
        after[place] = after[gone]
        before[after[gone]] = place
        for left in (before[place], place):
            if left >= 0 and (found := ranks.get((parts[left], parts[after[left]]))) is not None:
                heappush(waiting, (found, left))
    return [part for part in parts if part]
