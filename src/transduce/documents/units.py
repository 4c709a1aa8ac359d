"""Define the units (texts) of documents that are translated, their inline tags, and text files that are rewritten."""

import codecs
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import accumulate, groupby, islice
from typing import Literal, NamedTuple

import msgspec

from transduce.errors import TransduceError, wide_encoding
from transduce.text.languages import UNSPACED_RANGES, is_unspaced_or_punctuation, is_word_character
from transduce.text.sentences import SENTENCE_MARKS

# --- settings ---


class DocumentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that choose which texts of a document are translated, and how they are written."""

    format: str | None = None
    """Name of the format, such as `srt`; None: by the file's name and content."""
    columns: tuple[str, ...] = ()
    """CSV and TSV: the columns to translate, by the names in the first row or by numbers from 1. A table of one column
    needs none.
    """
    fields: tuple[str, ...] = ()
    """JSON: paths of the values to translate, such as `items.*.title`; `*` stands for any key or index. Empty: all
    prose.
    """
    keep_source: bool = False
    """Plain text and subtitles: write each source text above its translation. PO and XLIFF always keep both."""
    join_lines: bool = False
    """Plain text: join the lines of a paragraph before translation, and wrap them again after it."""
    overwrite: bool = False
    """PO and XLIFF: translate entries again that already have a translation."""
    overwrite_fuzzy: bool = False
    """PO: translate entries again whose translation is flagged `fuzzy`, which gettext's programs do not use."""
    mark_fuzzy: bool = False
    """PO: mark new translations with the flag `fuzzy`, so that a person reviews them before use."""
    encoding: str | None = None
    """Text formats: the encoding of a file without a byte order mark; None: the one that it declares, or UTF-8."""
    target_language: str | None = None
    """Code of the target language, which XLIFF stores if the file has none."""


# --- units ---

UnitKind = Literal["text", "xml", "html", "message"]
"""The kind of a text: plain; with XLIFF's inline tags (`<g id="1">…</g>`, `<x id="2"/>`); HTML; or a program's with
tags.
"""


class Unit(NamedTuple):
    """A text of a document, such as a paragraph or a cell, that is translated independently of the others."""

    text: str
    """The source text. Its line breaks are spaces, unless the author separated lines on purpose."""
    kind: UnitKind = "text"


class UntranslatedText(str):
    """A text of a document that stands in place of its translation because it has none.

    A format that stores source and translation then leaves out the translation.
    """

    __slots__ = ()


@dataclass
class MessageRecord:
    """A record of what becomes of a document's ICU messages with branches, such as `{n, plural, …}`, for reports."""

    kept: list[str] = field(default_factory=list)
    """The texts with messages that cannot be divided exactly and stay untranslated."""
    lost: list[str] = field(default_factory=list)
    """The texts that stay untranslated because their translation lacked an argument when the document was last
    written.
    """
    plural_forms: list[frozenset[str]] = field(default_factory=list)
    """A list with a set of forms, such as `one` and `other`, for each plural in the messages that are translated."""


class Document(NamedTuple):
    """A document that was read: its texts to translate, and the function that writes it with their translations."""

    units: list[Unit]
    write: Callable[[Sequence[str]], bytes]
    """A function that returns the document's bytes with its texts replaced by translations, one for each unit, in
    order.
    """
    kept_fuzzy: int = 0
    """The number of entries of a PO file that are flagged fuzzy and keep all or part of their translation."""
    kept_units: tuple[str, ...] = ()
    """The ids and sources of XLIFF units that stay as they are although one of their segments has no translation."""
    same_plurals: int = 0
    """The number of entries of a PO file in which several plural forms are translations of the same text."""
    lacks_plural_rule: bool = False
    """True if a PO template has no plural forms, and those of the target language are not known."""
    guesses_singular: bool = False
    """True if the header of a PO file has no valid plural rule, so that the form for the number 1 is guessed."""
    other_language: str | None = None
    """The language that a PO or XLIFF file names for its translations, if it is another one than the setting
    `target_language`.
    """
    text_formulas: tuple[str, ...] = ()
    """The formulas of a spreadsheet that contain a text of its cells, such as `D2: IF(A2="yes",1,0)`; they stay."""
    messages: MessageRecord | None = None
    """The record of what becomes of the document's ICU messages with branches; None: there are no such messages."""


# --- inline tags ---


TagKind = Literal["open", "close", "empty", "break", "object"]


