"""Test `transduce.translate_document` and `transduce translate` with documents: files, resuming, and errors."""

import copy
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transduce
from transduce.commands.line_warnings import resolve_languages
from transduce.commands.main import main
from transduce.documents.formats import read_document
from transduce.documents.limits import LOCAL_LIMITS
from transduce.documents.translate import (
    ModelTexts,
    TextsCallback,
    count_texts,
    portions,
    target_path,
    write_translated,
)
from transduce.documents.units import Document, DocumentSettings, UnitKind
from transduce.errors import TransduceError
from transduce.inference.translator import Translator

SRT = "1\r\n00:00:01,000 --> 00:00:02,000\r\n{}\r\n"
QUICK = ["--beam-size", "1", "--max-length", "8", "--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


class InterruptedWorkError(Exception):
    """An error of a translator that stops in the middle of a document."""


def test_an_interrupted_translation_is_resumed(tmp_path: Path) -> None:
    content = "".join(f"{'word ' * 50}{number}\n" for number in range(400)).encode()
    document = read_document("a.txt", content, DocumentSettings(), LOCAL_LIMITS)
    assert len(list(portions(document.units))) > 3
    calls = 0

    def translate(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        nonlocal calls
        calls += 1
        if calls == 3:
            raise InterruptedWorkError
        return [text.upper() for text in texts]

    target = tmp_path / "b.txt"
    with pytest.raises(InterruptedWorkError):
        write_translated(document, target, translate, identity=b"1")
    assert not target.exists()
    with pytest.raises(TransduceError, match="pass --resume to continue"):
        write_translated(document, target, translate, identity=b"1")
    with pytest.raises(TransduceError, match="started with another document, model or settings"):
        write_translated(document, target, translate, identity=b"2", resume=True)
    with (tmp_path / "b.txt.partial").open("ab") as file:
        file.write(b'["cut')  # as after a crash
    calls = 10
    write_translated(document, target, translate, identity=b"1", resume=True)
    assert target.read_bytes() == content.upper()
    assert calls == 10 + len(list(portions(document.units))) - 2
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]


def test_the_command_translates_a_document(capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    sentence = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[0]
    source, target = tmp_path / "film.srt", tmp_path / "film.en.srt"
    source.write_bytes(SRT.format(sentence).encode())
    assert main(["translate", str(trained), str(source), "--output", str(target), *QUICK]) == 0
    assert "1 text in" in capsys.readouterr().err
    lines = target.read_bytes().decode().split("\r\n")
    assert lines[:2] == ["1", "00:00:01,000 --> 00:00:02,000"]
    assert lines[2] not in ("", sentence)
    assert main(["translate", str(trained), str(source), *QUICK]) == 0
    assert capsys.readouterr().out.split("\n")[2].strip() == lines[2]


def test_the_command_reports_messages_that_need_a_person(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "a.json", tmp_path / "b.json"
    messages = {"a": "茶", "b": "{n, plural, other {我有#个苹果。}}", "c": "{n, selectordinal, other {第#个}}"}
    source.write_text(json.dumps(messages), "utf-8")
    assert main(["translate", str(trained), str(source), "--output", str(target), *QUICK]) == 0
    error = capsys.readouterr().err
    assert (
        "Kept, because the branches cannot be translated one by one: 1 ICU message.\n  this message stays: {n, select"
        in error
    )
    assert "1 plural in ICU messages without forms of the target language (`one`): add these" in error
    translated = json.loads(target.read_text("utf-8"))
    assert translated["c"] == messages["c"]
    assert re.fullmatch(r"\{n, plural, other \{[^{}]*#[^{}]*\}\}", translated["b"])
    assert "我" not in translated["b"]


def test_the_command_names_units_of_xliff_that_stay(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "a.xlf", tmp_path / "b.xlf"
    one, two = ('<mrk mtype="seg" mid="1">我吃鱼。</mrk>', '<mrk mtype="seg" mid="2">我们喝水。</mrk>')
    unit = f'<trans-unit id="7"><source>我吃鱼。 我们喝水。</source><seg-source><g id="1">{one}</g> {two}</seg-source>'
    unit += '<target><g id="1"><mrk mtype="seg" mid="1">I eat fish.</mrk></g></target></trans-unit>'
    source.write_text(f'<xliff version="1.2"><file target-language="en"><body>{unit}</body></file></xliff>', "utf-8")
    assert main(["translate", str(trained), str(source), "--output", str(target), *QUICK]) == 0
    error = capsys.readouterr().err
    assert "between the tags around segments: 1 XLIFF unit.\n  this unit stays: 7: 我吃鱼。 我们喝水。\n" in error
    assert target.read_bytes() == source.read_bytes()


def test_the_command_counts_fuzzy_translations_that_stay(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "a.po", tmp_path / "b.po"
    source.write_text('#, fuzzy\nmsgid "我吃鱼。"\nmsgstr "x"\n\nmsgid "我们喝水。"\nmsgstr ""\n', "utf-8")
    command = ["translate", str(trained), str(source), "--output", str(target), *QUICK]
    assert main(command) == 0
    assert "Kept with the flag `fuzzy`: 1 translation." in capsys.readouterr().err
    assert '#, fuzzy\nmsgid "我吃鱼。"\nmsgstr "x"' in target.read_text("utf-8")
    assert main([*command, "--overwrite-fuzzy"]) == 0
    assert "Kept" not in capsys.readouterr().err
    assert "fuzzy" not in target.read_text("utf-8")
    assert main(["translate", str(trained), "--overwrite-fuzzy", *QUICK]) == 2
    assert "`--overwrite-fuzzy` applies to documents" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "options"), [("a.txt", []), ("a.zh", []), ("a.csv", ["--format", "txt"])])
def test_the_command_translates_text_in_other_encodings(
    capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path, name: str, options: list[str]
) -> None:
    first, second = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:2]
    source, target = tmp_path / name, tmp_path / f"out.{name}"
    source.write_bytes(f"{first}\r\n\r\n  {second}\r\n".encode("gb18030"))
    command = ["translate", str(trained), str(source), "--encoding", "gb18030", *options, *QUICK]
    assert main([*command, "--keep-source", "--output", str(target)]) == 0
    lines = target.read_bytes().decode("gb18030").split("\r\n")
    assert (lines[0], lines[2], lines[3], lines[5:]) == (first, "", f"  {second}", [""])
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out.split() == f"{lines[1]} {lines[4]}".split()


def test_the_command_counts_the_terms_of_a_document(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    source, terms = tmp_path / "a.md", tmp_path / "terms.tsv"
    source.write_text("# 茶\n\n我吃鱼。\n", "utf-8")
    terms.write_text("茶\ttea\n鱼\tmilk and the water and rice\n", "utf-8")
    assert main(["translate", str(trained), str(source), "--glossary", str(terms), *QUICK]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("# tea\n")
    assert "glossary: 2 terms in the sources, 1 of them in the translations; missing" in captured.err
    assert "\n  text 2 lacks `milk and the water and rice` for `鱼`\n" in captured.err


def test_tags_of_a_page_are_no_glossary_terms(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    page, terms = tmp_path / "a.html", tmp_path / "terms.tsv"
    page.write_text("<table><tr><td>茶</td></tr></table>", "utf-8")
    terms.write_text("茶\ttea\ntable\tdesk\n", "utf-8")
    assert main(["translate", str(trained), str(page), "--glossary", str(terms), *QUICK]) == 0
    assert "glossary: 1 term in the sources, 1 of them in the translations" in capsys.readouterr().err


def test_warnings_about_a_document_quote_its_texts(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text(
        'msgid ""\nmsgstr ""\n\nmsgid "我吃鱼"\nmsgstr ""\n\nmsgid "Wie geht es dir?"\nmsgstr ""\n',
        "utf-8",
    )
    assert main(["translate", str(trained), str(source), "--output", str(tmp_path / "b.po"), *QUICK]) == 0
    err = capsys.readouterr().err
    assert "warning: text 2 looks German, not Chinese" in err
    assert "\n  text 2 of the document: Wie geht es dir?\n" in err


def test_python_translates_a_document(translator: Translator, toy_corpus: Path, tmp_path: Path) -> None:
    sentence = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[0]
    source = tmp_path / "film.srt"
    source.write_bytes(SRT.format(sentence).encode())
    progress: list[tuple[int, int]] = []
    path = transduce.translate_document(translator, source, progress=lambda *counts: progress.append(counts))
    assert path == tmp_path / f"film.{translator.target_language}.srt"
    assert path.read_bytes() == SRT.format(translator(sentence).text).encode()
    assert progress == [(len(sentence), len(sentence))]
    with pytest.raises(TransduceError, match="is the document itself"):
        transduce.translate_document(translator, source, source)
    for missing, message in (("no.srt", "no.srt does not exist"), (".", "is a folder, but a document is needed")):
        with pytest.raises(TransduceError, match=message):
            transduce.translate_document(translator, tmp_path / missing, tmp_path / "out.srt")
    (tmp_path / "sub").mkdir()
    with pytest.raises(TransduceError, match="is the document itself"):
        transduce.translate_document(translator, source, tmp_path / "sub" / ".." / "film.srt")


def test_a_translation_is_not_resumed_with_other_weights_tags_or_terms(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning by LoRA keeps the embeddings, and a glossary is named by its file."""
    source, target, terms = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "terms.tsv"
    source.write_text("我喜欢苹果。\n", "utf-8")
    terms.write_text("苹果\tapples\n", "utf-8")
    options: dict[str, object] = {"settings": DocumentSettings(format="txt"), "glossary": terms}
    monkeypatch.setattr("transduce.documents.translate.translate_content", _interrupted)
    with pytest.raises(InterruptedWorkError):
        transduce.translate_document(translator, source, target, **options)  # type: ignore[arg-type]
    with pytest.raises(InterruptedWorkError):
        transduce.translate_document(translator, source, target, resume=True, **options)  # type: ignore[arg-type]
    terms.write_text("苹果\tpears\n", "utf-8")
    with pytest.raises(TransduceError, match="started with another document, model or settings"):
        transduce.translate_document(translator, source, target, resume=True, **options)  # type: ignore[arg-type]
    terms.write_text("苹果\tapples\n", "utf-8")
    changed = copy.deepcopy(translator)
    with torch.no_grad():
        dict(changed.model.named_parameters())["decoder_layers.0.feed_forward.inner.weight"].add_(1.0)
    with pytest.raises(TransduceError, match="started with another document, model or settings"):
        transduce.translate_document(changed, source, target, resume=True, **options)  # type: ignore[arg-type]


def _interrupted(document: Document, *_: object, observe: TextsCallback, finished: Sequence[object]) -> bytes:
    if not finished:
        observe(document.units, ["x"])
    raise InterruptedWorkError


def test_an_interruption_before_the_first_translation_leaves_nothing(tmp_path: Path) -> None:
    document, target = read_document("a.txt", b"word\n", DocumentSettings(), LOCAL_LIMITS), tmp_path / "b.txt"

    def fail(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        raise InterruptedWorkError

    with pytest.raises(InterruptedWorkError):
        write_translated(document, target, fail, identity=b"1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "b.txt.partial").write_bytes(b'"cut')  # killed, or a full disk, in the first line
    write_translated(document, target, lambda texts, _: list(texts), identity=b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_link_stays_and_its_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document, real = read_document("a.txt", b"word\n", DocumentSettings(), LOCAL_LIMITS), tmp_path / "real.txt"
    real.write_bytes(b"before")
    link = tmp_path / "link.txt"
    link.symlink_to(real)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("transduce.atomic_io.replace_file", fail)
        with pytest.raises(OSError, match="No space"):
            write_translated(document, link, lambda texts, _: list(texts), identity=b"1")
    assert real.read_bytes() == b"before"
    write_translated(document, link, lambda texts, _: list(texts), identity=b"1", resume=True)
    assert (link.is_symlink(), real.read_bytes()) == (True, b"word\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "real.txt"]


def test_a_full_disk_loses_no_finished_translation(tmp_path: Path) -> None:
    content = "".join(f"{'word ' * 50}{number}\n" for number in range(400)).encode()
    document, target = read_document("a.txt", content, DocumentSettings(), LOCAL_LIMITS), tmp_path / "b.txt"
    seen: list[str] = []

    def translate(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        seen.extend(texts)
        return [text.upper() for text in texts]

    resource = pytest.importorskip("resource")  # Windows has no limit on the size of files
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            write_translated(document, target, translate, identity=b"1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failure.value.filename == str(target.with_name("b.txt.partial"))
    assert not target.exists()
    first = len(seen)
    write_translated(document, target, translate, identity=b"1", resume=True)
    assert target.read_bytes() == content.upper()
    assert 0 < len(seen) - len(document.units) < first


def test_translations_are_named_with_their_language() -> None:
    assert target_path(Path("a/b.c.docx"), "de") == Path("a/b.c.de.docx")


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.txt", SRT.format("x"), [], "a.txt looks like SubRip subtitles: pass --format srt, or --format txt"),
        ("a.zh", "<!DOCTYPE html><p>x", [], "a.zh looks like HTML: pass --format html, or --format txt"),
        (
            "a.ts",
            "<!DOCTYPE TS>\n<TS><context/></TS>",
            [],
            "a.ts is XML of a kind that cannot be translated: convert it",
        ),
        ("a.dat", "<?xml version='1.0'?>\n<data>x</data>", [], "a.dat is XML of a kind that cannot be translated"),
        ("a.rtf", "x", [], "a.rtf is named .rtf, which cannot be translated: convert it to one of .txt"),
        ("a.txt", "%PDF-1.7", [], "a.txt is PDF, which cannot be translated"),
        ("a.srt", SRT.format("x"), ["--workers", "2"], "`--workers` applies to lines of text, not to documents"),
        ("a.srt", SRT.format("x"), ["--output", "b.vtt"], "b.vtt would be vtt by its name, but the document stays srt"),
        ("a.txt", "x", ["--columns", "x"], "`--columns` applies to documents, but the input is lines of text"),
        ("a.csv", "a,b\n1,2\n", [], "Name the columns to translate by `--columns`"),
        ("a.csv", "a,b\n1,2\n", ["--columns", "c"], "`--columns` must name columns of the table (a, b)"),
        ("a.json", '{"a": "b"}', ["--fields", "c"], "`--fields` must match texts of the document"),
        ("a.json", "", [], "a.json is not JSON: line 1"),
        ("a.md", "x", ["--keep-source"], "`--keep-source` applies to txt, srt"),
        ("a.txt", "x", ["--keep-source", "--columns", "x"], "`--columns` applies to csv, tsv"),
        ("a.txt", "ä", ["--encoding", "ascii"], "a.txt should be text in ascii"),
        ("a.txt", "x", ["--encoding", "undefined"], "encoding 'undefined' is unknown"),
        ("a.txt", "x", ["--encoding", "utf-8", "--workers", "2"], "`--workers` applies to lines of text"),
        ("a.docx", "x", ["--output", "b.docx"], "its content is not an archive"),
    ],
)
def test_mismatched_formats_and_options_are_refused_in_one_sentence(
    capsys: Capture, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str,
    options: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content, "utf-8")
    assert main(["translate", str(trained), name, *options, *QUICK]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_an_archive_is_written_beside_the_document(capsys: Capture, trained: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.odt", "w") as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", '<t:p xmlns:t="urn:oasis:names:tc:opendocument:xmlns:text:1.0">我吃鱼。</t:p>')
    command = ["translate", str(trained), str(tmp_path / "a.odt"), *QUICK]
    path = target_path(tmp_path / "a.odt", resolve_languages(trained)[1])
    assert main(command) == 0
    assert f"1 text in {path}" in capsys.readouterr().err
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["mimetype", "content.xml"]
    assert main(command) == 2
    assert f"{path} exists already: name the file to write by --output" in capsys.readouterr().err


def test_documents_on_standard_input_are_refused(
    capsys: Capture, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SRT.format("x").encode())))
    assert main(["translate", str(trained), *QUICK]) == 2
    assert "Standard input looks like SubRip subtitles" in capsys.readouterr().err


def test_a_missing_package_is_one_sentence() -> None:
    code = (
        "import sys; sys.modules['lxml'] = sys.modules['markdown_it'] = None\n"
        "from transduce.documents.translate import translate_upload\n"
        "for name in ('a.md', 'a.json'):\n"
        '    try: print(translate_upload(b\'{"a": "b"}\', name, lambda texts, kind: list(texts)))\n'
        "    except ValueError as error: print(error)\n"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:2] == [
        "This needs the package markdown_it, which is not installed: pip install 'transduce[documents]'.",
        'b\'{"a": "b"}\'',
    ]


def test_texts_of_one_letter_stay_and_the_texts_of_a_page_are_counted() -> None:
    seen: list[str] = []

    def translate(texts: Sequence[str], *_: Any, **__: Any) -> list[Any]:
        seen.extend(texts)
        return [SimpleNamespace(text=text.upper()) for text in texts]

    translator: Any = SimpleNamespace(document_context=None, search=None, translate=translate)
    assert ModelTexts(translator)(["x", "ab", "(b)", "茶"], "text") == ["x", "AB", "(b)", "茶"]
    assert seen == ["ab", "茶"]
    for name, content, count in (("a.html", b"<p>One two.</p><p>x</p><p>three</p>", 2), ("a.txt", b"one\ntwo\n", 2)):
        assert count_texts(read_document(name, content, DocumentSettings(), LOCAL_LIMITS)) == count
