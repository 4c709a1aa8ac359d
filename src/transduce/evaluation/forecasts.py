"""Score time series forecasts, and compare them with repeating the last season or the last value.

Legend: B windows, S points of the past, T points to come, C series.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import count_noun

Numbers = NDArray[np.float64]

# How often a season occurs at least, and its greatest length in points. At its lag, the autocorrelation has a peak of
# at least so many standard errors of noise, and at least this value.
_MIN_SEASONS, _MAX_SEASON, _MIN_ERRORS, _MIN_CORRELATION = 3, 20_000, 3.3, 0.1
# In a short series, a clear wave itself makes the noise seem smooth: this autocorrelation at a lag and at twice the lag
# is always enough.
_CLEAR_CORRELATION = 0.6
# Before and after a season's peak, the autocorrelation drops at least to the first of these shares of the peak's. Peaks
# of at least the second share of the highest one, or within so many standard errors of it, count as equally high: the
# first of them is the season.
_DROP, _NEARLY, _NEARLY_ERRORS = 0.5, 0.9, 4.0


class ForecastErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the forecasts of one time series, and of repeating its last season or value, in the series' unit."""

    mean_absolute: float
    """The mean absolute error of the forecasts."""
    root_mean_square: float
    """The root mean square error of the forecasts."""
    season_mean_absolute: float
    """The mean absolute error of repeating the last season."""
    season_root_mean_square: float
    """The root mean square error of repeating the last season."""
    last_mean_absolute: float
    """The mean absolute error of repeating the last value."""
    last_root_mean_square: float
    """The root mean square error of repeating the last value."""


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of forecasts of several windows of a time series, compared with repeating the last season or value."""

    windows: int
    """Number of windows, each a range of past points with the points to forecast after it."""
    horizon: int
    """Number of points that were forecast in each window."""
    season: int
    """Number of points of a season, which a baseline repeats; 1: no season."""
    series: dict[str, ForecastErrors]
    """A dict from the name of each series to its `ForecastErrors`."""
    skill: float
    """The percentage by which the forecasts' mean absolute error is below that of the better baseline, as the mean over
    series. The baselines repeat the last season and the last value. Above 0 is better than both.
    """
    square_skill: float
    """The percentage by which the forecasts' root mean square error is below that of the better baseline (repeating the
    last season or value), as the mean over series.
    """
    learned: int | None = None
    """Number of the forecast points that the model was trained on, which makes the errors too low; None: unknown."""

    @property
    def is_weak(self) -> bool:
        """True if the forecasts have errors and, on average, are no better than the better baseline.

        The baselines repeat the last season and the last value; the measure is the mean absolute error (`skill`).
        """
        return self.skill <= 0.0 and any(errors.mean_absolute > 0.0 for errors in self.series.values())

    def __str__(self) -> str:
        lines = [
            f"{name}: mean absolute error {errors.mean_absolute:.4g} ({self._baselines(errors, 'mean_absolute')}), "
            f"root mean square {errors.root_mean_square:.4g} ({self._baselines(errors, 'root_mean_square')})"
            for name, errors in self.series.items()
        ]
        exact = [name for name, errors in self.series.items() if _best(errors, "mean_absolute")[1] == 0.0]
        if exact:
            lines.append(f"Left out of the comparison: {', '.join(exact)}, because repeating predicts it exactly")
        absolute, square = (self._better(measure) for measure in ("mean_absolute", "root_mean_square"))
        windows, points = count_noun(self.windows, "window"), count_noun(self.horizon, "point")
        lower, lower_square = _lower(self.skill), _lower(self.square_skill)
        lines.append(
            f"{windows} of {points}: {lower} absolute and {lower_square} root mean square error than {square}"
            if absolute == square
            else f"{windows} of {points}: {lower} absolute error than {absolute}, and {lower_square} root mean square "
            f"error than {square}"
        )
        if self.learned:
            lines.append(
                f"{self.learned:,} of these {self.windows * self.horizon:,} points were learned from in training, so "
                "the errors are too low: score newer points (`--last`)"
            )
        return "\n".join(lines)

    def _baselines(self, errors: ForecastErrors, measure: str) -> str:
        last = f"last value {getattr(errors, f'last_{measure}'):.4g}"
        return last if self.season == 1 else f"last season {getattr(errors, f'season_{measure}'):.4g}, {last}"

    def _better(self, measure: str) -> str:
        """Return words for the baseline with the lower error.

        If this is not the same baseline for all series, the words are for the better baseline of each series.
        """
        season, last = f"repeating the last {self.season} points", "repeating the last value"
        best = {_best(errors, measure)[0] for errors in self.series.values()}
        if self.season == 1 or best == {"last"}:
            return last
        return season if best == {"season"} else f"the better of {season} and {last}"


def _best(errors: ForecastErrors, measure: str) -> tuple[str, float]:
    """Return the name of the baseline, "season" or "last", with the lower error in a series, and this error."""
    found = {name: float(getattr(errors, f"{name}_{measure}")) for name in ("season", "last")}
    return min(found.items(), key=lambda item: item[1])


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


def find_season(*segments: Numbers) -> int:
    """Return the length of a series' season in points, at least 2, by autocorrelation; 1 if there is none.

    A season is a peak of the autocorrelation that stands out from noise, with low values before and after it. It must
    occur at least three times in the longest segment.

    A straight line is removed from each segment first, so that a trend does not count as a season. If the level
    wanders, the season is found in the differences of neighboring points. For several series the mean autocorrelation
    is used.

    Args:
        segments: the points of C series, one or more arrays (N, C); points are not compared across the borders of
            segments.
    """
    level = [_without_line(values) for values in segments if len(values) > 1]
    by_level, by_changes = _peak(level), _peak([np.diff(values, axis=0) for values in level])
    if min(by_level, by_changes) == 1 or by_level % by_changes:
        return by_level if by_level > 1 else by_changes
    # A wandering level can hide the first of several seasons.
    correlation = _autocorrelation(level, 2 * by_level)
    is_peak = correlation[by_changes] >= max(correlation[by_changes - 1], correlation[by_changes + 1])
    scores = _twice(correlation)
    count = sum(map(len, level))
    return by_changes if is_peak and scores[by_changes] >= _nearly(scores[by_level], count) else by_level


def _peak(segments: Sequence[Numbers]) -> int:
    """Return the lag, at least 2, of the first peak of the autocorrelation that is significant and nearly the highest.

    The result is 1 if there is no such peak.

    Args:
        segments: the points of C series without trend, arrays (N, C).
    """
    lengths = np.array([len(values) for values in segments])
    max_season = min(max(lengths, default=0) // _MIN_SEASONS, _MAX_SEASON)
    if max_season < 2:
        return 1
    everything = _autocorrelation(segments, int(lengths.max()) - 1)
    all_lags = everything[: 2 * max_season + 3]
    correlation, scores = all_lags[: max_season + 1], _twice(all_lags)
    below = np.flatnonzero(correlation <= 0.0)
    if not len(below):
        return 1
    first = int(below[0])
    # The standard error of the autocorrelation of noise that is as smooth as the series (Bartlett 1946).
    pairs = np.maximum(lengths[:, None] - np.arange(max_season + 1), 0).sum(axis=0)
    errors = np.sqrt((1.0 + 2.0 * (correlation[1 : first + 1] ** 2).sum()) / pairs)
    limits = np.minimum(_MIN_ERRORS * errors, _CLEAR_CORRELATION)
    low = np.minimum(_DROP * correlation, correlation - limits)
    again = all_lags[::2][: max_season + 1]
    enough = np.minimum(correlation, again) > np.maximum(_MIN_CORRELATION, limits)
    drops_before = np.minimum.accumulate(correlation) < low
    lags = first + 1 + np.flatnonzero((enough & drops_before)[first + 1 :])
    if not len(lags):
        return 1
    after = np.minimum.reduceat(all_lags, np.stack([lags, 2 * lags], axis=1).ravel())[::2]
    lags = lags[after < low[lags]]
    if not len(lags):
        return 1
    lag = int(lags[scores[lags] >= _nearly(scores[lags].max(), int(lengths.sum()))][0])
    while True:  # to the top of this peak
        radius = max(1, lag // 8)
        start = max(2, lag - radius)
        top = start + int(scores[start : lag + radius + 1].argmax())
        if top == lag:
            return _refined(lag, everything[: lengths.max() // 2 + 1]) if lag <= max_season else 1
        lag = top


def _refined(lag: int, correlation: Numbers) -> int:
    """Return the season at a peak of the autocorrelation in points, refined by the peaks at 2, 4, 8, … times its lag.

    Args:
        lag: the lag of the peak.
        correlation: the autocorrelation at each lag from 0.
    """
    radius, season, times = max(1, lag // 8), float(lag), 2
    while round(times * season) + radius < len(correlation):
        start = round(times * season) - radius
        top = start + int(correlation[start : start + 2 * radius + 1].argmax())
        if correlation[top] < _DROP * correlation[lag]:
            break
        season, times = top / times, 2 * times
    return round(season)


def _twice(correlation: Numbers) -> Numbers:
    """Return, for each lag up to half the longest, the mean of the autocorrelations at the lag and at twice the lag.

    In this mean, the peak at a season is sharper.
    """
    twice: Numbers = correlation[::2]
    return 0.5 * (correlation[: len(twice)] + twice)


def _nearly(highest: float, count: int) -> float:
    """Return the least score at which a lag counts as nearly as good as the lag of the highest score.

    Args:
        highest: the highest score.
        count: the number of points of the series; the tolerance is wider for fewer points.
    """
    return highest - max((1.0 - _NEARLY) * highest, _NEARLY_ERRORS * (1.0 - highest) / math.sqrt(count))


def _without_line(values: Numbers) -> Numbers:
    """Return the points of series, (N, C), minus each one's best-fitting straight line, so that no trend is left.

    A trend would look like a season. A series that is a straight line up to rounding becomes exactly 0.
    """
    time = np.arange(len(values)) - (len(values) - 1) / 2.0
    centered = values - values.mean(axis=0)
    slopes = time @ centered / max(1.0, float(time @ time))
    residual: Numbers = centered - time[:, None] * slopes
    # Rounding errors of a straight line count as zero.
    residual[:, (residual**2).sum(axis=0) <= 1e-20 * (values**2).sum(axis=0)] = 0.0
    return residual


def _autocorrelation(segments: Sequence[Numbers], max_lag: int) -> Numbers:
    """Return the mean autocorrelation of series without trend at the lags from 0 to `max_lag`, (max_lag + 1,).

    Each sum of products is divided by the mean energy of the points that it multiplies, so that long lags do not seem
    weaker. Series that are all zeros are left out; without any other, all lags have 0.

    Args:
        segments: the points of C series, arrays (N, C); products are not taken across their borders.
        max_lag: the longest lag.
    """
    sizes = np.max([np.abs(values).max(axis=0) for values in segments], axis=0)
    used = sizes > 0.0
    if not used.any():
        return np.zeros(max_lag + 1)
    products, both = np.zeros((2, max_lag + 1, int(used.sum())))
    for segment in segments:
        values = segment[:, used] / sizes[used]
        lags = np.arange(min(max_lag + 1, len(values)))
        length = 2 * len(values)  # with as many zeros behind the values, no lag wraps around
        spectrum = np.abs(np.fft.rfft(values, length, axis=0)) ** 2
        products[: len(lags)] += np.fft.irfft(spectrum, length, axis=0)[: len(lags)]
        energy = np.cumsum(np.concatenate([np.zeros((1, values.shape[1])), values**2]), axis=0)
        both[: len(lags)] += energy[len(values) - lags] + energy[-1] - energy[lags]
    correlation: Numbers = (2.0 * products / np.maximum(both, np.finfo(np.float64).tiny)).mean(axis=1)
    return correlation


def score_forecasts(
    past: Numbers, actual: Numbers, forecasts: Numbers, *, names: Sequence[str], season: int, learned: int | None = None
) -> ForecastReport:
    """Score forecasts against the actual values, and compare their errors with repeating the last season or value.

    The result is a `ForecastReport`.

    Args:
        past: the known points, (B, S, C); at least a season.
        actual: the points to forecast, (B, T, C).
        forecasts: their forecasts, (B, T, C).
        names: the names of the series.
        season: points of a season; 1: no season.
        learned: number of the points to forecast that the model was trained on; None: unknown.
    """
    repeated = [repeat_season(past, actual.shape[1], length) for length in (season, 1)]
    (absolute, square), (season_absolute, season_square), (last_absolute, last_square) = (
        _errors(each, actual) for each in (forecasts, *repeated)
    )
    columns = zip(absolute, square, season_absolute, season_square, last_absolute, last_square, strict=True)
    fields = ForecastErrors.__struct_fields__
    return ForecastReport(
        windows=len(past),
        horizon=actual.shape[1],
        season=season,
        series={
            name: ForecastErrors(**dict(zip(fields, map(float, errors), strict=True)))
            for name, errors in zip(names, columns, strict=True)
        },
        skill=_skill(absolute, np.minimum(season_absolute, last_absolute)),
        square_skill=_skill(square, np.minimum(season_square, last_square)),
        learned=learned,
    )


def _errors(forecasts: Numbers, actual: Numbers) -> tuple[Numbers, Numbers]:
    """Return two arrays (series,): the mean absolute and the root mean square error over all windows and points.

    Forecasts and actual values are (windows, points, series).
    """
    differences = forecasts - actual
    return np.abs(differences).mean(axis=(0, 1)), np.sqrt((differences**2).mean(axis=(0, 1)))


def _skill(errors: Numbers, baseline: Numbers) -> float:
    """Return the percentage by which the errors of a forecast are below the baseline's, as the mean over series.

    A series that the baseline predicts exactly cannot be improved on and is excluded; 0 if there is no other.

    Args:
        errors: the forecast's error of each series, (C,).
        baseline: the error of the better baseline for each series, (C,).
    """
    comparable = baseline > 0.0
    return float(100.0 * (1.0 - errors[comparable] / baseline[comparable]).mean()) if comparable.any() else 0.0
