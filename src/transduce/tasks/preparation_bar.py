"""How far the preparation of a corpus is: a bar on a terminal, a line now and then elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.runtime.report_clock import ReportClock

_SECONDS_BETWEEN_LINES = 15.0


class PreparationBar:
    """Is told how many pairs were read; used in a ``with`` statement."""

    def __init__(self, console: Console, pairs: int | None) -> None:
        """``pairs`` there are in all, where that is known."""
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
        """So many pairs were read."""
        text = f"{self._of(read)} pairs · {read / max(self._clock.elapsed_seconds, 1e-9):,.0f} pairs/s"
        self._bar.update(self._task, completed=read, text=text)
        if not self._console.is_terminal and self._clock.is_due():
            self._console.print(f"prepared {text}", markup=False, soft_wrap=True)

    def _of(self, read: int) -> str:
        return f"{read:,}" if self._pairs is None else f"{read:,}/{self._pairs:,}"
