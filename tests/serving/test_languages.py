"""Test language codes, the choice of models, and language detection."""

from typing import Any

import pytest

from transduce.errors import TransduceError
from transduce.serving.languages import Detector, Routes, has_letters_of, language_name
from transduce.serving.messages import RequestError
from transduce.serving.models import parse_model
from transduce.text.languages import canonical, learn_profiles


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("zh", "zh-Hans"),
        ("ZH_cn", "zh-Hans"),
        ("zh-TW", "zh-Hant"),
        ("EN", "en"),
        ("pt_br", "pt-BR"),
        ("sr-latn-rs", "sr-Latn-RS"),
    ],
)
def test_a_code_has_one_spelling(said: str, code: str) -> None:
    assert canonical(said) == code
    assert canonical(code) == code


def test_languages_have_names() -> None:
    assert [language_name(code) for code in ("zh", "zh-Hant", "en-GB", "xx")] == [
        "Chinese",
        "Chinese (traditional)",
        "English",
        "xx",
    ]


def test_a_request_finds_its_model(gated_model: Any) -> None:
    there, back = gated_model(languages=("zh", "en")), gated_model(languages=("en", "zh"))
    routes = Routes([there, back, gated_model(languages=("pt-BR", "en"))])
    assert routes.model(routes.find("zh"), routes.find("en-US")) is there
    assert routes.model("en", "zh-Hans") is back
    assert routes.model("en", "en") is None
    assert routes.find("pt") == "pt-BR"
    assert (routes.find("cmn"), routes.find("eng_Latn")) == ("zh-Hans", "en")
    assert routes.sources_of("en") == ["pt-BR", "zh-Hans"]
    assert routes.default_pair == ("zh-Hans", "en")
    with pytest.raises(RequestError, match=r"^pt-PT is not supported$"):
        routes.find("pt-PT")
    with pytest.raises(RequestError, match=r"there is no model from zh to pt-BR"):
        routes.model("zh-Hans", "pt-BR")


def test_a_code_that_several_served_languages_fit_is_refused(gated_model: Any) -> None:
    routes = Routes([gated_model(languages=(code, "en")) for code in ("pt-BR", "pt-PT")])
    with pytest.raises(RequestError, match=r"`pt` may mean each of the languages pt-BR, pt-PT: name the one"):
        routes.find("pt")


def test_models_with_one_language_on_both_sides_are_served(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(languages=("en", "en")), gated_model(languages=("de", "en"))) as live:
        assert live.translate("a text", source="en").json["translatedText"] == "A TEXT"
        assert live.translate("this is a text that is short", source="auto").json["translatedText"].isupper()
        assert live.translate("ein", source="de", target="de").json["translatedText"] == "ein"
        message = {"model": "en-en", "messages": [{"role": "user", "content": "a text"}]}
        answer = live.ask("POST", "/v1/chat/completions", message)
        assert answer.json["choices"][0]["message"]["content"] == "A TEXT"
    with serve(gated_model(languages=("en", "en"))) as live:
        assert live.translate("a text", source="auto").json["translatedText"] == "A TEXT"


def test_a_clear_language_is_found_without_profiles_of_all_served_languages(serve: Any, gated_model: Any) -> None:
    text = "Hello there my friend, how are you today? I hope that all is well with your family."
    pairs = (("de", "en"), ("fr", "en"), ("en", "en"), ("user", "bot"))
    with serve(*(gated_model(languages=pair) for pair in pairs)) as live:
        reply = live.translate(text, source="auto").json
    assert reply["detectedLanguage"]["language"] == "en"
    profiles = learn_profiles({"de": ["das ist ein Haus"] * 9, "en": ["this is a house"] * 9})
    detector = Detector(["de", "en", "user"], profiles)
    assert detector.detect("das ist ein kleines Haus", ["de", "en"])[0].confidence > 60


def test_a_pair_has_one_model(gated_model: Any) -> None:
    with pytest.raises(TransduceError, match=r"zh-Hans → en has two: leave one out"):
        Routes([gated_model(languages=("zh", "en")), gated_model(languages=("zh-CN", "en"))])


