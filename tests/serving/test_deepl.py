"""Test DeepL's API: texts, glossaries and documents."""

from typing import Any
from urllib.parse import urlencode

import pytest

from transduce.serving.glossaries import MAX_GLOSSARIES, MAX_TERMS, GlossaryStore
from transduce.text.text_settings import TextSettings


def test_texts_are_translated(live: Any) -> None:
    reply = live.ask(
        "POST",
        "/v2/translate",
        {"text": ["eins zwei", "茶"], "source_lang": "DE", "target_lang": "EN-US", "show_billed_characters": True},
    )
    assert reply.status == 200
    assert reply.json == {
        "translations": [
            {"detected_source_language": "DE", "text": "EINS ZWEI", "billed_characters": 9},
            {"detected_source_language": "DE", "text": "茶", "billed_characters": 1},
        ]
    }


def test_forms_and_tags_are_read_and_the_language_is_detected(live: Any) -> None:
    body = urlencode({"text": "<b>茶 tea</b>", "target_lang": "EN", "tag_handling": "html", "formality": "prefer_more"})
    reply = live.ask("POST", "/v2/translate", body, {"Content-Type": "application/x-www-form-urlencoded"})
    (translation,) = reply.json["translations"]
    assert translation["text"] == "<b>茶 TEA</b>"


def test_errors_are_sentences(live: Any) -> None:
    assert live.ask("POST", "/v2/translate", {"target_lang": "EN"}).error == "Invalid request: missing text parameter"
    unknown = live.ask("POST", "/v2/translate", {"text": "a", "target_lang": "KO"})
    assert unknown.error == unknown.json["message"] == "KO is not supported"
    assert "message" not in live.ask("POST", "/translate", {"q": "a", "source": "zz", "target": "en"}).json


def test_languages_are_listed_on_both_sides(live: Any) -> None:
    sources = live.ask("GET", "/v2/languages").json
    assert sources == [
        {"language": "DE", "name": "German"},
        {"language": "EN", "name": "English"},
        {"language": "ZH", "name": "Chinese"},
    ]
    targets = live.ask("GET", "/v2/languages?type=target").json
    assert [entry["language"] for entry in targets] == ["EN-GB", "EN-US", "PT-BR"]
    assert all(entry["supports_formality"] is False for entry in targets)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert live.ask("GET", "/v2/languages", "type=target", form).json == targets
    assert live.ask("GET", "/v2/languages?type=both").status == 400


def test_models_with_codes_of_three_letters_have_clients_of_two(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(languages=("deu_Latn", "eng_Latn"))) as live:
        assert [entry["language"] for entry in live.ask("GET", "/v2/languages").json] == ["DE"]
        targets = live.ask("GET", "/v2/languages?type=target").json
        assert [entry["language"] for entry in targets] == ["EN-GB", "EN-US"]
        created = live.ask("POST", "/v2/glossaries", GLOSSARY).json
        assert (created["source_lang"], created["target_lang"]) == ("de", "en")
        asked = {"text": "eins", "source_lang": "DE", "target_lang": "EN-US", "glossary_id": created["glossary_id"]}
        assert live.ask("POST", "/v2/translate", asked).json["translations"] == [
            {"detected_source_language": "DE", "text": "EINS"}
        ]
        assert live.translate("eins", source="de-AT", target="en").json["translatedText"] == "EINS"


