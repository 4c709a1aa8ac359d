"""Read sentences whose words have tags, from CoNLL columns or JSON lines, and find the spans that BIO tags describe."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError, count_noun, shown_names
from transduce.text.files import read_lines, uncompressed_name

# --- sentences ---


class TaggedSentence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence as a tuple of words and a tuple with a tag for each word, such as a part of speech or B-PER."""

    words: tuple[str, ...]
    """The words, in the order of the sentence."""
    tags: tuple[str, ...]
    """The tag of each word, in the order of the sentence; an empty tuple if the tags are not known."""


JSON_SUFFIXES = (".jsonl", ".ndjson")
"""Suffixes of files of tagged sentences as JSON lines; files with other suffixes hold columns, a word in each line."""
COLUMN_SUFFIXES = (".conll", ".conllu", ".conllup", ".iob", ".bio", ".bioes")
"""Suffixes of files, such as CoNLL's, that certainly hold one word with its tags in each line."""
_UD_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
_NAMED_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.+)")
# The row that separates documents in the files of CoNLL-2003.
_DOCUMENT_START = "-DOCSTART-"
_WORD_FIELDS, _TAG_FIELDS = ("words", "tokens"), ("tags", "labels", "pos_tags", "ner_tags")


def is_tagged_file(path: str | Path) -> bool:
    """Return whether a file's name ends as those of tagged words do, such as a.conllu, or a.conllu.gz if compressed."""
    return uncompressed_name(path).suffix.lower() in (*COLUMN_SUFFIXES, *JSON_SUFFIXES)


def read_tagged(
    path: str | Path, columns: Sequence[str] | None = None, *, needs_tags: bool = True
) -> list[TaggedSentence]:
    """Read sentences of tagged words from a file of columns or of JSON lines; return a list of `TaggedSentence`.

    A file of columns has one word a line and an empty line after each sentence. Its columns are separated by tabs if
    the file has any, otherwise by spaces. A line that starts with `#` is a comment. It is read as a word only if it has
    as many columns as the other lines and a tag that occurs on another line. In CoNLL-U files, the ranges of multiword
    tokens and the empty nodes are left out. Beside tags such as B-PER, the tag o is read as O.

    Args:
        path: the file, plain or compressed.
        columns: the columns of the words and the tags, or only of the words. Each is a number from 1, the name of a
            CoNLL-U column, or a field of JSON lines. None: FORM and UPOS of CoNLL-U, usual fields of JSON lines such as
            `words` and `tags`, and the first and the last column of other files.
        needs_tags: refuse a file without tags. If false, its sentences have no tags.

    Raises:
        TransduceError: the file cannot be read, is not such a file, has no such column, lacks tags that are needed, or
            has no sentence.
    """
    if uncompressed_name(path).suffix.lower() in JSON_SUFFIXES:
        sentences = _read_json_lines(path, columns, needs_tags=needs_tags)
    else:
        sentences = _ColumnReader(path, columns, needs_tags=needs_tags).sentences()
    if not sentences:
        raise TransduceError(f"{path} has no sentence, but one line for each word was expected: check the file.")
    return _with_capital_outside(sentences)


def _with_capital_outside(sentences: list[TaggedSentence]) -> list[TaggedSentence]:
    """Return sentences with every tag o changed to O, if their other tags mark spans, such as B-PER.

    Otherwise the same list is returned.
    """
    tags = {tag for sentence in sentences for tag in sentence.tags}
    if _SMALL_OUTSIDE not in tags or not describe_spans(tags - {_SMALL_OUTSIDE}):
        return sentences
    return [
        msgspec.structs.replace(
            sentence, tags=tuple(_OUTSIDE if tag == _SMALL_OUTSIDE else tag for tag in sentence.tags)
        )
        for sentence in sentences
    ]


class _TaggedLine(NamedTuple):
    """A line of a tagged file, split into columns."""

    number: int
    """The line's number, from 1."""
    cells: list[str]
    """The line's columns, as texts; empty for an empty line."""
    is_marked: bool
    """True if the line starts with `#`, as comments do."""