class Tag(NamedTuple):
    """An inline tag in a text: the start or end of a formatted span, or an element without text."""

    kind: TagKind
    """`open` or `close`: the start or end of a formatted span. `empty`: an element without content, such as a bookmark.
    `break`: a line break. `object`: stands for content which is not translated, such as code.
    """
    id: int
    """The number of the element that the tag stands for, unique in its text; an end tag has that of its start tag."""


InlinePart = str | Tag
# The names of tags in a unit are those of XLIFF.
_TAG_NAMES: dict[TagKind, str] = {"open": "g", "empty": "it", "break": "br", "object": "x"}
TAG = re.compile(r'<(?P<end>/?)(?P<name>g|x|it|br)(?:\s+id="(?P<id>\d{1,6})")?\s*(?P<empty>/?)>')
"""A pattern of the inline tags in a unit of kind `xml`, such as `<g id="1">`, with groups end, name, id and empty."""


class InlineText:
    """A text with inline tags that is translated as one unit, and whose tags are placed in the translation.

    Tags and white space before or after all words are not part of the unit.
    """

    def __init__(self, parts: Iterable[InlinePart]) -> None:
        """Separate the part of a text that is translated from the tags and white space around all words.

        Args:
            parts: texts and tags in order; start and end tags are balanced.
        """
        self.parts = joined_parts(parts)
        """A list of all strings and tags of the source, with adjacent strings joined."""
        start, end = _core(self.parts)
        self.before, self.after = list(self.parts[:start]), list(self.parts[end:])
        core = list(self.parts[start:end])
        if core and isinstance(core[0], str):
            stripped = core[0].lstrip()
            self.before.append(core[0][: len(core[0]) - len(stripped)])
            core[0] = stripped
        if core and isinstance(core[-1], str):
            stripped = core[-1].rstrip()
            self.after.insert(0, core[-1][len(stripped) :])
            core[-1] = stripped
        self.core = [part for part in core if part]
        """A list of the strings and tags that are translated, without those before and after all words."""

    @property
    def plain(self) -> str:
        """The text to translate without its inline tags; "" if it has only tags."""
        return text_of(self.core)

    @property
    def unit(self) -> Unit:
        """The `Unit` to translate: of kind `xml` if there are tags between words, otherwise plain text."""
        if any(isinstance(part, Tag) for part in self.core):
            return Unit("".join(map(_write_part, self.core)), "xml")
        return Unit(self.plain)

    def translated(self, translation: str) -> list[InlinePart]:
        """Return the translation between the outer tags and white space of the source, as a list of strings and tags.

        Tags are balanced, and each tag of the source occurs once: unknown and repeated tags in the translation are
        removed, and missing ones are added at its end.

        Args:
            translation: the translation of `unit`, with tags written as in the unit.
        """
        source = self.unit
        if source.kind == "text":
            core: list[InlinePart] = [translation]
        else:
            core = list(self.core) if translation == source.text else _read_parts(translation, self.core)
        return [part for part in (*self.before, *core, *self.after) if part]


def split_at(parts: Sequence[InlinePart], separators: Collection[Tag]) -> list[InlineText | InlinePart]:
    """Divide the strings and tags of a text at separators, such as tabs, into texts that are translated by themselves.

    Args:
        parts: strings and tags; start and end tags are balanced.
        separators: tags at which a text ends.

    Returns:
        A list, in order: an `InlineText` for each text, the separators, and tags whose partner is in another text.
    """
    numbers = dict(zip(parts, accumulate(part in separators for part in parts), strict=True))  # of the tags' texts

    def is_outer(part: InlinePart) -> bool:
        if isinstance(part, str):
            return False
        is_pair = part.kind in ("open", "close")
        return part in separators or (is_pair and numbers[Tag("open", part.id)] != numbers[Tag("close", part.id)])

    divided: list[InlineText | InlinePart] = []
    for outer, group in groupby(parts, is_outer):
        found = list(group)
        divided += found if outer else [InlineText(found)]
    return divided


def find_nested_ranges(
    parts: Sequence[InlinePart], range_of: Callable[[Tag], tuple[Hashable, bool] | None]
) -> dict[Tag, Tag]:
    """Find the pairs of empty tags that enclose words, and return them as a dict from start tag to end tag.

    An example is the range of a comment. A range that crosses another range or a formatted span is left out.

    Args:
        parts: the strings and tags of the text.
        range_of: a function that returns (key, is_start) for a tag of a range, and None for other tags. Both ends of a
            range have the same key.
    """
    found: dict[Tag, Tag] = {}
    opened: list[tuple[Hashable, Tag, int]] = []  # key, tag and index of each start
    for index, part in enumerate(parts):
        if not isinstance(part, Tag):
            continue
        key, is_start = (range_of(part) if part.kind == "empty" else (part.id, part.kind == "open")) or (None, False)
        numbers = [number for number, each in enumerate(opened) if each[0] == key]
        if is_start:
            opened.append((key, part, index))
        elif numbers:
            _, start, first = opened[-1]
            has_text = any(isinstance(each, str) and each.strip() for each in parts[first:index])
            if part.kind == "empty" and numbers[-1] == len(opened) - 1 and has_text:
                found[start] = part
            del opened[numbers[-1] :]
    return found