def test_source_languages_are_listed_by_codes_that_requests_may_name(serve: Any, gated_model: Any) -> None:
    models = [gated_model(languages=(code, "en")) for code in ("pt-BR", "pt-PT", "zh-TW", "de-AT")]
    with serve(*models) as live:
        codes = [entry["language"] for entry in live.ask("GET", "/v2/languages").json]
        assert codes == ["DE", "PT-BR", "PT-PT", "ZH-HANT"]
        for code, meant in [*zip(codes, codes, strict=True), ("PT", "PT-BR"), ("pt-pt", "PT-PT")]:
            reply = translate(live, source_lang=code).json
            assert reply == {"translations": [{"detected_source_language": meant, "text": "EIN SATZ"}]}
            assert upload(live, b"eins", source_lang=code).status == 200
        for pair in live.ask("GET", "/v2/glossary-language-pairs").json["supported_languages"]:
            assert live.ask("POST", "/v2/glossaries", GLOSSARY | pair).status == 201
        assert live.ask("POST", "/v2/glossaries", GLOSSARY | {"source_lang": "pt"}).status == 201
        assert "zh is not supported" in translate(live, source_lang="zh").error


def test_usage_counts_characters(serve: Any, gated_model: Any) -> None:
    with serve(gated_model()) as live:
        live.translate("eins")
        usage = live.ask("GET", "/v2/usage").json
    assert usage["character_count"] == 4
    assert usage["character_limit"] > 10**9


def translate(live: Any, text: Any = "ein Satz", **fields: Any) -> Any:
    """Send POST /v2/translate from German to English, and return the answer."""
    return live.ask("POST", "/v2/translate", {"text": text, "source_lang": "DE", "target_lang": "EN-US"} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"formality": "default"},
        {"formality": "prefer_less"},
        {"context": "eine Geschichte"},
        {"model_type": "prefer_quality_optimized"},
        {"preserve_formatting": True},
        {"preserve_formatting": "1"},
        {"split_sentences": "0"},
        {"split_sentences": "nonewlines"},
        {"tag_handling": "html", "tag_handling_version": "v2"},
        {"tag_handling": "xml", "outline_detection": "0"},
        {"custom_instructions": []},
        {"style_id": None},
        {"enable_beta_languages": True},
        {"auth_key": "any"},
    ],
)
def test_fields_that_cannot_change_the_result_are_accepted(fields: dict[str, Any], live: Any) -> None:
    assert translate(live, **fields).json == {"translations": [{"detected_source_language": "DE", "text": "EIN SATZ"}]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"formality": "more"}, "`formality` must be `default` or `prefer_more`"),
        ({"formality": "very"}, "invalid enum value 'very' in `formality`"),
        ({"split_sentences": "2"}, "invalid enum value '2' in `split_sentences`"),
        ({"style_id": "a"}, "`style_id` is not supported"),
        ({"custom_instructions": ["be brief"]}, "`custom_instructions` is not supported"),
        ({"translation_memory_id": "a"}, "`translation_memory_id` is not supported"),
        ({"rhyme": True}, "object contains unknown field `rhyme`"),
        ({"glossary_id": "a", "source_lang": None}, "`glossary_id` needs `source_lang`"),
        ({"glossary_ids": ["a", "b"]}, "only one glossary can be used at once"),
        ({"ignore_tags": "x"}, "`ignore_tags` needs `tag_handling`"),
        ({"tag_handling": "xml", "ignore_tags": "x y"}, "`ignore_tags` must have at most 200 names of tags"),
    ],
)
def test_fields_that_would_change_the_result_are_refused(fields: dict[str, Any], sentence: str, live: Any) -> None:
    reply = translate(live, **fields)
    assert reply.status == 400
    assert sentence in reply.error


