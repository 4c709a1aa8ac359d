"""Recognize the text files of a run by their content, so that a resumed run finds moved files and notices changes."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.text.corpus import CorpusFiles
from transduce.text.files import content_sha256

# A resumed run keeps the training text it has prepared, but reads the dev set again.


_NAME = "text_files.json"
_NAMES = ("source", "target", "dev_source", "dev_target", "back_translated")  # settings of `data.*`


class _TextFile(msgspec.Struct, frozen=True):
    """The properties of a text file at the start of a run, by which later changes are detected."""

    path: str
    """The path as the run's settings name it."""
    size: int
    """Size in bytes."""
    modified_at: int
    """Modification time in nanoseconds."""
    is_dev: bool = False
    """True for a file of the dev set that a resumed run reads again."""
    sha256: str = ""
    """SHA-256 of the uncompressed content; empty in runs that did not store it."""
    absolute: str = ""
    """The absolute path; empty in runs that did not store it."""


def store_text_file_states(folder: Path, data: DataSettings, dev: CorpusFiles | None) -> None:
    """Store the properties of a run's text files; with a prepared corpus, only those of the dev set.

    Args:
        folder: the run's folder; dev files that were written there are skipped.
        data: names the training files.
        dev: files of the dev set, if there are any.
    """
    training = () if data.prepared is not None else (*data.source, *data.target)
    dev_files = () if dev is None else (*dev.source, *dev.target)
    paths = dict.fromkeys((*training, *data.dev_source, *data.dev_target, *dev_files))
    outside = [path for path in paths if Path(path).is_file() and not Path(path).is_relative_to(folder)]
    files = [_file_state(path, is_dev=path in dev_files) for path in outside]
    write_file(folder / _NAME, msgspec.json.encode(files))


class StoredTextFiles:
    """The text files of a run as they were when it started, which are recognized by their content."""

    def __init__(self, folder: Path) -> None:
        """Read what `store_text_file_states` wrote to a run's folder; runs that wrote nothing have no files."""
        try:
            files = msgspec.json.decode((folder / _NAME).read_bytes(), type=list[_TextFile])
        except (OSError, msgspec.MsgspecError):
            files = []
        self._files = {file.path: file for file in files}

    def is_same(self, old: str, new: str) -> bool:
        """Return whether the file `new` has the content that the run's file `old` had at the start."""
        state = self._files.get(old)
        if not Path(new).is_file():
            return False
        if state is None or not state.sha256:
            return Path(old).exists() and Path(old).samefile(new)
        return content_sha256(new) == state.sha256

    def locate(self, settings: Settings, *, needs_dev: bool = True) -> Settings:
        """Return a run's settings, with absolute paths for text files that their relative paths no longer lead to.

        Args:
            settings: the run's settings.
            needs_dev: whether the files of the dev set must exist.

        Raises:
            TransduceError: a file of the dev set, which is read again, does not exist any more.
        """
        data = settings.data
        paths = {name: tuple(map(self._located, getattr(data, name))) for name in _NAMES}
        for path in (*paths["dev_source"], *paths["dev_target"]) if needs_dev else ():
            if path in self._files and self._files[path].is_dev and not Path(path).exists():
                raise TransduceError(
                    f"{path}, a file of the run's dev set, is not there any more: pass the dev set by --dev-source and "
                    "--dev-target (in Python: dev_source=, dev_target=) where it is now."
                )
        if data.corpora:
            data, paths = _with_located_corpora(data, paths), {}
        return msgspec.structs.replace(settings, data=msgspec.structs.replace(data, **paths))

    def follow(self, old: DataSettings, new: DataSettings, folder: Path) -> None:
        """Update the stored paths of a run's text files that were moved, for the next time that the run resumes.

        Args:
            old: settings with the paths at the start.
            new: settings with the paths now, in the same order.
            folder: the run's folder.
        """
        moved = dict[str, str]()
        for name in _NAMES:
            moved |= dict(zip(getattr(old, name), getattr(new, name), strict=True))
        files = {
            moved.get(path, path): msgspec.structs.replace(
                file, path=moved.get(path, path), absolute=str(Path(moved[path]).absolute())
            )
            if moved.get(path, path) != path
            else file
            for path, file in self._files.items()
        }
        if files != self._files:
            self._files = files
            write_file(folder / _NAME, msgspec.json.encode(list(files.values())))

    def _located(self, path: str) -> str:
        state = self._files.get(path)
        if state is None or not state.absolute or not Path(state.absolute).is_file():
            return path
        elsewhere = Path(path).absolute() != Path(state.absolute)
        return state.absolute if elsewhere and not self.is_same(path, path) else path

    def changes(self, data: DataSettings) -> Iterator[str]:
        """Yield a notice for each text file whose content has changed since the run started.

        Files that do not exist, and runs that stored no properties of their files, give no notice.
        """
        for path in dict.fromkeys((*data.source, *data.target, *data.dev_source, *data.dev_target)):
            file = self._files.get(path)
            if file is None or not _has_changed(file):
                continue
            yield f"{path} has changed since this run started" + (
                ": validations on the new text are not comparable with earlier ones, whose best model is kept as the "
                "best."
                if file.is_dev
                else ", which continues with the text as it was then."
            )

    def changed_training_files(self, data: DataSettings) -> list[str]:
        """Return the training files, those not in the dev set of `data`, whose content has changed since the start."""
        dev = {*data.dev_source, *data.dev_target, *(file.path for file in self._files.values() if file.is_dev)}
        return [path for path, file in self._files.items() if path not in dev and _has_changed(file)]


def _with_located_corpora(data: DataSettings, paths: dict[str, tuple[str, ...]]) -> DataSettings:
    """Return data settings with new paths in each corpus; `paths` lists the files of all corpora in order."""
    left = {name: iter(files) for name, files in paths.items()}
    corpora = tuple(
        msgspec.structs.replace(
            corpus,
            **{name: tuple(next(left[name]) for _ in getattr(corpus, name)) for name in _NAMES[:4]},
        )
        for corpus in data.corpora
    )
    return msgspec.structs.replace(data, corpora=corpora, source=(), target=(), dev_source=(), dev_target=())


def _file_state(path: str, *, is_dev: bool = False) -> _TextFile:
    status = Path(path).stat()
    absolute = str(Path(path).absolute())
    return _TextFile(path, status.st_size, status.st_mtime_ns, is_dev, content_sha256(path), absolute)


def _has_changed(file: _TextFile) -> bool:
    """Return whether a file exists, and its content differs from that at the run's start.

    The content is read only if the size or the modification time differs.
    """
    if not Path(file.path).exists():
        return False
    status = Path(file.path).stat()
    same_status = (status.st_size, status.st_mtime_ns) == (file.size, file.modified_at)
    return not same_status and (not file.sha256 or content_sha256(file.path) != file.sha256)
