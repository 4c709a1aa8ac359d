"""Forecast a run before it is trained: its parameters, its time, its peak memory and, on request, its dev score."""

import math
from collections.abc import Sequence

import msgspec
import torch

from transduce.machine import peak_memory
from transduce.text.files import count_noun
from transduce.training.events import Durations, ValidationEvent, format_duration
from transduce.training.learning_curves import FEWEST_STEPS, LEAST_SHARE, CurvePoint, ScoreForecast, forecast_score
from transduce.training.schedule import default_interval
from transduce.training.settings import ResolvedTraining

# Bytes for each parameter, measured with 2 to 45 million parameters (docs/training.md). The first validation makes an
# inference copy of the model; the final evaluation reads the model from its folder.
_VALIDATION_BYTES, _EVALUATION_BYTES = 6, 4
# The part of the time that validations take, for a task that does not predict it.
_VALIDATION_SHARE = 0.08

PROBE_SECONDS = 8.0
"""The time of the steps that a dry run takes to measure the machine's rate."""
PROBE_LIMIT = 60.0
"""The time in seconds that a dry run takes for all its steps and validations."""
SCORE_PROBE_SECONDS = 40.0
"""The time of the steps from which a score is forecast; the validation after them takes some more seconds."""
SCORE_PROBE_LIMIT = 120.0
"""The time in seconds for all steps and validations if a score is forecast."""
PROBE_STEPS = 40
"""The largest number of steps that a dry run takes, unless it forecasts the score."""
NO_SCORE = (
    f"No score is forecast: that takes {FEWEST_STEPS} steps and a quarter of the run in {SCORE_PROBE_SECONDS:g} "
    "seconds, and translation into a language written with spaces."
)


class RunForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast of a run that is trained to its last step."""

    parameters: int
    """Number of trained parameters."""
    steps: int
    """Number of steps; in a run with a time budget, how many fit into it at the measured rate."""
    seconds: float
    """The time of the whole command, from its start to its end."""
    step_seconds: float
    """The mean time of a step."""
    validations: int
    """Number of validations."""
    validation_seconds: float
    """The time of a validation of a trained model."""
    peak_memory: int | None
    """The largest resident memory of the process in bytes; None if the system does not report it."""
    peak_gpu_memory: int | None = None
    """The largest memory that PyTorch takes on the GPU, in bytes; None on a CPU."""
    score: ScoreForecast | None = None
    """The score on the dev set at the end, if it was forecast."""

    def __str__(self) -> str:
        memory = "" if self.peak_memory is None else f", {format_bytes(self.peak_memory)} of memory at most"
        if self.peak_gpu_memory is not None:
            memory += f", {format_bytes(self.peak_gpu_memory)} on the GPU"
        return (
            f"about {format_duration(self.seconds)} for {self.steps:,} steps of {format_step(self.step_seconds)} and "
            f"{count_noun(self.validations, 'validation')} of {format_step(self.validation_seconds)}{memory}"
        )


def forecast_run(
    durations: Durations,
    training: ResolvedTraining,
    *,
    parameters: int,
    elapsed_seconds: float,
    step: int,
    end_validations: float,
    validated: bool,
) -> RunForecast:
    """Return the forecast of a run from the durations of its parts.

    Args:
        durations: the durations; that of a validation may be NaN, and is then assumed.
        training: the run's settings.
        parameters: number of trained parameters.
        elapsed_seconds: the time since the start of the command, without that of a probe.
        step: the number of steps that the run has taken by then.
        end_validations: how many validations take as long as the final evaluation.
        validated: True if the process has validated a model, so that its memory includes a validation's.
    """
    budget = None if training.minutes is None else 60.0 * training.minutes
    steps = training.steps or 1
    if budget is not None:
        steps = max(1, int((1.0 - 2 * _VALIDATION_SHARE) * (budget - elapsed_seconds) / durations.step))
    validations, saves = (_due(step, steps, every) for every in (training.validate_every, training.save_every))
    validation = durations.validation
    if math.isnan(validation):
        validation = _VALIDATION_SHARE * steps * durations.step / max(1, validations)
    seconds = elapsed_seconds + (steps - step) * durations.step
    seconds += validations * (validation + durations.keep) + saves * durations.save + end_validations * validation
    memory, gpu = peak_memory(), None
    if memory is not None:
        memory += parameters * (_EVALUATION_BYTES + (0 if validated else _VALIDATION_BYTES))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        gpu = torch.cuda.max_memory_reserved()
    return RunForecast(
        parameters=parameters,
        steps=steps,
        seconds=seconds if budget is None else max(budget, elapsed_seconds),
        step_seconds=durations.step,
        validations=validations,
        validation_seconds=validation,
        peak_memory=memory,
        peak_gpu_memory=gpu,
    )


def _due(step: int, steps: int, every: int | None) -> int:
    """Return how many validations, or checkpoints, are due between `step` and the last step, which always has one."""
    every = every or default_interval(steps)
    return math.ceil(steps / every) - step // every


def with_score(forecast: RunForecast, events: Sequence[ValidationEvent]) -> RunForecast:
    """Return a forecast with the final score on the dev set, from two validations during the probe.

    It stays without a score if the validations translated nothing or if the probe took too few steps. No run was
    recorded for target languages that are written without spaces, so they have no score either.
    """
    points = [
        CurvePoint(event.step, event.loss, event.bleu, event.chrf)
        for event in events
        if event.bleu is not None and event.chrf is not None and "tok:13a" in (event.signature or "")
    ]
    if len(points) < 2 or points[-1].step < max(FEWEST_STEPS, LEAST_SHARE * forecast.steps):
        return forecast
    return msgspec.structs.replace(forecast, score=forecast_score(points[-2], points[-1], forecast.steps))


def format_bytes(size: int) -> str:
    """Format a number of bytes as text such as "870 MiB" or "2.4 GiB"."""
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def format_step(seconds: float) -> str:
    """Format the duration of a step or validation as text such as "45 ms", "2.1 s" or "1 min 40 s"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10.0 else format_duration(seconds)
