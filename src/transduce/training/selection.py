"""Which model of a run is kept, and when no better one is to be expected."""

import math
import sys

import msgspec

from transduce.training.events import ValidationEvent
from transduce.training.settings import ResolvedTraining

# A dev set that comes out right as a whole may have been luck once.
_PERFECT_VALIDATIONS = 2
_WORST = sys.float_info.max


class Best(msgspec.Struct, frozen=True):
    """The best validation of a run, and what came after it."""

    step: int | None = None
    value: float | None = None
    """Of the measure that the run goes by, greater is better; None: the next one will be the best."""
    loss: float = 0.0
    """The dev loss beside it, which decides between equal ones."""
    since: int = 0
    """Validations after it."""
    perfect: int = 0
    """How many of the last validations found nothing wrong."""


class Selection:
    """Judges one validation after another."""

    def __init__(self, settings: ResolvedTraining) -> None:
        self._by, self._patience = settings.best_by, settings.patience
        self.best = Best()

    def is_better(self, event: ValidationEvent) -> bool:
        """Whether it is the best so far: by its measure, and between equal ones by the loss, which must be a number."""
        if not math.isfinite(event.loss):
            return False
        value, loss = self._measured(event)
        return self.best.value is None or (value, -loss) > (self.best.value, -self.best.loss)

    def note(self, event: ValidationEvent, *, kept: bool) -> None:
        """A validation was judged, and its model kept or not."""
        perfect = self.best.perfect + 1 if event.perfect else 0
        if kept:
            self.best = Best(event.step, *self._measured(event), perfect=perfect)
        else:
            self.best = msgspec.structs.replace(self.best, since=self.best.since + 1, perfect=perfect)

    def _measured(self, event: ValidationEvent) -> tuple[float, float]:
        """The measure, greater is better, and the loss."""
        scores: dict[str, float | None] = {"loss": -event.loss, "bleu": event.bleu, "chrf": event.chrf}
        scores.update(event.scores)
        value = scores.get(self._by)
        # The worst there is stands for what is no number: checkpoints keep both, and JSON knows finite numbers alone.
        return (
            value if value is not None and math.isfinite(value) else -_WORST,
            event.loss if math.isfinite(event.loss) else _WORST,
        )

    def why_to_stop(self) -> str | None:
        """Why training may end before its last step, where the run has patience at all."""
        if not self._patience:
            return None
        if self.best.perfect >= _PERFECT_VALIDATIONS:
            return f"all of the dev set right {_PERFECT_VALIDATIONS} times in a row"
        return "no improvement" if self.best.since >= self._patience else None
