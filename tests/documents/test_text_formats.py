"""Test which texts of plain text, JSON and tables are translated, and that the rest stays the same."""

import json
import re
from collections.abc import Mapping, Sequence

import pytest

from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.text_formats import lacking_plural_forms
from transduce.documents.translate import translate_upload
from transduce.documents.units import DocumentSettings, MessageRecord, UnitKind
from transduce.errors import TransduceError


def upper(texts: Sequence[str], kind: UnitKind) -> list[str]:
    assert kind in ("text", "message")
    return [text.upper() for text in texts]


def translated(text: str, name: str, **settings: object) -> str:
    return translate_upload(text.encode(), name, upper, DocumentSettings(**settings)).decode()  # type: ignore[arg-type]


def test_lines_keep_their_layout() -> None:
    assert translated("  - a b \r\n\r\n\tc\n12\nd", "a.txt") == "  - A B \r\n\r\n\tC\n12\nD"


def test_wrapped_lines_are_one_text_on_request() -> None:
    seen: list[str] = []

    def watch(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        seen.extend(texts)
        return ["new words here"] * len(texts)

    source = "A sentence\nof two lines.\n\n- An item\n  with two lines\n- another\n"
    settings = DocumentSettings(join_lines=True)
    result = translate_upload(source.encode(), "a.txt", watch, settings).decode()
    assert seen == ["A sentence of two lines.", "- An item with two lines", "- another"]
    assert result.startswith("new words\nhere\n\n")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("玛丽今天晚上会\n骑自行车去图书馆。\n", "玛丽今天晚上会骑自行车去图书馆。"),
        ("她说：\n“我去。”\n", "她说：“我去。”"),
        ("마리는 오늘 저녁에\n자전거를 타고 갑니다.\n", "마리는 오늘 저녁에 자전거를 타고 갑니다."),  # in words
    ],
    ids=["Chinese", "quotation marks", "Korean"],
)
def test_wrapped_lines_are_joined_as_their_script_joins_words(source: str, text: str) -> None:
    seen: list[str] = []

    def watch(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        seen.extend(texts)
        return list(texts)

    assert translate_upload(source.encode(), "a.txt", watch, DocumentSettings(join_lines=True)).decode() == source
    assert seen == [text]


def test_a_soft_hyphen_at_the_end_of_a_line_joins_the_parts_of_a_word_and_any_letter_marks_an_item() -> None:
    seen: list[str] = []

    def watch(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        seen.extend(texts)
        return list(texts)

    source = "Donau\u00ad\ndampfer\nа) один\nб) два\n・項目\n※注意\n"
    translate_upload(source.encode(), "a.txt", watch, DocumentSettings(join_lines=True))
    assert seen == ["Donaudampfer", "а) один", "б) два", "・項目", "※注意"]


def test_keep_source_writes_the_source_above_each_translation() -> None:
    assert translated("  a b\nc\n", "a.txt", keep_source=True) == "  a b\n  A B\nc\nC\n"


def test_json_keys_identifiers_and_numbers_stay() -> None:
    source = (
        '{"title": "a b", "id": "x y", "n": 1.50, "list": ["c", {"url": "d"}], "k": "snake_case", "@k": {"d": "e"}}'
    )
    expected = (
        '{"title": "A B", "id": "x y", "n": 1.50, "list": ["C", {"url": "d"}], "k": "snake_case", "@k": {"d": "e"}}'
    )
    assert translated(source, "a.json") == expected


def test_json_fields_are_chosen_by_paths() -> None:
    source = '{"items": [{"title": "a", "note": "b"}, {"title": "c"}], "id": "d"}'
    expected = '{"items": [{"title": "A", "note": "b"}, {"title": "C"}], "id": "D"}'
    assert translated(source, "a.json", fields=("items.*.title", "id")) == expected


def test_json_escapes_are_written_as_in_the_source() -> None:
    assert translated('{"a": "\\u00e4 \\"b\\""}', "a.json") == '{"a": "\\u00c4 \\"B\\""}'


def test_half_of_a_surrogate_pair_in_json_is_the_replacement_character() -> None:
    assert translated('{"a": "b \\ud83d", "c": "\\ud83d"}', "a.json") == '{"a": "B \\ufffd", "c": "\\ud83d"}'


def test_markup_in_json_is_html() -> None:
    assert translated('{"a": "x <b>y</b>"}', "a.json") == '{"a": "X <B>Y</B>"}'


_TAGGED = [
    ("cp <file> <dir>", "cp <file> <dir>", "text"),
    ("a < b & c", "a < b & c", "text"),
    ("x <0>y</0> & <1/>", "x <n-0>y</n-0> & <n-1/>", "message"),
    ("x <n-0>y</n-0> <1>z</1>", "x <n-0>y</n-0> <1>z</1>", "text"),
    ("x<br>y", "x<br>y", "message"),
    ("<Link to='a'>x</Link>", "<Link to='a'>x</Link>", "message"),
]


@pytest.mark.parametrize(("text", "unit", "kind"), _TAGGED)
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.tsv", "a.po"])
def test_texts_with_tags_are_messages(name: str, text: str, unit: str, kind: UnitKind) -> None:
    quoted = json.dumps(text)
    contents = {"json": f'{{"a": {quoted}}}', "csv": f"t\n{text}\n", "po": f'msgid {quoted}\nmsgstr ""\n'}
    content = contents.get(name[2:], contents["csv" if name == "a.tsv" else "json"])
    settings = DocumentSettings(columns=("t",) if name in ("a.csv", "a.tsv") else ())
    document = read_document(name, content.encode(), settings, Limits())
    assert document.units == [(unit, kind)]
    new = (unit + " &lt; 3 &amp; 4" if kind == "message" else unit).replace("x", "X")
    written = document.write([new]).decode()
    assert text.replace("x", "X") + (" < 3 & 4" if kind == "message" else "") in written.replace('\\"', '"')


def test_values_of_json_lines_are_translated() -> None:
    assert translated('{"a": "b"}\n\n{"a": "c d"}\n', "a.jsonl") == '{"a": "B"}\n\n{"a": "C D"}\n'


@pytest.mark.parametrize(
    ("source", "columns", "expected"),
    [
        ('id;text\r\n1;"a ""b"""\r\n', ("text",), 'id;text\r\n1;"A ""B"""\r\n'),
        ("id,text\n1,a\n", ("2",), "id,TEXT\n1,A\n"),
        ('id,text\n1,"a\nb"\n2,c', ("text",), 'id,text\n1,"A\nB"\n2,C'),
        ("a b\nc\n", (), "A B\nC\n"),
        ('text\na, b\n"c, d"\n', ("text",), 'text\n"A, B"\n"C, D"\n'),
        ("id,text\n1,a,\n", ("text",), "id,text\n1,A,\n"),
    ],
)
def test_named_columns_of_tables_are_translated(source: str, columns: tuple[str, ...], expected: str) -> None:
    assert translated(source, "a.csv", columns=columns) == expected


def test_a_cell_with_a_new_delimiter_is_quoted() -> None:
    result = translate_upload(b"id,t\n1,a\n", "a.csv", lambda *_: ['x, "y"'], DocumentSettings(columns=("t",)))
    assert result == b'id,t\n1,"x, ""y"""\n'


@pytest.mark.parametrize(
    ("name", "source", "settings", "message"),
    [
        ("a.csv", "id,text\n1,a\n", {}, "Name the columns to translate by `columns`, as names"),
        ("a.csv", "id,text\n1,a\n", {"columns": ("title",)}, "but one is 'title'"),
        ("a.csv", "id,text\n1,a\n2,b, c\n", {"columns": ("text",)}, "Line 3 has 3 cells, but the header has 2 names"),
        ("a.json", '{"a": "b",}', {}, "The document is not JSON: line 1"),
        ("a.arb", "كتاب\n", {}, "or set `format` to txt to translate its lines"),
        ("a.json", '{"a": "b"}', {"fields": ("c",)}, "`fields` must match texts of the document"),
        ("a.json", '{"a": "b"}', {"columns": ("c",)}, "`columns` applies to csv, tsv"),
        ("a.srt", "some text", {}, "has no time code"),
        ("a.txt", '{"a": "b"}', {}, "a.txt looks like JSON, not plain text: set `format` to json"),
        ("a.txt", "1\n00:00:01,000 --> 00:00:02,000\na\n", {}, "looks like SubRip subtitles, not plain text"),
        ("a.pdf", "%PDF-1.7", {}, "a.pdf is PDF, which cannot be translated"),
        ("a.foo", "a", {}, "a.foo has a suffix of no known format"),
        ("a.xcstrings", '{"strings": {"Save": {}}}', {}, "name the texts to translate by `fields`"),
        ("a.docx", "a", {}, "its content is not an archive"),
        ("a.txt", "PK\x03\x04", {}, "its content is an archive"),
    ],
)
def test_wrong_column_and_field_settings_are_refused(
    name: str, source: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(TransduceError, match=re.escape(message)):
        translated(source, name, **settings)


def test_files_in_other_encodings_keep_their_encoding() -> None:
    latin = "schön\n".encode("latin-1")
    assert translate_upload(latin, "a.txt", upper, DocumentSettings(encoding="latin-1")) == "SCHÖN\n".encode("latin-1")
    assert translate_upload("a\n".encode("utf-16"), "a.txt", upper) == "A\n".encode("utf-16")
    with pytest.raises(TransduceError, match="byte 3 is not: convert it to UTF-8, or set `encoding`"):
        translate_upload(latin, "a.txt", upper)
    with pytest.raises(TransduceError, match="which has no '中'"):
        translate_upload(latin, "a.txt", lambda *_: ["中"], DocumentSettings(encoding="latin-1"))


@pytest.mark.parametrize(
    ("declared", "encoding", "text"),
    [
        ("gb2312", "gbk", "朱镕基"),
        ("GB2312", "gb18030", "\U00020000"),
        ("gbk", "gb18030", "\U00020000"),
        ("big5", "cp950", "恒€"),
        ("big5", "big5hkscs", "嘅咗"),
        ("shift_jis", "cp932", "①髙"),
        ("euc-kr", "cp949", "똠방각하"),
    ],
)
def test_the_name_of_an_encoding_means_its_extension_too(declared: str, encoding: str, text: str) -> None:
    html = f'<meta charset="{declared}"><p>{text}</p><p>a</p>'
    with pytest.raises(UnicodeDecodeError):
        html.encode(encoding).decode(declared)

    def replaced(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        return [each.replace("<p>a", "<p>A") for each in texts]

    for settings in (None, DocumentSettings(encoding=declared)):
        result = translate_upload(html.encode(encoding), "a.html", replaced, settings).decode(encoding)
        assert result == html.replace("<p>a", "<p>A")
    with pytest.raises(TransduceError, match="should be text in"):
        translate_upload(html.encode(encoding) + b"\x81", "a.html", replaced)


@pytest.mark.parametrize("encoding", ["x-unknown", "undefined", "utf\x008"])
def test_an_encoding_that_decodes_nothing_is_refused(encoding: str) -> None:
    with pytest.raises(TransduceError, match=r"The document.s encoding .* is unknown: save it as UTF-8"):
        translated("a", "a.txt", encoding=encoding)


def test_characters_that_an_encoding_of_markup_lacks_are_references() -> None:
    html = '<meta charset="gb2312"><p>我</p>'.encode("gb2312")
    result = translate_upload(
        html, "a.html", lambda texts, _: [each.replace("我", "Zoë") for each in texts], DocumentSettings()
    )
    assert result == b'<meta charset="gb2312"><p>Zo&#235;</p>'


def test_equal_texts_are_translated_once() -> None:
    calls: list[list[str]] = []

    def watch(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        calls.append(list(texts))
        return list(texts)

    translate_upload(b"a\nb\na\n", "a.txt", watch)
    assert calls == [["a", "b"]]


def test_a_text_whose_translation_is_empty_stays() -> None:
    source = '{"a": "b", "c": "d"}'
    result = translate_upload(
        source.encode(), "a.json", lambda texts, _: ["" if text == "b" else "x" for text in texts]
    )
    assert json.loads(result) == {"a": "b", "c": "x"}


@pytest.mark.parametrize(
    ("value", "unit", "translation", "expected"),
    [
        # Tags of components have numbers, which HTML does not know.
        (
            "<1>a</1> <b>c</b> <2/>",
            "<n-1>a</n-1> <b>c</b> <n-2/>",
            "<b>C</b> <n-1>A</n-1><n-2/>",
            "<b>C</b> <1>A</1><2/>",
        ),
        ("a <1>b</1>", "a <n-1>b</n-1>", "<n-1>B</n-1> A", "<1>B</1> A"),
        ("a <1>b</n-1>", "a <1>b</n-1>", "<1>B</n-1> A", "<1>B</n-1> A"),
        # Signs stay as the text writes them, unless they would become markup.
        ("a & b <b>1 < 2</b>", "a & b <b>1 < 2</b>", "<b>1 &lt; 2</b> A &amp; B", "<b>1 < 2</b> A & B"),
        ("a &amp; <b>b</b>", "a &amp; <b>b</b>", "<b>B</b> &amp; A", "<b>B</b> &amp; A"),
        ("a & <b>b</b>", "a & <b>b</b>", "&amp;lt; &lt;b", "&amp;lt; &lt;b"),
        ("&File <b>b</b> R&D", "&File <b>b</b> R&D", "&amp;FILE <b>B</b> R&amp;D", "&FILE <b>B</b> R&D"),
        ("I <3 <b>b</b> >c", "I <3 <b>b</b> >c", "<b>B</b> &gt;C &lt;3 #1 &amp;#1 &lt;中", "<b>B</b> >C <3 #1 &#1 <中"),
        ("a <b>b</b>", "a <b>b</b>", "<b>B</b> &lt;1&gt; &amp;#1; &amp;lt;", "<b>B</b> &lt;1> &amp;#1; &amp;lt;"),
    ],
)
def test_tags_and_signs_in_json_stay_as_programs_read_them(
    value: str, unit: str, translation: str, expected: str
) -> None:
    document = read_document("a.json", json.dumps({"k": value}).encode(), DocumentSettings(), Limits())
    assert [each.text for each in document.units] == [unit]
    assert json.loads(document.write([translation])) == {"k": expected}
    assert json.loads(document.write([unit])) == {"k": value}


# --- ICU messages ---


def message(text: str, translations: Mapping[str, str]) -> tuple[str, list[str], MessageRecord | None]:
    """Return the translation of a message in a JSON file, the texts that were translated, and the record."""
    document = read_document("a.json", json.dumps({"k": text}).encode(), DocumentSettings(), Limits())
    seen = [unit.text for unit in document.units]
    return json.loads(document.write([translations.get(each, each) for each in seen]))["k"], seen, document.messages


@pytest.mark.parametrize(
    ("source", "translations", "expected"),
    [
        (
            "{count, plural, one {# file} other {# files}}",
            {"{#count} file": "{#count} Datei", "{#count} files": "{#count} Dateien"},
            "{count, plural, one {# Datei} other {# Dateien}}",
        ),
        (  # the text around a branch belongs to its sentence
            "You have {n, plural,\n  =0 {no files}\n  one {# file}\n  other {# files}\n} here.\n",
            {
                "You have no files here.": "Hier ist keine Datei.",
                "You have {#n} file here.": "Hier ist {#n} Datei.",
                "You have {#n} files here.": "Hier sind {#n} Dateien.",
            },
            "{n, plural,\n  =0 {Hier ist keine Datei.}\n  one {Hier ist # Datei.}\n  other {Hier sind # Dateien.}\n}\n",
        ),
        (  # one argument inside another; a number that is no longer directly inside its plural is written out
            "{g, select, male {He} other {They}} sent {n, plural, offset:1 =1 {you} other {you and # others}} {name}.",
            {"He sent you {name}.": "A {name}", "They sent you and {#n} others {name}.": "B {name} {#n}"},
            (
                "{g, select, male {{n, plural, offset:1 =1 {A {name}} other {He sent you and # others {name}.}}} "
                "other {{n, plural, offset:1 =1 {They sent you {name}.} other {B {name} #}}}}"
            ),
        ),
        (
            "{a, plural, other {# files}} in {b, plural, other {# folders}}",
            {"{#a} files in {#b} folders": "in {#b} Ordnern {#a} Dateien"},
            "{a, plural, other {{b, plural, other {in # Ordnern {a,number} Dateien}}}}",
        ),
        (  # the same choice twice has only fitting branches
            "{n, plural, one {It is} other {They are}} here: {n, plural, one {#} other {#}}",
            {},
            "{n, plural, one {It is} other {They are}} here: {n, plural, one {#} other {#}}",
        ),
        (
            "{n, plural, one {It is} other {They are}} x {n, plural,  one {one} other {many} }",
            {"It is x one": "A", "They are x many": "B"},
            "{n, plural, one {A} other {B}}",
        ),
        (  # apostrophes would begin a quotation before an argument, and signs are quoted
            "No. #1 of {n, plural, other {# by {name}}}",
            {"No. #1 of {#n} by {name}": "#1 {a} l'{name} d'{#n} can't"},
            "{n, plural, other {'#'1 '{'a'}' l’{name} d’# can't}}",
        ),
        (
            "{n, plural, other {don''t use '{these}' # times, {d, date, ::yyyy'}'}}}",
            {"don't use '{these}' {#n} times, {d, date, ::yyyy'}'}": "{d, date, ::yyyy'}'}: '{these}' {#n} isn't"},
            "{n, plural, other {{d, date, ::yyyy'}'}: '{these}' # isn''t}}",
        ),
        (
            "{n, plural, one {<b>#</b> file} other {<b>#</b> files}}",
            {"<b>{#n}</b> file": "<b>{#n}</b> Datei"},
            "{n, plural, one {<b>#</b> Datei} other {<b>#</b> files}}",
        ),
        ("{n, plural, one {#} other { # }}", {}, "{n, plural, one {#} other { # }}"),
        (
            "'{a}'{n, plural, other {'{b}' c}}",
            {"'{a}''{b}' c": "'{a}''{b}'{'s'"},
            "{n, plural, other {'{a}{b}{'’s’}}",
        ),
    ],
)
def test_the_branches_of_icu_messages_are_translated_as_sentences(
    source: str, translations: Mapping[str, str], expected: str
) -> None:
    result, _, record = message(source, translations)
    assert result == expected
    assert record is not None
    assert record.kept == record.lost == []
    assert message(source, {})[0] == source


# Translation copies messages in balanced braces of a limited length; texts with others are not translated at all.
COPIED = [
    "{n, selectordinal, one {#st} other {#th}} place",
    "{n, choice, 0#none|1#one}",
    "{n, plural, other {{g, select, other {# of them}}}}",
    "{{n}} {m, plural, other {a}}",
    "#1 {n, plural, other {a {g, select, other {b}}}}",
    "{a, plural, offset:1 other {# b}} {c, select, other {d}}",
    "{a, plural, offset:1 other {# b}} {a, plural, other {# b}}",
    "".join(f"{{a{number}, select, a {{x}} other {{y}}}}" for number in range(7)),
    "{a, select, other {x}}" * 1_000,
]
LEFT_OUT = [
    f"{{n, selectordinal, other {{{'long ' * 500}}}}}",
    "{n, plural, one {a} other {b}",
    "{n, plural, other {'{a}}",
    "<b>a</b> {n, selectordinal, other {#th}}",
]


@pytest.mark.parametrize("source", [*COPIED, *LEFT_OUT])
def test_icu_messages_that_cannot_be_divided_exactly_stay_and_are_recorded(source: str) -> None:
    result, seen, record = message(source, {})
    assert result == source
    assert record == MessageRecord([source])
    assert seen == ([source] if source in COPIED else [])


def test_an_icu_message_whose_translation_lacks_an_argument_stays_and_is_recorded() -> None:
    source = "{n, plural, one {# file by {name}} other {# files}}"
    result, seen, record = message(source, {"{#n} file by {name}": "{#n} Datei", "{#n} files": "{#n} Dateien"})
    assert seen == ["{#n} file by {name}", "{#n} files"]
    assert result == source
    assert record == MessageRecord([], [source], [frozenset({"one", "other"})])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (  # each tag is in one sentence
            '{n, plural, one {a <x id="1"/>} other {<g id="2">b</g> c}}',
            '{n, plural, one {a <x id="1"/>!} other {<g id="2">b</g> c!}}',
        ),
        ('<x id="1"/> {n, plural, one {a} other {b}}', None),
        ('{n, plural, one {<g id="2">b} other {c</g> d}}', None),
        ('{n, selectordinal, one {<x id="1"/> a} other {b}}', None),
    ],
)
def test_icu_messages_in_xliff_are_translated_if_their_tags_stay_unique(source: str, expected: str | None) -> None:
    unit = (
        f'<trans-unit id="1"><source>{source}</source></trans-unit><trans-unit id="2"><source>d</source></trans-unit>'
    )
    content = f'<xliff version="1.2"><file><body>{unit}</body></file></xliff>'
    document = read_document("a.xlf", content.encode(), DocumentSettings(), Limits())
    result = document.write([f"{unit.text}!" for unit in document.units]).decode()
    assert ("<target>d!</target>" in result, result.count("<target>")) == (True, 1 if expected is None else 2)
    assert expected is None or f"<target>{expected}</target>" in result
    assert document.messages is not None
    assert len(document.messages.kept) == int(expected is None)


def test_icu_messages_in_markup_stay_and_are_recorded() -> None:
    """A text of a page is not a single message, so its sentences cannot be told."""
    page = b"<p>A</p><p>{n, plural, other {# files}}</p>"
    document = read_document("a.html", page, DocumentSettings(), Limits())
    assert document.messages == MessageRecord([page.decode()])
    assert read_document("a.json", b'{"k": "{n} and {d, date, short}"}', DocumentSettings(), Limits()).messages is None


def test_the_plural_forms_that_a_language_needs_are_known() -> None:
    forms = {"one", "other", "=0"}
    assert lacking_plural_forms(forms, "ru-RU") == {"few", "many"}
    assert lacking_plural_forms(forms, "de") == lacking_plural_forms(forms, "zh") == lacking_plural_forms(forms, None)
    assert lacking_plural_forms({"other"}, "en") == {"one"}
    assert lacking_plural_forms({"=1", "other"}, "en") == frozenset()


def test_formulas_and_errors_of_spreadsheets_stay() -> None:
    cells = ("=SUMME(A1)", '"=WENN(A1>0;""ja"";""nein"")"', "+SUM(A1)", "@NOW()", "#NAME?", "#N/A", "#DIV/0!")
    texts = ("= one", "== two ==", "- three", "+ four (five)", "#six")
    table = "a,b\n" + "".join(f"x,{cell}\n" for cell in (*cells, *texts))
    result = translate_upload(table.encode(), "a.csv", upper, DocumentSettings(columns=("b",))).decode()
    assert result == "a,b\n" + "".join(f"x,{cell}\n" for cell in (*cells, *map(str.upper, texts)))


def test_all_columns_of_one_name_are_translated() -> None:
    table = b"a,b,a\none,two,three\n"
    assert translate_upload(table, "a.csv", upper, DocumentSettings(columns=("a",))) == b"a,b,a\nONE,two,THREE\n"


@pytest.mark.parametrize("name", [name for name in DocumentSettings.__struct_fields__ if name.endswith("fuzzy")])
def test_settings_of_other_formats_are_refused(name: str) -> None:
    with pytest.raises(TransduceError, match=f"`{name}` applies to po, but the document is txt"):
        translate_upload(b"a\n", "a.txt", upper, DocumentSettings(**{name: True}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("language", "locale"), [("en", "en"), ("eng_Latn", "en"), ("pt-BR", "pt_BR"), ("zh", "zh"), (None, "de")]
)
def test_an_application_resource_bundle_gets_the_target_locale(language: str | None, locale: str) -> None:
    bundle = '{\n  "@@locale": "de",\n  "a": "one two",\n  "@a": {"@@locale": "x"}\n}\n'
    result = translate_upload(bundle.encode(), "a.arb", upper, DocumentSettings(target_language=language)).decode()
    assert result == bundle.replace('"de"', f'"{locale}"').replace("one two", "ONE TWO")
