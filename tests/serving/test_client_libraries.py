"""Test a live server with the unchanged client libraries of other services."""

import time
from types import SimpleNamespace
from typing import Any

import pytest


def test_the_libretranslatepy_library_translates_and_detects(live: Any) -> None:
    client = pytest.importorskip("libretranslatepy").LibreTranslateAPI(live.url)
    assert client.translate("ein süßer Tee & mehr", "de", "en") == "EIN SÜSSER TEE & MEHR"
    assert client.translate("茶 tea", "auto", "en", timeout=10) == "茶 TEA"
    assert client.detect("今天天气很好")[0] == {"confidence": 100.0, "language": "zh"}
    assert [language["code"] for language in client.languages()] == ["de", "en", "pt_BR", "zh"]


def test_libretranslatepy_with_a_key(serve: Any, gated_model: Any) -> None:
    libretranslatepy = pytest.importorskip("libretranslatepy")
    from urllib.error import HTTPError

    with serve(gated_model(), api_keys=("secret",)) as live:
        client = libretranslatepy.LibreTranslateAPI(live.url, "secret")
        assert client.translate("eins", "de", "en") == "EINS"
        assert client.languages()[0]["code"] == "de"
        with pytest.raises(HTTPError, match="403") as refused:
            libretranslatepy.LibreTranslateAPI(live.url, "wrong").translate("eins", "de", "en")
        refused.value.close()


def test_the_deep_translator_library_translates(live: Any) -> None:
    deep_translator = pytest.importorskip("deep_translator")
    client = deep_translator.LibreTranslator(source="de", target="en", api_key="any", custom_url=f"{live.url}/")
    assert client.translate("ein süßer Tee & mehr") == "EIN SÜSSER TEE & MEHR"
    assert client.translate_batch(["eins", "zwei"]) == ["EINS", "ZWEI"]
    assert client.translate("茶" * 4000) == "茶" * 4000
    with pytest.raises(deep_translator.exceptions.ServerException):
        deep_translator.LibreTranslator(source="fr", target="en", api_key="any", custom_url=f"{live.url}/").translate(
            "un"
        )


def test_the_deepl_library_translates_text(live: Any) -> None:
    deepl = pytest.importorskip("deepl")
    client = deepl.Translator("any", server_url=live.url)
    result = client.translate_text("ein süßer Tee", source_lang="DE", target_lang="EN-US")
    assert (result.text, result.detected_source_lang, result.billed_characters) == ("EIN SÜSSER TEE", "DE", 13)
    several = client.translate_text(["今天的茶 a", "今天"], target_lang="EN-GB")
    assert [(result.text, result.detected_source_lang) for result in several] == [("今天的茶 A", "ZH"), ("今天", "ZH")]
    tagged = client.translate_text("<b>茶 tea</b>", target_lang="EN-GB", source_lang="ZH", tag_handling="html")
    assert tagged.text == "<b>茶 TEA</b>"
    assert [language.code for language in client.get_source_languages()] == ["DE", "EN", "ZH"]
    assert [language.code for language in client.get_target_languages()] == ["EN-GB", "EN-US", "PT-BR"]
    assert not client.get_usage().any_limit_reached
    assert [(pair.source_lang, pair.target_lang) for pair in client.get_glossary_languages()] == [
        ("de", "en"),
        ("en", "pt"),
        ("zh", "en"),
    ]
    with pytest.raises(deepl.DeepLException, match=r"KO is not supported"):
        client.translate_text("eins", target_lang="KO")
    client.close()


def test_the_deepl_library_manages_glossaries(serve: Any, gated_model: Any) -> None:
    deepl = pytest.importorskip("deepl")
    with serve(gated_model()) as live:
        client = deepl.DeepLClient("any", server_url=live.url)
        glossary = client.create_glossary("Tiere", "DE", "EN", {"Hund": "dog"})
        assert (glossary.ready, glossary.entry_count, glossary.name) == (True, 1, "Tiere")
        assert client.get_glossary_entries(glossary) == {"Hund": "dog"}
        assert [each.glossary_id for each in client.list_glossaries()] == [glossary.glossary_id]
        result = client.translate_text("ein Hund", source_lang="DE", target_lang="EN-US", glossary=glossary)
        assert result.text == "EIN HUND dog"
        client.delete_glossary(glossary)
        with pytest.raises(deepl.GlossaryNotFoundException):
            client.get_glossary(glossary.glossary_id)
        from_csv = client.create_glossary_from_csv("csv", "DE", "EN", "Hund,dog")
        assert client.get_glossary(from_csv.glossary_id).entry_count == 1
        client.close()