def text_of(parts: Iterable[InlinePart]) -> str:
    """Return the strings among a text's parts (strings and tags), joined to one."""
    return "".join(part for part in parts if isinstance(part, str))


def joined_parts(parts: Iterable[InlinePart]) -> list[InlinePart]:
    """Return a list of a text's parts (strings and tags) with adjacent strings joined and empty ones removed."""
    joined: list[InlinePart] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return joined


def _core(parts: Sequence[InlinePart]) -> tuple[int, int]:
    """Return the range of strings and tags to translate, without white space and tags around all words.

    The range is (start index, end index); the end index is exclusive. Elements without text at its ends are left out,
    too. Tags within the range are balanced. Without words or objects the range is empty.
    """
    partner: dict[int, int] = {}
    opened: dict[int, int] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Tag) and part.kind == "open":
            opened[part.id] = index
        elif isinstance(part, Tag) and part.kind == "close":
            partner[opened[part.id]], partner[index] = index, opened[part.id]
    start, end = 0, len(parts)
    while start < end:
        first, last = parts[start], parts[end - 1]
        if _is_wordless(first):
            start += 1
        elif _is_wordless(last):
            end -= 1
        elif partner.get(start) == end - 1:
            start, end = start + 1, end - 1
        elif start in partner and all(map(_is_wordless_or_tag, parts[start : partner[start]])):
            start = partner[start] + 1
        elif end - 1 in partner and all(map(_is_wordless_or_tag, parts[partner[end - 1] : end])):
            end = partner[end - 1]
        else:
            break
    return start, end


def _is_wordless(part: InlinePart) -> bool:
    """Return whether a part of a text, a string or tag, is white space, a tag of kind `empty`, or a line break."""
    return not part.strip() if isinstance(part, str) else part.kind in ("empty", "break")


def _is_wordless_or_tag(part: InlinePart) -> bool:
    return part.kind != "object" if isinstance(part, Tag) else not part.strip()


def _write_part(part: InlinePart) -> str:
    if isinstance(part, str):
        return escape(part, quote=False)
    if part.kind == "close":
        return "</g>"
    return f'<{_TAG_NAMES[part.kind]} id="{part.id}"{"" if part.kind == "open" else "/"}>'


def _read_parts(text: str, source: Sequence[InlinePart]) -> list[InlinePart]:
    """Return a list of the strings and tags of a translated XML text; each tag of the source occurs once and balanced.

    Unknown and repeated tags are removed, open elements are closed at the end, and missing tags are added there.

    Args:
        text: the translation.
        source: the strings and tags of the source.
    """
    missing = {part.id: part.kind for part in source if isinstance(part, Tag) and part.kind != "close"}
    parts: list[InlinePart] = []
    open_ids: list[int | None] = []
    position = 0
    for match in TAG.finditer(text):
        parts.append(unescape(text[position : match.start()]))
        position = match.end()
        number = int(match["id"] or -1)
        kind = missing.get(number)
        if match["end"]:
            closed = open_ids.pop() if match["name"] == "g" and open_ids else None
            parts += [] if closed is None else [Tag("close", closed)]
            continue
        is_known = kind is not None and (kind == "open") == (match["name"] == "g")
        if kind is not None and is_known:
            parts.append(Tag(kind, number))
            del missing[number]
        if match["name"] == "g" and match["empty"]:
            parts += [Tag("close", number)] if is_known else []
        elif match["name"] == "g":
            open_ids.append(number if is_known else None)
    parts.append(unescape(text[position:]))
    parts.extend(Tag("close", number) for number in reversed(open_ids) if number is not None)
    for number, kind in missing.items():
        parts.extend([Tag("open", number), Tag("close", number)] if kind == "open" else [Tag(kind, number)])
    return joined_parts(parts)


