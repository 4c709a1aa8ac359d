"""What a run tells: ``metrics.jsonl``, an object per event; TensorBoard's file; a progress bar, or plain lines."""

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
    """Means over the steps since the last report that learnt; NaN, written as null, where none did."""

    step: int
    epoch: float
    loss: float
    """Per target token, in nats, with label smoothing: what is minimised."""
    perplexity: float
    """Without smoothing."""
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    """Non-padding target tokens."""
    elapsed_seconds: float
    skipped: int
    """Steps whose gradient was not finite and changed nothing."""


class ValidationEvent(msgspec.Struct, frozen=True, tag="validation", tag_field="event", omit_defaults=True):
    """The dev set at a step, by the weights that would be kept."""

    step: int
    loss: float
    """Per target token, in nats, without smoothing."""
    perplexity: float
    bleu: float | None = None
    chrf: float | None = None
    signature: str | None = None
    scores: dict[str, float] = {}
    """What else the task measures, by name; a model may be chosen by those that are better the greater they are."""
    perfect: bool = False
    """Whether everything measured was right, and that was much: a better model could not be told from this one."""
    samples: list[tuple[str, str, str]] = []
    """Source, reference, translation."""
    validation_seconds: float = 0.0


Event = TrainEvent | ValidationEvent


class EventLog:
    """Appends events to ``metrics.jsonl`` and to TensorBoard's file.

    On resume, events of steps that will be run again are removed first, so that each step stands there once. While the
    disk is full, events wait in memory: they are no reason to end a run.
    """

    def __init__(self, folder: Path, *, resume_at: int, validate_again: bool = False) -> None:
        """Opens both files.

        Args:
            folder: of the run.
            resume_at: the step after which the run goes on; 0 starts an empty log.
            validate_again: the validation of that step will be repeated too.
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
        """Writes one event, and what waits from before."""
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
        """A full disk may take a part of it; the rest follows where that ends."""
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def close(self) -> None:
        """Closes both files."""
        with contextlib.suppress(OSError):
            self._write_waiting()
        self._file.close()
        with contextlib.suppress(OSError):
            self._tensorboard.close()


class _NoLog:
    """Of a process that is not the first."""

    def write(self, event: Event) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Closes nothing."""


Log = EventLog | _NoLog
NO_LOG = _NoLog()


def _events_until(path: Path, step: int, validate_again: bool) -> list[bytes]:
    if not path.exists():
        return []
    # What follows the last line feed is a line that a killed run could not finish.
    lines = path.read_bytes().split(b"\n")[:-1]
    events = [(line, place) for line in lines if (place := _place_of(line)) is not None]
    again = ("validation", step) if validate_again else None
    return [line + b"\n" for line, place in events if place.step <= step and (place.event, place.step) != again]


class _Place(msgspec.Struct, frozen=True):
    event: str
    step: int


def _place_of(line: bytes) -> _Place | None:
    """None where a power cut left a line that is no event."""
    try:
        return msgspec.json.decode(line, type=_Place)
    except msgspec.MsgspecError:
        return None


class _LastingStream(io.TextIOBase):
    """Standard error as long as somebody listens. A terminal that went, or a closed pipe, is no error."""

    @property
    def stream(self) -> TextIO:
        """Standard error itself, which rich hides while it draws a bar."""
        return cast("TextIO", sys.stderr.rich_proxied_file) if isinstance(sys.stderr, FileProxy) else sys.stderr

    def write(self, text: str) -> int:
        """Writes what can be written."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes what can be flushed."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The descriptor, by which the terminal's width is found."""
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Decides which characters the bar is drawn with."""
        return self.stream.encoding


class ProgressDisplay:
    """A bar on a terminal; a line per report elsewhere. Both on standard error, as long as there is one."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=_LastingStream(), highlight=False)  # type: ignore[arg-type]
        self._bar: Progress | None = None
        self._reported = False
        self._task: TaskID | None = None

    def start(self, step: int, steps: int | None) -> None:
        """Shows the bar, on a terminal."""
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
        """A step is done; `text` is what the bar says until the first report."""
        if self._bar is not None and self._task is not None:
            last = f"{steps:,}" if steps else "?"
            self._bar.update(self._task, completed=step, total=steps, last=last)
            if not self._reported:
                self._bar.update(self._task, text=text)

    def report(self, event: TrainEvent, steps: int | None, seconds_left: float | None) -> None:
        """Shows a report."""
        left = "" if seconds_left is None else f" · {format_duration(seconds_left)} left"
        text = f"loss {event.loss:.3f} · {event.tokens_per_second:,.0f} tokens/s{left}"
        self._reported = True
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, text=text)
        else:
            self.say(f"step {event.step:,}/{f'{steps:,}' if steps else '?'} · {text}")

    def validation(self, event: ValidationEvent, *, best: bool) -> None:
        """Shows a validation, and one sample."""
        measured = {"BLEU": event.bleu, "chrF": event.chrf}
        scores = "".join(f" · {name} {value:.1f}" for name, value in measured.items() if value is not None)
        scores += "".join(f" · {name.replace('_', ' ')} {value:.3f}" for name, value in event.scores.items())
        mark = " · best so far" if best else ""
        self.say(f"step {event.step:,} · dev loss {event.loss:.3f} (perplexity {event.perplexity:.2f}){scores}{mark}")
        for source, reference, translation in event.samples[:1]:
            self.say(f"    source       {source}\n    reference    {reference}\n    translation  {translation}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)
        self.console.file.flush()

    def stop(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()


def format_duration(seconds: float) -> str:
    """Seconds as people say them: 48 s, 3 min 20 s, 1 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
