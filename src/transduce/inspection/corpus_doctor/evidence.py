"""How much more likely two lines are as translations of each other than as strangers, in nats.

Nothing is known of the languages: the weight of each feature, and which words belong together, are learnt from the
corpus, from lines that are believed to correspond against lines that stand some way apart. Words are learnt on one half
of the lines and used on the other, so that no line speaks for itself.
Legend: N lines, M pairs, C codes and W words kept of a line.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# --- features ---
# Lines as numbers that a translation keeps: length, end marks, commas, digits, codes, and rare words.
# Legend: N lines, C codes and W words kept of a line.


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

WORDS = 8  # of a line, the rarest
CODES = 4  # of a line, the longest
VOCABULARY = 3072  # words of a side that are looked at; 0 stands for none
_FEWEST_LINES = 3  # in which a word must occur
_SHORTEST_CODE = 3

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_DIGITS = re.compile(r"\d+")
_QUESTION, _EXCLAMATION, _COMMA = re.compile("[?？؟]"), re.compile("[!！]"), re.compile("[,，、;；]")


class SideFeatures(NamedTuple):
    """What is known of each line of one side."""

    length: Floats
    """Characters, (N,)."""
    ending: Ints
    """0 none, 1 question, 2 exclamation, 3 both, (N,)."""
    commas: Ints
    """0, 1, or 2 for more, (N,)."""
    digits: NDArray[np.int64]
    """A hash of the numbers in the line, 0 where there is none, (N,)."""
    codes: NDArray[np.int64]
    """Hashes of words with digits, as codes, addresses and years are, 0 where there are fewer, (N, C)."""
    words: Ints
    """The rarest words, numbered by frequency from 1, 0 where there are fewer, (N, W)."""


def side_features(lines: Sequence[str]) -> SideFeatures:
    """Features of all lines of one side."""
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
    found = np.zeros((len(lines), CODES), dtype=np.int64)
    for row, line in enumerate(lines):
        words = [word for word in _WORD.findall(line.casefold()) if len(word) >= _SHORTEST_CODE]
        codes = sorted({word for word in words if _DIGITS.search(word)}, key=lambda word: (-len(word), word))
        hashes = [_hash(code) for code in codes[:CODES]]
        found[row, : len(hashes)] = hashes
    return found


def _rare_words(lines: Sequence[str]) -> Ints:
    words = [set(_WORD.findall(line.casefold())) for line in lines]
    counts: Counter[str] = Counter()
    for each in words:
        counts.update(sorted(each))
    frequent = sorted((word for word, count in counts.items() if count >= _FEWEST_LINES), key=lambda w: (-counts[w], w))
    number = {word: place for place, word in enumerate(frequent[: VOCABULARY - 1], 1)}
    found = np.zeros((len(lines), WORDS), dtype=np.int32)
    for row, each in enumerate(words):
        known = sorted((number[word] for word in each if word in number), reverse=True)[:WORDS]
        found[row, : len(known)] = known
    return found


# --- evidence ---


Indices = NDArray[np.int64]

_FOLD_LINES = 256
_NEAREST_STRANGER, _FARTHEST_STRANGER = 20, 200
_LENGTH_BINS, _WORD_BINS = 12, 12
_CHUNK = 20_000
_MOST_NATS = 5.0  # that one feature may say


class Evidence:
    """Scores pairs of lines."""

    def __init__(self, source: SideFeatures, target: SideFeatures, lags: Indices) -> None:
        """Learns from the lines i and i + lags[i]."""
        self._source, self._target = source, target
        sources = np.arange(len(source.length))
        targets = sources + lags
        inside = (targets >= 0) & (targets < len(target.length))
        sources, targets = sources[inside], targets[inside]
        ratio = np.log((target.length[targets] + 1.0) / (source.length[sources] + 1.0))
        self._ratio = float(np.median(ratio))
        self._words = [self._learn_words(sources, targets, fold) for fold in (0, 1)]
        self._learn_weights(sources, targets)

    def score(self, sources: Indices, targets: Indices) -> Floats:
        """Nats for each pair of lines, (M,)."""
        parts = [
            self._score(sources[at : at + _CHUNK], targets[at : at + _CHUNK]) for at in range(0, len(sources), _CHUNK)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)

    def _score(self, sources: Indices, targets: Indices) -> Floats:
        cells = self._cells(sources, targets)
        total = np.zeros(len(sources), dtype=np.float32)
        for cell, weights in zip(cells, self._weights, strict=True):
            total += weights[cell]
        return total

    def _cells(self, sources: Indices, targets: Indices) -> list[Indices]:
        """Each feature of a pair as a small number."""
        a, b = self._source, self._target
        digits = np.where(
            (a.digits[sources] == 0) & (b.digits[targets] == 0),
            0,
            np.where(
                a.digits[sources] == b.digits[targets],
                1,
                np.where(
                    (a.digits[sources] == 0) | (b.digits[targets] == 0),
                    2,
                    np.where(_have_one_in_common(a.codes[sources], b.codes[targets]), 4, 3),
                ),
            ),
        )
        return [
            self._length_cells(sources, targets),
            (4 * a.ending[sources] + b.ending[targets]).astype(np.int64),
            (3 * a.commas[sources] + b.commas[targets]).astype(np.int64),
            digits,
            self._word_cells(sources, targets),
        ]

    def _length_cells(self, sources: Indices, targets: Indices) -> Indices:
        """How unequal the lengths are, in standard deviations of a sum of characters (Gale and Church 1993)."""
        expected = (self._source.length[sources] + 1.0) * np.exp(self._ratio)
        found = self._target.length[targets] + 1.0
        deviation = np.abs(found - expected) / np.sqrt(expected + found)
        return np.asarray(np.minimum(_LENGTH_BINS - 1, (2.0 * deviation).astype(np.int64)))

    def _word_cells(self, sources: Indices, targets: Indices) -> Indices:
        scores, known = self._word_scores(sources, targets)
        bins = np.minimum(_WORD_BINS - 1, (2.0 * scores).astype(np.int64))
        return np.asarray(np.where(known, bins, _WORD_BINS))

    def _word_scores(self, sources: Indices, targets: Indices) -> tuple[Floats, NDArray[np.bool_]]:
        """The mean strength of each word's strongest partner, from both sides; and whether both lines have words."""
        rows, columns = self._source.words[sources], self._target.words[targets]  # (M, W)
        fold = (sources // _FOLD_LINES) % 2
        strengths = np.empty((len(sources), rows.shape[1], columns.shape[1]), dtype=np.float32)
        for number in (0, 1):
            mine = fold == number
            strengths[mine] = self._words[1 - number][rows[mine, :, None], columns[mine, None, :]]
        counts = (rows > 0).sum(axis=1) + (columns > 0).sum(axis=1)
        total = strengths.max(axis=1).sum(axis=1) + strengths.max(axis=2).sum(axis=1)
        known = (rows[:, 0] > 0) & (columns[:, 0] > 0)
        return (total / np.maximum(1, counts)).astype(np.float32), known

    def _learn_words(self, sources: Indices, targets: Indices, fold: int) -> Floats:
        """How strongly two words belong together, (source vocabulary, target vocabulary): the log of how much more
        often they meet than by chance, with one meeting taken off.
        """
        mine = (sources // _FOLD_LINES) % 2 == fold
        left, right = self._source.words[sources[mine]], self._target.words[targets[mine]]  # (M, W)
        sizes = int(self._source.words.max(initial=0)) + 1, int(self._target.words.max(initial=0)) + 1
        table = np.zeros(sizes[0] * sizes[1], dtype=np.float32)
        for at in range(0, len(left), _CHUNK):
            codes = left[at : at + _CHUNK, :, None].astype(np.int64) * sizes[1] + right[at : at + _CHUNK, None, :]
            table += np.bincount(codes.ravel(), minlength=len(table))
        table = table.reshape(sizes)
        np.maximum(table - 1.0, 0.0, out=table)
        counts = [np.bincount(words.ravel(), minlength=size) for words, size in zip((left, right), sizes, strict=True)]
        table /= np.outer(counts[0] / max(1, len(left)), counts[1]).astype(np.float32) + np.float32(0.5)
        np.log1p(table, out=table)
        table[0] = table[:, 0] = 0.0
        return table

    def _learn_weights(self, sources: Indices, targets: Indices) -> None:
        """Each feature's log-ratio between lines that correspond and strangers from near by."""
        draw = np.random.default_rng(1)
        away = draw.integers(_NEAREST_STRANGER, _FARTHEST_STRANGER, len(targets)) * draw.choice([-1, 1], len(targets))
        strangers = targets + away
        inside = (strangers >= 0) & (strangers < len(self._target.length))
        sizes = (_LENGTH_BINS, 16, 9, 5, _WORD_BINS + 1)
        together = self._cells_in_chunks(sources, targets, sizes)
        apart = self._cells_in_chunks(sources[inside], strangers[inside], sizes)
        self._weights = [_log_ratio(a, b) for a, b in zip(together, apart, strict=True)]

    def _cells_in_chunks(self, sources: Indices, targets: Indices, sizes: tuple[int, ...]) -> list[Floats]:
        counts = [np.zeros(size, dtype=np.float32) for size in sizes]
        for at in range(0, len(sources), _CHUNK):
            cells = self._cells(sources[at : at + _CHUNK], targets[at : at + _CHUNK])
            for count, cell in zip(counts, cells, strict=True):
                count += np.bincount(cell, minlength=len(count))
        return counts


def _have_one_in_common(one: Indices, other: Indices) -> NDArray[np.bool_]:
    """Whether rows of codes, (M, C), have one in common."""
    same = (one[:, :, None] == other[:, None, :]) & (one[:, :, None] != 0)  # (M, C, C)
    return np.asarray(same.any(axis=(1, 2)))


def _log_ratio(together: Floats, apart: Floats) -> Floats:
    """Smoothed, and bounded: no single feature decides alone."""
    smoothing = 0.5
    p = (together + smoothing) / (together.sum() + smoothing * len(together))
    q = (apart + smoothing) / (apart.sum() + smoothing * len(apart))
    return np.asarray(np.clip(np.log(p / q), -_MOST_NATS, _MOST_NATS), dtype=np.float32)
