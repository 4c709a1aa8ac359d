"""Make pretraining data: rows of two text segments with masked tokens (BERT), or of one segment (RoBERTa).

BERT is described in Devlin et al. 2019, section 3.1. Half of the second segments follow the first ones in the text; the
others come from elsewhere. A row is [CLS] first [SEP] second [SEP]. Batches are a pure function of (text, seed, epoch,
position).

Legend: B rows, L tokens of a row, N sentences of the text.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, RandomPurpose, own_part, pad_rows, permutation
from transduce.errors import TransduceError
from transduce.text.vocabulary import SpecialTokens

# --- random masking of tokens that a model learns to predict ---
# All random numbers are a pure function of a key, so any batch of any epoch can be made without those before it.


Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class MaskingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of how many tokens are masked in pretraining, and by what they are replaced."""

    share: float = 0.15
    """Share of a row's tokens that the model must predict; at least one token."""
    masked: float = 0.8
    """Share of the tokens to predict that are replaced by the mask token."""
    random: float = 0.1
    """Share of the tokens to predict that are replaced by random tokens; the rest stays unchanged."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.masking.share` must be above 0 and below 1, but is {self.share}.")
        if not (self.masked >= 0.0 and self.random >= 0.0 and self.masked + self.random <= 1.0 + 1e-9):
            raise TransduceError(
                "`task.masking.masked` and `task.masking.random` are shares of predicted tokens, 1 together at most, "
                f"but are {self.masked} and {self.random}."
            )


class Masked(NamedTuple):
    """A batch of rows of tokens, some of them masked: the model's input, and the tokens that the model must predict."""

    ids: Ids
    """The input tokens, (B, L)."""
    labels: Ids
    """The original token at positions to predict, and the padding id elsewhere, (B, L)."""


def mask_tokens(
    ids: Ids,
    maskable: Flags,
    uniform: NDArray[np.float64],
    settings: MaskingSettings,
    *,
    mask_id: int,
    pad_id: int,
    ordinary: Ids,
) -> Masked:
    """Mask the same share of the maskable tokens of every row at random; return a `Masked`: model input and labels.

    Args:
        ids: token ids, (B, L).
        maskable: True for the tokens that are neither special tokens nor padding, (B, L).
        uniform: random numbers in [0, 1), three for every token: (3, B, L).
        settings: how many tokens to mask, and how.
        mask_id: the mask token.
        pad_id: the label where there is nothing to predict.
        ordinary: the tokens from which random replacements are drawn.
    """
    order, kind, other = uniform
    hidden = maskable & (
        _ranks(np.where(maskable, order, np.inf)) < masked_counts(maskable.sum(axis=1), settings.share)[:, None]
    )
    masked = hidden & (kind < settings.masked)
    replaced = hidden & ~masked & (kind < settings.masked + settings.random)
    drawn = ordinary[(other * len(ordinary)).astype(np.int64)]
    return Masked(
        ids=np.where(masked, mask_id, np.where(replaced, drawn, ids)),
        labels=np.where(hidden, ids, pad_id),
    )


def masked_counts(candidates: Ids, share: float) -> Ids:
    """Return the number of tokens to mask in each row, (B,).

    The number is `share` times the number of maskable tokens, rounded, and at least one. It is 0 for a row without
    maskable tokens. `candidates`, (B,), has the number of maskable tokens of each row.
    """
    counts: Ids = np.minimum(candidates, np.maximum(1, np.rint(candidates * share).astype(np.int64)))
    return counts


def _ranks(values: NDArray[np.float64]) -> Ids:
    """Return the rank of each value in its row, 0 for the smallest, (B, L)."""
    ranks: Ids = values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return ranks


