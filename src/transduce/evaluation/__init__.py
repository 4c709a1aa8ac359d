"""Evaluation: scores with their signatures, and significance tests for the difference between two systems."""

from transduce.evaluation.scores import Score, ScoreReport, score, tokenizer_for
from transduce.evaluation.significance import Comparison, MetricComparison, compare

__all__ = ["Comparison", "MetricComparison", "Score", "ScoreReport", "compare", "score", "tokenizer_for"]
