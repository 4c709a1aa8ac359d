"""Test reading of parallel text: line breaks, file formats, and messages about broken files."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import pytest

from transduce.errors import TransduceError
from transduce.text import CorpusFiles, LineNotes, Pair, language_of, read_lines, read_pairs, valid_language
from transduce.text.corpus import Format, PairReader, find_layout
from transduce.text.filters import FilterSettings, PairFilter
from transduce.text.languages import is_in_large_script
from transduce.text.pair_files import Columns, read_objects, read_table

WriteLines = Callable[[str, Iterable[str]], Path]


@pytest.fixture
def write_bytes(tmp_path: Path) -> Callable[[str, bytes], str]:
    """Return a function that writes bytes to a file in the test's folder, and returns its path."""

    def write_bytes(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write_bytes


Write = Callable[[str, bytes], str]


def two_files(source: str, target: str) -> CorpusFiles:
    return CorpusFiles(source=(source,), target=(target,))


def texts(files: CorpusFiles, notes: LineNotes | None = None) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(files, notes)]


def test_two_files_are_paired_line_by_line(write_bytes: Write) -> None:
    source, target = write_bytes("a.zh", "我\n你好\n".encode()), write_bytes("a.en", b"I\nhello\n")
    assert list(read_pairs(two_files(source, target))) == [
        Pair("我", "I", 1, source),
        Pair("你好", "hello", 2, source),
    ]


def test_only_the_line_feed_ends_a_line(write_bytes: Write) -> None:
    odd = "a\u2028b\u2029c\u0085d\re\x0bf\x0cg\x1ch"
    path = write_bytes("odd.txt", f"{odd}\nnext".encode())
    assert list(read_lines(path)) == [odd, "next"]


def test_the_last_line_feed_is_optional_and_empty_lines_count(write_bytes: Write) -> None:
    assert list(read_lines(write_bytes("with", b"a\n\nb\n"))) == ["a", "", "b"]
    assert list(read_lines(write_bytes("without", b"a\n\nb"))) == ["a", "", "b"]
    assert list(read_lines(write_bytes("empty-end", b"a\n\n"))) == ["a", ""]
    assert list(read_lines(write_bytes("nothing", b""))) == []


def test_gzip_and_plain_give_the_same_pairs_whatever_the_name(write_bytes: Write) -> None:
    source, target = "我\u2028你\n他".encode(), b"I\r\nhe\n"
    plain = texts(two_files(write_bytes("a.zh", source), write_bytes("a.en", target)))
    packed = two_files(write_bytes("b.zh.gz", gzip.compress(source)), write_bytes("b.en", gzip.compress(target)))
    assert texts(packed) == plain == [("我\u2028你", "I"), ("他", "he")]


def test_joined_gzip_files_are_one(write_bytes: Write) -> None:
    assert list(read_lines(write_bytes("a.gz", gzip.compress(b"a\n") + gzip.compress(b"b\n")))) == ["a", "b"]


def test_marks_and_carriage_returns_are_removed_and_counted(write_bytes: Write) -> None:
    notes = LineNotes()
    path = write_bytes("windows.txt", "\ufeffa\r\n\ufeffb\r\nc\rd\n".encode())
    assert list(read_lines(path, notes)) == ["a", "\ufeffb", "c\rd"]
    assert notes == LineNotes(carriage_returns=2, byte_order_marks=1, line_end="\r\n")


def test_several_files_are_paired_in_their_order(write_bytes: Write) -> None:
    files = CorpusFiles(
        source=(write_bytes("1.de", b"a\nb\n"), write_bytes("2.de", b"c\n")),
        target=(write_bytes("1.en", b"A\nB\n"), write_bytes("2.en", b"C\n")),
    )
    assert [(pair.source, pair.target, pair.line) for pair in read_pairs(files)] == [
        ("a", "A", 1),
        ("b", "B", 2),
        ("c", "C", 1),
    ]


@pytest.mark.parametrize(("name", "format"), [("a.tsv", "auto"), ("a.txt", "tsv")])
def test_pairs_of_tsv_files_are_read(write_bytes: Write, name: str, format: Format) -> None:
    files = CorpusFiles(source=(write_bytes(name, "我\tI\n\thello\n".encode()),), format=format)
    assert texts(files) == [("我", "I"), ("", "hello")]


