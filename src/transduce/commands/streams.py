"""Standard streams that whoever started the command has closed (`<&-`, `>&-`): what needs one says so."""

import io
import os
import sys
from typing import NoReturn

from transduce.errors import TransduceError


class _Closed(io.RawIOBase):
    """In a closed stream's place."""

    def __init__(self, sentence: str, *, reads: bool) -> None:
        super().__init__()
        self._sentence, self._reads = sentence, reads

    def readable(self) -> bool:
        """As its place demands."""
        return self._reads

    def writable(self) -> bool:
        """The other way round."""
        return not self._reads

    def readinto(self, _: object, /) -> NoReturn:
        """Refuses."""
        raise TransduceError(self._sentence)

    def write(self, _: object, /) -> NoReturn:
        """Refuses."""
        raise TransduceError(self._sentence)


def fill_in_closed_streams() -> None:
    """Whatever reads or writes one raises TransduceError; messages on standard error go nowhere.

    Their numbers are taken too, or the next file that is opened would get one, and with it what libraries print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
    if sys.stdin is None:
        sentence = "Standard input is closed: give it something to read, or name a file."
        sys.stdin = io.TextIOWrapper(_Closed(sentence, reads=True))
    if sys.stdout is None:
        sentence = "Standard output is closed: give it a place to write to, or name a file."
        sys.stdout = io.TextIOWrapper(_Closed(sentence, reads=False), write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
