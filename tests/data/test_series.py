"""Test tables of time series, their scale, and their windows."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from transduce.data.series import (
    SeriesPlan,
    SeriesScale,
    SeriesSettings,
    WindowedSeries,
    find_learned,
    learned_points,
    measure_scale,
    read_table,
)
from transduce.errors import TransduceError

WriteLines = Callable[[str, Iterable[str]], Path]


# --- tables ---


def test_columns_are_read_by_name_and_in_order(write_lines: WriteLines) -> None:
    path = write_lines("table.csv", ["time,load,heat", "2026-01-01,1,-2.5", '2026-01-02,"3",4e1'])
    table = read_table(path, ["heat", "load"])
    assert table.columns == ("heat", "load")
    assert table.values.tolist() == [[-2.5, 1.0], [40.0, 3.0]]


@pytest.mark.parametrize("lines", [["a;b", "1;2"], ["a\tb", "1\t2"], ["a,b", "1,2", "", ""]])
def test_other_delimiters_and_empty_lines_at_the_end_are_understood(lines: list[str], write_lines: WriteLines) -> None:
    table = read_table(write_lines("table.csv", lines))
    assert (table.columns, table.values.tolist()) == (("a", "b"), [[1.0, 2.0]])


def test_a_tsv_has_tabs_and_all_columns_are_read_where_none_is_named(write_lines: WriteLines) -> None:
    table = read_table(write_lines("table.tsv", ["a\tb, c", "1\t2"]))
    assert table.columns == ("a", "b, c")
    assert table.values.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"is empty, but a table begins with a line of column names"),
        (["a,b"], r"has column names but no numbers"),
        (["1,2", "3,4"], r"csv:1: a table begins with a line of column names, but this line has numbers"),
        (["a,a", "3,4"], r"csv:1: column names must be distinct, but 2 are `a`"),
        (["a,b", "1,2", "3"], r"csv:3: every line has a cell for each of the 2 columns, but this one has 1"),
        (["a,b", "1,2", "", "3,4"], r"csv:3: a line of a table is empty"),
        (["a,b", "1,2", "3, "], r"csv:3: the value of `b` is missing"),
        (["a,b", "1,2", "3,x"], r"csv:3: the value of `b` must be a finite number, but is `x`"),
        (["a,b", "1,nan"], r"csv:2: the value of `b` must be a finite number, but is `nan`"),
        (["a,b", "inf,2"], r"csv:2: the value of `a` must be a finite number, but is `inf`"),
        (["a,b", "1_000,2"], r"csv:2: the value of `a` must be a finite number, but is `1_000`"),
        (["a,b", "1,-1e300"], r"csv:2: the value of `b` must be at most 1e\+100 in size, .* but is -1e300: choose"),
        (["a,b", '"1,2'], r"csv:2: this line of a table cannot be read"),
    ],
)
def test_malformed_tables_are_refused_with_their_location(
    lines: list[str], message: str, write_lines: WriteLines
) -> None:
    with pytest.raises(TransduceError, match=message):
        read_table(write_lines("table.csv", lines))


def test_a_column_that_is_not_there_is_refused(write_lines: WriteLines) -> None:
    with pytest.raises(TransduceError, match=r"there is no column `c` .*: the columns are a, b"):
        read_table(write_lines("table.csv", ["a,b", "1,2"]), ["c"])


# --- times ---


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["2024-01-01", "2024-01-02", "2024-01-03"], None),
        (["2024-01-01", "2024-02-01", "2024-03-01", "2024-04-01"], None),
        (["2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00", "2024-03-31T02:00Z"], None),
        (["1", "2", "9"], None),
        (["2024-03-28", "2024-03-29", "2024-04-01", "2024-04-02"], None),  # without a weekend
        (["2024-03-26", "2024-03-27", "2024-03-28", "2024-04-02"], None),  # Easter
        (["2024-03-01", "2024-03-04", "2024-03-05", "2024-03-06", "2024-03-14"], ":6: .* in the usual step, here and"),
        (["2024-03-30T00:00+01:00", "2024-03-31T00:00+01:00", "2024-04-01T00:00+02:00"], None),
        (["2024-03-31 00:00", "2024-03-31 01:00", "2024-03-31 03:00", "2024-03-31 04:00"], None),
        (["2024-10-27 01:00", "2024-10-27 02:00", "2024-10-27 02:00", "2024-10-27 03:00"], None),
        (["2024-10-27 02:00", "2024-10-27 02:30", "2024-10-27 02:00", "2024-10-27 02:30"], None),
        (["2024-03-31 00:00", "2024-03-31 01:00", "2024-03-31 04:00", "2024-03-31 05:00"], ":4: .* the usual step"),
        (["2024-03-26 00:00", "2024-03-26 01:00", "2024-03-26 03:00", "2024-03-26 04:00"], ":4: .* the usual step"),
        (["Monday", "Tuesday", "Monday"], None),
        (["2024-01-01", "2024-01-02T00:00Z", "2024-01-02"], None),
        (["2024-01-01"], None),
        (["2024-01-02", "2024-01-03", "2024-01-01"], r":4: .* `when` 2024-01-01 is earlier than on the line before"),
        (["2024-01-01 01:00", "2024-01-01 02:00", "2024-01-01 02:00"], ":4: .* is the same as on the line before"),
        (
            ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-07"],
            ":5: .* does not follow in the usual step, here and",
        ),
    ],
)
def test_times_that_are_not_in_equal_steps_are_reported(
    times: list[str], message: str | None, write_lines: WriteLines
) -> None:
    path = write_lines("table.csv", ["when,load", *(f"{time},{number}" for number, time in enumerate(times))])
    warning = read_table(path, ["load"]).time_warning
    assert (warning is None) if message is None else re.search(message, warning or "")


def test_a_year_of_days_or_hours_has_no_warning_but_an_hour_lost_each_week_has(write_lines: WriteLines) -> None:
    def warning(times: Sequence[datetime]) -> str | None:
        lines = [f"{time.isoformat()},{number}" for number, time in enumerate(times)]
        return read_table(write_lines("table.csv", ["when,load", *lines]), ["load"]).time_warning

    hours = [datetime(2023, 1, 1) + timedelta(hours=number) for number in range(24 * 365)]
    local = [time for time in hours if time != datetime(2023, 3, 26, 2)]
    assert warning(sorted([*local, datetime(2023, 10, 29, 2)])) is None
    assert "make the steps equal" in (warning([time for time in hours if (time.weekday(), time.hour) != (6, 2)]) or "")
    assert "keep one line for each time" in (warning(sorted([*hours, datetime(2023, 6, 1)])) or "")
    assert warning([time for time in hours[::24] if time.weekday() not in (4, 5)]) is None
    assert warning([time for time in hours[::24] if time.month != 5 or time.day != 3]) is not None


# --- the scale ---


def test_windows_of_a_linear_series_are_equal_after_scaling() -> None:
    line = 5.0 + 3.0 * np.arange(100.0)[:, None]
    scale = measure_scale(line, "window")
    windows = WindowedSeries([line], past=8, horizon=4)
    batch = windows.batch(np.array([0, 50, 88]), scale)
    np.testing.assert_allclose(batch.past, batch.past[:1].repeat(3, axis=0), rtol=1e-5)
    np.testing.assert_allclose(batch.future, batch.future[:1].repeat(3, axis=0), rtol=1e-5)


@pytest.mark.parametrize("normalization", ["window", "series"])
def test_undoing_a_scale_restores_the_values(normalization: str) -> None:
    values = np.random.Generator(np.random.Philox(1)).normal(7.0, 3.0, (50, 2))
    scale = measure_scale(values, normalization)  # type: ignore[arg-type]
    past = values[None, :20]
    own = scale.of(past)
    np.testing.assert_allclose(own.undo(own.apply(past)), past)
    spread = 0.05 if normalization == "window" else 1.0
    np.testing.assert_allclose(own.apply(past).mean(axis=1), 0.0, atol=spread)


@pytest.mark.parametrize("amplitude", [1.0, 0.01, 0.001])
def test_windows_of_any_amplitude_are_equal_after_scaling(amplitude: float) -> None:
    wave = np.sin(np.arange(40.0))[:, None]
    scale = measure_scale(wave, "window")
    window = scale.of(amplitude * wave[None])
    np.testing.assert_allclose(window.apply(amplitude * wave[None]), scale.of(wave[None]).apply(wave[None]), rtol=1e-3)
    before = msgspec.structs.replace(scale, min_deviation=0.01)  # as in folders that do not store it
    stored = {"means": scale.means, "deviations": scale.deviations, "normalization": "window"}
    assert before == msgspec.convert(stored, SeriesScale)
    floor = np.hypot(amplitude * wave.std(), 0.01 * wave.std())
    np.testing.assert_allclose(before.of(amplitude * wave[None]).factor, floor, rtol=1e-12)


def test_a_step_behind_a_constant_past_counts_in_training_as_if_the_past_had_varied() -> None:
    values = np.concatenate([np.zeros(40), np.sin(np.arange(60.0))])[:, None]
    scale = measure_scale(values, "window")
    batch = WindowedSeries([values], past=20, horizon=4).batch(np.array([20, 60]), scale)
    assert np.abs(batch.future[0]).max() > 1e3  # in units of a nearly constant past
    assert (batch.weights * batch.future.astype(float) ** 2)[0].max() < 1e5
    np.testing.assert_allclose(batch.weights[1], 1.0, rtol=1e-3)
    for other in (msgspec.structs.replace(scale, min_deviation=0.01), measure_scale(values, "series")):
        assert (other.weights(values[None, :20]) == 1.0).all()


@pytest.mark.parametrize("value", [4.0, 0.1, 1e6 + 0.1, 1e12 + 0.1])
def test_a_series_that_never_changes_has_a_scale(value: float) -> None:
    scale = measure_scale(np.full((9, 1), value), "window")
    assert scale.deviations == (max(1.0, 1e-6 * value),)
    own = scale.of(np.full((1, 5, 1), value))
    np.testing.assert_allclose(own.apply(np.full((1, 2, 1), value)), 0.0, atol=1e-6)


def test_a_scale_of_impossible_numbers_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"a finite mean and a positive deviation for each series"):
        SeriesScale(means=(0.0,), deviations=(0.0,), normalization="series")


# --- learned points ---


def test_points_of_the_training_part_are_recognized_in_other_tables() -> None:
    values = np.random.Generator(np.random.Philox(1)).normal(size=(900, 2))
    learned = learned_points([values[:300], values[400:700]])
    expected = np.zeros(900, dtype=bool)
    expected[:300] = expected[400:700] = True
    np.testing.assert_array_equal(find_learned(values, learned), expected)
    np.testing.assert_array_equal(find_learned(values[100:500], learned), expected[100:500])
    assert not find_learned(values[700:], learned).any()
    assert not find_learned(values[:5], learned).any()  # too few points to tell
    assert not find_learned(values + 1e-9, learned).any()


def test_points_that_repeat_are_not_taken_for_learned_ones() -> None:
    values = np.random.Generator(np.random.Philox(1)).normal(size=(900, 1))
    values[np.arange(900) % 24 < 12] = 0.0
    learned = learned_points([values[:600]])
    assert find_learned(values[:600], learned).all()
    assert not find_learned(values[600:], learned).any()
    assert not learned_points([np.zeros((50, 1))])[0].digests


@pytest.mark.parametrize("mean", [0.5, 1.0, None])
@pytest.mark.parametrize("points", [60, 200, 500])
def test_small_counts_that_match_by_chance_are_not_learned(mean: float | None, points: int) -> None:
    def draw(seed: int, size: int) -> NDArray[np.float64]:
        generator = np.random.Generator(np.random.Philox(seed))
        drawn = generator.integers(0, 2, (size, 1)) if mean is None else generator.poisson(mean, (size, 1))
        return drawn.astype(np.float64)

    for seed in range(3):
        training, other = draw(seed, points), draw(seed + 100, 988)
        learned = learned_points([training])
        assert find_learned(training, learned).all()
        assert not find_learned(other, learned).any()
        found = find_learned(np.concatenate([training, other]), learned)
        assert found[:points].all()
        assert not found[points:].any()


def test_a_single_digest_is_not_enough() -> None:
    values = np.random.Generator(np.random.Philox(1)).normal(size=(100, 1))
    (learned,) = learned_points([values])
    assert find_learned(values, [learned]).all()
    for count, expected in ((1, False), (2, False), (12, True)):  # the first two share points
        digests = dict(list(learned.digests.items())[:count])
        assert find_learned(values, [msgspec.structs.replace(learned, digests=digests)]).all() == expected


def test_learned_points_are_fast_with_many_zeros() -> None:
    values = np.random.Generator(np.random.Philox(8)).normal(size=(100_000, 1))
    values[np.arange(100_000) % 24 < 12] = 0.0
    start = time.perf_counter()
    digests = learned_points([values])[0].digests
    assert time.perf_counter() - start < 1.0
    assert digests


# --- windows ---


def numbered(*lengths: int) -> WindowedSeries:
    """Return windows over sections of these lengths; section n counts up from 1,000 × n."""
    segments = [1_000.0 * number + np.arange(float(length))[:, None] for number, length in enumerate(lengths)]
    return WindowedSeries(segments, past=3, horizon=2)


def test_windows_do_not_reach_into_the_next_segment() -> None:
    series = numbered(6, 4, 5)
    past, future = series.cut(np.arange(len(series)))
    assert past[..., 0].tolist() == [[0, 1, 2], [1, 2, 3], [2000, 2001, 2002]]
    assert future[..., 0].tolist() == [[3, 4], [4, 5], [2003, 2004]]


def test_windows_begin_where_a_season_is_known() -> None:
    segments = [np.arange(10.0)[:, None], np.arange(50.0, 59.0)[:, None]]
    series = WindowedSeries(segments, past=3, horizon=2, stride=2, season=5)
    windows = np.arange(len(series))
    past, future = series.cut(windows)
    assert past[..., 0].tolist() == [[2, 3, 4], [4, 5, 6], [52, 53, 54], [54, 55, 56]]
    assert future[..., 0].tolist() == [[5, 6], [7, 8], [55, 56], [57, 58]]
    assert series.known(windows)[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert series.values[series.target_rows(), 0].tolist() == future.ravel().tolist()
    short = WindowedSeries(segments, past=3, horizon=2, season=2)
    np.testing.assert_array_equal(short.known(np.arange(3)), short.cut(np.arange(3))[0])


def test_an_epoch_has_each_window_once_in_an_order_of_its_own() -> None:
    series = numbered(40)
    plan = SeriesPlan(series, measure_scale(np.arange(40.0)[:, None], "series"), rows=7, seed=3)
    orders = [np.concatenate([plan.batch(epoch, n).indices for n in range(len(plan))]).tolist() for epoch in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(36))
    assert orders[0] != orders[1]


def test_any_batch_is_reached_without_those_before_it() -> None:
    series, scale = numbered(40), measure_scale(np.arange(40.0)[:, None], "series")
    one, other = (SeriesPlan(series, scale, rows=7, seed=3) for _ in range(2))
    for epoch in range(3):
        for position in range(len(one)):
            one.batch(epoch, position)
    assert np.array_equal(one.batch(2, 4).past, other.batch(2, 4).past)


def test_processes_share_a_batch_out() -> None:
    series, scale = numbered(12), measure_scale(np.arange(12.0)[:, None], "series")
    whole = SeriesPlan(series, scale, rows=3, seed=3)
    parts = [SeriesPlan(series, scale, rows=3, seed=3, rank_and_count=(rank, 2)) for rank in range(2)]
    for position in range(len(whole)):
        shares = [part.batch(0, position) for part in parts]
        assert sorted(np.concatenate([s.indices for s in shares])) == sorted(whole.batch(0, position).indices)
        assert all(len(share.past) >= 1 for share in shares)
    assert [len(part.batch(0, 2).indices) for part in parts] == [1, 1]
    assert len(whole) == 3
    idle = SeriesPlan(series, scale, rows=3, seed=3, rank_and_count=(3, 4)).batch(0, 1)
    assert (whole.batch(0, 1).is_stand_in, idle.is_stand_in, len(idle.indices)) == (False, True, 0)
    assert idle.future.tolist() == whole.batch(0, 1).future[:1].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 0}, r"`task\.series\.horizon` must be at least 1, but is 0"),
        ({"past": 1}, r"`task\.series\.past` must be at least 2, but is 1"),
        ({"season": 0}, r"`task\.series\.season` must be at least 1, but is 0"),
    ],
)
def test_lengths_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        SeriesSettings(**settings)  # type: ignore[arg-type]


def test_the_past_is_four_horizons_where_nothing_is_set() -> None:
    assert SeriesSettings(horizon=6).past_points == 24
    assert SeriesSettings(horizon=6, past=7).past_points == 7


def test_the_past_has_at_least_the_season_that_is_set() -> None:
    assert SeriesSettings(horizon=24).past_points == 96
    assert SeriesSettings(horizon=24, season=168).past_points == 168
    assert SeriesSettings(horizon=24, season=168, past=200).past_points == 200
