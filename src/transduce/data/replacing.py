"""Atomic creation of a folder: it appears complete or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transduce.durable import naming, sync_folder
from transduce.errors import TransduceError


@contextmanager
def new_folder(folder: str | Path, mark: str, what: str) -> Iterator[Path]:
    """Yield a temporary folder that gets its final name at the end of the ``with`` block, or is removed on failure.

    Args:
        folder: the final name; an existing folder that contains ``mark`` is replaced.
        mark: a file or folder inside that identifies folders of this kind.
        what: a description of such a folder for messages: "a prepared corpus".

    Raises:
        TransduceError: the name belongs to a file, or to a folder with other content.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise TransduceError(f"{folder} is a file, but {what} is a folder: choose another name.")
    _recover(folder)
    if folder.is_dir() and not (folder / mark).exists() and any(folder.iterdir()):
        raise TransduceError(f"{folder} holds something other than {what}: choose an empty or a new folder.")
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
    """Rename a finished folder to its final name; an existing one is moved away first and deleted last."""
    old = _moved_away(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Restore the old folder if a process was killed between the two renames."""
    old = _moved_away(folder)
    if old.is_dir() and not folder.exists():
        os.replace(old, folder)


def _moved_away(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")
