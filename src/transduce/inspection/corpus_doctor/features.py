"""Numeric features of lines that translation preserves: length, end marks, commas, digits, codes and rare words.

Shapes: N lines, C codes and W words kept per line.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

WORDS = 8  # the rarest of a line
CODES = 4  # the longest of a line
VOCABULARY = 3072  # words kept per side, including 0 for none
_MIN_LINES = 3  # in which a word must occur
_MIN_CODE_CHARACTERS = 3

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_DIGITS = re.compile(r"\d+")
_QUESTION, _EXCLAMATION, _COMMA = re.compile("[?？؟]"), re.compile("[!！]"), re.compile("[,，、;；]")


class SideFeatures(NamedTuple):
    """The features of all lines of one side."""

    length: Floats
    """Characters, (N,)."""
    ending: Ints
    """0 no mark, 1 question mark, 2 exclamation mark, 3 both, (N,)."""
    commas: Ints
    """0, 1, or 2 for two or more, (N,)."""
    digits: NDArray[np.int64]
    """A hash of the numbers in each line, or 0 if it has none, (N,)."""
    codes: NDArray[np.int64]
    """Hashes of words with digits, such as product codes, addresses and years; padded with 0, (N, C)."""
    words: Ints
    """The rarest words of each line as numbers by frequency from 1; padded with 0, (N, W)."""


def side_features(lines: Sequence[str]) -> SideFeatures:
    """Return the features of all lines of one side."""
    return SideFeatures(
        length=np.array([len(line) for line in lines], dtype=np.float32),
        ending=np.array([_ending(line) for line in lines], dtype=np.int32),
        commas=np.array([min(2, len(_COMMA.findall(line))) for line in lines], dtype=np.int32),
        digits=np.array([_digits(line) for line in lines], dtype=np.int64),
        codes=_codes(lines),
        words=_rare_words(lines),
    )


def _ending(line: str) -> int:
    return bool(_QUESTION.search(line)) + 2 * bool(_EXCLAMATION.search(line))


def _digits(line: str) -> int:
    numbers = _DIGITS.findall(line)
    if not numbers:
        return 0
    return _hash(" ".join(sorted(str(int(number)) if len(number) < 20 else number for number in numbers)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest()) + 1


def _codes(lines: Sequence[str]) -> NDArray[np.int64]:
    table = np.zeros((len(lines), CODES), dtype=np.int64)
    for row, line in enumerate(lines):
        words = [word for word in _WORD.findall(line.casefold()) if len(word) >= _MIN_CODE_CHARACTERS]
        codes = sorted({word for word in words if _DIGITS.search(word)}, key=lambda word: (-len(word), word))
        hashes = [_hash(code) for code in codes[:CODES]]
        table[row, : len(hashes)] = hashes
    return table


def _rare_words(lines: Sequence[str]) -> Ints:
    words = [set(_WORD.findall(line.casefold())) for line in lines]
    counts: Counter[str] = Counter()
    for line_words in words:
        counts.update(sorted(line_words))
    frequent = sorted((word for word, count in counts.items() if count >= _MIN_LINES), key=lambda w: (-counts[w], w))
    rank_by_word = {word: rank for rank, word in enumerate(frequent[: VOCABULARY - 1], 1)}
    table = np.zeros((len(lines), WORDS), dtype=np.int32)
    for row, line_words in enumerate(words):
        ranks = sorted((rank_by_word[word] for word in line_words if word in rank_by_word), reverse=True)[:WORDS]
        table[row, : len(ranks)] = ranks
    return table
