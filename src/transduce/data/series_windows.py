"""Windows of time series: points of the past that are read, and the points after them that are forecast.

Every window of the training part occurs once in an epoch, in random order. The windows of a batch depend only on the
seed, the epoch and the position.
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

# Makes this random order independent of others.
_WINDOW_ORDER = 31


class SeriesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of what is read of time series and what is forecast: `task.series.*` in a settings file."""

    columns: tuple[str, ...] = ()
    """The columns that are series; empty: all columns."""
    horizon: int = 24
    """Number of points that are forecast at a time."""
    past: int | None = None
    """Number of points that are read before them; None: four times the horizon."""
    season: int | None = None
    """Number of points of a season, for the seasonal baseline that each validation is compared with; None: determined
    by autocorrelation.
    """
    normalization: Normalization = "window"
    """`window`: normalize by the mean and deviation of each window's past, for series whose level or amplitude changes;
    `series`: by those of the whole training part.
    """
    likelihood: Literal["squared", "gaussian"] = "squared"
    """The training loss: `squared` errors, or the negative log-likelihood of a `gaussian` whose deviation is predicted
    too.
    """

    def __post_init__(self) -> None:
        for name, least in (("horizon", 1), ("past", 2), ("season", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise TransduceError(f"`task.series.{name}` must be at least {least}, but is {value}.")

    @property
    def past_points(self) -> int:
        """The number of points that are read."""
        return max(2, 4 * self.horizon) if self.past is None else self.past


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """A batch of windows, each in its own scale."""

    past: NDArray[np.float32]
    """The points that are read, (B, S, C), float32."""
    future: NDArray[np.float32]
    """The points to forecast, (B, T, C), float32."""
    indices: Indices
    """The indices of the windows; if empty, the one row is a stand-in that does not count."""


class WindowedSeries:
    """Sections of the same series, and all their windows."""

    def __init__(self, stretches: Sequence[Numbers], *, past: int, horizon: int, stride: int = 1) -> None:
        """Lay out the windows, which do not cross from one section into the next.

        Args:
            stretches: sections, (N, C) each.
            past: S.
            horizon: T.
            stride: points between the starts of consecutive windows.
        """
        self._values = np.concatenate(stretches)
        self._past, self._horizon = past, horizon
        self._starts = np.concatenate(list(_window_starts(stretches, past + horizon, stride)))

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._starts)

    def cut(self, windows: Indices) -> tuple[Numbers, Numbers]:
        """Return the past (B, S, C) and future (B, T, C) of some windows."""
        windowed = self._values[self._starts[windows][:, None] + np.arange(self._past + self._horizon)]  # (B, S + T, C)
        return windowed[:, : self._past], windowed[:, self._past :]

    def batch(self, windows: Indices, scale: SeriesScale) -> SeriesBatch:
        """Return a batch of some windows, each in its own scale."""
        past, future = self.cut(windows)
        window_scale = scale.of(past)
        return SeriesBatch(
            window_scale.apply(past).astype(np.float32), window_scale.apply(future).astype(np.float32), windows
        )


def _window_starts(stretches: Sequence[Numbers], length: int, stride: int) -> Iterator[Indices]:
    first = 0
    for stretch in stretches:
        yield np.arange(first, first + len(stretch) - length + 1, stride, dtype=np.int64)
        first += len(stretch)


class SeriesPlan:
    """A plan of all batches of all epochs with random access."""

    def __init__(
        self, series: WindowedSeries, scale: SeriesScale, *, rows: int, seed: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        """Plan batches of windows.

        Args:
            series: the series, with at least one window.
            scale: the scale of the series.
            rows: windows per batch.
            seed: the seed of the random orders.
            share: (r, n): take every n-th window of a batch, starting with window r.
        """
        self._series, self._scale, self._rows, self._seed, self._share = series, scale, rows, seed, share
        self._epoch: tuple[int, Indices] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return (len(self._series) + self._rows - 1) // self._rows

    def batch(self, epoch: int, position: int) -> SeriesBatch:
        """Return the batch at a position of an epoch."""
        all_windows = self._order(epoch)[position * self._rows : (position + 1) * self._rows]
        first, step = self._share
        window_scale = all_windows[first::step]
        if len(window_scale):
            return self._series.batch(window_scale, self._scale)
        stand_in = self._series.batch(all_windows[:1], self._scale)
        return SeriesBatch(stand_in.past, stand_in.future, window_scale)

    def _order(self, epoch: int) -> Indices:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, permutation(len(self._series), self._seed, _WINDOW_ORDER, epoch)
        return self._epoch[1]
