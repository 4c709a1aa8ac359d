"""Where two files lose step: which line of the target corresponds to each line of the source.

A lag is how many lines further the translation of a source line stands in the target. First, cross-correlation of
lengths and punctuation proposes lags, however large. Then a path through the lines chooses among them, line by line,
by the evidence of `evidence.py`; changing the lag costs, so that it changes only where many lines say so.
Legend: N source lines, L lags.
"""

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.inspection.corpus_doctor.evidence import Evidence, Floats, Indices, SideFeatures

FEWEST_LINES = 200  # from which on something can be learnt
_BLOCK = 1024
_FARTHEST = 4096  # lag that is looked for
_TREND = 101  # lines of the moving mean that is taken off
_SIGNIFICANT = 8.0  # standard deviations of the correlation at other lags
_MOST_LAGS = 15
_NEIGHBOURS = (-3, -2, -1, 0, 1, 2, 3)
_CHANGE_NATS = 18.0
_BEYOND_NATS = -1.0
_BAD_PAIR_NATS = -7.0
NO_LAG = 1 << 30
# Mean evidence from which on lines correspond at all. Of strangers it was 0.35 at most with 200 lines and 0.08 with
# 500, of translations 0.77 and 1.54 at least (Tatoeba, Chinese and German with English, a dozen samples each; no script
# repeats it).
_LEAST_MEAN_NATS, _LEAST_OF_FEW, _FEW_LINES = 0.2, 0.5, 500


class Stretch(msgspec.Struct, frozen=True):
    """Lines of the source, counted from 1, the last one included, and how far on their translations stand."""

    first_line: int
    last_line: int
    lag: int | None
    """0: the same line. None: nothing near corresponds."""


class Alignment(msgspec.Struct, frozen=True):
    """How the lines of two files correspond."""

    stretches: tuple[Stretch, ...]
    unlikely_lines: tuple[int, ...]
    """Lines that stand in step but do not look like translations of each other, the worst first."""
    unlikely_count: int
    mean_nats: float
    """Mean evidence per line that corresponds: below about 1 little can be told."""

    @property
    def is_of_strangers(self) -> bool:
        """Whether nothing tells that any lines correspond."""
        few = self.stretches[-1].last_line < _FEW_LINES
        return self.mean_nats < (_LEAST_OF_FEW if few else _LEAST_MEAN_NATS)


class _Path(NamedTuple):
    lags: Indices  # (N,), NO_LAG where nothing corresponds
    nats: Floats  # (N,)


def align(source: SideFeatures, target: SideFeatures) -> Alignment:
    """Finds the lags. Both sides need `FEWEST_LINES` lines."""
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
    """A first lag for each source line, and all that may be worth looking at."""
    left, right = _signals(source), _signals(target)
    size = len(source.length)
    lags = np.zeros(size, dtype=np.int64)
    votes: dict[int, float] = {0: float("inf")}
    for start in range(0, size, _BLOCK // 2):
        stop = min(size, start + _BLOCK)
        lag, height = _correlate(left[:, start:stop], right, start)
        if height > _SIGNIFICANT:
            votes[lag] = votes.get(lag, 0.0) + height
            lags[start:stop] = lag
        elif start:
            lags[start:stop] = lags[start - 1]
    best = sorted(votes, key=lambda lag: (-votes[lag], abs(lag), lag))
    near = dict.fromkeys(lag + shift for lag in best[:2] for shift in _NEIGHBOURS)
    return lags, list(dict.fromkeys([*best[:_MOST_LAGS], *near]))[: _MOST_LAGS + len(_NEIGHBOURS)]


def _signals(side: SideFeatures) -> NDArray[np.float64]:
    """Length, question, exclamation, commas, numbers: without trend, of variance 1, (5, N)."""
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
    """The lag at which a block of the source fits the target best, and by how many standard deviations."""
    low = max(0, start - _FARTHEST)
    high = min(target.shape[1], start + block.shape[1] + _FARTHEST)
    if high - low < 2:
        return 0, 0.0
    size = 1 << int(np.ceil(np.log2(high - low + block.shape[1])))
    spectrum = np.conj(np.fft.rfft(block, size)) * np.fft.rfft(target[:, low:high], size)
    correlation = np.fft.irfft(spectrum.sum(axis=0), size)[: high - low]
    best = int(correlation.argmax())
    return best + low - start, float(correlation[best] / max(1e-9, correlation.std()))


def _best_path(evidence: Evidence, lags: list[int], size: int, target_size: int) -> _Path:
    """The lags with the most evidence, less what changing them costs (Viterbi)."""
    nats = np.zeros((size, len(lags) + 1), dtype=np.float32)  # the last column: nothing corresponds
    for column, lag in enumerate(lags):
        sources = np.arange(max(0, -lag), max(0, -lag, min(size, target_size - lag)))
        nats[:, column] = _BEYOND_NATS
        nats[sources, column] = evidence.score(sources, sources + lag)
    came_from = np.empty(nats.shape, dtype=np.int8)
    reached = nats[0].copy()
    stay = np.arange(nats.shape[1], dtype=np.int8)
    for line in range(1, size):
        best = int(reached.argmax())
        change = reached[best] - _CHANGE_NATS
        moves = reached < change
        came_from[line] = np.where(moves, best, stay)
        reached = np.where(moves, change, reached) + nats[line]
    column = int(reached.argmax())
    chosen = np.empty(size, dtype=np.int64)
    for line in range(size - 1, -1, -1):
        chosen[line] = column
        if line:
            column = int(came_from[line, column])
    return _Path(np.array([*lags, NO_LAG])[chosen], nats[np.arange(size), chosen])


def _stretches(lags: Indices) -> tuple[Stretch, ...]:
    changes = [0, *(int(at) + 1 for at in np.flatnonzero(np.diff(lags))), len(lags)]
    return tuple(
        Stretch(first_line=first + 1, last_line=stop, lag=None if lags[first] == NO_LAG else int(lags[first]))
        for first, stop in pairwise(changes)
    )