def test_sentences_are_split_as_requested(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    settings: list[TextSettings] = []
    decode = model.translate

    def record(*arguments: Any, **options: Any) -> Any:
        settings.append(options["text_settings"])
        return decode(*arguments, **options)

    model.translate = record
    with serve(model) as live:
        for choice in ("0", "1", "nonewlines", None):
            reply = translate(live, "eins\nzwei", split_sentences=choice)
            assert reply.json["translations"][0]["text"] == "EINS\nZWEI"
    lines = [["eins\nzwei"], ["eins", "zwei"], ["eins\nzwei"], ["eins", "zwei"]]
    assert [sorted(batch) for batch in model.batches] == lines
    assert [(each.split_sentences, each.lines) for each in settings] == [
        ("never", "join"),
        ("auto", "separate"),
        ("auto", "join"),
        ("auto", "separate"),
    ]


def test_a_text_in_another_language_is_reported_in_a_header(live: Any) -> None:
    reply = translate(live, "We have had no time today at all.")
    warning = "Text 1 looks English, not German: its translation may be nonsense."
    assert reply.headers["transduce-warning"] == warning
    assert "transduce-warning" not in translate(live, "Wir haben heute keine Zeit gehabt.").headers


# --- glossaries ---

GLOSSARY = {
    "name": "Tiere",
    "source_lang": "de",
    "target_lang": "en",
    "entries": "Hund\tdog\nKatze\tcat",
    "entries_format": "tsv",
}


def test_a_glossary_is_created_used_and_deleted(
    serve: Any, gated_model: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "glossaries"
    with serve(gated_model(), glossary_folder=str(folder)) as live:
        assert live.ask("GET", "/v2/glossary-language-pairs").json == {
            "supported_languages": [{"source_lang": "de", "target_lang": "en"}]
        }
        created = live.ask("POST", "/v2/glossaries", GLOSSARY)
        assert created.status == 201
        assert created.json["entry_count"] == 2
        id = created.json["glossary_id"]
        folder.rename(tmp_path / "moved")
        refused = live.ask("POST", "/v2/glossaries", GLOSSARY)
        assert (refused.status, refused.error.partition(":")[0]) == (507, "The server cannot store the glossary")
        assert f"The server cannot store the glossary: {folder}: " in caplog.text
        assert "Traceback" not in caplog.text
        (tmp_path / "moved").rename(folder)
    with serve(gated_model(), glossary_folder=str(folder)) as live:  # it survives a restart
        assert live.ask("GET", "/v2/glossaries").json == {"glossaries": [created.json]}
        assert live.ask("GET", f"/v2/glossaries/{id}").json == created.json
        entries = live.ask("GET", f"/v2/glossaries/{id}/entries")
        assert (entries.body.decode(), entries.headers["content-type"]) == (
            "Hund\tdog\nKatze\tcat",
            "text/tab-separated-values; charset=utf-8",
        )
        assert translate(live, "ein Hund", glossary_id=id).json["translations"][0]["text"] == "EIN HUND dog"
        assert translate(live, "ein Hund", glossary_ids=[id]).json["translations"][0]["text"] == "EIN HUND dog"
        as_form = f"text=ein+Hund&source_lang=DE&target_lang=EN&glossary_ids={id}"
        reply = live.ask("POST", "/v2/translate", as_form, {"Content-Type": "application/x-www-form-urlencoded"})
        assert reply.json["translations"][0]["text"] == "EIN HUND dog"
        assert translate(live, "ein Hund").json["translations"][0]["text"] == "EIN HUND"
        assert live.ask("DELETE", f"/v2/glossaries/{id}").status == 204
        assert live.ask("DELETE", f"/v2/glossaries/{id}").status == 404
        assert translate(live, "ein Hund", glossary_id=id).status == 404
    assert list(folder.iterdir()) == []


def test_a_glossary_belongs_to_the_key_that_created_it(serve: Any, gated_model: Any) -> None:
    def key(name: str) -> dict[str, str]:
        return {"Authorization": f"DeepL-Auth-Key {name}"}

    with serve(gated_model(), api_keys=("one", "two")) as live:
        assert live.ask("POST", "/v2/glossaries", GLOSSARY).status == 403
        id = live.ask("POST", "/v2/glossaries", GLOSSARY, key("one")).json["glossary_id"]
        assert live.ask("GET", "/v2/glossaries", None, key("two")).json == {"glossaries": []}
        for method, path in (("GET", ""), ("GET", "/entries"), ("DELETE", "")):
            assert live.ask(method, f"/v2/glossaries/{id}{path}", None, key("two")).status == 404
        assert live.ask("GET", f"/v2/glossaries/{id}", None, key("one")).status == 200


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"entries": ""}, "`entries` must have a term, but is empty"),
        ({"entries": "Hund"}, "line 1 of `entries` must have a source text and its translation"),
        ({"entries": "Hund\tdog\nHund\tcat"}, "must have each source once, but line 2 has one again"),
        ({"entries": "Hund\tdog\thound"}, "line 1 of `entries` must have a source text"),
        ({"entries": "Hund\t☃"}, "this model cannot write ☃"),
        (
            {"entries": "\n".join(f"a{n}\tb" for n in range(MAX_TERMS + 1))},
            f"at most {MAX_TERMS} terms, but has {MAX_TERMS + 1}",
        ),
        ({"entries": "x" * 2000 + "\ty"}, "a term may have 1024 characters"),
        ({"name": " "}, "`name` must have 1 to 1024 characters"),
        ({"target_lang": "zh"}, "zh is not supported"),
        ({"entries_format": "xls"}, "invalid enum value 'xls'"),
    ],
)
def test_a_glossary_must_be_sound(fields: dict[str, Any], sentence: str, serve: Any, gated_model: Any) -> None:
    with serve(gated_model()) as live:
        reply = live.ask("POST", "/v2/glossaries", GLOSSARY | fields)
        assert reply.status == 400
        assert sentence in reply.error
        assert live.ask("GET", "/v2/glossaries").json == {"glossaries": []}


