"""Train forecasters of time series: a Transformer that reads past values and predicts the next ones.

The model is the encoder-decoder Transformer with a linear input projection instead of the embedding, and a linear
output instead of the vocabulary. Training, checkpoints and model folder are the same as for other tasks.

Legend: B windows, S past points, T forecast points, C series.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from typing_extensions import override

from transduce.atomic_io import file_sha256, write_file, write_json
from transduce.data.series import (
    LearnedPoints,
    Numbers,
    SeriesBatch,
    SeriesPlan,
    SeriesScale,
    SeriesSettings,
    WindowedSeries,
    learned_points,
    measure_scale,
    read_table,
)
from transduce.errors import TransduceError, shown_names
from transduce.evaluation.forecasts import ForecastReport, find_season, score_forecasts
from transduce.inference.forecaster import Forecaster, load_forecaster
from transduce.machine import Precision
from transduce.model.build import AnyModel
from transduce.model.config import ModelConfig
from transduce.model.series import SeriesTransformer
from transduce.model_folder.cards import SERIES_CARD, TASK_CARD, SeriesCard, TaskCard
from transduce.tasks.kinds.kind import (
    CardTexts,
    Outcome,
    Preparation,
    RankAndCount,
    RunPlacement,
    TaskKind,
    Validation,
    model_to_measure,
    refuse_unused,
    validation_event,
)
from transduce.tasks.prepared_folder import check_stored_file, read_stored_card
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, TaskSettings
from transduce.training.choices import Choice, Preset
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, Objective
from transduce.training.prefetch import to_device
from transduce.training.settings import BestBy

# --- stored series ---
# A new run reads the files once; a resumed run reads the stored numbers. Legend: N points, C series.


_FOLDER, _CARD = "series", "series.json"
_PARTS = {"training": "training.f64", "dev": "dev.f64"}
# Without a dev set, the end of each file is held out: this share of its points, but at least a horizon.
_DEV_SHARE = 0.1


class _StoredSeries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The card that a run stores with the values of its time series: columns, lengths, digests, season and scale.

    A run resumes from the card and the values, without the original files.
    """

    columns: tuple[str, ...]
    lengths: dict[str, list[int]]
    """Dict: part ("training" or "dev") → the number of points of each series file."""
    sha256: dict[str, str]
    season: int
    scale: SeriesScale


class SeriesCorpus(msgspec.Struct, frozen=True, kw_only=True):
    """The time series of a training run, divided into training and dev windows.

    A window is a number of consecutive points of the past, and the points after them, which are predicted.
    """

    columns: tuple[str, ...]
    """Names of the series."""
    training: WindowedSeries
    """The windows of the training part, which overlap: one starts at each point that leaves enough points after it."""
    dev: WindowedSeries
    """The windows of the dev part, which start one horizon apart, so that each point is predicted at most once."""
    points: int
    """Number of points in the training part."""
    season: int
    """Season length in points, such as 24 for hourly values with a daily pattern; 1: no season."""
    horizon: int
    """Number of points that a window predicts."""
    scale: SeriesScale
    """Statistics of the training part by which values are normalized for the model."""
    learned: tuple[LearnedPoints, ...]
    """Records of each segment of the training part, by which an evaluation recognizes points that the model has
    learned.
    """
    tokenizer: None = None
    tokenizer_settings: None = None
    languages: tuple[None, None] = (None, None)

    @property
    def pairs(self) -> int:
        """The number of training windows."""
        return len(self.training)

    @property
    def target_tokens(self) -> int:
        """The number of values predicted in an epoch: windows × horizon × series."""
        return len(self.training) * self.horizon * len(self.columns)

    def describe(self, batch: SeriesBatch) -> dict[str, Any]:
        """Return a dict of a batch's windows, in each window's normalized scale, which can be written as JSON."""
        return {
            "windows": batch.indices.tolist(),
            "columns": list(self.columns),
            "past": batch.past.tolist(),
            "future": batch.future.tolist(),
        }


