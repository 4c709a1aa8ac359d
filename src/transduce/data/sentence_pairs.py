"""Two stretches of text a row, with pieces hidden: what BERT is pretrained on (Devlin et al. 2019, section 3.1).

Half of the second stretches follow the first ones in the text, the others stand somewhere else. A row is
[CLS] first [SEP] second [SEP]. Batches are a pure function of (text, seed, epoch, position).
Legend: B rows, L pieces of a row, N sentences of the text.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch
from transduce.data.masking import Ids, MaskingSettings, draw_uniform, mask_pieces
from transduce.data.order import permutation
from transduce.errors import TransduceError
from transduce.text.marks import Marks

# Keys that keep the random numbers apart, from each other and from those of other modules.
_ROW_ORDER, _OFFSET, _STRETCHES, _MASKING = 31, 32, 33, 34
# [CLS], and [SEP] after each stretch.
PAIR_MARKS = 3


class SentenceStore(NamedTuple):
    """A text of documents: all sentences' pieces in a row. An empty sentence ends a document."""

    ids: NDArray[np.unsignedinteger]
    """Each sentence's pieces as they were prepared, in memory or mapped into it."""
    offsets: NDArray[np.int64]
    """Where each sentence begins, and the last one ends, (N + 1,)."""
    before: int = 0
    """How many pieces stand before each sentence's own."""
    after: int = 1
    """How many stand after them: the end symbol."""

    @property
    def lengths(self) -> Ids:
        """(N,) pieces of each sentence's own."""
        return np.diff(self.offsets) - (self.before + self.after)

    @property
    def begins(self) -> Ids:
        """(N,) where each sentence's own pieces begin."""
        return self.offsets[:-1] + self.before

    def read(self, start: int, stop: int) -> Ids:
        """The own pieces of sentences from start to stop."""
        part = self.part(start, stop)
        return _joined(self.ids, part.begins, part.lengths)

    def part(self, start: int, stop: int) -> "SentenceStore":
        """The sentences from start to stop as a text of their own."""
        return self._replace(offsets=self.offsets[start : stop + 1])


class PairSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How rows are made of a text."""

    length: int
    """Pieces of a row at most, special ones included: L."""
    rows: int
    """Rows of a batch: B."""
    seed: int
    next_sentence: bool = True
    """Two stretches a row; otherwise one, as RoBERTa has it."""
    masking: MaskingSettings = MaskingSettings()
    pad_id: int = 0


@dataclass(frozen=True, eq=False)
class SentencePairBatch(Batch):
    """A batch whose source is what the model reads and whose target is what is hidden in it, padding elsewhere."""

    # (B, L): 0 in the first stretch, 1 in the second one.
    token_types: NDArray[np.int64]
    # (B,): whether the second stretch follows the first one in the text; empty where there is one stretch.
    follows: NDArray[np.int64]


class _Row(NamedTuple):
    ids: Ids
    token_types: Ids
    follows: bool


def _joined(ids: NDArray[np.unsignedinteger], begins: Ids, lengths: Ids) -> Ids:
    parts = [ids[begin : begin + length] for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


class _Sentences(NamedTuple):
    """A text's sentences as an epoch reads them: a long one is several."""

    ids: NDArray[np.unsignedinteger]
    begins: Ids
    """Where each one's pieces begin in the text's, (N,)."""
    lengths: Ids
    """How many they are; an empty sentence ends a document."""
    places: Ids
    """Where they begin, counted in pieces of sentences alone."""
    filled: Ids
    """Which ones are not empty."""

    def read(self, start: int, stop: int) -> Ids:
        """The pieces of sentences from start to stop."""
        return _joined(self.ids, self.begins[start:stop], self.lengths[start:stop])

    def split(self, start: int, stop: int, draw: float) -> tuple[int, int]:
        """Where the second stretch begins and ends. A single sentence is followed by the next one, if there is any."""
        if stop - start > 1:
            return start + 1 + int(draw * (stop - start - 1)), stop
        follows = stop < len(self.lengths) and self.lengths[stop] > 0
        return stop, stop + int(follows)

    def elsewhere(self, start: int, stop: int, count: int, draw: float) -> tuple[int, int]:
        """As many sentences of another place of the text, as far as its document goes."""
        before, after = np.searchsorted(self.filled, (start, stop))
        others = len(self.filled) - (after - before)
        if not others:
            return start, start
        drawn = int(draw * others)
        first = int(self.filled[drawn if drawn < before else drawn + after - before])
        last = first + 1
        while last < min(first + count, len(self.lengths)) and self.lengths[last] > 0 and last != start:
            last += 1
        return first, last


