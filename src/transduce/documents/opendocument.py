"""Readers of OpenDocument files: texts, presentations and spreadsheets."""

from collections.abc import Iterator, Sequence
from typing import Any

from transduce.documents.formats import Source
from transduce.documents.limits import parse_xml, write_xml
from transduce.documents.office import xml_text
from transduce.documents.units import Document, InlineText, Part, Tag, Unit, has_letters, is_code_style, split_at
from transduce.errors import TransduceError

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_REVISION = "{http://openoffice.org/2009/office}"

_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_CONTAINERS = {f"{_TEXT}span", f"{_TEXT}a", f"{_TEXT}meta"}
_IGNORED = {f"{_TEXT}soft-page-break"}
_NAMES = (
    "note bookmark bookmark-start bookmark-end reference-mark reference-mark-start reference-mark-end change "
    "change-start change-end alphabetical-index-mark toc-mark user-index-mark tab line-break"
)
_WORDLESS = {f"{_OFFICE}annotation", f"{_OFFICE}annotation-end"} | {_TEXT + name for name in _NAMES.split()}


def read_opendocument(source: Source) -> Document:
    """Return the document of an OpenDocument file: paragraphs, headings, cells of text, headers and footers."""
    archive = source.archive()
    if "META-INF/manifest.xml" in archive and b"encryption-data" in archive["META-INF/manifest.xml"]:
        raise TransduceError("The document is protected by a password: remove the password first.")
    files = [(name, parse_xml(archive[name], name)) for name in ("content.xml", "styles.xml") if name in archive]
    paragraphs = [(name, each) for name, tree in files for each in _paragraphs(tree.getroot())]
    units = [unit for _, paragraph in paragraphs for unit in paragraph.units]

    def write(translations: Sequence[str]) -> bytes:
        position, changed = 0, set()
        for name, paragraph in paragraphs:
            sources = [unit.text for unit in paragraph.units]
            own = list(translations[position : position + len(sources)])
            position += len(sources)
            if own != sources:
                paragraph.write(own)
                changed.add(name)
        return archive.write({name: write_xml(tree) for name, tree in files if name in changed})

    return Document(units, write)


def _paragraphs(root: Any) -> Iterator["_Paragraph"]:
    """Yield the paragraphs with text to translate, without texts that show a number or a formula's result."""
    styles = _Styles(root)
    deleted = {each for changes in root.iter(f"{_TEXT}tracked-changes") for each in changes.iter(*_PARAGRAPHS)}
    for element in root.iter(*_PARAGRAPHS):
        parent = element.getparent()
        is_cell = parent is not None and parent.tag == f"{_TABLE}table-cell"
        is_computed = is_cell and (
            parent.get(f"{_OFFICE}value-type", "string") != "string" or parent.get(f"{_TABLE}formula") is not None
        )
        if element not in deleted and not is_computed and not styles.is_code(element):
            paragraph = _Paragraph(element, styles)
            if paragraph.units:
                yield paragraph


class _Styles:
    """The styles that a file defines itself, which have names without a meaning and may have a parent style."""

    def __init__(self, root: Any) -> None:
        self._parents: dict[str, str] = {}
        self._without_effect: set[str] = set()
        for style in root.iter(f"{_STYLE}style"):
            name, parent = style.get(f"{_STYLE}name", ""), style.get(f"{_STYLE}parent-style-name")
            properties = [attribute for child in style for attribute in child.attrib]
            is_plain = parent is None and style.get(f"{_STYLE}family") == "text"
            # Some styles only number the editing sessions of a document.
            if is_plain and all(attribute.startswith(_REVISION) for attribute in properties):
                self._without_effect.add(name)
            if parent is not None:
                self._parents[name] = parent

    def has_no_effect(self, element: Any) -> bool:
        """Return whether the style of an element changes nothing about how text looks."""
        return element.get(f"{_TEXT}style-name", "") in self._without_effect

    def is_code(self, element: Any) -> bool:
        """Return whether the style of an element, or the style that it is derived from, is one for code."""
        name = element.get(f"{_TEXT}style-name")
        return is_code_style(name) or is_code_style(self._parents.get(name or ""))


