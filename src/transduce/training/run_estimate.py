"""Estimate a run before it is trained: its parameters, its time, its peak memory and, on request, its dev score."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from transduce.errors import count_noun
from transduce.machine import format_bytes, peak_memory
from transduce.training.display import format_duration
from transduce.training.events import Durations, ValidationEvent
from transduce.training.schedule import default_interval
from transduce.training.settings import ResolvedTraining

# --- the final score, from a learning curve ---
# A ridge regression on runs that `benchmarks/recorded_runs.py` recorded (`recorded_runs.json`). Each validation of a
# recorded run is an example: by how much BLEU rose to the end of the run, when chrF had just risen at a certain rate.

RECORDS = Path(__file__).with_name("recorded_runs.json")
# Validations at these shares of a run are examples; later ones need no estimate.
_SHARES = (0.06, 0.7)
MIN_STEPS, MIN_SHARE = 150, 0.25
"""The first step, and the least fraction of a run, after which its score is estimated; earlier estimates were far off.
"""
_FIRST_EXAMPLE = 90
# How many examples, the nearest by BLEU so far and steps to come, determine the interval of an estimate.
_NEIGHBORS = 20
_COVERAGE = 0.85
_RIDGE = 0.05
_OFFSET = 2.0  # added to BLEU before its logit, as differences near 0 are noise
_MIN_ERROR = 1.5  # minimum error in BLEU: a score on a few hundred sentences is no more certain


class CurvePoint(NamedTuple):
    """A point of a run's learning curve: the step of a validation, with its loss, BLEU and chrF."""

    step: int
    loss: float
    """Mean loss per target token of the dev set, in nats."""
    bleu: float
    chrf: float


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run that the estimate of scores is fitted to or tested on: its size, validations and final score."""

    corpus: str
    steps: int
    pairs: int
    epochs: float
    parameters: int
    """Number of parameters of the model."""
    points: tuple[CurvePoint, ...]
    """The run's validations, in order of their steps."""
    bleu: float
    """BLEU of the best model on the whole dev set, with beam search."""
    held_out: bool = False
    """True if the run tests the estimate and is not used to fit it."""


class ScoreEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of the final BLEU on the dev set, with an interval."""

    bleu: float
    """The BLEU that is estimated, from 0 to 100."""
    low: float
    """The lower end of the interval, which covers the final score in 85 % of cases."""
    high: float
    """The upper end of the interval, which covers the final score in 85 % of cases."""

    def __str__(self) -> str:
        return (
            f"about {self.bleu:.1f} BLEU on the dev set at the end, between {self.low:.1f} and {self.high:.1f} in "
            f"{_COVERAGE:.0%} of cases"
        )


class _Example(NamedTuple):
    """A validation of a recorded run, to which the regression is fitted."""

    corpus: str
    features: NDArray[np.float64]
    """What `_features` returns for the validation."""
    gain: float
    """The logit of the run's final BLEU minus the logit of BLEU at the validation that it is estimated from: the
    regression's target.
    """
    position: NDArray[np.float64]
    """What `_position` returns for the validation."""


def read_records() -> tuple[RecordedRun, ...]:
    """Return a tuple of the finished runs in the package's JSON file, from which scores are estimated."""
    return msgspec.json.decode(RECORDS.read_bytes(), type=tuple[RecordedRun, ...])


def estimate_score(earlier: CurvePoint, point: CurvePoint, steps: int) -> ScoreEstimate:
    """Return the estimate of the final BLEU of a run on its dev set, from two of its validations.

    Args:
        earlier: a validation after about half as many steps as `point`.
        point: the last validation.
        steps: the number of steps of the whole run.
    """
    return LearningCurves.fitted().estimate(earlier, point, steps)


