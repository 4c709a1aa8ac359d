"""ROUGE: how much of a summary is in the reference, and of the reference in the summary (Lin 2004).

Words are runs of letters, with their marks, and digits in lower case, without stemming. Of each text the F1 of
precision and recall is taken, and the mean over all texts: of single words (ROUGE-1), of pairs of neighbours (ROUGE-2),
and of the longest common subsequence (ROUGE-L).
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from transduce.evaluation.scores import corresponding_lines
from transduce.text.languages import is_of_word


class RougeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Means of F1 over all texts, in percent."""

    texts: int
    rouge_1: float
    rouge_2: float
    rouge_l: float

    def __str__(self) -> str:
        return f"ROUGE-1 {self.rouge_1:.1f} · ROUGE-2 {self.rouge_2:.1f} · ROUGE-L {self.rouge_l:.1f}"


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> RougeReport:
    """Compares summaries with references, text by text.

    Raises:
        TransduceError: there are more of the one than of the other, or none.
    """
    hypotheses, references = corresponding_lines({"hypotheses": hypotheses, "references": references})
    pairs = [(_words(one), _words(other)) for one, other in zip(hypotheses, references, strict=True)]
    return RougeReport(
        texts=len(pairs),
        rouge_1=_mean([_overlap(one, other, 1) for one, other in pairs]),
        rouge_2=_mean([_overlap(one, other, 2) for one, other in pairs]),
        rouge_l=_mean([_f1(_longest_common(one, other), len(one), len(other)) for one, other in pairs]),
    )


def _words(text: str) -> list[str]:
    return "".join(letter if is_of_word(letter) else " " for letter in text.lower()).split()


def _overlap(one: Sequence[str], other: Sequence[str], size: int) -> float:
    """F1 of runs of words, each counted as often as both texts have it."""
    ours, theirs = (Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (one, other))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Words of the longest sequence that both texts have in the same order, with or without others between them."""
    row = [0] * (len(other) + 1)
    for word in one:
        before, row = row, [0]
        for place, candidate in enumerate(other):
            row.append(before[place] + 1 if word == candidate else max(before[place + 1], row[place]))
    return row[-1]


def _f1(common: int, ours: int, theirs: int) -> float:
    return 2.0 * common / (ours + theirs) if common else 0.0


def _mean(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)
