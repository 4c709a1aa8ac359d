"""Read plain text, JSON, tables (CSV, TSV), HTML and e-books, and write them with translations."""

import json
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from html import escape, unescape
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from transduce.documents.formats import Source
from transduce.documents.limits import Archive, parse_xml, xml_encoding
from transduce.documents.markup_tokens import NUMBERED
from transduce.documents.units import Document, Edit, TextFile, Unit, has_letters
from transduce.errors import TransduceError, shown_names
from transduce.text.languages import SOFT_HYPHEN, base_code, canonical, short_code
from transduce.text.word_spans import joins_without_space
from transduce.ui_language import columns_of, wrap

# --- lines ---

_LINE = re.compile(r"(?P<text>[^\r\n]*)(?P<end>\r\n|\n|\r|\Z)")


class Line(NamedTuple):
    """A line of a text file: its offset in characters from the start of the file, its text and its line break."""

    start: int
    end: int
    """The offset in the file after the line's text, before the line break."""
    text: str
    break_: str
    r"""The line break, such as "\n"; "" for a last line without one."""


def lines_of(text: str) -> Iterator[Line]:
    """Yield a `Line` for each line of a text; lines end at LF, CR LF or CR, and may be empty.

    No empty line follows the last line break.
    """
    for match in _LINE.finditer(text):
        if match.start() < len(text):
            yield Line(match.start(), match.end("text"), match["text"], match["end"])


def line_joint(before: str, after: str) -> str:
    """Return the text that joins two lines: a space, or "" after a soft hyphen or in scripts without spaces."""
    if before.endswith(SOFT_HYPHEN):
        return ""
    return "" if joins_without_space(before, after) else " "


def join_wrapped(lines: Sequence[str]) -> str:
    """Join the lines of a wrapped text, and return the text.

    A space goes between two lines; in scripts without spaces nothing does. White space at both ends of each line is
    removed, and so are blank lines. A soft hyphen at the end of a line is removed, and the two parts of the word are
    joined directly.
    """
    joined = ""
    for line in map(str.strip, lines):
        joint = line_joint(joined, line) if joined and line else ""
        joined = (joined.removesuffix(SOFT_HYPHEN) if line else joined) + joint + line
    return joined


# --- plain text ---

_LIST_MARK = re.compile(r"\s*(?:[-*+•–—>#]|\d{1,3}[.)]|[A-Za-z]\.|[^\W\d_]\))\s|\s*[・･※]")


def read_text(source: Source) -> Document:
    """Read a plain text as a `Document`, whose units are the lines, or with `join_lines` the wrapped paragraphs.

    Lines without a letter are left out and stay the same.
    """
    file = source.text_file()
    paragraphs: list[list[Line]] = []
    is_open = False
    for line in lines_of(file.text):
        if not line.text.strip():
            is_open = False
        elif is_open and source.settings.join_lines and _continues(paragraphs[-1], line):
            paragraphs[-1].append(line)
        else:
            paragraphs.append([line])
            is_open = True
    keep = source.settings.keep_source
    edits = [_edit_paragraph(file, each, keep_source=keep) for each in paragraphs if has_letters(_text(each))]
    return file.document(edits, always=keep)


def _text(paragraph: Sequence[Line]) -> str:
    return "".join(line.text for line in paragraph)


def _continues(paragraph: Sequence[Line], line: Line) -> bool:
    """Return whether a line continues a wrapped paragraph, so that both are translated as one text.

    A line with a list mark does not. From the third line of a paragraph on, the line must be indented like the second
    line. The second line has two choices: it is indented at most like the first line, or exactly like the text after
    the first line's list mark.

    Args:
        paragraph: the lines of the paragraph so far.
        line: the line that follows.
    """
    if _LIST_MARK.match(line.text):
        return False
    indentation = _indentation(line.text)
    if len(paragraph) > 1:
        return indentation == _indentation(paragraph[1].text)
    mark = _LIST_MARK.match(paragraph[0].text)
    return indentation <= _indentation(paragraph[0].text) or (mark is not None and indentation == mark.end())


def _indentation(text: str) -> int:
    return len(text) - len(text.lstrip())


