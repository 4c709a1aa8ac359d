"""Handle the signals that ask a run to save and stop, or that it ignores."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class AbandonedError(BaseException):
    """An exception that a signal raises during work that can be abandoned and repeated later, such as a validation."""


class Interruption:
    """A context in which Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C ends the process without saving.

    If several processes train together, a second Ctrl-C changes nothing: `torchrun` forwards the first Ctrl-C, which
    the terminal has sent to each process already. Besides, a process that ended alone would leave the others waiting.
    Signals are handled only in the main thread.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self.alone = alone
        self.requested: signal.Signals | None = None
        self._abandoning = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def abandonable(self, *, by_itself: bool = False) -> Iterator[None]:
        """Return a context for work that leaves no trace until it is complete; a signal aborts this work at once.

        With several processes that all take part in the work, a signal does not abort it.

        Args:
            by_itself: this process does the work without the others and sends them the result.

        Raises:
            AbandonedError: a signal arrived before or during the work.
        """
        if not (self.alone or by_itself):
            yield
            return
        try:
            self._abandoning = True
            if self.requested is not None:
                raise AbandonedError
            yield
        finally:
            self._abandoning = False

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested is not None:
            if number == signal.SIGINT and self.alone:
                raise KeyboardInterrupt
            return
        self.requested = signal.Signals(number)
        if self._abandoning:
            self._abandoning = False  # raise only once, wherever the first exception is handled
            raise AbandonedError


@contextlib.contextmanager
def ignore_hangup() -> Iterator[None]:
    """Ignore the hang-up signal, which the system sends when the terminal closes, in the body of `with`.

    Nothing changes on systems without the signal, or outside of the main thread.
    """
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield  # Windows has no SIGHUP, and only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)
