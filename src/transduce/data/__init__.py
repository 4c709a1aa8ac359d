"""Corpora as token ids on disk and in batches: prepared once, read in ranges, batched by length. Imports no torch."""

from transduce.data.batches import Batch, BatchPlan, Corpus
from transduce.data.holdout import HoldOutSettings
from transduce.data.id_files import EncodedSentences
from transduce.data.parts import CorpusCard
from transduce.data.prepared import CorpusStatistics, PreparedCorpus, prepare

__all__ = [
    "Batch",
    "BatchPlan",
    "Corpus",
    "CorpusCard",
    "CorpusStatistics",
    "EncodedSentences",
    "HoldOutSettings",
    "PreparedCorpus",
    "prepare",
]
