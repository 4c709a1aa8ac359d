"""Test which evaluation tokenizer a language gets, and which requests are rejected."""

import pytest

from transduce.errors import TransduceError
from transduce.evaluation import scores
from transduce.evaluation.scores import choose_tokenizer, fitting_tokenizer, tokenizer_for


@pytest.mark.parametrize("code", ["zh", "ZH", "zh-Hans", "zh_CN", "zh-TW", "zho", "zho_Hant", "zt", "cmn", "cn"])
def test_each_code_of_chinese_selects_the_chinese_tokenizer(code: str) -> None:
    assert tokenizer_for(code) == "zh"


@pytest.mark.parametrize("code", ["th", "lo", "my", "km", "tha", "khm_Khmr"])
def test_languages_without_spaces_are_counted_by_characters(code: str) -> None:
    assert tokenizer_for(code) == "char"


@pytest.mark.parametrize("code", ["en", "de_DE", "zza", "", None])
def test_all_others_have_the_standard_tokenizer(code: str | None) -> None:
    assert fitting_tokenizer(code) == scores.TokenizerChoice("13a", None)


@pytest.mark.parametrize(
    ("code", "word_tokenizer", "language"),
    [("ja_XX", "ja-mecab", "Japanese"), ("jpn", "ja-mecab", "Japanese"), ("kor_Hang", "ko-mecab", "Korean")],
)
def test_segmenter_when_installed_else_characters_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, code: str, word_tokenizer: str, language: str
) -> None:
    monkeypatch.setattr(scores, "missing_packages", lambda _: [])
    assert fitting_tokenizer(code) == scores.TokenizerChoice(word_tokenizer, None)
    monkeypatch.setattr(scores, "missing_packages", lambda _: ["absent"])
    choice = fitting_tokenizer(code)
    assert choice.name == "char"
    assert choice.reason is not None
    assert choice.reason.startswith(f"{language} was scored by characters because the package absent is")


def test_missing_packages_names_what_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MECAB_PACKAGES", {"ja": ("json", "no_such_package")})
    assert scores.missing_packages("ja") == ["no_such_package"]


def test_a_tokenizer_named_by_the_user_is_taken() -> None:
    assert choose_tokenizer("en", "intl").name == "intl"
    assert choose_tokenizer("zh", None).name == "zh"


def test_misspelt_tokenizer_gets_the_nearest_name() -> None:
    with pytest.raises(TransduceError, match=r"must be one of 13a, char, .* 'chars': did you mean 'char'\?$"):
        choose_tokenizer("en", "chars")


def test_an_unknown_tokenizer_is_refused_with_the_tokenizer_of_the_language() -> None:
    with pytest.raises(TransduceError, match=r"it is 'sentencepiece': leave it out to get 'zh'\.$"):
        choose_tokenizer("zh", "sentencepiece")


@pytest.mark.parametrize("name", ["spm", "flores101", "flores200", "spBLEU-1K"])
def test_tokenizers_that_download_are_refused(name: str) -> None:
    with pytest.raises(TransduceError, match=f"never uses the network, but the tokenizer '{name}' downloads"):
        choose_tokenizer("zh", name)


def test_a_segmenter_that_is_not_installed_is_refused_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "missing_packages", lambda _: ["absent"])
    with pytest.raises(TransduceError, match=r"'ja-mecab' needs the package absent.*pip install 'sacrebleu\[ja"):
        choose_tokenizer("ja", "ja-mecab")
