"""List the document formats that can be translated, recognize them by name and content, and read documents."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath
from typing import NamedTuple

from transduce.documents.icu_messages import with_divided_messages
from transduce.documents.limits import Archive, Limits, check_size
from transduce.documents.units import Document, DocumentSettings, TextFile
from transduce.errors import TransduceError
from transduce.text.languages import canonical, short_code


class Source(NamedTuple):
    """A document that is to be read: its bytes, the user's settings, and limits on its size."""

    content: bytes
    settings: DocumentSettings
    limits: Limits

    def text_file(self, encoding: str = "utf-8", *, is_markup: bool = False) -> TextFile:
        """Decode the document's bytes as a `TextFile`.

        Args:
            encoding: encoding of the content; a byte order mark or the setting `encoding` overrides it.
            is_markup: the file is HTML or XML, which can write characters that the encoding lacks as references.

        Raises:
            TransduceError: the content is not text in this encoding.
        """
        return TextFile(self.content, self.settings.encoding or encoding, is_markup=is_markup)

    def archive(self) -> Archive:
        """Unpack the document's bytes as a ZIP archive, within the limits on size, into an `Archive`.

        Raises:
            TransduceError: the content is not a ZIP archive, or the archive is damaged, unsafe or too large.
        """
        return Archive(self.content, self.limits)


class Format(NamedTuple):
    """A document format that can be translated: its names, file suffixes, media type and reading function."""

    name: str
    """The name of the format in the option `--format`, such as `docx`."""
    title: str
    """A description of the format for people, such as `Word document`."""
    suffixes: tuple[str, ...]
    """The suffixes of the format's file names, in lower case, such as `.html`; the first is the usual one."""
    reader: str
    """The module in this folder and the function that reads the format, such as `text_formats:read_text`; imported on
    use.
    """
    media_type: str
    """The media type of the format, such as `text/html`."""

    @property
    def is_archive(self) -> bool:
        """True if documents of this format are ZIP archives, not text."""
        return self.name not in {each.name for each in _TEXT_FORMATS}

    def read(self, source: Source) -> Document:
        """Read a document of this format: its texts to translate, and a function that writes it with translations.

        Raises:
            TransduceError: the content is not in this format or exceeds a limit, or a setting does not fit it.
        """
        module, _, function = self.reader.partition(":")
        read: Callable[[Source], Document] = getattr(import_module(f"transduce.documents.{module}"), function)
        return read(source)


_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN = "application/vnd.oasis.opendocument"
_TEXT_FORMATS = (
    Format("txt", "plain text", (".txt", ".text"), "text_formats:read_text", "text/plain"),
    Format("md", "Markdown", (".md", ".markdown"), "markdown:read_markdown", "text/markdown"),
    Format("html", "HTML", (".html", ".htm", ".xhtml"), "text_formats:read_html", "text/html"),
    Format("srt", "SubRip subtitles", (".srt",), "subtitles:read_srt", "application/x-subrip"),
    Format("vtt", "WebVTT subtitles", (".vtt",), "subtitles:read_vtt", "text/vtt"),
    Format("ass", "SubStation Alpha subtitles", (".ass", ".ssa"), "subtitles:read_ass", "text/x-ssa"),
    Format("po", "gettext catalog", (".po", ".pot"), "gettext_catalogs:read_po", "text/x-gettext-translation"),
    Format("xliff", "XLIFF", (".xliff", ".xlf"), "xliff:read_xliff", "application/xliff+xml"),
    Format("json", "JSON", (".json", ".arb"), "text_formats:read_json", "application/json"),
    Format("jsonl", "JSON Lines", (".jsonl", ".ndjson"), "text_formats:read_json_lines", "application/jsonl"),
    Format("csv", "comma-separated values", (".csv",), "text_formats:read_csv", "text/csv"),
    Format("tsv", "tab-separated values", (".tsv", ".tab"), "text_formats:read_tsv", "text/tab-separated-values"),
)
_ARCHIVE_FORMATS = (
    Format("docx", "Word document", (".docx",), "office:read_docx", f"{_OFFICE}.wordprocessingml.document"),
    Format("pptx", "PowerPoint file", (".pptx",), "office:read_pptx", f"{_OFFICE}.presentationml.presentation"),
    Format("xlsx", "Excel workbook", (".xlsx",), "office:read_xlsx", f"{_OFFICE}.spreadsheetml.sheet"),
    Format("odt", "OpenDocument text", (".odt",), "opendocument:read_opendocument", f"{_OPEN}.text"),
    Format("odp", "OpenDocument slides", (".odp",), "opendocument:read_opendocument", f"{_OPEN}.presentation"),
    Format("ods", "OpenDocument table", (".ods",), "opendocument:read_opendocument", f"{_OPEN}.spreadsheet"),
    Format("epub", "e-book", (".epub",), "text_formats:read_epub", "application/epub+zip"),
)
FORMATS = {each.name: each for each in (*_TEXT_FORMATS, *_ARCHIVE_FORMATS)}
"""All document formats that can be translated: a dict from a name such as `docx` to the `Format`."""

