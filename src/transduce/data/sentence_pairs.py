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
from transduce.data.masking import Flags, Ids, MaskingSettings, draw_uniform, hidden_counts, mask_pieces
from transduce.data.order import permutation
from transduce.errors import TransduceError
from transduce.text.marks import Marks

# Keys that keep the random numbers apart, from each other and from those of other modules.
_TIES, _OFFSET, _STRETCHES, _MASKING, _BATCH_ORDER = 31, 32, 33, 34, 35
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
    batch_tokens: int
    """Pieces of a batch, special ones included: about, as rows are whole."""
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
    # Hidden pieces a row, over the rows of all processes.
    hidden_of_row: float


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

    def pieces(self, start: Ids, stop: Ids) -> Ids:
        """How many pieces each run of sentences from start to stop has."""
        ends: Ids = np.append(0, np.cumsum(self.lengths))
        return ends[stop] - ends[start]

    def split(self, start: Ids, stop: Ids, draw: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Where the second stretches of rows begin and end. A single sentence is followed by the next one, if there is
        any.
        """
        has_next = np.append(self.lengths, 0)[stop] > 0
        several = stop - start > 1
        middle = np.where(several, start + 1 + (draw * (stop - start - 1)).astype(np.int64), stop)
        return middle, np.where(several, stop, stop + has_next)

    def elsewhere(self, start: Ids, stop: Ids, count: Ids, draw: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """For each row as many sentences of another place of the text, as far as their document goes."""
        before, after = np.searchsorted(self.filled, start), np.searchsorted(self.filled, stop)
        others = len(self.filled) - (after - before)
        drawn = (draw * others).astype(np.int64)
        # Where a row is the whole text, there is no other place.
        place = np.minimum(drawn + np.where(drawn < before, 0, after - before), len(self.filled) - 1)
        first = self.filled[place]
        documents = np.append(np.flatnonzero(self.lengths == 0), len(self.lengths))
        most = documents[np.searchsorted(documents, first)]
        last = np.minimum(first + count, np.where(first < start, np.minimum(most, start), most))
        return first, np.where(others > 0, last, first)


class _Epoch(NamedTuple):
    """The text as one epoch reads it: R rows, of two stretches or, where the second one is empty, of one."""

    number: int
    sentences: _Sentences
    start: Ids
    """(R,) where each row's first stretch begins, in sentences."""
    middle: Ids
    """Where it ends."""
    second: tuple[Ids, Ids]
    """Where the second one begins and ends."""
    has_next: Flags
    """Whether the text goes on after the first one, in its document."""
    follows: Flags
    """Whether the second one is what it goes on with."""
    lengths: Ids
    """Pieces of each row, special ones included."""


class SentencePairPlan:
    """All batches of all epochs, each reachable at once.

    An epoch goes through the text once, and cuts it into rows at other places than the last one. A sentence that is
    longer than a row is cut where rows end, and in the middle of those of two stretches, so that all of it is read.
    What is left out is the surplus of a row whose last sentence is too long for it, and what a stretch from elsewhere
    stands in for: other pieces in each epoch. Rows of like lengths stand in a batch, so that there is little padding,
    and every batch has about as many pieces, however short they are.
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
        self._epoch = first = self._lay_out(0, sentences)
        # Pieces of the first epoch, special ones included, and the share of its rows whose first stretch has another
        # after it in its document; about as many as those of the others.
        self.pieces, self.has_next = int(first.lengths.sum()), float(first.has_next.mean())
        # The offset decides where rows are cut, and so their pieces; every epoch has as many batches as the first.
        self._count = min(len(first.start), math.ceil(self.pieces / settings.batch_tokens))
        self._batches = self._divide(first)

    @property
    def _marks_of_row(self) -> int:
        return PAIR_MARKS - (not self._settings.next_sentence)

    @property
    def _room(self) -> int:
        """Pieces of text in a row."""
        return self._settings.length - self._marks_of_row

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._count

    def batch(self, epoch: int, position: int) -> SentencePairBatch:
        """The batch at a position, from 0 to ``len(self) - 1``, of an epoch."""
        laid_out, chosen = self._laid_out(epoch), self._batches[position]
        lengths = laid_out.lengths[chosen]
        hiding = draw_uniform((3, len(chosen), int(lengths.max())), self._settings.seed, _MASKING, epoch, position)
        own = np.arange(len(chosen))[self._share[0] :: self._share[1]]
        shown = own if len(own) else np.zeros(1, np.int64)
        rows = [self._row(laid_out, int(chosen[n])) for n in shown]
        hidden = hidden_counts(lengths - self._marks_of_row, self._settings.masking.share)
        return self._assemble(rows, hiding[:, shown], chosen[own], float(hidden.mean()))

    def largest(self) -> list[SentencePairBatch]:
        """Batches as large as any, of an id without meaning: one has most padded pieces, one most attention scores;
        often it is the same.
        """
        epoch = self._laid_out(0)
        lengths = [epoch.lengths[rows] for rows in self._batches]
        widest = max(lengths, key=lambda rows: len(rows) * int(rows.max()))
        highest = max(lengths, key=lambda rows: len(rows) * int(rows.max()) ** 2)
        return [self._stand_in(rows) for rows in ([widest] if widest is highest else [widest, highest])]

    def _stand_in(self, lengths: Ids) -> SentencePairBatch:
        """A batch of rows of these lengths."""
        pad, places = self._settings.pad_id, np.arange(lengths.max())
        hidden = hidden_counts(lengths - self._marks_of_row, self._settings.masking.share)
        ids, labels = (np.where(places < n[:, None], self._ordinary[0], pad) for n in (lengths, hidden))
        return SentencePairBatch(
            ids,
            labels,
            np.full(len(lengths), -1),
            int(lengths.sum()),
            int(hidden.sum()),
            np.zeros_like(ids),
            np.zeros(len(lengths) * self._settings.next_sentence, np.int64),
            float(hidden.mean()),
        )

    def _laid_out(self, number: int) -> _Epoch:
        """An epoch's sentences and rows."""
        if self._epoch.number != number:
            offset = int(permutation(self._room, self._settings.seed, _OFFSET, number)[0]) if number else 0
            self._epoch = self._lay_out(number, self._sentences(offset))
            self._batches = self._divide(self._epoch)
        return self._epoch

    def _lay_out(self, number: int, text: _Sentences) -> _Epoch:
        """Cuts sentences into rows, and draws the stretches of each."""
        start, stop = self._cut(text)
        middle, second = stop, (stop, stop)
        has_next = follows = np.zeros(len(start), bool)
        if self._settings.next_sentence:
            draws = draw_uniform((3, len(start)), self._settings.seed, _STRETCHES, number)
            middle, stop = text.split(start, stop, draws[0])
            has_next = stop > middle
            follows = (draws[1] < 0.5) & has_next
            others = text.elsewhere(start, stop, np.maximum(1, stop - middle), draws[2])
            second = np.where(follows, middle, others[0]), np.where(follows, stop, others[1])
        pieces = text.pieces(start, middle) + text.pieces(*second)
        lengths = np.minimum(pieces, self._room) + self._marks_of_row
        return _Epoch(number, text, start, middle, second, has_next, follows, lengths)

    def _divide(self, epoch: _Epoch) -> list[Ids]:
        """The rows of each batch, in the order of reading: equal parts of the epoch's pieces, but a row at least."""
        order = np.lexsort((permutation(len(epoch.start), self._settings.seed, _TIES, epoch.number), epoch.lengths))
        order = np.resize(order, max(len(order), self._count))  # fewer rows than the first epoch had batches of one
        before, parts = np.append(0, np.cumsum(epoch.lengths[order])), np.arange(self._count)
        starts = np.searchsorted(before[:-1], parts * before[-1] / self._count)
        starts = np.minimum(np.maximum.accumulate(starts - parts), len(order) - self._count) + parts
        batches = np.split(order, starts[1:])
        return [batches[n] for n in permutation(self._count, self._settings.seed, _BATCH_ORDER, epoch.number)]

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

    def _row(self, epoch: _Epoch, number: int) -> _Row:
        """A row of an epoch."""
        text, (begin, stop) = epoch.sentences, epoch.second
        one = text.read(int(epoch.start[number]), int(epoch.middle[number]))
        if not self._settings.next_sentence:
            ids = self._framed([one[: self._room]])
            return _Row(ids, np.zeros_like(ids), follows=True)
        one, two = self._trimmed(one, text.read(int(begin[number]), int(stop[number])))
        types = np.repeat([0, 1], [len(one) + 2, len(two) + 1])
        return _Row(self._framed([one, two]), types, bool(epoch.follows[number]))

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

    def _assemble(
        self, rows: list[_Row], hiding: NDArray[np.float64], indices: Ids, hidden: float
    ) -> SentencePairBatch:
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
            masked.ids, labels, indices, int((ids != pad).sum()), int((labels != pad).sum()), types, follows, hidden
        )