class LearningCurves:
    """A regression of a run's final BLEU on two earlier validations, with its errors on the recorded runs."""

    def __init__(self, records: Sequence[RecordedRun]) -> None:
        self.examples = [each for run in records if not run.held_out for each in _examples(run)]
        self.coefficients = _fit(self.examples)
        self.without = {
            corpus: _fit([each for each in self.examples if each.corpus != corpus])
            for corpus in sorted({each.corpus for each in self.examples})
        }
        """A dict from each corpus to the coefficients of a fit without its runs, whose errors on these runs give the
        interval.
        """

    @staticmethod
    @cache
    def fitted() -> "LearningCurves":
        """Return the regression on the recorded runs that come with the package; it is fitted at the first call."""
        return LearningCurves(read_records())

    def estimate(self, earlier: CurvePoint, point: CurvePoint, steps: int) -> ScoreEstimate:
        """Return the estimate of a run's final BLEU with an interval, from two of its validations.

        The interval follows the jackknife+ (Barber et al. 2021, "Predictive inference with the jackknife+"). For each
        corpus there is a fit without the runs of that corpus. Each recorded validation that is similar to `point` gives
        a new estimate, by the fit without its corpus, and the error of that fit on the recorded validation. The lower
        end of the interval is a quantile of these estimates minus errors, the upper end a quantile of estimates plus
        errors. Each end is at least 1.5 BLEU from the returned estimate, within 0 to 100.
        """
        features, here = _features(earlier, point, steps), _position(point, steps)
        distances = [float(np.abs(each.position - here).sum()) for each in self.examples]
        lows, highs = list[float](), list[float]()
        for number in np.argsort(distances, kind="stable")[:_NEIGHBORS]:
            each = self.examples[number]
            coefficients = self.without[each.corpus]
            gain, error = float(features @ coefficients), abs(each.gain - float(each.features @ coefficients))
            lows.append(gain - error)
            highs.append(gain + error)
        gain = float(features @ self.coefficients)
        low = min(gain, float(np.quantile(lows, 1.0 - _COVERAGE, method="lower")))
        high = max(gain, float(np.quantile(highs, _COVERAGE, method="higher")))
        bleu, low, high = (_bleu(_logit(point.bleu) + each) for each in (gain, low, high))
        low, high = max(0.0, min(low, bleu - _MIN_ERROR)), min(100.0, max(high, bleu + _MIN_ERROR))
        return ScoreEstimate(bleu=bleu, low=low, high=high)


def earlier_point(points: Sequence[CurvePoint], step: int) -> CurvePoint | None:
    """Return the validation whose step is nearest to `step` / 2 on a logarithmic scale.

    Only validations before `step` are candidates; None if there is none.
    """
    before = [point for point in points if point.step < step]
    return min(before, key=lambda point: abs(math.log(2 * point.step / step)), default=None)


def _examples(run: RecordedRun) -> list[_Example]:
    """Return a list of the validations of a recorded run that the regression is fitted to, as examples.

    A validation is left out if no other validation precedes it, if it is before step 90, or if its share of the run's
    steps is not between 6 % and 70 %.
    """
    first, last = (share * run.steps for share in _SHARES)
    examples = []
    for point in run.points:
        earlier = earlier_point(run.points, point.step)
        if earlier is None or point.step < _FIRST_EXAMPLE or not first <= point.step <= last:
            continue
        gain = _logit(run.bleu) - _logit(point.bleu)
        examples.append(_Example(run.corpus, _features(earlier, point, run.steps), gain, _position(point, run.steps)))
    return examples


def _features(earlier: CurvePoint, point: CurvePoint, steps: int) -> NDArray[np.float64]:
    """Return a vector of the regression's features: 1, log2(steps / current step), and the rise of logit chrF.

    The rise, per doubling of the steps, is measured from the validation `earlier` to `point`.
    """
    doublings = math.log2(steps / point.step)
    rise = (_logit(point.chrf) - _logit(earlier.chrf)) / math.log2(point.step / earlier.step)
    return np.array([1.0, doublings, rise])


def _position(point: CurvePoint, steps: int) -> NDArray[np.float64]:
    """Return the vector (logit of BLEU, log2(steps / current step)); similar validations have similar vectors."""
    return np.array([_logit(point.bleu), math.log2(steps / point.step)])


