"""Test Office files and e-books: texts and formatting, and malicious archives."""

import io
import random
import re
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.markup import markup_plan, plan_text
from transduce.documents.translate import UNIT_MARKUP, document_notes, translate_upload
from transduce.documents.units import DocumentSettings, UnitKind
from transduce.errors import TransduceError

docx = pytest.importorskip("docx")
openpyxl = pytest.importorskip("openpyxl")


class Fake:
    """A translator with some translations, which returns other texts unchanged."""

    def __init__(self, **translations: str) -> None:
        self.translations = translations
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> list[str]:
        assert kind in ("text", "xml", "html")
        self.texts += texts
        return [self.translations.get(text, text) for text in texts]


def capitals(texts: Sequence[str], kind: UnitKind) -> list[str]:
    """Translate texts to capital letters, as a model's texts with tags are."""
    settings = None if kind == "text" else UNIT_MARKUP[kind]
    plans = [plan_text(text) if settings is None else markup_plan(text, settings, spaced=True) for text in texts]
    return [plan.assemble([sentence.upper() for sentence in plan.sentences]) for plan in plans]


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def archive(*entries: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that occur twice
        for name, content in entries:
            file.writestr(name, content)
    return buffer.getvalue()


def test_formatting_follows_its_words() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph("Go ")
    paragraph.add_run("not").bold = True
    paragraph.add_run(" home.\tNow!")
    fake = Fake(**{'Go <g id="0">not</g> home.': '<g id="0">Nicht</g> heimgehen.', "Now!": "Jetzt!"})
    result = docx.Document(io.BytesIO(translate_upload(saved(document), "a.docx", fake))).paragraphs[0]
    assert [(run.text, run.bold) for run in result.runs if run.text] == [
        ("Nicht", True),
        (" heimgehen.", None),
        ("\t", None),
        ("Jetzt!", None),
    ]


def test_runs_that_only_differ_for_the_speller_are_one_text() -> None:
    document = docx.Document()
    paragraph = document.add_paragraph()
    for text in ("One ", "sen", "tence."):
        run = paragraph.add_run(text)
        run._r.get_or_add_rPr().append(run._r.makeelement(f"{{{run._r.nsmap['w']}}}lang", {}))
    fake = Fake()
    translate_upload(saved(document), "a.docx", fake)
    assert fake.texts == ["One sentence."]


def test_formulas_numbers_and_table_headers_of_sheets_stay() -> None:
    from openpyxl.worksheet.table import Table

    workbook = openpyxl.Workbook()
    sheet = workbook.active
    for row in (["name", "price"], ["a table", 3], ["a chair", "=B2*2"]):
        sheet.append(row)
    sheet.add_table(Table(displayName="T", ref="A1:B3"))
    fake = Fake(**{"a table": "ein Tisch", "a chair": "ein Stuhl"})
    result = openpyxl.load_workbook(io.BytesIO(translate_upload(saved(workbook), "a.xlsx", fake))).active
    assert [[cell.value for cell in row] for row in result.rows] == [
        ["name", "price"],
        ["ein Tisch", 3],
        ["ein Stuhl", "=B2*2"],
    ]
    assert fake.texts == ["a table", "a chair"]


def test_a_line_end_in_the_xml_of_word_is_a_space() -> None:
    fake = Fake()
    translate_upload(archive(TYPES, word(PARAGRAPH.replace("some text", "some\n  text"))), "a.docx", fake)
    assert fake.texts == ["some text"]


def test_a_comment_that_equals_the_header_of_a_table_is_translated() -> None:
    from openpyxl.comments import Comment
    from openpyxl.worksheet.table import Table

    workbook = openpyxl.Workbook()
    for row in (["name", "price"], ["name", 3]):
        workbook.active.append(row)
    workbook.active["B2"].comment = Comment("name", "x")
    workbook.active.add_table(Table(displayName="T", ref="A1:B2"))
    result = openpyxl.load_workbook(io.BytesIO(translate_upload(saved(workbook), "a.xlsx", capitals))).active
    assert (result["A2"].value, result["B2"].comment.text) == ("name", "NAME")


def test_formulas_that_name_a_text_of_a_cell_are_reported() -> None:
    from openpyxl.comments import Comment

    workbook = openpyxl.Workbook()
    for row in (["yes", '=IF(A1="Yes",1,0)'], ["a & b", '=A2="a & b"'], ["no", '=IF(A1=1,"fine","never")'], [1, "=A1"]):
        workbook.active.append(row)
    document = read_document("a.xlsx", saved(workbook), DocumentSettings(), Limits())
    assert document.text_formulas == ('B1: IF(A1="Yes",1,0)', 'B2: A2="a & b"')
    note = "Formulas stay as they are, but some name texts that were translated, so check their results: 2 formulas."
    assert list(document_notes(document)) == [(note, document.text_formulas)]
    workbook = openpyxl.Workbook()
    workbook.active.append(["Y", "x.org/a", 'a "b"'])
    workbook.active.append(['=IF(A1="Y",1,0)', '=HYPERLINK("x.org/a")', '=C1="a ""b"""', '=A1="hint"'])
    workbook.active["A1"].comment = Comment("hint", "x")
    document = read_document("a.xlsx", saved(workbook), DocumentSettings(), Limits())
    assert document.text_formulas == ('C2: C1="a ""b"""',)  # translation keeps the others, and a hint is in no cell
    table = "urn:oasis:names:tc:opendocument:xmlns:table:1.0"
    cell = f'<t:table-cell xmlns:t="{table}" t:formula="of:=[.A1]=&quot;yes&quot;"/><text:p>yes</text:p>'
    content = (
        ("mimetype", b"application/vnd.oasis.opendocument.spreadsheet"),
        ("content.xml", CONTENT.format(cell).encode()),
    )
    sheet = archive(*content, compression=zipfile.ZIP_STORED)
    assert read_document("a.ods", sheet, DocumentSettings(), Limits()).text_formulas == ('of:=[.A1]="yes"',)


def test_cells_with_bold_words_keep_their_lines() -> None:
    from openpyxl.cell.rich_text import CellRichText, TextBlock
    from openpyxl.cell.text import InlineFont

    workbook = openpyxl.Workbook()
    bold = InlineFont(b=True)
    workbook.active["A1"] = CellRichText(TextBlock(bold, "head"), "\none line\n\n", TextBlock(bold, "bold"), " one")
    result = openpyxl.load_workbook(io.BytesIO(translate_upload(saved(workbook), "a.xlsx", capitals)), rich_text=True)
    assert str(result.active["A1"].value) == "HEAD\nONE LINE\n\nBOLD ONE"
    assert [str(each) for each in result.active["A1"].value if isinstance(each, TextBlock)] == ["HEAD", "BOLD"]


CONTENT = (
    '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body>{}</office:body></office:document-content>'
)


def odt(body: str) -> bytes:
    entries = (("mimetype", b"application/vnd.oasis.opendocument.text"), ("content.xml", CONTENT.format(body).encode()))
    return archive(*entries, compression=zipfile.ZIP_STORED)


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("<p>a <span>b</span></p>", ('a <g id="0">b</g>', '<g id="0">B</g> A'), "<p><span>B</span> A</p>"),
        ("<p><s text:c='2'/>a<line-break/>B</p>", ("a", "A"), '<p><s text:c="2"/>A<line-break/>B</p>'),
        ("<p>a<note><p>b</p></note> c</p>", ('a<it id="0"/> c', 'C<it id="0"/> A'), "<p>C<note><p>b</p></note> A</p>"),
        ("<p>a<s text:c='999999999'/>b</p>", ("a" + " " * 1000 + "b", "A  B"), "<p>A <s/>B</p>"),
        ("<p>\n  Aa  b\n  c</p>", ("Aa b c", "C B"), "<p>C B</p>"),
        ("<p>a <span> b</span></p>", ('a <g id="0">b</g>', '<g id="0">B</g> A'), "<p><span>B</span> A</p>"),
        ("<p>a <bookmark/> b</p>", ('a <it id="0"/>b', 'A <it id="0"/>B'), "<p>A <bookmark/>B</p>"),
        ("<p>a<s/> b</p>", ("a  b", "A  B"), "<p>A <s/>B</p>"),
        (
            "<p>a <toc-mark-start id='1'/>b<toc-mark-end id='1'/></p>",
            ('a <it id="0"/>b', '<it id="0"/>B A'),
            '<p><toc-mark-start id="1"/>B A<toc-mark-end id="1"/></p>',
        ),
    ],
)
def test_opendocument_text_is_translated_inside_its_markup(
    source: str, translation: tuple[str, str], expected: str
) -> None:
    source, expected = (text.replace("<", "<text:").replace("<text:/", "</text:") for text in (source, expected))
    result = translate_upload(odt(source), "a.odt", Fake(**dict([translation])))
    with zipfile.ZipFile(io.BytesIO(result)) as file:
        assert file.infolist()[0].filename == "mimetype"
        assert file.infolist()[0].compress_type == zipfile.ZIP_STORED
        assert expected in file.read("content.xml").decode()


