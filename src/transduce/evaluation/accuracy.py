"""Accuracy and macro F1 of predicted labels."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from transduce.errors import TransduceError


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of predicted labels, in percent."""

    texts: int
    """The number of texts."""
    right: int
    """The number of texts with the right label."""
    accuracy: float
    """Share of the texts with the right label."""
    macro_f1: float
    """The mean over labels of each label's F1, so rare labels count as much as frequent ones; as in scikit-learn."""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.2f} % ({self.right:,} of {self.texts:,} texts), macro F1 {self.macro_f1:.2f}"


def score_labels(predicted: Sequence[str], right: Sequence[str]) -> AccuracyReport:
    """Compute accuracy and macro F1.

    Args:
        predicted: a label for each text.
        right: the right labels.

    Raises:
        TransduceError: the numbers of labels differ, or there are none.
    """
    if len(predicted) != len(right) or not right:
        raise TransduceError(
            f"Every text needs a predicted and a right label, but there are {len(predicted):,} and {len(right):,}: "
            "provide one of each."
        )
    hits = Counter(guess for guess, label in zip(predicted, right, strict=True) if guess == label)
    predicted_counts, right_counts = Counter(predicted), Counter(right)
    scores = [
        2 * hits[label] / (predicted_counts[label] + right_counts[label])
        for label in sorted(predicted_counts | right_counts)
    ]
    return AccuracyReport(
        texts=len(right),
        right=hits.total(),
        accuracy=100.0 * hits.total() / len(right),
        macro_f1=100.0 * sum(scores) / len(scores),
    )
