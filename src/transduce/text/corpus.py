"""Read parallel corpora: stream sentence pairs from files of several formats, in blocks or one by one."""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from transduce.errors import TransduceError, count_noun, shell_word, shown_names
from transduce.text.files import (
    LineBlocks,
    LineNotes,
    count_lone_carriage_returns,
    is_decodable,
    is_spreadsheet,
    missing_file,
    read_lines,
    spreadsheet_error,
    uncompressed_name,
)
from transduce.text.vocabulary import replace_lone_surrogates

# Lines that are processed together. Prepared parts consist of complete blocks, so this is part of their format.
BLOCK_LINES = 8_192

Format = Literal["auto", "lines", "tsv", "jsonl"]
_FORMAT_OF_SUFFIX: dict[str, Format] = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


class Pair(NamedTuple):
    """A source and a target sentence, with the path of their file and the number of their line in it, from 1."""

    source: str
    target: str
    line: int
    path: str = ""


class CorpusFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The files of a corpus of sentence pairs, line-aligned or with pairs on each line, and how they are read."""

    source: tuple[str, ...]
    """Paths of the files with source sentences, or with pairs (TSV, JSON lines)."""
    target: tuple[str, ...] = ()
    """Paths of the files with target sentences, one for each path of `source` and in the same order; empty if the files
    of `source` hold pairs.
    """
    format: Format = "auto"
    """`lines`: one file per side; `tsv`: two columns; `jsonl`: one JSON object per line; `auto`: by the file suffix."""
    languages: tuple[str, str] | None = None
    """The pair of source and target language code, which are also keys of JSON objects {"zh": …, "en": …}, alone or
    inside "translation"; None: unknown.
    """
    strict: bool = False
    """True if a table line without exactly two columns is an error; otherwise such lines are skipped and counted."""
    back_translated: tuple[str, ...] = ()
    """Those files of `source` whose texts were translated by a machine from human-written targets
    (back-translation).
    """
    directions: tuple[tuple[str, str], ...] = ()
    """A pair of source and target language code for each file of `source`, if the corpus has several language pairs.
    The token of the target language then starts every source sentence. Empty: a single language pair.
    """
    line_feeds: bool = False
    """True if texts keep the line feeds of JSON strings, for a vocabulary with a token for them; if false, these become
    spaces.
    """
    tags: tuple[str, ...] = ()
    """The tag of each file of `source`, whose token starts every source sentence of the file; an empty text for files
    without a tag.
    """
    loss_weights: tuple[float, ...] = ()
    """For each file of `source`, the factor of its pairs' weights in the loss; an empty tuple: 1 for all files."""
    weight_field: str | None = None
    """The field of JSON lines that holds the weight of a pair in the loss; None: pairs have no weights."""
    document_field: str | None = None
    """The field of JSON lines that names the document of a pair; None: blank lines separate documents."""
    has_documents: bool = False
    """True if pairs of one document are consecutive, so that a pair may be trained with earlier pairs of its document
    as context.
    """
    ignored_fields: tuple[str, ...] = ()
    """Fields of JSON lines that are not read and not reported, such as the weights of a dev set."""

    @property
    def grouped_files(self) -> int:
        """The number of files if validation pairs are chosen from each file separately; otherwise 0.

        They are chosen so if the files have different language pairs or tags.
        """
        return len(self.source) if self.directions or self.tags else 0

    @property
    def has_weights(self) -> bool:
        """True if some pairs may have a weight other than 1 in the loss."""
        return self.weight_field is not None or any(weight != 1.0 for weight in self.loss_weights)

    @property
    def is_text_alone(self) -> bool:
        """True if source and target are the same files, so that both sides of a pair are the same line."""
        return self.source == self.target

    @property
    def noun(self) -> str:
        """The noun for one example in messages: "line" for text alone, otherwise "pair"."""
        return "line" if self.is_text_alone else "pair"