def prepare_series(
    data: DataSettings, settings: SeriesSettings, folder: Path, say: Callable[[str], object] = lambda _: None
) -> SeriesCorpus:
    """Read the files of a new run, store their numbers in the run's folder, and return them as a `SeriesCorpus`.

    Without dev files, the last tenth of each file is held out. At least as many points are held out as a forecast has.

    Args:
        data: the settings of the files.
        settings: the settings of the series.
        folder: the run's folder.
        say: called with each warning.

    Raises:
        TransduceError: a file is missing, invalid, or too short for a window; or the set season is longer than the
            points before the dev forecasts.
    """
    past, horizon = settings.past_points, settings.horizon
    columns, read = _read(data.source, settings.columns, say)
    training = list(read)
    dev_starts = [0] * len(read)
    if data.dev_source:
        dev_columns, dev = _read(data.dev_source, columns, say)
        assert dev_columns == columns
    else:
        dev_starts = [max(0, len(values) - max(horizon, int(len(values) * _DEV_SHARE))) for values in read]
        dev = [values[max(0, first - past) :] for values, first in zip(read, dev_starts, strict=True)]
        training = [values[:first] for values, first in zip(read, dev_starts, strict=True)]
    for files, segments, what in ((data.source, training, "training"), (data.dev_source or data.source, dev, "dev")):
        _check_lengths(files, segments, past + horizon, what, held_out=not data.dev_source)
    points = np.concatenate(training)
    season = find_season(*training) if settings.season is None else settings.season
    known = min(len(values) - horizon for values in dev) if data.dev_source else min(dev_starts)
    if season > max(past, known):
        if settings.season is not None:
            raise TransduceError(
                f"`task.series.season` is {season}, but only {known} points are known before those that are forecast "
                "in the dev part: set a shorter season, or use more points."
            )
        season = 1
    if season > past and not data.dev_source:  # a dev part also begins with the season that its first window repeats
        dev = [values[max(0, first - season) :] for values, first in zip(read, dev_starts, strict=True)]
    card = _StoredSeries(
        columns=columns,
        lengths={"training": [len(values) for values in training], "dev": [len(values) for values in dev]},
        sha256=_store(folder / _FOLDER, {"training": points, "dev": np.concatenate(dev)}),
        season=season,
        scale=measure_scale(points, settings.normalization),
    )
    write_json(folder / _FOLDER / _CARD, card)
    return reopen_series(settings, folder)


def reopen_series(settings: SeriesSettings, folder: Path) -> SeriesCorpus:
    """Return the `SeriesCorpus` of the numbers that a run stored in its folder when it was prepared.

    Raises:
        TransduceError: the stored numbers are missing or damaged.
    """
    card = read_stored_card(folder / _FOLDER / _CARD, _StoredSeries)
    parts = {name: _load(folder / _FOLDER / file, card, name) for name, file in _PARTS.items()}
    past, horizon = settings.past_points, settings.horizon
    return SeriesCorpus(
        columns=card.columns,
        training=WindowedSeries(parts["training"], past=past, horizon=horizon),
        dev=WindowedSeries(parts["dev"], past=past, horizon=horizon, stride=horizon, season=card.season),
        points=sum(card.lengths["training"]),
        season=card.season,
        horizon=horizon,
        scale=card.scale,
        learned=learned_points(parts["training"]),
    )


def _read(
    files: Sequence[str], columns: Sequence[str], say: Callable[[str], object]
) -> tuple[tuple[str, ...], list[Numbers]]:
    """Read files of time series; return the names of the columns, and a list with the values, (N, C), of each file.

    `columns` are those to read; `say` is called with each warning.

    Raises:
        TransduceError: the files have different columns, or one is invalid.
    """
    tables = [read_table(path, columns) for path in files]
    for table in tables:
        if table.time_warning:
            say(f"warning: {table.time_warning}")
    first = tables[0].columns
    for path, table in zip(files, tables, strict=True):
        if table.columns != first:
            raise TransduceError(
                f"All files must have the same columns, but {files[0]} has {shown_names(first)} and {path} has "
                f"{shown_names(table.columns)}: name those to use in `task.series.columns`."
            )
    return first, [table.values for table in tables]


