"""Logs of a run: ``metrics.jsonl`` (one object per event), a TensorBoard file, and a progress bar or plain lines."""

import contextlib
import io
import sys
from pathlib import Path
from typing import TextIO, cast

import msgspec
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from transduce.durable import write_file
from transduce.training.tensorboard import TensorBoardWriter


class TrainEvent(msgspec.Struct, frozen=True, tag="train", tag_field="event"):
    """A report: means over the steps since the last report that changed the weights; NaN (null in JSON) if none did."""

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
    """Steps that changed nothing because their loss was too high or their gradient was not finite."""


class ValidationEvent(msgspec.Struct, frozen=True, tag="validation", tag_field="event", omit_defaults=True):
    """A validation: measures of the dev set at a step, with the weights that would be kept."""

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
    """Whether a large enough dev set was entirely right, so that no better model could be recognized."""
    samples: list[tuple[str, str, str]] = []
    """Source, reference and translation of some dev sentences."""
    validation_seconds: float = 0.0


Event = TrainEvent | ValidationEvent


class EventLog:
    """A log that appends events to ``metrics.jsonl`` and to a TensorBoard file.

    On resume it first removes events of steps that will be repeated, so that each step occurs once. While the disk is
    full events wait in memory, since a log is no reason to end a run.
    """

    def __init__(self, folder: Path, *, resume_at: int, validate_again: bool = False) -> None:
        """Open both files.

        Args:
            folder: the run folder.
            resume_at: the step after which the run continues; 0 starts an empty log.
            validate_again: whether the validation of that step will be repeated too.
        """
        self.path = folder / "metrics.jsonl"
        kept = _events_until(self.path, resume_at, validate_again) if resume_at else []
        write_file(self.path, b"".join(kept))
        self._file = self.path.open("ab", buffering=0)
        self._waiting = b""
        self._tensorboard = TensorBoardWriter(
            folder / "tensorboard", resumed_at_step=resume_at + 1 if resume_at else None
        )

    def write(self, event: Event) -> None:
        """Write one event, after those still waiting."""
        self._waiting += msgspec.json.encode(event) + b"\n"
        kind = "train" if isinstance(event, TrainEvent) else "dev"
        with contextlib.suppress(OSError):
            self._write_waiting()
            for name, value in msgspec.to_builtins(event).items():
                if isinstance(value, int | float) and name not in ("step", "perfect"):
                    self._tensorboard.scalar(f"{kind}/{name}", float(value), event.step)
            for name, value in ({} if isinstance(event, TrainEvent) else event.scores).items():
                self._tensorboard.scalar(f"{kind}/{name}", value, event.step)
            self._tensorboard.flush()

    def _write_waiting(self) -> None:
        """Write all waiting bytes; after a partial write to a full disk the rest follows later."""
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Write what is still waiting, if possible, and close both files."""
        with contextlib.suppress(OSError):
            self._write_waiting()
        self._file.close()
        with contextlib.suppress(OSError):
            self._tensorboard.close()


class _NoLog:
    """A log that discards events, for all processes but the first."""

    def write(self, event: Event) -> None:
        """Discard an event."""

    def close(self) -> None:
        """Do nothing."""


Log = EventLog | _NoLog
NO_LOG = _NoLog()


def _events_until(path: Path, step: int, validate_again: bool) -> list[bytes]:
    if not path.exists():
        return []
    # What follows the last line feed is a line that a killed run could not finish.
    lines = path.read_bytes().split(b"\n")[:-1]
    events = [(line, key) for line in lines if (key := _event_key(line)) is not None]
    again = ("validation", step) if validate_again else None
    return [line + b"\n" for line, key in events if key.step <= step and (key.event, key.step) != again]


class _EventKey(msgspec.Struct, frozen=True):
    """The kind and step of a logged event."""

    event: str
    step: int


def _event_key(line: bytes) -> _EventKey | None:
    """Return the kind and step of a line; None if a power cut left a broken line."""
    try:
        return msgspec.json.decode(line, type=_EventKey)
    except msgspec.MsgspecError:
        return None


class _LastingStream(io.TextIOBase):
    """Standard error that ignores a closed terminal or pipe."""

    @property
    def stream(self) -> TextIO:
        """Standard error itself, which rich replaces while it draws a bar."""
        return cast("TextIO", sys.stderr.rich_proxied_file) if isinstance(sys.stderr, FileProxy) else sys.stderr

    def write(self, text: str) -> int:
        """Write text as far as standard error accepts it."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush standard error if it is still open."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def isatty(self) -> bool:
        """Return whether standard error is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """Return the file descriptor, from which rich takes the terminal's width."""
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding, which decides the characters the bar is drawn with."""
        return self.stream.encoding


class ProgressDisplay:
    """A progress bar on a terminal, or one line per report elsewhere; both go to standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=_LastingStream(), highlight=False)  # type: ignore[arg-type]
        self._bar: Progress | None = None
        self._reported = False
        self._task: TaskID | None = None

    def start(self, step: int, steps: int | None) -> None:
        """Show the bar if standard error is a terminal."""
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed:,.0f}/{task.fields[last]}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("train", total=steps, completed=step, last=steps or "?", text="")
            self._bar.start()

    def advance(self, step: int, steps: int | None, text: str = "") -> None:
        """Advance the bar by a step; `text` is shown until the first report."""
        if self._bar is not None and self._task is not None:
            last = f"{steps:,}" if steps else "?"
            self._bar.update(self._task, completed=step, total=steps, last=last)
            if not self._reported:
                self._bar.update(self._task, text=text)

    def report(self, event: TrainEvent, steps: int | None, seconds_left: float | None) -> None:
        """Show a report."""
        left = "" if seconds_left is None else f" · {format_duration(seconds_left)} left"
        text = f"loss {event.loss:.3f} · {event.tokens_per_second:,.0f} tokens/s{left}"
        self._reported = True
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, text=text)
        else:
            self.say(f"step {event.step:,}/{f'{steps:,}' if steps else '?'} · {text}")

    def validation(self, event: ValidationEvent, *, best: bool) -> None:
        """Show the scores of a validation and one sample."""
        measured = {"BLEU": event.bleu, "chrF": event.chrf}
        scores = "".join(f" · {name} {value:.1f}" for name, value in measured.items() if value is not None)
        scores += "".join(f" · {name.replace('_', ' ')} {value:.3f}" for name, value in event.scores.items())
        mark = " · best so far" if best else ""
        self.say(f"step {event.step:,} · dev loss {event.loss:.3f} (perplexity {event.perplexity:.2f}){scores}{mark}")
        for source, reference, translation in event.samples[:1]:
            self.say(f"    source       {source}\n    reference    {reference}\n    translation  {translation}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)
        self.console.file.flush()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def format_duration(seconds: float) -> str:
    """Format seconds as text such as "48 s", "3 min 20 s" or "1 h 05 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
