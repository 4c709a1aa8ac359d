"""Limit the size of documents, and read archives and XML so that untrusted files do no harm."""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat

import msgspec

from transduce.errors import TransduceError, import_extra


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the size of a document; the defaults suit files that untrusted users upload to a server."""

    max_bytes: int = 20 << 20
    """Maximum size of the file in bytes."""
    max_entries: int = 5_000
    """Maximum number of files in an archive such as .docx."""
    max_expanded_bytes: int = 100 << 20
    """Maximum size in bytes of all files of an archive together, after decompression."""
    max_characters: int = 2_000_000
    """Maximum number of characters to translate."""


LOCAL_LIMITS = Limits(max_bytes=1 << 30, max_entries=100_000, max_expanded_bytes=4 << 30, max_characters=1 << 30)
"""Limits on the size of a user's own documents, far above those for uploads."""


def check_size(content: bytes, limits: Limits) -> None:
    """Refuse the content of a document that has more bytes than `limits.max_bytes`.

    Raises:
        TransduceError: the content is larger.
    """
    if len(content) > limits.max_bytes:
        raise TransduceError(
            f"A document may have {limits.max_bytes:,} bytes, but this one has {len(content):,}: divide it."
        )


# --- archives ---


_ZIP_ERRORS = (EOFError, OverflowError, RuntimeError, ValueError, LookupError, struct.error, zlib.error)


class Archive:
    """A ZIP archive in memory whose files can be read and, on writing, replaced; their order stays."""

    def __init__(self, content: bytes, limits: Limits) -> None:
        """Check a ZIP archive, passed as bytes, against the limits, and then unpack all its files into memory.

        Raises:
            TransduceError: the archive is damaged, encrypted or too large, uses a compression other than Deflate, or
                has two files of one name, or has a file whose name points outside of the archive.
        """
        self._content = content
        self.files: dict[str, bytes] = {}
        """The content of each file by its name in the archive, without folders, in the archive's order."""
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                self.infos = archive.infolist()
                self.comment = archive.comment
                self._check(limits)
                for info in self.infos:
                    if not info.is_dir():
                        self.files[info.filename] = archive.read(info)
        except TransduceError:
            raise
        except (zipfile.BadZipFile, *_ZIP_ERRORS) as error:
            raise TransduceError(f"The document is a damaged archive ({error}): save it again.") from None

    def _check(self, limits: Limits) -> None:
        infos = self.infos
        if len(infos) > limits.max_entries:
            raise TransduceError(
                f"A document may have {limits.max_entries:,} files inside, but this one has {len(infos):,}."
            )
        size = sum(info.file_size for info in infos)
        if size > limits.max_expanded_bytes:
            raise TransduceError(
                f"A document may have {limits.max_expanded_bytes:,} bytes when unpacked, but this one has {size:,}."
            )
        if sum(info.compress_size for info in infos) > len(self._content):
            raise TransduceError("The document is a damaged archive (its files overlap): save it again.")
        names = [info.filename for info in infos]
        if len(set(names)) < len(names):
            raise TransduceError("The document is a damaged archive (two files have the same name): save it again.")
        for info in infos:
            if info.flag_bits & 1:
                raise TransduceError("The document is protected by a password: remove the password first.")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise TransduceError("The document uses a compression other than Deflate: save it again.")
            if _is_unsafe(info.orig_filename):
                raise TransduceError(
                    f"A document's files must be inside it, but one is named {info.orig_filename[:100]!r}: refused."
                )

    def write(self, changes: Mapping[str, bytes]) -> bytes:
        """Return the bytes of the archive with the content of some files replaced.

        Args:
            changes: the new content of each changed file, by its name in the archive.

        Returns:
            The new archive; the original bytes if no content differs from the old content.
        """
        changes = {name: content for name, content in changes.items() if self.files[name] != content}
        if not changes:
            return self._content
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.comment = self.comment
            for info in self.infos:
                new = zipfile.ZipInfo(info.filename, info.date_time)
                new.compress_type, new.external_attr = info.compress_type, info.external_attr
                new.create_system, new.comment = info.create_system, info.comment
                content = b"" if info.is_dir() else changes.get(info.filename, self.files.get(info.filename, b""))
                archive.writestr(new, content)
        return buffer.getvalue()


