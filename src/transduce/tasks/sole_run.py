"""One run at a time in a folder: two that wrote into it together would spoil each other's files."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transduce.durable import sole_user
from transduce.errors import TransduceError


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Holds a folder for this process, as `sole_user`.

    Raises:
        TransduceError: another process holds it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_user(folder))
        except BlockingIOError as error:
            raise TransduceError(
                f"Another process is training in {folder}: wait until it has ended, or name another folder with --out."
            ) from error
        yield
