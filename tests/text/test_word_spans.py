"""Test the character spans of words and tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.text.word_spans import encode_within_words, locate_words, overlap, split_words, token_spans


def words_of(text: str) -> list[str]:
    return [text[start:end] for start, end in split_words(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the cat sat.", ["the", "cat", "sat."]),
        ("  two  spaces ", ["two", "spaces"]),
        ("我爱你", ["我", "爱", "你"]),
        ("我用Python写", ["我", "用", "Python", "写"]),
        ("나는 너를 사랑해", ["나는", "너를", "사랑해"]),
        ("", []),
        (" \t", []),
    ],
)
def test_words_are_split_at_spaces_and_where_a_script_has_none(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text(alphabet="ab 我爱😀é\t", max_size=12))
def test_splitting_loses_nothing_but_spaces(text: str) -> None:
    assert "".join(words_of(text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("pieces", "text", "spelt"),
    [
        (["▁the", "▁teach", "er", "</s>"], "the teacher", ["the", "teach", "er", ""]),
        (["▁我", "爱", "你"], "我爱你", ["我", "爱", "你"]),
        (["▁", "我", "▁", "x"], " 我  x", ["", "我", "", "x"]),
        (["▁我", "<0xE9>", "<0xBE>", "<0x98>", "吃"], "我龘吃", ["我", "龘", "龘", "龘", "吃"]),
        (["▁你", "<unk>", "书"], "你龘龘书", ["你", "龘龘", "书"]),
        (["▁a", "▁", "<unk>", "▁b"], "a ☃☃ b", ["a", "", "☃☃", "b"]),
        (["▁a", "▁", "<unk>", "</s>"], "a ☃", ["a", "", "☃", ""]),
        (["▁of▁the", "▁x"], "of   the x", ["of   the", "x"]),
        # White space without a token, with and without byte tokens.
        (["▁我", "<0xE3>", "<0x80>", "<0x80>", "喜欢"], "我\u3000喜欢", ["我", "", "", "", "喜欢"]),
        (["▁I", "<0xC2>", "<0xA0>", "l", "ike", "▁it"], "I\u00a0like it", ["I", "", "", "l", "ike", "it"]),
        (["▁a", "<0x09>", "b"], "a\tb", ["a", "", "b"]),
        (["▁我", "<unk>", "喜欢"], "我\u3000喜欢", ["我", "\u3000", "喜欢"]),
        # Pieces of several bytes, of which some end within a character.
        (
            ["▁", "<0xE6>", "<0x88><0x91>", "<0xE7><0x88>", "<0xB1><0xE4><0xBD><0xA0>"],
            "我爱你",
            ["", "我", "我", "爱你", "爱你"],
        ),
        (["▁a", "<0xE6>", "b"], "a\ufffdb", ["a", "\ufffd", "b"]),
    ],
)
def test_token_spans_gives_the_characters_of_each_token(pieces: list[str], text: str, spelt: list[str]) -> None:
    assert [text[start:end] for start, end in token_spans(pieces, text)] == spelt


def test_words_are_found_in_their_order() -> None:
    assert locate_words(["a", "b", "a"], "ab a") == [(0, 1), (1, 2), (3, 4)]


def test_a_word_that_is_not_there_is_refused() -> None:
    with pytest.raises(TransduceError, match="`b` does not come next in `a c`"):
        locate_words(["a", "b"], "a c")


def test_overlap_counts_characters() -> None:
    words = locate_words(["ab", "c"], "abc")
    pieces = token_spans(["▁a", "bc", "</s>"], "abc")
    assert overlap(words, pieces).tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]


def test_no_token_reaches_over_the_end_of_a_word(translator: Translator) -> None:
    vocabulary, text = translator.tokenizer.source, "今天老师喜欢苹果。"
    words = locate_words(list(text), text)
    pieces = vocabulary.tokens(encode_within_words(vocabulary, text, words))
    assert [piece.replace("▁", "") for piece in pieces if piece != "▁"] == list(text)
    whole = locate_words([text], text)
    assert encode_within_words(vocabulary, text, whole) == vocabulary.encode(text)
