"""Show the progress of a run: a bar on a terminal, plain lines elsewhere, or messages and curves in a notebook."""

import contextlib
import html
import importlib
import io
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, cast

from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from typing_extensions import override

from transduce.training.events import TrainEvent, ValidationEvent
from transduce.ui_language import column, localized

# --- on standard error ---


class _RobustStandardError(io.TextIOBase):
    """A wrapper of standard error that raises no error on writing if the terminal or pipe behind it is closed."""

    @property
    def stream(self) -> TextIO:
        """The current standard error, which rich replaces while it draws a progress bar."""
        return cast("TextIO", sys.stderr.rich_proxied_file) if isinstance(sys.stderr, FileProxy) else sys.stderr

    def write(self, text: str) -> int:
        """Write text to standard error; text is lost if standard error is closed or fails."""
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
        """Return the file descriptor of standard error, from which rich takes the terminal's width."""
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of standard error, which determines the characters that the progress bar uses."""
        return self.stream.encoding


_MIN_SHOWN_BLEU = 1.0
"""Dev BLEU below which no sample translation is shown."""


# Scores of a validation that are shares, and the factors that make them percentages: logs and checkpoints of earlier
# versions have `exact_match` from 0 to 1, so it stays so.
_TO_PERCENT = {"exact_match": 100.0} | dict.fromkeys(
    ("accuracy", "macro_f1", "f1", "masked_accuracy", "next_sentence_accuracy", "skill"), 1.0
)


def _shown(name: str, value: float) -> str:
    return f"{_TO_PERCENT[name] * value:.1f} %" if name in _TO_PERCENT else f"{value:.3f}"


class ProgressDisplay:
    """A display of a run's progress on standard error: a bar on a terminal, or elsewhere one line per report."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=_RobustStandardError(), highlight=False)  # type: ignore[arg-type]
        self.counted = "tokens"
        """The plural noun for what the loss and the speed of training count, such as "tokens" or "words"."""
        self.has_perplexity = True
        """True if the exponential of the loss is a perplexity, which it is not for time series."""
        self._bar: Progress | None = None
        self._reported = False
        self._task: TaskID | None = None

    def start(self, step: int, steps: int | None) -> None:
        """Show the progress bar from `step` to `steps` (None: not known) if standard error is a terminal."""
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn(localized("step") + " {task.completed:,.0f}/{task.fields[last]}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                console=self.console,
                transient=True,
            )
            self._task = self._bar.add_task("train", total=steps, completed=step, last=_last_step(steps), text="")
            self._bar.start()

    def advance(self, step: int, steps: int | None, loss: float = math.nan, tokens_per_second: float = 0.0) -> None:
        """Advance the progress bar, if there is one.

        Args:
            step: the number of steps taken.
            steps: the number of steps of the run; None: not known.
            loss: the mean loss so far, which is shown until the first report; NaN: no step has changed weights.
            tokens_per_second: the speed so far, which is shown until the first report.
        """
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, total=steps, last=_last_step(steps))
            if not self._reported:
                self._bar.update(self._task, text=localized(self._text(loss, tokens_per_second)))

    def report(self, event: TrainEvent, steps: int | None, seconds_left: float | None) -> None:
        """Show the loss, the speed and the remaining time of a training report, in the bar or else as a line."""
        text, self._reported = self._text(event.loss, event.tokens_per_second, seconds_left), True
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, text=localized(text))
        else:
            self.say(f"step {event.step:,}/{_last_step(steps)} · {text}")

    def validation(self, event: ValidationEvent, *, best: bool) -> None:
        """Show the scores of a validation on the dev set, and one sample translation.

        `best` marks the validation as the best so far. No sample is shown if BLEU is below 1.
        """
        measured = {"BLEU": event.bleu, "chrF": event.chrf}
        scores = "".join(f" · {name} {value:.1f}" for name, value in measured.items() if value is not None)
        scores += "".join(f" · {name.replace('_', ' ')} {_shown(name, value)}" for name, value in event.scores.items())
        mark = " · best so far" if best else ""
        self.say(
            f"step {event.step:,} · dev loss {event.loss:.3f} (perplexity {event.perplexity:.2f}){scores}{mark}"
            if self.has_perplexity
            else f"step {event.step:,} · dev loss {event.loss:.3f}{scores}{mark}"
        )
        if event.bleu is not None and event.bleu < _MIN_SHOWN_BLEU:
            return  # early in training, a sample is one word again and again
        for sample in event.samples[:1]:
            names = ("text", "reference", "output") if event.bleu is None else ("source", "reference", "translation")
            lines = zip(names, sample, strict=True)
            self.show("\n".join(f"    {column(name, 12)} {text}" for name, text in lines))

    def say(self, text: str) -> None:
        """Print a message above the progress bar, in the user's language."""
        self.show(localized(text))

    def show(self, text: str) -> None:
        """Print a text above the progress bar unchanged, without translating it to the user's language."""
        self.console.print(text, markup=False, soft_wrap=True)
        self.console.file.flush()

    def stop(self) -> None:
        """Remove the progress bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()

    def _text(self, loss: float, tokens_per_second: float, seconds_left: float | None = None) -> str:
        """Return the loss, the speed and, if it is known, the remaining time as text for one line."""
        left = "" if seconds_left is None else f" · {format_duration(seconds_left)} left"
        return f"loss {loss:.3f} · {tokens_per_second:,.0f} {self.counted}/s{left}"


def _last_step(steps: int | None) -> str:
    """Return the number of the last step of a run as text, "?" if it is not known."""
    return f"{steps:,}" if steps else "?"


def format_duration(seconds: float) -> str:
    """Format seconds as text such as "48 s", "3 min 20 s" or "1 h 05 min", rounded to whole seconds."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# --- in a notebook ---


