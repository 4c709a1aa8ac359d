"""DeepL's API, as far as its clients need it for text."""

from typing import Any
from urllib.parse import urlencode


def test_texts_are_translated(live: Any) -> None:
    reply = live.ask(
        "POST", "/v2/translate", {"text": ["eins zwei", "茶"], "source_lang": "DE", "target_lang": "EN-US"}
    )
    assert reply.status == 200
    assert reply.json == {
        "translations": [
            {"detected_source_language": "DE", "text": "EINS ZWEI", "billed_characters": 9},
            {"detected_source_language": "DE", "text": "茶", "billed_characters": 1},
        ]
    }


def test_forms_and_tags_are_read_and_the_language_is_detected(live: Any) -> None:
    body = urlencode({"text": "<b>茶 tea</b>", "target_lang": "EN", "tag_handling": "html", "formality": "more"})
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


def test_usage_counts_characters(serve: Any, gated_model: Any) -> None:
    with serve(gated_model()) as live:
        live.translate("eins")
        usage = live.ask("GET", "/v2/usage").json
    assert usage["character_count"] == 4
    assert usage["character_limit"] > 10**9