def _edit_paragraph(file: TextFile, paragraph: Sequence[Line], *, keep_source: bool) -> Edit:
    first, last = paragraph[0], paragraph[-1]
    start, end = first.start + _indentation(first.text), last.start + len(last.text.rstrip())
    width = max(columns_of(line.text.rstrip()) for line in paragraph)
    text = join_wrapped([line.text for line in paragraph])

    def render(translations: Sequence[str]) -> str:
        lines = wrap(translations[0], width) if len(paragraph) > 1 else [translations[0]]
        indentation = paragraph[min(1, len(paragraph) - 1)].text
        between = file.newline + indentation[: _indentation(indentation)]
        translation = between.join(lines)
        above = file.text[first.start : end] + file.newline + file.text[first.start : start] if keep_source else ""
        return above[start - first.start :] + translation if keep_source else translation

    return Edit(start, end, [Unit(text)], render)


# --- texts of programs ---

_MARKUP_TAG = re.compile(
    r"</[A-Za-z\d][\w.:-]*\s*>|<[A-Za-z\d][\w.:-]*(?:\s[^<>]*)?/>|<(?:br|hr|img|input|li|p|wbr)(?:\s[^<>]*)?>",
    re.IGNORECASE,
)
# Tags such as <1>, which stand for components, and the names that they have during translation.
_NUMBERED_TAG, _NAMED_NUMBER = re.compile(r"<(/?)(\d{1,4})(\s*/?)>"), re.compile(rf"<(/?){NUMBERED}(\d{{1,4}})(\s*/?)>")
# Signs, their entities, and what follows signs that are markup.
_ENTITIES = (("<", "&lt;", r"[A-Za-z/!?]|\d+\s*/?(?:>|&gt;)"), (">", "&gt;", r"(?!)"), ("&", "&amp;", r"(?:\w+|#\w+);"))


class Message(NamedTuple):
    """A text of a program, as in JSON, PO and tables, which may have tags, and signs such as `&` that are no markup."""

    source: str

    @property
    def has_tags(self) -> bool:
        """True if the text has an end tag or a tag without content. Start tags alone, as in `cp <file>`, are words."""
        return _MARKUP_TAG.search(self.source) is not None and _NAMED_NUMBER.search(self.source) is None

    @property
    def unit(self) -> Unit:
        """The `Unit` to translate: of the kind `message` if the text has tags, otherwise plain text."""
        if self.has_tags:
            return Unit(_NUMBERED_TAG.sub(rf"<\1{NUMBERED}\2\3>", self.source), "message")
        return Unit(self.source)

    def written(self, translation: str) -> str:
        """Return a translation of `unit` as the program writes it, with the signs `<`, `>` and `&` unescaped.

        Translation escapes these signs as entities such as `&amp;`; an entity stays only if the source has it.
        """
        if not self.has_tags:
            return translation
        for sign, entity, markup in _ENTITIES:
            if entity not in self.source:
                translation = re.sub(rf"{entity}(?!{markup})", sign, translation)
        return _NAMED_NUMBER.sub(r"<\1\2\3>", translation)


# --- JSON ---

