"""Forecast the final dev score of a translation run from a validation early in the run.

The forecast is a ridge regression on runs that `benchmarks/recorded_runs.py` recorded (`recorded_runs.json`). Each
validation of a recorded run is an example: what the final BLEU was, after so many more steps, when an early validation
had these scores. The interval has the errors that the regression makes on corpora that it was not fitted to.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

RECORDS = Path(__file__).with_name("recorded_runs.json")
# Validations at these shares of a run are examples; later ones need no forecast.
_SHARES = (0.06, 0.7)
# The examples nearest to a forecast, by their BLEU so far and the steps to come, from which its interval follows.
_NEIGHBORS = 12
_COVERAGE = 0.85
_RIDGE = 0.3
_LEAST_WIDTH = 1.0  # BLEU; two seeds differ by as much


class CurvePoint(NamedTuple):
    """A validation during a run."""

    step: int
    loss: float
    """Mean loss per target token of the dev set, in nats."""
    bleu: float
    chrf: float


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run: its size, its validations and its final score."""

    corpus: str
    steps: int
    pairs: int
    epochs: float
    parameters: int
    """Number of parameters."""
    points: tuple[CurvePoint, ...]
    """The validations, in their order."""
    bleu: float
    """BLEU of the best model on the whole dev set, with beam search."""
    held_out: bool = False
    """True if the run tests the forecast and is not used to fit it."""


class ScoreForecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast of the final BLEU on the dev set, with an interval."""

    bleu: float
    """The forecast."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""

    def __str__(self) -> str:
        return (
            f"about {self.bleu:.1f} BLEU on the dev set at the end, between {self.low:.1f} and {self.high:.1f} in "
            f"{_COVERAGE:.0%} of cases"
        )


class _Example(NamedTuple):
    corpus: str
    features: NDArray[np.float64]
    gain: float
    """The logit of the final BLEU minus that of the validation."""
    point: CurvePoint
    bleu: float
    """The final BLEU."""
    steps: int
    """The number of steps of the run."""


def read_records(path: Path = RECORDS) -> tuple[RecordedRun, ...]:
    """Return the recorded runs of a file."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[RecordedRun, ...])


def forecast_score(
    point: CurvePoint, steps: int, *, epochs: float, records: Sequence[RecordedRun] | None = None
) -> ScoreForecast:
    """Return the forecast of the final BLEU of a run.

    Args:
        point: a validation of the run.
        steps: the number of steps of the whole run.
        epochs: how often the whole run reads the corpus.
        records: recorded runs to fit the regression to; None: those that come with the package.
    """
    model = _LearningCurves.fitted() if records is None else _LearningCurves(records)
    return model.forecast(point, steps, epochs)


class _LearningCurves:
    """A regression of the final BLEU on a validation before the end, and the errors that it made."""

    def __init__(self, records: Sequence[RecordedRun]) -> None:
        self.examples = [each for run in records if not run.held_out for each in _examples(run)]
        self.coefficients = _fit(self.examples)
        self.errors = np.zeros(len(self.examples))
        for corpus in {each.corpus for each in self.examples}:
            coefficients = _fit([each for each in self.examples if each.corpus != corpus])
            for number, each in enumerate(self.examples):
                if each.corpus == corpus:
                    self.errors[number] = each.gain - float(each.features @ coefficients)

    @staticmethod
    @cache
    def fitted() -> "_LearningCurves":
        """Return the regression on the runs that come with the package."""
        return _LearningCurves(read_records())

    def forecast(self, point: CurvePoint, steps: int, epochs: float) -> ScoreForecast:
        """Return the forecast of a run's final BLEU."""
        gain = float(_features(point, steps, epochs) @ self.coefficients)
        here = _position(point, steps)
        distances = [float(np.abs(_position(each.point, each.steps) - here).sum()) for each in self.examples]
        nearest = np.argsort(distances, kind="stable")[:_NEIGHBORS]
        error = float(np.quantile(np.abs(self.errors[nearest]), _COVERAGE, method="higher"))
        start = _logit(point.bleu)
        bleu, low, high = (_bleu(start + gain + shift) for shift in (0.0, -error, error))
        return ScoreForecast(
            bleu=bleu, low=max(0.0, min(low, bleu - _LEAST_WIDTH / 2)), high=max(high, bleu + _LEAST_WIDTH / 2)
        )


def _examples(run: RecordedRun) -> list[_Example]:
    first, last = (share * run.steps for share in _SHARES)
    return [
        _Example(
            run.corpus,
            _features(point, run.steps, run.epochs),
            _logit(run.bleu) - _logit(point.bleu),
            point,
            run.bleu,
            run.steps,
        )
        for point in run.points
        if first <= point.step <= last
    ]


def _features(point: CurvePoint, steps: int, epochs: float) -> NDArray[np.float64]:
    return np.array([1.0, math.log(steps / point.step), _logit(point.bleu), _logit(point.chrf), point.loss])


def _position(point: CurvePoint, steps: int) -> NDArray[np.float64]:
    return np.array([_logit(point.bleu), math.log(steps / point.step)])


def _fit(examples: Sequence[_Example]) -> NDArray[np.float64]:
    """Return the coefficients of a ridge regression in which each corpus has the same weight."""
    count = Counter(each.corpus for each in examples)
    weights = np.array([1.0 / count[each.corpus] for each in examples])
    features = np.stack([each.features for each in examples])
    gains = np.array([each.gain for each in examples])
    penalty = _RIDGE * np.eye(features.shape[1])
    penalty[0, 0] = 0.0
    return np.linalg.solve(features.T @ (features * weights[:, None]) + penalty, features.T @ (gains * weights))


def _logit(bleu: float) -> float:
    """Map a score from 0 to 100 to a scale on which equal steps are about equally hard; 0 and 100 stay finite."""
    return math.log((bleu + 0.5) / (100.5 - bleu))


def _bleu(logit: float) -> float:
    return min(100.0, max(0.0, 101.0 / (1.0 + math.exp(-logit)) - 0.5))