class _Paragraph:
    """A paragraph of an OpenDocument file, as texts and tags."""

    def __init__(self, element: Any, styles: "_Styles") -> None:
        self.element = element
        self.styles = styles
        self.payloads: list[Any] = []
        separators: set[Tag] = set()
        self.texts = split_at(list(self._parts(element, separators)), separators)

    @property
    def units(self) -> list[Unit]:
        """The units of the paragraph that are to be translated."""
        return [text.unit for text in self.texts if isinstance(text, InlineText) and has_letters(text.plain)]

    def _parts(self, parent: Any, separators: set[Tag]) -> Iterator[Part]:
        """Yield the texts and tags of an element of the paragraph."""
        yield _collapsed(parent.text)
        for child in parent:
            number = len(self.payloads)
            if child.tag == f"{_TEXT}s":
                yield " " * _space_count(child)
            elif child.tag in _CONTAINERS and self.styles.has_no_effect(child):
                yield from self._parts(child, separators)
            elif child.tag in _CONTAINERS and not self.styles.is_code(child):
                self.payloads.append(child)
                yield Tag("open", number)
                yield from self._parts(child, separators)
                yield Tag("close", number)
            elif child.tag not in _IGNORED and isinstance(child.tag, str):
                self.payloads.append(child)
                is_wordless = child.tag in _WORDLESS or child.tag.startswith(_DRAW)
                is_break = child.tag == f"{_TEXT}line-break"
                tag = Tag("break" if is_break else "empty" if is_wordless else "object", number)
                if child.tag == f"{_TEXT}tab" or (is_break and _ends_text(child)):
                    separators.add(tag)
                yield tag
            yield _collapsed(child.tail)

    def write(self, translations: Sequence[str]) -> None:
        """Replace the texts of the paragraph by their translations."""
        waiting = list(translations)
        parts: list[Part] = []
        for text in self.texts:
            if not isinstance(text, InlineText):
                parts.append(text)
            else:
                parts += text.translated(waiting.pop(0)) if has_letters(text.plain) else text.parts
        holders, is_after_space = [self.element], True
        _clear(self.element)
        for part in parts:
            if isinstance(part, str):
                is_after_space = _append_text(holders[-1], part, is_after_space=is_after_space)
            elif part.kind == "close":
                holders.pop()
            else:
                element = self.payloads[part.id]
                element.tail = None
                holders[-1].append(element)
                is_after_space = is_after_space or element.tag in (f"{_TEXT}tab", f"{_TEXT}line-break")
                if part.kind == "open":
                    _clear(element)
                    holders.append(element)
        cell = self.element.getparent()
        if cell is not None and cell.get(f"{_OFFICE}string-value") is not None:
            cell.set(f"{_OFFICE}string-value", "".join(self.element.itertext()))


def _space_count(element: Any) -> int:
    """Return the number of spaces that an element stands for, at most 1,000."""
    count = element.get(f"{_TEXT}c", "1")
    return min(1_000, int(count)) if count.isdecimal() and len(count) < 10 else 1


def _append_text(holder: Any, text: str, *, is_after_space: bool) -> bool:
    """Append a text; spaces that XML would collapse become elements. Return whether the text ends with a space."""
    for index, word in enumerate(xml_text(text).split(" ")):
        if index and not is_after_space:
            _append_characters(holder, " ")
        elif index and len(holder) and holder[-1].tag == f"{_TEXT}s" and not holder[-1].tail:
            holder[-1].set(f"{_TEXT}c", str(_space_count(holder[-1]) + 1))
        elif index:
            holder.append(holder.makeelement(f"{_TEXT}s"))
        if word:
            _append_characters(holder, word)
        is_after_space = not word and (is_after_space or index > 0)
    return is_after_space


def _append_characters(holder: Any, text: str) -> None:
    """Append characters to the text of an element, or to the tail of its last child."""
    if len(holder):
        holder[-1].tail = (holder[-1].tail or "") + text
    else:
        holder.text = (holder.text or "") + text


def _clear(element: Any) -> None:
    element.text = None
    for child in list(element):
        element.remove(child)


def _collapsed(text: str | None) -> str:
    """Return a text of the file with line breaks and tabs replaced by spaces; an empty text for None."""
    return " ".join((text or "").replace("\n", " ").replace("\t", " ").split(" ")) if text else ""


def _ends_text(line_break: Any) -> bool:
    """Return whether a line break ends a text, as in an address; inside a sentence it does not."""
    previous = line_break.getprevious()
    before = (previous.tail if previous is not None else line_break.getparent().text) or ""
    after = (line_break.tail or "").lstrip()
    return not (after[:1].islower() and (before.rstrip()[-1:].isalnum() or before.rstrip().endswith(",")))
