"""Convert tables, standard input and Python objects of sentence pairs to JSON lines in a run's folder."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from transduce.atomic_io import open_atomically
from transduce.errors import TransduceError
from transduce.tasks.settings.structs import DataSettings
from transduce.text.corpus import Format, format_of, is_header
from transduce.text.pair_files import Columns, PairRow, read_objects, read_table, table_format

STANDARD_INPUT = "-"
_FOLDER = "text"


def write_pairs(data: DataSettings, folder: Path, *, overwrite: bool) -> DataSettings:
    """Write the pairs of tables and of standard input to JSON lines, and return settings that name these files.

    Args:
        data: names the files. Training text of a prepared corpus is not written again.
        folder: the folder of the run or of the prepared corpus.
        overwrite: True for a new run; a resumed run reads only its dev text, which is written already.

    Raises:
        TransduceError: a file cannot be read or has no such columns, or a table is combined with a target file.
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
    if data.languages is None and languages and _are_languages(languages[0]):
        data = msgspec.structs.replace(data, languages=languages[0])
    return msgspec.structs.replace(data, **converted)


def _with_corpora(data: DataSettings, converted: dict[str, tuple[str, ...]]) -> DataSettings:
    """Return data settings in which converted files, in order, replace the files of all corpora."""
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


def _are_languages(names: tuple[str, str]) -> bool:
    usual = ("source", "target", "src", "tgt", "trg", "text", "label", "input", "output")
    return is_header(names) and not any(name.casefold() in usual for name in names)


def _converted(path: str, out: Path, data: DataSettings, found: list[tuple[str, str]], *, overwrite: bool) -> str:
    """Convert a table of pairs, or standard input, to JSON lines in `out`, and return the path to read pairs from.

    Args:
        path: the file; a file that needs no conversion is returned as it is.
        out: the file to write.
        data: names the format and the columns.
        found: receives the names of the columns of source and target, if they are searched for.
        overwrite: write `out` even if it exists.
    """
    if path == STANDARD_INPUT:
        path = _store_standard_input(out, data.format) if overwrite else path
    more = {"weight": data.weight_column, "document": data.document_column}
    lines = format_of(path, data.format)
    has_columns = data.columns is not None or (lines == "tsv" and any(more.values()))
    format = table_format(path, data.format, has_columns=has_columns)
    if format is None:
        for name, column in more.items():
            if column is not None and lines != "jsonl":
                raise TransduceError(
                    f"`data.{name}_column` is {column}, but {path} is text without columns: leave it out, or write "
                    "the pairs to a table or to JSON lines."
                )
        return path
    if overwrite or not out.exists():
        columns = Columns(data.columns, data.languages, found.append, **more)
        _write(read_table(path, format, columns), out)
    return str(out)


def _store_standard_input(out: Path, format: Format) -> str:
    """Copy standard input to a file beside `out`, and return its path, whose suffix is the format of the pairs."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise TransduceError("Standard input is empty, but a corpus needs at least one pair: write pairs to it.")
    if format in ("auto", "lines"):
        format = "jsonl" if line.lstrip().startswith(b"{") else "tsv"
        if format == "tsv" and b"\t" not in line:
            raise TransduceError(
                "Standard input must hold pairs, tab-separated or as JSON lines, but its first line is neither: name "
                "files of sentences by --source and --target."
            )
    path = out.with_name(f"standard-input.{format}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(line)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return str(path)


def write_objects(pairs: Any, data: DataSettings, out: Path, name: str) -> tuple[str, str] | None:
    """Write the pairs of Python objects to JSON lines; return the languages that their columns name, if any.

    Args:
        pairs: an iterable of pairs or mappings, or a table of pandas, Arrow or datasets.
        data: names the columns and the languages, if they are known.
        out: the file to write.
        name: the argument's name, for messages.

    Raises:
        TransduceError: the object holds no pairs of texts.
    """
    found = list[tuple[str, str]]()
    _write(_read_objects(pairs, data, name, found), out)
    return found[0] if found and _are_languages(found[0]) else None


def refuse_other_objects(pairs: Any, data: DataSettings, path: Path, name: str) -> None:
    """Refuse pairs of Python objects that differ from those that `write_objects` wrote to a file.

    Args:
        pairs: the object, as for `write_objects`.
        data: the settings with which the file was written.
        path: the file.
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
    """Yield the pairs of Python objects; `found` receives the names of the columns of source and target."""
    # The pairs of a dev set have no weights.
    weight = None if name == "`dev_pairs`" else data.weight_column
    return read_objects(pairs, Columns(data.columns, data.languages, found.append, weight, data.document_column), name)


def _write(pairs: Iterable[PairRow], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_atomically(out) as file:
        file.writelines(_encoded(pairs))


def _encoded(pairs: Iterable[PairRow]) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for pair in pairs:
        record = {**pair.more, "source": pair.source, "target": pair.target}
        try:
            line = encoder.encode(record)
        except UnicodeEncodeError:  # a lone surrogate, which the filters count
            line = json.dumps(record).encode()
        yield line + b"\n"
