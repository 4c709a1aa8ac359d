"""How many texts were given their right labels."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from transduce.errors import TransduceError


class AccuracyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures in percent."""

    texts: int
    right: int
    accuracy: float
    """Share of the texts with the right label."""
    macro_f1: float
    """F1 of each label that was right or was given, by itself, then the mean: rare labels count as much as frequent
    ones. scikit-learn's."""

    def __str__(self) -> str:
        return f"accuracy {self.accuracy:.2f} % ({self.right:,} of {self.texts:,} texts), macro F1 {self.macro_f1:.2f}"


def score_labels(predicted: Sequence[str], right: Sequence[str]) -> AccuracyReport:
    """Accuracy and macro F1.

    Args:
        predicted: a label for each text.
        right: the right ones.

    Raises:
        TransduceError: there are not as many on both sides, or none at all.
    """
    if len(predicted) != len(right) or not right:
        raise TransduceError(
            f"Every text needs a predicted and a right label, but there are {len(predicted):,} and {len(right):,}: "
            "give one of each."
        )
    hits = Counter(mine for mine, theirs in zip(predicted, right, strict=True) if mine == theirs)
    said, there = Counter(predicted), Counter(right)
    scores = [2 * hits[label] / (said[label] + there[label]) for label in sorted(said | there)]
    return AccuracyReport(
        texts=len(right),
        right=hits.total(),
        accuracy=100.0 * hits.total() / len(right),
        macro_f1=100.0 * sum(scores) / len(scores),
    )
