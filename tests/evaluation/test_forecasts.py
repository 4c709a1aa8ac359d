"""Test forecast errors against those of repeating the last season or value, in cases solved by hand."""

from typing import Any

import numpy as np
import pytest

from transduce.evaluation.forecasts import _autocorrelation, find_season, repeat_season, score_forecasts


def test_repeat_season_repeats_the_last_season() -> None:
    past = np.array([[[9.0], [1.0], [2.0], [3.0]]])
    assert repeat_season(past, 5, 3)[0, :, 0].tolist() == [1, 2, 3, 1, 2]
    assert repeat_season(past, 2, 1)[0, :, 0].tolist() == [3, 3]


def test_errors_and_skill_equal_hand_computed_ones() -> None:
    past = np.array([[[0.0, 5.0], [9.0, 5.0]]])
    actual = np.array([[[1.0, 5.0], [11.0, 5.0]]])
    forecasts = np.array([[[1.0, 6.0], [10.0, 5.0]]])
    report = score_forecasts(past, actual, forecasts, names=("load", "flat"), season=2)
    load = report.series["load"]
    assert (load.mean_absolute, load.season_mean_absolute, load.last_mean_absolute) == (0.5, 1.5, 5.0)
    assert load.root_mean_square == pytest.approx(0.5**0.5)
    assert load.season_root_mean_square == pytest.approx(2.5**0.5)
    assert load.last_root_mean_square == pytest.approx(34.0**0.5)
    # A series that repeats itself exactly is in no mean.
    assert report.series["flat"].season_mean_absolute == 0.0
    assert report.skill == pytest.approx(100.0 * (1.0 - 0.5 / 1.5))
    assert report.square_skill == pytest.approx(100.0 * (1.0 - (0.5 / 2.5) ** 0.5))
    assert "Left out of the comparison: flat, because repeating predicts it exactly\n" in str(report)
    assert "66.7 % lower absolute and 55.3 % lower root mean square error than" in str(report)
    assert "1 window of 2 points" in str(report)
    worse = score_forecasts(past, actual, forecasts + 9.0, names=("load", "flat"), season=2)
    assert "466.7 % higher absolute" in str(worse)


def test_skill_compares_with_the_better_of_the_last_season_and_the_last_value() -> None:
    past = np.array([[[0.0, 0.0], [0.0, 8.0], [9.0, 0.0], [4.0, 8.0]]])
    actual = np.array([[[4.5, 1.0], [4.5, 9.0]]])  # the first series stays, the second repeats two points
    report = score_forecasts(past, actual, actual + 0.25, names=("load", "heat"), season=2)
    assert report.skill == pytest.approx(100.0 * (1.0 - (0.25 / 0.5 + 0.25 / 1.0) / 2.0))
    assert "than the better of repeating the last 2 points and repeating the last value" in str(report)
    for column, name in enumerate(("repeating the last value", "repeating the last 2 points")):
        one = slice(column, column + 1)
        alone = score_forecasts(past[..., one], actual[..., one], actual[..., one], names=("x",), season=2)
        assert str(alone).endswith(f"root mean square error than {name}")
    no_season = score_forecasts(past, actual, actual, names=("load", "heat"), season=1)
    assert str(no_season).endswith("than repeating the last value")
    assert "season" not in str(no_season)
    # Each error is compared with its own better baseline: one large error counts more when it is squared.
    mixed = score_forecasts(
        np.array([[[0.0], [1.0], [3.5]]]), np.array([[[0.0], [7.0]]]), np.zeros((1, 2, 1)), names="x", season=3
    )
    assert "absolute error than repeating the last 3 points, and" in str(mixed)
    assert str(mixed).endswith("root mean square error than repeating the last value")


def test_a_report_says_how_many_points_were_learned_from() -> None:
    points = np.zeros((1, 2, 1))
    report = score_forecasts(points, points + 1.0, points, names="x", season=1, learned=1)
    assert str(report).splitlines()[-1].startswith("1 of these 2 points were learned from in training")
    for learned in (0, None):
        report = score_forecasts(points, points + 1.0, points, names="x", season=1, learned=learned)
        assert "learned" not in str(report)


def test_a_report_knows_whether_a_model_is_no_better_than_repeating() -> None:
    zeros = np.zeros((1, 2, 1))
    for actual, forecast, is_weak in ((0, 0, False), (0, 1, True), (1, 0, True), (1, 1, False)):
        report = score_forecasts(zeros, zeros + actual, zeros + forecast, names="x", season=1)
        assert report.is_weak == is_weak, (actual, forecast)


