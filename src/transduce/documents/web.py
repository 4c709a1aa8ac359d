"""Readers of HTML files and of e-books (EPUB), which are archives of HTML files."""

import posixpath
import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Any
from urllib.parse import unquote

from transduce.documents.formats import Source
from transduce.documents.limits import Archive, parse_xml, xml_encoding
from transduce.documents.units import Document, Edit, TextFile, Unit, has_letters
from transduce.errors import TransduceError

_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)


def read_html(source: Source) -> Document:
    """Return the document of an HTML file, which is one unit."""
    return _html_document(source.text_file(_html_encoding(source.content), is_markup=True))


def _html_encoding(content: bytes) -> str:
    """Return the encoding that an HTML file without a byte order mark declares."""
    declared = _CHARSET.search(content[:4096])
    return xml_encoding(content) if declared is None else declared[1].decode()


def _html_document(file: TextFile) -> Document:
    unit = Unit(file.text, "html")
    edits = [Edit(0, len(file.text), [unit], lambda translations: translations[0])] if has_letters(file.text) else []
    return file.document(edits)


_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_LABEL = re.compile(r"(<(?:\w+:)?text(?:\s[^<>]*)?>)([^<>]*)(?=</)")


def read_epub(source: Source) -> Document:
    """Return the document of an e-book: its pages and its table of contents.

    Raises:
        TransduceError: the book has copy protection, or its list of files is damaged.
    """
    archive = source.archive()
    if _CONTAINER not in archive:
        raise TransduceError(f"The document should be an e-book, but lacks {_CONTAINER}: save it again.")
    documents: dict[str, Document] = {}
    for name, media_type in _manifest(archive):
        if name not in archive:
            continue
        if media_type == "application/xhtml+xml":
            if _ENCRYPTION in archive and name.encode() in archive[_ENCRYPTION]:
                raise TransduceError("The e-book has copy protection, so its text cannot be read.")
            documents[name] = _html_document(TextFile(archive[name], _html_encoding(archive[name]), is_markup=True))
        elif media_type == "application/x-dtbncx+xml":
            documents[name] = _labels(TextFile(archive[name], xml_encoding(archive[name]), is_markup=True))
    units = [unit for document in documents.values() for unit in document.units]

    def write(translations: Sequence[str]) -> bytes:
        position, changes = 0, {}
        for name, document in documents.items():
            count = len(document.units)
            changes[name] = document.write(translations[position : position + count])
            position += count
        return archive.write(changes)

    return Document(units, write)


def _manifest(archive: Archive) -> list[tuple[str, str]]:
    """Return the name and the media type of each file that the package documents of a book list."""
    files: list[tuple[str, str]] = []
    for rootfile in _elements(archive, _CONTAINER, "rootfile"):
        package = rootfile.get("full-path", "")
        if package not in archive:
            raise TransduceError(f"The document should be an e-book, but lacks {package!r}: save it again.")
        for item in _elements(archive, package, "item"):
            path = posixpath.join(posixpath.dirname(package), unquote(item.get("href", "")))
            files.append((posixpath.normpath(path), item.get("media-type", "")))
    return list(dict.fromkeys(files))


def _elements(archive: Archive, name: str, element: str) -> list[Any]:
    return list(parse_xml(archive[name], name).getroot().iter(f"{{*}}{element}"))


def _labels(file: TextFile) -> Document:
    """Return the document of an e-book's table of contents (NCX), whose labels are its units."""
    edits = [
        Edit(match.start(2), match.end(2), [Unit(unescape(match[2]))], lambda new: escape(new[0], quote=False))
        for match in _LABEL.finditer(file.text)
        if has_letters(match[2])
    ]
    return file.document(edits)
