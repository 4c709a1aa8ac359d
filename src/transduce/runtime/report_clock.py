"""When a long work says again how far it is."""

import time


class ReportClock:
    """Runs from its making on, and tells when a report is due."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self.every_seconds = every_seconds
        self._started_at = self._reported_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started_at

    def is_due(self) -> bool:
        """Whether so many seconds have passed since it said so the last time."""
        now = time.monotonic()
        if now - self._reported_at < self.every_seconds:
            return False
        self._reported_at = now
        return True
