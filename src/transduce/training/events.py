"""What a run tells: ``metrics.jsonl``, an object per event; TensorBoard's file; a progress bar, or plain lines."""

import os
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from transduce.training.tensorboard import TensorBoardWriter


class TrainEvent(msgspec.Struct, frozen=True, tag="train", tag_field="event"):
    """Means over the steps since the last report."""

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
    samples: list[tuple[str, str, str]] = []
    """Source, reference, translation."""
    validation_seconds: float = 0.0


Event = TrainEvent | ValidationEvent


class EventLog:
    """Appends events to ``metrics.jsonl`` and to TensorBoard's file.

    On resume, events of steps that will be run again are removed first, so that each step stands there once.
    """

    def __init__(self, folder: Path, *, resume_at: int) -> None:
        self.path = folder / "metrics.jsonl"
        kept = _events_until(self.path, resume_at) if resume_at else []
        temporary = self.path.with_suffix(".jsonl.partial")
        temporary.write_bytes(b"".join(kept))
        os.replace(temporary, self.path)
        self._file = self.path.open("ab")
        self._tensorboard = TensorBoardWriter(
            folder / "tensorboard", resumed_at_step=resume_at + 1 if resume_at else None
        )

    def write(self, event: Event) -> None:
        """Writes one event and flushes it."""
        self._file.write(msgspec.json.encode(event) + b"\n")
        self._file.flush()
        kind = "train" if isinstance(event, TrainEvent) else "dev"
        for name, value in msgspec.to_builtins(event).items():
            if isinstance(value, int | float) and name != "step":
                self._tensorboard.scalar(f"{kind}/{name}", float(value), event.step)
        self._tensorboard.flush()

    def close(self) -> None:
        """Closes both files."""
        self._file.close()
        self._tensorboard.close()


def _events_until(path: Path, step: int) -> list[bytes]:
    if not path.exists():
        return []
    # What follows the last line feed is a line that a killed run could not finish.
    lines = path.read_bytes().split(b"\n")[:-1]
    return [line + b"\n" for line in lines if msgspec.json.decode(line)["step"] <= step]


class ProgressDisplay:
    """A bar on a terminal; a line per report elsewhere. Both on standard error."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
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
        mark = " · best so far" if best else ""
        self.say(f"step {event.step:,} · dev loss {event.loss:.3f} (perplexity {event.perplexity:.2f}){scores}{mark}")
        for source, reference, translation in event.samples[:1]:
            self.say(f"    source       {source}\n    reference    {reference}\n    translation  {translation}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)
        if not self.console.is_terminal:
            sys.stderr.flush()

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
