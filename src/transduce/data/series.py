"""Read time series from tables, scale them, and cut them into windows: past points, and the points to forecast.

Every window of the training part occurs once in an epoch, in random order. The windows of a batch depend only on the
seed, the epoch and the position.
Legend: B windows, S points of the past, T points to come, C series, N points in all.
"""

import csv
import hashlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Indices, RandomPurpose, own_part, permutation
from transduce.errors import TransduceError, near_name, shown_names
from transduce.text.files import read_lines

# --- scaling ---
# Each series has the mean and deviation of its training part removed. If the level changes with time (a trend),
# future values lie outside the range seen in training. So each window is also normalized by the mean and deviation of
# its own past (as in RevIN, Kim et al. 2022). A straight line then looks the same wherever the window lies on it.
# Legend: B windows, S points of the past, T points, C series.


Normalization = Literal["window", "series"]
Numbers = NDArray[np.float64]

# Lower limit of a window's deviation, relative to its series: a constant window has a scale, too.
_MIN_DEVIATION = 1e-5
# Below this deviation, relative to its series, a window counts less in training: a step behind a nearly constant past
# would otherwise have a huge error.
_FULL_WEIGHT_DEVIATION = 0.01
_ROUNDING = 1e-10


class WindowScale(NamedTuple):
    """The shift and the factor by which each window's values are normalized."""

    shift: Numbers
    """The number that is subtracted from the values of each window and series, (B, 1, C)."""
    factor: Numbers
    """The positive number by which the values of each window and series are divided, (B, 1, C)."""

    def apply(self, values: Numbers) -> Numbers:
        """Normalize values (B, T, C) by the window's shift and factor."""
        return (values - self.shift) / self.factor

    def undo(self, values: Numbers) -> Numbers:
        """Convert normalized values (B, T, C) back to the series' units by the windows' shift and factor."""
        return values * self.factor + self.shift


class SeriesScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The means and deviations by which series are normalized, which are stored with the model."""

    means: tuple[float, ...]
    """The mean of each series over the training part, C numbers."""
    deviations: tuple[float, ...]
    """The standard deviation of each series over the training part, C numbers. For a constant series it is 1, or a
    millionth of the series' largest absolute value if that is more.
    """
    normalization: Normalization
    """`window`: also normalize by each window's own past; `series`: use only these means and deviations."""
    min_deviation: float = 0.01
    """Lower limit of the deviation by which a window is normalized, relative to its series' deviation; 0.01 in folders
    of versions that did not store it.
    """

    def __post_init__(self) -> None:
        numbers = np.array([*self.means, *self.deviations])
        if len(self.means) != len(self.deviations) or not np.isfinite(numbers).all() or min(self.deviations) <= 0.0:
            raise TransduceError(
                "A scale has a finite mean and a positive deviation for each series, but this one has the means "
                f"{list(self.means)} and the deviations {list(self.deviations)}."
            )

    def of(self, past: Numbers) -> WindowScale:
        """Return the `WindowScale` (shift and factor, (B, 1, C) each) of windows from their past points (B, S, C).

        With normalization `series`, shift and factor are the same for all windows.
        """
        means, deviations = np.array(self.means), np.array(self.deviations)
        if self.normalization == "series":
            shape = (len(past), 1, len(means))
            return WindowScale(np.broadcast_to(means, shape), np.broadcast_to(deviations, shape))
        return WindowScale(past.mean(axis=1, keepdims=True), self._deviation(past, self.min_deviation))

    def weights(self, past: Numbers) -> Numbers:
        """Return the weights of windows' squared errors in training, (B, 1, C), from their past (B, S, C).

        A weight is about 1, but far less for a window that is nearly constant.
        """
        if self.normalization == "series":
            return np.ones((len(past), 1, len(self.means)))
        limit = max(_FULL_WEIGHT_DEVIATION, self.min_deviation)
        return (self._deviation(past, self.min_deviation) / self._deviation(past, limit)) ** 2

    def _deviation(self, past: Numbers, limit: float) -> Numbers:
        """Return the standard deviation of each window's past, (B, 1, C), raised so that it is never close to zero.

        The result is √(w² + (`limit` · s)²), for the deviation w of the window's past and the deviation s of the whole
        series.
        """
        bounded: Numbers = np.hypot(past.std(axis=1, keepdims=True), limit * np.array(self.deviations))
        return bounded