WORD = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{}</w:body></w:document>'
PARAGRAPH = "<w:p><w:r><w:t>some text</w:t></w:r></w:p>"
TYPES = ("[Content_Types].xml", b"<Types/>")
ENTITY = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>'


def test_words_with_a_pronunciation_are_translated_with_their_sentence() -> None:
    fake = Fake(**{'<g id="0">漢字</g>は難しい。': '<g id="0">Kanji</g> are hard.'})
    text = "<text:ruby><text:ruby-base>{}</text:ruby-base><text:ruby-text>かんじ</text:ruby-text></text:ruby>{}"
    opened = odt(f"<text:p>{text.format('漢字', 'は難しい。')}</text:p>")
    with zipfile.ZipFile(io.BytesIO(translate_upload(opened, "a.odt", fake))) as file:
        assert text.format("Kanji", " are hard.") in file.read("content.xml").decode()
    ruby = (
        "<w:r><w:ruby><w:rubyPr/><w:rt><w:r><w:t>かんじ</w:t></w:r></w:rt>"
        "<w:rubyBase><w:r><w:t>{}</w:t></w:r></w:rubyBase></w:ruby></w:r>"
    )
    name, content = word(f"<w:p>{ruby.format('漢字')}<w:r><w:t>は難しい。</w:t></w:r></w:p>")
    with zipfile.ZipFile(io.BytesIO(translate_upload(archive((name, content)), "a.docx", fake))) as file:
        written = file.read(name).decode()
    assert f'{ruby.format("Kanji")}<w:r><w:t xml:space="preserve"> are hard.</w:t></w:r>' in written


