"""Test that a translator called from Python warns of texts in another language than the model's."""

import warnings

import pytest

from transduce.errors import WrongLanguageWarning
from transduce.inference.quality_estimation import describe_wrong_language, warn_wrong_language
from transduce.inference.translator import Translator


def test_a_text_in_another_language_gets_a_warning(translator: Translator) -> None:
    translator.source_language, before = "zh", translator.source_language
    try:
        with pytest.warns(WrongLanguageWarning, match=r"^'I would like to go home.' looks English, not Chinese: the"):
            translator("I would like to go home.")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            translator(["我喜欢苹果。", "OK"])
    finally:
        translator.source_language = before


@pytest.mark.parametrize(
    ("text", "language"),
    [("{name} wohnt in {city}.", "de"), ("{a} wohnt in {b}.", "de"), ("It costs 36 yuan (NASA).", "en")],
)
def test_placeholders_and_abbreviations_are_in_no_language(text: str, language: str) -> None:
    assert describe_wrong_language(text, language) is None


def test_several_texts_get_one_warning() -> None:
    texts = ["我喜欢苹果。", "Where are you going now? " * 5, "I do not know where he is."]
    with pytest.warns(WrongLanguageWarning) as found:
        warn_wrong_language(texts, "zh")
    (warning,) = found
    assert str(warning.message) == (
        f"{texts[1][:60] + '…'!r} and 1 of the texts behind it look English, not Chinese: the translation is then "
        "fluent nonsense."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_wrong_language(texts, None)
