"""Convert the text of a run to files, and recognize text files by content, so that a resumed run notices changes."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from transduce.atomic_io import open_atomically, write_file
from transduce.errors import TransduceError
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.text.corpus import CorpusFiles, Format, format_of
from transduce.text.files import content_sha256
from transduce.text.pair_files import (
    Columns,
    ConversionOrigin,
    PairRow,
    TableFormat,
    languages_of,
    names_languages,
    origin_path,
    read_objects,
    read_table,
    table_format,
)

# --- conversion of tables, standard input and Python objects of sentence pairs to JSON lines ---


STANDARD_INPUT = "-"
_FOLDER = "text"
_OBJECTS = "-objects.jsonl"


def objects_file(folder: Path, name: str) -> Path:
    """Return the path of the file in a folder to which pairs of Python objects are written by `write_objects`.

    `name` is "source" for training pairs, and "dev_source" for the dev set.
    """
    return folder / f"{name}{_OBJECTS}"


def write_pairs(data: DataSettings, folder: Path, *, overwrite: bool) -> DataSettings:
    """Convert files of sentence pairs to JSON lines; return data settings that name the files to read.

    Files that training can read line by line are not converted. Standard input is first stored in a file. If `data` has
    no languages, those that the names of the columns stand for are set.

    Args:
        data: names the files. Training text of a prepared corpus is not converted again.
        folder: the folder of the run or of the prepared corpus, which gets the files.
        overwrite: True for a new run, in which converted files replace existing ones. False for a resumed run, in which
            training files are not converted again, and existing dev files stay as they are.

    Raises:
        TransduceError: a file cannot be read or has no such columns, standard input is empty or has no pairs, or a file
            that holds both sides is combined with a target file.
    """
    languages = list[tuple[str, str]]()
    converted: dict[str, tuple[str, ...]] = {}
    for name, target in (("source", data.target), ("dev_source", data.dev_target)):
        paths = getattr(data, name)
        if name == "dev_source" or (overwrite and data.prepared is None):
            # The pairs of a dev set have no weights.
            settings = data if name == "source" else msgspec.structs.replace(data, weight_column=None)
            paths = tuple(
                _converted(path, folder / _FOLDER / f"{name}-{number}.jsonl", settings, languages, overwrite=overwrite)
                for number, path in enumerate(paths, 1)
            )
        if paths != getattr(data, name) and target:
            raise TransduceError(
                f"{getattr(data, name)[0]} holds both sides, but target file {target[0]} is specified: leave that out."
            )
        converted[name] = paths
    if data.corpora:
        return _with_corpora(data, converted)
    if data.languages is None and languages:
        data = msgspec.structs.replace(data, languages=languages_of(languages[0]))
    return msgspec.structs.replace(data, **converted)


def _with_corpora(data: DataSettings, converted: dict[str, tuple[str, ...]]) -> DataSettings:
    """Return data settings in which converted files replace the files of the corpora.

    `converted` is a dict from "source" and "dev_source" to the files of all corpora, in the order of the corpora.
    """
    files, dev_files = iter(converted["source"]), iter(converted["dev_source"])
    corpora = tuple(
        msgspec.structs.replace(
            corpus,
            source=tuple(next(files) for _ in corpus.source),
            dev_source=tuple(next(dev_files) for _ in corpus.dev_source),
            languages=corpus.known_direction,
        )
        for corpus in data.corpora
    )
    return msgspec.structs.replace(data, corpora=corpora, source=(), target=(), dev_source=(), dev_target=())


def _converted(path: str, out: Path, data: DataSettings, found: list[tuple[str, str]], *, overwrite: bool) -> str:
    """Convert a file of pairs to JSON lines if training needs it, and return the path to read.

    The path is `out`, or `path` if no conversion is needed. Standard input is stored in a file first.

    Args:
        path: the file of pairs; "-" for standard input.
        out: the file to write.
        data: names the format and the columns.
        found: receives the names of the source and target columns, unless `data` names them.
        overwrite: write `out` even if it exists.

    Raises:
        TransduceError: the file cannot be read, lacks a column, or has no columns although `data` names some.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    if path == STANDARD_INPUT:
        path = store_standard_input(out, data.format) if overwrite else path
    more = {"weight": data.weight_column, "document": data.document_column}
    format = format_to_convert(path, data)
    if format is None:
        for name, column in more.items():
            if column is not None and format_of(path, data.format) != "jsonl":
                raise TransduceError(
                    f"`data.{name}_column` is {column}, but {path} is text without columns: leave it out, or write "
                    "the pairs to a table or to JSON lines."
                )
        return path
    if overwrite or not out.exists():
        columns = Columns(data.columns, data.languages, found.append, **more)
        is_lines = format in ("csv", "tsv", "jsonl")
        origin = ConversionOrigin(name, "line" if is_lines else "unit" if format == "tmx" else "row")
        _write(read_table(path, format, columns), out, origin)
    return str(out)


