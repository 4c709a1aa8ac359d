"""Decide when training stops, early or at a signal, and which of its models is the best one."""

import contextlib
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType

import msgspec

from transduce.training.checkpoint import WORST_LOSS, Best
from transduce.training.events import ValidationEvent
from transduce.training.settings import ResolvedTraining

# --- signals ---


class AbandonedError(BaseException):
    """An exception that a signal raises during work that can be abandoned and repeated later, such as a validation."""


class Interruption:
    """A context in which Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C ends the process without saving.

    If several processes train together, a second Ctrl-C changes nothing. One reason is that each process gets the first
    Ctrl-C twice: from the terminal and from `torchrun`. Besides, a process that ended alone would leave the others
    waiting. Signals are handled only in the main thread.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self.alone = alone
        self.requested: signal.Signals | None = None
        self._abandoning = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def abandonable(self, *, by_itself: bool = False) -> Iterator[None]:
        """Return a context for work that a signal aborts at once.

        The work must leave no trace until it is complete. If several processes all take part in the work, a signal does
        not abort it.

        Args:
            by_itself: True if this process does the work without the others and sends them the result.

        Raises:
            AbandonedError: a signal arrived before or during the work.
        """
        if not (self.alone or by_itself):
            yield
            return
        try:
            self._abandoning = True
            if self.requested is not None:
                raise AbandonedError
            yield
        finally:
            self._abandoning = False

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested is not None:
            if number == signal.SIGINT and self.alone:
                raise KeyboardInterrupt
            return
        self.requested = signal.Signals(number)
        if self._abandoning:
            self._abandoning = False  # raise only once, wherever the first exception is handled
            raise AbandonedError


@contextlib.contextmanager
def ignore_hangup() -> Iterator[None]:
    """Ignore the hang-up signal, which the system sends when the terminal closes, in the body of `with`.

    Nothing changes on systems without the signal, or outside of the main thread.
    """
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield  # Windows has no SIGHUP, and only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


# --- selection of a run's best model, and early stopping ---


# A single perfect validation may be luck.
_PERFECT_VALIDATIONS = 2
# Near 0, BLEU and chrF come from so few matches that their standard error is far too small.
_MIN_NOISE = 0.3


class BestModelSelector:
    """A selector of a run's best model by its validations, which also decides when training stops early.

    A metric that differs from the best by more than the standard error of the difference decides. A smaller difference
    may be noise: then the lower dev loss decides, unless the metric is significantly below its highest value so far.
    """

    def __init__(self, settings: ResolvedTraining) -> None:
        self._settings = settings
        self.best = Best()

    def is_better(self, event: ValidationEvent) -> bool:
        """Return whether a validation is better than the best one so far.

        A metric that differs from the best by more than its noise decides. Otherwise the lower dev loss decides, unless
        the metric is below its highest value so far by more than the noise. With `best_by` = last, every validation is
        better. A validation whose loss is not finite is never better.
        """
        if not math.isfinite(event.loss):
            return False
        if self.best.value is None or self._settings.best_by == "last":
            return True
        value, loss = self._measured(event)
        noise = self._noise(event)
        if abs(value - self.best.value) > noise:
            return value > self.best.value
        return value >= self.best.highest - noise and (-loss, value) > (-self.best.loss, self.best.value)

    def record(self, event: ValidationEvent, *, kept: bool) -> None:
        """Record the scores of a validation; `kept` is True if the validated model was kept as the best one."""
        value, loss = self._measured(event)
        best, perfect = self.best, self.best.perfect + 1 if event.perfect else 0
        lowest = min(best.lowest_loss, loss)
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
        counts = event.step > self._settings.warmup_steps or best.value is None
        self.best = msgspec.structs.replace(
            best,
            validations_since=0
            if loss < best.lowest_loss and best.value is not None
            else best.validations_since + counts,
            perfect=perfect,
            lowest_loss=lowest,
        )

    def _noise(self, event: ValidationEvent) -> float:
        """Return the standard error of the difference between the metric of an event and the best one.

        It is computed from the contributions of the same dev sentences to both metrics, and is at least 0.3 for BLEU
        and chrF; without contributions it is 0.
        """
        count = len(event.contributions)
        if count < 2 or count != len(self.best.contributions):
            return 0.0
        differences = [new - old for new, old in zip(event.contributions, self.best.contributions, strict=True)]
        mean = math.fsum(differences) / count
        error = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (count - 1) / count)
        return max(error, _MIN_NOISE if self._settings.best_by in ("bleu", "chrf") else 0.0)

    def _measured(self, event: ValidationEvent) -> tuple[float, float]:
        """Return a pair: the selection metric (higher is better) and the loss of a validation.

        A metric or loss that is missing or not finite is replaced by the worst finite number.
        """
        loss = event.loss if math.isfinite(event.loss) else WORST_LOSS  # JSON in checkpoints cannot hold other numbers
        scores = {"loss": -loss, "last": -loss, "bleu": event.bleu, "chrf": event.chrf, **event.scores}
        value = scores.get(self._settings.best_by)
        return value if value is not None and math.isfinite(value) else -WORST_LOSS, loss

    def stop_reason(self) -> str | None:
        """Return why training should stop before its last step; None if it should continue or has no patience.

        The reason is a clause for a message, such as "no improvement".
        """
        if not self._settings.patience:
            return None
        if self.best.perfect >= _PERFECT_VALIDATIONS:
            return f"the whole dev set was right {_PERFECT_VALIDATIONS} times in a row"
        return "no improvement" if self.best.validations_since >= self._settings.patience else None