def plain_text(text: str, kind: UnitKind) -> str:
    """Return the text of a document's unit, or its translation, without inline tags and with entities decoded.

    Args:
        text: the text.
        kind: the unit's kind; a text of kind `text` is returned as it is.
    """
    return text if kind == "text" else unescape(TAG.sub("", text))


# --- text files ---

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


_EXTENSIONS = {
    **dict.fromkeys(("gb2312", "gbk", "cp936"), ("gbk", "gb18030")),
    **dict.fromkeys(("big5", "cp950"), ("cp950", "big5hkscs")),
    **dict.fromkeys(("shift_jis", "shift_jisx0213", "shift_jis_2004"), ("cp932",)),
    "euc_kr": ("cp949",),
}
"""A dict from the name of an older encoding to the larger ones that browsers mean by it, which are tried in order."""


class Edit(NamedTuple):
    """A change of a text file that replaces the characters `start` to `end` when the texts in them are translated."""

    start: int
    end: int
    units: list[Unit]
    """The units (texts) whose translations the new content contains."""
    render: Callable[[Sequence[str]], str]
    """A function that returns the new content of the characters, from the translations of the edit's units."""
    is_in_place: bool = True
    """True if the characters are the source texts: they stay if all translations equal the texts. False if they hold
    the translations beside the source, as in PO and XLIFF, and are always written, except for untranslated texts.
    """


class TextFile:
    """A decoded text file that can be written with some spans of characters replaced; all other bytes stay the same."""

    def __init__(self, content: bytes, encoding: str = "utf-8", *, is_markup: bool = False) -> None:
        """Decode the content of a text file and find its line break.

        Args:
            content: the bytes; a byte order mark decides the encoding.
            encoding: encoding of a file without a byte order mark.
            is_markup: the file is HTML or XML. A character that the encoding lacks is then written as a reference such
                as `&#8364;`. In other files it is an error.

        Raises:
            TransduceError: the bytes are not text in this encoding, the encoding is unknown, or the bytes seem to be
                UTF-16 or UTF-32 without a byte order mark.
        """
        encoding_16 = wide_encoding(content) if encoding == "utf-8" else None
        if encoding_16 and not content.startswith(tuple(mark for mark, _ in _MARKS)):
            raise TransduceError(
                f"The document is {encoding_16} without a byte order mark: set `encoding` to {encoding_16}."
            )
        self.mark, self.encoding = next((each for each in _MARKS if content.startswith(each[0])), (b"", encoding))
        try:
            self.text, self.encoding = _decoded(content[len(self.mark) :], self.encoding)
        except UnicodeDecodeError as error:
            raise TransduceError(
                f"The document should be text in {self.encoding}, but byte {error.start + len(self.mark):,} is not: "
                "convert it to UTF-8, or set `encoding` to its encoding, such as gb18030."
            ) from None
        except (LookupError, ValueError):  # UnicodeError: of codecs such as `undefined`
            raise TransduceError(f"The document's encoding {self.encoding!r} is unknown: save it as UTF-8.") from None
        self._is_markup = is_markup
        self.newline = next((each for each in ("\r\n", "\n", "\r") if each in self.text), "\n")

    def document(self, edits: Iterable[Edit], *, always: bool = False) -> Document:
        """Return a `Document` whose units are those of some edits, and which is written by carrying out the edits.

        Args:
            edits: the spans to replace, which are disjoint and in order.
            always: replace spans even if the translations equal the source, as when the output keeps the source text.
        """
        edits = list(edits)
        units = [unit for edit in edits for unit in edit.units]

        def write(translations: Sequence[str]) -> bytes:
            parts: list[str] = []
            waiting, position = iter(translations), 0
            for edit in edits:
                chosen = list(islice(waiting, len(edit.units)))
                parts.append(self.text[position : edit.start])
                is_same = all(a == b.text for a, b in zip(chosen, edit.units, strict=True))
                is_kept = is_same and (
                    (edit.is_in_place and not always) or any(isinstance(each, UntranslatedText) for each in chosen)
                )
                parts.append(self.text[edit.start : edit.end] if is_kept else edit.render(chosen))
                position = edit.end
            parts.append(self.text[position:])
            return self.encode("".join(parts))

        return Document(units, write)

    def encode(self, text: str) -> bytes:
        """Return a text as bytes in the file's encoding, after the file's byte order mark if it has one.

        Characters that the encoding lacks become references such as `&#8364;` in HTML and XML.

        Raises:
            TransduceError: the file is neither HTML nor XML, and its encoding lacks a character of the text.
        """
        try:
            return self.mark + text.encode(self.encoding, "xmlcharrefreplace" if self._is_markup else "strict")
        except UnicodeEncodeError as error:
            raise TransduceError(
                f"The document is in {self.encoding}, which has no {text[error.start]!r}: convert it to UTF-8 first."
            ) from None