def draw_uniform(shape: tuple[int, ...], *key: int) -> NDArray[np.float64]:
    """Return an array of random numbers in [0, 1) that depend only on its shape and the key.

    The key is one or more integers ≥ 0: a seed, a `RandomPurpose`, and others such as an epoch. The numbers come from
    the raw bits of a counter-based generator (Philox), which numpy keeps stable across versions.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(math.prod(shape))
    numbers: NDArray[np.float64] = ((bits >> np.uint64(11)) * np.float64(2.0**-53)).reshape(shape)
    return numbers


# [CLS], and [SEP] after each segment.
PAIR_SPECIAL_TOKENS = 3


class SentenceStore(NamedTuple):
    """A text of documents, stored as the concatenated tokens of all sentences. An empty sentence ends a document."""

    ids: NDArray[np.unsignedinteger]
    """The tokens of all sentences as prepared, in memory or memory-mapped."""
    offsets: NDArray[np.int64]
    """The offsets at which sentences begin and the last one ends, (N + 1,)."""
    before: int = 0
    """The number of special tokens stored before each sentence; reading skips them."""
    after: int = 1
    """The number of special tokens stored after each sentence (the end symbol); reading skips them."""

    @property
    def lengths(self) -> Ids:
        """The number of tokens of each sentence without special tokens, (N,)."""
        return np.diff(self.offsets) - (self.before + self.after)

    @property
    def begins(self) -> Ids:
        """The offset in `ids` of each sentence's first token that is not special, (N,)."""
        return self.offsets[:-1] + self.before

    def read(self, start: int, stop: int) -> Ids:
        """Return the ordinary tokens of the sentences from index start to stop (exclusive), as one array."""
        part = self.part(start, stop)
        return _joined(self.ids, part.begins, part.lengths)

    def part(self, start: int, stop: int) -> "SentenceStore":
        """Return the sentences from index start to stop (exclusive) as a `SentenceStore` that shares the tokens."""
        return self._replace(offsets=self.offsets[start : stop + 1])


class MaskedPlanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of how a text becomes rows of tokens, some of them masked, with two segments (BERT) or one (RoBERTa)."""

    length: int
    """L, the maximum number of tokens of a row, including special ones."""
    batch_tokens: int
    """The approximate number of tokens of a batch, including special ones."""
    seed: int
    next_sentence: bool = True
    """True if rows have two segments, as in BERT; otherwise they have one, as in RoBERTa."""
    masking: MaskingSettings = MaskingSettings()
    pad_id: int = 0


@dataclass(frozen=True, eq=False)
class MaskedBatch(Batch):
    """A batch whose source is the model's input; its target has the tokens to predict, and padding elsewhere."""

    token_types: NDArray[np.int64]
    """0 in the first segment, 1 in the second one, (B, L)."""
    follows: NDArray[np.int64]
    """1 for rows whose second segment follows the first one in the text, else 0, (B,); empty if rows have one segment.
    """
    masked_per_row: float
    """The mean number of masked tokens per row, over the rows of all processes."""


class _TokenRow(NamedTuple):
    ids: Ids
    token_types: Ids
    follows: bool