def word(body: str, start: str = "") -> tuple[str, bytes]:
    return "word/document.xml", (start + WORD.format(body)).encode()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: archive(TYPES, word(PARAGRAPH), ("a.bin", bytes(200 << 20))),
            "when unpacked, but this one has 209,715",
        ),
        (lambda: archive(TYPES, word(PARAGRAPH.replace("some text", "&e;"), ENTITY)), "declares a document type"),
        (
            lambda: archive(TYPES, word(PARAGRAPH), ("../../evil.txt", b"a")),
            "must be inside it, but one is named '../../evil",
        ),
        (lambda: archive(TYPES, word(PARAGRAPH), ("/etc/evil", b"a")), "must be inside it"),
        (lambda: archive(TYPES, word(PARAGRAPH), word(PARAGRAPH)), "two files have the same name"),
        (lambda: archive(TYPES, *((f"word/{number}", b"") for number in range(5001))), "5,000 files inside"),
        (lambda: archive(TYPES, word("<w:p>" * 5000 + "</w:p>" * 5000)), "not well-formed XML"),
        (lambda: archive(TYPES, word(PARAGRAPH), compression=zipfile.ZIP_BZIP2), "a compression other than Deflate"),
        (lambda: b"PK\x03\x04" + bytes(100), "a damaged archive"),
        (lambda: bytes(21 << 20), "A document may have 20,971,520 bytes"),
    ],
)
def test_harmful_archives_are_refused(make: Callable[[], bytes], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translate_upload(make(), "a.docx", Fake())


def test_too_much_text_is_refused() -> None:
    with pytest.raises(TransduceError, match="may have 5 characters to translate, but this one has 9"):
        translate_upload(archive(TYPES, word(PARAGRAPH)), "a.docx", Fake(), limits=Limits(max_characters=5))


def test_damaged_archives_give_one_sentence() -> None:
    content = archive(TYPES, word(PARAGRAPH * 30))
    randomness, messages = random.Random(1), list[str]()
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(randomness.randint(1, 8)):
            damaged[randomness.randrange(len(damaged))] = randomness.randrange(256)
        try:
            translate_upload(bytes(damaged), "a.docx", Fake())
        except TransduceError as error:
            messages.append(str(error))
    assert messages
    assert max(map(len, messages)) < 600


def test_password_and_copy_protection_are_refused() -> None:
    manifest = ("META-INF/manifest.xml", b"<manifest:encryption-data/>")
    protected = archive(
        ("mimetype", b"application/vnd.oasis.opendocument.text"), manifest, compression=zipfile.ZIP_STORED
    )
    with pytest.raises(TransduceError, match="protected by a password"):
        translate_upload(protected, "a.odt", Fake())
    book = archive(
        ("mimetype", b"application/epub+zip"),
        ("META-INF/container.xml", b'<container><rootfile full-path="a.opf"/></container>'),
        ("META-INF/encryption.xml", b'<encryption><CipherReference URI="a.xhtml"/></encryption>'),
        ("a.opf", b'<package><item href="a.xhtml" media-type="application/xhtml+xml"/></package>'),
        ("a.xhtml", b"\x01\x02"),
        compression=zipfile.ZIP_STORED,
    )
    with pytest.raises(TransduceError, match="copy protection"):
        translate_upload(book, "a.epub", Fake())


def test_code_in_documents_stays() -> None:
    document = docx.Document()
    for name, kind in (("Source Code", 1), ("Verbatim Char", 2)):
        document.styles.add_style(name, kind)
    document.add_paragraph("x = some code", style="Source Code")
    document.add_paragraph("Run ").add_run("make all", style="Verbatim Char")
    fake = Fake(**{'Run <x id="0"/>': '<x id="0"/> ausführen'})
    result = docx.Document(io.BytesIO(translate_upload(saved(document), "a.docx", fake)))
    assert [paragraph.text for paragraph in result.paragraphs] == ["x = some code", "make all ausführen"]
    assert result.paragraphs[1].runs[0].style.name == "Verbatim Char"
    code = '<p style-name="Preformatted_20_Text">x = y</p><p>run <span style-name="Source_20_Text">make</span></p>'
    fake = Fake()
    translate_upload(
        odt(code.replace("<", "<text:").replace("<text:/", "</text:").replace("style-", "text:style-")), "a.odt", fake
    )
    assert fake.texts == ['run <x id="0"/>']
    namespace = 'xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"'
    styles = ("A", "Source_20_Text"), ("B", "A"), ("C", "B"), ("D", "Text")
    elements = [f'<style:style {namespace} style:name="{a}" style:parent-style-name="{b}"/>' for a, b in styles]
    texts = [f'<text:p text:style-name="{name}">text {name.lower()}</text:p>' for name, _ in styles]
    translate_upload(odt("".join([*elements, *texts])), "a.odt", fake := Fake())
    assert fake.texts == ["text d"]


def backwards(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
    """Return the words and tags of each text in reverse order, without what is inside a tag's span."""
    return [" ".join(reversed(re.findall(r"<g.*?</g>|<[^>]*>|[^< ]+", text))) for text in texts]


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def field(instruction: str, result: str) -> str:
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    return f"{marks[0]}<w:r><w:instrText>{instruction}</w:instrText></w:r>{marks[1]}{run(result)}{marks[2]}"


CODE = '<w:r><w:rPr><w:rStyle w:val="Code"/></w:rPr><w:t>x</w:t></w:r>'
BOOKMARK = '<w:bookmarkStart w:id="1" w:name="a"/>{}<w:bookmarkEnd w:id="1"/>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (run("one ") + field("HYPERLINK b", "two"), field("HYPERLINK b", "two") + run("one")),
        (run("one ") + field("PAGE", "2"), field("PAGE", "2") + run("one")),
        (run("one ") + field("REF a", "2").replace(run("2"), CODE), field("REF a", "2").replace(run("2"), CODE)),
        (
            run("one ") + BOOKMARK.format(run("two ")) + run("six"),
            run("six") + BOOKMARK.format(run("two")) + run("one"),
        ),
    ],
    ids=["link", "page", "code", "bookmark"],
)
def test_fields_and_ranges_stay_whole_if_words_change_their_order(source: str, expected: str) -> None:
    result = translate_upload(archive(TYPES, word(f"<w:p>{source}</w:p>")), "a.docx", backwards)
    written = zipfile.ZipFile(io.BytesIO(result)).read("word/document.xml").decode()
    assert re.sub(r' xml:space="preserve"', "", written).replace("> ", ">").replace(" <", "<").count(expected) == 1


