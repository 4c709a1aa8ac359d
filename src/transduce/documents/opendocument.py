"""Read OpenDocument files (LibreOffice), and write them with translations."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from transduce.documents.formats import Source
from transduce.documents.limits import add_text, clear, parse_xml, xml_text
from transduce.documents.office import Paragraph, PartFile, document_of_archive, goes_on, names_in
from transduce.documents.units import Document, InlinePart, Tag, find_code_styles, is_code_style, split_at
from transduce.errors import TransduceError

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_REVISION = "{http://openoffice.org/2009/office}"

_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_CONTAINERS = {f"{_TEXT}span", f"{_TEXT}a", f"{_TEXT}meta"}
_MARKS = (
    "bookmark bookmark-start bookmark-end reference-mark reference-mark-start reference-mark-end change change-start "
    "change-end alphabetical-index-mark alphabetical-index-mark-start alphabetical-index-mark-end toc-mark "
    "toc-mark-start toc-mark-end user-index-mark user-index-mark-start user-index-mark-end"
)
_INVISIBLE = names_in(_TEXT, _MARKS) | names_in(_OFFICE, "annotation annotation-end")
_WORDLESS = _INVISIBLE | names_in(_TEXT, "note tab line-break ruby-text")
_RUBY, _RUBY_BASE = f"{_TEXT}ruby", f"{_TEXT}ruby-base"  # words with their pronunciation above them
_SPACES = " \t\r\n"  # of which several count as one


def read_opendocument(source: Source) -> Document:
    """Read an OpenDocument file as a `Document` to translate: paragraphs, text cells, headers and footers, charts.

    Raises:
        TransduceError: the document is damaged or protected by a password.
    """
    archive = source.archive()
    if "META-INF/manifest.xml" in archive.files and b"encryption-data" in archive.files["META-INF/manifest.xml"]:
        raise TransduceError("The document is protected by a password: remove the password first.")
    files = []
    for name, content in sorted(archive.files.items(), key=lambda file: file[0] != "content.xml"):
        is_chart = re.fullmatch(r"(?:Object[^/]*/)+content\.xml", name) and b"xmlns:text" in content  # no formula
        if is_chart or name in ("content.xml", "styles.xml"):
            tree = parse_xml(content, name)
            files.append(PartFile(name, tree, list(_paragraphs(tree.getroot()))))
    roots = [file.tree.getroot() for file in files if file.name == "content.xml"]
    formulas = (cell.get(f"{_TABLE}formula") or "" for root in roots for cell in root.iter(f"{_TABLE}table-cell"))
    return document_of_archive(archive, files, formulas=formulas)


def _paragraphs(root: Any) -> Iterator["_OpenDocumentParagraph"]:
    """Yield an `_OpenDocumentParagraph` for each paragraph with text to translate, below a file's root element.

    Code, deleted text, and cells with numbers or formulas are left out.
    """
    styles = _Styles(root)
    deleted = {each for changes in root.iter(f"{_TEXT}tracked-changes") for each in changes.iter(*_PARAGRAPHS)}
    for element in root.iter(*_PARAGRAPHS):
        parent = element.getparent()
        is_cell = parent is not None and parent.tag == f"{_TABLE}table-cell"
        is_computed = is_cell and (
            parent.get(f"{_OFFICE}value-type", "string") != "string" or parent.get(f"{_TABLE}formula") is not None
        )
        if element not in deleted and not is_computed and not styles.is_code(element):
            paragraph = _OpenDocumentParagraph(element, styles)
            if paragraph.units:
                yield paragraph


class _Styles:
    """The styles that an OpenDocument file defines itself, such as `P1`, for recognizing code and plain formatting."""

    def __init__(self, root: Any) -> None:
        styles = list(root.iter(f"{_STYLE}style"))
        names = [(each.get(f"{_STYLE}name", ""), each.get(f"{_STYLE}parent-style-name")) for each in styles]
        self._code = find_code_styles((name, name, parent) for name, parent in names)
        # Some styles only number the editing sessions of a document.
        self._without_effect = {
            name
            for style, (name, parent) in zip(styles, names, strict=True)
            if parent is None
            and style.get(f"{_STYLE}family") == "text"
            and all(attribute.startswith(_REVISION) for child in style for attribute in child.attrib)
        }

    def has_no_effect(self, element: Any) -> bool:
        """Return whether an OpenDocument element's own character style changes nothing about how text looks.

        Tags of such elements can be dropped.
        """
        return element.get(f"{_TEXT}style-name", "") in self._without_effect

    def is_code(self, element: Any) -> bool:
        """Return whether an OpenDocument element's style is one for code, or based on one, by its name."""
        name = element.get(f"{_TEXT}style-name")
        return is_code_style(name) or name in self._code


