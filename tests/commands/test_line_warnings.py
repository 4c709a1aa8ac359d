"""Test that `transduce translate` warns once per run of sources in another language and of lost sentences."""

import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.commands.line_warnings import LineWarnings, UnknownLetters, unknown_letters
from transduce.commands.main import main
from transduce.inference.quality_estimation import find_quality_warnings
from transduce.inference.translation import Alternative, Translation
from transduce.text import CorpusFiles, TokenizerSettings, read_pairs

Capture = pytest.CaptureFixture[str]


def translation(source: str, text: str) -> Translation:
    return Translation(source, (Alternative(text, (text,), (-0.1,), -0.1, ended=True),))


def kinds(source: str, text: str, source_language: str | None, target_language: str | None) -> dict[str, str]:
    found = find_quality_warnings(
        translation(source, text), source_language=source_language, target_language=target_language
    )
    return {doubt.kind: doubt.found for doubt in found}


def test_lost_sentences_and_other_languages_cause_warnings() -> None:
    source = "玛丽看了他的书吗？谁需要你的同学？"
    assert kinds(source, "Did Mary read his book?", "zh", "en") == {"sentences": "1 sentence of 2"}
    assert kinds(source, "Did Mary read his book? Who needs you?", "zh", "en") == {}
    assert kinds("Where have all of you been?", "I like tea.", "zh", "en") == {"language": "looks English, not Chinese"}
    # A summary, or a model whose languages are not known, may write less.
    assert kinds("We went home. It was late then.", "We went home.", "en", "en") == {}
    assert kinds("We went home. It was late then.", "We went home.", None, None) == {}


def test_warnings_of_one_kind_are_merged_and_list_the_first_lines() -> None:
    warnings = LineWarnings("zh", "en")
    for number in range(1, 8):
        warnings.add(number, "What is the matter with you?", "Tea.")
    warnings.add(8, "我们去了学校。老师不在那里。", "We went to school.")
    warnings.add(9, "我们去了学校。老师不在那里。", "We went to school. The teacher was not there.")
    assert str(warnings) == (
        "warning: 7 lines (1, 2, 3, 4, 5, …) look English, not Chinese: the translation is then fluent nonsense; use a "
        "model that reads this language.\n"
        "warning: line 8 has fewer sentences in the translation than in the source: use "
        "--split-sentences always, or put each sentence on a line of its own.\n"
    )
    assert str(LineWarnings("zh", "en")) == ""
    others = LineWarnings("zh", "en")
    for number in (1, 2):
        others.add(number, "Я не знаю, где он живёт.", None)
    assert str(others).startswith("warning: 2 lines (1, 2) are in Cyrillic letters, not in Chinese: ")


def test_broken_characters_of_translations_are_reported() -> None:
    warnings = LineWarnings("en", "zh")
    warnings.add(1, "They can swim.", "他们能\ufffd\ufffd。")
    warnings.add(2, "They can \ufffd.", "他们能\ufffd。")
    warnings.add(3, "They can swim.", None)
    assert str(warnings).startswith(
        "warning: the model wrote bytes that are no UTF-8 characters (U+FFFD) in the translation of line 1: "
    )
    assert warnings.shown_numbers == [1]


def test_letters_that_the_vocabulary_lacks_are_reported() -> None:
    warnings = LineWarnings(
        "zh", "en", unknown_characters=lambda text: UnknownLetters([each for each in text if each in "量😆й"])
    )
    warnings.add(1, "量子计算机很贵", "Tea is expensive.")
    warnings.add(2, "我喜欢茶 😆", "I like tea 😆")
    warnings.add(3, "请看 https://example.com/й 这里", "Look at https://example.com/й here")
    assert str(warnings) == (
        "warning: line 1 has letters that the vocabulary lacks (量): do not rely on these translations, which are "
        "outside of what the model has learned.\n"
    )