class _ColumnReader:
    """A reader of a file with one word a line that finds the column separator and the columns of words and tags."""

    def __init__(self, path: str | Path, columns: Sequence[str] | None, *, needs_tags: bool) -> None:
        self._path = path
        lines = list(enumerate(read_lines(path), 1))
        self._names = self._column_names(lines[:10])
        separator = "\t" if any("\t" in line for _, line in lines if not line.startswith("#")) else " "
        self._rows = [_TaggedLine(number, _cells(line, separator), line.startswith("#")) for number, line in lines]
        first = next((row for row in self._rows if row.cells and not row.is_marked), None)
        if first is None:
            first = next((row for row in self._rows if len(row.cells) > 1), _TaggedLine(1, [""], is_marked=False))
        self._first = first
        self._word, self._tag = self._find(columns)
        if self._tag is None and needs_tags:
            raise TransduceError(
                f"{path}:{first.number}: Each line needs a word and its tag, but this one has one column: separate "
                "columns by tabs or spaces."
            )

    def _column_names(self, lines: Iterable[tuple[int, str]]) -> tuple[str, ...]:
        for _, line in lines:
            if match := _NAMED_COLUMNS.match(line):
                return tuple(match[1].split())
        return _UD_COLUMNS if uncompressed_name(self._path).suffix.lower() == ".conllu" else ()

    def _find(self, columns: Sequence[str] | None) -> tuple[int, int | None]:
        """Return the indices (from 0) of the columns that hold words and tags.

        The second index is None if the file has one column, or `columns` names only one.

        Args:
            columns: the column of the words, and that of the tags if it is to be read. Each is a number from 1 or a
                name. None: if the file names its columns, FORM and UPOS, or FORM and the last name; otherwise the first
                and the last column.

        Raises:
            TransduceError: the file has no such column.
        """
        width = len(self._first.cells)
        if columns is None and self._names:
            columns = ("FORM", "UPOS") if "UPOS" in self._names else ("FORM", self._names[-1])
        if columns is None:
            return 0, width - 1 if width > 1 else None
        indices = [self._index(column, width) for column in columns]
        return indices[0], indices[1] if len(indices) > 1 else None

    def _index(self, column: str, width: int) -> int:
        if column in self._names:
            number = self._names.index(column) + 1
        elif column.isdecimal():
            number = int(column)
        else:
            known = f"numbers from 1 to {width}" + (f" or {shown_names(self._names, 20)}" if self._names else "")
            raise TransduceError(f"{self._path} has no column `{column}`: its columns are {known}.")
        if not 1 <= number <= width:
            raise TransduceError(
                f"{self._path}:{self._first.number}: Column {column} was asked for, but this line has {width}: choose "
                "another column."
            )
        return number - 1

    def sentences(self) -> list[TaggedSentence]:
        """Return all sentences of the file as a list of `TaggedSentence`, without comments and document separators.

        Raises:
            TransduceError: a line has another number of columns than the first, or an empty word or tag.
        """
        width, tag_index = len(self._first.cells), self._tag
        certain = [row for row in self._rows if not row.is_marked and len(row.cells) == width]
        known_tags = set() if tag_index is None else {row.cells[tag_index] for row in certain}
        sentences: list[list[_TaggedLine]] = [[]]
        for row in self._rows:
            if row.is_marked and not (
                len(row.cells) == width and tag_index is not None and row.cells[tag_index] in known_tags
            ):
                continue
            if not row.cells or row.cells[self._word : self._word + 1] == [_DOCUMENT_START]:
                sentences.append([])
                continue
            self._check(row, width)
            if "ID" not in self._names or row.cells[self._names.index("ID")].isdecimal():
                sentences[-1].append(row)
        return [
            TaggedSentence(
                tuple(row.cells[self._word] for row in rows),
                () if tag_index is None else tuple(row.cells[tag_index] for row in rows),
            )
            for rows in sentences
            if rows
        ]

    def _check(self, row: _TaggedLine, width: int) -> None:
        if len(row.cells) != width:
            raise TransduceError(
                f"{self._path}:{row.number}: All lines must have as many columns as line {self._first.number} "
                f"({width}), but this one has {len(row.cells)}: correct the line."
            )
        for index in (self._word, self._tag):
            if index is not None and not row.cells[index].strip():
                raise TransduceError(f"{self._path}:{row.number}: Column {index + 1} is empty: fill it in.")


def _cells(line: str, separator: str) -> list[str]:
    if not line.strip():
        return []
    cells = line.split(separator)
    return [cell for cell in cells if cell] if separator == " " else cells