def _fit(examples: Sequence[_Example]) -> NDArray[np.float64]:
    """Fit a ridge regression from the examples' features to their gains, and return its coefficients.

    A gain is an increase of the logit of BLEU. Each corpus has the same weight, however many examples it has.
    """
    count = Counter(each.corpus for each in examples)
    weights = np.array([1.0 / count[each.corpus] for each in examples])
    features = np.stack([each.features for each in examples])
    gains = np.array([each.gain for each in examples])
    penalty = _RIDGE * np.eye(features.shape[1])
    penalty[0, 0] = 0.0
    return np.linalg.solve(features.T @ (features * weights[:, None]) + penalty, features.T @ (gains * weights))


def _logit(bleu: float) -> float:
    """Map a score from 0 to 100 (BLEU or chrF) to log-odds, on which equal steps are about equally hard.

    An offset keeps the result finite at 0 and 100.
    """
    return math.log((bleu + _OFFSET) / (100.0 + _OFFSET - bleu))


def _bleu(logit: float) -> float:
    return min(100.0, max(0.0, (100.0 + 2 * _OFFSET) / (1.0 + math.exp(-logit)) - _OFFSET))


# Bytes for each parameter, measured with 2 to 45 million parameters (docs/training.md). The first validation makes an
# inference copy of the model; the final evaluation reads the model from its folder.
_VALIDATION_BYTES, _EVALUATION_BYTES = 6, 4
# The part of the time that validations take, for a task that does not predict it.
_VALIDATION_SHARE = 0.08

PROBE_SECONDS = 8.0
"""The time in seconds of the steps that a dry run takes to measure the machine's speed."""
PROBE_LIMIT = 60.0
"""The time in seconds that a dry run takes for all its steps and validations."""
SCORE_PROBE_SECONDS = 40.0
"""The time in seconds of the steps from which a score is estimated; the validation after them takes more time."""
SCORE_PROBE_LIMIT = 120.0
"""The time in seconds for all steps and validations if a score is estimated."""
PROBE_STEPS = 40
"""The largest number of steps that a dry run takes, unless it estimates the score."""
NO_SCORE = (
    f"No score is estimated: that takes {MIN_STEPS} steps and a quarter of the run in {SCORE_PROBE_SECONDS:g} "
    "seconds, and translation into a language written with spaces."
)


class RunEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a run that is trained to its last step."""

    parameters: int
    """Number of trained parameters."""
    steps: int
    """Number of steps; in a run with a time budget, how many fit into it at the measured rate."""
    seconds: float
    """The seconds that the whole command takes, from its start to its end: the sum of its parts (preparation, steps,
    validations, saving, evaluation), or the time budget.
    """
    preparation_seconds: float
    """The seconds before training, and those that the first steps take longer than others."""
    new_steps: int
    """Number of steps that the command takes: `steps`, or fewer if it resumes a run."""
    step_seconds: float
    """The mean seconds of a step."""
    validations: int
    """Number of validations from now to the end of the run."""
    validation_seconds: float
    """The seconds of a validation of a trained model, whose translations are as long as the references."""
    saving_seconds: float
    """The seconds of writing the model and the checkpoints; 0 if they were not measured."""
    evaluation_seconds: float
    """The seconds of the evaluation of the best model at the end."""
    has_budget: bool = False
    """True if `training.minutes` sets the time, so that the parts need not add up to it."""
    peak_memory: int | None
    """The largest resident memory of the process in bytes; None if the system does not report it."""
    peak_gpu_memory: int | None = None
    """The largest memory that PyTorch takes on the GPU, in bytes; None on a CPU."""
    score: ScoreEstimate | None = None
    """The estimate of the score on the dev set at the end; None: it was not estimated."""

    def __str__(self) -> str:
        memory = "" if self.peak_memory is None else f", {format_bytes(self.peak_memory)} of memory at most"
        if self.peak_gpu_memory is not None:
            memory += f", {format_bytes(self.peak_gpu_memory)} on the GPU"
        steps, validations = count_noun(self.new_steps, "step"), count_noun(self.validations, "validation")
        step, validation = format_step(self.step_seconds), format_step(self.validation_seconds)
        if self.has_budget:
            return (
                f"{format_duration(self.seconds)}, as set, for about {steps} of {step} and {validations} of "
                f"{validation}{memory}"
            )
        end = format_step(self.saving_seconds + self.evaluation_seconds)
        return (
            f"about {format_duration(self.seconds)}: {format_step(self.preparation_seconds)} of preparation, {steps} "
            f"of {step}, {validations} of {validation}, and {end} for saving and the last evaluation{memory}"
        )


def estimate_run(
    durations: Durations,
    training: ResolvedTraining,
    *,
    parameters: int,
    elapsed_seconds: float,
    step: int,
    new_steps: int,
    end_validations: float,
    validated: bool,
) -> RunEstimate:
    """Return the estimate of a run from the durations of its parts.

    Args:
        durations: the durations. If that of a validation is NaN, because none was measured, it is assumed.
        training: the run's settings.
        parameters: number of trained parameters.
        elapsed_seconds: the time since the start of the command. Steps taken only to measure the speed do not count,
            except the first.
        step: the number of steps that the run has taken, including those before it was resumed.
        new_steps: how many of these steps this command has taken.
        end_validations: how many validations take as long as the final evaluation.
        validated: True if the process has validated a model, so that its peak memory includes a validation's.
    """
    budget = None if training.minutes is None else 60.0 * training.minutes
    steps = training.steps or 1
    if budget is not None:
        steps = max(1, int((1.0 - 2 * _VALIDATION_SHARE) * (budget - elapsed_seconds) / durations.step))
    validations, saves = (_due(step, steps, every) for every in (training.validate_every, training.save_every))
    validation = durations.validation
    if math.isnan(validation):
        validation = _VALIDATION_SHARE * steps * durations.step / max(1, validations)
    preparation = max(0.0, elapsed_seconds - new_steps * durations.step)
    new_steps += max(0, steps - step)
    saving, evaluation = validations * durations.keep + saves * durations.save, end_validations * validation
    seconds = preparation + new_steps * durations.step + validations * validation + saving + evaluation
    memory, gpu = peak_memory(), None
    if memory is not None:
        memory += parameters * (_EVALUATION_BYTES + (0 if validated else _VALIDATION_BYTES))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        gpu = torch.cuda.max_memory_reserved()
    return RunEstimate(
        parameters=parameters,
        steps=steps,
        seconds=seconds if budget is None else max(budget, elapsed_seconds),
        preparation_seconds=preparation,
        new_steps=new_steps,
        step_seconds=durations.step,
        validations=validations,
        validation_seconds=validation,
        saving_seconds=saving,
        evaluation_seconds=evaluation,
        has_budget=budget is not None,
        peak_memory=memory,
        peak_gpu_memory=gpu,
    )


def _due(step: int, steps: int, every: int | None) -> int:
    """Return how many validations, or checkpoints, come after the step `step` of a run of `steps` steps.

    There is one at each multiple of `every` (None: of the default interval), and one at the last step.
    """
    every = every or default_interval(steps)
    return math.ceil(steps / every) - step // every


def with_score(estimate: RunEstimate, events: Sequence[ValidationEvent]) -> RunEstimate:
    """Return an estimate of a run with its final dev score added, if validations allow an estimate of the score.

    The score is estimated from the last two validations with BLEU and chrF. The estimate is returned unchanged if there
    are fewer than two of these, or if the last one came too early in the run. It is also unchanged if the target
    language is written without spaces, because no such run was recorded.
    """
    points = [
        CurvePoint(event.step, event.loss, event.bleu, event.chrf)
        for event in events
        if event.bleu is not None and event.chrf is not None and "tok:13a" in (event.signature or "")
    ]
    if len(points) < 2 or points[-1].step < max(MIN_STEPS, MIN_SHARE * estimate.steps):
        return estimate
    return msgspec.structs.replace(estimate, score=estimate_score(points[-2], points[-1], estimate.steps))


# --- formats ---


def format_step(seconds: float) -> str:
    """Format the duration of a step or validation as text such as "45 ms", "2.10 s" or "1 min 40 s"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10.0 else format_duration(seconds)