_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],]')  # strings, and the signs that divide values
_SKIPPED_KEYS = re.compile(
    r"(?:\w+_)?(?:id|uuid|guid|url|uri|href|src|path|lang|language|locale)|key|type|kind|file|filename|icon|colou?r|class|"
    r"style|version|format|date|time|timestamp|\$(?:schema|ref|id)",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(
    r"(?=.*[\W\d_])[#@./\\]?[A-Za-z0-9]+(?:[-_./:\\#@]+[A-Za-z0-9]+)*/?|(?:https?|ftp|mailto|data):\S+|[a-z]+(?:[A-Z][a-z0-9]*)+"
)
Path = tuple[str, ...]


def read_json(source: Source) -> Document:
    """Read a JSON file as a `Document`, whose units are the string values that are text for people.

    With the setting `fields`, the units are the values at the paths that it names. Without it, values are chosen by key
    and form: identifiers, addresses and the like are left out. Keys and values without a letter are never translated.

    Raises:
        TransduceError: the file is not JSON, or `fields` matches no text.
    """
    file = source.text_file()
    _check_json(file.text, 0)
    edits = _checked_fields(_json_edits(file.text, 0, source.settings.fields), source.settings.fields)
    if edits and source.settings.target_language is not None:
        edits += _locale_edits(file.text, source.settings.target_language)
        edits.sort(key=lambda edit: edit.start)
    return file.document(edits)


def _locale_edits(text: str, language: str) -> Iterator[Edit]:
    """Yield the `Edit` that writes the target language's code into the key `@@locale` of an ARB file, if it has one.

    ARB is the JSON format Application Resource Bundle.
    """
    code = canonical(language) if len(base_code(language)) == 2 else short_code(language)
    code = language if canonical(language) == canonical(code) and "_" not in language else code
    for path, start, end in _json_strings(text):
        if path == ("@@locale",):
            yield Edit(start, end, [], lambda _: json.dumps(code.replace("-", "_")), is_in_place=False)


def read_json_lines(source: Source) -> Document:
    """Read a JSON Lines file (one JSON value per line) as a `Document`, whose units are string values for people.

    The values are chosen as in JSON files, or by the setting `fields`; empty lines are skipped.

    Raises:
        TransduceError: a line is not JSON, or `fields` matches no text of any line.
    """
    file = source.text_file()
    edits: list[Edit] = []
    for number, line in enumerate(lines_of(file.text), 1):
        if line.text.strip():
            _check_json(line.text, number)
            edits += _json_edits(line.text, line.start, source.settings.fields)
    return file.document(_checked_fields(edits, source.settings.fields))


def _check_json(text: str, line: int) -> None:
    """Refuse text that is not JSON or is nested too deeply; return nothing otherwise.

    Args:
        text: the text.
        line: the number of the line in a JSON Lines file, for the message; 0 if the text is a whole file.

    Raises:
        TransduceError: the text is not JSON, or is nested too deeply.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise TransduceError(
            f"The document is not JSON: line {line or error.lineno}, {error.msg}. Repair it, or set `format` to "
            "txt to translate its lines as they are."
        ) from None
    except RecursionError:
        raise TransduceError("The document is JSON that is nested too deeply: flatten it.") from None


def _checked_fields(edits: list[Edit], fields: Sequence[str]) -> list[Edit]:
    if fields and not edits:
        raise TransduceError(f"`fields` must match texts of the document, but {', '.join(fields)} matches none.")
    return edits


def _json_edits(text: str, offset: int, fields: Sequence[str]) -> list[Edit]:
    """Return a list of `Edit`, one for each string value of a JSON text that is to be translated.

    Args:
        text: the JSON text.
        offset: position of the text in the file, in characters.
        fields: paths of the values to translate, such as `items.*.title`; empty: all values that look like prose.
    """
    patterns = [tuple(field.split(".")) for field in fields]
    is_ascii = text.isascii() and "\\u" in text
    edits = []
    for path, start, end in _json_strings(text):
        value = _LONE_SURROGATE.sub("\ufffd", json.loads(text[start:end]))
        is_chosen = any(_matches(path, pattern) for pattern in patterns) if patterns else _is_prose(path, value)
        if is_chosen and has_letters(value):
            edits.append(_edit_value(value, offset + start, offset + end, is_ascii=is_ascii))
    return edits


def _edit_value(value: str, start: int, end: int, *, is_ascii: bool) -> Edit:
    message = Message(value)
    return Edit(start, end, [message.unit], lambda new: json.dumps(message.written(new[0]), ensure_ascii=is_ascii))


def _json_strings(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield (path, start, end) for each string value of a valid JSON text.

    The path is a tuple of keys and indices, as texts; start and end are positions in the text and include the quotes.
    """
    stack: list[str | int] = []  # the key or index inside each open object or list
    is_key = False
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token in ("{", "["):
            stack.append("" if token == "{" else 0)
            is_key = token == "{"
        elif token in ("}", "]"):
            stack.pop()
            is_key = False
        elif token == ",":
            top = stack[-1]
            is_key = isinstance(top, str)
            stack[-1] = top + 1 if isinstance(top, int) else top
        elif is_key:
            stack[-1], is_key = json.loads(token), False
        else:
            yield tuple(map(str, stack)), *match.span()


def _matches(path: Path, pattern: Path) -> bool:
    return len(path) == len(pattern) and all(b in ("*", a) for a, b in zip(path, pattern, strict=True))


def _is_prose(path: Path, value: str) -> bool:
    """Return whether a string value of a JSON file is text for people, judging by its keys and its form.

    The result is False for keys such as `id` and `url` and metadata keys with `@`, and for values that look like
    identifiers.
    """
    key = next((key for key in reversed(path) if not key.isdecimal()), "")
    is_metadata = any(key.startswith("@") for key in path)  # as in Application Resource Bundles
    return not is_metadata and not _SKIPPED_KEYS.fullmatch(key) and not _IDENTIFIER.fullmatch(value.strip())


# --- plural forms of ICU messages and catalogs ---


PLURAL_FORMS = ("zero", "one", "two", "few", "many")
"""The names of the plural forms in Unicode's CLDR, apart from `other`, which every language has."""
_ONE_AND_OTHER = (
    "af bg bn ca da de el en es et eu fa fi fr gl gu hi hu hy is it ka kk kn ky mk ml mn mr nb ne nl nn no pa pt sq sv "
    "sw ta te tr ur uz"
)
_LANGUAGES_OF_PLURAL_FORMS = {
    ("one",): _ONE_AND_OTHER.split(),
    ("one", "few"): ("bs", "cs", "hr", "lt", "mo", "ro", "sh", "sk", "sr"),
    ("one", "few", "many"): ("be", "pl", "ru", "uk"),
    ("one", "two", "few"): ("dsb", "gd", "hsb", "sl"),
    ("one", "two", "few", "many"): ("br", "ga", "mt"),
    ("one", "two"): ("he", "iw"),
    ("zero", "one"): ("lv",),
    PLURAL_FORMS: ("ar", "cy"),
}
_FORMS_OF_LANGUAGE = {code: frozenset(forms) for forms, codes in _LANGUAGES_OF_PLURAL_FORMS.items() for code in codes}
# The plural forms of languages in the header of a gettext catalog, by the numbers of CLDR's rules.
_EAST_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_PLURAL_FORMS = {
    "ja|zh|yue|ko|vi|th|id|ms|lo|my|km": (1, "0"),
    "fr|fa|hi|bn|gu|kn|am|zu|hy|pt_BR": (2, "n > 1"),
    "af|bg|ca|da|de|el|en|es|et|eu|fi|gl|he|hu|it|ka|kk|ky|ml|mn|mr|nb|ne|nl|nn|no|pa|pt|sq|sv|sw|ta|te|tr|ur|uz|az": (
        2,
        "n != 1",
    ),
    "be|ru|uk|sr|hr|bs": (3, _EAST_SLAVIC),
    "pl": (3, _EAST_SLAVIC.replace("n%10==1 && n%100!=11", "n==1")),
    "cs|sk": (3, "n==1 ? 0 : n>=2 && n<=4 ? 1 : 2"),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2"),
    "sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "ga": (5, "n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
}
_PLURAL_FORMS_OF = {code: forms for codes, forms in _PLURAL_FORMS.items() for code in codes.split("|")}


def plural_rule(language: str) -> tuple[int, str] | None:
    """Return a language's number of plural forms and gettext's expression for them, as (1, "0"); None if unknown."""
    return _PLURAL_FORMS_OF.get(language.replace("-", "_")) or _PLURAL_FORMS_OF.get(short_code(language))


def lacking_plural_forms(forms: Collection[str], language: str | None) -> frozenset[str]:
    """Return a set of the plural forms that a language has for whole numbers and a message lacks.

    The set is empty for a language with unknown forms.

    Args:
        forms: the forms of the message, such as `one`, `other` and `=0`. The exact numbers `=0`, `=1` and `=2` count as
            the forms `zero`, `one` and `two`.
        language: the language's code; None: unknown.
    """
    exact = {f"={number}": name for number, name in enumerate(PLURAL_FORMS[:3])}
    present = {exact.get(form, form) for form in forms}
    return _FORMS_OF_LANGUAGE.get(base_code(language or ""), frozenset()) - present


# --- tables ---


# Formulas and error values, as spreadsheets write them.
_FORMULA = re.compile(
    r"\s*(?:=(?![=\s])|[-+@][A-Za-z][\w.]*\(.*\)\s*\Z|#(?:[A-Z]{2,6}[!?]|N/A|DIV/0!)\s*\Z)", re.DOTALL
)


class _Cell(NamedTuple):
    """A cell of a CSV or TSV file: its start and end offset in the file, decoded text, and whether it is quoted."""

    start: int
    end: int
    text: str
    is_quoted: bool


def read_csv(source: Source) -> Document:
    """Read a CSV file as a `Document`, whose units are the cells of the chosen columns that have a letter.

    The delimiter (`,`, `;`, `|` or a tab) is found from the first rows. A table of one column needs no choice. Formulas
    are left out.

    Raises:
        TransduceError: the setting `columns` is missing or names no column, or a row has more cells than the header.
    """
    file = source.text_file()
    return _read_table(file, _delimiter(file.text), source.settings.columns)


def read_tsv(source: Source) -> Document:
    """Read a tab-separated file as a `Document`, whose units are the cells of the chosen columns that have a letter.

    A table of one column needs no choice. Formulas are left out.

    Raises:
        TransduceError: the setting `columns` is missing or names no column, or a row has more cells than the header.
    """
    return _read_table(source.text_file(), "\t", source.settings.columns)


def _delimiter(text: str) -> str:
    """Return the delimiter of a CSV file: a comma, a semicolon, a tab or a bar.

    The result is the delimiter with which most of the first 50 rows have as many cells as the first row, more than one.
    If no delimiter divides the rows, the result is the comma.
    """

    def agreement(delimiter: str) -> tuple[int, int]:
        counts = [len(row) for _, row in zip(range(50), _rows(text, delimiter), strict=False)]
        return (counts.count(counts[0]) if counts and counts[0] > 1 else 0, counts[0] if counts else 0)

    return max(",;\t|", key=agreement)


def _rows(text: str, delimiter: str) -> Iterator[list[_Cell]]:
    """Yield the rows of a CSV or TSV text, each a list of `_Cell` with position and decoded text.

    Quoted cells may contain delimiters, line breaks and doubled quotes; a cell with other text behind its closing quote
    is taken as it is written.
    """
    other = re.compile(rf"[^{re.escape(delimiter)}\r\n]*")
    quoted = re.compile(r'"(?:[^"]|"")*+"')
    position, row = 0, list[_Cell]()
    while position < len(text) or row:
        match = quoted.match(text, position)
        end = match.end() if match else position
        is_quoted = match is not None and (end == len(text) or text[end] in f"{delimiter}\r\n")
        if not is_quoted and (match := other.match(text, position)) is not None:
            end = match.end()
        value = text[position + 1 : end - 1].replace('""', '"') if is_quoted else text[position:end]
        row.append(_Cell(position, end, value, is_quoted))
        position = end
        if text[position : position + 1] == delimiter:
            position += 1
            continue
        yield row
        row = []
        position += 2 if text.startswith("\r\n", position) else 1


def _read_table(file: TextFile, delimiter: str, columns: Sequence[str]) -> Document:
    rows = list(_rows(file.text, delimiter))
    if not rows:
        return file.document([])
    if len(rows[0]) == 1 and rows[0][0].text.strip() in columns:  # the header names one column, so rows are one cell
        rows = list(_rows(file.text, "\0"))
    indices, has_header = _columns(rows, columns)
    if has_header:
        _check_widths(file.text, rows)
    chosen = [row[index] for row in rows[1 if has_header else 0 :] for index in indices if index < len(row)]
    texts = [cell for cell in chosen if has_letters(cell.text) and not _FORMULA.match(cell.text)]
    return file.document([_edit_cell(cell, delimiter) for cell in texts])


def _check_widths(text: str, rows: Sequence[Sequence[_Cell]]) -> None:
    """Refuse a table with a row of more cells than its header has names; empty surplus cells do not count.

    Args:
        text: the text of the file, in which the message's line number is counted.
        rows: the rows of the table, with the header first.

    Raises:
        TransduceError: a row has more cells than the header, probably because a text contains the delimiter.
    """
    for row in rows[1:]:
        if any(cell.text.strip() for cell in row[len(rows[0]) :]):
            line = text.count("\n", 0, row[0].start) + 1
            raise TransduceError(
                f"Line {line:,} has {len(row)} cells, but the header has {len(rows[0])} names: put texts that contain "
                'the delimiter in double quotes, as in "one, two".'
            )


def _edit_cell(cell: _Cell, delimiter: str) -> Edit:
    message = Message(cell.text)

    def render(translations: Sequence[str]) -> str:
        text = message.written(translations[0])
        if cell.is_quoted or text.startswith('"') or re.search(rf"[{re.escape(delimiter)}\r\n]", text):
            return '"' + text.replace('"', '""') + '"'
        return text

    return Edit(cell.start, cell.end, [message.unit], render)


def _columns(rows: Sequence[Sequence[_Cell]], columns: Sequence[str]) -> tuple[list[int], bool]:
    """Return a list of the indices of the columns to translate, ascending, and whether the first row is a header.

    Args:
        rows: the rows of the table, at least one.
        columns: names in the first row, which is then a header, or numbers from 1; empty only for a single column.

    Raises:
        TransduceError: no column is chosen although the table has several, or the table lacks a chosen one.
    """
    names = [cell.text.strip() for cell in rows[0]]
    width = max(map(len, rows[:100]))
    if not columns:
        if width == 1:
            return [0], False
        raise TransduceError(
            f"Name the columns to translate by `columns`, as names or numbers from 1: the table has "
            f"{width} ({shown_names(names, 20)})."
        )
    indices, has_header = set[int](), False
    for column in columns:
        if column in names:
            indices.update(index for index, name in enumerate(names) if name == column)
            has_header = True
        elif column.isdecimal() and 1 <= int(column) <= width:
            indices.add(int(column) - 1)
        else:
            raise TransduceError(
                f"`columns` must name columns of the table ({shown_names(names, 20)}) or be numbers from 1 to {width}, "
                f"but one is {column!r}."
            )
    return sorted(indices), has_header


# --- HTML, and e-books (EPUB), which are archives of HTML files ---


_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)


