"""Signals that ask a run to stop: it saves and leaves. A lost terminal is none of them."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class AbandonedError(BaseException):
    """A signal came while work was done that may be given up. As KeyboardInterrupt, it passes `except Exception`."""


class Interruption:
    """While entered, Ctrl-C and SIGTERM set `requested`; a second Ctrl-C stops at once, without saving.

    Of several processes none stops by itself: `torchrun` passes on a Ctrl-C that the terminal has sent already, and
    work that they do together is not given up in the middle, where the others would wait for it.
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
    def abandoning(self, *, apart: bool = False) -> Iterator[None]:
        """Surrounds work that leaves nothing behind until it is done; a signal ends it at once.

        Args:
            apart: this one of several processes does it without the others, and tells them what came of it.

        Raises:
            AbandonedError: a signal has come, before or meanwhile.
        """
        if not (self.alone or apart):
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
            self._abandoning = False  # once is enough, wherever the first one leads
            raise AbandonedError


@contextlib.contextmanager
def outliving_the_terminal() -> Iterator[None]:
    """A hang-up, which the system sends when the terminal goes, ends nothing that runs in here."""
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield  # Windows has no hang-up, and only the main thread may say what signals do
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)
