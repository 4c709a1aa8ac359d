"""Store the time series of a run: training and dev part, and their scale.

A new run reads the files once; a resumed run reads the stored numbers.

Legend: N points, C series.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from transduce.data.series_files import read_table
from transduce.data.series_scale import Numbers, SeriesScale, measure_scale
from transduce.data.series_windows import SeriesBatch, SeriesSettings, WindowedSeries
from transduce.durable import file_sha256, write_file
from transduce.errors import TransduceError
from transduce.evaluation.forecasts import find_season
from transduce.tasks.settings import DataSettings

_FOLDER, _CARD = "series", "series.json"
_PARTS = {"training": "training.f64", "dev": "dev.f64"}
# Without a dev set, the end of each file is held out: this share of its points, but at least a horizon.
_DEV_SHARE = 0.1


class _StoredCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metadata of the stored numbers."""

    columns: tuple[str, ...]
    lengths: dict[str, list[int]]
    """Number of points in each series file, by part."""
    sha256: dict[str, str]
    season: int
    scale: SeriesScale


class SeriesCorpus(msgspec.Struct, frozen=True, kw_only=True):
    """The time series of a run."""

    columns: tuple[str, ...]
    """Names of the series."""
    training: WindowedSeries
    """All windows of the training part."""
    dev: WindowedSeries
    """The windows of the dev part, one horizon apart."""
    points: int
    """Number of points in the training part."""
    season: int
    """Season length in points; 1: no season."""
    horizon: int
    """Number of points to forecast."""
    scale: SeriesScale
    """Scale of the series."""
    tokenizer: None = None
    tokenizer_settings: None = None
    languages: tuple[None, None] = (None, None)

    @property
    def pairs(self) -> int:
        """The number of training windows."""
        return len(self.training)

    @property
    def target_tokens(self) -> int:
        """The number of values predicted in an epoch."""
        return len(self.training) * self.horizon * len(self.columns)

    def describe(self, batch: SeriesBatch) -> dict[str, Any]:
        """Return a batch's windows, each in its own scale, as JSON values."""
        return {
            "windows": batch.indices.tolist(),
            "columns": list(self.columns),
            "past": batch.past.tolist(),
            "future": batch.future.tolist(),
        }


def prepare_series(data: DataSettings, settings: SeriesSettings, folder: Path) -> SeriesCorpus:
    """Read the files of a new run and store their numbers in its folder.

    Raises:
        TransduceError: a file is missing, invalid, or too short for a window.
    """
    past, horizon = settings.past_points, settings.horizon
    columns, read = _read(data.source, settings.columns)
    training = list(read)
    if data.dev_source:
        dev_columns, dev = _read(data.dev_source, columns)
        assert dev_columns == columns
    else:
        dev_starts = [len(values) - max(horizon, int(len(values) * _DEV_SHARE)) for values in read]
        dev = [values[max(0, first - past) :] for values, first in zip(read, dev_starts, strict=True)]
        training = [values[: max(0, first)] for values, first in zip(read, dev_starts, strict=True)]
    for files, stretches, what in ((data.source, training, "training"), (data.dev_source or data.source, dev, "dev")):
        _check_lengths(files, stretches, past + horizon, what, held_out=not data.dev_source)
    points = np.concatenate(training)
    season = find_season(points, past) if settings.season is None else settings.season
    if season > past:
        raise TransduceError(
            f"`task.series.season` is {season}, but only {past} points are read (`task.series.past`): read at least "
            "one season."
        )
    card = _StoredCard(
        columns=columns,
        lengths={"training": [len(values) for values in training], "dev": [len(values) for values in dev]},
        sha256=_store(folder / _FOLDER, {"training": points, "dev": np.concatenate(dev)}),
        season=season,
        scale=measure_scale(points, settings.normalization),
    )
    write_file(folder / _FOLDER / _CARD, msgspec.json.format(msgspec.json.encode(card)) + b"\n")
    return reopen_series(settings, folder)


def reopen_series(settings: SeriesSettings, folder: Path) -> SeriesCorpus:
    """Read the numbers that `prepare_series` stored.

    Raises:
        TransduceError: the stored numbers are missing or damaged.
    """
    path = folder / _FOLDER / _CARD
    try:
        card = msgspec.json.decode(path.read_bytes(), type=_StoredCard)
    except (OSError, msgspec.MsgspecError) as error:
        raise TransduceError(f"{path} cannot be read ({error}): start another run with another --out.") from error
    parts = {name: _load(folder / _FOLDER / file, card, name) for name, file in _PARTS.items()}
    past, horizon = settings.past_points, settings.horizon
    return SeriesCorpus(
        columns=card.columns,
        training=WindowedSeries(parts["training"], past=past, horizon=horizon),
        dev=WindowedSeries(parts["dev"], past=past, horizon=horizon, stride=horizon),
        points=sum(card.lengths["training"]),
        season=card.season,
        horizon=horizon,
        scale=card.scale,
    )


def _read(files: Sequence[str], columns: Sequence[str]) -> tuple[tuple[str, ...], list[Numbers]]:
    """Read files, and return their common columns and the numbers of each file."""
    tables = [read_table(path, columns) for path in files]
    first = tables[0].columns
    for path, table in zip(files, tables, strict=True):
        if table.columns != first:
            raise TransduceError(
                f"All files must have the same columns, but {files[0]} has {', '.join(first)} and {path} has "
                f"{', '.join(table.columns)}: name those to use in `task.series.columns`."
            )
    return first, [table.values for table in tables]


def _check_lengths(
    files: Sequence[str], stretches: Sequence[Numbers], window: int, what: str, *, held_out: bool
) -> None:
    for path, stretch in zip(files, stretches, strict=True):
        if len(stretch) < window:
            end = ", without the end that is held out for the dev set" if held_out and what == "training" else ""
            raise TransduceError(
                f"{path}: a window is {window} points (`task.series.past` and `task.series.horizon`), but the {what} "
                f"part{end} has {len(stretch)}: use more points, or make the window smaller."
            )


def _store(folder: Path, parts: dict[str, Numbers]) -> dict[str, str]:
    """Write the numbers as little-endian float64; return the files' digests by part."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in parts.items():
        write_file(folder / _PARTS[name], values.astype("<f8").tobytes())
    return {name: file_sha256(folder / _PARTS[name]) for name in parts}


def _load(path: Path, card: _StoredCard, part: str) -> list[Numbers]:
    if not path.is_file() or file_sha256(path) != card.sha256[part]:
        raise TransduceError(f"{path} is not what the run stored: start another run with another --out.")
    values = np.fromfile(path, np.dtype("<f8")).reshape(-1, len(card.columns)).astype(np.float64)
    return np.split(values, np.cumsum(card.lengths[part])[:-1])
