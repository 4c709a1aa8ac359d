"""Show a run in a notebook: one live output with a progress bar, a loss curve and the last messages.

Lines that are printed one by one would become a long stack of outputs in the notebook's cell.
"""

import html
import importlib
import io
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rich.console import Console
from typing_extensions import override

from transduce.training.events import ProgressDisplay, TrainEvent, ValidationEvent, format_duration
from transduce.ui_language import localized

_SECONDS_BETWEEN_SHOWING, _SHOWN_MESSAGES = 0.5, 12
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 160, 40, 34, 10
_COLORS = {"training": "#888888", "dev": "#c44e52"}

# --- the live output ---


class _Messages(io.TextIOBase):
    """A writable text stream that passes each complete line to a function."""

    def __init__(self, receive: Callable[[str], None]) -> None:
        self._receive, self._partial = receive, ""

    def write(self, text: str) -> int:
        """Append text to the stream, and pass each line that is now complete to the function."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._receive(line)
        return len(text)


class NotebookDisplay(ProgressDisplay):
    """A display of a run in one output of a notebook's cell, which each event replaces."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """Create the display; `show` replaces the output by HTML (None: that of the cell that is executed)."""
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
    def advance(self, step: int, steps: int | None, text: str = "") -> None:
        if self._progress is not None:
            self._progress = step, steps, self._progress[2] if self._reported else text
        self._render(is_urgent=False)

    @override
    def report(self, event: TrainEvent, steps: int | None, seconds_left: float | None) -> None:
        left = "" if seconds_left is None else f" · {format_duration(seconds_left)} left"
        self._reported = True
        self._progress = event.step, steps, f"loss {event.loss:.3f} · {event.tokens_per_second:,.0f} tokens/s{left}"
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
        """Show the run's current state in the notebook, at most twice a second unless it is urgent."""
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
            last = f"{steps:,}" if steps else "?"
            shown = f"{localized('step')} {step:,}/{last} · {html.escape(localized(text))}"
            parts.append(f"<div>{bar} {shown}</div>{draw_losses(self._curves)}")
        shown = html.escape("\n".join(self._messages[-_SHOWN_MESSAGES:]))
        self._show("".join([*parts, f"<pre>{shown}</pre>"]))


def _live_output() -> Callable[[str], None]:
    """Return a function that replaces the content of one output of the cell that is executed."""
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
    """Return curves of losses as an SVG picture with the range of both axes; empty text without two points.

    Args:
        curves: (step, loss) of each curve, "training" and "dev"; losses that are not finite are left out.
    """
    finite = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in curves.items()}
    every = [point for points in finite.values() for point in points]
    if len(every) < 2:
        return ""
    low, high = min(y for _, y in every), max(y for _, y in every)
    last, span = max(1, *(x for x, _ in every)), (high - low) or 1.0
    height = _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> str:
        return f"{_LEFT + x / last * (_WIDTH - _LEFT - 8):.1f},{_TOP + (high - y) / span * height:.1f}"

    drawn = [
        f'<text x="0" y="{_TOP + 8}">{high:.2f}</text><text x="0" y="{_TOP + height}">{low:.2f}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">loss by step, to {last:,}</text>',
    ]
    for number, (name, points) in enumerate(finite.items()):
        color, path = _COLORS[name], " ".join(place(*point) for point in points)
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
    """Return the display of a run: in a notebook, on a terminal, or as lines; in all processes but the first, none."""
    if not is_first:
        return ProgressDisplay(Console(quiet=True))
    return NotebookDisplay() if is_in_notebook() else ProgressDisplay()
