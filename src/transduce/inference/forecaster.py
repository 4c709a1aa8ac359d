"""Forecast time series with a trained model.

A window is a range of consecutive past points, from which the points that follow it are forecast.
Legend: B windows, S past points, T forecast points, C series, N sampled trajectories.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from transduce.argument_checks import as_integer, as_path
from transduce.data.series import MAX_VALUE, Numbers
from transduce.errors import TransduceError, explain_wrong_types, shown_names
from transduce.inference.batching import check_evaluation_mode
from transduce.machine import Precision
from transduce.model.series import SeriesTransformer
from transduce.model_folder.cards import SeriesCard, read_series_card, read_task_card
from transduce.model_folder.load import load_series_model, summary

_WINDOWS_AT_A_TIME = 256
# Quantiles of the sampled trajectories that bound the forecast.
_LOW, _HIGH = 0.1, 0.9


class Forecast(NamedTuple):
    """A forecast of one or several time series, in their original units."""

    columns: tuple[str, ...]
    """Names of the series, in the order of the last dimension of `values`."""
    values: Numbers
    """The forecast values, float64, (steps, series), or (windows, steps, series) for several windows."""
    low: Numbers | None = None
    """The 10 % quantile of the sampled trajectories, in the shape of `values`; None without samples."""
    high: Numbers | None = None
    """The 90 % quantile of the sampled trajectories, in the shape of `values`; None without samples."""


@explain_wrong_types
class Forecaster:
    """A forecasting model with the scale of its series. Call it with the history and a number of steps."""

    def __init__(self, model: SeriesTransformer, card: SeriesCard) -> None:
        """Create a forecaster.

        Args:
            model: a model with as many series as the card names.
            card: names, scale and lengths (points read, points forecast) of the series.

        Raises:
            TransduceError: the numbers of series differ.
        """
        if model.config.num_series != len(card.columns):
            raise TransduceError(
                f"A model of {model.config.num_series} series needs as many names, but has {len(card.columns)}: the "
                "folder's files are of different models."
            )
        self.model = model
        self.card = card

    def __repr__(self) -> str:
        read = f"{self.card.past} points in, {self.card.horizon} out"
        return summary("Forecaster", self.model, shown_names(self.card.columns), read)

    def __call__(self, history: ArrayLike, steps: int | None = None, *, samples: int = 0, seed: int = 1) -> Forecast:
        """Forecast the values that follow a history.

        Args:
            history: past values, (S, C), newest last, or (S,) for a single series. At least as many points as the model
                reads are needed; only the last ones are used. From a table with column names (pandas, polars), the
                columns of the series are selected, in any order.
            steps: number of points to forecast; None: the horizon of training.
            samples: number of sampled trajectories. The forecast is their mean, with bounds of the middle 80 %. 0: no
                sampling; each value is the mean given the values before it.
            seed: random seed of the trajectories.

        Returns:
            The forecast, with values (T, C).

        Raises:
            TransduceError: the history is too short, has other columns or is not finite; an option is out of range; the
                model predicts no deviations to sample from; or the model is in training mode.
        """
        past = self._checked_windows(self._one_window(history), history)
        forecast = self.forecast_windows(
            past, self.card.horizon if steps is None else steps, samples=samples, seed=seed
        )
        bounds = [None if bound is None else bound[0] for bound in (forecast.low, forecast.high)]
        return Forecast(forecast.columns, forecast.values[0], *bounds)

    @torch.inference_mode()
    def forecast_windows(self, past: Numbers, steps: int, *, samples: int = 0, seed: int = 1) -> Forecast:
        """Forecast several windows at once, from values (B, S, C) to a `Forecast` with values (B, T, C).

        Only the last points of each window, as many as the model reads, are used. With `samples`, the values are the
        mean of sampled trajectories; their 10 % and 90 % quantiles are the forecast's `low` and `high`.

        Args:
            past: past values of each window, newest last.
            steps: number of points to forecast.
            samples: number of sampled trajectories for each window; 0: no sampling.
            seed: random seed of the trajectories.

        Raises:
            TransduceError: there is no window; windows are too short, have other columns or are not finite; an option
                is out of range; the model predicts no deviations to sample from; or the model is in training mode.
        """
        past = self._checked_windows(past, past)
        steps, samples = as_integer(steps, "steps", minimum=1), as_integer(samples, "samples", minimum=0)
        seed = as_integer(seed, "seed", minimum=0, maximum=2**63 - 1)
        if samples and not self.model.config.predicts_deviations:
            raise TransduceError(
                f"`samples` is {samples}, but this model predicts no deviations to sample from: train one with "
                "`task.series.likelihood` = gaussian, or leave it out."
            )
        past = past[:, past.shape[1] - self.card.past :]
        if not samples:
            return Forecast(self.card.columns, self._roll(past, steps, None))
        generator = torch.Generator(self.model.head.weight.device).manual_seed(seed)
        trajectories = self._roll(np.repeat(past, samples, axis=0), steps, generator)
        trajectories = trajectories.reshape(len(past), samples, steps, -1)  # (B, N, T, C)
        low, high = np.quantile(trajectories, [_LOW, _HIGH], axis=1)
        return Forecast(self.card.columns, trajectories.mean(axis=1), low, high)

    @torch.inference_mode()
    def normalized(self, history: ArrayLike) -> tuple[Tensor, Tensor]:
        """Return the normalized last points of a history, (1, S, C), and the model's normalized forecast, (1, T, C).

        The history is cut to the S points that the model reads; T is the number of points forecast in training (the
        horizon).

        Raises:
            TransduceError: the history is too short, has other columns or is not finite, or the model is in training
                mode.
        """
        past = self._checked_windows(self._one_window(history), history)[:, -self.card.past :]
        inputs = self._inputs(past)
        return inputs, self.model.roll_out(inputs, self.card.horizon).means

    def _inputs(self, window: Numbers) -> Tensor:
        """Return windows (B, S, C) as a normalized tensor, in the dtype and on the device of the model.

        With normalization `window`, which is the default, each window is normalized by its own values. With `series`,
        all windows are normalized by the series' means and deviations in the training part.

        Raises:
            TransduceError: the model is in training mode.
        """
        check_evaluation_mode(self.model)
        weight = self.model.head.weight
        return torch.from_numpy(self.card.scale.of(window).apply(window)).to(device=weight.device, dtype=weight.dtype)

    def _one_window(self, history: ArrayLike) -> Numbers:
        """Return a history, (S, C) or (S,) for one series, as a float64 array of one window, (1, S, C).

        From a table with column names, the columns of the model's series are selected.
        """
        values = _numbers(self._by_name(history))
        return (values[:, None] if values.ndim == 1 else values)[None]

    def _by_name(self, history: ArrayLike) -> ArrayLike:
        """Return the columns of the model's series from a table with column names; return anything else unchanged.

        Raises:
            TransduceError: the table lacks a column.
        """
        names: list[object] = list(getattr(history, "columns", ()))
        if not any(isinstance(name, str) for name in names):
            return history
        missing = next((name for name in self.card.columns if name not in names), None)
        if missing is not None:
            raise TransduceError(
                f"A history has a column for each of {shown_names(self.card.columns)}, but this table has no "
                f"`{missing}`: its columns are {shown_names(names)}."
            )
        table: Any = history
        selected: ArrayLike = table[list(self.card.columns)]
        return selected

    def _checked_windows(self, past: ArrayLike, given: ArrayLike) -> Numbers:
        """Check windows of past values, and return them as a float64 array (B, S, C).

        An error message shows the shape of `given`, the argument that the user passed.

        Raises:
            TransduceError: windows have other columns, too few points or numbers that are too large or not finite, or
                there is no window.
        """
        values = _numbers(past)
        if values.ndim != 3 or values.shape[2] != len(self.card.columns):
            raise TransduceError(
                f"A history has a row for each point and a column for each of {shown_names(self.card.columns)}, but "
                f"this one has the shape {np.shape(given)}."
            )
        if not len(values):
            raise TransduceError("A forecast needs at least one window, but there is none: pass one.")
        if values.shape[1] < self.card.past:
            raise TransduceError(
                f"The model reads {self.card.past} points of the past, but the history has {values.shape[1]}: give "
                "more."
            )
        if not np.isfinite(values).all():
            raise TransduceError("A history has finite numbers only, but this one has others: fill them in.")
        if np.abs(values).max() > MAX_VALUE:
            raise TransduceError(
                f"The numbers of a history must be at most {MAX_VALUE:g} in size, because they are squared, but one is "
                f"{np.abs(values).max():g}: choose a larger unit."
            )
        return values

    def _roll(self, past: Numbers, steps: int, generator: torch.Generator | None) -> Numbers:
        """Forecast `steps` (T) points of many windows, as an array (B, T, C) in original units, 256 windows at a time.

        With `generator`, each forecast is a sampled trajectory; None: no sampling.
        """
        blocks = range(0, len(past), _WINDOWS_AT_A_TIME)
        return np.concatenate([self._roll_block(past[i : i + _WINDOWS_AT_A_TIME], steps, generator) for i in blocks])

    def _roll_block(self, past: Numbers, steps: int, generator: torch.Generator | None) -> Numbers:
        """Forecast `steps` (T) points of a block of windows, as an array (B, T, C) in original units.

        The model forecasts at most one horizon (the length of training) at a time; each such forecast is then appended
        to the input of the next. With `generator`, each forecast is a sampled trajectory.
        """
        series = past
        while series.shape[1] < past.shape[1] + steps:
            window = series[:, -self.card.past :]
            scale = self.card.scale.of(window)
            steps_now = min(self.card.horizon, past.shape[1] + steps - series.shape[1])
            prediction = self.model.roll_out(self._inputs(window), steps_now, generator=generator)
            series = np.concatenate([series, scale.undo(prediction.means.double().cpu().numpy())], axis=1)
        return series[:, past.shape[1] : past.shape[1] + steps]


def _numbers(given: ArrayLike) -> Numbers:
    try:
        return np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise TransduceError(f"A history must be a table of numbers, but this one is none: {error}.") from None


def load_forecaster(
    folder: str | Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> Forecaster:
    """Load the folder of a model trained with `--task time-series` as a `Forecaster`.

    Args:
        folder: the model folder.
        precision: "fp32", "bf16" or "auto" (fp32).
        device: "cpu", "cuda" or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.

    Raises:
        TransduceError: the folder holds no forecasting model, or an option is invalid.
    """
    folder = as_path(folder, "A model's folder")
    read_task_card(folder, "time-series", use="Forecasting")
    model = load_series_model(folder, precision=precision, device=device, threads=threads)
    return Forecaster(model, read_series_card(folder))


def forecast_columns(forecast: Forecast) -> Sequence[str]:
    """Return column names for a table of a forecast: each series, followed by "… low" and "… high" if it has bounds."""
    if forecast.low is None:
        return forecast.columns
    return tuple(f"{name}{suffix}" for name in forecast.columns for suffix in ("", " low", " high"))