@pytest.mark.parametrize(
    ("element", "text"),
    [
        ('<w:fldSimple w:instr="SEQ Figure">{}</w:fldSimple>', 'one <x id="0"/> three'),
        ('<w:fldSimple w:instr="HYPERLINK b">{}</w:fldSimple>', 'one <g id="0">two</g> three'),
        ('<w:fldSimple w:instr="HYPERLINK&quot;b&quot;">{}</w:fldSimple>', 'one <g id="0">two</g> three'),
        ("<w:customXml>{}</w:customXml>", 'one <g id="0">two</g> three'),
    ],
)
def test_only_text_of_the_author_is_translated(element: str, text: str) -> None:
    fake = Fake()
    source = f"<w:p>{run('one ')}{element.format(run('two'))}{run(' three')}</w:p>"
    translate_upload(archive(TYPES, word(source)), "a.docx", fake)
    assert fake.texts == [text]


def translated_part(content: bytes, name: str, part: str) -> str:
    with zipfile.ZipFile(io.BytesIO(translate_upload(content, name, capitals))) as file:
        return file.read(part).decode()


@pytest.mark.parametrize(
    ("instruction", "result", "expected"),
    [
        ("REF _Ref1 \\h", "chapter one", "CHAPTER ONE"),
        ("FORMTEXT", "some words", "SOME WORDS"),
        ("IF 1 = 1 &quot;some words&quot;", "some words", "SOME WORDS"),
        ("QUOTE &quot;some words&quot;", "some words", "SOME WORDS"),
        ("QUOTE &quot;7&quot;", "7", "7"),
        ("MERGEFIELD name", "some words", "some words"),
        ("ADDIN CSL_CITATION", "(see above)", "(see above)"),
    ],
)
def test_words_of_forms_and_references_are_translated(instruction: str, result: str, expected: str) -> None:
    simple = f'<w:fldSimple w:instr="{instruction}">{run("{}")}</w:fldSimple>'
    for text in (field(instruction, "{}"), simple):
        source = f"<w:p>{run('see ')}{text.format(result)}</w:p>"
        written = translated_part(archive(TYPES, word(source)), "a.docx", "word/document.xml")
        assert re.findall("<w:t(?: [^>]*)?>([^<]*)<", written) == ["SEE ", expected]


