"""By what a run that goes on notices that its text files are others now: it goes on with the text that it has cut."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.tasks.settings import DataSettings

_NAME = "text_files.json"


class _TextFile(msgspec.Struct, frozen=True):
    """A file as it was when the run began."""

    path: str
    size: int
    """In bytes."""
    modified_at: int
    """In nanoseconds."""


def remember_text_files(folder: Path, data: DataSettings) -> None:
    """Writes down what a run's training files are like."""
    paths = dict.fromkeys((*data.source, *data.target))
    write_file(folder / _NAME, msgspec.json.encode([_as_it_is(path) for path in paths]))


def changed_text_files(folder: Path) -> Iterator[str]:
    """A line for each training file of a run that is another one now; of files that are gone, and of runs that wrote
    nothing down, nothing is said.
    """
    try:
        before = msgspec.json.decode((folder / _NAME).read_bytes(), type=list[_TextFile])
    except (OSError, msgspec.MsgspecError):
        return
    for file in before:
        if Path(file.path).exists() and _as_it_is(file.path) != file:
            yield f"{file.path} has changed since this run began, which goes on with the text that it had then."


def _as_it_is(path: str) -> _TextFile:
    status = Path(path).stat()
    return _TextFile(path, status.st_size, status.st_mtime_ns)