class PairBlock(NamedTuple):
    """At most 8,192 consecutive pairs of one corpus file, which are read, filtered and tokenized together."""

    number: int
    """The index of the block in the whole corpus, from 0."""
    path: str
    first_line: int
    """The number, from 1, of the line in the file that holds the first pair of the block."""
    sources: list[str]
    targets: list[str]
    file: int = 0
    """The index of the block's file in `CorpusFiles.source`."""
    weights: list[float] | None = None
    """The weight of each pair of the block in the loss; None: the corpus has no weight field."""
    documents: list[str] | None = None
    """The name of the document of each pair of the block; None: the corpus has no document field."""

    def pair(self, row: int) -> Pair:
        """Return the pair at an index of the block as a `Pair`, with its file and line number."""
        return Pair(self.sources[row], self.targets[row], self.first_line + row, self.path)


# Lines that are not UTF-8 are kept, so that filters drop and count them.
_open = partial(LineBlocks, keep_undecodable=True)


class PairReader:
    """An iterable over the blocks (`PairBlock`) of a corpus.

    A block has 8,192 pairs; the last block of a file may have fewer. The blocks depend only on the files, so that
    processes and machines can divide them among each other. The function ``wanted`` takes the index of a block. If it
    returns False, the block is only counted, which is much faster than reading it.

    Iteration raises TransduceError, with file and line, if a file is missing, empty, in another encoding or malformed,
    or if the two sides differ in length.
    """

    def __init__(
        self, files: CorpusFiles, notes: LineNotes | None = None, wanted: Callable[[int], bool] | None = None
    ) -> None:
        self.notes = notes if notes is not None else LineNotes()
        self.blocks = 0
        """The number of blocks read or skipped so far; after iteration, the number of blocks in the corpus."""
        self.pairs = 0
        """The number of pairs so far, including those of skipped blocks and lines that are no pairs."""
        self.checksums: dict[str, int] = {}
        """The CRC-32 of the content of each file read to its end, a dict by path."""
        self._files = files
        self._wanted = wanted or (lambda _: True)

    def __iter__(self) -> Iterator[PairBlock]:
        files = self._files
        _check_sides(files)
        if files.target:
            for file, (source, target) in enumerate(zip(files.source, files.target, strict=True)):
                yield from self._read_two_files(source, target, file)
        else:
            for file, path in enumerate(files.source):
                yield from self._read_pair_file(path, _pair_format(path, files.format), file)

    def _read_two_files(self, source: str, target: str, file: int) -> Iterator[PairBlock]:
        line = 1
        # Of text alone, which is both sides, each line is counted once in the notes.
        notes = LineNotes() if source == target else self.notes
        with _open(source, self.notes) as left, _open(target, notes) as right:
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
                    yield PairBlock(self.blocks, source, line, sides[0], sides[1], file)
                line = self._count_block(line, source_lines)
            self.checksums |= {source: left.checksum, target: right.checksum}
        if line == 1:
            raise _empty(source)

    def _read_pair_file(self, path: str, format: Format, file: int) -> Iterator[PairBlock]:
        line = 1
        layout = find_layout(path, self._languages(file)) if format == "tsv" else TableLayout()
        if layout.is_quoted:
            self.notes.quoted_files.append(path)
        if format == "tsv" and (doubtful := find_doubtful_header(path, layout)) is not None:
            self.notes.first_pairs.append((path, doubtful))
        with _open(path, self.notes) as stream:
            while True:
                if self._wanted(self.blocks):
                    lines = stream.read(BLOCK_LINES)
                    count = len(lines)
                    if lines and format == "tsv":
                        yield PairBlock(self.blocks, path, line, *self._split_table(lines, line, layout, file), file)
                    elif lines:
                        yield self._split_objects(lines, line, file)
                else:
                    count = stream.skip(BLOCK_LINES)
                if not count:
                    break
                line = self._count_block(line, count)
            self.checksums[path] = stream.checksum
        if line == 1:
            raise _empty(path)

    def _count_block(self, line: int, count: int) -> int:
        """Add a block to the number of blocks and its pairs to the number of pairs, and return the next line.

        Args:
            line: the number of the block's first line.
            count: the number of pairs in the block, which may have been skipped.
        """
        self.blocks += 1
        self.pairs += count
        return line + count

    def _languages(self, file: int) -> tuple[str, str] | None:
        return self._files.directions[file] if self._files.directions else self._files.languages

    def _split_table(
        self, lines: list[str], first_line: int, layout: "TableLayout", file: int
    ) -> tuple[list[str], list[str]]:
        """Split tab-separated lines of a file into a list of sources and a list of targets.

        A header, or a line that is no pair, is replaced by a placeholder text on both sides. The notes count it, and
        the filters drop it later.

        Raises:
            TransduceError: more than half of the lines do not have two columns; or any line, if the corpus is strict.
        """
        path = self._files.source[file]
        pairs = [
            (HEADER, HEADER)
            if number == 1 and layout.has_header
            else _columns(text, f"{path}:{number}", layout, strict=self._files.strict)
            for number, text in enumerate(lines, first_line)
        ]
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        malformed = sources.count(MALFORMED)
        self.notes.skipped_lines += malformed + sources.count(HEADER)
        if 2 * malformed > len(sources):
            row = sources.index(MALFORMED)
            raise _wrong_columns(f"{path}:{first_line + row}", lines[row].count("\t") + 1)
        return sources, targets

    def _with_line_feeds(self, source: str, target: str) -> tuple[str, str]:
        """Return a pair of texts with spaces for line feeds, unless the vocabulary has a token for line feeds.

        Texts with line feeds are counted in the notes.
        """
        found = ("\n" in source) + ("\n" in target)
        if self._files.line_feeds:
            self.notes.kept_line_feeds += found
            return source, target
        self.notes.line_feeds += found
        return (source.replace("\n", " "), target.replace("\n", " ")) if found else (source, target)

    def _split_objects(self, lines: list[str], first_line: int, file: int) -> PairBlock:
        """Return a `PairBlock` of JSON lines, with weights and documents if the corpus has fields for these."""
        files, path = self._files, self._files.source[file]
        keys = _Keys(self._languages(file), files.weight_field, files.document_field, files.ignored_fields)
        records = [_object(text, f"{path}:{number}", keys, self.notes) for number, text in enumerate(lines, first_line)]
        pairs = [self._with_line_feeds(record.source, record.target) for record in records]
        return PairBlock(
            self.blocks,
            path,
            first_line,
            [source for source, _ in pairs],
            [target for _, target in pairs],
            file,
            None if files.weight_field is None else [record.weight for record in records],
            None if files.document_field is None else [record.document for record in records],
        )