@pytest.mark.parametrize(
    ("text", "code", "confidence"),
    [
        ("今天天气很好", "zh-Hans", 90.9),
        ("今日はいい天気です", "ja", 69.2),
        ("Сегодня", "ru", 100.0),
        ("hello", "en", 100.0),
        ("123", "en", 25.0),
        ("", "en", 25.0),
    ],
)
def test_without_profiles_alphabets_tell(text: str, code: str, confidence: float) -> None:
    found = Detector(["en", "ja", "ru", "zh-Hans"]).detect(text)
    assert (found[0].language, found[0].confidence) == (code, confidence)
    assert len(found) == 4


def test_profiles_tell_languages_of_one_alphabet_apart() -> None:
    learnt = learn_profiles({"en": ["the house is small"], "de": ["das Haus ist klein"], "zh": ["房子很小"]})
    detector = Detector(["de", "en", "zh-Hans"], learnt)
    assert detector.detect("das ist")[0].language == "de"
    assert detector.detect("房子")[0].language == "zh-Hans"
    assert detector.detect("house", ["de", "en"])[0].language == "en"
    assert Detector(["de", "en", "fr"], learnt).detect("das ist")[0].confidence == 33.3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("我用 Python 写代码。", "zh-Hans"),
        ("昨天我吃了苹果，然后 go home。", "zh-Hans"),
        ("请打开 iPhone 的设置。", "zh-Hans"),
        ("我的邮箱是 john.smith@example.com，请联系我。", "zh-Hans"),
        ("请看 https://en.wikipedia.org/wiki/The_name_of_the_rose", "zh-Hans"),
        ("苹果 iPhone 15 Pro Max", "zh-Hans"),
        ("The word 苹果 means apple.", "en"),
        ("Москва is the capital of Russia.", "en"),
    ],
)
def test_words_of_another_script_do_not_decide(text: str, code: str) -> None:
    detector = Detector(["en", "zh-Hans"], learn_profiles({"en": ["the house is small"], "zh": ["房子很小"]}))
    assert detector.detect(text)[0].language == code


@pytest.mark.parametrize(
    ("text", "code", "has_letters"),
    [
        ("我爱你", "zho-Hans", True),
        ("のは", "zh-Hans", False),
        ("のは", "jpn-Jpan", True),
        ("Сәлем", "kk", True),
        ("नमस्ते", "npi-Deva", True),
        ("হ্যালো", "ben-Beng", True),
        ("hello", "ru", False),
        ("здраво", "sr-Latn", False),
    ],
)
def test_letters_belong_to_the_script_of_a_language_code(text: str, code: str, has_letters: bool) -> None:
    assert has_letters_of(text, code) == has_letters


def test_the_source_is_found_among_codes_that_name_scripts(gated_model: Any) -> None:
    routes = Routes([gated_model(languages=(source, "deu_Latn")) for source in ("eng_Latn", "rus_Cyrl", "zho_Hans")])
    detector = Detector(routes.codes)
    for text, code in (("我爱你。", "zho-Hans"), ("Я тебя люблю.", "rus-Cyrl"), ("I love you very much.", "eng-Latn")):
        assert routes.identify_source(text, "deu-Latn", detector).language == code


def test_a_chinese_text_with_english_words_has_a_source(gated_model: Any) -> None:
    routes = Routes([gated_model(languages=("zh", "en"))])
    detector = Detector(routes.codes)
    assert routes.identify_source("昨天我吃了苹果，然后 go home。", "en", detector).language == "zh-Hans"
    with pytest.raises(RequestError, match=r"seems to be in English.*name the `source` if that is wrong"):
        routes.identify_source("Good morning to all of you.", "en", detector)


def test_short_texts_are_judged_with_those_of_their_script(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(languages=("zh", "en")), gated_model(languages=("de", "en"))) as live:
        reply = live.translate(["Haus", "Baum", "房子", "树", "12"], source="auto", target="en")
    assert [each["language"] for each in reply.json["detectedLanguage"]][:4] == ["de", "de", "zh", "zh"]


def test_models_are_named_with_or_without_their_languages(tmp_path: Any) -> None:
    assert parse_model("models/a") == (None, parse_model("models/a")[1])
    languages, folder = parse_model("zh:en=models/a")
    assert (languages, folder.as_posix()) == (("zh", "en"), "models/a")
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_model(str(odd)) == (None, odd)
    with pytest.raises(
        TransduceError, match=r"A path may follow two languages, as in zh:en=models/mine, but here is `zh=models/a`"
    ):
        parse_model("zh=models/a")