@pytest.mark.parametrize(
    "line",
    [
        '{"source": "我", "target": "I"}',
        '{"zh": "我", "en": "I", "score": 1}',
        '{"translation": {"zh": "我", "en": "I"}}',
        '{"zh": "我", "en": "I", "source": "https://example.org", "target": "page 0"}',
        '{"zh": 1, "en": 2, "source": "我", "target": "I"}',
    ],
)
def test_pairs_of_json_lines_are_read_from_each_form_of_object(write_bytes: Write, line: str) -> None:
    files = CorpusFiles(source=(write_bytes("a.jsonl.gz", gzip.compress(line.encode())),), languages=("zh", "en"))
    assert texts(files) == [("我", "I")]


@pytest.mark.parametrize("lines", [(100, 99), (99, 100), (1, 3)])
def test_sides_of_unequal_length(write_bytes: Write, lines: tuple[int, int]) -> None:
    source, target = (write_bytes(name, b"x\n" * count) for name, count in zip(("t.zh", "t.en"), lines, strict=True))
    counted = f"{lines[0]} line" + "s" * (lines[0] > 1)
    with pytest.raises(TransduceError, match=rf"t\.zh has {counted} and .*t\.en has {lines[1]}: find"):
        list(read_pairs(two_files(source, target)))


def test_carriage_returns_alone_end_no_line_and_are_reported(write_bytes: Write) -> None:
    old, new = write_bytes("old.zh", b"x\ry\rz\r"), write_bytes("new.en", b"x\ny\nz\n")
    rule = r"old\.zh ends its lines with carriage returns alone, so it is one line: end them with line feeds\."
    for files in (two_files(old, new), two_files(new, old)):
        with pytest.raises(TransduceError, match=rule):
            list(read_pairs(files))
    with pytest.raises(TransduceError, match=rule):
        list(read_lines(old))
    mixed = write_bytes("mixed.zh", b"x\ry\r\nz\n")
    with pytest.raises(TransduceError, match=r"new\.en has 3: .*mixed\.zh has carriage returns without .* \(1\)"):
        list(read_pairs(two_files(mixed, new)))
    with pytest.raises(TransduceError, match=r"mixed\.zh has 2: find the line that is missing"):
        list(read_pairs(two_files(write_bytes("short.en", b"x\n"), mixed)))


def test_bytes_that_are_not_utf_8_are_refused_with_their_offset(write_bytes: Write) -> None:
    with pytest.raises(TransduceError, match=r"latin:2: files must be UTF-8, .* not \(the byte at offset 8\)"):
        list(read_lines(write_bytes("latin", b"\xef\xbb\xbfab\nba\xe9r\n")))
    with pytest.raises(TransduceError, match=r"marked:1: files must be UTF-8, .* not \(the byte at offset 4\)"):
        list(read_lines(write_bytes("marked", b"\xef\xbb\xbfa\xe9\n")))
    with pytest.raises(TransduceError, match=r"wide:1: files must be UTF-8, but this one is UTF-16: convert it by"):
        list(read_lines(write_bytes("wide", "ab\n".encode("utf-16"))))


def test_files_that_cannot_be_read(write_bytes: Write, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"gone\.txt does not exist: check the file's name"):
        list(read_lines(tmp_path / "gone.txt"))
    with pytest.raises(TransduceError, match=r"is a folder, but a text file is needed"):
        list(read_lines(tmp_path))
    file = write_bytes("file", b"a\n")
    with pytest.raises(TransduceError, match=r"below cannot be read \(Not a directory\): check"):
        list(read_lines(f"{file}/below"))


def test_an_empty_file_is_refused_by_name(write_bytes: Write) -> None:
    empty, full = write_bytes("empty.zh", b""), write_bytes("full.en", b"a\n")
    for files in (two_files(empty, full), two_files(full, empty), two_files(empty, empty)):
        with pytest.raises(TransduceError, match=r"empty\.zh is empty, but a corpus needs at least one line"):
            list(read_pairs(files))
    with pytest.raises(TransduceError, match=r"empty\.tsv is empty"):
        list(read_pairs(CorpusFiles(source=(write_bytes("empty.tsv", b""),))))


