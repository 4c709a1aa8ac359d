"""One run at a time in a folder: two that wrote into it together would spoil each other's files."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.errors import TransduceError

if sys.platform != "win32":
    import fcntl


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; the operating system lets go of it when the process ends, however it does.

    Nothing is held on Windows, nor on file systems that cannot lock a folder.

    Raises:
        TransduceError: another process holds it.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TransduceError(
                f"Another process is training in {folder}: wait until it has ended, or name another folder with --out."
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
