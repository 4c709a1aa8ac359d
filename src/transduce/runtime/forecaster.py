"""Forecasts of time series by a trained model.

Legend: B windows, S points of the past, T points to come, C series, N sampled courses.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from transduce.data.series_scale import Numbers
from transduce.errors import TransduceError
from transduce.given import as_path, as_whole
from transduce.model.precision import DTYPES, Precision
from transduce.model.series import SeriesTransformer
from transduce.runtime.folder import read_series_model
from transduce.runtime.machine import detect_machine
from transduce.runtime.series_card import SeriesCard, read_series_card
from transduce.runtime.summary import summary
from transduce.runtime.task_card import read_task_card

_WINDOWS_AT_A_TIME = 256
_MOST_SHOWN = 8  # columns
_DTYPES = {"auto": torch.float32, **DTYPES}
# Of the courses that are sampled, a tenth lies below the one and a tenth above the other.
_LOW, _HIGH = 0.1, 0.9


class Forecast(NamedTuple):
    """What comes next, in the series' own units."""

    columns: tuple[str, ...]
    values: Numbers
    """(T, C), or (B, T, C) for several windows."""
    low: Numbers | None = None
    """Of the same shape: a tenth of the sampled courses lies below,"""
    high: Numbers | None = None
    """and a tenth above."""


