"""Evaluation: scores with their signatures, and significance tests for the difference between two systems."""

from transduce.evaluation.scores import Score, ScoreReport, score
from transduce.evaluation.significance import Comparison, MetricComparison, compare
from transduce.evaluation.tokenizers import tokenizer_for

__all__ = ["Comparison", "MetricComparison", "Score", "ScoreReport", "compare", "score", "tokenizer_for"]
