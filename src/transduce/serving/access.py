"""A model that several threads compute with, and that one of them may have to change for a moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Access:
    """Any number of threads share it, or one has it alone. Who wants it alone goes before those who come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._wanting_alone = 0
        self._is_alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within it nobody is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._wanting_alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it there is nobody else."""
        with self._changed:
            self._wanting_alone += 1
            self._changed.wait_for(lambda: not self._is_alone and not self._sharing)
            self._wanting_alone -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