CELL = '<s:c t="inlineStr" xmlns:s="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><s:is>{}</s:is>{}</s:c>'
QUOTES = CELL.format("<s:t>some text</s:t>", f"""<c r="A1"><f>{'"' * 200_000}<![CDATA[]]></f></c>""")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (archive(TYPES, word(PARAGRAPH.replace("some text", f"some{' ' * 100_000}text"))), "a.docx"),
        (odt(f"<text:p>some text{'<text:line-break/>' * 5000}</text:p>"), "a.odt"),
        (archive(TYPES, ("xl/worksheets/a.xml", QUOTES.encode())), "a.xlsx"),
    ],
)
def test_monotonous_documents_are_read_in_linear_time(content: bytes, name: str) -> None:
    started = time.process_time()
    translate_upload(content, name, capitals)
    assert time.process_time() - started < 5.0


def test_a_content_control_is_no_longer_bound_to_the_title_if_it_is_translated() -> None:
    control = '<w:sdt><w:sdtPr>{}<w:dataBinding w:xpath="/a"/></w:sdtPr><w:sdtContent>{}</w:sdtContent></w:sdt>'
    choice, inner = "<w:dropDownList/>", control.format("<w:text/>", run("title"))
    body = control.format("<w:text/>", PARAGRAPH) + f"<w:p>{run('one ')}{inner}</w:p>"
    written = translated_part(archive(TYPES, word(body)), "a.docx", "word/document.xml")
    assert re.findall("<w:t(?: [^>]*)?>([^<]*)<", written) == ["SOME TEXT", "ONE ", "TITLE"]
    assert "dataBinding" not in written
    body = control.format(choice, PARAGRAPH) + PARAGRAPH
    written = translated_part(archive(TYPES, word(body)), "a.docx", "word/document.xml")
    assert re.findall("<w:t(?: [^>]*)?>([^<]*)<|<(w:dataBinding)", written) == [
        ("", "w:dataBinding"),
        ("some text", ""),  # shown is the item that was chosen, which is in the list
        ("SOME TEXT", ""),
    ]


