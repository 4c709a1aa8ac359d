"""Lock the folder of a training run: two processes that trained in it would overwrite each other's files."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transduce.durable import exclusive_lock
from transduce.errors import TransduceError

LOCK_FILE = ".lock"


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a training run's folder while the context runs.

    Raises:
        TransduceError: another process holds the folder's lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(folder / LOCK_FILE))
        except BlockingIOError as error:
            raise TransduceError(
                f"Another process is training in {folder}: wait until it has ended, or name another folder with --out."
            ) from error
        yield
