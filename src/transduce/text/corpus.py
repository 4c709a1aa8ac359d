"""Parallel files → a stream of sentence pairs."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.text.files import LineNotes, read_lines

Format = Literal["auto", "lines", "tsv", "jsonl"]
_FORMAT_OF_SUFFIX: dict[str, Format] = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class Pair(NamedTuple):
    """A source sentence, its target sentence, and where they stand: ``line`` counts from 1 in ``path``."""

    source: str
    target: str
    line: int
    path: str = ""


class CorpusFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where sentence pairs are read from: two files line by line, several such, or files of pairs."""

    # Files of the source side; files of pairs (TSV, JSON lines) stand here too.
    source: tuple[str, ...]
    # Files of the target side, as many as of the source side; empty for files of pairs.
    target: tuple[str, ...] = ()
    # lines: two files a pair of sides; tsv: two columns; jsonl: an object a line; auto: by the name's suffix.
    format: Format = "auto"
    # Source and target language, as keys of JSON objects: {"zh": …, "en": …}, alone or inside "translation".
    languages: tuple[str, str] | None = None


def read_pairs(files: CorpusFiles, notes: LineNotes | None = None) -> Iterator[Pair]:
    """Stream the pairs in the files' order, in constant memory.

    ``notes`` counts removed carriage returns and byte order marks. Raises TransduceError naming file and line
    when a file is missing, empty, not UTF-8 or not well-formed, or when two sides differ in length.
    """
    notes = notes if notes is not None else LineNotes()
    if not files.source:
        raise TransduceError("A corpus needs at least one source file, but none is given: name one.")
    if not files.target:
        for path in files.source:
            yield from _read_pair_file(path, _format_of(path, files.format), files.languages, notes)
        return
    if len(files.source) != len(files.target):
        raise TransduceError(
            f"Source and target need equally many files, but there are {len(files.source)} and "
            f"{len(files.target)}: name them in the same order."
        )
    if files.format not in ("auto", "lines"):
        raise TransduceError(
            f"A {files.format} file holds both sides, but target file {files.target[0]} is given: leave it out."
        )
    for source, target in zip(files.source, files.target, strict=True):
        yield from _read_two_files(source, target, notes)


def _read_two_files(source: str, target: str, notes: LineNotes) -> Iterator[Pair]:
    sources, targets = read_lines(source, notes), read_lines(target, notes)
    number = 0
    for number, (left, right) in enumerate(zip_longest(sources, targets), 1):
        if left is None or right is None:
            shorter, longer = number - 1, number + sum(1 for _ in (targets if left is None else sources))
            counts = (shorter, longer) if left is None else (longer, shorter)
            raise _unequal(source, target, *counts)
        yield Pair(left, right, number, source)
    if number == 0:
        raise _empty(source)


def _unequal(source: str, target: str, source_lines: int, target_lines: int) -> TransduceError:
    if not source_lines or not target_lines:
        return _empty(target if source_lines else source)
    return TransduceError(
        f"Source and target must correspond line by line, but {source} has {_lines(source_lines)} and "
        f"{target} has {target_lines}: find the line that is missing."
    )


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _empty(path: str) -> TransduceError:
    return TransduceError(f"{path} is empty, but a corpus needs at least one line: check the file.")


def _format_of(path: str, chosen: Format) -> Format:
    """The format of a file of pairs."""
    if chosen == "auto":
        suffix = Path(path.removesuffix(".gz")).suffix
        chosen = _FORMAT_OF_SUFFIX.get(suffix, "lines")
    if chosen == "lines":
        raise TransduceError(
            f"{path} holds one side only: name a target file too, or a file of pairs that ends in .tsv or .jsonl."
        )
    return chosen


def _read_pair_file(path: str, format: Format, languages: tuple[str, str] | None, notes: LineNotes) -> Iterator[Pair]:
    number = 0
    for number, line in enumerate(read_lines(path, notes), 1):
        where = f"{path}:{number}"
        source, target = _columns(line, where) if format == "tsv" else _object(line, where, languages)
        yield Pair(source, target, number, path)
    if number == 0:
        raise _empty(path)


def _columns(line: str, where: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise TransduceError(
            f"{where}: a TSV line needs 2 columns, source and target, but this one has {len(columns)}: mend it."
        )
    return columns[0], columns[1]


def _object(line: str, where: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    try:
        record = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise TransduceError(f"{where}: the line is not a JSON object ({error}): mend it.") from None
    nested = record.get("translation")
    if isinstance(nested, dict):
        record = nested
    wanted = [("source", "target"), *([languages] if languages else [])]
    for source_key, target_key in wanted:
        source, target = record.get(source_key), record.get(target_key)
        if isinstance(source, str) and isinstance(target, str):
            return source, target
    names = " or ".join(f'"{source}" and "{target}"' for source, target in wanted)
    found = ", ".join(f'"{key}"' for key in record) or "none"
    raise TransduceError(
        f"{where}: the object needs the keys {names} with text, but its keys are {found}: add them or give "
        "the languages that are its keys."
    )
