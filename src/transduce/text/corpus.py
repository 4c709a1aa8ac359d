"""Parallel files → a stream of sentence pairs, in blocks or one by one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.text.counted import counted
from transduce.text.files import LineBlocks, LineNotes, count_lone_carriage_returns, is_decodable, read_lines
from transduce.text.vocabulary import without_lone_surrogates

# Lines that are read and worked on together. Prepared parts are made of whole blocks, so it is part of their format.
BLOCK_LINES = 8_192

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
    # Those of `source` that a machine wrote, from targets that people wrote.
    back_translated: tuple[str, ...] = ()

    @property
    def is_text_alone(self) -> bool:
        """Whether both sides of a pair are the same line."""
        return self.source == self.target

    @property
    def thing(self) -> str:
        """What a person calls one of its pairs."""
        return "line" if self.is_text_alone else "pair"


class PairBlock(NamedTuple):
    """Consecutive pairs of one file, as they are read and worked on together."""

    number: int
    """Counts the blocks of the whole corpus from 0."""
    path: str
    first_line: int
    """Where the first pair stands in its file, counted from 1."""
    sources: list[str]
    targets: list[str]

    def pair(self, row: int) -> Pair:
        """The pair at a row of the block."""
        return Pair(self.sources[row], self.targets[row], self.first_line + row, self.path)


class PairReader:
    """Streams a corpus in blocks of ``BLOCK_LINES`` pairs; the last block of each file is shorter.

    Which line belongs to which block depends on the files alone, so blocks can be dealt out to processes and machines.
    A block that is not ``wanted`` is only counted, which costs a small part of reading it.

    Raises (while it is iterated over) TransduceError naming file and line when a file is missing, empty, in another
    encoding or not well-formed, or when two sides differ in length.
    """

    def __init__(
        self, files: CorpusFiles, notes: LineNotes | None = None, wanted: Callable[[int], bool] | None = None
    ) -> None:
        self.notes = notes if notes is not None else LineNotes()
        self.blocks = 0
        """Blocks so far; after the last block, those of the corpus."""
        self.pairs = 0
        """Pairs so far, wanted or not."""
        self.checksums: dict[str, int] = {}
        """CRC-32 of the content of each file that was read to its end, whichever blocks were wanted."""
        self._files = files
        self._wanted = wanted or (lambda _: True)

    def __iter__(self) -> Iterator[PairBlock]:
        files = self._files
        _check_sides(files)
        if files.target:
            for source, target in zip(files.source, files.target, strict=True):
                yield from self._read_two_files(source, target)
        else:
            for path in files.source:
                yield from self._read_pair_file(path, _pair_format(path, files.format))

    def _read_two_files(self, source: str, target: str) -> Iterator[PairBlock]:
        line = 1
        with self._open(source) as left, self._open(target) as right:
            while True:
                wanted = self._wanted(self.blocks)
                sides = [side.read(BLOCK_LINES) if wanted else side.skip(BLOCK_LINES) for side in (left, right)]
                source_lines, target_lines = (side if isinstance(side, int) else len(side) for side in sides)
                if source_lines != target_lines:
                    before = line - 1
                    counts = (before + source_lines + _count_rest(left), before + target_lines + _count_rest(right))
                    raise _unequal(source, target, *counts)
                if not source_lines:
                    break
                if isinstance(sides[0], list) and isinstance(sides[1], list):
                    yield PairBlock(self.blocks, source, line, sides[0], sides[1])
                line = self._pass(line, source_lines)
            self.checksums |= {source: left.checksum, target: right.checksum}
        if line == 1:
            raise _empty(source)

    def _read_pair_file(self, path: str, format: Format) -> Iterator[PairBlock]:
        line = 1
        with self._open(path) as file:
            while True:
                if self._wanted(self.blocks):
                    lines = file.read(BLOCK_LINES)
                    count = len(lines)
                    if lines:
                        sources, targets = self._split(lines, path, line, format)
                        yield PairBlock(self.blocks, path, line, sources, targets)
                else:
                    count = file.skip(BLOCK_LINES)
                if not count:
                    break
                line = self._pass(line, count)
            self.checksums[path] = file.checksum
        if line == 1:
            raise _empty(path)

    def _open(self, path: str) -> LineBlocks:
        """Lines that are not UTF-8 are kept here, for the filters to drop and count."""
        return LineBlocks(path, self.notes, keep_undecodable=True)

    def _pass(self, line: int, count: int) -> int:
        """Counts a block; returns the line after it."""
        self.blocks += 1
        self.pairs += count
        return line + count

    def _split(self, lines: list[str], path: str, first_line: int, format: Format) -> tuple[list[str], list[str]]:
        """Both sides of lines that hold both."""
        sources, targets = [], []
        for number, text in enumerate(lines, first_line):
            where = f"{path}:{number}"
            source, target = _columns(text, where) if format == "tsv" else _object(text, where, self._files.languages)
            sources.append(source)
            targets.append(target)
        return sources, targets


def read_pairs(files: CorpusFiles, notes: LineNotes | None = None) -> Iterator[Pair]:
    """Stream the pairs in the files' order, in constant memory.

    ``notes`` counts removed carriage returns and byte order marks. Raises TransduceError as ``PairReader`` does.
    """
    for block in PairReader(files, notes):
        lines = range(block.first_line, block.first_line + len(block.sources))
        for source, target, line in zip(block.sources, block.targets, lines, strict=True):
            yield Pair(source, target, line, block.path)


def read_texts(path: str) -> Iterator[str]:
    """Stream the texts of a file of JSON lines, plain or gzip: of each object what stands under "text".

    Half an escape (\\ud83d), which no text file could hold, is read as U+FFFD. Raises TransduceError naming file and
    line where there is no such object, and as ``read_lines`` does.
    """
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue  # as after a line feed too many at the end
        where = f"{path}:{number}"
        record = _record(line, where)
        text = record.get("text")
        if not isinstance(text, str):
            raise TransduceError(
                f'{where}: the object needs the key "text" with text, but its keys are {_keys(record)}: rename the one '
                "that holds it."
            )
        yield without_lone_surrogates(text)
    if not number:
        raise _empty(path)


def format_of(path: str, chosen: Format) -> Format:
    """The format of a file: the one that was chosen, or what the name's suffix says."""
    if chosen != "auto":
        return chosen
    return _FORMAT_OF_SUFFIX.get(Path(path.removesuffix(".gz")).suffix.lower(), "lines")


