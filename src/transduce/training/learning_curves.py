"""Forecast the final dev score of a translation run from two validations early in the run.

The forecast is a ridge regression on runs that `benchmarks/recorded_runs.py` recorded (`recorded_runs.json`). Each
validation of a recorded run is an example: by how much BLEU rose to the end of the run, when chrF had just risen at a
certain rate. docs/forecasting.md reports how good the forecasts are.
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
FEWEST_STEPS, LEAST_SHARE = 150, 0.25
"""The first step, and the least share of a run, from which a score is forecast; earlier forecasts were far off."""
_FIRST_EXAMPLE = 90
# The examples nearest to a forecast, by their BLEU so far and the steps to come, from which its interval follows.
_NEIGHBORS = 20
_COVERAGE = 0.85
_RIDGE = 0.05
_OFFSET = 2.0  # BLEU; scores near 0 differ by less than their noise
_LEAST_ERROR = 1.5  # BLEU; a score on some hundred sentences is no more certain


class CurvePoint(NamedTuple):
    """A point of a run's learning curve: the step of a validation, with its loss, BLEU and chrF."""

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
    position: NDArray[np.float64]


def read_records(path: Path = RECORDS) -> tuple[RecordedRun, ...]:
    """Return the recorded runs of a file."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[RecordedRun, ...])


def forecast_score(
    earlier: CurvePoint, point: CurvePoint, steps: int, *, records: Sequence[RecordedRun] | None = None
) -> ScoreForecast:
    """Return the forecast of the final BLEU of a run.

    Args:
        earlier: a validation after about half as many steps as `point`.
        point: the last validation.
        steps: the number of steps of the whole run.
        records: recorded runs to fit the regression to; None: those that come with the package.
    """
    curves = _LearningCurves.fitted() if records is None else _LearningCurves(records)
    return curves.forecast(earlier, point, steps)


class _LearningCurves:
    """A regression of the final BLEU on two validations before the end, and the errors that it made."""

    def __init__(self, records: Sequence[RecordedRun]) -> None:
        self.examples = [each for run in records if not run.held_out for each in _examples(run)]
        self.coefficients = _fit(self.examples)
        self.without = {
            corpus: _fit([each for each in self.examples if each.corpus != corpus])
            for corpus in sorted({each.corpus for each in self.examples})
        }
        """The coefficients of a fit without each corpus."""

    @staticmethod
    @cache
    def fitted() -> "_LearningCurves":
        """Return the regression on the runs that come with the package."""
        return _LearningCurves(read_records())

    def forecast(self, earlier: CurvePoint, point: CurvePoint, steps: int) -> ScoreForecast:
        """Return the forecast of a run's final BLEU.

        The interval is that of the jackknife+ (Barber et al. 2021, "Predictive inference with the jackknife+"): it has
        the errors of fits without a corpus, on that corpus, and the differences between these fits.
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
        low, high = max(0.0, min(low, bleu - _LEAST_ERROR)), min(100.0, max(high, bleu + _LEAST_ERROR))
        return ScoreForecast(bleu=bleu, low=low, high=high)


def earlier_point(points: Sequence[CurvePoint], step: int) -> CurvePoint | None:
    """Return the validation that is nearest to half of a step on a logarithmic scale; None if none is earlier."""
    before = [point for point in points if point.step < step]
    return min(before, key=lambda point: abs(math.log(2 * point.step / step)), default=None)


def _examples(run: RecordedRun) -> list[_Example]:
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
    """Return the features: the doublings of the steps still to come, and by how much chrF rose in the last one."""
    doublings = math.log2(steps / point.step)
    rise = (_logit(point.chrf) - _logit(earlier.chrf)) / math.log2(point.step / earlier.step)
    return np.array([1.0, doublings, rise])


def _position(point: CurvePoint, steps: int) -> NDArray[np.float64]:
    return np.array([_logit(point.bleu), math.log2(steps / point.step)])


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
    return math.log((bleu + _OFFSET) / (100.0 + _OFFSET - bleu))


def _bleu(logit: float) -> float:
    return min(100.0, max(0.0, (100.0 + 2 * _OFFSET) / (1.0 + math.exp(-logit)) - _OFFSET))