def noise_of(seed: int, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.Generator(np.random.Philox(seed)).normal(size=size)


def smooth_noise(phi: float, seed: int, size: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return an autoregressive process: each point is `phi` times the one before, plus noise."""
    points = noise_of(seed, size)
    for now in range(1, size):
        points[now] += phi * points[now - 1]
    return points


def test_a_season_is_found_beside_trend_and_noise() -> None:
    time = np.arange(600.0)
    wave = np.sin(2.0 * np.pi * time / 24.0)
    for seed in range(10):
        for deviation in (0.0, 0.2, 0.5):
            assert find_season((wave + 0.01 * time + deviation * noise_of(seed, 600))[:, None]) == 24
    for length in (2, 3, 7):
        assert find_season(((time % length == 0.0) + 0.2 * noise_of(1, 600))[:, None]) == length
    assert find_season(np.stack([wave, np.zeros(600)], axis=1)) == 24


def test_a_season_is_found_beside_a_wandering_level() -> None:
    time = np.arange(2_000.0)
    for seed in range(10):
        level = 10.0 * np.sin(2.0 * np.pi * time / 8_766.0) + 0.5 * smooth_noise(0.98, seed, 2_000)
        assert find_season((level + 3.0 * np.sin(2.0 * np.pi * time / 24.0))[:, None]) == 24


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0])
def test_noise_has_no_season(phi: float) -> None:
    for seed in range(20):
        for size in (200, 1_000):
            assert find_season(smooth_noise(phi, seed, size)[:, None]) == 1


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.7, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("size", [30, 36, 48, 60, 600, 3_000])
def test_short_and_long_noise_has_hardly_ever_a_season(phi: float, size: int) -> None:
    assert sum(find_season(smooth_noise(phi, seed, size)[:, None]) > 1 for seed in range(20)) <= 1


def test_a_clear_season_is_found_in_a_short_series() -> None:
    for seed in range(10):
        for size in (36, 37, 42, 48):
            time = np.arange(size)
            monthly = 0.5 * time + 10.0 * np.sin(2.0 * np.pi * time / 12.0) + noise_of(seed, size)
            assert find_season(monthly[:, None]) == 12
        for size in (21, 22, 24):
            weekly = np.array([10.0, 11.0, 10.0, 12.0, 13.0, 4.0, 2.0])[np.arange(size) % 7]
            assert find_season((weekly + 0.5 * noise_of(seed, size))[:, None]) == 7


def test_the_season_is_exact() -> None:
    time = np.arange(200)
    for seed in range(20):
        assert find_season((np.sin(2.0 * np.pi * time / 12.0) + 0.5 * noise_of(seed, 200))[:, None]) == 12
    wave = np.sin(2.0 * np.pi * np.arange(300_000) / 1_440.0)
    for seed in range(2):
        assert find_season((wave + noise_of(seed, 300_000))[:, None]) == 1_440


def test_points_of_different_segments_are_not_compared() -> None:
    for seed in range(5):
        level = smooth_noise(1.0, seed, 300)
        similar = [(level + 0.1 * noise_of(10 + number, 300))[:, None] for number in range(4)]
        assert find_season(*similar) == 1
        waves = [
            np.sin(2.0 * np.pi * (np.arange(size) + shift) / 12.0) + 0.5 * noise_of(20 + seed, size)
            for size, shift in ((90, 0), (5, 2), (70, 7), (1, 3))
        ]
        assert find_season(*(wave[:, None] for wave in waves)) == 12


def test_series_without_a_season_have_season_length_one() -> None:
    time = np.arange(300.0)
    for values in (np.full(50, 3.0), time, time**2, np.sqrt(time), np.array([1.0, 2.0]), np.array([1.0])):
        assert find_season(values[:, None]) == 1
    assert find_season(np.sin(2.0 * np.pi * time / 150.0)[:, None]) == 1  # it occurs only twice


def test_the_longer_of_two_seasons_is_found_if_it_is_clear() -> None:
    time = np.arange(2_000)
    daily = 2.0 + np.sin(2.0 * np.pi * time / 24.0)
    weekly = daily * np.where(time // 24 % 7 >= 5, 0.3, 1.0) + 0.2 * noise_of(5, 2_000)
    assert find_season(weekly[:, None]) == 168
    assert find_season((daily + 0.2 * noise_of(5, 2_000))[:, None]) == 24


def test_autocorrelation_equals_the_sum_of_products() -> None:
    values = np.random.Generator(np.random.Philox(6)).normal(size=(61, 2)) * [1.0, 1e9]
    expected = [
        (
            2.0
            * (values[lag:] * values[: 61 - lag]).sum(axis=0)
            / ((values[lag:] ** 2).sum(axis=0) + (values[: 61 - lag] ** 2).sum(axis=0))
        ).mean()
        for lag in range(61)
    ]
    assert _autocorrelation([values], 60) == pytest.approx(np.array(expected), abs=1e-12)
