"""How good forecasts are, beside those that repeat the last season.

Legend: B windows, S points of the past, T points to come, C series.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

# A season is the shortest whose autocorrelation is nearly the highest; below the least there is none.
_UNLIKE, _NEARLY, _LEAST_CORRELATION = 0.5, 0.9, 0.1


class ForecastErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Mean errors of one series, in its own unit."""

    mean_absolute: float
    root_mean_square: float
    season_mean_absolute: float
    """Of repeating the last season."""
    season_root_mean_square: float


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of windows, beside those that repeat the last season."""

    windows: int
    horizon: int
    season: int
    series: dict[str, ForecastErrors]
    skill: float
    """By how many percent the absolute error is lower than that of repeating the last season: the mean over series.
    Above 0 is better."""
    square_skill: float
    """The same for the root of the mean squared error."""

    def __str__(self) -> str:
        lines = [
            f"{name}: mean absolute error {errors.mean_absolute:.4g} (last season {errors.season_mean_absolute:.4g}), "
            f"root mean square {errors.root_mean_square:.4g} (last season {errors.season_root_mean_square:.4g})"
            for name, errors in self.series.items()
        ]
        lines.append(
            f"{self.windows:,} windows of {self.horizon} points: {_lower(self.skill)} absolute and "
            f"{_lower(self.square_skill)} root mean square error than repeating the last {self.season} points"
        )
        return "\n".join(lines)


def _lower(skill: float) -> str:
    return f"{-skill:.1f} % higher" if skill < 0 else f"{skill:.1f} % lower"


def repeat_season(past: Numbers, steps: int, season: int) -> Numbers:
    """The forecast that the last season comes again: (B, S, C) to (B, T, C)."""
    places = past.shape[1] - season + np.arange(steps) % season
    return past[:, places]


def find_season(values: Numbers, most: int) -> int:
    """The length of a season, from 2 to `most` points, by autocorrelation; 1 where there is none.

    A straight line is taken out first, so that a trend is no season. Of several series the mean counts.

    Args:
        values: (N, C).
        most: points.
    """
    correlation = _autocorrelation(_without_line(values), min(most, len(values) // 2))
    # Neighbours are alike in any wave: a season comes after they have grown unlike.
    unlike = np.flatnonzero(correlation < _UNLIKE)
    later = correlation[unlike[0] :] if len(unlike) else correlation[:0]
    if not len(later) or later.max() < _LEAST_CORRELATION:
        return 1
    near = np.flatnonzero(later >= _NEARLY * later.max())
    breaks = np.flatnonzero(np.diff(near) > 1)
    first_run = near[: breaks[0] + 1] if len(breaks) else near
    return int(unlike[0] + first_run[later[first_run].argmax()])


def _without_line(values: Numbers) -> Numbers:
    """What is left of each series when the straight line that fits it best is taken out, (N, C)."""
    time = np.arange(len(values)) - (len(values) - 1) / 2.0
    centred = values - values.mean(axis=0)
    slopes = time @ centred / max(1.0, float(time @ time))
    left: Numbers = centred - time[:, None] * slopes
    # What rounding leaves of a straight line is nothing.
    left[:, (left**2).sum(axis=0) <= 1e-20 * (values**2).sum(axis=0)] = 0.0
    return left


def _autocorrelation(values: Numbers, most: int) -> Numbers:
    """By lag from 0 to `most`, the mean over series that change, (most + 1,); zeros where none does."""
    power = (values**2).sum(axis=0)
    changing = power > 0.0
    if not changing.any():
        return np.zeros(most + 1)
    scaled = values[:, changing] / np.sqrt(power[changing])
    count = len(scaled)
    return np.array([(scaled[lag:] * scaled[: count - lag]).sum(axis=0).mean() for lag in range(most + 1)])


def score_forecasts(
    past: Numbers, actual: Numbers, forecasts: Numbers, *, names: Sequence[str], season: int
) -> ForecastReport:
    """Compares forecasts with what came.

    Args:
        past: what was known, (B, S, C); at least a season.
        actual: (B, T, C).
        forecasts: (B, T, C).
        names: of the series.
        season: points of a season.
    """
    repeated = repeat_season(past, actual.shape[1], season)
    absolute, square = _errors(forecasts, actual)
    season_absolute, season_square = _errors(repeated, actual)
    columns = zip(names, absolute, square, season_absolute, season_square, strict=True)
    return ForecastReport(
        windows=len(past),
        horizon=actual.shape[1],
        season=season,
        series={
            name: ForecastErrors(
                mean_absolute=float(a),
                root_mean_square=float(s),
                season_mean_absolute=float(b),
                season_root_mean_square=float(r),
            )
            for name, a, s, b, r in columns
        },
        skill=_skill(absolute, season_absolute),
        square_skill=_skill(square, season_square),
    )


def _errors(forecasts: Numbers, actual: Numbers) -> tuple[Numbers, Numbers]:
    """Mean absolute and root mean square errors, (C,) each."""
    differences = forecasts - actual
    return np.abs(differences).mean(axis=(0, 1)), np.sqrt((differences**2).mean(axis=(0, 1)))


def _skill(errors: Numbers, others: Numbers) -> float:
    """Percent lower, the mean over series; one that repeats itself exactly cannot be beaten and is left out."""
    comparable = others > 0.0
    return float(100.0 * (1.0 - errors[comparable] / others[comparable]).mean()) if comparable.any() else 0.0