def read_html(source: Source) -> Document:
    """Read an HTML file as a `Document` with one unit, the whole file; a file without a letter has no units."""
    return _html_document(source.text_file(_html_encoding(source.content), is_markup=True))


def _html_encoding(content: bytes) -> str:
    """Return the encoding that an HTML file, as bytes, declares in a `meta` element or XML declaration, else UTF-8.

    Only the first 4,096 bytes are searched.
    """
    declared = _CHARSET.search(content[:4096])
    return xml_encoding(content) if declared is None else declared[1].decode()


def _html_document(file: TextFile) -> Document:
    unit = Unit(file.text, "html")
    edits = [Edit(0, len(file.text), [unit], lambda translations: translations[0])] if has_letters(file.text) else []
    return file.document(edits)


_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_AUTHOR = re.compile(r"<(?:\w+:)?docAuthor(?:\s[^<>]*)?>\s*\Z")
_LABEL = re.compile(r"(<(?:\w+:)?text(?:\s[^<>]*)?>)([^<>]*)(?=</)")


def read_epub(source: Source) -> Document:
    """Read an e-book (EPUB) as a `Document`, whose units are its pages, as HTML, and labels of its table of contents.

    Raises:
        TransduceError: the book has copy protection, or its list of files is missing or damaged.
    """
    archive = source.archive()
    if _CONTAINER not in archive.files:
        raise TransduceError(f"The document should be an e-book, but lacks {_CONTAINER}: save it again.")
    documents: dict[str, Document] = {}
    for name, media_type in _manifest(archive):
        content = archive.files.get(name)
        if content is None:
            continue
        if media_type == "application/xhtml+xml":
            if _ENCRYPTION in archive.files and name.encode() in archive.files[_ENCRYPTION]:
                raise TransduceError("The e-book has copy protection, so its text cannot be read.")
            documents[name] = _html_document(TextFile(content, _html_encoding(content), is_markup=True))
        elif media_type == "application/x-dtbncx+xml":
            documents[name] = _labels(TextFile(content, xml_encoding(content), is_markup=True))
    units = [unit for document in documents.values() for unit in document.units]

    def write(translations: Sequence[str]) -> bytes:
        waiting = iter(translations)
        return archive.write(
            {name: each.write(list(islice(waiting, len(each.units)))) for name, each in documents.items()}
        )

    return Document(units, write)