def test_incomplete_and_false_gzip_files_are_refused(write_bytes: Write) -> None:
    whole = gzip.compress(b"".join(b"line %d\n" % number for number in range(20_000)))
    with pytest.raises(TransduceError, match=r"cut\.gz is an incomplete gzip file, which ends at about line [1-9]"):
        list(read_lines(write_bytes("cut.gz", whole[: len(whole) // 2])))
    with pytest.raises(TransduceError, match=r"bad\.gz is an incomplete gzip file"):
        list(read_lines(write_bytes("bad.gz", whole[:500] + b"\xff" * 200 + whole[700:])))
    with pytest.raises(TransduceError, match=r"plain\.gz is not gzip although its name ends in \.gz"):
        list(read_lines(write_bytes("plain.gz", b"a\n")))


@pytest.mark.parametrize(("compress", "suffix", "kind"), [(lzma.compress, "xz", "xz"), (bz2.compress, "bz2", "bzip2")])
def test_xz_and_bzip2_files_are_read_and_incomplete_ones_refused(
    compress: Callable[[bytes], bytes], suffix: str, kind: str, write_bytes: Write
) -> None:
    """The content shows the compression, whatever the name; a name that promises another one is refused."""
    packed = compress(b"".join(b"line %d\n" % number for number in range(20_000)))
    assert list(read_lines(write_bytes("text.en", compress(b"a\nb\n")))) == ["a", "b"]
    assert list(read_lines(write_bytes(f"empty.{suffix}", compress(b"")))) == []
    assert list(read_lines(write_bytes("plain.en", b"BZh is no magic\n"))) == ["BZh is no magic"]
    with pytest.raises(TransduceError, match=f"cut.{suffix} is an incomplete {kind} file, which ends at about line"):
        list(read_lines(write_bytes(f"cut.{suffix}", packed[: len(packed) // 2])))
    with pytest.raises(TransduceError, match=f"plain.{suffix} is not {kind} although its name ends in .{suffix}"):
        list(read_lines(write_bytes(f"plain.{suffix}", b"a\n")))


def test_a_zip_archive_is_refused_by_name(write_bytes: Write) -> None:
    with pytest.raises(TransduceError, match=r"text\.en is a zip archive, which may hold several files: unpack it"):
        list(read_lines(write_bytes("text.en", b"PK\x03\x04...")))


def test_suffixes_in_capitals_and_empty_lines_of_pair_files_are_accepted(write_bytes: Write) -> None:
    files = CorpusFiles(source=(write_bytes("a.TSV", b"x\ty\n\n"),))
    assert [pair[:2] for pair in read_pairs(files)] == [("x", "y"), ("", "")]
    files = CorpusFiles(source=(write_bytes("a.jsonl", b'{"source": "x", "target": "y"}\n\n'),))
    assert [pair[:2] for pair in read_pairs(files)] == [("x", "y"), ("", "")]


def test_malformed_lines_of_pair_files_are_refused_with_their_number(write_bytes: Write) -> None:
    def read(name: str, content: str) -> None:
        path = write_bytes(name, content.encode())
        list(read_pairs(CorpusFiles(source=(path,), languages=("zh", "en"), strict=True)))

    with pytest.raises(
        TransduceError, match=r"a\.tsv:2: a TSV line needs 2 columns.* has 3: fix it, or choose two columns by number"
    ):
        read("a.tsv", "a\tb\na\tb\tc\n")
    with pytest.raises(TransduceError, match=r"a\.tsv:1: a TSV line needs 2 columns.* has 1"):
        read("a.tsv", "a\n")
    with pytest.raises(TransduceError, match=r"a\.jsonl:1: the line is not a JSON object \(.+\): fix it"):
        read("a.jsonl", '{"zh": ')
    with pytest.raises(
        TransduceError, match=r"a\.jsonl:1: JSON lines have an object on each line, but this line begins a list"
    ):
        read("a.jsonl", "[1, 2]")
    with pytest.raises(
        TransduceError,
        match=r'a\.jsonl:1: .*keys "zh" and "en" or "source" and "target" .*"zh", "de": .*by `data\.languages`',
    ):
        read("a.jsonl", '{"zh": "a", "de": "b"}')


@pytest.mark.parametrize("keys", [("src", "tgt"), ("input", "output"), ("text", "label")])
def test_usual_keys_of_json_lines_are_read(keys: tuple[str, str], write_bytes: Write) -> None:
    path = write_bytes("a.jsonl", json.dumps({keys[0]: "a", keys[1]: "A", "id": 7}).encode())
    assert [pair[:2] for pair in read_pairs(CorpusFiles(source=(path,)))] == [("a", "A")]


def test_numbers_of_classes_are_labels(write_bytes: Write) -> None:
    path = write_bytes("a.jsonl", b'{"text": "a", "label": 0}\n{"text": "b", "label": 12}\n')
    assert [pair[:2] for pair in read_pairs(CorpusFiles(source=(path,)))] == [("a", "0"), ("b", "12")]
    for columns in (Columns(), Columns(names=("text", "label"))):
        assert [row[:2] for row in read_table(path, "jsonl", columns)] == [("a", "0"), ("b", "12")]


@pytest.mark.parametrize("label", [-1, True, 1.5, None])
def test_other_labels_than_texts_and_numbers_of_classes_are_refused(label: object, write_bytes: Write) -> None:
    """A text without a label has -1 in `datasets`."""
    path = write_bytes("a.jsonl", json.dumps({"text": "a", "label": label}).encode())
    with pytest.raises(TransduceError, match=r'under "label" stands .* instead of a text'):
        list(read_pairs(CorpusFiles(source=(path,), strict=True)))
    with pytest.raises(TransduceError, match="row 1: a pair is two texts"):
        list(read_table(path, "jsonl", Columns()))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "datasets"])
def test_classes_of_datasets_have_their_names(kind: Literal["parquet", "arrow", "datasets"], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install 'transduce[data]'")
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]})
    dataset = dataset.cast_column("label", datasets.ClassLabel(names=["no", "yes"]))
    dataset.save_to_disk(tmp_path / "folder")
    dataset.to_parquet(tmp_path / "a.parquet")
    path = {"datasets": tmp_path / "folder", "parquet": tmp_path / "a.parquet"}.get(kind)
    path = path or next((tmp_path / "folder").glob("*.arrow"))
    expected = [("a", "yes"), ("b", "no")]
    assert [row[:2] for row in read_table(str(path), kind, Columns())] == expected
    assert [row[:2] for row in read_objects(dataset, Columns(), "pairs")] == expected


def test_lines_without_two_columns_are_skipped_and_counted(write_bytes: Write) -> None:
    notes = LineNotes()
    path = write_bytes("a.tsv", b"a\tA\nno tab\nb\tB\nc\tC\tmore\nd\tD\n")
    files = CorpusFiles(source=(path,))
    assert [pair[:3] for pair in read_pairs(files, notes)] == [("a", "A", 1), ("b", "B", 3), ("d", "D", 5)]
    assert notes.skipped_lines == 2
    (block,) = PairReader(files)
    pairs = zip(block.sources, block.targets, strict=True)
    reasons = [PairFilter(FilterSettings()).text_reason(*pair) for pair in pairs]
    assert reasons == [None, "line without two columns", None, "line without two columns", None]
    with pytest.raises(TransduceError, match=r"m\.tsv:1: a TSV line needs 2 columns, .* has 3"):
        list(read_pairs(CorpusFiles(source=(write_bytes("m.tsv", b"a\tA\tx\nb\tB\ty\nc\tC\n"),))))


@pytest.mark.parametrize(
    ("content", "layout"),
    [
        ("a\tA\n", (False, False)),
        ("de\ten\na\tA\n", (True, False)),
        ("source\ttarget\na\tA\n", (True, False)),
        ("Source\tTarget\n", (True, False)),
        ('"de"\t"en"\n"a"\t"A"\n', (True, True)),
        ('"He said ""no""."\tEr sagte „nein“.\na\tA\n', (False, True)),
        ('"Hello."\tHallo.\na\tA\n', (False, False)),  # a spoken sentence, which CSV would not quote
        ('"Yes," he said.\tJa\n"a ""b"""\tA\n', (False, False)),
        ('a "" b\tA\n', (False, False)),
        ("", (False, False)),
    ],
)
def test_headers_and_quotes_of_tables_are_found(write_bytes: Write, content: str, layout: tuple[bool, bool]) -> None:
    assert find_layout(write_bytes("a.tsv", content.encode())) == layout


def test_quoted_tables_with_a_header_are_read_as_written_by_csv(write_bytes: Write) -> None:
    pairs = [('He said "no".', "Er sagte nein."), ("a\tb", 'c "d"'), ("plain", ""), ('"', '""')]
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows([("en", "de"), *pairs])
    notes = LineNotes()
    path = write_bytes("a.tsv", stream.getvalue().encode())
    assert texts(CorpusFiles(source=(path,), strict=True), notes) == pairs
    assert notes.notices() == [f"{path} quotes its fields as CSV does: the quotes are not part of the texts."]


def test_line_feeds_of_json_texts_become_spaces_and_are_reported(write_bytes: Write) -> None:
    notes = LineNotes()
    path = write_bytes("a.jsonl", b'{"source": "a\\nb", "target": "A\\nB"}\n{"source": "c", "target": "C"}\n')
    assert texts(CorpusFiles(source=(path,)), notes) == [("a b", "A B"), ("c", "C")]
    assert notes.notices()[0].startswith("2 texts had line feeds, which became spaces")


def test_unused_fields_of_json_lines_are_reported(write_bytes: Write) -> None:
    notes = LineNotes()
    lines = (
        b'{"source": "a", "target": "A"}\n{"source": "b", "target": "B", "id": 1}\n'
        b'{"id": 2, "translation": {"source": "c", "target": "C", "by": ""}}\n'
    )
    path = write_bytes("a.jsonl", lines)
    assert texts(CorpusFiles(source=(path,)), notes) == [("a", "A"), ("b", "B"), ("c", "C")]
    (notice,) = notes.notices()
    assert notice == f'Fields of JSON objects that are not used (first place): "id" ({path}:2), "by" ({path}:3).'
    weighted = write_bytes("w.jsonl", b'{"source": "a", "target": "A", "weight": 0.1}\n')
    with pytest.raises(TransduceError, match=r'w\.jsonl:1: the field "weight" would weight the pair, but no weights'):
        texts(CorpusFiles(source=(weighted,)))


def test_files_of_unequal_number_or_form_are_refused(write_bytes: Write) -> None:
    a, b = write_bytes("a.zh", b"x\n"), write_bytes("b.en", b"x\n")
    with pytest.raises(TransduceError, match=r"equally many files, but there are 2 and 1: name them"):
        list(read_pairs(CorpusFiles(source=(a, b), target=(b,))))
    with pytest.raises(
        TransduceError,
        match=r"a\.zh holds one side only: name the file of the other .* `--set data\.format=tsv`",
    ):
        list(read_pairs(CorpusFiles(source=(a,))))
    with pytest.raises(TransduceError, match=r"nowhere does not exist"):
        list(read_pairs(CorpusFiles(source=("nowhere",))))
    with pytest.raises(TransduceError, match=r"A tsv file holds both sides, but target file .*b\.en is specified"):
        list(read_pairs(CorpusFiles(source=(a,), target=(b,), format="tsv")))
    with pytest.raises(TransduceError, match=r"needs at least one source file, but none is specified"):
        list(read_pairs(CorpusFiles(source=())))


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("data/train.zh.gz", "zh"),
        ("test_2016.de", "de"),
        ("a.zh-Hant", "zh-Hant"),
        ("a.pt_BR.gz", "pt_BR"),
        ("foo.txt", None),
        ("train.src", None),
        ("zh", None),
        ("de/train", None),
        ("train.1", None),
    ],
)
def test_the_language_is_read_from_the_file_name(path: str, language: str | None) -> None:
    assert language_of(path) == language


def test_valid_language_accepts_codes_with_script_and_region() -> None:
    assert all(map(valid_language, ["zh", "deu", "zh-Hans", "zh-Hant-TW", "pt_BR", "es-419"]))
    assert not any(map(valid_language, ["", "z", "german", "ZH", "zh-", "zh hans"]))


def test_text_in_a_large_script_is_recognized() -> None:
    assert all(map(is_in_large_script, ["我爱你 OK", "ひらがな", "한국어 문장", "ภาษาไทย"]))
    assert not any(map(is_in_large_script, ["", "。！", "English 字", "Привет", "Ελληνικά"]))


def test_marks_and_carriage_returns_of_text_alone_are_counted_once(write_bytes: Write) -> None:
    """A line that is not UTF-8 has the block read again, line by line."""
    path = write_bytes("a.txt", b"\xef\xbb\xbfone\r\ncaf\xe9\r\nthree\r\n")
    notes = LineNotes()
    lines = [pair.source for pair in read_pairs(CorpusFiles(source=(path,), target=(path,)), notes)]
    assert (lines[0], len(lines)) == ("one", 3)
    assert (notes.byte_order_marks, notes.carriage_returns) == (1, 3)


@pytest.mark.parametrize(
    ("first", "is_named"),
    [("上半\t下半", True), ("上联\t下联", False), ("你好。\t再见。", False), ("春风又绿江南岸\t明月何时照我还", False)],
)
def test_a_first_row_that_may_be_a_header_is_named(first: str, is_named: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{first}\n" + "海阔凭鱼跃\t天高任鸟飞\n" * 9, "utf-8")
    notes = LineNotes()
    list(read_pairs(CorpusFiles(source=(str(path),), format="tsv"), notes))
    expected = (
        f"{path}:1: “上半 / 下半” is read as a pair: if it names the columns, remove the line, or pass --columns."
    )
    assert notes.notices() == ([expected] if is_named else [])


def test_a_picture_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.zh"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    with pytest.raises(TransduceError, match=r"a\.zh is a file of the kind PNG, but text is needed"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is empty, but a table begins with"), ("src,tgt\n", "has column names but no rows"), ("\n", "is empty")],
)
def test_a_table_without_rows_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, "utf-8")
    with pytest.raises(TransduceError, match=rf"a\.csv {message}"):
        list(read_table(str(path), "csv", Columns()))


