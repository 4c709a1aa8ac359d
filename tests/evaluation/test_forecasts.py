"""Test forecast errors against those of repeating the last season, in cases solved by hand."""

import numpy as np
import pytest

from transduce.evaluation.forecasts import (
    _autocorrelation,
    find_longer_season,
    find_season,
    repeat_season,
    score_forecasts,
)


def test_repeat_season_repeats_the_last_season() -> None:
    past = np.array([[[9.0], [1.0], [2.0], [3.0]]])
    assert repeat_season(past, 5, 3)[0, :, 0].tolist() == [1, 2, 3, 1, 2]
    assert repeat_season(past, 2, 1)[0, :, 0].tolist() == [3, 3]


def test_errors_and_skill_equal_hand_computed_ones() -> None:
    past = np.array([[[0.0, 5.0], [2.0, 5.0]]])
    actual = np.array([[[1.0, 5.0], [4.0, 5.0]]])
    forecasts = np.array([[[1.0, 6.0], [3.0, 5.0]]])
    report = score_forecasts(past, actual, forecasts, names=("load", "flat"), season=2)
    load = report.series["load"]
    assert (load.mean_absolute, load.season_mean_absolute) == (0.5, 1.5)
    assert load.root_mean_square == pytest.approx(0.5**0.5)
    assert load.season_root_mean_square == pytest.approx(2.5**0.5)
    # A series that repeats itself exactly is in no mean.
    assert report.series["flat"].season_mean_absolute == 0.0
    assert report.skill == pytest.approx(100.0 * (1.0 - 0.5 / 1.5))
    assert report.square_skill == pytest.approx(100.0 * (1.0 - (0.5 / 2.5) ** 0.5))
    assert "Left out of the comparison: flat, because the last season predicts it exactly\n" in str(report)
    assert "66.7 % lower absolute" in str(report)
    assert "1 windows of 2 points" in str(report)
    worse = score_forecasts(past, actual, forecasts + 9.0, names=("load", "flat"), season=2)
    assert "466.7 % higher absolute" in str(worse)


def test_a_season_is_found_beside_trend_and_noise() -> None:
    time = np.arange(600.0)
    noise = np.random.Generator(np.random.Philox(2)).normal(scale=0.2, size=600)
    daily = np.sin(2.0 * np.pi * time / 24.0) + 0.01 * time + noise
    assert find_season(daily[:, None], 100) == 24


def test_series_without_a_season_have_season_length_one() -> None:
    noise = np.random.Generator(np.random.Philox(3)).normal(size=5_000)
    assert find_season(noise[:, None], 100) == 1
    assert find_season(np.full((50, 1), 3.0), 20) == 1
    assert find_season(np.arange(50.0)[:, None], 20) == 1
    assert find_season(np.array([[1.0], [2.0]]), 20) == 1


def test_a_season_that_is_longer_than_the_past_is_found_if_it_is_clear() -> None:
    time, generator = np.arange(2_000), np.random.Generator(np.random.Philox(5))
    noise = generator.normal(scale=0.2, size=2_000)
    daily = 2.0 + np.sin(2.0 * np.pi * time / 24.0)
    weekly = daily * np.where(time // 24 % 7 >= 5, 0.3, 1.0) + noise
    assert find_season(weekly[:, None], 96) == 24
    assert find_longer_season(weekly[:, None], 96) == 168
    assert find_longer_season(weekly[:, None], 168) is None
    assert find_longer_season(weekly[:400, None], 96) is None  # fewer than three weeks
    assert find_longer_season((daily + noise)[:, None], 96) is None
    for other in (noise, np.cumsum(noise), np.zeros(2_000), time.astype(float)):
        assert find_longer_season(other[:, None], 96) is None


def test_autocorrelation_equals_the_sum_of_products() -> None:
    values = np.random.Generator(np.random.Philox(6)).normal(size=(61, 2))
    values /= np.sqrt((values**2).sum(axis=0))
    expected = [(values[lag:] * values[: 61 - lag]).sum(axis=0).mean() for lag in range(61)]
    assert _autocorrelation(values, 60) == pytest.approx(np.array(expected), abs=1e-12)
