"""Log a run: ``metrics.jsonl`` (one object per event), a TensorBoard file, and the sums that reports are made from."""

import contextlib
import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.training.loss import StepTotals

# --- TensorBoard files, without the tensorboard package ---
# The file is a sequence of records in TensorFlow's TFRecord format: length, checksum of the length, data, checksum
# of the data. The data are `Event` protocol buffers (tensorflow/core/util/event.proto), simple enough to be encoded
# by hand.


LARGEST_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

# Wire types of protocol buffers, which define how a field is encoded.
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
# Field numbers and constants of the messages.
EVENT_WALL_TIME, EVENT_STEP, EVENT_FILE_VERSION, EVENT_SUMMARY, EVENT_SESSION_LOG = 1, 2, 3, 5, 7
SESSION_LOG_STATUS, SESSION_START = 1, 1
SUMMARY_VALUE = 1
VALUE_TAG, VALUE_SIMPLE_VALUE = 1, 2


class TensorBoardWriter:
    """A writer that appends values to a new event file of TensorBoard, which joins all files of a folder into one run.

    If `resumed_at_step` is set, TensorBoard drops values of this step and later ones from older files, since an
    interrupted run will write them again.

    Raises:
        TransduceError: the folder cannot be written to.
    """

    def __init__(
        self, folder: Path, wall_clock: Callable[[], float] = time.time, *, resumed_at_step: int | None = None
    ) -> None:
        self._wall_clock = wall_clock
        started_at = wall_clock()
        self._file = _open_new_file(folder, started_at)
        self._write(_event(started_at, 0, _text(EVENT_FILE_VERSION, "brain.Event:2")))
        if resumed_at_step is not None:
            session = _message(EVENT_SESSION_LOG, _integer(SESSION_LOG_STATUS, SESSION_START))
            self._write(_event(started_at, resumed_at_step, session))
        self.flush()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point at a training step to the TensorBoard curve with the name `tag`.

        A value outside the range of float32 becomes infinite.
        """
        number = math.copysign(math.inf, value) if abs(value) > LARGEST_FLOAT32 else value
        field = _field(VALUE_SIMPLE_VALUE, FIXED32) + struct.pack("<f", number)
        content = _message(SUMMARY_VALUE, _text(VALUE_TAG, tag) + field)
        self._write(_event(self._wall_clock(), step, _message(EVENT_SUMMARY, content)))

    def flush(self) -> None:
        """Pass all written values to the operating system, so that a running TensorBoard sees them."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the event file; closing it twice does nothing."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        self._file.write(frame_record(event))


def _open_new_file(folder: Path, started_at: float) -> BinaryIO:
    """Open a new event file, named so that it sorts after older ones, since TensorBoard reads in that order.

    Raises:
        TransduceError: the folder is not writable.
    """
    number = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return (folder / f"events.out.tfevents.{int(started_at):010d}.{number:04d}.transduce").open("xb")
            except FileExistsError:
                number += 1
    except OSError as error:
        raise TransduceError(
            f"TensorBoard's files need a writable folder, but {folder} is not writable "
            f"({error.strerror}): choose another folder."
        ) from error


def frame_record(data: bytes) -> bytes:
    """Return data in the framing of a TFRecord, as TensorBoard reads it: length, its checksum, data, their checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C checksum of TFRecord: the checksum with its bits rotated, plus a constant.

    Masking avoids weak checksums of data that contain checksums, such as nested records.
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the 32-bit cyclic redundancy check with Castagnoli's polynomial (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C_TABLE = tuple(_crc32c_of_byte(byte) for byte in range(256))


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    """Encode TensorBoard's `Event` message as bytes: seconds since 1970, the training step, and one encoded field."""
    return _field(EVENT_WALL_TIME, FIXED64) + struct.pack("<d", wall_time) + _integer(EVENT_STEP, step) + content


def _message(number: int, content: bytes) -> bytes:
    return _field(number, LENGTH_DELIMITED) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8"))


def _integer(number: int, value: int) -> bytes:
    return _field(number, VARINT) + _varint(value)


def _field(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Encode an integer as protobuf does, in bytes of seven bits, lowest first; the top bit marks that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


# --- events ---


class TrainEvent(msgspec.Struct, frozen=True, tag="train", tag_field="event"):
    """A report on the steps since the previous report, with means over those that changed weights.

    The means, of loss, perplexity and gradient norm, are NaN if no step changed weights.
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
    """A validation report: scores on the dev set at a step, for the weights that would be kept (often an average)."""

    step: int
    loss: float
    """Mean loss per target token, in nats, without label smoothing."""
    perplexity: float
    bleu: float | None = None
    chrf: float | None = None
    signature: str | None = None
    scores: dict[str, float] = {}
    """Further measures of the task by name; those that are better when greater can select the best model."""
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
    """Return a list of the events that a run has logged in its folder, each decoded as a `kind`; empty without a log.

    `kind` is a struct or dictionary type. An incomplete last line, which a run is writing or which it left when it was
    killed, is left out.

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
            validate_again: whether the validation of that step will be repeated too.
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
    """Return a list of the lines of a log, with line feeds, whose events were before a step or at it.

    If `validate_again`, the validation at that step is left out. Broken lines are left out, too.
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
