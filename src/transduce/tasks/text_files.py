"""Detect text files that have changed since a run started.

A resumed run keeps the training text it has prepared, but reads the dev set again.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.tasks.settings import DataSettings
from transduce.text.corpus import CorpusFiles

_NAME = "text_files.json"


class _TextFile(msgspec.Struct, frozen=True):
    """A file's properties at the start of the run."""

    path: str
    """The path."""
    size: int
    """Size in bytes."""
    modified_at: int
    """Modification time in nanoseconds."""
    is_dev: bool = False
    """True for a file of the dev set."""


def remember_text_files(folder: Path, data: DataSettings, dev: CorpusFiles | None) -> None:
    """Store the properties of a run's text files; with a prepared corpus, only those of the dev set.

    Args:
        folder: the run's folder; dev files that were written there are skipped.
        data: names the training files.
        dev: files of the dev set, if there are any.
    """
    training = () if data.prepared is not None else (*data.source, *data.target)
    files = [_file_state(path) for path in dict.fromkeys(training)]
    dev_files = dict.fromkeys(() if dev is None else (*dev.source, *dev.target))
    files += [_file_state(path, is_dev=True) for path in dev_files if not Path(path).is_relative_to(folder)]
    write_file(folder / _NAME, msgspec.json.encode(files))


def changed_text_files(folder: Path) -> Iterator[str]:
    """Yield a line for each changed text file of a run.

    Deleted files, and runs that stored no properties, give no line.
    """
    try:
        files = msgspec.json.decode((folder / _NAME).read_bytes(), type=list[_TextFile])
    except (OSError, msgspec.MsgspecError):
        return
    for file in files:
        if not Path(file.path).exists() or _file_state(file.path, is_dev=file.is_dev) == file:
            continue
        yield f"{file.path} has changed since this run started" + (
            ": validations on the new text are not comparable with earlier ones, whose best model is kept as the best."
            if file.is_dev
            else ", which continues with the text as it was then."
        )


def _file_state(path: str, *, is_dev: bool = False) -> _TextFile:
    status = Path(path).stat()
    return _TextFile(path, status.st_size, status.st_mtime_ns, is_dev)
