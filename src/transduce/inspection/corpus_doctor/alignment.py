"""Find where two files are misaligned: which target line corresponds to each source line.

A lag is the target line's number minus the source line's number. First, cross-correlation of lengths and punctuation
proposes lags, however large. Then the Viterbi algorithm finds the best path of lags over the lines, by their
evidence. Changing the lag has a cost, so that it changes only where many lines support it.
Shapes: N source lines, L lags.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.text.languages import UNSPACED_RANGES

# --- features of lines ---
# Numeric features of lines that translation preserves: length, end marks, commas, digits, codes and rare words.
# Shapes: N lines, C codes and W words kept per line.


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

WORDS = 8  # the rarest of a line
CODES = 4  # the longest of a line
VOCABULARY = 3072  # words kept per side, including 0 for none
_MIN_LINES = 3  # in which a word must occur
_MIN_CODE_CHARACTERS = 3

_WORD = re.compile(rf"[{UNSPACED_RANGES}]|[^\W_{UNSPACED_RANGES}]+")
_DIGITS = re.compile(r"\d+")
_QUESTION, _EXCLAMATION, _COMMA = re.compile("[?？؟]"), re.compile("[!！]"), re.compile("[,，、;；]")


class SideFeatures(NamedTuple):
    """Numbers that describe the lines of a corpus side, and that are alike in a line and its translation."""

    length: Floats
    """Number of characters of each line, (lines,)."""
    ending: Ints
    """Question and exclamation marks anywhere in each line: 0 none, 1 question mark, 2 exclamation mark, 3 both,
    (lines,).
    """
    commas: Ints
    """Number of commas of each line: 0, 1, or 2 for two or more, (lines,)."""
    digits: NDArray[np.int64]
    """A hash of the numbers in each line, or 0 if it has none, (lines,)."""
    codes: NDArray[np.int64]
    """Hashes of the longest words with digits, such as product codes and years; padded with 0, (lines, codes)."""
    words: Ints
    """The rarest known words of each line, as ranks by frequency from 1 (most frequent), (lines, words); 0 pads."""


def side_features(lines: Sequence[str]) -> SideFeatures:
    """Return the `SideFeatures` (lengths, marks, numbers and words) of the lines of one side, to align the lines."""
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
    rows = []
    for line in lines:
        words = [word for word in _WORD.findall(line.casefold()) if len(word) >= _MIN_CODE_CHARACTERS]
        codes = sorted({word for word in words if _DIGITS.search(word)}, key=lambda word: (-len(word), word))
        rows.append(list(map(_hash, codes[:CODES])))
    return _padded_table(rows, CODES)


def _rare_words(lines: Sequence[str]) -> Ints:
    words = [set(_WORD.findall(line.casefold())) for line in lines]
    counts = Counter(word for line_words in words for word in line_words)
    frequent = sorted((word for word, count in counts.items() if count >= _MIN_LINES), key=lambda w: (-counts[w], w))
    ranks = {word: rank for rank, word in enumerate(frequent[: VOCABULARY - 1], 1)}
    rows = [sorted((ranks[word] for word in line_words if word in ranks), reverse=True) for line_words in words]
    return _padded_table(rows, WORDS).astype(np.int32)


def _padded_table(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    """Return the first `width` numbers of each row, padded with 0, (rows, width)."""
    table = np.zeros((len(rows), width), dtype=np.int64)
    for cells, row in zip(table, rows, strict=True):
        cells[: len(row)] = row[:width]
    return table


# --- evidence that two lines are translations of each other, in nats ---
# The weights of the features and the word associations are learned from the corpus, by comparing lines that seem to
# correspond with lines some distance apart. Word associations are learned on one half of the lines and used on the
# other, so that no line supports itself. Shapes: M pairs of lines.

Indices = NDArray[np.int64]

_FOLD_LINES = 256
_MIN_DISTANCE, _MAX_DISTANCE = 20, 200  # of unrelated lines
_LENGTH_BINS, _WORD_BINS = 12, 12
_CHUNK = 20_000
_MAX_NATS = 5.0  # of one feature


class Evidence:
    """A scorer of line pairs, learned from the corpus: how likely two lines are translations of each other, in nats."""

    def __init__(self, source: SideFeatures, target: SideFeatures, lags: Indices) -> None:
        """Learn which words and lengths correspond, from line pairs of the corpus.

        Source line i is paired with target line i + lags[i]; a pair is left out if there is no such target line. `lags`
        is (source lines,).
        """
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
        """Return the evidence, in nats, that the two lines of each pair are translations of each other, (pairs,).

        `sources` and `targets` are the indices of the lines; a negative value is evidence against a translation.
        """
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
        """Return a list with an array, (pairs,), for each feature of line pairs: indices of histogram cells.

        The features are length, marks, commas, numbers and words of both lines; each cell has a weight as evidence.
        """
        a, b = self._source, self._target
        has_digits, has_other_digits = a.digits[sources] != 0, b.digits[targets] != 0
        digits = np.select(
            [
                ~has_digits & ~has_other_digits,
                a.digits[sources] == b.digits[targets],
                ~has_digits | ~has_other_digits,
                _have_one_in_common(a.codes[sources], b.codes[targets]),
            ],
            [0, 1, 2, 4],
            default=3,
        )
        return [
            self._length_cells(sources, targets),
            (4 * a.ending[sources] + b.ending[targets]).astype(np.int64),
            (3 * a.commas[sources] + b.commas[targets]).astype(np.int64),
            digits,
            self._word_cells(sources, targets),
        ]

    def _length_cells(self, sources: Indices, targets: Indices) -> Indices:
        """Return the index of the histogram cell of each pair's length difference, (pairs,).

        The difference is measured as by Gale and Church (1993). Cells are half standard deviations wide; the last has
        all larger differences.
        """
        expected = (self._source.length[sources] + 1.0) * np.exp(self._ratio)
        actual = self._target.length[targets] + 1.0
        deviation = np.abs(actual - expected) / np.sqrt(expected + actual)
        return np.asarray(np.minimum(_LENGTH_BINS - 1, (2.0 * deviation).astype(np.int64)))

    def _word_cells(self, sources: Indices, targets: Indices) -> Indices:
        scores, have_words = self._word_scores(sources, targets)
        bins = np.minimum(_WORD_BINS - 1, (2.0 * scores).astype(np.int64))
        return np.asarray(np.where(have_words, bins, _WORD_BINS))

    def _word_scores(self, sources: Indices, targets: Indices) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the mean association of words with their best partners, and whether both lines have words.

        Both arrays are (pairs,). The mean is 0 if a line has no words. Word associations are learned from one half of
        the corpus, and are used for pairs of the other half.
        """
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
        """Return the association of each word pair in one half of the line pairs, (source words, target words).

        The association is log(1 + n / e). Here n is the number of joint occurrences, less one, and e is the number
        expected by chance, plus 0.5. `fold` (0 or 1) selects the half. Row 0 and column 0, for padding, are 0.
        """
        in_fold = (sources // _FOLD_LINES) % 2 == fold
        left, right = self._source.words[sources[in_fold]], self._target.words[targets[in_fold]]  # (M, W)
        sizes = int(self._source.words.max(initial=0)) + 1, int(self._target.words.max(initial=0)) + 1
        table = np.zeros(sizes[0] * sizes[1], dtype=np.float32)
        for start in range(0, len(left), _CHUNK):
            rows, columns = left[start : start + _CHUNK, :, None], right[start : start + _CHUNK, None, :]
            table += np.bincount((rows.astype(np.int64) * sizes[1] + columns).ravel(), minlength=len(table))
        table = table.reshape(sizes)
        np.maximum(table - 1.0, 0.0, out=table)
        counts = [np.bincount(words.ravel(), minlength=size) for words, size in zip((left, right), sizes, strict=True)]
        table /= np.outer(counts[0] / max(1, len(left)), counts[1]).astype(np.float32) + np.float32(0.5)
        np.log1p(table, out=table)
        table[0] = table[:, 0] = 0.0
        return table

    def _learn_weights(self, sources: Indices, targets: Indices) -> None:
        """Learn weights of each feature's histogram cells: log-ratios between corresponding and unrelated lines.

        `sources` and `targets` are the indices of corresponding lines. Unrelated pairs are drawn at random, some lines
        apart.
        """
        draw = np.random.default_rng(1)
        offsets = draw.integers(_MIN_DISTANCE, _MAX_DISTANCE, len(targets)) * draw.choice([-1, 1], len(targets))
        unrelated = targets + offsets
        inside = (unrelated >= 0) & (unrelated < len(self._target.length))
        sizes = (_LENGTH_BINS, 16, 9, 5, _WORD_BINS + 1)
        corresponding_counts = self._count_cells(sources, targets, sizes)
        unrelated_counts = self._count_cells(sources[inside], unrelated[inside], sizes)
        self._weights = [_log_ratio(a, b) for a, b in zip(corresponding_counts, unrelated_counts, strict=True)]
        scores = self._score_chunk(sources[inside][:_CHUNK], unrelated[inside][:_CHUNK])
        self.nats_of_unrelated = float(np.quantile(scores, _UNRELATED_SHARE)) if len(scores) else _BAD_PAIR_NATS
        """The evidence in nats that 35 % of the pairs of unrelated lines do not reach; less is an unlikely pair."""

    def _count_cells(self, sources: Indices, targets: Indices, sizes: tuple[int, ...]) -> list[Floats]:
        counts = [np.zeros(size, dtype=np.float32) for size in sizes]
        for start in range(0, len(sources), _CHUNK):
            cells = self._feature_cells(sources[start : start + _CHUNK], targets[start : start + _CHUNK])
            for count, cell in zip(counts, cells, strict=True):
                count += np.bincount(cell, minlength=len(count))
        return counts


def _have_one_in_common(one: Indices, other: Indices) -> NDArray[np.bool_]:
    """Return whether the lines of each pair share a code, (pairs,), from their codes, (pairs, codes), padded with 0."""
    same = (one[:, :, None] == other[:, None, :]) & (one[:, :, None] != 0)  # (M, C, C)
    return np.asarray(same.any(axis=(1, 2)))


def _log_ratio(corresponding: Floats, unrelated: Floats) -> Floats:
    """Return the log-ratio of two histograms, smoothed, (cells,), and bounded so that no single feature decides."""
    smoothing = 0.5
    p = (corresponding + smoothing) / (corresponding.sum() + smoothing * len(corresponding))
    q = (unrelated + smoothing) / (unrelated.sum() + smoothing * len(unrelated))
    return np.asarray(np.clip(np.log(p / q), -_MAX_NATS, _MAX_NATS), dtype=np.float32)


MIN_LINES = 200  # fewer are too few to learn the evidence from
_BLOCK = 1024
_MAX_LAG = 4096
_TREND = 101  # lines of the moving mean that is subtracted
_SIGNIFICANT = 8.0  # standard deviations of the correlation over all lags
_MAX_LAGS = 15
_NEIGHBORS = (-3, -2, -1, 0, 1, 2, 3)
_CHANGE_NATS = 18.0
_BEYOND_NATS = -1.0
# A pair is unlikely if its evidence is below this and below that of a share of the pairs of unrelated lines: a fixed
# limit finds few of many wrong pairs, as the weights of the features are then small. This share finds a third of the
# wrong pairs, and nine in ten of those found are wrong (Multi30k with 4 % of wrong pairs).
_BAD_PAIR_NATS, _UNRELATED_SHARE = -2.0, 0.35
NO_LAG = 1 << 30
# Least mean evidence of files that correspond. Unrelated files reached at most 0.35 with 200 lines and 0.08 with 500;
# translations had at least 0.77 and 1.54 (a dozen samples each of Tatoeba, Chinese-English and German-English).
_MIN_MEAN_NATS, _MIN_MEAN_NATS_OF_FEW, _FEW_LINES = 0.2, 0.5, 500


class LineRange(msgspec.Struct, frozen=True):
    """A range of source lines, from 1 and inclusive, whose translations are all shifted by the same number of lines."""

    first_line: int
    last_line: int
    lag: int | None
    """Number of lines by which the translations come later in the target, negative if earlier; None if no line nearby
    corresponds.
    """


class Alignment(msgspec.Struct, frozen=True):
    """The result of aligning the lines of two files: ranges with equal shifts, and lines that look unrelated."""

    ranges: tuple[LineRange, ...]
    unlikely_lines: tuple[int, ...]
    """Source line numbers, from 1, of aligned lines that do not look like translations, worst first; at most 20."""
    unlikely_count: int
    """Number of aligned lines that look less like translations than most pairs of unrelated lines do."""
    mean_nats: float
    """Mean evidence that aligned lines are translations, in nats per line; below about 1 it is weak."""

    @property
    def is_unrelated(self) -> bool:
        """True if the two files seem not to be translations of each other, by the mean evidence of their lines."""
        few = self.ranges[-1].last_line < _FEW_LINES
        return self.mean_nats < (_MIN_MEAN_NATS_OF_FEW if few else _MIN_MEAN_NATS)


class _Path(NamedTuple):
    lags: Indices
    """Lag (target minus source line number) of each source line, (lines,); NO_LAG if no line corresponds."""
    nats: Floats
    """Evidence in nats that each source line and its line at the lag are translations, (lines,)."""


def align(source: SideFeatures, target: SideFeatures) -> Alignment:
    """Align the lines of a corpus's two sides: return an `Alignment`, with ranges of lines whose shift is equal.

    Both sides need at least `MIN_LINES` lines.
    """
    lags, proposed = _propose(source, target)

    def learn(lags: Indices) -> tuple[Evidence, _Path]:
        evidence = Evidence(source, target, np.where(lags == NO_LAG, 0, lags))
        return evidence, _best_path(evidence, proposed, len(source.length), len(target.length))

    _, path = learn(lags)
    evidence, path = learn(path.lags)
    corresponding = path.lags != NO_LAG
    unlikely = np.flatnonzero(corresponding & (path.nats < min(_BAD_PAIR_NATS, evidence.nats_of_unrelated)))
    worst = unlikely[np.argsort(path.nats[unlikely], kind="stable")][:20]
    return Alignment(
        ranges=_line_ranges(path.lags),
        unlikely_lines=tuple(int(line) + 1 for line in worst),
        unlikely_count=len(unlikely),
        mean_nats=float(path.nats[corresponding].mean()) if corresponding.any() else 0.0,
    )


def _propose(source: SideFeatures, target: SideFeatures) -> tuple[Indices, list[int]]:
    """Return an initial lag of each source line, (lines,), and a list of candidate lags.

    A lag is the target line's number minus the source line's. Cross-correlation of blocks of lines proposes lags.
    """
    source_signals, target_signals = _signals(source), _signals(target)
    size = len(source.length)
    lags = np.zeros(size, dtype=np.int64)
    votes: dict[int, float] = {0: float("inf")}
    for start in range(0, size, _BLOCK // 2):
        stop = min(size, start + _BLOCK)
        lag, height = _correlate(source_signals[:, start:stop], target_signals, start)
        if height > _SIGNIFICANT:
            votes[lag] = votes.get(lag, 0.0) + height
            lags[start:stop] = lag
        elif start:
            lags[start:stop] = lags[start - 1]
    best = sorted(votes, key=lambda lag: (-votes[lag], abs(lag), lag))
    neighbors = dict.fromkeys(lag + shift for lag in best[:2] for shift in _NEIGHBORS)
    return lags, list(dict.fromkeys([*best[:_MAX_LAGS], *neighbors]))[: _MAX_LAGS + len(_NEIGHBORS)]


def _signals(side: SideFeatures) -> NDArray[np.float64]:
    """Return a side's features as signals, (5, lines): length, question mark, exclamation mark, commas and numbers.

    A moving mean is subtracted and each signal has variance 1, so that lags are found by cross-correlation.
    """
    rows = [
        np.log(side.length + 1.0),
        side.ending % 2,
        side.ending // 2,
        side.commas,
        np.where(side.digits == 0, 0.0, np.where(side.digits % 2 == 0, 1.0, -1.0)),
    ]
    return np.stack([_standard(np.asarray(row, dtype=np.float64)) for row in rows])


def _standard(row: NDArray[np.float64]) -> NDArray[np.float64]:
    width = min(_TREND, len(row))
    sums = np.convolve(row, np.ones(width), mode="same")
    counts = np.convolve(np.ones(len(row)), np.ones(width), mode="same")
    flat = row - sums / counts
    return np.asarray(flat / max(1e-9, float(flat.std())))


def _correlate(block: NDArray[np.float64], target: NDArray[np.float64], start: int) -> tuple[int, float]:
    """Return the lag (line shift) at which a block of source lines fits the target best, and its height.

    The height is the correlation at that lag in standard deviations over all lags. `block` and `target` are signals,
    (5, lines), and `start` is the index of the block's first line. Lags are searched up to 4,096 lines.
    """
    low = max(0, start - _MAX_LAG)
    high = min(target.shape[1], start + block.shape[1] + _MAX_LAG)
    if high - low < 2:
        return 0, 0.0
    size = 1 << int(np.ceil(np.log2(high - low + block.shape[1])))
    spectrum = np.conj(np.fft.rfft(block, size)) * np.fft.rfft(target[:, low:high], size)
    correlation = np.fft.irfft(spectrum.sum(axis=0), size)[: high - low]
    best = int(correlation.argmax())
    return best + low - start, float(correlation[best] / max(1e-9, correlation.std()))


def _best_path(evidence: Evidence, lags: list[int], size: int, target_size: int) -> _Path:
    """Return the lag of each source line (`_Path`) that maximizes evidence less the cost of changes of the lag.

    Lags are differences of line numbers, chosen among `lags`, or none, by the Viterbi algorithm. `size` and
    `target_size` are the numbers of lines.
    """
    nats = np.zeros((size, len(lags) + 1), dtype=np.float32)  # the last column: no corresponding line
    for column, lag in enumerate(lags):
        sources = np.arange(max(0, -lag), max(0, -lag, min(size, target_size - lag)))
        nats[:, column] = _BEYOND_NATS
        nats[sources, column] = evidence.score(sources, sources + lag)
    backpointers = np.zeros(nats.shape, dtype=np.int8)
    best_nats = nats[0].copy()
    unchanged = np.arange(nats.shape[1], dtype=np.int8)
    for line in range(1, size):
        best = int(best_nats.argmax())
        change = best_nats[best] - _CHANGE_NATS
        changes = best_nats < change
        backpointers[line] = np.where(changes, best, unchanged)
        best_nats = np.where(changes, change, best_nats) + nats[line]
    column = int(best_nats.argmax())
    chosen = np.empty(size, dtype=np.int64)
    for line in range(size - 1, -1, -1):
        chosen[line] = column
        column = int(backpointers[line, column])
    return _Path(np.array([*lags, NO_LAG])[chosen], nats[np.arange(size), chosen])


def _line_ranges(lags: Indices) -> tuple[LineRange, ...]:
    changes = [0, *(int(index) + 1 for index in np.flatnonzero(np.diff(lags))), len(lags)]
    return tuple(
        LineRange(first_line=first + 1, last_line=stop, lag=None if lags[first] == NO_LAG else int(lags[first]))
        for first, stop in pairwise(changes)
    )