def read_pairs(files: CorpusFiles, notes: LineNotes | None = None) -> Iterator[Pair]:
    """Yield the pairs of a corpus as `Pair`, in the order of the files, in constant memory.

    ``notes`` counts what is removed or replaced while reading. Lines of tables that are not pairs are left out. Errors
    are those of ``PairReader``.
    """
    for block in PairReader(files, notes):
        lines = range(block.first_line, block.first_line + len(block.sources))
        for source, target, line in zip(block.sources, block.targets, lines, strict=True):
            if source not in (MALFORMED, HEADER):
                yield Pair(source, target, line, block.path)


def read_texts(path: str) -> Iterator[str]:
    r"""Yield the texts under the key "text" of a file of JSON lines, plain or compressed; blank lines are skipped.

    A lone surrogate escape (\ud83d), which no text file could hold, is read as U+FFFD.

    Raises:
        TransduceError: a line is not an object with a text, or the file cannot be read.
    """
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue  # an extra line feed at the end, for example
        where = f"{path}:{number}"
        record = read_record(line, where)
        text = record.get("text")
        if not isinstance(text, str):
            raise TransduceError(
                f'{where}: the object needs the key "text" with text, but its keys are {_keys(record)}: rename the one '
                "that holds it."
            )
        yield replace_lone_surrogates(text)
    if not number:
        raise _empty(path)


