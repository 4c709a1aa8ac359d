"""Batches of texts with labels, of the text or of its words, as a pure function of (texts, seed, epoch, position).

Legend: B texts of a batch, S tokens of a text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, Indices, permutation
from transduce.data.id_files import IdRun
from transduce.text.special_tokens import SpecialTokens

# Keys that make the random orders independent of each other and of those in other modules.
_TEXT_ORDER, _BATCH_ORDER = 41, 42
# The texts of this many batches are sorted by length together, so that a batch has little padding.
_BATCHES_SORTED = 16


@dataclass(frozen=True, eq=False)
class LabeledBatch(Batch):
    """A batch with texts (B, S) as source, and as target their class indices (B, 1) or the labels of tokens (B, S)."""


class LabeledTexts:
    """Tokenized texts with their special tokens, and the class index of each text."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        labels: Sequence[int],
        marks: SpecialTokens,
        length: int,
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Store the texts, truncated at the end to `length` tokens including special tokens.

        Args:
            rows: the token ids of each text.
            labels: the class index of each text.
            marks: the special tokens.
            length: the maximum number of tokens.
            weights: the weight of each text in the loss, (N,); None: 1.
        """
        framed = [marks.frame(row, length) for row in rows]
        self.lengths = np.array([len(row) for row in framed], np.int64)
        self.labels = np.array(labels, np.int64)
        self.weights = weights
        ids = np.fromiter(chain.from_iterable(framed), np.uint32, int(self.lengths.sum()))
        self._texts = IdRun(ids, np.concatenate(([0], np.cumsum(self.lengths))))

    def __len__(self) -> int:
        """Return the number of labeled texts."""
        return len(self.lengths)

    def batch(self, numbers: Indices, pad_id: int) -> LabeledBatch:
        """Return the texts with these indices and their classes as a batch, padded at the right."""
        ids, tokens = self._texts.padded(numbers, pad_id)  # (B, S)
        labels: NDArray[np.int64] = self.labels[numbers][:, None]
        weights = None if self.weights is None else self.weights[numbers]
        return LabeledBatch(ids, labels, numbers, tokens, len(numbers), weights=weights)

    def in_order(self, rows: int, pad_id: int) -> list[LabeledBatch]:
        """Return batches of `rows` texts that contain every text once, sorted by length."""
        order = np.argsort(self.lengths, kind="stable")
        return [self.batch(order[start : start + rows], pad_id) for start in range(0, len(order), rows)]


NO_LABEL = -1
"""The label of a token that is not the first of a word, in the target of a batch of tagged sentences."""


class WordTokens(NamedTuple):
    """The tokens of consecutive words of a sentence, as an encoder reads them."""

    sentence: int
    """Index of the sentence."""
    first_word: int
    """Index of the first of these words in the sentence."""
    ids: list[int]
    """Token ids, including special tokens."""
    positions: list[int]
    """The position of each word's first token among `ids`."""


class TaggedTexts(LabeledTexts):
    """Tokenized sentences with special tokens, in which the first token of each word has the word's label."""

    def __init__(self, rows: Sequence[WordTokens], labels: Sequence[Sequence[int]]) -> None:
        """Store tokenized sentences with the labels of their words.

        Args:
            rows: the tokens of each sentence, or of a part of a long one.
            labels: the labels of the words of each sentence.
        """
        self.rows = rows
        self.lengths = np.array([len(row.ids) for row in rows], np.int64)
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        self._texts = IdRun(
            np.fromiter(chain.from_iterable(row.ids for row in rows), np.uint32, int(offsets[-1])), offsets
        )
        shifted = np.zeros(int(offsets[-1]), np.uint32)  # 0: no label
        for row, start in zip(rows, offsets.tolist(), strict=False):
            words = labels[row.sentence][row.first_word : row.first_word + len(row.positions)]
            shifted[start + np.array(row.positions)] = np.array(words) - NO_LABEL
        self._shifted = IdRun(shifted, offsets)

    def batch(self, numbers: Indices, pad_id: int) -> LabeledBatch:
        """Return the sentences with these indices and their labels, (B, S) each, as a batch padded at the right."""
        ids, tokens = self._texts.padded(numbers, pad_id)  # (B, S)
        shifted, _ = self._shifted.padded(numbers, 0)
        labels = shifted + NO_LABEL  # (B, S)
        return LabeledBatch(ids, labels, numbers, tokens, int((labels != NO_LABEL).sum()))


class LabeledPlan:
    """A plan of all batches of all epochs with random access; an epoch contains every text once."""

    def __init__(
        self, texts: LabeledTexts, *, rows: int, seed: int, pad_id: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        """Plan batches of texts.

        Args:
            texts: the texts to batch.
            rows: texts per batch.
            seed: the seed of the random orders.
            pad_id: the padding id.
            share: (r, n): take every n-th text of a batch, starting with text r.
        """
        self._texts, self._rows, self._seed, self._pad_id, self._share = texts, rows, seed, pad_id, share
        self._epoch: tuple[int, list[Indices]] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(len(self._texts) / self._rows)

    def batch(self, epoch: int, position: int) -> LabeledBatch:
        """Return the batch at a position of an epoch, counted from 0."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._batches_of_epoch(epoch)
        all_rows = self._epoch[1][position]
        share_rows = all_rows[self._share[0] :: self._share[1]]
        if len(share_rows):
            return self._texts.batch(share_rows, self._pad_id)
        stand_in = self._texts.batch(all_rows[:1], self._pad_id)
        weights = None if stand_in.weights is None else stand_in.weights[:0]
        return replace(stand_in, target=stand_in.target[:0], indices=share_rows, target_tokens=0, weights=weights)

    def largest_batches(self) -> LabeledBatch:
        """Return a batch of the longest texts, which needs the most memory."""
        order = np.argsort(self._texts.lengths, kind="stable")
        return self._texts.batch(order[-self._rows :], self._pad_id)

    def _batches_of_epoch(self, epoch: int) -> list[Indices]:
        """Return the indices of the texts in each batch of an epoch: texts of similar length, batches at random."""
        order = permutation(len(self._texts), self._seed, _TEXT_ORDER, epoch)
        many = self._rows * _BATCHES_SORTED
        for start in range(0, len(order), many):
            part = order[start : start + many]
            order[start : start + many] = part[np.argsort(self._texts.lengths[part], kind="stable")]
        batches = [order[start : start + self._rows] for start in range(0, len(order), self._rows)]
        return [batches[number] for number in permutation(len(batches), self._seed, _BATCH_ORDER, epoch)]