_SECONDS_BETWEEN_SHOWING, _SHOWN_MESSAGES = 0.5, 12
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 160, 40, 34, 10
_COLORS = {"training": "#888888", "dev": "#c44e52"}


class _Messages(io.TextIOBase):
    """A writable text stream that passes each complete line to a function; a line without an end waits."""

    def __init__(self, receive: Callable[[str], None]) -> None:
        self._receive, self._partial = receive, ""

    def write(self, text: str) -> int:
        """Append text to the stream, and pass each line that is now complete to the function."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._receive(line)
        return len(text)


class NotebookDisplay(ProgressDisplay):
    """A display of a run in one output of a notebook's cell: messages, progress and curves, replaced at each event."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """Create the display; `show` receives the HTML to display (None: it appears below the cell being executed)."""
        file: Any = _Messages(self._add_message)
        super().__init__(Console(file=file, force_jupyter=False, force_terminal=False, width=200, highlight=False))
        self._show = show or _live_output()
        self._settings: list[str] = []
        self._messages: list[str] = []
        self._curves: dict[str, list[tuple[int, float]]] = {"training": [], "dev": []}
        self._progress: tuple[int, int | None, str] | None = None
        self._shown_at = -math.inf

    @override
    def start(self, step: int, steps: int | None) -> None:
        # Messages until now are about settings and the corpus, and are folded.
        self._settings, self._messages = [*self._settings, *self._messages], []
        self._progress = step, steps, ""
        self._render()

    @override
    def advance(self, step: int, steps: int | None, loss: float = math.nan, tokens_per_second: float = 0.0) -> None:
        if self._progress is not None:
            text = self._progress[2] if self._reported else self._text(loss, tokens_per_second)
            self._progress = step, steps, text
        self._render(is_urgent=False)

    @override
    def report(self, event: TrainEvent, steps: int | None, seconds_left: float | None) -> None:
        self._reported = True
        self._progress = event.step, steps, self._text(event.loss, event.tokens_per_second, seconds_left)
        self._curves["training"].append((event.step, event.loss))
        self._render()

    @override
    def validation(self, event: ValidationEvent, *, best: bool) -> None:
        self._curves["dev"].append((event.step, event.loss))
        super().validation(event, best=best)
        self._render()

    @override
    def stop(self) -> None:
        self._render()

    def _add_message(self, line: str) -> None:
        self._messages.append(line)
        self._render(is_urgent=self._progress is not None)

    def _render(self, *, is_urgent: bool = True) -> None:
        """Show the run's current state in the notebook; unless `is_urgent`, at most twice a second."""
        now = time.monotonic()
        if not is_urgent and now - self._shown_at < _SECONDS_BETWEEN_SHOWING:
            return
        self._shown_at = now
        parts = []
        if self._settings:
            folded = html.escape("\n".join(self._settings))
            parts.append(f"<details><summary>{localized('Settings and corpus')}</summary><pre>{folded}</pre></details>")
        if self._progress is not None:
            step, steps, text = self._progress
            bar = f'<progress value="{step}" max="{steps or max(1, step)}" style="width: 20em"></progress>'
            shown = f"{localized('step')} {step:,}/{_last_step(steps)} · {html.escape(localized(text))}"
            parts.append(f"<div>{bar} {shown}</div>{draw_losses(self._curves)}")
        shown = html.escape("\n".join(self._messages[-_SHOWN_MESSAGES:]))
        self._show("".join([*parts, f"<pre>{shown}</pre>"]))


