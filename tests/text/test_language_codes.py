"""Test which language of a model a user's code means, whatever the spelling."""

import pytest

from transduce.errors import TransduceError
from transduce.text.languages import TWO_LETTER_CODES, english_name, fitting_code, is_unspaced_language, short_code

NLLB: tuple[str, ...] = (
    "zho_Hans",
    "zho_Hant",
    "yue_Hant",
    "deu_Latn",
    "eng_Latn",
    "arb_Arab",
    "arz_Arab",
    "nob_Latn",
    "nno_Latn",
)
NLLB += ("azj_Latn", "azb_Arab", "kas_Arab", "kas_Deva", "tgl_Latn", "ace_Arab", "ace_Latn", "srp_Cyrl")
MBART = ("zh_CN", "de_DE", "en_XX", "pt_XX", "ar_AR", "fr_XX")
M2M100 = ("zh", "de", "en", "pt", "no", "sr", "he", "am", "ru")
OWN = ("zh", "de-AT", "pt-BR", "pt-PT", "en")


@pytest.mark.parametrize("code", ["zh", "ZH", "zh-CN", "zh_cn", "zh-Hans", "zho", "chi", "cmn", "zh-SG", "cmn-Hans-CN"])
def test_every_spelling_of_chinese_in_simplified_characters_means_one_language(code: str) -> None:
    assert [fitting_code(code, known) for known in (NLLB, MBART, M2M100)] == ["zho_Hans", "zh_CN", "zh"]


@pytest.mark.parametrize(
    ("code", "known", "expected"),
    [
        *((code, NLLB, "zho_Hant") for code in ("zh-TW", "zh-Hant", "zho_hant", "zh_HK", "cmn-TW", "zt")),
        *((code, MBART, None) for code in ("zh-TW", "zh-Hant", "yue")),
        ("yue", NLLB, "yue_Hant"),
        *((code, NLLB, "deu_Latn") for code in ("de-AT", "DE_at", "deu", "ger", "de-Latn", "de-Latn-CH")),
        *((code, M2M100, "de") for code in ("de-AT", "deu", "deu_Latn", "de_DE")),
        *((code, MBART, "de_DE") for code in ("de", "de-AT", "deu_Latn")),
        *((code, MBART, "en_XX") for code in ("en", "en-GB", "eng", "EN")),
        ("pt-BR", MBART, "pt_XX"),
        ("ar", NLLB, "arb_Arab"),
        ("ar-EG", NLLB, "arb_Arab"),
        ("arz", NLLB, "arz_Arab"),
        ("arz", M2M100, None),
        ("no", NLLB, "nob_Latn"),
        ("nb", M2M100, "no"),
        ("nn", NLLB, "nno_Latn"),
        ("nn", M2M100, None),
        ("az", NLLB, "azj_Latn"),
        ("fil", NLLB, "tgl_Latn"),
        ("iw-IL", M2M100, "he"),
        ("sr-Latn", NLLB, None),  # another script than the model's
        ("sr-Latn", M2M100, "sr"),  # which may be in either
        ("ru-Latn", M2M100, None),
        ("am-Ethi", M2M100, "am"),
        ("kas-Deva", NLLB, "kas_Deva"),
        ("de", OWN, "de-AT"),
        ("de-CH", OWN, None),
        ("pt-BR", OWN, "pt-BR"),
        ("pt-AO", OWN, None),
        ("xx", OWN, None),
        ("", OWN, None),
        ("eng_Latn_x", NLLB, None),
    ],
)
def test_a_code_means_the_only_language_that_fits(code: str, known: tuple[str, ...], expected: str | None) -> None:
    assert fitting_code(code, known) == expected


@pytest.mark.parametrize(("code", "known"), [("pt", OWN), ("kas", NLLB), ("ace", NLLB), ("zh", ("zho", "cmn"))])
def test_a_code_that_several_languages_fit_is_refused(code: str, known: tuple[str, ...]) -> None:
    with pytest.raises(TransduceError, match=f"^`{code}` may mean each of the languages .*, .*: name the one that"):
        fitting_code(code, known)


@pytest.mark.parametrize("known", [NLLB, MBART, M2M100, OWN])
def test_a_code_of_the_model_means_itself(known: tuple[str, ...]) -> None:
    assert [fitting_code(code, known) for code in known] == list(known)


def test_all_languages_with_two_letters_have_three_too() -> None:
    assert len(TWO_LETTER_CODES) == 183
    assert {short_code(code) for code in ("zho", "eng_Latn", "swh", "cmn-Hant")} == {"zh", "en", "sw"}


def test_every_spelling_of_a_code_tells_whether_words_are_separated_by_spaces() -> None:
    assert all(map(is_unspaced_language, ("zt", "zho_Hant", "ZH-tw", "yue", "jpn", "jp", "tha_Thai", "bur", "khm")))
    assert not any(map(is_unspaced_language, (None, "ko", "kor_Hang", "bo", "en", "xx")))


def test_languages_are_named_in_every_spelling() -> None:
    codes = ("pl", "pol_Latn", "no", "nob", "zt", "iw", "xx")
    names = ("Polish", "Polish", "Norwegian", "Norwegian", "Chinese", "Hebrew", "xx")
    assert tuple(map(english_name, codes)) == names
