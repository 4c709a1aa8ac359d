"""Selection of a run's best model, and early stopping."""

import math
import sys

import msgspec

from transduce.training.events import ValidationEvent
from transduce.training.settings import BestBy, ResolvedTraining

# A single perfect validation may be luck.
_PERFECT_VALIDATIONS = 2
# Near 0, BLEU and chrF come from so few matches that their standard error is far too small.
_LEAST_NOISE: dict[BestBy, float] = {"bleu": 0.3, "chrf": 0.3}
_WORST = sys.float_info.max


class Best(msgspec.Struct, frozen=True):
    """The best validation of a run, and the number of validations since then."""

    step: int | None = None
    value: float | None = None
    """The selection metric, greater is better; None: the next validation becomes the best."""
    loss: float = 0.0
    """The dev loss of the best validation, which decides between values that noise explains."""
    validations_since: int = 0
    """The number of validations after the warm-up since the last one that was better or had a new lowest loss."""
    perfect: int = 0
    """The number of most recent validations in a row in which every measure was perfect."""
    highest: float = -_WORST
    """The highest value since the last significant improvement; the best validation may have a slightly lower one."""
    lowest_loss: float = _WORST
    """The lowest dev loss so far."""
    contributions: list[float] = []
    """The contribution of each dev sentence to the value (`ValidationEvent.contributions`)."""


class Selection:
    """A record of a run's best validation, which decides when training stops early.

    A metric that differs from the best by more than the standard error of the difference decides. A smaller difference
    may be noise: then the lower dev loss decides, unless the metric is significantly below its highest value so far.
    """

    def __init__(self, settings: ResolvedTraining) -> None:
        self._by, self._patience = settings.best_by, settings.patience
        self._warmup_steps = settings.warmup_steps
        self.best = Best()

    def is_better(self, event: ValidationEvent) -> bool:
        """Return whether a validation is better than the best one so far.

        A metric that differs from the best by more than its noise decides. Otherwise the lower dev loss decides, unless
        the metric is below its highest value so far by more than the noise. With `best_by` = last, every validation is
        better. A validation whose loss is not finite is never better.
        """
        if not math.isfinite(event.loss):
            return False
        if self.best.value is None or self._by == "last":
            return True
        value, loss = self._measured(event)
        noise = self._noise(event)
        if abs(value - self.best.value) > noise:
            return value > self.best.value
        return value >= self.best.highest - noise and (-loss, value) > (-self.best.loss, self.best.value)

    def record(self, event: ValidationEvent, *, kept: bool) -> None:
        """Record the scores of a validation, and whether the validated model was kept as the best."""
        value, loss = self._measured(event)
        best, perfect = self.best, self.best.perfect + 1 if event.perfect else 0
        lowest, improved = min(best.lowest_loss, loss), kept or loss < best.lowest_loss
        if kept:
            # A value beyond the noise starts anew; otherwise a chain of small losses could drift far below the highest.
            anew = best.value is None or value - best.value > self._noise(event)
            self.best = Best(
                step=event.step,
                value=value,
                loss=loss,
                perfect=perfect,
                highest=value if anew else max(value, best.highest),
                lowest_loss=lowest,
                contributions=list(event.contributions),
            )
            return
        # During the warm-up no model is good yet, so no validation counts against it; one without a finite loss does.
        counts = event.step > self._warmup_steps or best.value is None
        self.best = msgspec.structs.replace(
            best,
            validations_since=0 if improved and best.value is not None else best.validations_since + counts,
            perfect=perfect,
            lowest_loss=lowest,
        )

    def _noise(self, event: ValidationEvent) -> float:
        """Return the standard error of the difference of an event's value from the best, on the same dev sentences."""
        count = len(event.contributions)
        if count < 2 or count != len(self.best.contributions):
            return 0.0
        differences = [new - old for new, old in zip(event.contributions, self.best.contributions, strict=True)]
        mean = math.fsum(differences) / count
        error = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (count - 1) / count)
        return max(error, _LEAST_NOISE.get(self._by, 0.0))

    def _measured(self, event: ValidationEvent) -> tuple[float, float]:
        """Return the selection metric (higher is better) and the loss of a validation, both finite."""
        scores: dict[str, float | None] = {
            "loss": -event.loss,
            "last": -event.loss,
            "bleu": event.bleu,
            "chrf": event.chrf,
        }
        scores.update(event.scores)
        value = scores.get(self._by)
        # Non-finite values become the worst finite number, as JSON in checkpoints cannot hold them.
        return (
            value if value is not None and math.isfinite(value) else -_WORST,
            event.loss if math.isfinite(event.loss) else _WORST,
        )

    def stop_reason(self) -> str | None:
        """Return why training should stop before its last step; None if it should continue or has no patience."""
        if not self._patience:
            return None
        if self.best.perfect >= _PERFECT_VALIDATIONS:
            return f"the whole dev set was right {_PERFECT_VALIDATIONS} times in a row"
        return "no improvement" if self.best.validations_since >= self._patience else None
