"""Test that contradictory options and invalid values are refused with a message, or documented on the search page."""

import math
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.inference.segmentation import Gap, SegmentedText, Sentence
from transduce.inference.translation import Alternative, Translation, join_parts
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.glossary import contains_phrase
from transduce.text.languages import is_unspaced_language, sentence_separator

GREEDY = SearchSettings(beam_size=1)
SOURCE = "我吃鱼。"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_length": 8, "max_length": 8}, r"`min_length` must be less than `max_length` \(8\), .* but is 8"),
        ({"length_penalty": math.inf}, "`length_penalty` must be finite, but is inf"),
        ({"max_length_factor": math.inf}, "`max_length_factor` must be finite"),
        ({"max_length_factor": 1e308}, "`max_length_factor` must be at most 1,000, but is 1e\\+308: set `max_length`"),
        ({"forbidden": "tea"}, r"`forbidden` must be a tuple of texts, but is one text: write \(`tea`,\)"),
    ],
)
def test_contradictory_search_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        SearchSettings(**changes)


@pytest.mark.parametrize("temperature", [0.0, math.inf, math.nan, 1e-320])
def test_temperatures_that_leave_no_probabilities_are_refused(temperature: float) -> None:
    with pytest.raises(
        TransduceError, match=r"`temperature` must be greater than 0 and at most 1e30, but is .*: 1 leaves"
    ):
        SamplingSettings(temperature=temperature)


@pytest.mark.parametrize("search", [GREEDY, SearchSettings()], ids=["greedy", "beam"])
def test_a_minimum_length_has_space_for_its_end(translator: Translator, search: SearchSettings) -> None:
    longest = msgspec.structs.replace(search, max_length_factor=0.0, max_length_extra=3, min_length=6)
    (found,) = translator.translate([SOURCE], longest)
    assert len(found.alternatives[0].tokens) >= 6


@pytest.mark.parametrize("search", [GREEDY, SearchSettings()], ids=["greedy", "beam"])
def test_a_translation_contains_the_whole_prefix_despite_length_limits(
    translator: Translator, search: SearchSettings
) -> None:
    prefix = " ".join(["the teacher likes tea"] * 12)
    short = msgspec.structs.replace(search, max_length_factor=0.0, max_length_extra=3)
    assert translator(SOURCE, prefix=prefix, search=short).text.startswith(prefix)
    with pytest.raises(TransduceError, match="`max_length` must leave room for the prefix"):
        translator(SOURCE, prefix=prefix, search=search, max_length=3)


def test_a_prefix_with_a_forbidden_text_is_refused(translator: Translator) -> None:
    search = SearchSettings(forbidden=("tea",))
    for attempt in (
        lambda: translator(SOURCE, prefix="we like tea", search=search),
        lambda: list(translator.stream(SOURCE, search, prefix="we like tea")),
    ):
        with pytest.raises(TransduceError, match="must begin with `we like tea`, but `tea` is forbidden in it"):
            attempt()
    assert translator(SOURCE, prefix="we like teachers", search=search).text.startswith("we like tea")


def test_a_prefix_that_the_vocabulary_cannot_write_is_refused(translator: Translator) -> None:
    for attempt in (
        lambda: translator(SOURCE, prefix="龘 tea"),
        lambda: list(translator.stream(SOURCE, prefix="龘 tea")),
    ):
        with pytest.raises(TransduceError, match="cannot begin with `龘 tea`: some of its characters"):
            attempt()


def test_a_phrase_may_have_the_letters_of_a_forbidden_word(translator: Translator) -> None:
    found = translator(SOURCE, phrases=["the"], search=SearchSettings(forbidden=("he",)))
    assert "the" in found.text.split()
    with pytest.raises(TransduceError, match="must contain `the tea`, but `tea` is forbidden in it"):
        translator(SOURCE, phrases=["the tea"], search=SearchSettings(forbidden=("tea",)))


@pytest.mark.parametrize(
    ("text", "forbidden", "expected"),
    [
        ("the tea", "tea", True),
        ("the teacher", "tea", False),
        ("steal tea", "tea", True),
        ("the  green\ttea", "green tea", True),
        ("a tea-pot", "tea", True),
        ("喝绿茶", "绿", True),
        ("कमी नहीं", "कम", False),
        ("बहुत कम", "कम", True),
        ("", "tea", False),
        ("tea", " ", False),
        ("l'e\u0301le\u0300ve", "\u00e9l\u00e8ve", True),
        ("\u00e9l\u00e8ve", "e\u0301le\u0300ve", True),
    ],
)
def test_contains_phrase_matches_whole_words(text: str, forbidden: str, expected: bool) -> None:
    assert contains_phrase(text, forbidden) is expected


def test_one_text_is_no_list_of_phrases(translator: Translator) -> None:
    with pytest.raises(TransduceError, match="Phrases are a list of texts, but `tea` is one text"):
        translator(SOURCE, phrases="tea")


def test_forbidden_texts_may_be_a_list(translator: Translator) -> None:
    word = translator(SOURCE).text.split()[0]
    search = SearchSettings(forbidden=[word])  # type: ignore[arg-type]
    assert word not in translator(SOURCE, search=search).text.split()


def test_an_element_that_is_no_text_is_refused_with_its_number(translator: Translator) -> None:
    missing: Any = math.nan  # as tables have it for an empty cell
    with pytest.raises(TransduceError, match="Each text must be a `str`, but text number 2 is nan"):
        translator([SOURCE, missing])


def part(text: str) -> Translation:
    return Translation("…", (Alternative(text, (), (), -1.0, ended=True),))


def test_a_sentence_with_an_empty_translation_leaves_no_double_space() -> None:
    sentences = [Sentence(text, (0, 1, 2)) for text in ("a。", "b。", "c。")]
    gaps = [Gap(""), Gap(" ", is_sentence_space=True), Gap(" ", is_sentence_space=True), Gap("")]
    parts = [part("one"), part(""), part("two")]
    assert join_parts(SegmentedText("a。b。c。", sentences, gaps), parts, n_best=1, sampled=False).text == "one two"


@pytest.mark.parametrize(
    "language", ["zh", "zh-TW", "zh_CN", "zho_Hans", "jpn_Jpan", "ja_XX", "th", "cn", "jp", "chi", "bur"]
)
def test_languages_without_spaces_are_known_by_any_code(language: str) -> None:
    assert is_unspaced_language(language)
    assert sentence_separator(language) == (" " if language in ("th", "bur") else "")


@pytest.mark.parametrize("language", [None, "en", "eng_Latn", "thx", "ko", "kor_Hang", "bo"])
def test_languages_with_spaces_are_not_unspaced(language: str | None) -> None:
    assert not is_unspaced_language(language)


def test_repr_of_translators_and_translations_is_one_line(translator: Translator) -> None:
    assert repr(translator) == "Translator(zh → en, transformer, 2 + 2 layers × 32, fp32, cpu)"
    found = translator(SOURCE, n_best=2)
    assert repr(found) == f"Translation({found.text!r}, score={found.score:.4f}, 2 alternatives)"
    assert repr(found.alternatives[0]) == f"Alternative({found.text!r}, score={found.score:.4f})"