def format_of(path: str, chosen: Format) -> Format:
    """Return the format of a file as text, such as "tsv".

    This is the chosen format. For "auto", the file's suffix decides, and an unknown suffix means "lines". A suffix of
    compression, such as .gz, is ignored.
    """
    if chosen != "auto":
        return chosen
    return _FORMAT_OF_SUFFIX.get(uncompressed_name(path).suffix.lower(), "lines")


def _check_sides(files: CorpusFiles) -> None:
    if not files.source:
        raise TransduceError("A corpus needs at least one source file, but none is specified: name one.")
    if not files.target:
        return
    if len(files.source) != len(files.target):
        raise TransduceError(
            f"Source and target need equally many files, but there are {len(files.source)} and "
            f"{len(files.target)}: name them in the same order."
        )
    for path in (*files.source, *files.target):
        if files.format == "auto" and (format := format_of(path, "auto")) != "lines":
            raise TransduceError(
                f"{path} holds both sides by its name, as {format}, but target file {files.target[0]} is specified: "
                "leave that out, or pass `--set data.format=lines` if each file holds one side."
            )
    if files.format not in ("auto", "lines"):
        raise TransduceError(
            f"A {files.format} file holds both sides, but target file {files.target[0]} is specified too: leave it out."
        )


def _count_rest(file: LineBlocks) -> int:
    """Read an open file to its end without decoding it, and return the number of lines that were left."""
    return sum(iter(lambda: file.skip(BLOCK_LINES), 0))


def _unequal(source: str, target: str, source_lines: int, target_lines: int) -> TransduceError:
    if not source_lines or not target_lines:
        return _empty(target if source_lines else source)
    shorter = source if source_lines < target_lines else target
    returns = count_lone_carriage_returns(shorter)
    remedy = (
        f"{shorter} has carriage returns without line feeds ({returns}), which end no line: replace them by line feeds."
        if returns
        else f"find the line that is missing; of translations, `transduce doctor --source {shell_word(source)} "
        f"--target {shell_word(target)}` shows where."
    )
    return TransduceError(
        f"Source and target must correspond line by line, but {source} has {count_noun(source_lines, 'line')} "
        f"and {target} has {target_lines:,}: {remedy}"
    )


def _empty(path: str) -> TransduceError:
    return TransduceError(f"{path} is empty, but a corpus needs at least one line: check the file.")


def _pair_format(path: str, chosen: Format) -> Format:
    """Return the format of a file of pairs, "tsv" or "jsonl".

    This is the chosen format or, for "auto", the format of the file's suffix.

    Raises:
        TransduceError: the file's name says that it holds one side only, or the file does not exist.
    """
    chosen = format_of(path, chosen)
    if chosen == "lines":
        if path != "-" and not Path(path).exists():
            raise missing_file(path)
        if is_spreadsheet(path):
            raise spreadsheet_error(path)
        raise TransduceError(
            f"{path} holds one side only: name the file of the other side too, or a task of one text (--task); a file "
            "of pairs ends in .tsv, .jsonl, .csv, .parquet, .arrow or .tmx, or pass `--set data.format=tsv` (or jsonl)."
        )
    return chosen


# --- tables ---
# Tab-separated pairs, with or without a header and the quotes of CSV.


# Placeholder texts for table lines that are not pairs, which the filters count. No file contains a lone surrogate.
MALFORMED, HEADER = "\udffe", "\udfff"
_SAMPLE_LINES = 1_000
_MIN_OTHER_ROWS = 5
_SOURCE_NAMES = ("source", "src", "source_text", "source_sentence", "original", "input", "question", "text", "sentence")
_TARGET_NAMES = ("target", "tgt", "trg", "target_text", "target_sentence", "translation", "output", "answer", "label")
_CHINESE_NAMES = "原文 源文 源语言 文本 句子 译文 目标语言 标签 类别 上联 下联 上句 下句 输入 输出 问题 答案"


class TableLayout(NamedTuple):
    """The properties of a file of tab-separated pairs that decide how its lines are split."""

    has_header: bool = False
    """True if the first line names the columns."""
    is_quoted: bool = False
    """True if fields are quoted as in CSV, where a quote inside a field is doubled."""