def _manifest(archive: Archive) -> list[tuple[str, str]]:
    """Return a list of (name in the archive, media type) for an e-book's files, as its package documents list them.

    Raises:
        TransduceError: a package document is missing or malformed.
    """
    files: list[tuple[str, str]] = []
    for rootfile in _elements(archive, _CONTAINER, "rootfile"):
        package = rootfile.get("full-path", "")
        if package not in archive.files:
            raise TransduceError(f"The document should be an e-book, but lacks {package!r}: save it again.")
        for item in _elements(archive, package, "item"):
            path = posixpath.join(posixpath.dirname(package), unquote(item.get("href", "")))
            files.append((posixpath.normpath(path), item.get("media-type", "")))
    return list(dict.fromkeys(files))


def _elements(archive: Archive, name: str, element: str) -> list[Any]:
    return list(parse_xml(archive.files[name], name).getroot().iter(f"{{*}}{element}"))


def _labels(file: TextFile) -> Document:
    """Read an e-book's table of contents (an NCX file) as a `Document`, whose units are the labels with a letter.

    The author's name, which is a label too, is left out.
    """
    edits = [
        Edit(match.start(2), match.end(2), [Unit(unescape(match[2]))], lambda new: escape(new[0], quote=False))
        for match in _LABEL.finditer(file.text)
        if has_letters(match[2]) and not _AUTHOR.search(file.text, max(0, match.start() - 200), match.start())
    ]
    return file.document(edits)