START_BYTES = 65_536
"""The number of bytes at the start of a file from which `recognize_text` recognizes its format."""
_BY_SUFFIX = {suffix: each for each in FORMATS.values() for suffix in each.suffixes}
_PROLOG = r"\s*+(?:<\?xml[^>]*+>\s*+|<!--(?:(?!-->).)*+-->\s*+)*+"
_STARTS = (
    ("vtt", re.compile(r"\s*WEBVTT(?:\s|\Z)")),
    ("srt", re.compile(r"\s*\d+[ \t]*\r?\n\s*\d+:\d\d:\d\d[,.]\d+[ \t]*-->")),
    ("ass", re.compile(r"\s*\[Script Info\]", re.IGNORECASE)),
    ("xliff", re.compile(rf"{_PROLOG}<xliff[\s>]", re.DOTALL)),
    ("html", re.compile(rf"{_PROLOG}<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE | re.DOTALL)),
    ("po", re.compile(r'(?:\s|#.*\n)*+msg(?:id|ctxt)\s+"')),
    ("json", re.compile(r'\s*(?:\{\s*"(?:[^"\\]|\\.)*"\s*:|\[\s*(?:[{\["]))')),
)
_XML_START = re.compile(r"\s*<(?:\?xml|!doctype)\s", re.IGNORECASE)
_OTHER_STARTS = (
    (b"%PDF-", "PDF"),
    (b"{\\rtf", "RTF"),
    (b"\xd0\xcf\x11\xe0", "an older Office format (.doc, .ppt, .xls) or a document protected by a password"),
    (b"\x1f\x8b", "gzip"),
    (b"\x89PNG", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
)


def known_suffixes() -> str:
    """Return one text of all formats' file suffixes, separated by spaces, for error messages."""
    return " ".join(_BY_SUFFIX)


def format_of_name(name: str) -> Format | None:
    """Return the `Format` that a file name's suffix stands for, in any case, or None if the suffix is unknown."""
    return _BY_SUFFIX.get(PurePath(name).suffix.lower())


def format_of_content(content: bytes) -> Format | None:
    """Recognize a document's format by its bytes alone, such as `WEBVTT` at the start or the files of a ZIP archive.

    Returns:
        The `Format`; None if the content shows none, as plain text, Markdown and tables do.
    """
    if content.startswith(b"PK\x03\x04"):
        return _format_of_archive(content)
    start = _decoded(content[:4096])
    found = next((name for name, pattern in _STARTS if pattern.match(start)), None)
    if found == "json" and (b"\n{" in content[:4096] or b"\n[" in content[:4096]) and not _is_json(content):
        found = "jsonl"
    elif found == "json" and not _is_json(content):
        found = None
    return FORMATS.get(found or "")


def _decoded(start: bytes) -> str:
    """Return bytes at the start of a file as text: UTF-16 if they begin with its byte order mark, otherwise UTF-8.

    Bytes that are no text are left out.
    """
    mark_16 = start.startswith((b"\xff\xfe", b"\xfe\xff"))
    return start.decode("utf-16" if mark_16 else "utf-8-sig", "ignore")


def _is_json(content: bytes) -> bool:
    """Return whether a file's bytes are one valid JSON value.

    Content of exactly `START_BYTES` bytes counts as valid without a check, because it may be the start of a file.
    """
    import json

    if len(content) == START_BYTES:
        return True
    try:
        json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return True


_ARCHIVE_PARTS = {"word/": "docx", "ppt/": "pptx", "xl/": "xlsx"}


def _format_of_archive(content: bytes) -> Format | None:
    """Recognize the document format of a ZIP archive, passed as bytes, without unpacking it.

    Returns:
        The `Format`; None if it is not recognized. If the first file is named `mimetype`, as in OpenDocument and EPUB,
        its content decides. Otherwise the format is an Office format if the archive lists a folder such as `word/`.
    """
    stored = re.match(rb"PK\x03\x04.{22}\x08\x00(?:..)mimetype([\w.+/-]{1,80})", content[:200], re.DOTALL)
    if stored is not None:
        declared = stored[1].partition(b"PK")[0].decode("ascii", "ignore")
        return next((each for each in FORMATS.values() if each.media_type == declared), None)
    for start, name in _ARCHIVE_PARTS.items():
        if start.encode() in content[-65_536:] and b"[Content_Types].xml" in content:
            return FORMATS[name]
    return None


_UNSUPPORTED = re.compile(
    r"\.(?:pdf|doc|ppt|xls|rtf|pages|key|numbers|odg|xml|ya?ml|toml|ini|tex|rst|adoc|properties|strings|resx|tmx|ttml|dfxp|"
    r"sub|sbv|lrc|smi|mobi|azw3|fb2|idml|svg|zip|png|jpe?g|gif|mp3|mp4)"
)


def recognize_text(name: str, start: bytes) -> None:
    """Refuse a file for line-by-line translation if its name or its start shows that it is not plain lines.

    Args:
        name: the file's name.
        start: the first `START_BYTES` bytes of its content, or all of a smaller file.

    Raises:
        TransduceError: the file is a document, or in a format that cannot be translated.
    """
    shown, suffix = PurePath(name).name, PurePath(name).suffix.lower()
    other = next((other for begin, other in _OTHER_STARTS if other != "gzip" and start.startswith(begin)), None)
    if other is not None or _UNSUPPORTED.fullmatch(suffix):
        raise TransduceError(
            f"{shown} is {other or f'named {suffix}'}, which cannot be translated: convert it to one of "
            f"{known_suffixes()}, or pass --format txt to translate its lines as they are."
        )
    found = format_of_content(start)
    if found is None and _XML_START.match(_decoded(start[:4096])):  # such as Qt's translations (.ts)
        raise TransduceError(
            f"{shown} is XML of a kind that cannot be translated: convert it to one of {known_suffixes()}, or pass "
            "--format txt to translate its lines as they are."
        )
    if found is not None or start.startswith(b"PK\x03\x04"):
        what, remedy = ("an archive", "") if found is None else (found.title, f"--format {found.name}, or ")
        raise TransduceError(
            f"{shown} looks like {what}: pass {remedy}--format txt to translate its lines as they are."
        )


def recognize(name: str, content: bytes, format: str | None = None) -> Format:
    """Return the `Format` of a document, by the suffix of its name.

    Args:
        name: the file's name.
        content: the file's content, which must not contradict the suffix.
        format: the name of the format, such as `srt`; name and content are then ignored. None: the suffix decides.

    Raises:
        TransduceError: the format is unknown or cannot be translated, or the content contradicts the name.
    """
    if format is not None:
        if format not in FORMATS:
            raise TransduceError(f"`format` must be one of {', '.join(FORMATS)}, but is {format!r}.")
        return FORMATS[format]
    shown = PurePath(name).name or "The document"
    for start, other in _OTHER_STARTS:
        if content.startswith(start):
            raise TransduceError(
                f"{shown} is {other}, which cannot be translated: convert it to one of {known_suffixes()}."
            )
    by_name, by_content = format_of_name(name), format_of_content(content)
    hint = "" if by_content is None else f" It looks like {by_content.title}: set `format` to {by_content.name}."
    if by_name is None and by_content is FORMATS["json"]:  # such as string catalogs of Xcode, whose keys are texts
        hint += " Also name the texts to translate by `fields`: other texts, such as notes, are translated without it."
    if by_name is None:
        raise TransduceError(f"{shown} has a suffix of no known format (known are {known_suffixes()}).{hint}")
    if by_name.is_archive != content.startswith(b"PK\x03\x04"):
        content_is = "not an archive" if by_name.is_archive else "an archive"
        raise TransduceError(f"{shown} should be {by_name.title} by its name, but its content is {content_is}.{hint}")
    if by_content is not None and by_content is not by_name and _is_contradiction(by_name, by_content):
        raise TransduceError(
            f"{shown} looks like {by_content.title}, not {by_name.title}: set `format` to {by_content.name}, or to "
            f"{by_name.name} to translate it as it is named."
        )
    return by_name


def _is_contradiction(by_name: Format, by_content: Format) -> bool:
    """Return whether the format of a document's content contradicts the different format of its name.

    If the name is that of an archive format or of plain text, content of any other format contradicts it. SRT and
    WebVTT contradict each other, and so do HTML and XLIFF. For any other pair of formats there is no contradiction: the
    name decides.
    """
    return (
        by_name.is_archive
        or by_name.name == "txt"
        or {by_name.name, by_content.name} in ({"srt", "vtt"}, {"html", "xliff"})
    )


def read_document(name: str, content: bytes, settings: DocumentSettings, limits: Limits) -> Document:
    """Read a document of any known format: its texts to translate, and a function that writes it with translations.

    The result is a `Document`, in which ICU messages with branches are divided into sentences.

    Args:
        name: the file's name, whose suffix shows the format.
        content: its content.
        settings: the format, and which texts to translate.
        limits: limits on size.

    Raises:
        TransduceError: the format is unknown, the content is damaged or exceeds a limit, a setting does not fit the
            format, or an archive has no text to translate.
    """
    check_size(content, limits)
    found = recognize(name, content, settings.format)
    _check_settings(settings, found)
    document = found.read(Source(content, settings, limits))
    document = with_divided_messages(document)
    if found.name in ("po", "xliff") and settings.target_language is not None:
        document = document._replace(other_language=_other_language(content, settings.target_language))
    if found.is_archive and not document.units:
        raise TransduceError(f"{PurePath(name).name or 'The document'} has no text that can be translated.")
    characters = sum(len(unit.text) for unit in document.units)
    if characters > limits.max_characters:
        raise TransduceError(
            f"A document may have {limits.max_characters:,} characters to translate, but this one has {characters:,}: "
            "divide it."
        )
    return document


_DECLARED_LANGUAGE = re.compile(
    rb"""^"Language:\s*([A-Za-z_-]{2,20})[@\\]|<(?:file|xliff)\s[^<>]*?\s(?:target-language|trgLang)\s*=\s*["']([\w-]{2,20})""",
    re.MULTILINE,
)


def _other_language(content: bytes, language: str) -> str | None:
    """Return the target language that a PO or XLIFF file declares; None if it declares `language` or nothing."""
    match = _DECLARED_LANGUAGE.search(content)
    declared = "" if match is None else (match[1] or match[2]).decode("ascii", "ignore")
    return declared if declared and short_code(canonical(declared)) != short_code(canonical(language)) else None


_FORMATS_OF_SETTING = {
    "columns": ("csv", "tsv"),
    "fields": ("json", "jsonl"),
    "keep_source": ("txt", "srt", "vtt", "ass", "po", "xliff"),
    "join_lines": ("txt",),
    "overwrite": ("po", "xliff"),
    "overwrite_fuzzy": ("po",),
    "mark_fuzzy": ("po",),
    "encoding": tuple(each.name for each in _TEXT_FORMATS),
}


def _check_settings(settings: DocumentSettings, format: Format) -> None:
    for name, formats in _FORMATS_OF_SETTING.items():
        if getattr(settings, name) and format.name not in formats:
            raise TransduceError(
                f"`{name}` applies to {', '.join(formats)}, but the document is {format.name}: leave it out."
            )
