"""Test that a text too long for a model is split at the best points, without losing any of it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.inference.segmentation import split_text
from transduce.text.sentences import split_sentences


def cut(text: str, most: int, *, gathers: bool = False) -> list[str]:
    return split_text(text, lambda part: len(part) <= most, gathers=gathers)


def test_a_text_within_the_limit_is_not_split() -> None:
    assert cut(" One. Two. ", 20) == [" One. Two. "]


def test_a_text_beyond_the_limit_is_split_at_sentence_ends() -> None:
    assert cut("One is here. Two is there! Three?", 14) == ["One is here.", "Two is there!", "Three?"]
    assert cut("我爱你。你爱我吗？是的。", 6) == ["我爱你。", "你爱我吗？", "是的。"]


@pytest.mark.parametrize("gathers", [False, True])
def test_a_long_text_is_not_split_after_abbreviations(gathers: bool) -> None:
    text = "On Sept. 11, 2001, Mr. Smith came. Dr. Li left at 5 p.m. on Monday. Why?"
    assert cut(text, 34, gathers=gathers)[:2] == [
        "On Sept. 11, 2001, Mr. Smith came.",
        "Dr. Li left at 5 p.m. on Monday.",
    ]
    text = "Tom kommt bzgl. Anna. Nein."
    assert split_text(text, lambda part: len(part) <= 21, language="de") == ["Tom kommt bzgl. Anna.", "Nein."]


def test_sentences_are_gathered_as_far_as_they_fit() -> None:
    text = "One is here. Two is there! Three? And four, which is long, too."
    assert cut(text, 33, gathers=True) == ["One is here. Two is there! Three?", "And four, which is long, too."]
    assert cut(text, 27, gathers=True) == ["One is here. Two is there!", "Three?", "And four, which is long,", "too."]
    assert cut("我爱你。你爱我吗？是的。", 9, gathers=True) == ["我爱你。你爱我吗？", "是的。"]


@pytest.mark.parametrize(
    "sentences",
    [
        ["वह घर गया।", "वह सो गया॥", "क्यों?"],
        ["من أنت؟", "أنا لست هنا."],
        ["یہ گھر ہے۔", "وہ سو گیا۔"],
        ["Նա եկավ։", "Նա գնաց։"],
        ["ቤት ሄደ።", "ተኛ፧", "አዎ።"],
        ["គាត់មក។", "គាត់ទៅ៕"],
        ["သူလာသည်။", "သူသွားသည်။"],
        ["値は３．５です．", "終わり｡"],
    ],
)
def test_sentences_of_other_scripts_are_split(sentences: list[str]) -> None:
    text = " ".join(sentences)
    assert cut(text, len(text) - 1) == sentences


def test_a_full_stop_within_a_number_is_no_sentence_end() -> None:
    assert cut("It costs 3.50 or so. Buy it.", 21) == ["It costs 3.50 or so.", "Buy it."]


def test_closing_quotes_stay_with_their_sentence() -> None:
    assert cut("“是的。”他说了很多话。", 8) == ["“是的。”", "他说了很多话。"]


def test_a_long_sentence_is_cut_at_commas_then_at_spaces_then_anywhere() -> None:
    assert cut("one two three, four five, six", 15) == ["one two three,", "four five, six"]
    assert cut("one two three four", 8) == ["one two", "three", "four"]
    assert cut("abcdefgh", 4) == ["abcd", "efgh"]


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("text", ["x" * 100_000, "词" * 100_000, "word " * 20_000, "。" * 10_000])
def test_huge_texts_are_split_within_the_limit_without_loss(text: str, gathers: bool) -> None:
    parts = cut(text, 200, gathers=gathers)
    assert max(map(len, parts)) <= 200 or text.startswith("。")
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


@given(st.text(alphabet="ab ,.。！”　", min_size=1, max_size=60), st.integers(1, 20), st.booleans())
def test_splitting_loses_only_spaces(text: str, most: int, gathers: bool) -> None:
    parts = cut(text, most, gathers=gathers)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert len(text) <= most or all(len(part) <= most for part in parts)


@pytest.mark.parametrize("unit", [".", "!", "…", "?!", "A. ", "Mr. ", "。", '"', " ", "1", "\u0301", "a.b.", "۔"])
def test_sentences_of_a_monotonous_line_are_found_in_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    started = time.process_time()
    assert "".join(split_sentences(f"{text}a")).replace(" ", "") == f"{text}a".replace(" ", "")
    assert time.process_time() - started < 5.0
