"""Decide when a long task reports its progress again."""

import time


class ReportClock:
    """A clock that runs from its creation and reports when a progress report is due."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self.every_seconds = every_seconds
        self._started_at = self._reported_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the clock was created."""
        return time.monotonic() - self._started_at

    def is_due(self) -> bool:
        """Return whether the interval has passed since the last due report; if so, the interval restarts."""
        now = time.monotonic()
        if now - self._reported_at < self.every_seconds:
            return False
        self._reported_at = now
        return True
