"""Random documents in all formats that `transduce translate` reads, for tests and for `benchmarks/documents.py`."""

import io
import json
import random
import zipfile
from collections.abc import Callable
from html import escape
from typing import Any

_WORDS = str.split(
    "river table green morning window paper yellow garden letter simple engine carpet planet silver bottle market "
    "teacher holiday kitchen mountain quiet evening forest bridge summer village doctor winter music ocean"
)
_EXTRA = [
    "naïve",
    "Straße",
    "東京",
    "coffee & tea",
    "a < b",
    "100 %",
    "l'été",
    "“quoted”",
    "x_1",
    "5*3",
    "Tom's",
    "(see below)",
]


class Writer:
    """A source of random texts."""

    def __init__(self, seed: int) -> None:
        """Seed the source."""
        self.random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def words(self, most: int = 9) -> str:
        """Return some words."""
        words = [self.random.choice(_WORDS) for _ in range(self.random.randint(1, most))]
        if self.chance(0.2):
            words.insert(self.random.randint(0, len(words)), self.random.choice(_EXTRA))
        return " ".join(words)

    def sentence(self) -> str:
        """Return a sentence."""
        text = self.words(12)
        return text[0].upper() + text[1:] + self.random.choice([".", ".", "!", "?", "…"])

    def paragraph(self) -> str:
        """Return one to four sentences."""
        return " ".join(self.sentence() for _ in range(self.random.randint(1, 4)))

    def newline(self) -> str:
        """Return a line break of Unix or Windows."""
        return "\r\n" if self.chance(0.3) else "\n"

    def encoded(self, text: str, newline: str = "\n") -> bytes:
        """Return the bytes of a text, sometimes with a byte order mark or without a final line break."""
        if self.chance(0.2):
            text = text.rstrip("\n")
        mark = b"\xef\xbb\xbf" if self.chance(0.15) else b""
        return mark + text.replace("\n", newline).encode()


# --- text formats ---


def plain_text(writer: Writer) -> bytes:
    """Return a plain text with lists, indentation and empty lines."""
    lines = []
    for _ in range(writer.random.randint(0, 15)):
        start = writer.random.choice(["", "", "  ", "\t", "- ", "1. ", "    * "])
        lines.append(start + writer.paragraph() + writer.random.choice(["", "", "  "]) if writer.chance(0.8) else "")
    return writer.encoded("".join(f"{line}\n" for line in lines), writer.newline())


def _inline(writer: Writer) -> str:
    """Return a paragraph of Markdown with inline elements."""
    parts = []
    for _ in range(writer.random.randint(1, 5)):
        words = " ".join(writer.random.choice(_WORDS) for _ in range(writer.random.randint(1, 4)))
        parts.append(
            writer.random.choice(
                [
                    words,
                    words,
                    f"**{words}**",
                    f"*{words}*",
                    f"_{words}_",
                    f"***{words}***",
                    f"~~{words}~~",
                    f"`{words.replace(' ', '_')}()`",
                    f'[{words}](https://example.org/{words.replace(" ", "-")} "title")',
                    f"[{words}][ref]",
                    f"![{words}](picture_1.png)",
                    f'<span class="x">{words}</span>',
                    f"$a_{{{len(words)}}} * b$",
                    f"**{words} `code` *{words}***",
                    "<https://example.org/a_b>",
                    "5 \\* 3",
                    "a &amp; b",
                    "[^1]",
                ]
            )
        )
    return " ".join(parts)