def measure_scale(values: Numbers, normalization: Normalization) -> SeriesScale:
    """Return the `SeriesScale` (means and deviations) of series from the values of their training part, (N, C).

    `normalization` is stored in the result, and decides whether windows are normalized by their own past too.
    """
    deviations = values.std(axis=0)
    # Rounding gives a constant series a tiny deviation if its value is not exact in binary.
    sizes = np.abs(values).max(axis=0)
    changes = deviations > _ROUNDING * sizes
    return SeriesScale(
        means=tuple(values.mean(axis=0).tolist()),
        deviations=tuple(np.where(changes, deviations, np.maximum(1.0, 1e-6 * sizes)).tolist()),
        normalization=normalization,
        min_deviation=_MIN_DEVIATION,
    )


# --- tables ---
# .csv and .tsv files with a header, one line per time, one column per series.


MAX_VALUE = 1e100
_HOUR, _DAY, _MONTH = 3_600, 86_400, 28 * 86_400  # seconds
# Without lines for weekends, the points before and after a weekend and holidays are at most so many days apart.
_WEEKEND_AND_HOLIDAYS = 5
_SUNDAY, _CLOCK_CHANGES = 6, 2  # the day on which clocks change, and how often a year


class SeriesTable(NamedTuple):
    """The time series that were read from a file, one for each column, with their names."""

    columns: tuple[str, ...]
    """The names of the series."""
    values: Numbers
    """The values, (N, C): N points in time of C series."""
    time_warning: str | None = None
    """A warning that a column of dates or times is not in order or has unequal steps; None: there is none."""


def read_table(path: str | Path, columns: Sequence[str] = ()) -> SeriesTable:
    """Read time series from a file, plain or gzip, and return a `SeriesTable`: names, values and a warning about times.

    The file has one line for each point in time after a header line. Cells are separated by tabs in .tsv files, else by
    the comma, semicolon or tab of the header.

    Args:
        path: the file.
        columns: the columns to read, in this order; empty: all of them.

    Raises:
        TransduceError: the file is missing or empty, lacks a column, has a line with too few or too many cells, or has
            a cell that is no number from -1e100 to 1e100.
    """
    rows = _rows(Path(path))
    _, header = next(rows, (0, []))
    if not header:
        raise TransduceError(f"{path} is empty, but a table begins with a line of column names: check it.")
    names = [name.strip() for name in header]
    _check_header(Path(path), names, columns)
    chosen = [names.index(name) for name in columns] if columns else list(range(len(names)))
    read = list(rows)
    values = [_numbers(path, line, row, names, chosen) for line, row in read]
    if not values:
        raise TransduceError(f"{path} has column names but no numbers: add a line for each point in time.")
    others = (column for column in range(len(names)) if column not in chosen)
    warnings = (_time_warning(path, names[column], [(line, row[column]) for line, row in read]) for column in others)
    warning = next((each for each in warnings if each), None)
    return SeriesTable(tuple(names[column] for column in chosen), np.array(values), warning)


def _time_warning(path: str | Path, name: str, cells: Sequence[tuple[int, str]]) -> str | None:
    """Return a warning if a column of dates or times goes back, repeats or has unequal steps, else None.

    A column that has other values than ISO dates and times gets no warning. Three kinds of steps count as equal: days
    without weekends, months of different lengths, and local times around a change of summer time.

    Args:
        path: the table, for the message.
        name: the column's name.
        cells: the column's cells, each with its line number.
    """
    try:
        times = [datetime.fromisoformat(cell.strip().replace("Z", "+00:00")) for _, cell in cells]
        steps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
    except (ValueError, TypeError):  # no times, or with and without time zone
        return None
    usual = Counter(steps).most_common(1)[0][0] if steps else 0.0
    if usual == _DAY and _has_free_days(times):
        shortest, longest = usual - _HOUR, _WEEKEND_AND_HOLIDAYS * usual + _HOUR
    elif usual >= _MONTH:  # months, quarters and years are not equally long
        shortest, longest = usual / 1.11, 1.11 * usual
    else:
        change = _HOUR if usual >= _DAY else 0
        shortest, longest = usual - change, usual + change
    # A change of summer time makes local times an hour more or less.
    changes = {
        number
        for number, step in enumerate(steps)
        if abs(step - usual) == _HOUR and any(map(_may_change_clocks, times[number : number + 2]))
    }
    if max(Counter(times[number].year for number in changes).values(), default=0) > _CLOCK_CHANGES:
        changes = set()
    compared = [usual if number in changes else step for number, step in enumerate(steps)]
    for fault, remedy, is_faulty in (
        ("is earlier than on the line before", "sort the lines", [step < 0.0 for step in compared]),
        (
            "is the same as on the line before",
            "keep one line for each time, with a column for each series",
            [step == 0.0 for step in compared],
        ),
        (
            "does not follow in the usual step",
            "make the steps equal, for example by filling gaps, or divide the table into several files there",
            [not shortest <= step <= longest for step in compared],
        ),
    ):
        if any(is_faulty):
            line, cell = cells[1 + is_faulty.index(True)]
            return (
                f"{path}:{line}: the lines of a table are points in equal steps of time, but `{name}` {cell.strip()} "
                f"{fault}, here and in {sum(is_faulty) - 1:,} other lines: {remedy}."
            )
    return None