def _read_json_lines(path: str | Path, columns: Sequence[str] | None, *, needs_tags: bool) -> list[TaggedSentence]:
    """Read JSON lines whose objects have a list of words and one of tags, as in Hugging Face data.

    The result is a list of `TaggedSentence`; empty lines and objects without words are skipped.

    Args:
        path: the file.
        columns: the fields of the words and the tags; None: usual names such as `words` and `tags`.
        needs_tags: refuse objects without tags.

    Raises:
        TransduceError: a line is not a JSON object, or its lists are missing, of unequal length, or not of texts.
    """
    sentences = []
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = msgspec.json.decode(line.encode("utf-8", "surrogatepass"), type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise TransduceError(f"{path}:{number}: A line must be a JSON object: {error}.") from None
        names = [columns[:1], columns[1:2]] if columns is not None else [_WORD_FIELDS, _TAG_FIELDS]
        words = _texts_of(record, names[0], f"{path}:{number}")
        tags = _texts_of(record, names[1], f"{path}:{number}", is_required=needs_tags)
        sentences += [as_sentence(words, tags, f"{path}:{number}")] if words else []
    return sentences


def _texts_of(
    record: Mapping[str, object], names: Sequence[str], location: str, *, is_required: bool = True
) -> tuple[str, ...]:
    name = next((name for name in names if name in record), None)
    if name is None and not is_required:
        return ()
    value = None if name is None else record[name]
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        raise TransduceError(
            f"{location}: An object needs lists of texts `{names[0] if names else 'tags'}`, but has {name or 'none'}"
            f"{f' = {value!r:.60}' if name else ''}: write words and tags as texts, or name the fields by `--columns`."
        )
    return tuple(value)


def as_sentence(words: Sequence[str], tags: Sequence[str], location: str) -> TaggedSentence:
    """Combine the words and the tags of a sentence into a `TaggedSentence`.

    Args:
        words: the words.
        tags: a tag for each word; empty for an untagged sentence.
        location: the file and the line, for the message of an error.

    Raises:
        TransduceError: there are tags, but not one for each word.
    """
    if tags and len(words) != len(tags):
        raise TransduceError(
            f"{location}: Each word needs one tag, but {count_noun(len(words), 'word')} and "
            f"{count_noun(len(tags), 'tag')} were found: correct them."
        )
    return TaggedSentence(tuple(words), tuple(tags))


# --- spans ---
# Tags such as B-PER mark where a span begins (B), continues (I) and ends (E), or that a word is one alone (S). O is
# outside. E and S may be written L and U (BILOU).


_SPAN_TAG = re.compile(r"[BIESLU]-.+")
_OUTSIDE, _SMALL_OUTSIDE = "O", "o"


class TaggedSpan(NamedTuple):
    """A phrase that the tags of a sentence mark, such as a name: its kind and its range of consecutive words."""

    kind: str
    """The kind of phrase, such as PER for a person."""
    start: int
    """Index of the span's first word in the sentence."""
    end: int
    """Index after the span's last word."""


def describe_spans(tags: Iterable[str]) -> bool:
    """Return whether tags describe spans: every tag is O or of a form such as B-PER, and not all are O."""
    others = set(tags) - {_OUTSIDE}
    return bool(others) and all(map(_SPAN_TAG.fullmatch, others))


def spans_of(tags: Sequence[str]) -> list[TaggedSpan]:
    """Return the phrases that a sentence's tags mark, as a list of `TaggedSpan`.

    IOB1, BIO, BIOES and BILOU tags are all read by the rules of the CoNLL-2000 evaluation. An I tag that does not
    continue a phrase of its kind begins a new one.
    """
    spans, start = list[TaggedSpan](), 0
    previous, previous_kind = _OUTSIDE, ""
    for index, tag in enumerate([*tags, _OUTSIDE]):
        mark, _, kind = tag.partition("-")
        mark = {"L": "E", "U": "S"}.get(mark, mark)
        if previous != _OUTSIDE and (previous in ("E", "S") or mark in ("B", "S", _OUTSIDE) or kind != previous_kind):
            spans.append(TaggedSpan(previous_kind, start, index))
        if mark != _OUTSIDE and (mark in ("B", "S") or previous in ("E", "S", _OUTSIDE) or kind != previous_kind):
            start = index
        previous, previous_kind = mark, kind
    return spans