def markdown(writer: Writer) -> bytes:
    """Return a Markdown text with most kinds of blocks."""

    def block() -> str:
        text = _inline(writer)
        wrapped = "\n".join(_inline(writer) for _ in range(writer.random.randint(2, 4)))
        table = (
            f"| {writer.words(3)} | {writer.words(2)} |\n|---|:-:|\n| {writer.words(3)} \\| x | `a` {writer.words(2)} |"
        )
        return writer.random.choice(
            [
                text,
                wrapped,
                f"{'#' * writer.random.randint(1, 4)} {writer.words(5)}",
                f"{writer.words(4)}\n{'=' * 10}",
                f"- {text}\n- {writer.words()}\n  - {writer.words()}",
                f"1. {text}\n2. {writer.words()}",
                "> " + wrapped.replace("\n", "\n> "),
                f"- [ ] {writer.words()}\n- [x] {writer.words()}",
                f"```python\n{writer.words()} = 1\n```",
                f"    {writer.words()}",
                table,
                "$$\nE = mc^2\n$$",
                f"<div>\n<p>{writer.words()}</p>\n</div>",
                "---",
                f"<!-- {writer.words()} -->",
                f"{writer.words()}  \n{writer.words()}",
            ]
        )

    front = f"---\ntitle: {writer.words()}\ntags: [a, b]\n---\n\n" if writer.chance(0.3) else ""
    blocks = "\n\n".join(block() for _ in range(writer.random.randint(1, 12)))
    end = f"\n\n[ref]: https://example.org/ref\n[^1]: {writer.words()}\n"
    return writer.encoded(front + blocks + end, writer.newline())


def html(writer: Writer) -> bytes:
    """Return an HTML page."""

    def inline() -> str:
        parts = []
        for _ in range(writer.random.randint(1, 5)):
            words = escape(writer.words(4), quote=False)
            parts.append(
                writer.random.choice(
                    [
                        words,
                        words,
                        f"<b>{words}</b>",
                        f'<a href="https://example.org/?a=1&amp;b={len(words)}">{words} <i>{words}</i></a>',
                        '<img src="x.png">',
                        "<br>",
                        "<code>x = 1</code>",
                        f'<span translate="no">{words}</span>',
                        f"<!-- {words} -->",
                        "&nbsp;",
                    ]
                )
            )
        return " ".join(parts)

    def block() -> str:
        return writer.random.choice(
            [
                f"<p>{inline()}</p>",
                f"<h1 id=x>{inline()}</h1>",
                f"<ul>\n<li>{inline()}</li>\n<li>{inline()}\n</ul>",
                f"<table><tr><td>{inline()}</td><td>3</td></tr></table>",
                f"<script>var x = '<p>{len(inline())}';</script>",
                f"<pre>{escape(writer.words())}</pre>",
                f'<div class="a">{inline()}</div>',
            ]
        )

    body = "\n".join(block() for _ in range(writer.random.randint(1, 10)))
    page = f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{writer.words()}</title></head>\n'
    return writer.encoded(f"{page}<body>\n{body}\n</body>\n</html>\n", writer.newline())