def _has_free_days(times: Sequence[datetime]) -> bool:
    """Return whether daily points leave out a weekday: Sunday or, if there are more than 14 points, any weekday."""
    weekdays = {time.weekday() for time in times}
    return _SUNDAY not in weekdays or (len(times) > 14 and len(weekdays) < 7)


def _may_change_clocks(time: datetime) -> bool:
    """Return whether summer time may begin or end at a time: in the night to a Sunday, in spring or autumn."""
    return time.weekday() == _SUNDAY and time.hour < 5 and time.month in (3, 4, 9, 10, 11)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number, from 1, and the cells of each line of a table.

    Blank lines at the end are ignored, others are refused.

    Raises:
        TransduceError: a line is blank or cannot be read.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    delimiter = "\t" if ".tsv" in suffixes[-2:] else ","
    blank = 0
    for number, line in enumerate(read_lines(path), 1):
        if number == 1 and delimiter == "," and "," not in line:
            delimiter = next((other for other in ";\t" if other in line), ",")
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise TransduceError(f"{path}:{blank}: a line of a table is empty: complete it, or remove it.")
        try:
            yield number, next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            raise TransduceError(f"{path}:{number}: this line of a table cannot be read ({error}): fix it.") from None


def _check_header(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise TransduceError(f"{path}:1: column names must be distinct, but {names.count(name)} are `{name}`.")
    if all(_is_number(name) for name in names):
        raise TransduceError(f"{path}:1: a table begins with a line of column names, but this line has numbers.")
    for name in columns:
        if name not in names:
            near = near_name(name, names, cutoff=0.75)
            message = (
                f"{path}:1: there is no column `{name}` (`task.series.columns`): the columns are "
                f"{shown_names(names, 20)}."
            )
            raise TransduceError(f"{message} Did you mean `{near}`?" if near else message)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(
    path: str | Path, line: int, row: Sequence[str], names: Sequence[str], chosen: Sequence[int]
) -> list[float]:
    if len(row) != len(names):
        raise TransduceError(
            f"{path}:{line}: every line has a cell for each of the {len(names)} columns, but this one has {len(row)}: "
            "complete it, or remove it."
        )
    return [_number(path, line, row[column], names[column]) for column in chosen]


def _number(path: str | Path, line: int, cell: str, name: str) -> float:
    text = cell.strip()
    if not text:
        raise TransduceError(f"{path}:{line}: the value of `{name}` is missing: fill it in, or leave the column out.")
    # Python parses 1_000 as a number, but in a table it is probably an error.
    value = float(text) if _is_number(text) and "_" not in text else math.nan
    if not math.isfinite(value):
        raise TransduceError(
            f"{path}:{line}: the value of `{name}` must be a finite number, but is `{text[:40]}`: fix it, or set "
            "the columns to use in `task.series.columns`."
        )
    if abs(value) > MAX_VALUE:
        raise TransduceError(
            f"{path}:{line}: the value of `{name}` must be at most {MAX_VALUE:g} in size, because it is squared, but "
            f"is {text[:40]}: choose a larger unit."
        )
    return value


# --- learned points ---
# A model folder has digests of short blocks of the training part, by which `forecast --score` recognizes its points.


_BLOCK, _BLOCKS = 8, 64


class LearnedPoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A segment of points that a model was trained on: its length, and digests of some of its points."""

    points: int
    """Number of points of the segment."""
    digests: dict[str, int]
    """A dict from a digest of eight consecutive points to the index, counted from 0, at which these points begin."""


def learned_points(segments: Sequence[Numbers]) -> tuple[LearnedPoints, ...]:
    """Return a tuple with a `LearnedPoints` for each segment of a training part, (N, C): its length and digests.

    A model folder stores them, to recognize points that the model was trained on. Points that repeat, such as the zeros
    of each night, have no digest.
    """
    count = max(2, _BLOCKS // len(segments))
    found = []
    for segment in segments:
        starts = np.unique(np.linspace(0, max(0, len(segment) - _BLOCK), count).astype(int)).tolist()
        blocks = {start: segment[start : start + _BLOCK] for start in starts}
        digests = {_digest(block): start for start, block in blocks.items() if _occurs_once(block, segment)}
        found.append(LearnedPoints(points=len(segment), digests=digests))
    return tuple(found)


def find_learned(values: Numbers, learned: Sequence[LearnedPoints]) -> NDArray[np.bool_]:
    """Return a boolean array, (N,), True at points of a table, (N, C), that a model was trained on.

    A segment is recognized if most of its digests match the table. Digests of points beyond the ends of the table do
    not count. At least two blocks of points that do not overlap must match, because a single block may be equal by
    chance.
    """
    starts: dict[str, list[int]] = {digest: [] for each in learned for digest in each.digests}
    for start in range(len(values) - _BLOCK + 1):
        if (digest := _digest(values[start : start + _BLOCK])) in starts:
            starts[digest].append(start)
    found = np.zeros(len(values), dtype=bool)
    for each in learned:
        matches = defaultdict[int, list[int]](list)  # offsets of digests that match, by where the segment would begin
        for digest, offset in each.digests.items():
            for start in starts[digest]:
                matches[start - offset].append(offset)
        offsets = np.sort(list(each.digests.values()))
        for first, matching in matches.items():
            begin, end = np.searchsorted(offsets, (-first, len(values) - _BLOCK - first + 1))
            # Two blocks that overlap are little more evidence than one.
            if 2 * len(matching) > end - begin and max(matching) - min(matching) >= _BLOCK:
                found[max(0, first) : first + each.points] = True
    return found


def _occurs_once(block: Numbers, segment: Numbers) -> bool:
    starts = np.flatnonzero((segment[: len(segment) - len(block) + 1] == block[0]).all(axis=1))
    for offset in range(1, len(block)):
        starts = starts[(segment[starts + offset] == block[offset]).all(axis=1)]
    return len(starts) == 1


def _digest(points: Numbers) -> str:
    return hashlib.sha256(np.ascontiguousarray(points, "<f8").tobytes()).hexdigest()[:16]


# --- windows ---


class SeriesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the points of time series that are read and forecast: `task.series.*` in a settings file."""

    columns: tuple[str, ...] = ()
    """The columns that are series; empty: all columns."""
    horizon: int = 24
    """Number of points that are forecast at a time."""
    past: int | None = None
    """Number of points that are read before the forecast; None: four times the horizon, and at least
    `season` if it is set.
    """
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
        for name, minimum in (("horizon", 1), ("past", 2), ("season", 1)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise TransduceError(f"`task.series.{name}` must be at least {minimum}, but is {value}.")

    @property
    def past_points(self) -> int:
        """The number of past points that the model reads."""
        return max(2, 4 * self.horizon, self.season or 0) if self.past is None else self.past


@dataclass(frozen=True, eq=False)
class SeriesBatch:
    """A batch of windows of time series (past and future points), each normalized by its own shift and factor."""

    past: NDArray[np.float32]
    """The points that are read, (B, S, C), float32."""
    future: NDArray[np.float32]
    """The points to forecast, (B, T, C), float32."""
    weights: NDArray[np.float32]
    """The weight of each window's errors in the loss, (B, 1, C), float32: below 1 if its past is nearly constant."""
    indices: Indices
    """The indices of the windows, (B,); empty in a stand-in."""
    is_stand_in: bool = False
    """True if the process has no window of its own in this step, so that the only window belongs to another process.

    The batch's loss then counts nothing.
    """

    def as_stand_in(self) -> "SeriesBatch":
        """Return a copy of the batch that is marked as a stand-in, without indices.

        A stand-in is the batch of a process that has no windows of its own in a training step.
        """
        return replace(self, indices=self.indices[:0], is_stand_in=True)


class WindowedSeries:
    """All windows (S past points and the T points after them) of one or more segments of the same time series."""

    def __init__(
        self, segments: Sequence[Numbers], *, past: int, horizon: int, stride: int = 1, season: int = 1
    ) -> None:
        """List the windows, which do not cross from one segment into the next.

        A segment shorter than a window has none.

        Args:
            segments: the points of each segment, (N, C).
            past: S, the number of past points of a window.
            horizon: T, the number of points to forecast.
            stride: points between the starts of consecutive windows.
            season: the number of points of a season. A seasonal baseline needs at least so many points before
                those to forecast. Windows therefore start later if `season` is greater than `past`.
        """
        self.values = np.concatenate(segments)
        """The points of all segments, (N, C)."""
        self._past, self._horizon = past, horizon
        self._earlier = max(0, season - past)
        length = self._earlier + past + horizon
        self._starts = self._earlier + np.concatenate(list(_window_starts(segments, length, stride)))

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._starts)

    def cut(self, windows: Indices) -> tuple[Numbers, Numbers]:
        """Return two arrays: the past (B, S, C) and the future (B, T, C) of the windows with these indices."""
        windowed = self.values[self._starts[windows][:, None] + np.arange(self._past + self._horizon)]  # (B, S + T, C)
        return windowed[:, : self._past], windowed[:, self._past :]

    def known(self, windows: Indices) -> Numbers:
        """Return the points before those to forecast, (B, points, C), of the windows with these indices.

        The number of points is that of the window's past, or that of a season if a season is longer. A seasonal
        baseline needs these points.
        """
        offsets = np.arange(-self._earlier, self._past)
        known: Numbers = self.values[self._starts[windows][:, None] + offsets]
        return known

    def target_rows(self) -> Indices:
        """Return an array of the indices, among all segments' points, of the points that any window forecasts.

        The order is that of the windows; a point that several windows forecast occurs several times.
        """
        rows: Indices = self._starts[:, None] + self._past + np.arange(self._horizon)
        return rows.ravel()

    def batch(self, windows: Indices, scale: SeriesScale) -> SeriesBatch:
        """Return the windows with these indices as a `SeriesBatch`, each window normalized by its own scale."""
        past, future = self.cut(windows)
        window_scale = scale.of(past)
        return SeriesBatch(
            window_scale.apply(past).astype(np.float32),
            window_scale.apply(future).astype(np.float32),
            scale.weights(past).astype(np.float32),
            windows,
        )


def _window_starts(segments: Sequence[Numbers], length: int, stride: int) -> Iterator[Indices]:
    first = 0
    for segment in segments:
        yield np.arange(first, first + len(segment) - length + 1, stride, dtype=np.int64)
        first += len(segment)


class SeriesPlan:
    """A plan of batches of windows, which returns any batch of any epoch on request."""

    def __init__(
        self,
        series: WindowedSeries,
        scale: SeriesScale,
        *,
        rows: int,
        seed: int,
        rank_and_count: tuple[int, int] = (0, 1),
    ) -> None:
        """Plan batches of windows.

        Args:
            series: the series, with at least one window.
            scale: the scale of the series.
            rows: windows per batch.
            seed: the seed of the random orders.
            rank_and_count: (r, n): take every n-th window of a batch, starting with window r.
        """
        self._series = series
        self._scale = scale
        self._rows = rows
        self._seed = seed
        self._rank_and_count = rank_and_count
        self._epoch: tuple[int, Indices] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(len(self._series) / self._rows)

    def batch(self, epoch: int, position: int) -> SeriesBatch:
        """Return a `SeriesBatch`: this process's windows of the batch at a position, counted from 0, of an epoch.

        If more processes train than the batch has windows, a process without any gets one window as a stand-in.
        """
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, permutation(len(self._series), self._seed, RandomPurpose.SERIES_WINDOW_ORDER, epoch)
        windows = self._epoch[1][position * self._rows : (position + 1) * self._rows]
        return own_part(windows, self._rank_and_count, lambda numbers: self._series.batch(numbers, self._scale))
