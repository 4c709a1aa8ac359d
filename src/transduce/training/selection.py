"""Selection of a run's best model, and early stopping."""

import math
import sys

import msgspec

from transduce.training.events import ValidationEvent
from transduce.training.settings import ResolvedTraining

# A single perfect validation may be luck.
_PERFECT_VALIDATIONS = 2
_WORST = sys.float_info.max


class Best(msgspec.Struct, frozen=True):
    """The best validation of a run, and the number of validations since then."""

    step: int | None = None
    value: float | None = None
    """The selection metric, greater is better; None: the next validation becomes the best."""
    loss: float = 0.0
    """The dev loss of the best validation, which breaks ties."""
    validations_since: int = 0
    """The number of validations after the best one."""
    perfect: int = 0
    """The number of most recent validations in a row in which every measure was perfect."""


class Selection:
    """A record of the best validation, and the decision when to stop."""

    def __init__(self, settings: ResolvedTraining) -> None:
        self._by, self._patience = settings.best_by, settings.patience
        self.best = Best()

    def is_better(self, event: ValidationEvent) -> bool:
        """Return whether a validation is the best so far by the metric, then by the loss, which must be finite."""
        if not math.isfinite(event.loss):
            return False
        value, loss = self._measured(event)
        return self.best.value is None or (value, -loss) > (self.best.value, -self.best.loss)

    def record(self, event: ValidationEvent, *, kept: bool) -> None:
        """Record a validation and whether its model was kept."""
        perfect = self.best.perfect + 1 if event.perfect else 0
        if kept:
            self.best = Best(event.step, *self._measured(event), perfect=perfect)
        else:
            self.best = msgspec.structs.replace(
                self.best, validations_since=self.best.validations_since + 1, perfect=perfect
            )

    def _measured(self, event: ValidationEvent) -> tuple[float, float]:
        """Return the selection metric (higher is better) and the loss of a validation, both finite."""
        scores: dict[str, float | None] = {"loss": -event.loss, "bleu": event.bleu, "chrf": event.chrf}
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
