"""Test LibreTranslate's API as its clients use it."""

import asyncio
import gc
import json
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from transduce.commands.main import build_parser
from transduce.commands.serve import run
from transduce.documents.formats import known_suffixes
from transduce.errors import TransduceError
from transduce.search.settings import SearchSettings
from transduce.serving.libretranslate import _append_line
from transduce.serving.messages import RequestError, UploadedFile
from transduce.serving.service import ModelCatalog, Service, with_alternatives
from transduce.serving.settings import ServingSettings
from transduce.serving.uploads import DocumentOrder, DocumentStore
from transduce.text.glossary import Glossary, Term

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": 'multipart/form-data; boundary="mark"'}


def multipart(**fields: str) -> bytes:
    parts = "".join(
        f'--mark\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return f"{parts}--mark--\r\n".encode()


@pytest.mark.parametrize("encoding", ["json", "form", "multipart", "query"])
def test_a_text_is_translated_in_every_encoding(live: Any, encoding: str) -> None:
    fields = {"q": "ein Süßes & 茶", "source": "de", "target": "en", "format": "text", "api_key": ""}
    if encoding == "json":
        reply = live.ask("POST", "/translate", fields)
    elif encoding == "form":
        reply = live.ask("POST", "/translate", urlencode(fields), FORM)
    elif encoding == "multipart":
        reply = live.ask("POST", "/translate", multipart(**fields), MULTIPART)
    else:
        reply = live.ask("POST", f"/translate?{urlencode(fields)}")
    assert reply.status == 200
    assert reply.json == {"translatedText": "EIN SÜSSES & 茶"}
    assert reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["content-type"] == "application/json"


def test_a_list_is_answered_with_a_list_in_its_order(live: Any) -> None:
    texts = ["kurz", "ein sehr viel längerer Satz mit vielen Wörtern", "", "kurz"]
    assert live.translate(texts).json == {"translatedText": [text.upper() for text in texts]}
    assert live.translate(["eins"]).json == {"translatedText": ["EINS"]}
    form = live.ask("POST", "/translate", "q=eins&q=zwei&source=de&target=en", FORM)
    assert form.json == {"translatedText": ["EINS", "ZWEI"]}


def test_lines_are_translated_one_by_one_and_line_ends_stay(live: Any) -> None:
    assert live.translate("eins\r\n\n  \nzwei\u2028drei\n").json["translatedText"] == "EINS\r\n\n  \nZWEI\u2028DREI\n"


@pytest.mark.parametrize("text", ["   ", "\t\u3000", " \n\r\n "])
def test_white_space_is_copied_by_every_interface(live: Any, text: str) -> None:
    assert live.translate(text).json["translatedText"] == text
    assert live.translate(text, format="html").json["translatedText"] == text
    body = {"text": [text], "source_lang": "DE", "target_lang": "EN"}
    assert live.ask("POST", "/v2/translate", body).json["translations"][0]["text"] == text
    chat = {"model": "de-en", "messages": [{"role": "user", "content": text}]}
    assert live.ask("POST", "/v1/chat/completions", chat).json["choices"][0]["message"]["content"] == text


def test_quality_warnings_are_returned_on_request(live: Any) -> None:
    assert "qualityWarnings" not in live.translate("ein Satz").json
    copied = {"kind": "copied", "found": "EIN SATZ"}
    answer = live.translate("ein Satz", quality_warnings=True).json
    assert answer == {"translatedText": "EIN SATZ", "qualityWarnings": [copied]}
    assert live.translate("ein Satz", doubts=True).json["doubts"] == [copied]  # the old name
    found = live.translate(["eins", "ein Satz\nund noch einer"], quality_warnings=True).json["qualityWarnings"]
    assert found == [[], [copied, {"kind": "copied", "found": "UND NOCH EINER"}]]
    form = live.ask("POST", "/translate", "q=ein+Satz&source=de&target=en&quality_warnings=true", FORM)
    assert form.json["qualityWarnings"] == [copied]
    assert live.translate("eins ☃", quality_warnings=True).json["qualityWarnings"][0] == {
        "kind": "unread",
        "found": "☃",
    }
    wrong = live.translate("Where have you been all the time?", quality_warnings=True).json["qualityWarnings"]
    assert {"kind": "language", "found": "looks English, not German"} in wrong


def test_alternatives_come_only_where_they_are_asked_for(live: Any) -> None:
    assert live.translate("eins", alternatives=2).json == {
        "translatedText": "EINS",
        "alternatives": ["EINS (1)", "EINS (2)"],
    }
    assert live.translate(["eins", "zwei"], alternatives=1).json["alternatives"] == [["EINS (1)"], ["ZWEI (1)"]]
    assert "alternatives" not in live.translate("eins", alternatives=0).json
    assert "alternatives" not in live.translate("eins", alternatives=None).json
    assert "alternatives" not in live.translate("eins", alternatives=-1).json
    assert live.translate("eins", alternatives="1", format="").json["alternatives"] == ["EINS (1)"]


def test_the_language_is_detected_only_where_that_is_asked_for(live: Any) -> None:
    found = live.translate("今天天气很好", source="auto").json
    assert found["detectedLanguage"] == {"language": "zh", "confidence": 100.0}
    several = live.translate(["今天", "茶"], source="auto").json
    assert [entry["language"] for entry in several["detectedLanguage"]] == ["zh", "zh"]
    assert "detectedLanguage" not in live.translate("eins").json


def test_html_keeps_its_tags(live: Any) -> None:
    reply = live.translate("<p>Tee &amp; <b>Kuchen</b></p>", format="html")
    assert reply.json["translatedText"] == "<p>TEE &amp; <b>KUCHEN</b></p>"


def test_each_alternative_has_the_tags(live: Any) -> None:
    reply = live.translate(["<b>ein</b> Satz", "zwei"], format="html", alternatives=2)
    assert reply.json["translatedText"] == ["<b>EIN</b> SATZ", "ZWEI"]
    assert reply.json["alternatives"] == [["<b>EIN</b> SATZ (1)", "<b>EIN</b> SATZ (2)"], ["ZWEI (1)", "ZWEI (2)"]]


@pytest.mark.parametrize("source", ["zh", "zh-Hans", "ZH-hans", "zh_Hans", "zh_CN", "zh-cn", "zho"])
def test_chinese_has_several_names(live: Any, source: str) -> None:
    assert live.translate("茶 tea", source=source).json["translatedText"] == "茶 TEA"


def test_codes_with_regions_select_their_language(live: Any) -> None:
    assert live.translate("eins", source="de-AT", target="en-GB").json["translatedText"] == "EINS"
    assert live.translate("one", source="EN", target="pt").json["translatedText"] == "ONE"


def test_a_text_in_the_target_language_stays_as_it_is(live: Any) -> None:
    assert live.translate("one  two", source="en").json["translatedText"] == "one  two"


def test_languages_lists_sources_with_their_targets(live: Any) -> None:
    assert live.ask("GET", "/languages").json == [
        {"code": "de", "name": "German", "targets": ["de", "en"]},
        {"code": "en", "name": "English", "targets": ["en", "pt_BR"]},
        {"code": "pt_BR", "name": "Portuguese (Brazil)", "targets": ["pt_BR"]},
        {"code": "zh", "name": "Chinese", "targets": ["en", "zh"]},
    ]


def test_languages_may_be_asked_for_with_a_form(live: Any) -> None:
    assert live.ask("GET", "/languages", b"api_key=x", FORM).status == 200


def test_detect_names_the_likeliest_language_first(live: Any) -> None:
    found = live.ask("POST", "/detect", {"q": "今天天气很好"}).json
    assert found[0] == {"language": "zh", "confidence": 100.0}
    assert {entry["language"] for entry in found} == {"de", "en", "pt_BR", "zh"}


def test_frontend_settings_report_limits_and_default_languages(live: Any) -> None:
    assert live.ask("GET", "/frontend/settings").json == {
        "charLimit": 20_000,
        "frontendTimeout": 500,
        "apiKeys": False,
        "keyRequired": False,
        "suggestions": False,
        "filesTranslation": True,
        "supportedFilesFormat": [each for each in known_suffixes().split() if each not in (".csv", ".tsv", ".tab")],
        "language": {"source": {"code": "de", "name": "German"}, "target": {"code": "en", "name": "English"}},
    }


def test_health_answers_ok(live: Any) -> None:
    assert live.ask("GET", "/health").json == {"status": "ok"}
    assert live.ask("HEAD", "/health").status == 200


def form(fields: dict[str, str], name: str, content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body and the header of a multipart form with a file; a field with lines occurs once for each."""
    values = [(n, line) for n, value in fields.items() for line in value.split("\n")]
    parts = [f'--mark\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in values]
    file = f'--mark\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = "".join(parts).encode() + file.encode() + content + b"\r\n--mark--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=mark"}


def test_a_file_is_translated_and_can_be_downloaded(live: Any) -> None:
    text = b"eins zwei\r\n\r\n  drei"
    reply = live.ask("POST", "/translate_file", *form({"source": "de", "target": "en"}, "../a b.txt", text))
    assert reply.status == 200
    url = reply.json["translatedFileUrl"]
    assert url.startswith(f"{live.url}/download_file/")
    assert url.endswith("/a%20b.en.txt")
    for _ in range(2):  # it is kept for a while
        file = live.ask("GET", url.removeprefix(live.url))
        assert file.body == text.upper()
        assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.en.txt"
        assert (file.headers["content-type"], file.headers["x-content-type-options"]) == (
            "application/octet-stream",
            "nosniff",
        )
    assert live.ask("GET", url.removeprefix(live.url).replace("-", "-0")).status == 404


def test_a_file_in_another_language_is_translated_with_a_warning(live: Any) -> None:
    text = b"A\nWir haben heute keine Zeit.\nWe have had no time today at all."
    reply = live.ask("POST", "/translate_file", *form({"source": "de", "target": "en"}, "a.txt", text))
    warning = "Text 3 looks English, not German: its translation may be nonsense."
    assert reply.headers["transduce-warning"] == warning
    file = live.ask("GET", reply.json["translatedFileUrl"].removeprefix(live.url))
    assert file.headers["transduce-warning"] == warning
    one, two = (f'<mrk mtype="seg" mid="{number}">eins</mrk>' for number in (1, 2))
    unit = f'<trans-unit><source>eins</source><seg-source><g id="1">{one}</g> {two}</seg-source><target>{one}</target>'
    xliff = f'<xliff version="1.2"><file><body>{unit}</trans-unit></body></file></xliff>'
    reply = live.ask("POST", "/translate_file", *form({"source": "de", "target": "en"}, "a.xlf", xliff.encode()))
    assert reply.headers["transduce-warning"].endswith("between the tags around segments: 1 XLIFF unit.")


@pytest.mark.parametrize(
    ("fields", "name", "content", "sentence"),
    [
        ({"target": "en"}, "a.txt", b"eins", "Invalid request: missing source parameter"),
        ({"source": "", "target": "en"}, "a.txt", b"eins", "Invalid request: missing source parameter"),
        ({"source": "de", "target": "zz"}, "a.txt", b"eins", "zz is not supported"),
        ({"source": "de", "target": "en"}, "a.txt", b"", "Invalid request: empty file"),
        ({"source": "de", "target": "en"}, "", b"eins", "Invalid request: empty file"),
        ({"source": "de", "target": "en"}, "a.csv", b"a,b\none,two", "Name the columns to translate by `columns`"),
        ({"source": "de", "target": "en", "format": "x"}, "a.txt", b"eins", "`format` must be one of txt, md"),
        ({"source": "de", "target": "en"}, "a.exe", b"eins", "a.exe has a suffix of no known format"),
        ({"source": "de", "target": "en"}, "a.txt", b"\xff\xfea\x00\x00", "The document should be text"),
        ({"source": "de", "target": "en"}, "a.txt", b"%PDF-1.7", "a.txt is PDF, which cannot be translated"),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(
    fields: dict[str, str], name: str, content: bytes, sentence: str, live: Any
) -> None:
    reply = live.ask("POST", "/translate_file", *form(fields, name, content))
    assert reply.status == 400
    assert reply.error.startswith(sentence)


@pytest.mark.parametrize(
    ("fields", "name", "content", "expected"),
    [
        ({"columns": "b"}, "a.csv", b"a,b,c\none,two,three\n", b"a,b,c\none,TWO,three\n"),
        ({"columns": "b\n3", "format": ""}, "a.csv", b"a,b,c\none,two,three\n", b"a,b,c\none,TWO,THREE\n"),
        ({"fields": "a"}, "a.json", b'{"a": "one", "b": "two"}', b'{"a": "ONE", "b": "two"}'),
        ({"format": "txt"}, "a.json", b"{one}", b"{ONE}"),
        ({"encoding": "latin-1"}, "a.txt", b"\xe4b", b"\xc4B"),
    ],
)
def test_fields_of_the_form_choose_the_texts_of_a_file(
    fields: dict[str, str], name: str, content: bytes, expected: bytes, live: Any
) -> None:
    languages = {"source": "de", "target": "en"}
    reply = live.ask("POST", "/translate_file", *form(languages | fields, name, content))
    assert live.ask("GET", reply.json["translatedFileUrl"].removeprefix(live.url)).body == expected


def test_files_beyond_limits_are_refused(serve: Any, gated_model: Any) -> None:
    languages = {"source": "de", "target": "en"}
    limits = {"max_upload_bytes": 1000, "max_documents": 2, "max_document_characters": 500, "file_seconds": 0.2}
    with serve(gated_model(), **limits) as live:
        large = live.ask("POST", "/translate_file", *form(languages, "a.txt", b"x" * 70_000))
        assert (large.status, large.error.split(":")[0]) == (
            413,
            "The request's body must have at most 66,536 bytes, also when it is uncompressed.",
        )
        assert live.ask("POST", "/translate_file", *form(languages, "a.txt", b"x" * 1001)).status == 400
        assert live.ask("POST", "/translate_file", *form(languages, "a.txt", b"x" * 600)).status == 400
        kept, other = (live.ask("POST", "/translate_file", *form(languages, "a.txt", b"eins")) for _ in range(2))
        assert (kept.status, other.status) == (200, 200)
        full = live.ask("POST", "/translate_file", *form(languages, "a.txt", b"eins"))
        assert (full.status, full.headers["retry-after"]) == (503, "30")
        time.sleep(0.3)  # then the old ones are deleted
        assert live.ask("GET", kept.json["translatedFileUrl"].removeprefix(live.url)).status == 404
        assert live.ask("POST", "/translate_file", *form(languages, "a.txt", b"eins")).status == 200


def test_a_document_that_fails_unexpectedly_is_in_the_log_without_its_text(
    serve: Any, gated_model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("secret text")

    monkeypatch.setattr("transduce.serving.uploads.translate_content", fail)
    with serve(gated_model()) as live:
        reply = live.ask("POST", "/translate_file", *form({"source": "de", "target": "en"}, "a.txt", b"eins"))
    assert (reply.status, reply.error.partition(",")[0]) == (400, "The document is damaged")
    assert f"A document could not be translated (KeyError at {__file__}:" in caplog.text
    assert "secret" not in caplog.text


def test_downloaded_documents_make_space_for_others(serve: Any, gated_model: Any) -> None:
    body, headers = form({"source": "de", "target": "en"}, "a.txt", b"eins")
    with serve(gated_model(), max_documents=2) as live:

        def upload() -> Any:
            return live.ask("POST", "/translate_file", body, headers)

        def download(reply: Any) -> Any:
            return live.ask("GET", reply.json["translatedFileUrl"].removeprefix(live.url))

        first, second = upload(), upload()
        assert upload().status == 503  # nobody has downloaded them
        assert download(second).body == download(first).body == download(first).body == b"EINS"
        third = upload()
        assert download(second).status == 404
        assert download(first).body == download(third).body == b"EINS"


def test_translated_documents_are_deleted_without_a_further_request(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    with serve(gated_model(), file_seconds=0.2) as live:
        start = DocumentStore.start
        stores: set[DocumentStore] = set()

        def noted(store: DocumentStore, order: Any) -> Any:
            stores.add(store)
            return start(store, order)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DocumentStore, "start", noted)
            body, headers = form({"source": "de", "target": "en"}, "a.txt", b"eins")
            assert live.ask("POST", "/translate_file", body, headers).status == 200
        (store,) = stores
        wait_until(lambda: not store._documents)


@pytest.mark.parametrize("is_refused", [False, True])
def test_documents_leave_memory_when_deleted_and_replaced_models_before(gated_model: Any, is_refused: bool) -> None:
    def refuse(*_: Any) -> None:
        raise TransduceError("no terms")

    async def check() -> None:
        model = gated_model()
        if is_refused:
            model.check = refuse
        service = Service(ModelCatalog([model]), ServingSettings(gather_milliseconds=0.0))
        store = DocumentStore(service)
        glossary = Glossary([Term("eins", ("one",))]) if is_refused else None
        service.engine.workers.start()
        document = store.start(DocumentOrder(UploadedFile("a.txt", b"eins"), "de", "en", glossary))
        await document.finished.wait()
        assert (document.error is not None) == is_refused
        service.use(ModelCatalog([gated_model()]))
        later = store.start(DocumentOrder(UploadedFile("a.txt", b"eins"), "de", "en"))  # the worker takes the new model
        await later.finished.wait()
        old_model, kept = weakref.ref(model), weakref.ref(document)
        del model
        gc.collect()
        assert old_model() is None
        store.delete(document)
        del document
        gc.collect()
        assert kept() is None
        service.engine.batcher.close()

    asyncio.run(check())


def test_a_document_is_translated_by_one_model_although_another_is_loaded(
    serve: Any, gated_model: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.documents.translate._PORTION_CHARACTERS", 4)
    old, new = gated_model(is_open=False), gated_model()
    with serve(old) as live:
        live.server._load = lambda: ModelCatalog([new])
        body, headers = form({"source": "auto", "target": "en"}, "a.txt", b"Wir haben keine Zeit\nzwei\ndrei\n")
        asked = live.in_background(lambda: live.ask("POST", "/translate_file", body, headers))
        wait_until(lambda: live.service.engine.batcher.running)
        live.server.handle_reload()
        wait_until(lambda: live.service.routes.model("de", "en") is new)
        old.open()
        assert asked.reply().status == 200
    assert [text for batch in old.batches for text in batch] == ["Wir haben keine Zeit", "zwei", "drei"]
    assert not new.batches


def test_the_language_of_a_file_is_detected(live: Any) -> None:
    auto = {"source": "auto", "target": "en"}
    german = b"Wir haben heute keine Zeit gehabt.\nOK"
    url = live.ask("POST", "/translate_file", *form(auto, "a.txt", german)).json["translatedFileUrl"]
    assert live.ask("GET", url.removeprefix(live.url)).body == german.upper()
    english = live.ask("POST", "/translate_file", *form(auto, "a.txt", b"We have no time today and go home."))
    assert "the text seems to be in English" in english.error


@pytest.mark.parametrize("first", ["A\nB", "https://a.example/tea"])
def test_texts_without_words_do_not_decide_the_language_of_a_file(
    first: str, serve: Any, gated_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.documents.translate._PORTION_CHARACTERS", 4)
    german, chinese = gated_model(), gated_model(languages=("zh", "en"))
    text = "我们今天没有时间回家。"
    with serve(german, chinese) as live:
        body, headers = form({"source": "auto", "target": "en"}, "a.txt", f"{first}\n{text}\n".encode())
        assert live.ask("POST", "/translate_file", body, headers).status == 200
    assert [text] in chinese.batches


def test_a_client_that_leaves_stops_the_translation_of_its_file(serve: Any, gated_model: Any, wait_until: Any) -> None:
    import socket

    model = gated_model(is_open=False)
    with serve(model) as live:
        body, headers = form({"source": "de", "target": "en"}, "a.txt", b"eins\n" * 10)
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            lines = ["POST /translate_file HTTP/1.1", "Host: a", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            connection.sendall("\r\n".join([*lines, "\r\n"]).encode() + body)
            wait_until(lambda: live.service.engine.batcher.running)
        model.let_through(20)
        wait_until(lambda: not live.service.engine.batcher.running)


def test_suggestions_are_stored_where_that_is_wanted(serve: Any, gated_model: Any, live: Any, tmp_path: Any) -> None:
    suggestion = {"q": "eins", "s": "one", "source": "de", "target": "en-GB"}
    refused = live.ask("POST", "/suggest", suggestion)
    assert (refused.status, refused.error) == (403, "Suggestions are disabled on this server.")
    path = tmp_path / "suggestions.jsonl"
    with serve(gated_model(), suggestions=str(path), api_keys=("secret",)) as own:
        assert own.ask("GET", "/frontend/settings").json["suggestions"] is True
        assert own.ask("POST", "/suggest", suggestion).status == 403
        key = {"api_key": "secret"}
        assert own.ask("POST", "/suggest", suggestion | key).json == {"success": True}
        assert own.ask("POST", "/suggest", urlencode(suggestion | key), FORM).json == {"success": True}
        assert own.ask("POST", "/suggest", suggestion | key | {"s": ""}).error == "Invalid request: missing s parameter"
        assert own.ask("POST", "/suggest", suggestion | key | {"s": "x" * 20_000}).status == 400
    stored = {"q": "eins", "s": "one", "source": "de", "target": "en"}
    assert [json.loads(line) for line in path.read_text().splitlines()] == [stored, stored]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the system refuse to write files of more bytes within the context, as on a full disk."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_a_suggestion_for_which_the_disk_is_too_full_leaves_the_file_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "suggestions.jsonl"
    _append_line(path, b'{"q":1}')
    with files_of_at_most(12), pytest.raises(RequestError) as refused:
        _append_line(path, b'{"q":22222}')
    assert refused.value.status == 507
    assert f"The server cannot store more suggestions: {path}: " in caplog.text
    assert path.read_bytes() == b'{"q":1}\n'
    path.write_bytes(b'{"q":1}\n{"q')  # of a process that was killed
    _append_line(path, b'{"q":2}')
    assert path.read_bytes() == b'{"q":1}\n{"q\n{"q":2}\n'


def test_a_file_of_suggestions_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a" / "suggestions.jsonl"
    options = build_parser("serve").parse(["models/a", "--suggestions", str(path)])
    with pytest.raises(TransduceError, match=r"Suggestions cannot be stored in .*jsonl \(No such file"):
        run(options)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"q": None}, "Invalid request: expected `str | array`, got `null` in `q`"),
        ({"q": 5}, "Invalid request: expected `str | array`, got `int` in `q`"),
        ({"q": ["a", 5]}, "Invalid request: expected `str`, got `int` in `q[1]`"),
        ({"source": "zz"}, "zz is not supported"),
        ({"target": "zz"}, "zz is not supported"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"q": []}, "Invalid request: missing q parameter"),
        ({"source": "zh", "target": "de"}, "Invalid request: there is no model from zh to de, only de → en"),
        ({"format": "rtf"}, "Invalid request: invalid enum value 'rtf' in `format`"),
        ({"alternatives": "x"}, "Invalid request: expected `int | null`, got `str` in `alternatives`"),
        ({"alternatives": 4}, "Invalid request: alternatives (4) exceeds limit (3)"),
        ({"alternatives": 10**9}, "Invalid request: expected `int` <= 1000 in `alternatives`"),
        ({"timeout": 0}, "Invalid request: expected `float` > 0.0 in `timeout`"),
        ({"q": "x" * 20_001}, "Invalid request: request (20001) exceeds text limit (20000 characters)"),
        ({"q": [""] * 129}, "Invalid request: request (129 texts) exceeds text limit (128)"),
    ],
)
def test_a_wrong_field_is_reported(live: Any, fields: dict[str, Any], sentence: str) -> None:
    reply = live.translate(**fields)
    assert reply.status == 400
    assert reply.error.startswith(sentence)


@pytest.mark.parametrize("name", ["q", "source", "target"])
def test_a_missing_field_is_reported_in_the_words_that_clients_look_for(live: Any, name: str) -> None:
    fields = {"q": "eins", "source": "de", "target": "en"}
    del fields[name]
    for reply in (
        live.ask("POST", "/translate", fields),
        live.ask("POST", "/translate", urlencode(fields), FORM),
        live.ask("POST", f"/translate?{urlencode(fields)}"),
    ):
        assert reply.status == 400
        assert reply.error == f"Invalid request: missing {name} parameter"


def test_there_is_no_other_address_or_method(live: Any) -> None:
    assert live.ask("GET", "/nothing").status == 404
    assert "GET /spec" in live.ask("GET", "/nothing").error
    wrong = live.ask("GET", "/translate")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "POST"
    assert "another method" in wrong.error
    assert live.ask("POST", "/translate/").status == 404


def test_cors_preflight_requests_are_allowed(live: Any) -> None:
    reply = live.ask("OPTIONS", "/translate", headers={"Origin": "http://a", "Access-Control-Request-Method": "POST"})
    assert reply.status == 204
    assert reply.headers["access-control-allow-methods"] == "DELETE, GET, POST"
    assert "Content-Type" in reply.headers["access-control-allow-headers"]


def test_a_long_query_is_read(live: Any) -> None:
    text = "茶" * 5000
    reply = live.ask("POST", f"/translate?q={quote(text)}&source=de&target=en")
    assert reply.json["translatedText"] == text


def test_several_requests_on_one_connection(live: Any) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)
    for word in ("eins", "zwei", "drei"):
        body = json.dumps({"q": word, "source": "de", "target": "en"})
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        assert json.loads(connection.getresponse().read()) == {"translatedText": word.upper()}
    connection.close()


def test_more_alternatives_make_a_beam_of_groups_wider_by_whole_groups() -> None:
    search = SearchSettings(beam_size=4, diverse_groups=2)
    assert with_alternatives(search, 4) == SearchSettings(beam_size=6, n_best=5, diverse_groups=2)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The weather is nice today and we go out.", "English"),  # the target language
        ("Привет, как дела сегодня вечером?", "Cyrillic letters"),
        ("привет", "Cyrillic letters"),
        ("Je ne sais pas où il est.", "French"),
        ("Il fait très beau dans le jardin et nous sommes contents.", "French"),
    ],
)
def test_the_language_that_is_detected_must_be_served(text: str, language: str, live: Any) -> None:
    reply = live.translate(text, source="auto")
    assert reply.status == 400
    assert reply.error == (
        f"Invalid request: `source` is `auto`, but the text seems to be in {language}: only German (de), Chinese (zh) "
        "can be translated into en; name the `source` if that is wrong"
    )


def test_texts_that_show_no_language_are_translated(live: Any) -> None:
    assert live.translate("1 + 2 = 3", source="auto").json["translatedText"] == "1 + 2 = 3"
    # A short text is judged together with the others of its request.
    texts = ["OK", "Wir haben heute keine Zeit gehabt und gehen nach Hause."]
    found = live.translate(texts, source="auto").json
    assert [entry["language"] for entry in found["detectedLanguage"]] == ["de", "de"]


def test_a_text_in_another_language_than_requested_is_reported(live: Any) -> None:
    texts = ["Wir haben heute keine Zeit gehabt.", "We have had no time today at all."]
    reply = live.translate(texts).json
    assert reply["warnings"] == ["Text 2 looks English, not German: its translation may be nonsense."]
    assert "warnings" not in live.translate(texts[:1]).json