def find_layout(path: str, languages: tuple[str, str] | None = None) -> TableLayout:
    """Find out whether a file of tab-separated pairs has a header and quoted fields.

    The first 1,000 lines decide. Fields count as quoted, as in CSV, under three conditions:

    * Each field that begins with a quote ends with a quote.
    * All fields begin with a quote, or each quoted field contains a doubled quote or a tab.
    * Splitting at every tab does not give more lines with two columns.

    The first line is a header if both columns are language codes, names of languages, or usual names of columns.

    Args:
        path: the file.
        languages: the codes of the corpus's languages, which count as names of columns, too; None: unknown.

    Returns:
        A `TableLayout`.

    Raises:
        TransduceError: the file cannot be read.
    """
    lines = [line for line in islice(read_lines(path, keep_undecodable=True), _SAMPLE_LINES) if line]
    rows = [_QUOTED_COLUMN.findall(line) for line in lines]
    fields = [field for row in rows for field in row]
    quoted = [field for field in fields if field.startswith('"')]
    needed = all('""' in field[1:-1] or "\t" in field for field in quoted)
    is_quoted = bool(quoted) and all(map(_QUOTED.fullmatch, quoted)) and (needed or len(quoted) == len(fields))
    plain_rows = [line.split("\t") for line in lines]
    if sum(len(row) == 2 for row in rows) < sum(len(row) == 2 for row in plain_rows):
        is_quoted = False
    rows = rows if is_quoted else plain_rows
    first = [field.strip('"') for field in rows[0]] if rows else []
    return TableLayout(len(first) == 2 and is_header((first[0], first[1]), languages), is_quoted)


