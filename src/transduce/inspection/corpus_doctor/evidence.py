"""Score how much more likely two lines are translations of each other than unrelated, in nats.

It needs no knowledge of the languages. The weights of the features and the word associations are learned from the
corpus, by comparing lines that seem to correspond with lines some distance apart. Word associations are learned on
one half of the lines and used on the other, so that no line supports itself.
Shapes: N lines, M pairs, C codes and W words kept per line.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# --- features ---
# Numeric features of lines that translation preserves: length, end marks, commas, digits, codes and rare words.
# Shapes: N lines, C codes and W words kept per line.


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


# --- evidence from features ---

Indices = NDArray[np.int64]

_FOLD_LINES = 256
_MIN_DISTANCE, _MAX_DISTANCE = 20, 200  # of unrelated lines
_LENGTH_BINS, _WORD_BINS = 12, 12
_CHUNK = 20_000
_MAX_NATS = 5.0  # of one feature


class Evidence:
    """A scorer of whether two lines are translations of each other, learned from the corpus itself."""

    def __init__(self, source: SideFeatures, target: SideFeatures, lags: Indices) -> None:
        """Learn which words and lengths correspond from the line pairs (i, i + lags[i])."""
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
        """Return the evidence, in nats, that each pair of lines consists of translations, (M,)."""
        parts = [
            self._score_chunk(sources[start : start + _CHUNK], targets[start : start + _CHUNK])
            for start in range(0, len(sources), _CHUNK)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)

    def _score_chunk(self, sources: Indices, targets: Indices) -> Floats:
        cells = self._feature_cells(sources, targets)
        total = np.zeros(len(sources), dtype=np.float32)
        for cell, weights in zip(cells, self._weights, strict=True):
            total += weights[cell]
        return total

    def _feature_cells(self, sources: Indices, targets: Indices) -> list[Indices]:
        """Return the histogram cell of each feature for each pair of lines."""
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
        """Return the cell of the length difference in standard deviations, as by Gale and Church (1993)."""
        expected = (self._source.length[sources] + 1.0) * np.exp(self._ratio)
        actual = self._target.length[targets] + 1.0
        deviation = np.abs(actual - expected) / np.sqrt(expected + actual)
        return np.asarray(np.minimum(_LENGTH_BINS - 1, (2.0 * deviation).astype(np.int64)))

    def _word_cells(self, sources: Indices, targets: Indices) -> Indices:
        scores, have_words = self._word_scores(sources, targets)
        bins = np.minimum(_WORD_BINS - 1, (2.0 * scores).astype(np.int64))
        return np.asarray(np.where(have_words, bins, _WORD_BINS))

    def _word_scores(self, sources: Indices, targets: Indices) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the mean association of words with their best partners, and whether both lines have words."""
        rows, columns = self._source.words[sources], self._target.words[targets]  # (M, W)
        fold = (sources // _FOLD_LINES) % 2
        strengths = np.empty((len(sources), rows.shape[1], columns.shape[1]), dtype=np.float32)
        for number in (0, 1):
            in_fold = fold == number
            strengths[in_fold] = self._words[1 - number][rows[in_fold, :, None], columns[in_fold, None, :]]
        counts = (rows > 0).sum(axis=1) + (columns > 0).sum(axis=1)
        total = strengths.max(axis=1).sum(axis=1) + strengths.max(axis=2).sum(axis=1)
        have_words = (rows[:, 0] > 0) & (columns[:, 0] > 0)
        return (total / np.maximum(1, counts)).astype(np.float32), have_words

    def _learn_words(self, sources: Indices, targets: Indices, fold: int) -> Floats:
        """Return the association of each word pair, (source vocabulary, target vocabulary).

        It is the log of the ratio of joint occurrences, minus one, to those expected by chance.
        """
        in_fold = (sources // _FOLD_LINES) % 2 == fold
        left, right = self._source.words[sources[in_fold]], self._target.words[targets[in_fold]]  # (M, W)
        sizes = int(self._source.words.max(initial=0)) + 1, int(self._target.words.max(initial=0)) + 1
        table = np.zeros(sizes[0] * sizes[1], dtype=np.float32)
        for start in range(0, len(left), _CHUNK):
            codes = (
                left[start : start + _CHUNK, :, None].astype(np.int64) * sizes[1]
                + right[start : start + _CHUNK, None, :]
            )
            table += np.bincount(codes.ravel(), minlength=len(table))
        table = table.reshape(sizes)
        np.maximum(table - 1.0, 0.0, out=table)
        counts = [np.bincount(words.ravel(), minlength=size) for words, size in zip((left, right), sizes, strict=True)]
        table /= np.outer(counts[0] / max(1, len(left)), counts[1]).astype(np.float32) + np.float32(0.5)
        np.log1p(table, out=table)
        table[0] = table[:, 0] = 0.0
        return table

    def _learn_weights(self, sources: Indices, targets: Indices) -> None:
        """Learn each feature's log-ratio between corresponding lines and unrelated lines nearby."""
        draw = np.random.default_rng(1)
        offsets = draw.integers(_MIN_DISTANCE, _MAX_DISTANCE, len(targets)) * draw.choice([-1, 1], len(targets))
        unrelated = targets + offsets
        inside = (unrelated >= 0) & (unrelated < len(self._target.length))
        sizes = (_LENGTH_BINS, 16, 9, 5, _WORD_BINS + 1)
        corresponding_counts = self._count_cells(sources, targets, sizes)
        unrelated_counts = self._count_cells(sources[inside], unrelated[inside], sizes)
        self._weights = [_log_ratio(a, b) for a, b in zip(corresponding_counts, unrelated_counts, strict=True)]

    def _count_cells(self, sources: Indices, targets: Indices, sizes: tuple[int, ...]) -> list[Floats]:
        counts = [np.zeros(size, dtype=np.float32) for size in sizes]
        for start in range(0, len(sources), _CHUNK):
            cells = self._feature_cells(sources[start : start + _CHUNK], targets[start : start + _CHUNK])
            for count, cell in zip(counts, cells, strict=True):
                count += np.bincount(cell, minlength=len(count))
        return counts


def _have_one_in_common(one: Indices, other: Indices) -> NDArray[np.bool_]:
    """Return whether each pair of rows of codes, (M, C), shares a code."""
    same = (one[:, :, None] == other[:, None, :]) & (one[:, :, None] != 0)  # (M, C, C)
    return np.asarray(same.any(axis=(1, 2)))


def _log_ratio(corresponding: Floats, unrelated: Floats) -> Floats:
    """Return the smoothed log-ratio of two histograms, bounded so that no single feature decides."""
    smoothing = 0.5
    p = (corresponding + smoothing) / (corresponding.sum() + smoothing * len(corresponding))
    q = (unrelated + smoothing) / (unrelated.sum() + smoothing * len(unrelated))
    return np.asarray(np.clip(np.log(p / q), -_MAX_NATS, _MAX_NATS), dtype=np.float32)