@pytest.mark.parametrize(
    ("variants", "language", "expected"),
    [
        ("zh-CN zh-TW", "zh", "zh-CN"),
        ("zh-TW zh-CN", "zh", "zh-CN"),
        ("zh-CN zh-TW", "zh-Hant", "zh-TW"),
        ("zh-TW", "zh", "zh-TW"),
        ("de-DE de-AT", "de", "de-DE"),
        ("de-DE de-DE", "ger", "de-DE"),
        ("de-DE de", "de", "de"),
    ],
)
def test_a_tmx_unit_with_several_texts_of_a_language_has_the_one_that_fits(
    tmp_path: Path, variants: str, language: str, expected: str
) -> None:
    texts = [f'<tuv xml:lang="{code}"><seg>{code}</seg></tuv>' for code in variants.split()]
    unit = f'<tu><tuv xml:lang="en"><seg>a</seg></tuv>{"".join(texts)}</tu>'
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{unit}</body></tmx>", "utf-8")
    (row,) = read_table(str(tmp_path / "a.tmx"), "tmx", Columns(languages=("en", language)))
    assert row[:2] == ("a", expected)


def test_tmx_units_that_lack_a_language_are_counted_in_a_warning(tmp_path: Path) -> None:
    units = "".join(
        "<tu>" + "".join(f'<tuv xml:lang="{code}"><seg>x</seg></tuv>' for code in codes.split()) + "</tu>"
        for codes in ("en de", "en", "en fr", "de en")
    )
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>", "utf-8")
    with pytest.warns(UserWarning, match=r"a text in en or de is missing: 2 translation units of 4\."):
        rows = list(read_table(str(tmp_path / "a.tmx"), "tmx", Columns(languages=("en", "de"))))
    assert [row.number for row in rows] == [1, 4]
