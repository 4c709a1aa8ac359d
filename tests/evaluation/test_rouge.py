"""Test ROUGE in cases counted by hand."""

import random

import pytest

from transduce.errors import TransduceError
from transduce.evaluation.scores import rouge


def test_rouge_1_2_and_l_equal_hand_computed_ones() -> None:
    # Words in common: the (once), cat, sat, mat; of 5 and 6. Pairs in common: "the cat", "cat sat"; of 4 and 5.
    # Longest common subsequence: the cat sat mat.
    report = rouge(["The cat sat, mat there."], ["the cat sat on the mat"])
    assert report.rouge_1 == pytest.approx(100.0 * 2 * 4 / (5 + 6))
    assert report.rouge_2 == pytest.approx(100.0 * 2 * 2 / (4 + 5))
    assert report.rouge_l == pytest.approx(100.0 * 2 * 4 / (5 + 6))


def test_repeated_words_match_as_often_as_both_texts_have_them() -> None:
    report = rouge(["a a a b"], ["a a c"])
    assert report.rouge_1 == pytest.approx(100.0 * 2 * 2 / (4 + 3))
    assert report.rouge_2 == pytest.approx(100.0 * 2 * 1 / (3 + 2))


def test_order_counts_for_the_longest_subsequence_alone() -> None:
    report = rouge(["d c b a"], ["a b c d"])
    assert report.rouge_1 == 100.0
    assert report.rouge_2 == 0.0
    assert report.rouge_l == pytest.approx(25.0)


def test_the_longest_subsequence_equals_that_of_a_table() -> None:
    chooser = random.Random(4)
    for _ in range(200):
        one, other = ([chooser.choice("abcde") for _ in range(chooser.randint(1, 90))] for _ in range(2))
        table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
        for i, word in enumerate(one):
            for j, candidate in enumerate(other):
                table[i + 1][j + 1] = table[i][j] + 1 if word == candidate else max(table[i][j + 1], table[i + 1][j])
        expected = 100.0 * 2 * table[-1][-1] / (len(one) + len(other))
        assert rouge([" ".join(one)], [" ".join(other)]).rouge_l == pytest.approx(expected)


def test_vowel_signs_belong_to_words() -> None:
    assert rouge(["वह जाता है"], ["वह जाती है"]).rouge_1 == pytest.approx(100.0 * 2 / 3)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "count"),
    [
        ("我喜欢喝茶。", "我喜欢喝咖啡", (4, 5, 6)),
        ("猫はGPT3が好き", "犬もGPT3が好き", (4, 6, 6)),
        ("กินข้าว", "กินน้ำ", (4, 7, 6)),  # ก ิ น and the tone mark
    ],
)
def test_characters_are_the_words_of_scripts_without_spaces(
    hypothesis: str, reference: str, count: tuple[int, int, int]
) -> None:
    common, ours, theirs = count
    report = rouge([hypothesis], [reference])
    assert report.rouge_1 == pytest.approx(100.0 * 2 * common / (ours + theirs))
    assert report.rouge_l == report.rouge_1
    assert report.rouge_2 > 0.0
    assert str(report).endswith("(of characters where the script has no spaces)")


def test_the_mean_is_over_texts_and_an_empty_one_has_nothing() -> None:
    report = rouge(["same words", ""], ["same words", "other words"])
    assert (report.texts, report.rouge_1, report.rouge_l) == (2, 50.0, 50.0)
    assert str(report) == "ROUGE-1 50.0 · ROUGE-2 50.0 · ROUGE-L 50.0"


def test_unequal_numbers_of_hypotheses_and_references_are_refused() -> None:
    with pytest.raises(TransduceError, match="2 hypotheses and 1 reference:"):
        rouge(["a", "b"], ["a"])


def test_joiners_belong_to_words_and_soft_hyphens_do_not_count() -> None:
    assert rouge(["می\u200cبیند"], ["بیند"]).rouge_1 == 0
    assert rouge(["Haus\u00adtür"], ["Haustür"]).rouge_1 == 100
    assert rouge(["👩\u200d💻 a"], ["a"]).rouge_1 == 100
