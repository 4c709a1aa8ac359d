"""What translations are worth: scores with their signatures, and whether two systems really differ."""

from transduce.evaluation.scores import Score, ScoreReport, score
from transduce.evaluation.significance import Comparison, MetricComparison, compare
from transduce.evaluation.tokenizers import tokenizer_for

__all__ = ["Comparison", "MetricComparison", "Score", "ScoreReport", "compare", "score", "tokenizer_for"]
