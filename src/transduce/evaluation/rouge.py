"""ROUGE scores of summaries against references (Lin 2004).

Words are runs of letters, combining marks and digits in lower case, without stemming. Scores are means over texts of
the F1 of single words (ROUGE-1), of bigrams (ROUGE-2), and of the longest common subsequence (ROUGE-L).
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from transduce.evaluation.scores import aligned_lines
from transduce.text.languages import is_word_character


class RougeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Means of F1 over all texts, in percent."""

    texts: int
    rouge_1: float
    rouge_2: float
    rouge_l: float

    def __str__(self) -> str:
        return f"ROUGE-1 {self.rouge_1:.1f} · ROUGE-2 {self.rouge_2:.1f} · ROUGE-L {self.rouge_l:.1f}"


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> RougeReport:
    """Score summaries against references.

    Raises:
        TransduceError: the numbers of texts differ, or there are none.
    """
    hypotheses, references = aligned_lines({"hypotheses": hypotheses, "references": references})
    pairs = [(_words(one), _words(other)) for one, other in zip(hypotheses, references, strict=True)]
    return RougeReport(
        texts=len(pairs),
        rouge_1=_mean([_overlap(one, other, 1) for one, other in pairs]),
        rouge_2=_mean([_overlap(one, other, 2) for one, other in pairs]),
        rouge_l=_mean([_f1(_longest_common(one, other), len(one), len(other)) for one, other in pairs]),
    )


def _words(text: str) -> list[str]:
    return "".join(letter if is_word_character(letter) else " " for letter in text.lower()).split()


def _overlap(one: Sequence[str], other: Sequence[str], size: int) -> float:
    """Return the F1 score of word n-grams, each counted as often as it occurs in both texts."""
    ours, theirs = (Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (one, other))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of words."""
    row = [0] * (len(other) + 1)
    for word in one:
        before, row = row, [0]
        for position, candidate in enumerate(other):
            row.append(before[position] + 1 if word == candidate else max(before[position + 1], row[position]))
    return row[-1]


def _f1(common: int, ours: int, theirs: int) -> float:
    return 2.0 * common / (ours + theirs) if common else 0.0


def _mean(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)