class _Epoch(NamedTuple):
    number: int
    sentences: _Sentences
    first: Ids
    """The sentence that each row begins with."""
    stop: Ids
    """The sentence that it ends before."""
    order: Ids
    """The rows in the order in which they are read."""


class SentencePairPlan:
    """All batches of all epochs, each reachable at once.

    An epoch goes through the text once, and cuts it into rows at other places than the last one. A sentence that is
    longer than a row is cut where rows end, and in the middle of those of two stretches, so that all of it is read.
    What is left out is the surplus of a row whose last sentence is too long for it, and what a stretch from elsewhere
    stands in for: other pieces in each epoch.
    """

    def __init__(
        self,
        text: SentenceStore,
        marks: Marks,
        settings: PairSettings,
        ordinary: Ids,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Counts the batches of an epoch.

        Args:
            text: sentences in their order.
            marks: the special pieces.
            settings: how rows are made.
            ordinary: the pieces that hidden ones are replaced by at random.
            share: (r, n): every n-th row of a batch, from the r-th on.

        Raises:
            TransduceError: there are fewer than four sentences, so that no stretch could stand somewhere else. The
                parts of a long one count.
        """
        self._text, self._marks, self._settings, self._ordinary, self._share = text, marks, settings, ordinary, share
        self._lengths = text.lengths
        self._before = np.cumsum(self._lengths) - self._lengths
        sentences = self._sentences(0)
        if len(sentences.filled) < 4:
            raise TransduceError(
                "A text to pretrain or to validate on needs four sentences at least, long ones counted as several, but "
                f"this one has {int((self._lengths > 0).sum())} of {int(self._lengths.sum())} pieces in all: give more "
                "text."
            )
        # The offset decides where stretches are cut, and so how many there are; every epoch has as many as the first.
        self.rows = len(self._cut(sentences)[0])
        self._epoch: _Epoch | None = None

    @property
    def _room(self) -> int:
        """Pieces of text in a row."""
        return self._settings.length - PAIR_MARKS + (not self._settings.next_sentence)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(self.rows / self._settings.rows)

    def batch(self, epoch: int, position: int) -> SentencePairBatch:
        """The batch at a position, from 0 to ``len(self) - 1``, of an epoch."""
        seed, size = self._settings.seed, self._settings.rows
        laid_out = self._laid_out(epoch)
        chosen = laid_out.order[position * size : (position + 1) * size]
        draws = draw_uniform((3, len(chosen)), seed, _STRETCHES, epoch, position)
        hiding = draw_uniform((3, len(chosen), self._settings.length), seed, _MASKING, epoch, position)
        own = np.arange(len(chosen))[self._share[0] :: self._share[1]]
        shown = own if len(own) else np.zeros(1, np.int64)
        rows = [self._row(laid_out, int(chosen[n]), draws[:, n]) for n in shown]
        return self._assemble(rows, hiding[:, shown], chosen[own])

    def largest(self) -> SentencePairBatch:
        """A batch as large as any, of an id without meaning."""
        size = (min(self._settings.rows, self.rows), self._settings.length)
        ids, pad = np.full(size, self._ordinary[0], np.int64), self._settings.pad_id
        labels = np.where(np.arange(size[1]) < max(1, round(size[1] * self._settings.masking.share)), ids, pad)
        follows = np.zeros(size[0] * self._settings.next_sentence, np.int64)
        return SentencePairBatch(
            ids, labels, np.full(size[0], -1), ids.size, int((labels != pad).sum()), np.zeros_like(ids), follows
        )

    def _laid_out(self, number: int) -> _Epoch:
        """An epoch's sentences and rows."""
        if self._epoch is None or self._epoch.number != number:
            seed = self._settings.seed
            offset = int(permutation(self._room, seed, _OFFSET, number)[0]) if number else 0
            sentences = self._sentences(offset)
            first, stop = self._cut(sentences)
            order = permutation(len(first), seed, _ROW_ORDER, number)
            # Every epoch has as many rows as the first: a few are left out or come twice.
            self._epoch = _Epoch(number, sentences, first, stop, np.resize(order, self.rows))
        return self._epoch

    def _sentences(self, offset: int) -> _Sentences:
        """The text's sentences, the long ones cut where a row's stretches end if they fill it evenly."""
        stretches, room = 1 + self._settings.next_sentence, self._room
        begin = self._before + offset
        is_long = self._lengths > room
        of_first, of_last = (place * stretches // room for place in (begin, begin + self._lengths - 1))
        times = np.where(is_long, of_last - of_first, 0) + 1
        owner = np.repeat(np.arange(len(times)), times)
        part = np.arange(len(owner)) - (np.cumsum(times) - times)[owner]
        # The k-th stretch begins at ⌈k · room / stretches⌉.
        places = np.where(part > 0, -(-(of_first[owner] + part) * room // stretches), begin[owner])
        lengths = np.diff(places, append=offset + self._lengths.sum())
        begins = self._text.begins[owner] + places - begin[owner]
        return _Sentences(self._text.ids, begins, lengths, places, np.flatnonzero(lengths > 0))

    def _cut(self, sentences: _Sentences) -> tuple[Ids, Ids]:
        """Runs of sentences (start, stop) of about a row's length, none across documents."""
        filled = sentences.filled
        row, document = sentences.places[filled] // self._room, np.cumsum(sentences.lengths == 0)[filled]
        is_new = np.ones(len(filled), bool)
        is_new[1:] = (np.diff(row) > 0) | (np.diff(document) > 0)
        starts = np.flatnonzero(is_new)
        return filled[starts], filled[np.append(starts[1:], len(filled)) - 1] + 1

    def _row(self, epoch: _Epoch, number: int, draw: NDArray[np.float64]) -> _Row:
        """A row of an epoch."""
        text, start, stop = epoch.sentences, int(epoch.first[number]), int(epoch.stop[number])
        if not self._settings.next_sentence:
            ids = self._framed([text.read(start, stop)[: self._room]])
            return _Row(ids, np.zeros_like(ids), follows=True)
        middle, stop = text.split(start, stop, draw[0])
        follows = bool(draw[1] < 0.5) and stop > middle
        second = (middle, stop) if follows else text.elsewhere(start, stop, max(1, stop - middle), draw[2])
        one, two = self._trimmed(text.read(start, middle), text.read(*second))
        types = np.repeat([0, 1], [len(one) + 2, len(two) + 1])
        return _Row(self._framed([one, two]), types, follows)

    def _trimmed(self, one: Ids, two: Ids) -> tuple[Ids, Ids]:
        """Both stretches in the room that there is: the end of the first, the beginning of the second."""
        kept = max(self._room // 2, self._room - len(two))
        one = one[-kept:]
        return one, two[: self._room - len(one)]

    def _framed(self, stretches: list[Ids]) -> Ids:
        parts: list[Ids] = [np.array([self._marks.cls])]
        for stretch in stretches:
            parts += [stretch, np.array([self._marks.sep])]
        return np.concatenate(parts)

    def _assemble(self, rows: list[_Row], hiding: NDArray[np.float64], indices: Ids) -> SentencePairBatch:
        """Rows padded to the longest one, with pieces hidden; a process without rows has one that counts nothing."""
        pad = self._settings.pad_id
        width = max(len(row.ids) for row in rows)
        ids, types = (np.full((len(rows), width), fill, np.int64) for fill in (pad, 0))
        for number, row in enumerate(rows):
            ids[number, : len(row.ids)], types[number, : len(row.ids)] = row.ids, row.token_types
        special = np.isin(ids, (pad, self._marks.cls, self._marks.sep, self._marks.mask))
        masked = mask_pieces(
            ids,
            ~special,
            hiding[:, :, :width],
            self._settings.masking,
            mask_id=self._marks.mask,
            pad_id=pad,
            ordinary=self._ordinary,
        )
        labels = masked.labels if len(indices) else np.full_like(ids, pad)
        follows = np.array([row.follows for row in rows[: len(indices)]] * self._settings.next_sentence, np.int64)
        return SentencePairBatch(
            masked.ids, labels, indices, int((ids != pad).sum()), int((labels != pad).sum()), types, follows
        )