class _OpenDocumentParagraph(Paragraph):
    """A paragraph of an OpenDocument file, read as texts with inline tags, which can be written back translated."""

    range_ids = (f"{_OFFICE}name", *(f"{_TEXT}{name}" for name in ("name", "id", "change-id")))

    def __init__(self, element: Any, styles: "_Styles") -> None:
        self.element = element
        self.styles = styles
        self.payloads: list[Any] = []
        self._ignores_space, self._last_text = True, ""
        separators: set[Tag] = set()
        self.texts = split_at(list(self._parts(element, separators)), separators)

    def _parts(self, parent: Any, separators: set[Tag]) -> Iterator[InlinePart]:
        """Yield the strings and inline tags in an XML element.

        Tags at which a text ends, such as tabs, are added to the set `separators`.
        """
        yield self._collapsed(parent.text)
        for child in parent:
            number = len(self.payloads)
            if child.tag == f"{_TEXT}s":
                self._ignores_space = False
                yield " " * _space_count(child)
            elif child.tag in _CONTAINERS and self.styles.has_no_effect(child):
                yield from self._parts(child, separators)
            elif (child.tag in _CONTAINERS and not self.styles.is_code(child)) or _holder(child) is not child:
                self.payloads.append(child)
                yield Tag("open", number)
                yield from self._parts(_holder(child), separators)
                yield Tag("close", number)
            elif child.tag != f"{_TEXT}soft-page-break" and isinstance(child.tag, str):
                self.payloads.append(child)
                is_wordless = child.tag in _WORDLESS or child.tag.startswith(_DRAW)
                is_break, is_tab = child.tag == f"{_TEXT}line-break", child.tag == f"{_TEXT}tab"
                tag = Tag("break" if is_break else "empty" if is_wordless else "object", number)
                if is_tab or (is_break and not goes_on(self._last_text, self._text_after(child))):
                    separators.add(tag)
                self._ignores_space &= child.tag in _INVISIBLE
                yield tag
            yield self._collapsed(child.tail)

    def _collapsed(self, text: str | None) -> str:
        """Return a text with white space as programs show it; None gives "".

        A sequence of white space becomes one space. It is left out at the start of the paragraph or after another
        space.
        """
        if not text:
            return ""
        is_after_space, self._ignores_space, self._last_text = self._ignores_space, text[-1] in _SPACES, text
        collapsed = re.sub(f"[{_SPACES}]+", " ", text)
        return collapsed.removeprefix(" ") if is_after_space else collapsed

    def _text_after(self, element: Any) -> str:
        """Return the first text in the paragraph that follows an XML element; "" if a line break comes before it."""
        text = element.tail
        while not text and element is not self.element:
            following = element.getnext()
            if following is not None and following.tag == f"{_TEXT}line-break":
                return ""
            element = element.getparent() if following is None else following
            text = element.tail if following is None else "".join(following.itertext()) or following.tail
        return "" if element is self.element else text

    @override
    def _element(self, tag: Tag) -> Any:
        return self.payloads[tag.id]

    @override
    def _rebuild(self, parts: Sequence[InlinePart]) -> None:
        holders, is_after_space = [self.element], True
        clear(self.element)
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
                    holders.append(_holder(element))
                    clear(holders[-1])
        cell = self.element.getparent()
        if cell is not None and cell.get(f"{_OFFICE}string-value") is not None:
            lines = ("".join(_characters(each)) for each in cell.iterchildren(f"{_TEXT}p"))
            cell.set(f"{_OFFICE}string-value", "\n".join(lines))


def _holder(element: Any) -> Any:
    """Return the XML element that holds the text of an OpenDocument element.

    The result is the base text for ruby (text with a pronunciation), and otherwise the element itself.
    """
    base = element.find(_RUBY_BASE) if element.tag == _RUBY else None
    return element if base is None else base


def _characters(element: Any) -> Iterator[str]:
    """Yield the strings in an OpenDocument element; elements for spaces, tabs and line breaks give these characters."""
    yield element.text or ""
    for child in element:
        if child.tag == f"{_TEXT}s":
            yield " " * _space_count(child)
        elif child.tag in (f"{_TEXT}tab", f"{_TEXT}line-break"):
            yield "\t" if child.tag == f"{_TEXT}tab" else "\n"
        elif child.tag not in _WORDLESS and isinstance(child.tag, str):
            yield from _characters(child)
        yield child.tail or ""


def _space_count(element: Any) -> int:
    """Return the number of spaces that an OpenDocument element `text:s` stands for: 1 by default, at most 1,000."""
    count = element.get(f"{_TEXT}c", "1")
    return min(1_000, int(count)) if count.isdecimal() and len(count) < 10 else 1


def _append_text(holder: Any, text: str, *, is_after_space: bool) -> bool:
    """Append a text to an OpenDocument element, and return whether the element's text now ends with a space.

    Spaces that OpenDocument would collapse (all but the first of a run) are written as elements.
    """
    for index, word in enumerate(xml_text(text).split(" ")):
        if index and not is_after_space:
            add_text(holder, " ")
        elif index and len(holder) and holder[-1].tag == f"{_TEXT}s" and not holder[-1].tail:
            holder[-1].set(f"{_TEXT}c", str(_space_count(holder[-1]) + 1))
        elif index:
            holder.append(holder.makeelement(f"{_TEXT}s"))
        if word:
            add_text(holder, word)
        is_after_space = not word and (is_after_space or index > 0)
    return is_after_space