def _is_unsafe(name: str) -> bool:
    """Return whether the name of a file in a ZIP archive could lead outside of the folder where it is unpacked.

    Such names are absolute, start with a drive letter, or contain `..`, a backslash or a null character.
    """
    return "\0" in name or "\\" in name or name.startswith("/") or ".." in name.split("/") or name[1:2] == ":"


# --- XML ---

_DECLARED = re.compile(rb"""^<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")


def xml_encoding(content: bytes) -> str:
    """Return the encoding that the first line of an XML file (bytes) declares, in lower case; `utf-8` by default."""
    match = _DECLARED.match(content[:200])
    return "utf-8" if match is None else match[1].decode().lower()


def check_xml(text: str, name: str) -> None:
    """Refuse text that is not well-formed XML, or that declares a document type; return nothing otherwise.

    Args:
        text: the XML.
        name: name of the document's format for error messages, such as `XLIFF`.

    Raises:
        TransduceError: the text is not well-formed, or has a document type (`<!DOCTYPE …>`).
    """
    parser = expat.ParserCreate("utf-8")
    parser.StartDoctypeDeclHandler = lambda *_: _refuse_doctype(name)
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)  # noqa: FBT003
    except expat.ExpatError as error:
        raise TransduceError(f"The document is not well-formed {name} ({error}): save it again.") from None


def _refuse_doctype(name: str) -> None:
    raise TransduceError(f"{name} in the document declares a document type, which is refused: save it again.")


def parse_xml(content: bytes, name: str) -> Any:
    """Return the tree (`lxml.etree`) of an XML file; nothing outside the file is read.

    Args:
        content: the bytes of the file.
        name: its name in the document's archive, for error messages.

    Raises:
        TransduceError: the XML is malformed or declares a document type, or lxml is not installed.
    """
    etree = import_extra("lxml.etree", "documents")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, strip_cdata=False
    )
    try:
        tree = etree.ElementTree(etree.fromstring(content, parser))
    except etree.XMLSyntaxError as error:
        raise TransduceError(f"{name} in the document is not well-formed XML ({error}): save it again.") from None
    if tree.docinfo.internalDTD is not None:
        _refuse_doctype(name)
    return tree


def write_xml(tree: Any) -> bytes:
    """Return an `lxml.etree` tree as the bytes of an XML file, in the encoding that its source declared or UTF-8."""
    etree = import_extra("lxml.etree", "documents")
    info = tree.docinfo
    written = etree.tostring(tree, xml_declaration=True, encoding=info.encoding or "UTF-8", standalone=info.standalone)
    return bytes(written)


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Return a text without the control characters and other code points that XML 1.0 forbids."""
    return _NOT_XML.sub("", text)


def add_text(element: Any, text: str) -> None:
    """Append characters at the end of an XML element: to its text, or to the tail of its last child."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def clear(element: Any) -> None:
    """Remove the text and the children of an XML element; its attributes stay."""
    element.text = None
    del element[:]


_EXCEL_ESCAPE = re.compile("_x(?![Dd][89A-Fa-f])([0-9A-Fa-f]{4})_")


def unescaped(text: str) -> str:
    """Return a text of an Excel file with escapes such as `_x000D_` replaced by the characters they stand for."""
    return _EXCEL_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def escaped(text: str) -> str:
    """Return a text as Excel files store it, with control characters as escapes such as `_x000D_`.

    Tabs and line feeds stay. Text that only looks like an escape is escaped too, so that `unescaped` restores it.
    """
    text = _EXCEL_ESCAPE.sub(r"_x005F_x\1_", text)
    return re.sub("[\x00-\x08\x0b-\x1f]", lambda match: f"_x{ord(match[0]):04X}_", text)