def _check_sides(files: CorpusFiles) -> None:
    if not files.source:
        raise TransduceError("A corpus needs at least one source file, but none is given: name one.")
    if not files.target:
        return
    if len(files.source) != len(files.target):
        raise TransduceError(
            f"Source and target need equally many files, but there are {len(files.source)} and "
            f"{len(files.target)}: name them in the same order."
        )
    for path in (*files.source, *files.target):
        if files.format == "auto" and (found := format_of(path, "auto")) != "lines":
            raise TransduceError(
                f"{path} holds both sides by its name, as {found}, but target file {files.target[0]} is given: leave "
                "that out, or say `--set data.format=lines` where each file holds one side."
            )
    if files.format not in ("auto", "lines"):
        raise TransduceError(
            f"A {files.format} file holds both sides, but target file {files.target[0]} is given: leave it out."
        )


def _count_rest(file: LineBlocks) -> int:
    """Lines that were not read yet."""
    return sum(iter(lambda: file.skip(BLOCK_LINES), 0))


def _unequal(source: str, target: str, source_lines: int, target_lines: int) -> TransduceError:
    if not source_lines or not target_lines:
        return _empty(target if source_lines else source)
    shorter = source if source_lines < target_lines else target
    returns = count_lone_carriage_returns(shorter)
    remedy = (
        f"{shorter} has carriage returns without line feeds ({returns}), which end no line: replace them by line feeds."
        if returns
        else "find the line that is missing."
    )
    return TransduceError(
        f"Source and target must correspond line by line, but {source} has {counted(source_lines, 'line')} "
        f"and {target} has {target_lines:,}: {remedy}"
    )


def _empty(path: str) -> TransduceError:
    return TransduceError(f"{path} is empty, but a corpus needs at least one line: check the file.")


def _pair_format(path: str, chosen: Format) -> Format:
    """The format of a file of pairs."""
    chosen = format_of(path, chosen)
    if chosen == "lines":
        raise TransduceError(
            f"{path} holds one side only: name the file of the other side too; a file of pairs ends in .tsv or .jsonl, "
            "or say `--set data.format=tsv` (or jsonl)."
        )
    return chosen


def _columns(line: str, where: str) -> tuple[str, str]:
    if not line:
        return "", ""  # as after a line feed too many at the end; the filters count it
    columns = line.split("\t")
    if len(columns) != 2:
        raise TransduceError(
            f"{where}: a TSV line needs 2 columns, source and target, but this one has {len(columns)}: mend it, or "
            "keep these two columns of the file alone."
        )
    return columns[0], columns[1]


def _object(line: str, where: str, languages: tuple[str, str] | None) -> tuple[str, str]:
    if not line.strip():
        return "", ""  # as after a line feed too many at the end; the filters count it
    record = _record(line, where)
    nested = record.get("translation")
    if isinstance(nested, dict):
        record = nested
    # What was named goes first: under the others may stand where a pair comes from.
    wanted = [*([languages] if languages else []), ("source", "target")]
    for source_key, target_key in wanted:
        source, target = record.get(source_key), record.get(target_key)
        if isinstance(source, str) and isinstance(target, str):
            return source, target
    for source_key, target_key in wanted:
        source = record.get(source_key)
        if source_key in record and target_key in record:
            key = target_key if isinstance(source, str) else source_key
            raise TransduceError(
                f'{where}: under "{key}" stands {msgspec.json.encode(record[key]).decode():.40} in place of a text: '
                "mend it, or leave the line out."
            )
    names = " or ".join(f'"{source}" and "{target}"' for source, target in wanted)
    raise TransduceError(
        f"{where}: the object needs the keys {names} with text, but its keys are {_keys(record)}: if they are "
        "language codes, name the two by --languages (`data.languages`), else rename them."
    )


def _keys(record: dict[str, object]) -> str:
    return ", ".join(f'"{key}"' for key in record) or "none"


def _record(line: str, where: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        record = _record_with_surrogates(line)
        if record is None:
            raise TransduceError(f"{where}: the line is not a JSON object ({reason}): mend it.") from None
        return record


def _record_with_surrogates(line: str) -> dict[str, object] | None:
    """The object, where nothing but half an escape (\\ud83d) or bytes that are no UTF-8 stood in the way."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    texts = json.dumps(record, ensure_ascii=False)
    return record if isinstance(record, dict) and not is_decodable(texts) else None
