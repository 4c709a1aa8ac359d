"""Find where two files are misaligned: which target line corresponds to each source line.

A lag is the target line's number minus the source line's number. First, cross-correlation of lengths and punctuation
proposes lags, however large. Then the Viterbi algorithm finds the best path of lags over the lines, by the evidence
of `evidence.py`. Changing the lag has a cost, so that it changes only where many lines support it.
Shapes: N source lines, L lags.
"""

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.inspection.corpus_doctor.evidence import Evidence, Floats, Indices, SideFeatures

MIN_LINES = 200  # fewer are too few to learn the evidence from
_BLOCK = 1024
_MAX_LAG = 4096
_TREND = 101  # lines of the moving mean that is subtracted
_SIGNIFICANT = 8.0  # standard deviations of the correlation over all lags
_MAX_LAGS = 15
_NEIGHBOURS = (-3, -2, -1, 0, 1, 2, 3)
_CHANGE_NATS = 18.0
_BEYOND_NATS = -1.0
_BAD_PAIR_NATS = -7.0
NO_LAG = 1 << 30
# Least mean evidence of files that correspond. Unrelated files reached at most 0.35 with 200 lines and 0.08 with 500;
# translations had at least 0.77 and 1.54 (a dozen samples each of Tatoeba, Chinese-English and German-English).
_MIN_MEAN_NATS, _MIN_MEAN_NATS_OF_FEW, _FEW_LINES = 0.2, 0.5, 500


class Stretch(msgspec.Struct, frozen=True):
    """A range of source lines, from 1 and inclusive, whose target lines are all shifted by the same lag."""

    first_line: int
    last_line: int
    lag: int | None
    """Lines by which the translations come later in the target; None if no line nearby corresponds."""


class Alignment(msgspec.Struct, frozen=True):
    """The result of aligning two files line by line: aligned stretches, and the lines that do not match."""

    stretches: tuple[Stretch, ...]
    unlikely_lines: tuple[int, ...]
    """Aligned lines that do not look like translations of each other, worst first."""
    unlikely_count: int
    mean_nats: float
    """Mean evidence per aligned line; below about 1 it is weak."""

    @property
    def is_unrelated(self) -> bool:
        """True if the two files seem not to be translations of each other."""
        few = self.stretches[-1].last_line < _FEW_LINES
        return self.mean_nats < (_MIN_MEAN_NATS_OF_FEW if few else _MIN_MEAN_NATS)


class _Path(NamedTuple):
    lags: Indices
    """Lag of each line, (N,); NO_LAG if no line corresponds."""
    nats: Floats
    """Evidence for each line's lag, (N,)."""


def align(source: SideFeatures, target: SideFeatures) -> Alignment:
    """Return how the lines of two files correspond; both need at least `MIN_LINES` lines."""
    lags, proposed = _propose(source, target)
    path = _Path(lags, np.zeros(len(lags), dtype=np.float32))
    for _ in range(2):
        evidence = Evidence(source, target, np.where(path.lags == NO_LAG, 0, path.lags))
        path = _best_path(evidence, proposed, len(source.length), len(target.length))
    corresponding = path.lags != NO_LAG
    unlikely = np.flatnonzero(corresponding & (path.nats < _BAD_PAIR_NATS))
    worst = unlikely[np.argsort(path.nats[unlikely], kind="stable")][:20]
    return Alignment(
        stretches=_stretches(path.lags),
        unlikely_lines=tuple(int(line) + 1 for line in worst),
        unlikely_count=len(unlikely),
        mean_nats=float(path.nats[corresponding].mean()) if corresponding.any() else 0.0,
    )


def _propose(source: SideFeatures, target: SideFeatures) -> tuple[Indices, list[int]]:
    """Return an initial lag (difference of line numbers) for each source line, and all candidate lags."""
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
    neighbors = dict.fromkeys(lag + shift for lag in best[:2] for shift in _NEIGHBOURS)
    return lags, list(dict.fromkeys([*best[:_MAX_LAGS], *neighbors]))[: _MAX_LAGS + len(_NEIGHBOURS)]


def _signals(side: SideFeatures) -> NDArray[np.float64]:
    """Return five signals of each line: length, question, exclamation, comma and number signs, normalized, (5, N)."""
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
    """Return the lag at which a block of the source fits the target best, and the peak in standard deviations."""
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
    """Return the path of lags with the most evidence, less the cost of changing the lag (Viterbi)."""
    nats = np.zeros((size, len(lags) + 1), dtype=np.float32)  # the last column: no corresponding line
    for column, lag in enumerate(lags):
        sources = np.arange(max(0, -lag), max(0, -lag, min(size, target_size - lag)))
        nats[:, column] = _BEYOND_NATS
        nats[sources, column] = evidence.score(sources, sources + lag)
    backpointers = np.empty(nats.shape, dtype=np.int8)
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
        if line:
            column = int(backpointers[line, column])
    return _Path(np.array([*lags, NO_LAG])[chosen], nats[np.arange(size), chosen])


def _stretches(lags: Indices) -> tuple[Stretch, ...]:
    changes = [0, *(int(index) + 1 for index in np.flatnonzero(np.diff(lags))), len(lags)]
    return tuple(
        Stretch(first_line=first + 1, last_line=stop, lag=None if lags[first] == NO_LAG else int(lags[first]))
        for first, stop in pairwise(changes)
    )
