"""A folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.durable import naming, sync_folder
from transduce.errors import TransduceError


@contextmanager
def new_folder(folder: str | Path, mark: str, what: str) -> Iterator[Path]:
    """A place to write a folder's files to; it gets its name at the end of the ``with`` statement, or disappears.

    Args:
        folder: its name; a folder of this name that holds ``mark`` is replaced.
        mark: a file or folder inside, by which a folder of this kind is known.
        what: such a folder in words: "a prepared corpus".

    Raises:
        TransduceError: the name belongs to a file, or to a folder that holds something else.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise TransduceError(f"{folder} is a file, but {what} is a folder: name another place.")
    _recover(folder)
    if folder.is_dir() and not (folder / mark).exists() and any(folder.iterdir()):
        raise TransduceError(f"{folder} holds something else than {what}: name an empty or a new folder.")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with naming(folder):
            yield partial
        _replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(partial: Path, folder: Path) -> None:
    """Rename a finished folder into place; what stood there is moved away first and deleted last."""
    old = _moved_away(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Puts back what stood there, where a process was killed between the two renames."""
    old = _moved_away(folder)
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)


def _moved_away(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
