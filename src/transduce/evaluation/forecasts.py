"""Score time series forecasts, and compare them with the seasonal baseline that repeats the last season.

Legend: B windows, S points of the past, T points to come, C series.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.text.files import count_noun

Numbers = NDArray[np.float64]

# The season is the shortest lag whose autocorrelation is nearly the highest; below the minimum there is no season.
_UNLIKE, _NEARLY, _MIN_CORRELATION = 0.5, 0.9, 0.1
# Of a season that is longer than what a model reads, at least three must be known, and the correlation must be clear.
_MIN_SEASONS, _MIN_LONG_CORRELATION, _MIN_ERRORS = 3, 0.3, 4.0


class ForecastErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the forecasts of one time series and of its seasonal baseline, in the unit of the series."""

    mean_absolute: float
    """The mean absolute error of the forecasts."""
    root_mean_square: float
    """The root mean square error of the forecasts."""
    season_mean_absolute: float
    """The mean absolute error of the seasonal baseline."""
    season_root_mean_square: float
    """The root mean square error of the seasonal baseline."""


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of forecasts of several windows of a time series, compared with the seasonal baseline."""

    windows: int
    """Number of windows, each a stretch of the past with the points to forecast after it."""
    horizon: int
    """Number of points that were forecast in each window."""
    season: int
    """Number of points of a season, which the baseline repeats."""
    series: dict[str, ForecastErrors]
    """The errors of each series, by its name."""
    skill: float
    """The percentage by which the mean absolute error is below the baseline's, as the mean over series.

    Above 0 is better than the baseline.
    """
    square_skill: float
    """The percentage by which the root mean square error is below the baseline's, as the mean over series."""

    def __str__(self) -> str:
        lines = [
            f"{name}: mean absolute error {errors.mean_absolute:.4g} (last season {errors.season_mean_absolute:.4g}), "
            f"root mean square {errors.root_mean_square:.4g} (last season {errors.season_root_mean_square:.4g})"
            for name, errors in self.series.items()
        ]
        exact = [name for name, errors in self.series.items() if errors.season_mean_absolute == 0.0]
        if exact:
            lines.append(f"Left out of the comparison: {', '.join(exact)}, because the last season predicts it exactly")
        lines.append(
            f"{count_noun(self.windows, 'window')} of {count_noun(self.horizon, 'point')}: {_lower(self.skill)} "
            f"absolute and {_lower(self.square_skill)} root mean square error than repeating the last "
            f"{count_noun(self.season, 'point')}"
        )
        return "\n".join(lines)


def _lower(skill: float) -> str:
    return f"{-skill:.1f} % higher" if skill < 0 else f"{skill:.1f} % lower"


def repeat_season(past: Numbers, steps: int, season: int) -> Numbers:
    """Return the forecasts of the seasonal baseline, which repeats the last season.

    Args:
        past: the known points, (B, S, C).
        steps: number of points to forecast.
        season: points of a season, at most S.

    Returns:
        The forecasts, (B, steps, C).
    """
    positions = past.shape[1] - season + np.arange(steps) % season
    return past[:, positions]


