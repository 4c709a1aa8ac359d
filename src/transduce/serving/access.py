"""A readers-writer lock for a model that threads share and that one thread may have to modify for a moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Access:
    """A readers-writer lock: many threads share it, or one holds it exclusively. Waiting exclusive use comes first.

    Threads that want to share the lock wait while another thread waits to hold it exclusively.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._waiting_for_exclusive = 0
        self._is_exclusive = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other threads that share it, while no thread holds it exclusively."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_exclusive and not self._waiting_for_exclusive)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock exclusively, while no other thread holds it in any way."""
        with self._changed:
            self._waiting_for_exclusive += 1
            self._changed.wait_for(lambda: not self._is_exclusive and not self._sharing)
            self._waiting_for_exclusive -= 1
            self._is_exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()