def _check_lengths(
    files: Sequence[str], segments: Sequence[Numbers], window: int, what: str, *, held_out: bool
) -> None:
    for path, segment in zip(files, segments, strict=True):
        if len(segment) < window:
            end = ", without the end that is held out for the dev set" if held_out and what == "training" else ""
            raise TransduceError(
                f"{path}: a window is {window} points (`task.series.past` and `task.series.horizon`), but the {what} "
                f"part{end} has {len(segment)}: use more points, or make the window smaller."
            )


def _store(folder: Path, parts: dict[str, Numbers]) -> dict[str, str]:
    """Write the values of each part ("training", "dev") as little-endian float64; return a dict of file digests."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in parts.items():
        write_file(folder / _PARTS[name], values.astype("<f8").tobytes())
    return {name: file_sha256(folder / _PARTS[name]) for name in parts}


def _load(path: Path, card: _StoredSeries, part: str) -> list[Numbers]:
    check_stored_file(path, card.sha256[part])
    values = np.fromfile(path, np.dtype("<f8")).reshape(-1, len(card.columns)).astype(np.float64)
    return np.split(values, np.cumsum(card.lengths[part])[:-1])


# --- forecasting task ---


SKILL: Final = "skill"
_DEV_WINDOWS = 512  # maximum, spaced by the horizon from the start of the dev part
_WINDOWS_A_STEP = 32
_EPOCHS, _MIN_STEPS, _MAX_STEPS = 20, 500, 20_000
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class SeriesObjective(Objective[SeriesTransformer]):
    """The training objective of a forecaster: squared errors or, if it predicts deviations, Gaussian likelihoods."""

    def loss(self, batch: SeriesBatch) -> Loss:
        """Return the loss of a batch's future values: summed squared errors, or negative log-likelihoods in nats.

        The decoder reads the true values before each predicted value (teacher forcing). Errors are in the normalized
        scale, and each window counts by its weight.
        """
        weight = self.model.head.weight
        past = to_device(batch.past, weight.device).to(weight.dtype)
        future = to_device(batch.future, weight.device)
        predicted = self.model(past, torch.cat([past[:, -1:], future[:, :-1].to(weight.dtype)], dim=1))
        errors = predicted.means.float() - future
        if predicted.log_deviations is None:
            losses = errors.square()
        else:
            logs = predicted.log_deviations.float()
            losses = 0.5 * (errors * torch.exp(-logs)).square() + logs + _HALF_LOG_TWO_PI
        losses = losses * to_device(batch.weights, weight.device)
        total = losses.sum()
        return Loss(total, total.detach(), losses.numel())


class SeriesDevSet(Validation[SeriesObjective]):
    """A dev set of time series that measures a forecaster's loss, and compares its forecasts with simple baselines."""

    def __init__(self, corpus: SeriesCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> None:
        model = model_to_measure(resolved, placement)
        assert isinstance(model, SeriesTransformer)
        windows = np.arange(min(len(corpus.dev), _DEV_WINDOWS))
        batches = [
            corpus.dev.batch(windows[first : first + _WINDOWS_A_STEP], corpus.scale)
            for first in range(0, len(windows), _WINDOWS_A_STEP)
        ]
        super().__init__(SeriesObjective(model), batches)
        self.forecaster = Forecaster(model, series_card(corpus, resolved))
        self.season = corpus.season
        self.known, self.future = corpus.dev.known(windows), corpus.dev.cut(windows)[1]

    @override
    def measure(self, step: int) -> ValidationEvent:
        total, values = self.summed_loss()
        return validation_event(step, total / max(1, values), {SKILL: self.score().skill})

    def score(self) -> ForecastReport:
        """Forecast the dev windows with the model's current weights, and return the errors as a `ForecastReport`.

        The report compares the errors with those of simple baselines.
        """
        names = self.forecaster.card.columns
        forecast = self.forecaster.forecast_windows(self.known, self.future.shape[1])
        return score_forecasts(self.known, self.future, forecast.values, names=names, season=self.season)


class TimeSeriesKind(TaskKind[SeriesCorpus]):
    """The task of time-series forecasting: a Transformer reads past numbers and predicts the next.

    Its methods give a training run its series, model settings, batches, loss and scores.
    """

    scales_rate_with_batch = False
    batch_note = "this task counts numbers to predict, not tokens"
    reads_text = False
    name = "time-series"
    model_kinds = ("series",)
    measures = ("loss", SKILL)
    label_smoothing = 0.0
    uses = ("task.series",)
    unused = (
        *("init_from", "word_vectors", "data.target", "data.dev_target", "data.prepared", "data.format"),
        *("data.languages", "data.filters", "tokenizer.user_symbols", "tokenizer.vocabulary_size", "tokenizer.text"),
        "tokenizer",
    )
    search_advice = "leave it out"
    counted = "numbers"

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that only concern text, such as those of the tokenizer, or if no table is named.

        Raises:
            TransduceError: a setting of text is set, or no table is named.
        """
        super().check(settings)
        refuse_unused(self.name, {"training.label_smoothing": settings.training.label_smoothing})
        if not settings.data.source:
            raise TransduceError("A forecaster learns from tables of numbers: name them by `data.source`.")

    # --- the corpus ---

    def prepare(self, request: Preparation) -> SeriesCorpus:
        """Read the tables of time series of a new run, store their values in its folder, and return the corpus."""
        corpus = prepare_series(
            request.settings.data, _series(request.settings.task), request.folder, request.display.say
        )
        request.display.say(
            f"{corpus.points:,} points of {shown_names(corpus.columns)} to learn from; "
            + (f"the season has {corpus.season} points" if corpus.season > 1 else "there is no season")
        )
        past = _series(request.settings.task).past_points
        if corpus.season > past:
            request.display.say(
                f"warning: The series repeat after {corpus.season:,} points, but the model reads only the last "
                f"{past:,}: set `task.series.past` to at least {corpus.season}."
            )
        return corpus

    def reopen(self, settings: Settings, folder: Path) -> SeriesCorpus:
        """Return the corpus of the time series that a run stored when it was prepared.

        Raises:
            TransduceError: a stored file is missing or damaged.
        """
        return reopen_series(_series(settings.task), folder)

    # --- choices ---

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:  # noqa: ARG002
        """Return a dict of a preset's sizes, changed for time series.

        Half of the layers remain, but at least one on each side, because a number is less informative than a word.
        `d_ff` is 4 × `d_model`, and dropout is 0.1.
        """
        return msgspec.structs.asdict(preset) | {
            "num_encoder_layers": max(1, preset.num_encoder_layers // 2),
            "num_decoder_layers": max(1, preset.num_decoder_layers // 2),
            "d_ff": 4 * preset.d_model,
            "dropout": 0.1,
        }

    def model_settings(self, task: TaskSettings) -> dict[str, object]:
        """Return a dict of model settings for a Transformer that reads and predicts time series."""
        return {
            "kind": "series",
            "activation": "gelu",
            "predicts_deviations": _series(task).likelihood == "gaussian",
        }

    def adapt_model(self, config: ModelConfig, corpus: SeriesCorpus, task: TaskSettings) -> ModelConfig:  # noqa: ARG002
        """Return the model's configuration with one series for each column of the tables."""
        return msgspec.structs.replace(config, num_series=len(corpus.columns))

    def choose_preset(self, pairs: int, tokens: int) -> Choice[str]:
        """Return the default preset: tiny if an epoch has fewer than 50,000,000 values to predict, otherwise small."""
        if tokens < 50_000_000:
            return Choice("tiny", f"{tokens:,} numbers to predict, fewer than 50,000,000")
        return Choice("small", f"{tokens:,} numbers to predict in {pairs:,} windows")

    def choose_batch_tokens(self, epoch_tokens: int, device: str) -> Choice[int]:
        """Return the default number of predicted values in a batch, with a reason: 8,192 on a GPU, and 1,024 on a CPU.

        The number is at most the number of values that an epoch predicts.
        """
        default = 8_192 if device.startswith("cuda") else 1_024
        return Choice(
            max(1, min(default, epoch_tokens)), "numbers to predict; windows overlap, so batches may be small"
        )

    def choose_steps(self, pairs: int, epoch_tokens: int, batch_tokens: int) -> Choice[int]:
        """Return the default number of steps: 20 epochs of all windows, but at least 500 and at most 20,000 steps."""
        rows = max(1, batch_tokens // max(1, epoch_tokens // max(1, pairs)))  # whole windows, at least one
        steps = _EPOCHS * -(-pairs // rows)
        reason = f"{_EPOCHS} epochs of {pairs:,} windows, between {_MIN_STEPS:,} and {_MAX_STEPS:,} steps"
        return Choice(min(_MAX_STEPS, max(_MIN_STEPS, steps)), reason)

    def choose_best_by(self, corpus: SeriesCorpus, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Return the default measure that selects the best model, `skill`, with a reason (`Choice`).

        Skill is the percentage by which the error of the dev forecasts is lower than that of a baseline. The baseline
        repeats the last season or the last value, whichever is better.
        """
        return Choice(SKILL, "percent lower error of dev forecasts than repeating the last season or value")

    def choose_precision(self, default: Choice[Precision]) -> Choice[Precision]:  # noqa: ARG002
        """Return float32 as the precision, whatever the default is, because bfloat16 has too few digits for numbers."""
        return Choice("fp32", "bf16 keeps 2 to 3 digits of a number")

    # --- training ---

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[SeriesBatch], Loss]:  # noqa: ARG002
        """Return the training objective, a function from a batch to its `Loss`: squared errors of the next values.

        If the model predicts deviations, the losses are negative log-likelihoods instead.
        """
        assert isinstance(model, SeriesTransformer)
        return SeriesObjective(model)

    def plan(
        self, corpus: SeriesCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)
    ) -> SeriesPlan:
        """Return the plan of a process's training batches of windows; a batch's size is in predicted values.

        `rank_and_count` are the process's rank and the number of processes.
        """
        rows = max(1, resolved.micro_batch_tokens // (corpus.horizon * len(corpus.columns)))
        return SeriesPlan(
            corpus.training, corpus.scale, rows=rows, seed=resolved.training.seed, rank_and_count=rank_and_count
        )

    def validation(self, corpus: SeriesCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> SeriesDevSet:
        """Return a dev set of at most 512 windows of the dev part, which measures the loss and forecasts."""
        return SeriesDevSet(corpus, resolved, placement)

    def describe_size(self, corpus: SeriesCorpus) -> str:
        """Return the size of the training data as text: its numbers of points and windows."""
        return f"{corpus.points:,} points, {corpus.pairs:,} windows"

    # --- the model folder ---

    def documents(self, corpus: SeriesCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:
        """Return a dict {file name: content} for the model folder: the task card, and the card of the series."""
        return {
            TASK_CARD: TaskCard(kind="time-series").text(),
            SERIES_CARD: series_card(corpus, resolved).text(),
        }

    def card_texts(self, corpus: SeriesCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to forecasters, such as title and usage."""
        model = resolved.model
        return CardTexts(
            "A forecaster",
            "time-series-forecasting",
            f"An encoder and a decoder of {model.num_encoder_layers}+{model.num_decoder_layers} layers × "
            f"{model.d_model}, trained by transduce on {self.describe_size(corpus)} of {', '.join(corpus.columns)}",
            f"transduce forecast {folder} FILE.csv --steps {corpus.horizon}",
            score_heading="The dev part",
        )

    def finish(self, corpus: SeriesCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Score the best model's forecasts of the dev part; return an `Outcome` with the scores."""
        best = load_forecaster(placement.folder, device=placement.device, threads=placement.threads)
        dev = self.validation(corpus, resolved, placement)
        dev.model.load_state_dict(best.model.state_dict())
        report = dev.score()
        return Outcome(
            measured=f"Dev part:\n{report}",
            report=report,
            scores=report,
            weakness="The forecasts are not better than repeating the last season or the last value."
            if report.is_weak
            else None,
        )


def series_card(corpus: SeriesCorpus, resolved: ResolvedSettings) -> SeriesCard:
    """Return the card of a forecaster's model folder (`SeriesCard`): its columns, window sizes, season and scale."""
    return SeriesCard(
        columns=corpus.columns,
        past=_series(resolved.task).past_points,
        horizon=corpus.horizon,
        season=corpus.season,
        scale=corpus.scale,
        learned=corpus.learned,
    )


def _series(task: TaskSettings) -> SeriesSettings:
    return SeriesSettings() if task.series is None else task.series