def find_doubtful_header(path: str, layout: TableLayout) -> str | None:
    """Return the first row of a file of tab-separated pairs if it may be an unknown header.

    The row is read as a pair. It is doubtful if both texts have only word characters and spaces and are much shorter
    than those of the other rows. The result is the row as "source / target", otherwise None.
    """
    if layout.has_header or layout.is_quoted:
        return None
    first, *others = [line.split("\t") for line in islice(read_lines(path, keep_undecodable=True), _SAMPLE_LINES)] or [
        []
    ]
    pairs = [row for row in others if len(row) == 2]
    if len(first) != 2 or len(pairs) < _MIN_OTHER_ROWS or not all(re.fullmatch(r"\w[\w ]*", text) for text in first):
        return None
    usual = (sorted(len(row[side]) for row in pairs)[len(pairs) // 2] for side in (0, 1))
    is_short = all(2 * len(text) < length for text, length in zip(first, usual, strict=True))
    return " / ".join(first) if is_short else None


def is_header(names: tuple[str, str], languages: tuple[str, str] | None = None) -> bool:
    """Return whether the two fields of a table's first line are column names, not texts.

    Column names are language codes, names of languages, and usual names such as "source".

    Args:
        names: the two fields.
        languages: the codes of the corpus's languages, which count as column names even if they are unknown codes.
    """
    first = tuple(name.strip().casefold() for name in names)
    codes = tuple(map(column_language, first))
    return first[0] != first[1] and (
        all(name in (*_SOURCE_NAMES, *_TARGET_NAMES, *_CHINESE_NAMES.split()) for name in first)
        or (None not in codes and codes[0] != codes[1])
        or (languages is not None and first == tuple(code.casefold() for code in languages))
    )


def column_language(name: str) -> str | None:
    """Return the language code, in lower case, that a column's name stands for.

    The name may be a code or the name of a language: zh for 中文. The result is None if it is neither.
    """
    name = name.strip().casefold()
    return name if _LANGUAGE_CODE.fullmatch(name) else _CODE_OF_LANGUAGE.get(name)


_CODE_OF_LANGUAGE = {
    name: code
    for code, names in {
        "zh": "chinese|中文|汉语|汉文|简体中文|繁体中文",
        "en": "english|英文|英语",
        "de": "german|deutsch|德文|德语",
        "fr": "french|français|法文|法语",
        "es": "spanish|español|西班牙文|西班牙语",
        "ja": "japanese|日本語|日文|日语",
        "ko": "korean|한국어|韩文|韩语",
        "ru": "russian|русский|俄文|俄语",
    }.items()
    for name in names.split("|")
}
_QUOTED = re.compile('"(?:[^"]|"")*"')
_LANGUAGE_CODE = re.compile("[a-z]{2,3}(?:[-_](?:[a-z]{2}|[a-z]{4}))?")


def _columns(line: str, where: str, layout: TableLayout, *, strict: bool) -> tuple[str, str]:
    if not line:
        return "", ""  # an extra line feed at the end, for example; the filters count it
    columns = _QUOTED_COLUMN.findall(line) if layout.is_quoted and '"' in line else line.split("\t")
    if len(columns) != 2:
        if strict:
            raise _wrong_columns(where, len(columns))
        return MALFORMED, MALFORMED
    if layout.is_quoted:
        columns = [_unquoted(column) for column in columns]
    return columns[0], columns[1]


_QUOTED_COLUMN = re.compile('(?:^|(?<=\t))("(?:[^"]|"")*"(?=\t|$)|[^\t]*)')


def _unquoted(column: str) -> str:
    return column[1:-1].replace('""', '"') if _QUOTED.fullmatch(column) else column


def _wrong_columns(where: str, count: int) -> TransduceError:
    return TransduceError(
        f"{where}: a TSV line needs 2 columns, source and target, but this one has {count}: fix it, or choose two "
        "columns by number in `data.columns`, such as 1 and 2."
    )


# --- JSON lines ---


USUAL_COLUMNS = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("text", "label"))
"""Usual names, in pairs, of the columns or keys of source and target, without those of languages."""


class _Keys(NamedTuple):
    """The keys of JSON objects that hold the texts, weight and document of a pair, and the keys to ignore."""

    languages: tuple[str, str] | None
    weight: str | None
    document: str | None
    ignored: tuple[str, ...]

    @property
    def more(self) -> tuple[str, ...]:
        """The keys that a JSON object may have besides those of its texts, as a tuple.

        These are the keys of weight and document, and ignored keys.
        """
        return (*filter(None, (self.weight, self.document)), *self.ignored)


class _Record(NamedTuple):
    """The content of a line of JSON: a pair of texts, the weight of the pair in the loss, and its document's name."""

    source: str
    target: str
    weight: float = 1.0
    document: str = ""


def _object(line: str, where: str, keys: _Keys, notes: LineNotes) -> _Record:
    if not line.strip():
        return _Record("", "")  # an extra line feed at the end, for example; the filters count it
    record = whole = read_record(line, where)
    nested = record.get("translation")
    if isinstance(nested, dict):
        _note_unused(record, ("translation", *keys.more), where, notes)
        record = nested
    # The specified keys come first, as "source" may also hold a pair's origin.
    key_pairs = [*([keys.languages] if keys.languages else []), *USUAL_COLUMNS]
    for source_key, target_key in key_pairs:
        source, target = record.get(source_key), as_label(target_key, record.get(target_key))
        if isinstance(source, str) and isinstance(target, str):
            _note_unused(record, (source_key, target_key, *keys.more), where, notes)
            weight = 1.0 if keys.weight is None else parse_weight(_field(whole, keys.weight, where), keys.weight, where)
            document = "" if keys.document is None else str(_field(whole, keys.document, where))
            return _Record(source, target, weight, document)
    for source_key, target_key in key_pairs:
        source = record.get(source_key)
        if source_key in record and target_key in record:
            key = target_key if isinstance(source, str) else source_key
            raise TransduceError(
                f'{where}: under "{key}" stands {msgspec.json.encode(record[key]).decode():.40} instead of a text: '
                "fix it, or leave the line out."
            )
    expected = [*([keys.languages] if keys.languages else []), USUAL_COLUMNS[0]]
    names = " or ".join(f'"{source}" and "{target}"' for source, target in expected)
    raise TransduceError(
        f"{where}: the object needs the keys {names} with text, but its keys are {_keys(record)}: if they are "
        "language codes, pass the two by `data.languages`, else name the two by `data.columns`."
    )


def as_label(key: str, value: object) -> object:
    """Convert the number of a class to text, and return any other value unchanged.

    A class is an integer of at least 0 under the key `label`. Datasets mark texts without a label by -1, which stays a
    number.

    Args:
        key: the key of the value in its JSON object or table row.
        value: the value.
    """
    is_class = key == "label" and isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return str(value) if is_class else value


def _field(record: dict[str, object], name: str, where: str) -> object:
    if name not in record:
        raise TransduceError(
            f'{where}: the object lacks the key "{name}", but its keys are {_keys(record)}: every pair needs it.'
        )
    return record[name]


def parse_weight(value: object, name: str, where: str) -> float:
    """Return the weight of a pair in the loss, a float, from a number or its text.

    Args:
        value: the pair's value in the file.
        name: the name of the column or field, for messages.
        where: the file and line, for messages.

    Raises:
        TransduceError: the value is not a number from 0 to 1,000,000, or it is above 0 but below the normal numbers of
            float32.
    """
    try:
        weight = math.nan if isinstance(value, bool) or not isinstance(value, str | int | float) else float(value)
    except (ValueError, OverflowError):
        weight = math.nan
    if not 0.0 <= weight <= _MAX_WEIGHT:
        raise TransduceError(
            f'{where}: a weight must be a number from 0 to {_MAX_WEIGHT:,.0f}, but "{name}" is '
            f"{str(value)[:40]!r}: correct it, or leave the pair out."
        )
    if 0.0 < weight < _MIN_WEIGHT:
        raise TransduceError(
            f"{where}: a weight above 0 must be at least {_MIN_WEIGHT:.2g}, float32's smallest normal number, but "
            f'"{name}" is {str(value)[:40]!r}: multiply all weights by a large number, which changes no result, or '
            "write 0."
        )
    return weight


_MAX_WEIGHT = 1e6
_MIN_WEIGHT = 2.0**-126  # the smallest normal number of float32


def _note_unused(record: dict[str, object], used: tuple[str, ...], where: str, notes: LineNotes) -> None:
    """Record in `notes` where each unused JSON field first occurs.

    Raises:
        TransduceError: an unused field is called "weight" or "weights", so it was probably meant to weight the pair.
    """
    if not record.keys() - used:
        return
    for name in record:
        if name in used or name in notes.unused_fields:
            continue
        if name.casefold() in ("weight", "weights"):
            raise TransduceError(
                f'{where}: the field "{name}" would weight the pair, but no weights are expected: set '
                f"`data.weight_column` to {name} to use it, or rename it if it means something else."
            )
        notes.unused_fields[name] = where


def _keys(record: dict[str, object]) -> str:
    return shown_names((f'"{key}"' for key in record), 20)


def read_record(line: str, where: str) -> dict[str, object]:
    """Parse a line of JSON into a dict; `where` is the line's file and number, for error messages.

    Raises:
        TransduceError: the line is not a JSON object.
    """
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        if line.lstrip().startswith("["):
            raise TransduceError(
                f"{where}: JSON lines have an object on each line, but this line begins a list: write each of the "
                "list's objects on a line of its own."
            ) from None
        record = _record_with_surrogates(line)
        if record is None:
            raise TransduceError(f"{where}: the line is not a JSON object ({reason}): fix it.") from None
        return record


def _record_with_surrogates(line: str) -> dict[str, object] | None:
    """Parse a line of JSON that is invalid only because of lone surrogates.

    Lone surrogates also stand for bytes that are not UTF-8. The result is the JSON object as a dict, or None if the
    line has other faults.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    texts = json.dumps(record, ensure_ascii=False)
    return record if isinstance(record, dict) and not is_decodable(texts) else None