def test_comments_in_slides_are_translated() -> None:
    old = '<p:cm xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"><p:pos x="1"/>'
    old += "<p:text>one\ntwo</p:text><p:extLst/></p:cm>"
    new = '<c xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><a:p><a:r><a:t>one</a:t></a:r></a:p></c>'
    content = archive(TYPES, ("ppt/comments/comment1.xml", old.encode()), ("ppt/comments/m_1.xml", new.encode()))
    assert translated_part(content, "a.pptx", "ppt/comments/comment1.xml").endswith(old.replace("one\ntwo", "ONE\nTWO"))
    assert translated_part(content, "a.pptx", "ppt/comments/m_1.xml").endswith(new.replace("one", "ONE"))


def test_charts_of_opendocument_are_translated() -> None:
    chart = CONTENT.format("<text:p>title</text:p>").encode()
    content = archive(
        ("mimetype", b"application/vnd.oasis.opendocument.spreadsheet"),
        ("Object 1/content.xml", chart),
        ("Object 2/content.xml", b'<!DOCTYPE math PUBLIC "-//OpenOffice.org//DTD 1.0//EN" "math.dtd"><math/>'),
        ("content.xml", CONTENT.format("<text:p>cell</text:p>").encode()),
        compression=zipfile.ZIP_STORED,
    )
    assert "<text:p>TITLE</text:p>" in translated_part(content, "a.ods", "Object 1/content.xml")
    assert "<text:p>CELL</text:p>" in translated_part(content, "a.ods", "content.xml")


def test_lines_go_on_behind_a_break_in_a_span_of_its_own() -> None:
    for words, count in (("go on", 1), ("Begin", 2)):
        text = f"<text:span>lines</text:span><text:span><text:line-break/></text:span><text:span>{words}</text:span>"
        fake = Fake()
        translate_upload(odt(f"<text:p>{text}</text:p>"), "a.odt", fake)
        assert len(fake.texts) == count


def test_a_field_of_several_paragraphs_encloses_the_same_text() -> None:
    start, end = field("TOC", "one").split(run("one"))
    source = f"<w:p>{run('zero ')}{start}{run('one two')}</w:p><w:p>{run('three ')}{end}{run('four')}</w:p>"
    result = translate_upload(archive(TYPES, word(source)), "a.docx", backwards)
    written = zipfile.ZipFile(io.BytesIO(result)).read("word/document.xml").decode()
    assert re.findall(r"zero|begin|TOC|separate|two one|three|end|four", written) == [
        *("zero", "begin", "TOC", "separate", "two one", "three", "end", "four")
    ]


SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('<t xml:space="preserve"> one two </t>', '<t xml:space="preserve"> two one </t>'),
        ("<t>one_x000D_&#10;two</t>", "<t>two one</t>"),
        ("<t>a_x005F_x000D_ b</t>", "<t>b a_x005F_x000D_</t>"),
    ],
)
def test_a_cell_has_one_text_with_escapes(source: str, expected: str) -> None:
    strings = f"<sst {SHEET}><si>{source}</si></sst>".encode()
    result = translate_upload(archive(TYPES, ("xl/sharedStrings.xml", strings)), "a.xlsx", backwards_words)
    written = zipfile.ZipFile(io.BytesIO(result)).read("xl/sharedStrings.xml").decode()
    assert f"<si>{expected}</si>" in written


def backwards_words(texts: Sequence[str], kind: UnitKind) -> list[str]:
    assert kind == "text"
    return [" ".join(reversed(text.split())) for text in texts]


def test_results_of_formulas_are_computed_again() -> None:
    parts = [
        ("xl/workbook.xml", f'<workbook {SHEET}><calcPr calcId="191029"/></workbook>'),
        ("xl/worksheets/sheet1.xml", f'<worksheet {SHEET}><c t="str"><f>A1</f><v>one two</v></c></worksheet>'),
        ("xl/sharedStrings.xml", f"<sst {SHEET}><si><t>one two</t></si></sst>"),
    ]
    content = archive(TYPES, *((name, text.encode()) for name, text in parts))
    result = zipfile.ZipFile(io.BytesIO(translate_upload(content, "a.xlsx", backwards)))
    assert b'<calcPr calcId="191029" fullCalcOnLoad="1"/>' in result.read("xl/workbook.xml")
    assert translate_upload(content, "a.xlsx", Fake()) == content