def _joined(ids: NDArray[np.unsignedinteger], begins: Ids, lengths: Ids) -> Ids:
    parts = [ids[begin : begin + length] for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


class _Sentences(NamedTuple):
    """A text's sentences as one epoch reads them: a sentence longer than a row of tokens is cut into several."""

    ids: NDArray[np.unsignedinteger]
    begins: Ids
    """The index at which each sentence begins in `ids`, the concatenated tokens of all, (N,)."""
    lengths: Ids
    """The number of tokens of each sentence; an empty sentence ends a document."""
    positions: Ids
    """The number of tokens before each sentence, without special tokens, plus the epoch's offset; the division by a
    row's length decides where rows are cut.
    """
    filled: Ids
    """The indices of the sentences that are not empty."""

    def read(self, start: int, stop: int) -> Ids:
        """Return one array of the token ids of the sentences from index start to stop (exclusive)."""
        return _joined(self.ids, self.begins[start:stop], self.lengths[start:stop])

    def tokens(self, start: Ids, stop: Ids) -> Ids:
        """Return the number of tokens of each of R ranges of sentences, (R,).

        Args:
            start: the index of each range's first sentence, (R,).
            stop: the index after each range's last sentence, (R,).
        """
        ends: Ids = np.append(0, np.cumsum(self.lengths))
        return ends[stop] - ends[start]

    def split(self, start: Ids, stop: Ids, draw: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Divide each of R rows into two consecutive segments.

        A row of several sentences is divided at random. A row of one sentence is the first segment; the next sentence
        of the document becomes the second segment. Without a next sentence, the second segment is empty.

        Args:
            start: the index of each row's first sentence, (R,).
            stop: the index after each row's last sentence, (R,).
            draw: a random number in [0, 1) for each row, (R,).

        Returns:
            Two arrays, (R,): the index of the second segment's first sentence, and the index after its last one.
        """
        has_next = np.append(self.lengths, 0)[stop] > 0
        several = stop - start > 1
        middle = np.where(several, start + 1 + (draw * (stop - start - 1)).astype(np.int64), stop)
        return middle, np.where(several, stop, stop + has_next)

    def random_segments(self, start: Ids, stop: Ids, count: Ids, draw: NDArray[np.float64]) -> tuple[Ids, Ids]:
        """Draw, for each of R rows, consecutive sentences that lie outside of the row.

        The sentences drawn for a row are all from one document.

        Args:
            start: the index of each row's first sentence, (R,).
            stop: the index after each row's last sentence, (R,).
            count: the maximum number of sentences to draw for each row, (R,).
            draw: a random number in [0, 1) for each row, (R,).

        Returns:
            Two arrays, (R,): the index of the first sentence drawn, and the index after the last one. Both are equal
            for a row that is the whole text.
        """
        before, after = np.searchsorted(self.filled, start), np.searchsorted(self.filled, stop)
        rest = len(self.filled) - (after - before)
        drawn = (draw * rest).astype(np.int64)
        # A row that is the whole text leaves no other sentence.
        index = np.minimum(drawn + np.where(drawn < before, 0, after - before), len(self.filled) - 1)
        first = self.filled[index]
        documents = np.append(np.flatnonzero(self.lengths == 0), len(self.lengths))
        next_document = documents[np.searchsorted(documents, first)]
        last = np.minimum(first + count, np.where(first < start, np.minimum(next_document, start), next_document))
        return first, np.where(rest > 0, last, first)


class _Epoch(NamedTuple):
    """The text as one epoch reads it: R rows of two segments, of which the second may be empty."""

    number: int
    sentences: _Sentences
    start: Ids
    """The index of the first sentence of each row's first segment, (R,)."""
    middle: Ids
    """The index after the last sentence of each row's first segment, (R,)."""
    second: tuple[Ids, Ids]
    """The index of the first sentence of each row's second segment, and the index after its last one, (R,) each."""
    has_next: Flags
    """True if the document continues after the row's first segment, (R,)."""
    follows: Flags
    """True if the row's second segment is the continuation of the first one in the document, (R,)."""
    lengths: Ids
    """The number of tokens of each row, including special ones."""


class MaskedPlan:
    """A plan of batches of masked segment pairs, which returns any batch of any epoch on request.

    Every epoch reads the text once, and cuts it into rows at positions of its own. A sentence longer than a row is cut
    at the ends of rows. If rows have two segments, it is also cut at the middle of rows.

    An epoch does not contain the whole text. Sentences that exceed the length of their row are trimmed, and a random
    second segment replaces the sentences that follow the first. Other epochs leave out other parts.

    The rows of a batch have similar lengths, so that there is little padding. All batches have about equally many
    tokens.
    """

    def __init__(
        self,
        text: SentenceStore,
        special_tokens: SpecialTokens,
        settings: MaskedPlanSettings,
        ordinary: Ids,
        rank_and_count: tuple[int, int] = (0, 1),
    ) -> None:
        """Count the batches of an epoch.

        Args:
            text: the sentences in their order.
            special_tokens: the special tokens.
            settings: how rows are made.
            ordinary: the tokens from which random replacements are drawn.
            rank_and_count: (r, n): take every n-th row of a batch, starting with row r.

        Raises:
            TransduceError: the text has fewer than four sentences. A sentence longer than a row counts as several.
        """
        self._text = text
        self._special_tokens = special_tokens
        self._settings = settings
        self._ordinary = ordinary
        self._rank_and_count = rank_and_count
        self._lengths = text.lengths
        self._before = np.cumsum(self._lengths) - self._lengths
        sentences = self._sentences(0)
        if len(sentences.filled) < 4:
            raise TransduceError(
                "A text to pretrain or to validate on needs at least four sentences, long ones counted as several, but "
                f"this one has {int((self._lengths > 0).sum())} of {int(self._lengths.sum())} tokens in all: add more "
                "text."
            )
        self._epoch = first = self._lay_out(0, sentences)
        # Tokens of the first epoch, including special ones, and the share of its rows whose document continues after
        # the first segment; other epochs have about as many.
        self.tokens, self.has_next = int(first.lengths.sum()), float(first.has_next.mean())
        # The offset decides where rows are cut and thus their lengths; every epoch has as many batches as the first.
        self._count = min(len(first.start), math.ceil(self.tokens / settings.batch_tokens))
        self._batches = self._divide(first)

    @property
    def _special_tokens_of_row(self) -> int:
        return PAIR_SPECIAL_TOKENS - (not self._settings.next_sentence)

    @property
    def _row_tokens(self) -> int:
        """The maximum number of text tokens in a row."""
        return self._settings.length - self._special_tokens_of_row

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._count

    def batch(self, epoch: int, position: int) -> MaskedBatch:
        """Return a `MaskedBatch`: this process's rows of tokens of the batch at a position of an epoch.

        Positions count from 0 to ``len(self) - 1``. If the batch has fewer rows than there are processes, a process
        without a row gets the batch's first row, marked as a stand-in.
        """
        laid_out, chosen = self._rows_of_epoch(epoch), self._batches[position]
        lengths = laid_out.lengths[chosen]
        hiding = draw_uniform(
            (3, len(chosen), int(lengths.max())), self._settings.seed, RandomPurpose.MASKED_TOKENS, epoch, position
        )
        hidden = masked_counts(lengths - self._special_tokens_of_row, self._settings.masking.share)

        def batch_of(numbers: Ids) -> MaskedBatch:
            rows = [self._row(laid_out, int(chosen[n])) for n in numbers]
            return self._assemble(rows, hiding[:, numbers], chosen[numbers], float(hidden.mean()))

        return own_part(np.arange(len(chosen)), self._rank_and_count, batch_of)

    def largest_batches(self) -> list[MaskedBatch]:
        """Return one or two artificial batches as large as the first epoch's largest, to test whether memory suffices.

        The first has the size of the batch with the most tokens, including padding. The second has the size of the
        batch with the most attention scores; it is left out if that is the same batch.
        """
        epoch = self._rows_of_epoch(0)
        lengths = [epoch.lengths[rows] for rows in self._batches]
        widest = max(lengths, key=lambda rows: len(rows) * int(rows.max()))
        highest = max(lengths, key=lambda rows: len(rows) * int(rows.max()) ** 2)
        return [self._stand_in(rows) for rows in ([widest] if widest is highest else [widest, highest])]

    def _stand_in(self, lengths: Ids) -> MaskedBatch:
        """Return an artificial batch of rows with these numbers of tokens, (B,), to test whether memory suffices."""
        pad, positions = self._settings.pad_id, np.arange(lengths.max())
        hidden = masked_counts(lengths - self._special_tokens_of_row, self._settings.masking.share)
        ids, labels = (np.where(positions < n[:, None], self._ordinary[0], pad) for n in (lengths, hidden))
        return MaskedBatch(
            ids,
            labels,
            np.full(len(lengths), -1),
            int(lengths.sum()),
            int(hidden.sum()),
            np.zeros_like(ids),
            np.zeros(len(lengths) * self._settings.next_sentence, np.int64),
            float(hidden.mean()),
        )

    def _rows_of_epoch(self, number: int) -> _Epoch:
        """Return the epoch with this number as an `_Epoch`: the text cut into rows of tokens.

        The result is cached until another epoch is requested.
        """
        if self._epoch.number != number:
            order = permutation(self._row_tokens, self._settings.seed, RandomPurpose.MASKED_ROW_OFFSET, number)
            offset = int(order[0]) if number else 0
            self._epoch = self._lay_out(number, self._sentences(offset))
            self._batches = self._divide(self._epoch)
        return self._epoch

    def _lay_out(self, number: int, text: _Sentences) -> _Epoch:
        """Return an `_Epoch`: an epoch's sentences cut into rows, with the two segments of each row drawn at random."""
        start, stop = self._cut(text)
        middle, second = stop, (stop, stop)
        has_next = follows = np.zeros(len(start), bool)
        if self._settings.next_sentence:
            draws = draw_uniform((3, len(start)), self._settings.seed, RandomPurpose.SEGMENTS, number)
            middle, stop = text.split(start, stop, draws[0])
            has_next = stop > middle
            follows = (draws[1] < 0.5) & has_next
            rest = text.random_segments(start, stop, np.maximum(1, stop - middle), draws[2])
            second = np.where(follows, middle, rest[0]), np.where(follows, stop, rest[1])
        tokens = text.tokens(start, middle) + text.tokens(*second)
        lengths = np.minimum(tokens, self._row_tokens) + self._special_tokens_of_row
        return _Epoch(number, text, start, middle, second, has_next, follows, lengths)

    def _divide(self, epoch: _Epoch) -> list[Ids]:
        """Return a list of the batches of an epoch in random order, each an array with the indices of its rows.

        Rows of a batch have similar lengths. A batch has about an equal share of the epoch's tokens, and at least one
        row.
        """
        seed = self._settings.seed
        ties = permutation(len(epoch.start), seed, RandomPurpose.MASKED_ROW_TIES, epoch.number)
        order = np.lexsort((ties, epoch.lengths))
        order = np.resize(order, max(len(order), self._count))  # if there are fewer rows than batches, some repeat
        before, parts = np.append(0, np.cumsum(epoch.lengths[order])), np.arange(self._count)
        starts = np.searchsorted(before[:-1], parts * before[-1] / self._count)
        starts = np.minimum(np.maximum.accumulate(starts - parts), len(order) - self._count) + parts
        batches = np.split(order, starts[1:])
        return [batches[n] for n in permutation(self._count, seed, RandomPurpose.MASKED_BATCH_ORDER, epoch.number)]

    def _sentences(self, offset: int) -> _Sentences:
        """Return the text's sentences for one epoch, with long sentences cut.

        A sentence longer than a row is cut wherever a segment of a row ends. `offset` moves these ends by a number of
        tokens, so that every epoch cuts the text at other positions.
        """
        num_segments, row_tokens = 1 + self._settings.next_sentence, self._row_tokens
        begin = self._before + offset
        is_long = self._lengths > row_tokens
        of_first, of_last = (position * num_segments // row_tokens for position in (begin, begin + self._lengths - 1))
        times = np.where(is_long, of_last - of_first, 0) + 1
        owner = np.repeat(np.arange(len(times)), times)
        part = np.arange(len(owner)) - (np.cumsum(times) - times)[owner]
        # The k-th segment begins at ⌈k · row_tokens / num_segments⌉.
        positions = np.where(part > 0, -(-(of_first[owner] + part) * row_tokens // num_segments), begin[owner])
        lengths = np.diff(positions, append=offset + self._lengths.sum())
        begins = self._text.begins[owner] + positions - begin[owner]
        return _Sentences(self._text.ids, begins, lengths, positions, np.flatnonzero(lengths > 0))

    def _cut(self, sentences: _Sentences) -> tuple[Ids, Ids]:
        """Divide the sentences into R rows of about the maximum length, each within one document.

        Returns:
            Two arrays, (R,): the index of each row's first sentence, and the index after its last one.
        """
        filled = sentences.filled
        row, document = sentences.positions[filled] // self._row_tokens, np.cumsum(sentences.lengths == 0)[filled]
        is_new = np.ones(len(filled), bool)
        is_new[1:] = (np.diff(row) > 0) | (np.diff(document) > 0)
        starts = np.flatnonzero(is_new)
        return filled[starts], filled[np.append(starts[1:], len(filled)) - 1] + 1

    def _row(self, epoch: _Epoch, number: int) -> _TokenRow:
        """Return a `_TokenRow` of an epoch: token ids, segment types, and whether the second segment follows the first.

        The ids include special tokens. A type is 0 or 1; a row of one segment has type 0 only.
        """
        text, (begin, stop) = epoch.sentences, epoch.second
        one = text.read(int(epoch.start[number]), int(epoch.middle[number]))
        if not self._settings.next_sentence:
            ids = self._framed([one[: self._row_tokens]])
            return _TokenRow(ids, np.zeros_like(ids), follows=True)
        one, two = self._trim_segments(one, text.read(int(begin[number]), int(stop[number])))
        types = np.repeat([0, 1], [len(one) + 2, len(two) + 1])
        return _TokenRow(self._framed([one, two]), types, bool(epoch.follows[number]))

    def _trim_segments(self, one: Ids, two: Ids) -> tuple[Ids, Ids]:
        """Return two segments, trimmed so that together they fit into a row.

        The first segment loses tokens at its start, the second one at its end. The first segment is not trimmed to less
        than half a row.
        """
        first_length = max(self._row_tokens // 2, self._row_tokens - len(two))
        one = one[-first_length:]
        return one, two[: self._row_tokens - len(one)]

    def _framed(self, segments: list[Ids]) -> Ids:
        parts: list[Ids] = [np.array([self._special_tokens.cls])]
        for segment in segments:
            parts += [segment, np.array([self._special_tokens.sep])]
        return np.concatenate(parts)

    def _assemble(self, rows: list[_TokenRow], hiding: NDArray[np.float64], indices: Ids, hidden: float) -> MaskedBatch:
        """Return a `MaskedBatch` of rows, padded to the longest one, with masked tokens and their labels.

        Args:
            rows: the rows.
            hiding: random numbers in [0, 1) that decide on the masked tokens, (3, B, L).
            indices: the indices of the rows in the epoch.
            hidden: the mean number of masked tokens per row of the whole batch, over all processes.
        """
        pad = self._settings.pad_id
        ids, tokens = pad_rows([row.ids for row in rows], pad)
        types, _ = pad_rows([row.token_types for row in rows], 0)
        special = np.isin(ids, (pad, self._special_tokens.cls, self._special_tokens.sep, self._special_tokens.mask))
        masked = mask_tokens(
            ids,
            ~special,
            hiding[:, :, : ids.shape[1]],
            self._settings.masking,
            mask_id=self._special_tokens.mask,
            pad_id=pad,
            ordinary=self._ordinary,
        )
        labels = masked.labels
        follows = np.array([row.follows for row in rows] * self._settings.next_sentence, np.int64)
        return MaskedBatch(masked.ids, labels, indices, tokens, int((labels != pad).sum()), types, follows, hidden)
