"""Windows of time series: a past that is read, and the points after it, which are to be foretold.

Every window of the training part comes once in an epoch, in another order each time. Which ones a batch has follows
from the seed, the epoch and the position alone.
Legend: B windows, S points of the past, T points to come, C series, N points in all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.order import Indices, permutation
from transduce.data.series_scale import Normalization, Numbers, SeriesScale
from transduce.errors import TransduceError

# Keeps the random order apart from others.
_WINDOW_ORDER = 31


class SeriesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is read of time series, and what is foretold. `task.series.*` in a settings file."""

    # The columns that are series; none: all columns.
    columns: tuple[str, ...] = ()
    # Points that are foretold at a time.
    horizon: int = 24
    # Points that are read before them; None: four times the horizon.
    past: int | None = None
    # Points of a season, for the forecast by repetition that each validation is compared with; None: found by
    # autocorrelation.
    season: int | None = None
    # `window`: numbers are measured from the mean and by the deviation of their own window's past, for series whose
    # level or swing changes; `series`: by those of the whole training part.
    normalization: Normalization = "window"
    # What is minimised: `squared` errors, or the negative log-likelihood of a `gaussian` whose deviation is foretold
    # too.
    likelihood: Literal["squared", "gaussian"] = "squared"

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("past", 2), ("season", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise TransduceError(f"`task.series.{name}` must be at least {least}, but is {value}.")

    @property
    def past_points(self) -> int:
        """Points that are read."""
        return max(2, 4 * self.horizon) if self.past is None else self.past


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """Windows that are trained on together, each in its own scale."""

    # (B, S, C) and (B, T, C), float32.
    past: NDArray[np.float32]
    future: NDArray[np.float32]
    # Numbers of the windows; where there are none, the one row is a stand-in that counts for nothing.
    indices: Indices


class WindowedSeries:
    """Stretches of the same series, and all their windows."""

    def __init__(self, stretches: Sequence[Numbers], *, past: int, horizon: int, stride: int = 1) -> None:
        """Lays out the windows; they do not reach from one stretch into the next.

        Args:
            stretches: (N, C) each.
            past: S.
            horizon: T.
            stride: points between the beginnings of two windows.
        """
        self._values = np.concatenate(stretches)
        self._past, self._horizon = past, horizon
        self._starts = np.concatenate(list(_window_starts(stretches, past + horizon, stride)))

    def __len__(self) -> int:
        """Windows."""
        return len(self._starts)

    def cut(self, windows: Indices) -> tuple[Numbers, Numbers]:
        """Past (B, S, C) and future (B, T, C) of these windows."""
        found = self._values[self._starts[windows][:, None] + np.arange(self._past + self._horizon)]  # (B, S + T, C)
        return found[:, : self._past], found[:, self._past :]

    def batch(self, windows: Indices, scale: SeriesScale) -> SeriesBatch:
        """These windows, each in its scale."""
        past, future = self.cut(windows)
        own = scale.of(past)
        return SeriesBatch(own.apply(past).astype(np.float32), own.apply(future).astype(np.float32), windows)


def _window_starts(stretches: Sequence[Numbers], length: int, stride: int) -> Iterator[Indices]:
    first = 0
    for stretch in stretches:
        yield np.arange(first, first + len(stretch) - length + 1, stride, dtype=np.int64)
        first += len(stretch)


class SeriesPlan:
    """All batches of all epochs, each reachable at once."""

    def __init__(
        self, series: WindowedSeries, scale: SeriesScale, *, rows: int, seed: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        """
        Args:
            series: with at least one window.
            scale: of the series.
            rows: windows of a batch.
            seed: chooses the orders.
            share: (r, n): every n-th window of a batch, from the r-th on.
        """
        self._series, self._scale, self._rows, self._seed, self._share = series, scale, rows, seed, share
        self._epoch: tuple[int, Indices] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return (len(self._series) + self._rows - 1) // self._rows

    def batch(self, epoch: int, position: int) -> SeriesBatch:
        """The batch at a position of an epoch."""
        whole = self._order(epoch)[position * self._rows : (position + 1) * self._rows]
        first, step = self._share
        own = whole[first::step]
        if len(own):
            return self._series.batch(own, self._scale)
        stand_in = self._series.batch(whole[:1], self._scale)
        return SeriesBatch(stand_in.past, stand_in.future, own)

    def _order(self, epoch: int) -> Indices:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, permutation(len(self._series), self._seed, _WINDOW_ORDER, epoch)
        return self._epoch[1]