def test_translate_warns_about_lines_and_still_translates_them(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    options = ["--device", "cpu", "--threads", "1", "--precision", "fp32", "--max-length", "12"]
    lines = "我喜欢苹果。\nWe do not know where he is.\n我喜欢苹果。老师昨天买茶。他明天吃鱼。\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert main(["translate", str(trained), *options]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3
    assert "warning: line 2 looks English, not Chinese" in captured.err
    assert "warning: line 1 " not in captured.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("我喜欢苹果。\n".encode())))
    assert main(["translate", str(trained), *options, "--n-best", "2"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_estimate_quality_reports_a_source_in_another_language(translator: transduce.Translator) -> None:
    (doubts,) = transduce.estimate_quality(translator, [translation("Where have all of you been?", "I like tea.")])
    assert "language" in [doubt.kind for doubt in doubts]


def test_letters_that_are_spelled_in_bytes_are_reported(toy_corpus: Path) -> None:
    files = CorpusFiles(source=(str(toy_corpus / "train.zh"),), target=(str(toy_corpus / "train.en"),))
    settings = TokenizerSettings(vocabulary_size=350, byte_fallback=True)
    vocabulary = transduce.Tokenizer.train(lambda: read_pairs(files), settings, adjust=True).source
    assert any(piece.startswith("<0x") for piece in vocabulary.token_texts(vocabulary.encode("龘")))
    assert unknown_letters(vocabulary)("我喜欢龘😆。") == ([], ["龘"])
    warnings = LineWarnings("zh", "en", unknown_characters=unknown_letters(vocabulary))
    warnings.add(1, "我喜欢龘😆。", None)
    assert str(warnings) == (
        "warning: the vocabulary spells some letters in bytes (龘), as the training text had few or none of them: "
        "check the translations of line 1.\n"
    )


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_separate_accents_are_reported_with_the_remedy(tmp_path: Path, byte_fallback: bool) -> None:
    lines = tmp_path / "lines.de"
    lines.write_text("Der Käse war schön.\nÜber dem Schnee.\n" * 50, "utf-8")
    files = CorpusFiles(source=(str(lines),), target=(str(lines),))
    settings = TokenizerSettings(vocabulary_size=290, byte_fallback=byte_fallback)
    vocabulary = transduce.Tokenizer.train(lambda: read_pairs(files), settings, adjust=True).source
    warnings = LineWarnings("de", "en", unknown_characters=unknown_letters(vocabulary))
    warnings.add(1, "Der Käse war schön.", None)
    warnings.add(2, unicodedata.normalize("NFD", "Der Käse war schön."), None)
    assert str(warnings) == ""
    with_unknown = LineWarnings("de", "en", unknown_characters=unknown_letters(vocabulary))
    for text in ("Der Käse aus Κρήτη war schön.", "Die ñandú"):  # separate accents beside letters without a token
        with_unknown.add(1, unicodedata.normalize("NFD", text), None)
    assert "separate" not in str(with_unknown)
    assert "ñ" in str(with_unknown)
    vars(vocabulary)["composes"] = False  # as in a vocabulary of another toolkit
    warnings.add(2, unicodedata.normalize("NFD", "Der Käse war schön."), None)
    warnings.add(3, "Der Schnee ❤\ufe0f", None)
    assert str(warnings) == (
        "warning: letters and their accents are separate characters (ä, ö), which the model has not learned: convert "
        "the text to Unicode's composed form (NFC), and translate it again, as the translation of line 2 cannot be "
        "relied on.\n"
    )
    warnings.add(4, unicodedata.normalize("NFD", "Die ñandú"), None)  # has no token in either form
    assert "ñ" in str(warnings).partition("separate")[0]


def test_a_letter_inside_a_longer_token_is_not_reported() -> None:
    class Whole:
        unknown_characters = staticmethod(lambda _: "")
        encode = staticmethod(lambda text: [0] if text == "Gü" else [1])
        readable = normalize = staticmethod(str)
        token_texts = staticmethod(lambda ids: ["▁Gü"] if ids == [0] else ["<0xC3>", "<0xBC>"])

    vocabulary: Any = Whole()
    assert unknown_letters(vocabulary)("Gü") == ([], [])
    assert unknown_letters(vocabulary)("ü") == ([], ["ü"])


def test_words_that_a_word_list_lacks_are_reported_whole() -> None:
    vocabulary = transduce.read_vocabulary(["<pad>", "</s>", "<unk>", "我", "爱", "你"]).source
    warnings = LineWarnings("zh", "en", unknown_characters=unknown_letters(vocabulary))
    warnings.add(1, "我 爱 你", "I love you")
    warnings.add(2, "我爱你", "I")
    assert str(warnings).startswith("warning: line 2 has words that the vocabulary lacks (我爱你): ")


def test_empty_translations_are_counted() -> None:
    warnings = LineWarnings(None, None)
    for number, source in enumerate(("a b", "", "…", "c", "d"), 1):
        warnings.add(number, source, "" if number < 5 else "D")
    assert str(warnings).startswith("warning: the translation of 2 lines (1, 4) is empty: the model has")
