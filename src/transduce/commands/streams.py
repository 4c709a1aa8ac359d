"""Replacements for standard streams that were closed by the caller (`<&-`, `>&-`), which raise a clear error on use."""

import io
import os
import sys
from typing import NoReturn

from transduce.errors import TransduceError


class _Closed(io.RawIOBase):
    """A replacement for a closed stream."""

    def __init__(self, sentence: str, *, reads: bool) -> None:
        super().__init__()
        self._sentence, self._reads = sentence, reads

    def readable(self) -> bool:
        """Return whether the replaced stream is an input."""
        return self._reads

    def writable(self) -> bool:
        """Return whether the replaced stream is an output."""
        return not self._reads

    def readinto(self, _: object, /) -> NoReturn:
        """Raise an error, as the stream is closed."""
        raise TransduceError(self._sentence)

    def write(self, _: object, /) -> NoReturn:
        """Raise an error, as the stream is closed."""
        raise TransduceError(self._sentence)


def fill_in_closed_streams() -> None:
    """Replace closed standard streams: using one raises TransduceError, and messages on standard error are discarded.

    Their file descriptors are occupied too. Otherwise the next opened file would get one, and with it the output of
    libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
    if sys.stdin is None:
        sentence = "Standard input is closed: redirect it from something, or name a file."
        sys.stdin = io.TextIOWrapper(_Closed(sentence, reads=True))
    if sys.stdout is None:
        sentence = "Standard output is closed: redirect it to something, or name a file."
        sys.stdout = io.TextIOWrapper(_Closed(sentence, reads=False), write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
