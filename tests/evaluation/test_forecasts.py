"""Test forecast errors against those of repeating the last season, in cases solved by hand."""

import numpy as np
import pytest

from transduce.evaluation.forecasts import find_season, repeat_season, score_forecasts


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
