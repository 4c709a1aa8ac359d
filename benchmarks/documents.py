"""Check that translation changes nothing in documents but their text: 200 documents in all formats.

    python benchmarks/documents.py                 # random documents, and files in tests/documents/files
    python benchmarks/documents.py --count 1000
    python benchmarks/documents.py --quick

Each document is translated in two ways without a model. An identity translation must give the same bytes (gettext
catalogs and XLIFF: a second one must change nothing). A translation into capital letters must keep the structure, which
other libraries read: time codes, identifiers, keys, code, links, formulas, styles, and the entries of archives; and no
text may stay as it was. The bar is that all documents pass.
"""

import csv
import io
import itertools
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from document_files import MAKERS, make
from report import Row, parser, report

from transduce.documents.formats import FORMATS, format_of_name
from transduce.documents.markup import markup_plan
from transduce.documents.translate import translate_upload
from transduce.documents.units import DocumentSettings, UnitKind

FILES = Path(__file__).resolve().parents[1] / "tests" / "documents" / "files"
_ALREADY_BILINGUAL = ("po", "xliff")
_NO_ESCAPES = ("srt", "vtt", "ass")  # in which any text may be a tag
_CAPITALS = {ord(letter): letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"}
_LOWER = re.compile(r"\b[a-z]{4,}\b")


def same(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
    """Return the texts unchanged."""
    return list(texts)


def capitals(texts: Sequence[str], kind: UnitKind) -> list[str]:
    """Return the texts in capital letters, with the same tags and entities."""
    if kind == "text":
        return [text.translate(_CAPITALS) for text in texts]
    if kind == "xml":
        return [re.sub(r"<[^>]*>|&\w+;|[^<&]+", _capital_text, text) for text in texts]
    return [_capital_html(text) for text in texts]


def _capital_text(match: re.Match[str]) -> str:
    return match[0] if match[0][0] in "<&" else match[0].translate(_CAPITALS)


def _capital_html(text: str) -> str:
    planned = markup_plan(text, spaced=True)
    return planned.assemble([sentence.translate(_CAPITALS) for sentence in planned.sentences], planned.marks)


def backwards(texts: Sequence[str], kind: UnitKind) -> list[str]:
    """Return the texts with their words, and the elements around words, in reverse order."""
    if kind in ("html", "message"):
        return capitals(texts, kind)
    return [_reversed(text) if kind == "xml" else " ".join(reversed(text.split(" "))) for text in texts]


_SIGNS = ["*", "_x_", "1.", "#", "-", "`", "<b>", "[a](b)", "&amp;", "|", '"', "\\", "~~~", "==", "{x}", ",", ";", ">"]


def signs(texts: Sequence[str], kind: UnitKind) -> list[str]:
    """Return the texts with each word replaced by signs that mean something in one of the formats."""
    if kind in ("html", "message"):
        return capitals(texts, kind)
    waiting = itertools.cycle(_SIGNS)

    def replaced(match: re.Match[str]) -> str:
        sign = next(waiting)
        return match[0] if match[0][0] in "<&" else escape(sign, quote=False) if kind == "xml" else sign

    pattern = r"<[^>]*>|&\w+;|[^<& ]+" if kind == "xml" else r"[^ ]+"
    return [re.sub(pattern, replaced, text) for text in texts]


def _reversed(text: str) -> str:
    parts: list[str] = []
    depth = 0
    for match in re.finditer(r"<[^>]*>|&\w+;|[^<& ]+| +", text):
        is_tag = match[0].startswith("<") and not match[0].endswith("/>")
        if depth:
            parts[-1] += match[0]
        else:
            parts.append(match[0])
        depth += (-1 if match[0].startswith("</") else 1) if is_tag else 0
    return "".join(reversed(parts))


def faults(format: str, content: bytes, name: str = "") -> Iterator[str]:
    """Yield a description of each part of a document that translation damages, or of text that it leaves unchanged."""
    settings = DocumentSettings(format=format, columns=("text",) if format in ("csv", "tsv") and not name else ())
    copy = translate_upload(content, name, same, settings)
    if format in _ALREADY_BILINGUAL:
        if translate_upload(copy, name, same, settings) != copy:
            yield "a second identity translation changes the document"
    elif copy != content:
        yield "an identity translation changes the document"
    translated = translate_upload(content, name, capitals, settings)
    before = structure(format, content)
    others = [backwards] if format in _NO_ESCAPES else [backwards, signs]
    for other in (translated, *(translate_upload(content, name, each, settings) for each in others)):
        after = structure(format, other)
        if before != after:
            yield f"the structure changes: {_difference(before, after)}"
    left = [word for text in texts(format, translated) for word in _LOWER.findall(text)]
    if left and not name:
        yield f"texts stay as they were: {' '.join(left[:5])}"


def _difference(before: Any, after: Any) -> str:
    pairs = zip(before, after, strict=False) if isinstance(before, list) and isinstance(after, list) else []
    return next((f"{one!r} → {other!r}"[:600] for one, other in pairs if one != other), f"{before!r} → {after!r}"[:600])


# --- structures, as other libraries read them ---


def structure(format: str, content: bytes) -> Any:
    """Return the structure of a document that translation must keep, as another library reads it."""
    if FORMATS[format].is_archive:
        return _archive_structure(format, content)
    text = content.decode("utf-8-sig")
    marks = [content[:3] == b"\xef\xbb\xbf", "\r\n" in text, text.endswith("\n")]
    return [*marks, *{
        "txt": _lines,
        "md": _markdown,
        "html": _tags,
        "srt": _subtitles,
        "vtt": _subtitles,
        "ass": _subtitles,
        "po": _catalog,
        "xliff": _xliff,
        "json": lambda text: [_shape(json.loads(text)), re.sub(r'"(?:[^"\\]|\\.)*"', "", text)],
        "jsonl": lambda text: [_shape(json.loads(line)) for line in text.splitlines()],
        "csv": _rows,
        "tsv": _rows,
    }[format](text)]  # fmt: skip


def _lines(text: str) -> list[Any]:
    return [re.sub(r"\S.*\S|\S", "text", line) for line in text.split("\n")]


def _markdown(text: str) -> list[Any]:
    from markdown_it import MarkdownIt

    front = re.match(r"---\r?\n.*?\r?\n---\r?\n", text, re.DOTALL)
    body = text[front.end() if front else 0 :].replace("[^", "(^")  # CommonMark would read footnotes as links
    blocks: list[Any] = [front[0] if front else ""]
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body):
        is_code = token.type in ("fence", "code_block")
        blocks.append((token.type, token.tag, token.info, token.level, token.content if is_code else ""))
        children: Counter[str] = Counter()
        for child in token.children or []:
            is_kept = child.type in ("code_inline", "html_inline")
            attributes = {key: value for key, value in child.attrs.items() if key != "alt"}
            if child.type not in ("text", "softbreak", "text_special"):
                children[f"{child.type} {attributes} {child.content if is_kept else ''}"] += 1
        blocks.append(children)
    return blocks


class _TagReader(HTMLParser):
    """A reader of the tags and comments of HTML."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.events: list[Any] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.events.append((tag, attrs))

    def handle_endtag(self, tag: str) -> None:
        self.events.append(tag)

    def handle_comment(self, data: str) -> None:
        self.events.append(data)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _tags(text: str) -> list[Any]:
    reader = _TagReader()
    reader.feed(text)
    return sorted(map(repr, reader.events))


def _subtitles(text: str) -> list[Any]:
    import pysubs2

    events = [(each.start, each.end, each.style, each.type) for each in pysubs2.SSAFile.from_string(text)]
    tags = sorted(re.findall(r"<[^<>]*>|\{[^{}]*\}", text))
    kept = [
        line.strip()
        for line in text.splitlines()
        if "-->" in line or re.match(r"NOTE|STYLE|::cue|cue-|Style:|Format:", line)
    ]
    return [events, tags, kept]


def _catalog(text: str) -> list[Any]:
    import polib

    catalog = polib.pofile(text)
    entries = [
        (
            each.msgctxt,
            each.msgid,
            each.msgid_plural,
            each.flags,
            each.occurrences,
            each.obsolete,
            len(each.msgstr_plural),
        )
        for each in catalog
    ]
    return [catalog.metadata, *entries]


def _xliff(text: str) -> list[Any]:
    from lxml import etree

    root = etree.fromstring(text.encode())
    shape: list[Any] = []
    for element in root.iter():
        name = etree.QName(element).localname
        if name in ("source", "target"):
            tags = sorted((etree.QName(each).localname, each.get("id")) for each in element.iterdescendants())
            shape += [name, "".join(map(str, element.itertext())), tags] if name == "source" else []
        elif not any(etree.QName(each).localname == "target" for each in element.iterancestors()):
            shape.append((name, sorted(element.attrib.items())))
    return shape


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "text" if isinstance(value, str) else value


def _rows(text: str) -> list[Any]:
    delimiter = max(",;|\t", key=text.split("\n", 1)[0].count)
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    return [[cell for index, cell in enumerate(row) if number == 0 or index != 1] for number, row in enumerate(rows)]


_RUNS = {"r", "rPr", "t", "proofErr", "lang", "s", "lastRenderedPageBreak", "softHyphen", "soft-page-break"}


def _archive_structure(format: str, content: bytes) -> list[Any]:
    from lxml import etree

    shape: list[Any] = []
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            shape.append((info.filename, info.compress_type))
            part = archive.read(info)
            if format == "epub" and info.filename.endswith("xhtml"):
                shape += _tags(part.decode())
            elif info.filename.endswith((".xml", ".ncx", ".rels", ".opf")) and b"<" in part[:5]:
                tree = etree.fromstring(part)
                names = Counter(
                    (etree.QName(each).localname, tuple(sorted(each.attrib.items())))
                    for each in tree.iter(etree.Element)
                    if etree.QName(each).localname not in _RUNS
                    and (each.getparent() is None or etree.QName(each.getparent()).localname != "rPr")
                )
                shape += sorted(f"{info.filename} {key} {count}" for key, count in names.items())
            else:
                shape.append(part)
    if format == "xlsx":
        import openpyxl

        workbook = openpyxl.load_workbook(io.BytesIO(content))
        cells = [cell for sheet in workbook for row in sheet.rows for cell in row]
        shape += [workbook.sheetnames, [cell.value for cell in cells if cell.data_type != "s"]]
    return shape


def texts(format: str, content: bytes) -> Iterator[str]:
    """Yield the texts of a translated document that must differ from the source, where a library lists them."""
    if format == "docx":
        import docx

        document = docx.Document(io.BytesIO(content))
        yield from (paragraph.text for paragraph in document.paragraphs)
        yield from (cell.text for table in document.tables for row in table.rows for cell in row.cells)
    elif format == "pptx":
        import pptx

        for slide in pptx.Presentation(io.BytesIO(content)).slides:
            yield from (shape.text_frame.text for shape in slide.shapes if shape.has_text_frame)
    elif format == "xlsx":
        import openpyxl

        workbook = openpyxl.load_workbook(io.BytesIO(content))
        yield from (
            cell.value for sheet in workbook for row in sheet.rows for cell in row if isinstance(cell.value, str)
        )
    elif format in ("odt", "ods", "odp"):
        from odf import opendocument, teletype, text

        document = opendocument.load(io.BytesIO(content))
        yield from (
            teletype.extractText(each) for kind in (text.P, text.H) for each in document.getElementsByType(kind)
        )
    elif format in ("srt", "vtt", "ass"):
        import pysubs2

        events = pysubs2.SSAFile.from_string(content.decode("utf-8-sig"))
        yield from (re.sub(r"<[^<>]*>", "", each.plaintext) for each in events if each.type == "Dialogue")
    elif format == "po":
        import polib

        for entry in polib.pofile(content.decode("utf-8-sig")):
            yield from [] if entry.obsolete else [entry.msgstr, *entry.msgstr_plural.values()]
    elif format == "txt":
        yield content.decode("utf-8-sig")


def main() -> int:
    """Check documents of all formats, and report how many pass."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=200, help="number of documents")
    args = options.parse_args()
    count = 40 if args.quick else args.count
    stored = [(str(each.name), each.read_bytes()) for each in sorted(FILES.glob("*"))] if FILES.is_dir() else []
    formats = list(MAKERS)
    cases = [(name, format_of_name(name), content) for name, content in stored]
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for number in range(count):
        if number < len(cases):
            name, format, content = cases[number]
            kind = "" if format is None else format.name
        else:
            name, kind = "", formats[number % len(formats)]
            content = make(kind, number)
        found = list(faults(kind, content, name))
        total[kind] += 1
        passed[kind] += not found
        for fault in found:
            print(f"{name or f'{kind} {number}'}: {fault}")
    rows = [
        Row(
            f"documents that pass, {kind}",
            passed[kind],
            "documents",
            bar=f"{total[kind]}",
            holds=passed[kind] == total[kind],
        )
        for kind in sorted(total)
    ]
    whole = (sum(passed.values()), sum(total.values()))
    rows.append(Row("documents that pass", whole[0], "documents", bar=f"{whole[1]}", holds=whole[0] == whole[1]))
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
