"""Score translations with reproducible signatures, and test whether the difference of two systems is significant."""

from transduce.evaluation.scores import MetricScore, ScoreReport, score, tokenizer_for
from transduce.evaluation.significance import Comparison, MetricComparison, compare

__all__ = ["Comparison", "MetricComparison", "MetricScore", "ScoreReport", "compare", "score", "tokenizer_for"]
