"""Show the progress of corpus preparation: a bar on a terminal, or a line from time to time."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.runtime.report_clock import ReportClock

_SECONDS_BETWEEN_LINES = 15.0


class PreparationBar:
    """A progress display that is called with the number of pairs read so far; use it in a ``with`` statement."""

    def __init__(self, console: Console, pairs: int | None) -> None:
        """Create the display; ``pairs`` is the total number, None if unknown."""
        self._console = console
        self._pairs = pairs
        self._clock = ReportClock(_SECONDS_BETWEEN_LINES)
        columns = (TextColumn("{task.fields[text]}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("prepare", total=pairs, text="preparing the corpus")

    def __enter__(self) -> "PreparationBar":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def __call__(self, read: int) -> None:
        """Update the display to a number of pairs read."""
        text = f"{self._of(read)} pairs · {read / max(self._clock.elapsed_seconds, 1e-9):,.0f} pairs/s"
        self._bar.update(self._task, completed=read, text=text)
        if not self._console.is_terminal and self._clock.is_due():
            self._console.print(f"prepared {text}", markup=False, soft_wrap=True)

    def _of(self, read: int) -> str:
        return f"{read:,}" if self._pairs is None else f"{read:,}/{self._pairs:,}"
