"""Log a run: ``metrics.jsonl`` (one object per event), a TensorBoard file, and the sums that reports are made from."""

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.training.tensorboard import TensorBoardWriter

if TYPE_CHECKING:
    from transduce.training.loss import StepTotals

# --- events ---


class TrainEvent(msgspec.Struct, frozen=True, tag="train", tag_field="event"):
    """A report on the steps since the previous report.

    Loss, perplexity and gradient norm are means over the steps that changed weights; NaN if there is none.
    """

    step: int
    epoch: float
    loss: float
    """Mean loss per target token, in nats, with label smoothing: the quantity that is minimized."""
    perplexity: float
    """Perplexity per target token, without label smoothing."""
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    """Target tokens per second, without padding."""
    elapsed_seconds: float
    skipped: int
    """The number of steps since the last report that changed no weights, because their loss was too high, or their loss
    or gradient was not finite, or no target token counted.
    """


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """The durations in seconds of the phases of a run, which a probe measured or an estimate assumes."""

    first_step: float
    """The seconds of the gradients of the largest batches, which are tried first, and of the first step. Both compile
    kernels.
    """
    step: float
    """The mean seconds of a step after the first one."""
    validation: float
    """The seconds of a validation of a trained model; NaN if none was measured."""
    keep: float = 0.0
    """The seconds of writing the model folder after a validation whose model is kept."""
    save: float = 0.0
    """The seconds of writing a checkpoint."""


class ValidationEvent(msgspec.Struct, frozen=True, tag="validation", tag_field="event", omit_defaults=True):
    """A validation report: the scores on the dev set at a step.

    The scores are of the weights that would be kept, which are often an average.
    """

    step: int
    loss: float
    """Mean loss per target token, in nats, without label smoothing."""
    perplexity: float
    bleu: float | None = None
    chrf: float | None = None
    signature: str | None = None
    scores: dict[str, float] = {}
    """Further measures of the task by name; those that are better when greater can select the best model.

    Shares are in percent, except `exact_match`, which is from 0 to 1.
    """
    perfect: bool = False
    """True if a large enough dev set was entirely right, so that no better model could be recognized."""
    samples: list[tuple[str, str, str]] = []
    """A tuple of source, reference and translation for some dev sentences."""
    validation_seconds: float = 0.0
    standard_error: float | None = None
    """Standard error, on the dev set, of the score that selects the best model; None if it is not known."""
    contributions: list[float] = []
    """The contribution of each dev sentence to the score that selects the best model; their mean estimates the score.

    Logs leave the contributions out.
    """


Event = TrainEvent | ValidationEvent


_FILE = "metrics.jsonl"
_T = TypeVar("_T")