def test_headers_of_several_lines_stay_and_threads_of_comments_are_translated() -> None:
    threads = "http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments"
    comments = [
        '<threadedComment id="a"><text>three four</text></threadedComment>',
        "<threadedComment><text>@Ann Lee hi</text><mentions/></threadedComment>",
    ]
    parts = [
        ("xl/sharedStrings.xml", f"<sst {SHEET}><si><t>one&#10;two</t></si><si><t>six two</t></si></sst>"),
        (
            "xl/tables/table1.xml",
            f'<table {SHEET}><tableColumns><tableColumn name="one_x000a_two"/></tableColumns></table>',
        ),
        (
            "xl/threadedComments/threadedComment1.xml",
            f'<ThreadedComments xmlns="{threads}">{"".join(comments)}</ThreadedComments>',
        ),
    ]
    content = archive(TYPES, *((name, text.encode()) for name, text in parts))
    result = zipfile.ZipFile(io.BytesIO(translate_upload(content, "a.xlsx", backwards_words)))
    assert b"<si><t>one\ntwo</t></si><si><t>two six</t></si>" in result.read("xl/sharedStrings.xml")
    threaded = result.read("xl/threadedComments/threadedComment1.xml")
    assert b'<threadedComment id="a"><text>four three</text>' in threaded
    assert b"<text>@Ann Lee hi</text>" in threaded


def test_labels_of_charts_are_translated() -> None:
    chart = "http://schemas.openxmlformats.org/drawingml/2006/chart"
    point = '<c:strCache><c:pt idx="0"><c:v>one two</c:v></c:pt></c:strCache>'
    content = archive(
        TYPES, ("ppt/charts/chart1.xml", f'<c:chartSpace xmlns:c="{chart}">{point}</c:chartSpace>'.encode())
    )
    result = translate_upload(content, "a.pptx", backwards)
    assert b'<c:pt idx="0"><c:v>two one</c:v></c:pt>' in zipfile.ZipFile(io.BytesIO(result)).read(
        "ppt/charts/chart1.xml"
    )


def test_a_cell_of_several_paragraphs_keeps_all_in_its_value() -> None:
    table = 'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
    texts = "<text:p>one two</text:p><text:p>six<text:s/>x</text:p>"
    cell = f'<table:table-cell {table} office:string-value="old">{texts}</table:table-cell>'
    with zipfile.ZipFile(io.BytesIO(translate_upload(odt(cell), "a.odt", backwards_words))) as file:
        assert 'office:string-value="two one&#10;x six"' in file.read("content.xml").decode()


def test_the_author_of_an_ebook_stays() -> None:
    text = "<docTitle><text>one two</text></docTitle><docAuthor>\n <text>Ann Lee</text></docAuthor>"
    item = '<manifest><item href="a.ncx" media-type="application/x-dtbncx+xml"/></manifest>'
    entries = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfile full-path="a.opf"/></container>',
        "a.opf": f"<package>{item}</package>",
        "a.ncx": f"<ncx>{text}</ncx>",
    }
    content = archive(*((name, text.encode()) for name, text in entries.items()), compression=zipfile.ZIP_STORED)
    with zipfile.ZipFile(io.BytesIO(translate_upload(content, "a.epub", backwards_words))) as file:
        assert file.read("a.ncx").decode() == f"<ncx>{text.replace('one two', 'two one')}</ncx>"


def test_word_styles_for_code_are_found_by_their_names() -> None:
    """Word in German or Chinese has other identifiers of styles, but the same names."""
    styles = "".join(
        f'<w:style w:styleId="{identifier}"><w:name w:val="{name}"/><w:basedOn w:val="{base}"/></w:style>'
        for identifier, name, base in (("B", "mine", "a3"), ("a3", "HTML Preformatted", "n"), ("Z1", "heading 1", "n"))
    )
    source = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>a</w:t></w:r></w:p>' for style in ("a3", "B", "Z1")
    )
    run = '<w:p><w:r><w:rPr><w:rStyle w:val="a3"/></w:rPr><w:t>x</w:t></w:r><w:r><w:t>c</w:t></w:r></w:p>'
    namespace = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    part = ("word/styles.xml", f'<w:styles xmlns:w="{namespace}">{styles}</w:styles>'.encode())
    fake = Fake()
    translate_upload(archive(TYPES, word(source + run), part), "a.docx", fake)
    assert sorted(fake.texts) == ['<x id="0"/>c', "a"]


