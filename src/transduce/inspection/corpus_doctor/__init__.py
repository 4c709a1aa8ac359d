"""Check a parallel corpus for common faults before training on it."""

from transduce.inspection.corpus_doctor.examination import examine_corpus
from transduce.inspection.corpus_doctor.report import CorpusReport, Example, Finding

__all__ = ["CorpusReport", "Example", "Finding", "examine_corpus"]
