"""Test accuracy and macro F1 of labels in cases solved by hand."""

import pytest

from transduce.errors import TransduceError
from transduce.evaluation.label_scores import score_labels
from transduce.ui_language import columns_of


def test_accuracy_and_macro_f1_equal_hand_computed_ones() -> None:
    # a: 2 right of 3, predicted 3 times; b: 1 of 1, predicted once; c: never predicted.
    report = score_labels(["a", "a", "b", "a", "d"], ["a", "a", "b", "c", "a"])
    assert (report.texts, report.right) == (5, 3)
    assert report.accuracy == pytest.approx(60.0)
    assert report.macro_f1 == pytest.approx(100 * (2 * 2 / 6 + 1.0 + 0.0 + 0.0) / 4)  # d was given and never right
    assert "accuracy 60.00 % (3 of 5 texts), macro F1 41.67 %" in str(report)


def test_the_table_of_chinese_labels_is_aligned() -> None:
    lines = score_labels(["体育", "文化新闻", "体育"], ["体育", "体育", "文化新闻"]).table().split("\n")
    scores, confusion = lines[1:3], lines[-3:]
    assert len({columns_of(line) for line in scores}) == 1
    assert len({columns_of(line) for line in confusion}) == 1


def test_the_table_of_long_labels_has_at_most_100_columns() -> None:
    labels = [f"{'label ' * length}{length}" for length in range(1, 13)]
    table = score_labels(labels, labels[1:] + labels[:1]).table()
    assert max(map(len, table.splitlines())) <= 100
    heading, *rows = table.split("(columns)\n")[1].splitlines()
    assert heading.split() == [str(number) for number in range(1, 13)]
    assert [row.split()[0] for row in rows] == heading.split()
    many = [str(number) * 3 for number in range(20)] * 1_000
    assert max(map(len, score_labels(many, many).table().splitlines())) <= 100


@pytest.mark.parametrize(("predicted", "right"), [(["a"], []), ([], []), (["a"], ["a", "b"])])
def test_unequal_numbers_of_predicted_and_right_labels_are_refused(predicted: list[str], right: list[str]) -> None:
    with pytest.raises(TransduceError, match=r"needs a predicted and a right label, but there are"):
        score_labels(predicted, right)