def read_events(folder: Path, kind: type[_T]) -> list[_T]:
    """Return a list of the events that a run has logged in its folder; empty without a log.

    An incomplete last line is left out: a run is writing it, or was killed while it did.

    Args:
        folder: the run folder.
        kind: the type as which each event is decoded, a struct or dictionary type.

    Raises:
        TransduceError: a line is damaged.
    """
    path, events = folder / _FILE, []
    for number, line in enumerate(_complete_lines(path), 1):
        try:
            events.append(msgspec.json.decode(line, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path}, line {number}, is not what a run writes: {error}.") from None
    return events


def _complete_lines(path: Path) -> list[bytes]:
    """Return a list of the lines of a file without their line feeds; empty if there is no file.

    What follows the last line feed is left out: a run is writing that line, or was killed while it did.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.is_file() else []


def event_numbers(event: Event) -> dict[str, float]:
    """Return a dict of an event's numbers except its step: `train/…` for a report, `dev/…` for a validation."""
    values = msgspec.to_builtins(event)
    values |= values.pop("scores", {})
    kind = "train" if isinstance(event, TrainEvent) else "dev"
    return {
        f"{kind}/{name}": float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }


class EventLog:
    """A log that appends a run's events to ``metrics.jsonl`` and to a TensorBoard file.

    On resume it first removes events of steps that will be repeated, so that each step occurs once. While the disk is
    full, events wait in memory, since a failing log should not end a run.
    """

    def __init__(self, folder: Path, *, resume_at: int, validate_again: bool = False) -> None:
        """Open metrics.jsonl and a new TensorBoard file.

        Args:
            folder: the run folder.
            resume_at: the step after which the run continues; 0 starts an empty log.
            validate_again: remove the logged validation at step `resume_at`, since it will be repeated.
        """
        self.path = folder / _FILE
        kept = _events_until(self.path, resume_at, validate_again) if resume_at else []
        write_file(self.path, b"".join(kept))
        self._file = self.path.open("ab", buffering=0)
        self._waiting = b""
        self._tensorboard = TensorBoardWriter(
            folder / "tensorboard", resumed_at_step=resume_at + 1 if resume_at else None
        )

    def write(self, event: Event) -> None:
        """Append an event to metrics.jsonl, after events that wait for disk space, and its numbers to TensorBoard."""
        if isinstance(event, ValidationEvent):
            event = msgspec.structs.replace(event, contributions=[])
        self._waiting += msgspec.json.encode(event) + b"\n"
        with contextlib.suppress(OSError):
            self._write_waiting()
            for name, value in event_numbers(event).items():
                self._tensorboard.scalar(name, value, event.step)
            self._tensorboard.flush()

    def _write_waiting(self) -> None:
        """Write the bytes that wait in memory to metrics.jsonl; if the disk is full, the rest stays in memory.

        Raises:
            OSError: the disk is full or the file cannot be written.
        """
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Write events that still wait, if possible, and close metrics.jsonl and the TensorBoard file."""
        with contextlib.suppress(OSError):
            self._write_waiting()
        self._file.close()
        with contextlib.suppress(OSError):
            self._tensorboard.close()


class _NoLog:
    """A log that discards all events, for every process of a run but the first."""

    def write(self, event: Event) -> None:
        """Discard an event."""

    def close(self) -> None:
        """Do nothing, since no file is open."""


Log = EventLog | _NoLog
NO_LOG = _NoLog()


def _events_until(path: Path, step: int, validate_again: bool) -> list[bytes]:
    """Return a list of the lines of a log, with line feeds, whose events are of `step` or an earlier step.

    If `validate_again`, the validation at `step` is left out. Broken lines are left out, too.
    """
    again = _EventKey("validation", step) if validate_again else None
    keys = [(line, _event_key(line)) for line in _complete_lines(path)]
    return [line + b"\n" for line, key in keys if key is not None and key.step <= step and key != again]


def last_logged_step(folder: Path) -> int:
    """Return the largest step of an event in the log of the run in `folder`; 0 if there is none."""
    keys = map(_event_key, _complete_lines(folder / _FILE))
    return max((key.step for key in keys if key is not None), default=0)


class _EventKey(msgspec.Struct, frozen=True):
    """The kind of a logged event, "train" or "validation", and its step, which together identify the event."""

    event: str
    step: int


def _event_key(line: bytes) -> _EventKey | None:
    """Return the kind and step of a line of metrics.jsonl; None for a line that a power cut left broken."""
    try:
        return msgspec.json.decode(line, type=_EventKey)
    except msgspec.MsgspecError:
        return None


# --- sums for reports ---


class StepSums(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sums over the steps since the last report, stored in checkpoints so that reports survive an interruption."""

    steps: int = 0
    skipped: int = 0
    tokens: int = 0
    """The number of target tokens of all steps, including skipped ones."""
    learnt_tokens: float = 0
    """Target tokens of the steps that changed the weights, each multiplied by the weight of its sentence; means divide
    by it.
    """
    total: float = 0.0
    """Summed loss, in nats with label smoothing, of the steps that changed the weights."""
    negative_log_likelihood: float = 0.0
    """Summed negative log-likelihood, in nats, of the steps that changed the weights."""
    norms: float = 0.0
    """Summed gradient norms of the steps that changed the weights."""
    seconds: float = 0.0
    """Duration of all steps in seconds, including skipped ones."""
    rate: float = 0.0
    """The learning rate of the last step."""

    def add(self, sums: "StepTotals", norm: float, rate: float, seconds: float) -> None:
        """Add the sums of one step, its gradient norm, learning rate and seconds.

        A skipped step (non-finite `norm`) counts in the time and the tokens, but not in the means of loss and norm.
        """
        self.steps += 1
        self.tokens += sums.tokens
        self.seconds += seconds
        self.rate = rate
        if not math.isfinite(norm):
            self.skipped += 1
            return
        self.learnt_tokens += sums.divisor
        self.total += sums.total
        self.negative_log_likelihood += sums.negative_log_likelihood
        self.norms += norm

    @property
    def loss(self) -> float:
        """The mean loss per token of the steps that changed the weights; NaN if there is none."""
        return self.total / (self.learnt_tokens or math.nan)

    @property
    def tokens_per_second(self) -> float:
        """The speed of all steps, including skipped ones, in target tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)  # some clocks have a resolution of 16 ms

    def event(self, step: int, epoch: float, elapsed_seconds: float) -> TrainEvent:
        """Return a report with means over the steps since the last one; NaN if no step changed the weights."""
        return TrainEvent(
            step=step,
            epoch=round(epoch, 4),
            loss=self.loss,
            perplexity=math.exp(min(self.negative_log_likelihood / (self.learnt_tokens or math.nan), 100.0)),
            learning_rate=self.rate,
            gradient_norm=self.norms / (self.steps - self.skipped or math.nan),
            tokens_per_second=self.tokens_per_second,
            elapsed_seconds=elapsed_seconds,
            skipped=self.skipped,
        )