def test_the_chosen_value_of_a_list_in_word_stays() -> None:
    control = "<w:sdt><w:sdtPr><w:{}/></w:sdtPr><w:sdtContent><w:r><w:t>b</w:t></w:r></w:sdtContent></w:sdt>"
    body = "".join(f"<w:p><w:r><w:t>a </w:t></w:r>{control.format(name)}</w:p>" for name in ("dropDownList", "text"))
    fake = Fake()
    translate_upload(archive(TYPES, word(body)), "a.docx", fake)
    assert sorted(fake.texts) == ['a <g id="0">b</g>', 'a <x id="0"/>']


def test_the_names_of_data_series_in_a_chart_are_translated() -> None:
    names = "<c:ser><c:tx><c:v>a</c:v></c:tx></c:ser><c:title><c:tx><c:rich><a:p><a:r><a:t>b</a:t></a:r></a:p></c:rich>"
    namespaces = 'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:a="{}"'.format(
        "http://schemas.openxmlformats.org/drawingml/2006/main"
    )
    chart = f"<c:chart {namespaces}>{names}</c:tx></c:title></c:chart>".encode()
    content = archive(TYPES, ("xl/charts/chart1.xml", chart))
    with zipfile.ZipFile(io.BytesIO(translate_upload(content, "a.xlsx", Fake(a="A", b="B")))) as file:
        written = file.read("xl/charts/chart1.xml").decode()
    assert "<c:v>A</c:v>" in written
    assert "<a:t>B</a:t>" in written


def test_comments_and_bookmarks_stay_at_their_words() -> None:
    start, end = '<w:commentRangeStart w:id="1"/><w:bookmarkStart w:id="7" w:name="x"/>', '<w:bookmarkEnd w:id="7"/>'
    comment = '<w:commentRangeEnd w:id="1"/><w:r><w:commentReference w:id="1"/></w:r>'
    runs = [f"<w:r><w:t xml:space='preserve'>{text}</w:t></w:r>" for text in ("one ", "two", " three")]
    body = f"<w:p>{runs[0]}{start}{runs[1]}{end}{comment}{runs[2]}</w:p>"
    unit = 'one <g id="0"><g id="1">two</g></g><it id="4"/> three'
    fake = Fake(**{unit: '<g id="0"><g id="1">TWO</g></g><it id="4"/> ONE THREE'})
    result = translate_upload(archive(TYPES, word(body)), "a.docx", fake)
    assert fake.texts == [unit]
    with zipfile.ZipFile(io.BytesIO(result)) as file:
        written = file.read("word/document.xml").decode()
    order = re.findall("<w:(commentRange\\w+|bookmark\\w+|commentReference) |<w:t[^>]*>([^<]*)", written)
    expected = ["commentRangeStart", "bookmarkStart", "TWO", "bookmarkEnd", "commentRangeEnd", "commentReference"]
    assert ["".join(each) for each in order] == [*expected, " ONE THREE"]


@pytest.mark.parametrize(
    "content",
    [
        # Crossing ranges, and those without words.
        '{0}<w:commentRangeStart w:id="1"/>{1}<w:bookmarkStart w:id="7"/><w:commentRangeEnd w:id="1"/>{2}',
        '<w:permStart w:id="1"/>{0}<w:bookmarkStart w:id="7"/>{1}<w:permEnd w:id="1"/>{2}<w:bookmarkEnd w:id="7"/>',
        '{0}<w:bookmarkStart w:id="7"/><w:bookmarkEnd w:id="7"/>{1}{2}',
        '{0}<w:bookmarkEnd w:id="7"/>{1}<w:bookmarkStart w:id="7"/>{2}',
    ],
)
def test_other_ranges_are_points(content: str) -> None:
    runs = [f"<w:r><w:t>{text}</w:t></w:r>" for text in ("one", "two", "three")]
    fake = Fake()
    translate_upload(archive(TYPES, word(f"<w:p>{content.format(*runs)}</w:p>")), "a.docx", fake)
    assert "<g" not in fake.texts[0]