def _live_output() -> Callable[[str], None]:
    """Return a function that shows HTML in the notebook cell being executed, in place of what it showed before."""
    display: Any = importlib.import_module("IPython.display")
    handle: Any = None

    def show(content: str) -> None:
        nonlocal handle
        if handle is None:
            handle = display.display(display.HTML(content), display_id=True)
        else:
            handle.update(display.HTML(content))

    return show


# --- the loss curve ---


def draw_losses(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return the text of an SVG picture of loss curves, with the range of both axes; empty for fewer than two points.

    Args:
        curves: the points (step, loss) of each curve, by its name, "training" or "dev"; losses that are not finite are
            left out.
    """
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in curves.items()}
    every = [point for points in finite.values() for point in points]
    if len(every) < 2:
        return ""
    low, high = min(y for _, y in every), max(y for _, y in every)
    last, span = max(1, *(x for x, _ in every)), (high - low) or 1.0
    height = _HEIGHT - _TOP - _BOTTOM

    def coordinates(x: float, y: float) -> str:
        return f"{_LEFT + x / last * (_WIDTH - _LEFT - 8):.1f},{_TOP + (high - y) / span * height:.1f}"

    drawn = [
        f'<text x="0" y="{_TOP + 8}">{high:.2f}</text><text x="0" y="{_TOP + height}">{low:.2f}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">loss by step, to {last:,}</text>',
    ]
    for number, (name, points) in enumerate(finite.items()):
        color, path = _COLORS[name], " ".join(coordinates(*point) for point in points)
        drawn.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{path}"/>')
        drawn.append(f'<text x="{_WIDTH - 60}" y="{20 + 14 * number}" fill="{color}">{name}</text>')
    style = 'font-size="11" font-family="sans-serif" fill="currentColor"'
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}" {style}>{"".join(drawn)}</svg>'


# --- choice of the display ---


def is_in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, such as Jupyter's or Colab's."""
    module = sys.modules.get("IPython")
    shell = None if module is None else cast(Any, module).get_ipython()
    return getattr(shell, "kernel", None) is not None


def make_display(*, is_first: bool = True) -> ProgressDisplay:
    """Return the display of a run for a notebook, if this process is its kernel, and otherwise for standard error.

    Unless `is_first`, the display shows nothing: only the first of several processes shows progress.
    """
    if not is_first:
        return ProgressDisplay(Console(quiet=True))
    return NotebookDisplay() if is_in_notebook() else ProgressDisplay()