def test_a_glossary_is_for_its_languages(live: Any) -> None:
    entries = '"Hund, der","dog"\nKatze,cat,DE,EN'
    created = live.ask("POST", "/v2/glossaries", GLOSSARY | {"entries_format": "csv", "entries": entries}).json
    assert live.ask("GET", f"/v2/glossaries/{created['glossary_id']}/entries").body == b"Hund, der\tdog\nKatze\tcat"
    other = translate(live, "茶", source_lang="ZH", glossary_id=created["glossary_id"])
    assert "the glossary is for de → en, but the request for zh → en" in other.error
    live.ask("DELETE", f"/v2/glossaries/{created['glossary_id']}")


def test_glossaries_are_limited() -> None:
    store = GlossaryStore()
    for number in range(MAX_GLOSSARIES):
        store.add(str(number), "de", "en", (("a", "b"),), "owner")
    with pytest.raises(Exception, match="There may be 100 glossaries"):
        store.add("one more", "de", "en", (("a", "b"),), "owner")
    store.add("another", "de", "en", (("a", "b"),), "another owner")


# --- documents ---


def upload(live: Any, content: bytes, name: str = "a.txt", **fields: str) -> Any:
    parts = {"source_lang": "DE", "target_lang": "EN-US"} | fields
    body = "".join(f'--m\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in parts.items())
    file = f'--m\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    form = body.encode() + file.encode() + content + b"\r\n--m--\r\n"
    return live.ask("POST", "/v2/document", form, {"Content-Type": "multipart/form-data; boundary=m"})


def test_a_document_is_translated_downloaded_and_gone(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model) as live:
        handle = upload(live, b"eins\n\nzwei\n").json
        path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
        assert live.ask("POST", path, key).json["status"] in ("queued", "translating")
        early = live.ask("POST", f"{path}/result", key)
        assert (early.status, early.headers["retry-after"]) == (503, "1")
        model.open()
        wait_until(lambda: live.ask("POST", path, key).json["status"] == "done")
        assert live.ask("POST", path, key).json == {
            "document_id": handle["document_id"],
            "status": "done",
            "billed_characters": 8,
        }
        assert live.ask("POST", path, {"document_key": "wrong"}).status == 404
        assert live.ask("POST", f"{path}/result", {"document_key": "wrong"}).status == 404
        assert live.ask("POST", f"{path}/result", key).body == b"EINS\n\nZWEI\n"
        assert live.ask("POST", f"{path}/result", key).status == 404  # it was deleted


@pytest.mark.parametrize(
    ("name", "content", "characters"),
    [("a.txt", b"eins\n" * 50, 200), ("a.html", b"<p>eins <b>zwei</b></p><p>eins <b>zwei</b></p>", 18)],
)
def test_all_characters_of_a_document_are_billed_but_no_tags(
    live: Any, wait_until: Any, name: str, content: bytes, characters: int
) -> None:
    used = live.ask("GET", "/v2/usage").json["character_count"]
    handle = upload(live, content, name).json
    path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    wait_until(lambda: live.ask("POST", path, key).json["status"] == "done")
    assert live.ask("POST", path, key).json["billed_characters"] == characters
    assert live.ask("GET", "/v2/usage").json["character_count"] - used >= characters


def test_the_columns_of_a_table_are_fields_of_the_form(live: Any, wait_until: Any) -> None:
    handle = upload(live, b"a,b\none,two\n", "a.csv", columns="b").json
    path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    wait_until(lambda: live.ask("POST", path, key).json["status"] == "done")
    assert live.ask("POST", f"{path}/result", key).body == b"a,b\none,TWO\n"


def test_a_document_that_cannot_be_translated_has_the_state_error(live: Any, wait_until: Any) -> None:
    handle = upload(live, b"%PDF-1.7").json
    path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
    wait_until(lambda: live.ask("POST", path, key).json["status"] == "error")
    assert live.ask("POST", path, key).json["error_message"].startswith("a.txt is PDF, which cannot be translated")
    assert live.ask("POST", f"{path}/result", key).status == 400


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"formality": "less"}, "`formality` must be `default` or `prefer_less`"),
        ({"output_format": "pdf"}, "`output_format` must be the format of the file, txt"),
        ({"target_lang": "KO"}, "KO is not supported"),
        ({"glossary_id": "a"}, "There is no glossary `a`"),
        ({"color": "red"}, "object contains unknown field `color`"),
    ],
)
def test_a_document_request_is_checked(fields: dict[str, str], sentence: str, live: Any) -> None:
    reply = upload(live, b"eins", **fields)
    assert reply.status in (400, 404)
    assert sentence in reply.error


