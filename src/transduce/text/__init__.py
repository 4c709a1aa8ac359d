"""Read text and convert it to token ids: corpora, filters of sentence pairs, tokenization. Imports no torch."""

from transduce.text.corpus import CorpusFiles, Pair, read_pairs
from transduce.text.files import LineNotes, decode_lines, read_lines
from transduce.text.filters import FilterReport, FilterSettings
from transduce.text.languages import language_of, valid_language
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary

__all__ = [
    "CorpusFiles",
    "FilterReport",
    "FilterSettings",
    "LineNotes",
    "Pair",
    "Tokenizer",
    "TokenizerSettings",
    "Vocabulary",
    "decode_lines",
    "language_of",
    "read_lines",
    "read_pairs",
    "valid_language",
]