def test_the_deepl_library_translates_documents(live: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deepl = pytest.importorskip("deepl")
    # The library asks every 5 seconds whether a document is done.
    monkeypatch.setattr(
        "deepl.translator.time", SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(seconds / 100))
    )
    client = deepl.DeepLClient("any", server_url=live.url)
    (tmp_path / "a.txt").write_text("eins\n\nzwei\n")
    client.translate_document_from_filepath(
        tmp_path / "a.txt", tmp_path / "b.txt", source_lang="DE", target_lang="EN-US", formality="prefer_more"
    )
    assert (tmp_path / "b.txt").read_text() == "EINS\n\nZWEI\n"
    (tmp_path / "c.txt").write_bytes(b"%PDF-1.7")
    with pytest.raises(deepl.DocumentTranslationException, match="is PDF, which cannot be translated"):
        client.translate_document_from_filepath(
            tmp_path / "c.txt", tmp_path / "d.txt", source_lang="DE", target_lang="EN-US"
        )
    client.close()


def test_deepl_with_a_key(serve: Any, gated_model: Any) -> None:
    deepl = pytest.importorskip("deepl")
    with serve(gated_model(), api_keys=("secret",)) as live:
        client = deepl.Translator("secret", server_url=live.url)
        assert client.translate_text("eins", target_lang="EN-US", source_lang="DE").text == "EINS"
        client.close()
        wrong = deepl.Translator("wrong", server_url=live.url)
        with pytest.raises(deepl.AuthorizationException):
            wrong.translate_text("eins", target_lang="EN-US")
        wrong.close()


def test_openai_completions_and_usage(serve: Any, gated_model: Any) -> None:
    openai = pytest.importorskip("openai")
    model = gated_model()
    model.decode_start = lambda ids, _: "EIN"[: len(ids)]
    with serve(model) as live:
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0)
        assert client.models.retrieve("de-en").id == "de-en"
        completion = client.completions.create(model="de-en", prompt="ein Satz", max_tokens=5)
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("EIN SATZ", "stop")
        assert completion.usage.total_tokens == 4
        stream = client.chat.completions.create(
            model="de-en",
            messages=[{"role": "user", "content": "ein Satz"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "EIN SATZ"
        assert (last.choices, last.usage.completion_tokens) == ([], 2)
        with pytest.raises(openai.BadRequestError, match="`tools` is not supported"):
            client.chat.completions.create(
                model="de-en",
                messages=[{"role": "user", "content": "ein Satz"}],
                tools=[{"type": "function", "function": {"name": "a"}}],
            )
        client.close()


def test_the_ollama_library_chats_and_lists_models(serve: Any, gated_model: Any) -> None:
    ollama = pytest.importorskip("ollama")
    model = gated_model()
    model.decode_start = lambda ids, _: "EIN"[: len(ids)]
    with serve(model) as live:
        client = ollama.Client(host=live.url)
        assert [each.model for each in client.list().models] == ["de-en:latest"]
        messages = [{"role": "user", "content": "ein Satz"}]
        assert client.chat(model="de-en", messages=messages).message.content == "EIN SATZ"
        parts = list(client.chat(model="de-en:latest", messages=messages, stream=True))
        assert "".join(part.message.content for part in parts) == "EIN SATZ"
        assert (parts[-1].done, parts[-1].done_reason, parts[-1].eval_count) == (True, "stop", 2)
        assert client.generate(model="de-en", prompt="ein Satz", options={"num_predict": 1}).done_reason == "length"
        assert client.show("de-en").capabilities == ["completion"]
        assert client.ps().models[0].model == "de-en:latest"
        with pytest.raises(ollama.ResponseError, match="There is no model `gpt`"):
            client.chat(model="gpt", messages=messages)
        client._client.close()