def test_a_document_waits_while_the_queue_is_full(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, max_waiting=0) as live:
        first = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        handle = upload(live, b"zwei").json
        model.open()
        assert first.reply().status == 200
        path, key = f"/v2/document/{handle['document_id']}", {"document_key": handle["document_key"]}
        wait_until(lambda: live.ask("POST", path, key).json["status"] == "done")
        assert live.ask("POST", f"{path}/result", key).body == b"ZWEI"


@pytest.mark.parametrize(
    ("text", "fields", "translated"),
    [
        ("ein <x>Satz</x>", {"tag_handling": "xml", "ignore_tags": "x"}, "EIN <x>Satz</x>"),
        ("ein <X>Satz</X>", {"tag_handling": "html", "ignore_tags": ["X", "y"]}, "EIN <X>Satz</X>"),
        ("ein <ph id='1'/> Satz", {"tag_handling": "xml"}, "EIN <ph id='1'/> SATZ"),
        ("<p>ein</p>\n<p translate=no>Satz</p>", {"tag_handling": "html"}, "<p>EIN</p>\n<p translate=no>Satz</p>"),
        ("<a>ein</a><a> Satz</a>", {"tag_handling": "xml", "non_splitting_tags": "a"}, "<a>EIN</a> <a>SATZ</a>"),
        ("ein\nSatz", {"tag_handling": "html"}, "EIN SATZ"),
        ("ein\nSatz", {"tag_handling": "html", "split_sentences": "1"}, "EIN\nSATZ"),
    ],
)
def test_tags_are_handled_as_requested(text: str, fields: dict[str, Any], translated: str, live: Any) -> None:
    assert translate(live, text, **fields).json["translations"][0]["text"] == translated
