"""Test which texts of plain text, JSON and tables are translated, and that the rest stays the same."""

import re
from collections.abc import Sequence

import pytest

from transduce.documents.translate import translate_upload
from transduce.documents.units import DocumentSettings, UnitKind
from transduce.errors import TransduceError


def upper(texts: Sequence[str], kind: UnitKind) -> list[str]:
    assert kind in ("text", "html")
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
        ("마리는 오늘 저녁에\n자전거를 타고 갑니다.\n", "마리는 오늘 저녁에 자전거를 타고 갑니다."),  # in words
    ],
    ids=["Chinese", "Korean"],
)
def test_wrapped_lines_are_joined_as_their_script_joins_words(source: str, text: str) -> None:
    seen: list[str] = []

    def watch(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        seen.extend(texts)
        return list(texts)

    assert translate_upload(source.encode(), "a.txt", watch, DocumentSettings(join_lines=True)).decode() == source
    assert seen == [text]


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
        ("a.arb", "كتاب\n", {}, "or pass --format txt to translate its lines"),
        ("a.json", '{"a": "b"}', {"fields": ("c",)}, "`fields` must match texts of the document"),
        ("a.json", '{"a": "b"}', {"columns": ("c",)}, "`columns` applies to csv, tsv"),
        ("a.srt", "some text", {}, "has no time code"),
        ("a.txt", '{"a": "b"}', {}, "a.txt looks like JSON, not plain text: pass --format json"),
        ("a.txt", "1\n00:00:01,000 --> 00:00:02,000\na\n", {}, "looks like SubRip subtitles, not plain text"),
        ("a.pdf", "%PDF-1.7", {}, "a.pdf is PDF, which cannot be translated"),
        ("a.foo", "a", {}, "a.foo has a suffix of no known format"),
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
    with pytest.raises(TransduceError, match="byte 3 is not: convert it to UTF-8, or name its encoding"):
        translate_upload(latin, "a.txt", upper)
    with pytest.raises(TransduceError, match="which has no '中'"):
        translate_upload(latin, "a.txt", lambda *_: ["中"], DocumentSettings(encoding="latin-1"))


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
