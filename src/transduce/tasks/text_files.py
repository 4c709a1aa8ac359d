"""By what a run that goes on notices that its text files are others now.

It goes on with the training text that it has cut; the dev set is read anew.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.tasks.settings import DataSettings
from transduce.text.corpus import CorpusFiles

_NAME = "text_files.json"


class _TextFile(msgspec.Struct, frozen=True):
    """A file as it was when the run began."""

    path: str
    size: int
    """In bytes."""
    modified_at: int
    """In nanoseconds."""
    is_dev: bool = False
    """Of the dev set."""


def remember_text_files(folder: Path, data: DataSettings, dev: CorpusFiles | None) -> None:
    """Writes down what a run's files are like: of text that was prepared ahead, those of the dev set alone.

    Args:
        folder: of the run. A dev set that was written out there is not read from the user's files again.
        data: names the training files.
        dev: the dev set's files, where they were given.
    """
    training = () if data.prepared is not None else (*data.source, *data.target)
    files = [_as_it_is(path) for path in dict.fromkeys(training)]
    own = dict.fromkeys(() if dev is None else (*dev.source, *dev.target))
    files += [_as_it_is(path, is_dev=True) for path in own if not Path(path).is_relative_to(folder)]
    write_file(folder / _NAME, msgspec.json.encode(files))


def changed_text_files(folder: Path) -> Iterator[str]:
    """A line for each file of a run that is another one now; of files that are gone, and of runs that wrote nothing
    down, nothing is said.
    """
    try:
        before = msgspec.json.decode((folder / _NAME).read_bytes(), type=list[_TextFile])
    except (OSError, msgspec.MsgspecError):
        return
    for file in before:
        if not Path(file.path).exists() or _as_it_is(file.path, is_dev=file.is_dev) == file:
            continue
        yield f"{file.path} has changed since this run began" + (
            ": validations by the new text cannot be compared with those before, the best of which stays the best."
            if file.is_dev
            else ", which goes on with the text that it had then."
        )


def _as_it_is(path: str, *, is_dev: bool = False) -> _TextFile:
    status = Path(path).stat()
    return _TextFile(path, status.st_size, status.st_mtime_ns, is_dev)
