"""Labelled texts in batches: a pure function of (texts, seed, epoch, position).

Legend: B texts of a batch, S pieces of a text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch
from transduce.data.idfiles import IdRun
from transduce.data.order import Indices, permutation
from transduce.text.marks import Marks

# Keys that keep the random orders apart, from each other and from those of other modules.
_TEXT_ORDER, _BATCH_ORDER = 41, 42
# So many batches' texts are sorted by length together, so that a batch has little padding.
_BATCHES_SORTED = 16


@dataclass(frozen=True, eq=False)
class LabelledBatch(Batch):
    """A batch whose source is the texts and whose target is their classes' numbers, (B, 1)."""


class LabelledTexts:
    """Texts as pieces between their marks, and the number of each one's class."""

    def __init__(self, rows: Sequence[Sequence[int]], labels: Sequence[int], marks: Marks, length: int) -> None:
        """Texts longer than `length` pieces, marks included, lose their end."""
        framed = [marks.frame(row, length) for row in rows]
        self.lengths = np.array([len(row) for row in framed], np.int64)
        self.labels = np.array(labels, np.int64)
        ids = np.fromiter(chain.from_iterable(framed), np.uint32, int(self.lengths.sum()))
        self._texts = IdRun(ids, np.concatenate(([0], np.cumsum(self.lengths))))

    def __len__(self) -> int:
        """How many there are."""
        return len(self.labels)

    def batch(self, numbers: Indices, pad_id: int) -> LabelledBatch:
        """Some of them, padded at the right."""
        ids, tokens = self._texts.padded(numbers, pad_id)  # (B, S)
        labels: NDArray[np.int64] = self.labels[numbers][:, None]
        return LabelledBatch(ids, labels, numbers, tokens, len(numbers))

    def in_order(self, rows: int, pad_id: int) -> list[LabelledBatch]:
        """All of them once, by length."""
        order = np.argsort(self.lengths, kind="stable")
        return [self.batch(order[start : start + rows], pad_id) for start in range(0, len(order), rows)]


class LabelledPlan:
    """All batches of all epochs, each reachable at once; an epoch has every text once."""

    def __init__(
        self, texts: LabelledTexts, *, rows: int, seed: int, pad_id: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        """
        Args:
            texts: what is dealt into batches.
            rows: texts of a batch.
            seed: chooses the orders.
            pad_id: fills short rows.
            share: (r, n): every n-th text of a batch, from the r-th on.
        """
        self._texts, self._rows, self._seed, self._pad_id, self._share = texts, rows, seed, pad_id, share
        self._epoch: tuple[int, list[Indices]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self._texts) / self._rows)

    def batch(self, epoch: int, position: int) -> LabelledBatch:
        """The batch at a position of an epoch."""
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._dealt(epoch)
        whole = self._epoch[1][position]
        own = whole[self._share[0] :: self._share[1]]
        if len(own):
            return self._texts.batch(own, self._pad_id)
        shown = self._texts.batch(whole[:1], self._pad_id)
        return LabelledBatch(shown.source, shown.target[:0], own, shown.source_tokens, 0)

    def largest(self) -> LabelledBatch:
        """A batch of the longest texts."""
        order = np.argsort(self._texts.lengths, kind="stable")
        return self._texts.batch(order[-self._rows :], self._pad_id)

    def _dealt(self, epoch: int) -> list[Indices]:
        """The texts of each batch of an epoch."""
        order = permutation(len(self._texts), self._seed, _TEXT_ORDER, epoch)
        many = self._rows * _BATCHES_SORTED
        for start in range(0, len(order), many):
            part = order[start : start + many]
            order[start : start + many] = part[np.argsort(self._texts.lengths[part], kind="stable")]
        batches = [order[start : start + self._rows] for start in range(0, len(order), self._rows)]
        return [batches[place] for place in permutation(len(batches), self._seed, _BATCH_ORDER, epoch)]