def format_to_convert(path: str, data: DataSettings) -> TableFormat | None:
    """Return the format of a file of pairs that training must convert to JSON lines; None if no conversion is needed.

    Args:
        path: the file, or a folder of a dataset.
        data: names the format, the columns and the languages, if they are set.
    """
    if path.endswith(_OBJECTS) and origin_path(Path(path)).exists():
        return None  # `data.columns` names the columns of the objects, not those of the file that was written
    more = [column for column in (data.weight_column, data.document_column) if column is not None]
    lines = format_of(path, data.format)
    has_columns = data.columns is not None or (lines == "tsv" and bool(more))
    if lines == "jsonl" and data.languages is None and not data.corpora and Path(path).is_file():
        has_columns = has_columns or names_languages(path, more)
    return table_format(path, data.format, has_columns=has_columns)


def store_standard_input(out: Path, format: Format) -> str:
    """Copy standard input to a file beside `out`, and return the file's path.

    The file is named `standard-input` and has the format's name as suffix. If the format is "auto" or "lines", the
    first line decides between JSON lines ("jsonl") and tab-separated pairs ("tsv").

    Raises:
        TransduceError: standard input is empty, or its first line is neither JSON nor tab-separated.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        raise TransduceError("Standard input is empty, but a corpus needs at least one pair: write pairs to it.")
    if format in ("auto", "lines"):
        format = "jsonl" if line.lstrip().startswith(b"{") else "tsv"
        if format == "tsv" and b"\t" not in line:
            raise TransduceError(
                "Standard input must hold pairs, tab-separated or as JSON lines, but its first line is neither: name "
                "files of sentences by `data.source` and `data.target`."
            )
    path = out.with_name(f"standard-input.{format}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(line)
        shutil.copyfileobj(sys.stdin.buffer, file)
    write_file(origin_path(path), ConversionOrigin("standard input").header)
    return str(path)


def write_objects(pairs: Any, data: DataSettings, out: Path, name: str) -> tuple[str, str] | None:
    """Write the pairs of Python objects to JSON lines, and return the languages in the columns' names.

    The result is a pair of language codes. The result is None if the names of the columns are no languages, or if
    `data` names the columns.

    Args:
        pairs: an iterable of pairs or mappings, or a table of pandas, Arrow or datasets.
        data: names the columns and the languages, if they are known.
        out: the file to write.
        name: the argument's name, for messages.

    Raises:
        TransduceError: the object holds no pairs of texts.
    """
    found = list[tuple[str, str]]()
    _write(_read_objects(pairs, data, name, found), out, ConversionOrigin(name, "row"))
    return languages_of(found[0]) if found else None


def refuse_other_objects(pairs: Any, data: DataSettings, path: Path, name: str) -> None:
    """Raise an error if Python objects hold other pairs than the file of a resumed run.

    Args:
        pairs: the object, as for `write_objects`.
        data: the settings with which the file was written.
        path: the file, which `write_objects` wrote when the run started.
        name: the argument's name, for messages.

    Raises:
        TransduceError: a pair differs, there are fewer or more pairs, or the object holds no pairs of texts.
    """
    lines = _encoded(_read_objects(pairs, data, name, []))
    with path.open("rb") as file:
        for number, (line, stored) in enumerate(zip_longest(lines, file), 1):
            if line != stored and (None in (line, stored) or json.loads(line) != json.loads(stored)):
                raise TransduceError(
                    f"{name}, row {number:,}: the pairs differ from those that this run started with ({path}): leave "
                    f"{name} out to resume with those, or train in another folder (out=)."
                )


def _read_objects(pairs: Any, data: DataSettings, name: str, found: list[tuple[str, str]]) -> Iterator[PairRow]:
    """Yield the pairs in Python objects; the list `found` receives the names of the source and target columns."""
    # The pairs of a dev set have no weights.
    weight = None if name == "`dev_pairs`" else data.weight_column
    return read_objects(pairs, Columns(data.columns, data.languages, found.append, weight, data.document_column), name)


def _write(pairs: Iterable[PairRow], out: Path, origin: ConversionOrigin) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(origin_path(out)) as numbers, open_atomically(out) as file:
        file.writelines(_encoded(origin.write(numbers, pairs)))


def _encoded(pairs: Iterable[PairRow]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for pair in pairs:
        record = {**pair.more, "source": pair.source, "target": pair.target}
        try:
            line = encoder.encode(record)
        except UnicodeEncodeError:  # a lone surrogate, which the filters count
            line = json.dumps(record).encode()
        yield line + b"\n"


# --- the state of a run's text files ---
# A resumed run keeps the training text that it has prepared, but reads the dev set again.


_NAME = "text_files.json"
_NAMES = ("source", "target", "dev_source", "dev_target", "back_translated")  # settings of `data.*`


class _TextFile(msgspec.Struct, frozen=True):
    """The properties of a text file at the start of a run, by which later changes of the file are detected."""

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
    """Store the size, time and content digest of each text file of a run.

    A resumed run notices changes by these. With a prepared corpus, only the files of the dev set are stored.

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
    """The text files of a run as they were when it started: their stored sizes, times and content digests."""

    def __init__(self, folder: Path) -> None:
        """Read what `store_text_file_states` wrote to a run's folder; without such a record, there are no files."""
        try:
            files = msgspec.json.decode((folder / _NAME).read_bytes(), type=list[_TextFile])
        except (OSError, msgspec.MsgspecError):
            files = []
        self._files = {file.path: file for file in files}

    def is_same(self, old: str, new: str) -> bool:
        """Return whether the file `new` has the content that the run's file `old` had at the start of the run.

        False if `new` is missing. Without a stored digest, `old` and `new` must be the same file.
        """
        state = self._files.get(old)
        if not Path(new).is_file():
            return False
        if state is None or not state.sha256:
            return Path(old).exists() and Path(old).samefile(new)
        return content_sha256(new) == state.sha256

    def has_other_content(self, old: str, new: str) -> bool:
        """Return whether a text file has changed since the start of the run.

        The content is read only if the size or the modification time differs. Without a stored digest, only the size is
        compared. The result is False if `new` is missing, or if nothing was stored about `old`.

        Args:
            old: the path at the start of the run.
            new: the path now.
        """
        file = self._files.get(old)
        if file is None or not Path(new).is_file():
            return False
        status = Path(new).stat()
        if status.st_size == file.size and (status.st_mtime_ns == file.modified_at or not file.sha256):
            return False
        return not file.sha256 or content_sha256(new) != file.sha256

    def locate(self, settings: Settings, *, needs_dev: bool = True) -> Settings:
        """Return a run's settings with paths of text files that are valid in this working directory.

        A relative path that no longer leads to the file is replaced by its absolute path.

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
                    f"{path}, a file of the run's dev set, is not there any more: set `data.dev_source` and "
                    "`data.dev_target` to where it is now."
                )
        if data.corpora:
            data, paths = _with_located_corpora(data, paths), {}
        return msgspec.structs.replace(settings, data=msgspec.structs.replace(data, **paths))

    def follow(self, old: DataSettings, new: DataSettings, folder: Path) -> None:
        """Store the new paths of text files that were moved, for the next time that the run resumes.

        Args:
            old: settings with the paths at the start.
            new: settings with the paths now, in the same order.
            folder: the run's folder.
        """
        moved = dict[str, str]()
        for name in _NAMES:
            moved |= dict(zip(getattr(old, name), getattr(new, name), strict=True))
        files = dict[str, _TextFile]()
        for path, file in self._files.items():
            to = moved.get(path, path)
            absolute = file.absolute if to == path else str(Path(to).absolute())
            files[to] = msgspec.structs.replace(file, path=to, absolute=absolute)
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
        """Yield a notice, a sentence, for each text file whose content has changed since the run started.

        Files that do not exist, and runs that stored no properties of their files, give no notice.
        """
        for path in dict.fromkeys((*data.source, *data.target, *data.dev_source, *data.dev_target)):
            if not self.has_other_content(path, path):
                continue
            yield f"{path} has changed since this run started" + (
                ": validations on the new text are not comparable with earlier ones, whose best model is kept as the "
                "best."
                if self._files[path].is_dev
                else ", which continues with the text as it was then."
            )

    def changed_training_files(self, data: DataSettings) -> list[str]:
        """Return a list of the paths of training files whose content has changed since the run started.

        Files that are in the dev set, or were at the start, are left out. `data` names the present files.
        """
        dev = {*data.dev_source, *data.dev_target, *(file.path for file in self._files.values() if file.is_dev)}
        return [path for path in self._files if path not in dev and self.has_other_content(path, path)]


def _with_located_corpora(data: DataSettings, paths: dict[str, tuple[str, ...]]) -> DataSettings:
    """Return the data settings of a run with several corpora, with new paths in each corpus.

    `paths` is a dict from a setting, such as "source", to the new paths of all corpora, in the order of the corpora.
    """
    left = {name: iter(files) for name, files in paths.items()}
    corpora = tuple(
        msgspec.structs.replace(
            corpus,
            **{name: tuple(next(left[name]) for _ in getattr(corpus, name)) for name in _NAMES[:4]},
        )
        for corpus in data.corpora
    )
    return msgspec.structs.replace(data, corpora=corpora, source=(), target=(), dev_source=(), dev_target=())


def _file_state(path: str, *, is_dev: bool) -> _TextFile:
    status = Path(path).stat()
    absolute = str(Path(path).absolute())
    return _TextFile(path, status.st_size, status.st_mtime_ns, is_dev, content_sha256(path), absolute)