def _decoded(content: bytes, encoding: str) -> tuple[str, str]:
    """Return bytes as text, and their encoding: the specified one, or an extension of it if the bytes need that.

    Raises:
        UnicodeDecodeError: the bytes are text in none of these encodings.
        LookupError: the encoding is unknown.
    """
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError:
        for extension in _EXTENSIONS.get(codecs.lookup(encoding).name, ()):
            text = content.decode(extension, "replace")
            if text.encode(extension, "replace") == content:  # writing it again keeps every byte
                return text, extension
        raise


_CODE_STYLE = re.compile(
    r"code|verbatim|preformatted|source ?text|listing|macro|html ?(?:keyboard|sample|typewriter)", re.IGNORECASE
)


def is_code_style(name: str | None) -> bool:
    """Return whether a style's name in an office document names a style for code, such as `Source Text`.

    The result is False for None.
    """
    return name is not None and _CODE_STYLE.search(name.replace("_20_", " ").replace("_", " ")) is not None


def find_code_styles(styles: Iterable[tuple[str, str | None, str | None]]) -> frozenset[str]:
    """Return a set of the identifiers of a document's styles for code.

    Args:
        styles: the identifier of each style, its name, and the identifier of the style that it is based on, if any. A
            style that is based on one for code is one, too.
    """
    found = set[str]()
    for identifier, name, base in list(styles) * 4:  # so many styles may be based on each other
        if is_code_style(name) or is_code_style(base) or base in found:
            found.add(identifier)
    return frozenset(found)


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script, so that there is something to translate."""
    return any(map(str.isalpha, text))


# --- marks of notes, and formulas ---

_NUMBERS = r"\s*\d[\d\s,;–-]{0,12}"
_SQUARE_NUMBER = re.compile(rf"[\[［〔【]{_NUMBERS}[\]］〕】]")
_ROUND_NUMBER = re.compile(rf"[(（]{_NUMBERS}[)）]")
_SENTENCE_MARK = re.compile(rf"[{SENTENCE_MARKS}:：;；][\"'”’»)）」』\]]*\Z")
_FORMULA = r"(?:(?:[A-Z][a-z]?|[0-9])++|(?<!['’])[0-9]*[a-z])"  # such as H, CO, 10 and x
_SPACED = rf"[^\W{UNSPACED_RANGES}]"  # letters of scripts with spaces between words
_FORMULA_START = re.compile(rf"{_FORMULA}(?!{_SPACED}|[\u0300-\u036f])")
_FORMULA_END = re.compile(rf"(?<!{_SPACED})(?<![\u0300-\u036f]){_FORMULA}\Z")


def is_note_mark(text: str, *, is_link: bool) -> bool:
    """Return whether a text in brackets is the mark of a note.

    A number in square brackets is a mark, such as `[1]`. A number in round brackets, such as `(2)`, is a mark only if
    the text is a link. The brackets may hold several numbers, such as `[1, 3]`.
    """
    return _SQUARE_NUMBER.fullmatch(text) is not None or (is_link and _ROUND_NUMBER.fullmatch(text) is not None)


def is_mark_a_word(before: str) -> bool:
    """Return whether a mark such as `[1]` stands for a word, as in "see [1]", judging by the text before it.

    The result is False if the mark follows without a space or after the end of a sentence.
    """
    text = before.rstrip()
    return bool(text) and text != before and not _SENTENCE_MARK.search(text)


def is_after_word(before: str) -> bool:
    """Return whether the text before a linked number ends in a way that the number can be the mark of a note.

    The text must end with a word or with punctuation. The result is False after a script without spaces, since the
    number may be a word there.
    """
    last = before[-1:] or " "
    is_end = is_word_character(last) or last in f"{SENTENCE_MARKS},;\"'”’»)]}}،"
    return is_end and not is_unspaced_or_punctuation(last)


def formula_part(source: str, *, at_end: bool = False) -> str:
    """Return the part of a chemical formula at the start of a text, such as `CO` of CO<sub>2</sub>; "" without one.

    Args:
        source: the text, in which characters may be written as entities of HTML.
        at_end: return the part at the end instead.
    """
    text = unescape(source)
    match = _FORMULA_END.search(text) if at_end else _FORMULA_START.match(text)
    part = match[0] if match else ""
    return part if (source.endswith(part) if at_end else source.startswith(part)) else ""