def _time(milliseconds: int, separator: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{separator}{rest:03}"


def _cues(writer: Writer) -> list[tuple[int, int, str]]:
    """Return cues as start and end in milliseconds and text; some sentences go on in the next cue."""
    cues, now = [], 0
    for _ in range(writer.random.randint(1, 15)):
        text = writer.sentence().replace("<", "").replace("&", "and").replace("  ", " ")
        shares = [text]
        if writer.chance(0.3) and len(text.split()) > 3:
            middle = len(text.split()) // 2
            shares = [" ".join(text.split()[:middle]), " ".join(text.split()[middle:])]
        for share in shares:
            words = share.split()
            if len(words) > 4 and writer.chance(0.4):
                share = " ".join(words[:3]) + "\n" + " ".join(words[3:])
            elif writer.chance(0.15):
                share = f"- {share}\n- {writer.sentence().replace('<', '').replace('&', 'and')}"
            if writer.chance(0.2):
                share = f"<i>{share}</i>"
            now += writer.random.randint(50, 4000)
            cues.append((now, now + 1500, share))
            now += 1500
    return cues


def subrip(writer: Writer) -> bytes:
    """Return SubRip subtitles."""
    blocks = [
        f"{number}\n{_time(start, ',')} --> {_time(end, ',')}\n{text}\n"
        for number, (start, end, text) in enumerate(_cues(writer), 1)
    ]
    return writer.encoded("\n".join(blocks), writer.newline())


def webvtt(writer: Writer) -> bytes:
    """Return WebVTT subtitles with notes, styles and settings."""
    blocks = ["WEBVTT - title\n"]
    if writer.chance(0.5):
        blocks.append(f"NOTE {writer.words()}\n")
    if writer.chance(0.3):
        blocks.append("STYLE\n::cue { color: red }\n")
    for start, end, text in _cues(writer):
        identifier = f"cue-{start}\n" if writer.chance(0.3) else ""
        settings = " align:start line:0" if writer.chance(0.3) else ""
        if writer.chance(0.2):
            text = f"<v Anna>{text}</v>"
        blocks.append(f"{identifier}{_time(start, '.')} --> {_time(end, '.')}{settings}\n{text}\n")
    return writer.encoded("\n".join(blocks), writer.newline())


def substation(writer: Writer) -> bytes:
    """Return SubStation Alpha subtitles."""
    lines = [
        "[Script Info]",
        "Title: A film",
        "ScriptType: v4.00+",
        "",
        "[V4+ Styles]",
        "Format: Name, Fontname, Fontsize, PrimaryColour",
        "Style: Default,Arial,20,&H00FFFFFF",
        "",
        "[Events]",
        "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text",
    ]
    for start, end, text in _cues(writer):
        text = text.replace("<i>", "{\\i1}").replace("</i>", "{\\i0}").replace("\n", "\\N")
        text = f"{{\\an8}}{text}" if writer.chance(0.2) else text
        times = ",".join(
            f"{t // 3600000}:{t // 60000 % 60:02}:{t // 1000 % 60:02}.{t % 1000 // 10:02}" for t in (start, end)
        )
        lines.append(f"Dialogue: 0,{times},Default,,0,0,0,,{text}")
    lines.append("Comment: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,a comment")
    return writer.encoded("".join(f"{line}\n" for line in lines), writer.newline())


def catalog(writer: Writer) -> bytes:
    """Return a gettext catalog with contexts, plural forms, flags and translated entries."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    lines = [
        "# A catalog",
        'msgid ""',
        'msgstr ""',
        '"Content-Type: text/plain; charset=UTF-8\\n"',
        f'"Plural-Forms: nplurals={writer.random.randint(1, 3)}; plural=0;\\n"',
        "",
    ]
    plurals = int(lines[4][lines[4].index("=") + 1])
    for number in range(writer.random.randint(1, 12)):
        lines += [f"#: src/file.c:{number}"] + (["#, c-format"] if writer.chance(0.4) else [])
        lines += [f'msgctxt "context {number}"'] if writer.chance(0.3) else []
        text = f"{writer.words()} {number}" + ("\n" if writer.chance(0.2) else "")
        if writer.chance(0.2):
            lines += [f"msgid {quoted(text)}", f"msgid_plural {quoted('%d ' + text)}"]
            lines += [f'msgstr[{index}] ""' for index in range(plurals)]
        elif writer.chance(0.3):
            lines += ['msgid ""', quoted(text + " "), quoted(writer.paragraph()), 'msgstr ""']
        else:
            done = quoted(text.upper()) if writer.chance(0.3) else '""'
            lines += [f"msgid {quoted(text)}", f"msgstr {done}"]
        lines.append("")
    lines += ['#~ msgid "obsolete"', '#~ msgstr "veraltet"']
    return writer.encoded("".join(f"{line}\n" for line in lines), writer.newline())


def xliff(writer: Writer) -> bytes:
    """Return an XLIFF file of version 1.2 or 2.0."""
    is_2 = writer.chance(0.5)

    def content() -> str:
        parts = []
        for number in range(writer.random.randint(1, 4)):
            words = escape(writer.words(4), quote=False)
            pair, code = ("pc", "ph") if is_2 else ("g", "x")
            parts.append(
                writer.random.choice(
                    [words, words, f'<{pair} id="{number}">{words}</{pair}>', f'{words} <{code} id="{number}"/>']
                )
            )
        return " ".join(parts)

    units = []
    for number in range(writer.random.randint(1, 10)):
        target = "<target>done</target>" if writer.chance(0.2) else ""
        source = f"<source>{content()}</source>"
        if is_2:
            units.append(f'<unit id="u{number}"><segment id="s">{source}{target}</segment></unit>')
        else:
            no = ' translate="no"' if writer.chance(0.1) else ""
            units.append(f'<trans-unit id="u{number}"{no}>\n        {source}{target}\n      </trans-unit>')
    body = "\n      ".join(units)
    start = '<?xml version="1.0" encoding="UTF-8"?>\n'
    if is_2:
        text = (
            '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en">\n  <file id="f">\n      '
            f"{body}\n  </file>\n</xliff>\n"
        )
    else:
        text = (
            '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n  <file original="a.txt" '
            f'source-language="en" datatype="plaintext">\n    <body>\n      {body}\n    </body>\n  </file>\n</xliff>\n'
        )
    return writer.encoded(start + text, writer.newline())


def _value(writer: Writer, depth: int) -> Any:
    if depth and writer.chance(0.3):
        return {f"key_{number}": _value(writer, depth - 1) for number in range(writer.random.randint(0, 4))}
    if depth and writer.chance(0.2):
        return [_value(writer, depth - 1) for _ in range(writer.random.randint(0, 3))]
    values = [
        writer.paragraph(),
        writer.words(),
        f"{writer.words(2)} {{name}}",
        3,
        2.5,
        True,
        None,
        "snake_case_id",
        "",
    ]
    return writer.random.choice(values)


def json_file(writer: Writer) -> bytes:
    """Return a JSON file."""
    value = {f"top.{number}": _value(writer, 3) for number in range(writer.random.randint(1, 8))} | {"id": "an id here"}
    indent = writer.random.choice([None, 2, "\t"])
    text = json.dumps(value, indent=indent, ensure_ascii=writer.chance(0.5))
    return writer.encoded(text + "\n", writer.newline())


def json_lines(writer: Writer) -> bytes:
    """Return a JSON Lines file."""
    lines = [json.dumps({"id": number, "text": writer.paragraph()}) for number in range(writer.random.randint(1, 9))]
    return writer.encoded("".join(f"{line}\n" for line in lines), writer.newline())


def table(writer: Writer, delimiter: str | None = None) -> bytes:
    """Return a table with the columns id, text and price."""
    delimiter = delimiter or writer.random.choice(",;|")
    rows = [["id", "text", "price"]]
    rows += [[f"A-{n}", writer.paragraph(), f"{n}.50"] for n in range(writer.random.randint(1, 12))]
    lines = []
    for row in rows:
        cells = []
        for cell in row:
            cell = cell.replace(" garden ", '\n"garden" ') if delimiter != "\t" else cell
            needs = any(each in cell for each in f'{delimiter}"\n') or writer.chance(0.2)
            cells.append('"' + cell.replace('"', '""') + '"' if needs else cell)
        lines.append(delimiter.join(cells))
    return writer.encoded("".join(f"{line}\n" for line in lines), writer.newline())


def tabbed(writer: Writer) -> bytes:
    """Return a table whose cells are separated by tabs."""
    return table(writer, "\t")


# --- archives ---


def docx(writer: Writer) -> bytes:
    """Return a Word document with headings, formatted runs, links, tables, headers, tabs and fields."""
    import docx as library

    document = library.Document()
    for _ in range(writer.random.randint(1, 10)):
        kind = writer.random.randint(0, 6)
        if kind == 0:
            document.add_heading(writer.words(), writer.random.randint(1, 3))
        elif kind == 1:
            cells = document.add_table(2, 2)
            cells.cell(0, 0).text, cells.cell(1, 1).text = writer.words(), "42"
        elif kind == 2:
            document.add_paragraph(f"{writer.words(2)}\t{writer.words(2)}", style="List Bullet")
        else:
            _add_runs(writer, document.add_paragraph())
    if writer.chance(0.5):
        document.sections[0].header.paragraphs[0].text = writer.words()
    return _saved(document.save)


def _add_runs(writer: Writer, paragraph: Any) -> None:
    """Add formatted runs, line breaks, links and fields to a paragraph of Word."""
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    for _ in range(writer.random.randint(1, 5)):
        run = paragraph.add_run(writer.words(4) + " ")
        run.bold = True if writer.chance(0.3) else None
        run.italic = True if writer.chance(0.2) else None
        if writer.chance(0.1):
            run.add_break()
        if writer.chance(0.15):
            link = OxmlElement("w:hyperlink")
            link.set(qn("w:anchor"), "mark")
            link.append(paragraph.add_run(writer.words(2))._r)
            paragraph._p.append(link)
        for part in ("begin", "instrText", "separate", "t", "end") if writer.chance(0.1) else ():
            element = OxmlElement(f"w:{part}" if part in ("instrText", "t") else "w:fldChar")
            if part in ("instrText", "t"):
                element.text = "PAGE" if part == "instrText" else "1"
            else:
                element.set(qn("w:fldCharType"), part)
            paragraph.add_run()._r.append(element)


def _saved(save: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


def pptx(writer: Writer) -> bytes:
    """Return a presentation with titles, formatted runs, a table and notes."""
    import pptx as library
    from pptx.util import Inches

    presentation = library.Presentation()
    for _ in range(writer.random.randint(1, 4)):
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = writer.words()
        frame = slide.shapes.placeholders[1].text_frame
        frame.text = writer.sentence()
        for _ in range(writer.random.randint(0, 3)):
            paragraph = frame.add_paragraph()
            for _ in range(writer.random.randint(1, 3)):
                run = paragraph.add_run()
                run.text = writer.words(3) + " "
                run.font.bold = True if writer.chance(0.4) else None
        if writer.chance(0.4):
            cells = slide.shapes.add_table(2, 2, Inches(1), Inches(1), Inches(4), Inches(1)).table
            cells.cell(0, 0).text = writer.words()
        if writer.chance(0.4):
            slide.notes_slide.notes_text_frame.text = writer.paragraph()
    return _saved(presentation.save)


def xlsx(writer: Writer) -> bytes:
    """Return a workbook with texts, numbers, formulas, comments and formatted texts."""
    import openpyxl
    from openpyxl.cell.rich_text import CellRichText, TextBlock
    from openpyxl.cell.text import InlineFont
    from openpyxl.comments import Comment

    workbook = openpyxl.Workbook()
    sheet: Any = workbook.active
    for row in range(1, writer.random.randint(2, 12)):
        sheet.cell(row, 1).value = writer.sentence()
        sheet.cell(row, 2).value = row * 1.5
        sheet.cell(row, 3).value = f"=B{row}*2"
        if writer.chance(0.3):
            sheet.cell(row, 4).value = CellRichText(
                writer.words(3) + " ", TextBlock(InlineFont(b=True), writer.words(2))
            )
        if writer.chance(0.2):
            sheet.cell(row, 1).comment = Comment(writer.words(), "author")
    workbook.create_sheet("Second")
    return _saved(workbook.save)


def _open_document(writer: Writer, kind: str) -> bytes:
    """Return an OpenDocument file; the kind is Text, Spreadsheet or Presentation."""
    from odf import opendocument, style

    document = getattr(opendocument, f"OpenDocument{kind}")()
    bold = style.Style(name="T1", family="text")
    bold.addElement(style.TextProperties(fontweight="bold"))
    document.automaticstyles.addElement(bold)
    add = {"Text": _add_paragraph, "Spreadsheet": _add_sheet, "Presentation": _add_page}[kind]
    for number in range(writer.random.randint(1, 8)):
        add(writer, document, bold, number)
    return _saved(document.write)


def _paragraph(writer: Writer, bold: Any) -> Any:
    """Return a paragraph of OpenDocument with formatted text, links, spaces and tabs."""
    from odf import text

    element = text.P(text=writer.words() + " ")
    for _ in range(writer.random.randint(0, 3)):
        part = writer.random.randint(0, 4)
        if part == 0:
            element.addElement(text.Span(stylename=bold, text=writer.words(2)))
        elif part == 1:
            element.addElement(text.A(href="https://example.org/", text=writer.words(2)))
        elif part == 2:
            element.addElement(text.S(c=2))
        elif part == 3:
            element.addElement(text.Tab())
        element.addText(f" {writer.words(3)}")
    return element


def _add_paragraph(writer: Writer, document: Any, bold: Any, number: int) -> None:
    from odf import text

    heading = text.H(outlinelevel=1, text=writer.words())
    document.text.addElement(heading if number == 0 else _paragraph(writer, bold))


def _add_sheet(writer: Writer, document: Any, bold: Any, number: int) -> None:
    from odf import table, text

    sheet, row = table.Table(name=f"Sheet{number}"), table.TableRow()
    words = table.TableCell(valuetype="string")
    words.addElement(_paragraph(writer, bold))
    figure = table.TableCell(valuetype="float", value="1.5")
    figure.addElement(text.P(text="1.50 EUR"))
    for cell in (words, figure):
        row.addElement(cell)
    sheet.addElement(row)
    document.spreadsheet.addElement(sheet)


def _add_page(writer: Writer, document: Any, bold: Any, number: int) -> None:
    from odf import draw, style

    layout = style.PageLayout(name=f"L{number}")
    document.automaticstyles.addElement(layout)
    master = style.MasterPage(name=f"M{number}", pagelayoutname=layout)
    document.masterstyles.addElement(master)
    page = draw.Page(masterpagename=master, name=f"page{number}")
    frame, box = draw.Frame(width="10cm", height="5cm"), draw.TextBox()
    box.addElement(_paragraph(writer, bold))
    frame.addElement(box)
    page.addElement(frame)
    document.presentation.addElement(page)


def odt(writer: Writer) -> bytes:
    """Return an OpenDocument text."""
    return _open_document(writer, "Text")


def ods(writer: Writer) -> bytes:
    """Return an OpenDocument spreadsheet."""
    return _open_document(writer, "Spreadsheet")


def odp(writer: Writer) -> bytes:
    """Return an OpenDocument presentation."""
    return _open_document(writer, "Presentation")


def epub(writer: Writer) -> bytes:
    """Return an e-book."""
    buffer = io.BytesIO()
    count = writer.random.randint(1, 4)
    items = "".join(
        f'<item id="c{n}" href="text/c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in range(count)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(count))
    labels = "".join(
        f'<navPoint id="n{n}"><navLabel><text>{escape(writer.words())}</text></navLabel></navPoint>'
        for n in range(count)
    )
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip")
        archive.writestr(
            "META-INF/container.xml",
            '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
            '<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
            "</container>",
        )
        archive.writestr(
            "OEBPS/book.opf",
            '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata/><manifest>'
            f'{items}<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
            f'<item id="css" href="a.css" media-type="text/css"/></manifest><spine toc="ncx">{spine}</spine></package>',
        )
        archive.writestr(
            "OEBPS/toc.ncx", f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{labels}</navMap></ncx>'
        )
        archive.writestr("OEBPS/a.css", "p { color: black }")
        for number in range(count):
            paragraphs = "\n".join(
                f'<p class="x">{escape(writer.sentence())} <em>{escape(writer.words(2))}</em><br/></p>'
                for _ in range(writer.random.randint(1, 5))
            )
            archive.writestr(
                f"OEBPS/text/c{number}.xhtml",
                '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml">'
                f"<head><title>{escape(writer.words())}</title></head>\n<body>\n{paragraphs}\n</body></html>\n",
            )
    return buffer.getvalue()


MAKERS: dict[str, Callable[[Writer], bytes]] = {
    "txt": plain_text,
    "md": markdown,
    "html": html,
    "srt": subrip,
    "vtt": webvtt,
    "ass": substation,
    "po": catalog,
    "xliff": xliff,
    "json": json_file,
    "jsonl": json_lines,
    "csv": table,
    "tsv": tabbed,
    "docx": docx,
    "pptx": pptx,
    "xlsx": xlsx,
    "odt": odt,
    "ods": ods,
    "odp": odp,
    "epub": epub,
}
"""The function that makes a random document of each format."""


def make(format: str, seed: int) -> bytes:
    """Return a random document of a format; equal seeds give documents of equal content."""
    return MAKERS[format](Writer(seed))