class Forecaster:
    """A model with the scale of its series. Call it with what is known of them, and with how far to look."""

    def __init__(self, model: SeriesTransformer, card: SeriesCard) -> None:
        """
        Args:
            model: as many series as the card names.
            card: names, scale, lengths.

        Raises:
            TransduceError: the model has more or fewer series.
        """
        if model.config.num_series != len(card.columns):
            raise TransduceError(
                f"A model of {model.config.num_series} series needs as many names, but has {len(card.columns)}: the "
                "folder is not whole."
            )
        self.model = model
        self.card = card

    def __repr__(self) -> str:
        read = f"{self.card.past} points in, {self.card.horizon} out"
        return summary("Forecaster", self.model, ", ".join(self.card.columns[:_MOST_SHOWN]), read)

    def __call__(self, history: ArrayLike, steps: int | None = None, *, samples: int = 0, seed: int = 1) -> Forecast:
        """What follows a history.

        Args:
            history: (N, C) numbers up to now, the newest last, or (N,) where there is one series; at least as many
                points as the model reads, of which it takes the last. Of a table with names of columns (pandas, polars)
                those of the series are taken, in whatever order they stand there.
            steps: points to foretell; as many as training did where nothing is said.
            samples: so many courses are drawn, and the range that holds the middle 80 % of them is told; the forecast
                is their mean. 0: none, and each value is the mean given those before it.
            seed: of the courses.

        Returns:
            (T, C) values.

        Raises:
            TransduceError: the history is too short, of other columns, or not finite.
        """
        past = self._checked_windows(self._one_window(history), history)
        found = self.forecast_windows(past, self.card.horizon if steps is None else steps, samples=samples, seed=seed)
        bounds = [None if bound is None else bound[0] for bound in (found.low, found.high)]
        return Forecast(found.columns, found.values[0], *bounds)

    @torch.inference_mode()
    def forecast_windows(self, past: Numbers, steps: int, *, samples: int = 0, seed: int = 1) -> Forecast:
        """The same for several windows at once, (B, S, C) to (B, T, C); the last points of each past are read.

        Raises:
            TransduceError: there is no window; the pasts are too short, of other columns, or not finite; an option is
                out of its range; or the model foretells no deviations to sample by.
        """
        past = self._checked_windows(past, past)
        steps, samples, seed = self._checked_options(steps, samples, seed)
        past = past[:, past.shape[1] - self.card.past :]
        if not samples:
            return Forecast(self.card.columns, self._roll(past, steps, None))
        generator = torch.Generator(self.model.head.weight.device).manual_seed(seed)
        courses = self._roll(np.repeat(past, samples, axis=0), steps, generator)
        courses = courses.reshape(len(past), samples, steps, -1)  # (B, N, T, C)
        low, high = np.quantile(courses, [_LOW, _HIGH], axis=1)
        return Forecast(self.card.columns, courses.mean(axis=1), low, high)

    def _checked_options(self, steps: int, samples: int, seed: int) -> tuple[int, int, int]:
        steps, samples = as_whole(steps, "steps", least=1), as_whole(samples, "samples", least=0)
        seed = as_whole(seed, "seed", least=0, most=2**63 - 1)
        if samples and not self.model.config.foretells_deviations:
            raise TransduceError(
                f"`samples` is {samples}, but this model foretells no deviations to draw by: train one with "
                "`task.series.likelihood` = gaussian, or leave it out."
            )
        return steps, samples, seed

    def _one_window(self, history: ArrayLike) -> Numbers:
        """One history as windows, (1, N, C)."""
        values = _numbers(self._by_name(history))
        return (values[:, None] if values.ndim == 1 else values)[None]

    def _by_name(self, history: ArrayLike) -> ArrayLike:
        """The series of a table whose columns have names; anything else as it is."""
        names: list[object] = list(getattr(history, "columns", ()))
        if not any(isinstance(name, str) for name in names):
            return history
        missing = next((name for name in self.card.columns if name not in names), None)
        if missing is not None:
            shown = ", ".join(map(str, names[:_MOST_SHOWN]))
            raise TransduceError(
                f"A history has a column for each of {', '.join(self.card.columns)}, but this table has no "
                f"`{missing}`: its columns are {shown}."
            )
        table: Any = history
        chosen: ArrayLike = table[list(self.card.columns)]
        return chosen

    def _checked_windows(self, past: ArrayLike, given: ArrayLike) -> Numbers:
        """Windows that the model can read, (B, S, C), which were given in some form."""
        values = _numbers(past)
        if values.ndim != 3 or values.shape[2] != len(self.card.columns):
            raise TransduceError(
                f"A history has a row for each point and a column for each of {', '.join(self.card.columns)}, but this "
                f"one has the shape {np.shape(given)}."
            )
        if not len(values):
            raise TransduceError("A forecast is of one window or more, but there is none: give one.")
        if values.shape[1] < self.card.past:
            raise TransduceError(
                f"The model reads {self.card.past} points of the past, but the history has {values.shape[1]}: give "
                "more."
            )
        if not np.isfinite(values).all():
            raise TransduceError("A history has finite numbers only, but this one has others: fill them in.")
        return values

    def _roll(self, past: Numbers, steps: int, generator: torch.Generator | None) -> Numbers:
        """Forecasts, a block of windows at a time."""
        blocks = range(0, len(past), _WINDOWS_AT_A_TIME)
        return np.concatenate([self._roll_block(past[i : i + _WINDOWS_AT_A_TIME], steps, generator) for i in blocks])

    def _roll_block(self, past: Numbers, steps: int, generator: torch.Generator | None) -> Numbers:
        """One horizon after another: what was foretold is the past of what comes then."""
        known, weight = past, self.model.head.weight
        while known.shape[1] < past.shape[1] + steps:
            window = known[:, -self.card.past :]
            scale = self.card.scale.of(window)
            inputs = torch.from_numpy(scale.apply(window)).to(device=weight.device, dtype=weight.dtype)
            wanted = min(self.card.horizon, past.shape[1] + steps - known.shape[1])
            found = self.model.roll_out(inputs, wanted, generator=generator)
            known = np.concatenate([known, scale.undo(found.means.double().cpu().numpy())], axis=1)
        return known[:, past.shape[1] : past.shape[1] + steps]


def _numbers(given: ArrayLike) -> Numbers:
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise TransduceError(f"A history must be a table of numbers, but this one is none: {error}.") from None


def load_forecaster(
    folder: str | Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> Forecaster:
    """Opens the folder of a model that was trained with `--task time-series`.

    Args:
        folder: of the model.
        precision: "fp32", which "auto" is too, or "bf16".
        device: "cpu", "cuda", or "auto".
        threads: to compute with; None: as OMP_NUM_THREADS says, or all usable cores.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    folder = as_path(folder, "A model's folder")
    read_task_card(folder, "time-series", use="Forecasting")
    if precision not in _DTYPES:
        raise TransduceError(f"`precision` must be `auto`, `fp32` or `bf16`, but is `{precision}`.")
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    model = read_series_model(folder).to(device=machine.device, dtype=_DTYPES[precision])
    return Forecaster(model, read_series_card(folder))


def known_columns(forecast: Forecast) -> Sequence[str]:
    """The header of a table of a forecast: the series, and where there are bounds two more columns each."""
    if forecast.low is None:
        return forecast.columns
    return tuple(f"{name}{suffix}" for name in forecast.columns for suffix in ("", " low", " high"))