def find_season(values: Numbers, max_season: int) -> int:
    """Return the length of a series' season in points, from 2 to `max_season`, by autocorrelation; 1 if there is none.

    A straight line is removed first, so that a trend does not count as a season. For several series the mean
    autocorrelation is used.

    Args:
        values: the points of C series, (N, C).
        max_season: the maximum length in points.
    """
    return _season(_autocorrelation(_without_line(values), min(max_season, len(values) // 2)))


def find_longer_season(values: Numbers, past: int) -> int | None:
    """Return the length of a series' season in points if it is longer than the points that a model reads, else None.

    At least three seasons must be known, and their autocorrelation must be at least 0.3 and four times the standard
    error of that of noise.

    Args:
        values: the points of C series, (N, C).
        past: the number of points that the model reads.
    """
    longest = len(values) // _MIN_SEASONS
    if longest <= past:
        return None
    # As many products as there are at each lag: otherwise long seasons would seem weaker.
    correlation = _autocorrelation(_without_line(values), longest) / (1.0 - np.arange(longest + 1) / len(values))
    season = _season(correlation)
    enough = max(_MIN_LONG_CORRELATION, _MIN_ERRORS / math.sqrt(len(values)))
    # A random walk correlates less and less, without a peak.
    is_peak = correlation[:season].min() < _UNLIKE * correlation[season]
    return season if season > past and is_peak and correlation[season] >= enough else None


def _season(correlation: Numbers) -> int:
    """Return the shortest lag from 2 at which an autocorrelation has nearly its highest value; 1 if there is none."""
    # Neighboring points correlate in any wave: the season is a later peak, after the correlation has dropped.
    unlike = np.flatnonzero(correlation < _UNLIKE)
    later = correlation[unlike[0] :] if len(unlike) else correlation[:0]
    if not len(later) or later.max() < _MIN_CORRELATION:
        return 1
    near = np.flatnonzero(later >= _NEARLY * later.max())
    breaks = np.flatnonzero(np.diff(near) > 1)
    first_run = near[: breaks[0] + 1] if len(breaks) else near
    return int(unlike[0] + first_run[later[first_run].argmax()])


def _without_line(values: Numbers) -> Numbers:
    """Return each series, (N, C), minus its best-fitting straight line, so that a trend does not look like a season.

    A series that is a straight line up to rounding becomes exactly 0.
    """
    time = np.arange(len(values)) - (len(values) - 1) / 2.0
    centered = values - values.mean(axis=0)
    slopes = time @ centered / max(1.0, float(time @ time))
    residual: Numbers = centered - time[:, None] * slopes
    # Rounding errors of a straight line count as zero.
    residual[:, (residual**2).sum(axis=0) <= 1e-20 * (values**2).sum(axis=0)] = 0.0
    return residual


def _autocorrelation(values: Numbers, max_season: int) -> Numbers:
    """Return the mean autocorrelation of series without trend, (N, C), at the lags from 0 to `max_season`.

    Series that are all zeros are left out; without any other, all lags have 0.
    """
    power = (values**2).sum(axis=0)
    changing = power > 0.0
    if not changing.any():
        return np.zeros(max_season + 1)
    scaled = values[:, changing] / np.sqrt(power[changing])
    length = 2 * len(scaled)  # with as many zeros behind the values, no lag wraps around
    spectrum = np.abs(np.fft.rfft(scaled, length, axis=0)) ** 2
    correlation: Numbers = np.fft.irfft(spectrum.mean(axis=1), length)[: max_season + 1]
    return correlation


def score_forecasts(
    past: Numbers, actual: Numbers, forecasts: Numbers, *, names: Sequence[str], season: int
) -> ForecastReport:
    """Score forecasts against the actual values, and compare their errors with the seasonal baseline's.

    Args:
        past: the known points, (B, S, C); at least a season.
        actual: the points to forecast, (B, T, C).
        forecasts: their forecasts, (B, T, C).
        names: the names of the series.
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
    """Return the mean absolute and the root mean square error of each series, (C,), over all windows and points.

    Forecasts and actual values are (B, T, C).
    """
    differences = forecasts - actual
    return np.abs(differences).mean(axis=(0, 1)), np.sqrt((differences**2).mean(axis=(0, 1)))


def _skill(errors: Numbers, baseline: Numbers) -> float:
    """Return the percentage by which the errors of a forecast are below the baseline's, as the mean over series.

    A series that the baseline predicts exactly cannot be improved on and is excluded; 0 if there is no other.

    Args:
        errors: the forecast's error of each series, (C,).
        baseline: the seasonal baseline's, (C,).
    """
    comparable = baseline > 0.0
    return float(100.0 * (1.0 - errors[comparable] / baseline[comparable]).mean()) if comparable.any() else 0.0
