"""Test that every reader of text refuses other encodings in one sentence that names the file and the remedy."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.data.series import read_table as read_series
from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.units import DocumentSettings
from transduce.errors import TransduceError, wide_encoding
from transduce.interop.vocabulary_files import open_vocabulary
from transduce.interop.word_vectors import read_word_vectors
from transduce.serving.limits import read_api_keys
from transduce.tasks.experiments import read_experiment
from transduce.tasks.settings.reading import read_settings
from transduce.text.corpus import CorpusFiles, PairReader, find_layout
from transduce.text.files import LineBlocks, read_lines
from transduce.text.glossary import read_glossary
from transduce.text.pair_files import Columns, read_table
from transduce.text.tagged import read_tagged
from transduce.text.trees import read_trees

SENTENCES = [f"第{number}句话很好。" for number in range(30)]


def read_blocks(path: Path) -> None:
    with LineBlocks(path, keep_undecodable=True) as blocks:
        while blocks.read(10):
            pass


# Of each kind of file: its name, its content, and how it is read.
READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "lines": ("a.zh", "\n".join(SENTENCES), lambda path: list(read_lines(path))),
    "blocks": ("a.zh", "\n".join(SENTENCES), read_blocks),
    "csv": ("a.csv", "zh,en\n" + "\n".join(f"{line},a" for line in SENTENCES), lambda path: pairs(path, "csv")),
    "csv with a Chinese header": ("a.csv", "中文,英文\n好,good\n", lambda path: pairs(path, "csv")),
    "tsv": ("a.tsv", "\n".join(f"{line}\ta" for line in SENTENCES), lambda path: find_layout(str(path))),
    "pairs": (
        "a.tsv",
        "\n".join(f"{line}\ta" for line in SENTENCES),
        lambda path: list(PairReader(CorpusFiles(source=(str(path),)))),
    ),
    "JSON lines": ("a.jsonl", '{"zh": "好", "en": "good"}\n', lambda path: pairs(path, "jsonl")),
    "a glossary": ("terms.txt", "苹果\tapple\n", read_glossary),
    "a time series": ("a.csv", "时间,值\n1,2\n2,3\n", read_series),
    "tagged words": ("a.conll", "北京 B\n好 O\n", lambda path: list(read_tagged(str(path)))),
    "trees": ("a.trees", "(S (NP 小猫) (VP 睡觉了))\n", lambda path: list(read_trees(path))),
    "settings": ("a.toml", "# 注释\n[training]\nsteps = 5\n", read_settings),
    "an experiment": ("a.toml", "# 注释\n[experiment]\n", read_experiment),
    "API keys": ("keys.txt", "钥匙一\n钥匙二\n", read_api_keys),
    "a word list": ("words.txt", "你\n好\n吗\n", lambda path: open_vocabulary([path])),
    "word vectors": ("a.vec", "苹果 0.1 0.2\n梨子 0.3 0.2\n", lambda path: list(read_word_vectors(path))),
    "a document": (
        "a.txt",
        "你好。\n再见。\n",
        lambda path: read_document(path.name, path.read_bytes(), DocumentSettings(), Limits()),
    ),
}
COMMANDS = {
    "gbk": "iconv -f GB18030 -t UTF-8",
    "latin-1": "iconv -f GB18030 -t UTF-8",
    "utf-16": "iconv -f UTF-16 -t UTF-8",
    "utf-16-le": "iconv -f UTF-16LE -t UTF-8",
    "utf-16-be": "iconv -f UTF-16BE -t UTF-8",
    "utf-32": "iconv -f UTF-32 -t UTF-8",
    "utf-32-be": "iconv -f UTF-32BE -t UTF-8",
}


def pairs(path: Path, format: str) -> list[object]:
    return list(read_table(str(path), format, Columns(languages=("zh", "en"))))  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", COMMANDS)
@pytest.mark.parametrize("reader", READERS)
def test_another_encoding_is_refused_with_the_command_that_converts(reader: str, encoding: str, tmp_path: Path) -> None:
    name, content, read = READERS[reader]
    if encoding == "latin-1":
        content = re.sub(r"[^\x00-\x7f]+", "é ", content).replace("é ,", "é,").replace("é \t", "é\t")
    path = tmp_path / name
    path.write_bytes(content.encode(encoding))
    if reader == "a document" and encoding in ("utf-16", "utf-32"):
        read(path)  # its byte order mark declares the encoding
        return
    with pytest.raises(TransduceError) as raised:
        read(path)
    if reader == "a document":
        assert "set `encoding` to " in str(raised.value)
        return
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "files must be UTF-8, but " in message
    assert f"`{COMMANDS[encoding]} {path} > NEW`" in message
    assert ("CSV UTF-8" in message) == (path.suffix in (".csv", ".tsv"))
    assert message.count(str(path)) == 2  # one message, not one inside another


@pytest.mark.parametrize("encoding", ["GBK", "GB18030", "bogus"])
def test_tmx_that_declares_an_encoding_that_cannot_be_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?><tmx>句</tmx>'.encode("gbk"))
    with pytest.raises(TransduceError, match=r"a\.tmx is not valid XML \(.*\): export it again, in UTF-8\."):
        list(read_table(str(path), "tmx", Columns()))


def test_utf_16_and_utf_32_without_a_byte_order_mark_are_recognized() -> None:
    for text in ("hello\nworld\n", "a", "第一句话很好。\n上下一。\n", "a\nb\n"):
        for encoding in ("UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"):
            assert wide_encoding(text.encode(encoding)) == encoding
        for encoding in ("utf-8", "gbk", "utf-8-sig"):
            assert wide_encoding(text.encode(encoding)) is None
    assert wide_encoding(b"a\0b\n\0c\nd e f g h\n") is None  # control characters in UTF-8, which filters count
    assert wide_encoding("字".encode()[:2]) is None
    assert wide_encoding(b"") is None


@pytest.mark.parametrize("name", ["a.xlsx", "a.XLS", "a.ods"])
def test_spreadsheets_are_refused_with_the_form_to_save(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((b"\xd0\xcf\x11\xe0" if name == "a.XLS" else b"PK\x03\x04") + bytes(20))
    reading: list[Callable[[], object]] = [
        lambda: list(read_lines(path)),
        lambda: list(PairReader(CorpusFiles(source=(str(path),)))),
    ]
    for read in reading:
        with pytest.raises(TransduceError, match=r"is a spreadsheet, .*: save it in Excel as CSV UTF-8\."):
            read()


def test_columns_of_a_csv_may_be_named_by_names_of_languages(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("英文,中文\ngood,好\n", "utf-8-sig")
    found = list[tuple[str, str]]()
    assert next(read_table(str(path), "csv", Columns(report=found.append)))[:2] == ("good", "好")
    assert found == [("英文", "中文")]
    assert pairs(path, "csv")[0][:2] == ("好", "good")  # type: ignore[index]
    path.write_text("中文,汉语\na,b\n", "utf-8")
    with pytest.raises(TransduceError, match="name neither columns nor languages"):
        pairs(path, "csv")
