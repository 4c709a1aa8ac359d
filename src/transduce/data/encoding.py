"""Tokenization of many sentences, in which each word is tokenized only once if the vocabulary permits.

Nine of ten words of a corpus have occurred before. Looking a word up takes a tenth of the time of tokenizing it.
"""

import unicodedata
from collections.abc import Sequence
from itertools import chain

import numpy as np

from transduce.data.id_files import IdRun
from transduce.text.vocabulary import Vocabulary, tokenizes_words_independently

# Maximum number of words in the table, which is then cleared; this affects only the speed.
_MAX_WORDS = 300_000
_END = "\n"


class SentenceEncoder:
    """A tokenizer of sentences without line feeds, like ``vocabulary.encode_batch``, which appends the end symbol."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._dtype: np.dtype[np.unsignedinteger] = np.dtype("u2" if vocabulary.size <= 1 << 16 else "u4")
        self._words = (
            _WordTable(vocabulary, self._dtype) if tokenizes_words_independently(vocabulary.model_bytes) else None
        )

    def encode(self, sentences: Sequence[str]) -> IdRun:
        """Return the token ids of all sentences, in order."""
        if not sentences:
            return IdRun(np.zeros(0, self._dtype), np.zeros(1, np.int64))
        text = f"{_END}".join(sentences)
        if self._words is None or "▁" in text:
            return self._run(self._vocabulary.encode_batch(sentences))
        if self._vocabulary.nfc:
            text = unicodedata.normalize("NFC", text)
        # The end symbol becomes a separate word.
        return self._words.cut(f"{text}{_END}".replace(_END, f" {_END} ").split(" "))

    def _run(self, sentences: list[list[int]]) -> IdRun:
        before, after = self._vocabulary.before, self._vocabulary.after
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences)) + len(before) + len(after)
        flat = chain.from_iterable(chain(before, ids, after) for ids in sentences)
        return IdRun(np.fromiter(flat, self._dtype, int(lengths.sum())), np.concatenate(([0], np.cumsum(lengths))))


class _WordTable:
    """A table of numbered words, with the token ids of each word as a slice of one array."""

    def __init__(self, vocabulary: Vocabulary, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._vocabulary = vocabulary
        self._dtype = dtype
        self._forget()

    def cut(self, words: list[str]) -> IdRun:
        """Return the ids of all words, divided into sentences at the word that represents a sentence's end."""
        if len(self._numbers) > _MAX_WORDS:
            self._forget()
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int32, len(words))
        self._cut_new_words()
        lengths = self._lengths[numbers]
        stops = np.cumsum(lengths)
        positions = np.repeat(self._starts[numbers] - (stops - lengths), lengths) + np.arange(int(stops[-1]))
        ends = stops[numbers == 0]
        return IdRun(self._tokens[positions], np.concatenate(([0], ends)))

    def _forget(self) -> None:
        self._numbers = _Numbers({_END: 0})
        self._tokens = np.array([self._vocabulary.eos_id], self._dtype)
        self._lengths = np.ones(1, np.int64)
        self._starts = np.zeros(1, np.int64)

    def _cut_new_words(self) -> None:
        new = self._numbers.take_new()
        if not new:
            return
        cut = self._vocabulary.encode_batch(new)
        lengths = np.fromiter(map(len, cut), np.int64, len(cut))
        tokens = np.fromiter(chain.from_iterable(cut), self._dtype, int(lengths.sum()))
        starts = len(self._tokens) + np.cumsum(lengths) - lengths
        self._tokens = np.concatenate((self._tokens, tokens))
        self._lengths = np.concatenate((self._lengths, lengths))
        self._starts = np.concatenate((self._starts, starts))


class _Numbers(dict[str, int]):
    """A dictionary that assigns a number to each word at its first occurrence."""

    def __init__(self, initial: dict[str, int]) -> None:
        super().__init__(initial)
        self._new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self._new.append(word)
        return number

    def take_new(self) -> list[str]:
        """Return the words numbered since the last call, in the order of their numbers."""
        new, self._new = self._new, []
        return new
