"""Lock a run's folder, so that two runs cannot corrupt each other's files."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transduce.durable import sole_user
from transduce.errors import TransduceError


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, as `sole_user` does.

    Raises:
        TransduceError: another process holds the lock.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_user(folder))
        except BlockingIOError as error:
            raise TransduceError(
                f"Another process is training in {folder}: wait until it has ended, or name another folder with --out."
            ) from error
        yield
