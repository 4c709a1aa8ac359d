"""Plan batches of sentence pairs and of labeled texts, each of which can be made without those before it.

A batch follows from (corpus, seed, epoch, position) alone.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from transduce.data.id_files import EncodedSentences
from transduce.errors import TransduceError
from transduce.text.vocabulary import SpecialTokens

# --- order of pairs ---
# A corpus is cut into chunks of consecutive pairs, and the seed assigns the chunks to blocks, once for all epochs.
# Inside a block, pairs are sorted by length. From epoch to epoch, only these change: the order of the blocks, the
# order of the batches in a block, and the order of pairs of equal lengths.


CHUNK_PAIRS = 256
BLOCK_PAIRS = 65_536
_HALF = 1 << 31  # makes differences of lengths positive

PairRange = tuple[int, int]
"""The type of a range (start, stop) of consecutive pairs, from index start to stop (exclusive)."""
Row = NDArray[np.int64]
"""The type of the token ids of one sentence, (length,)."""
Indices = NDArray[np.int64]
Lengths = NDArray[np.int32]


class RandomPurpose(IntEnum):
    """A purpose of random numbers, such as the order of batches.

    The purpose is part of the key of a random generator, so that each purpose has its own numbers. No value may change,
    because runs depend on the values. A new value must differ from all others. Only the values 31 and 41 are shared, by
    purposes that never occur in the same run.
    """

    PAIR_BLOCKS = 1
    BLOCK_ORDER = 2
    BATCH_ORDER = 3
    PAIR_TIES = 4
    CORPUS_SAMPLE = 5
    """The first number of its key, which has no seed."""
    REPEATED_PAIRS = 6
    """Used with the seed 0 in every run."""
    TEXT_WINDOW_ORDER = 21
    TEXT_WINDOW_OFFSET = 22
    DENOISING = 23
    MASKED_ROW_TIES = 31
    MASKED_ROW_OFFSET = 32
    SEGMENTS = 33
    MASKED_TOKENS = 34
    MASKED_BATCH_ORDER = 35
    LABELED_TEXT_ORDER = 41
    LABELED_BATCH_ORDER = 42
    STREAM_ORDER = 71
    MIXED_TIES = 72
    MIXED_BATCH_ORDER = 73
    MIXED_ROUNDING = 74
    TEXT_NOISE = 81
    SERIES_WINDOW_ORDER = 31
    PLACEHOLDERS = 31
    SUBWORD_SAMPLING = 41


def permutation(size: int, *key: int) -> Indices:
    """Return a random order of the numbers from 0 to `size` - 1, as an array of indices, (size,).

    The order depends only on the size and the key. The key is one or more integers ≥ 0: a seed, a `RandomPurpose`, and
    others such as an epoch. The generator is Philox, whose raw bits numpy keeps stable across versions.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(size)
    return np.argsort(bits, kind="stable")


class Blocks:
    """A random division of a corpus's pairs into blocks; a plan of batches reads and sorts one block at a time.

    A block has about ``BLOCK_PAIRS`` pairs or more, and a smaller corpus is one block.
    """

    def __init__(self, pairs: int, seed: int) -> None:
        chunks = -(-pairs // CHUNK_PAIRS)
        self.pairs = pairs
        self.count = max(1, pairs // BLOCK_PAIRS)
        self._chunks = np.array_split(permutation(chunks, seed, RandomPurpose.PAIR_BLOCKS), self.count)

    def ranges(self, block: int) -> list[PairRange]:
        """Return the pairs of a block as a list of ranges (start, stop) of consecutive pairs, in ascending order."""
        chunks = np.sort(self._chunks[block])
        breaks = np.flatnonzero(np.diff(chunks) > 1) + 1
        return [
            (int(run[0]) * CHUNK_PAIRS, min(int(run[-1] + 1) * CHUNK_PAIRS, self.pairs))
            for run in np.split(chunks, breaks)
        ]


def length_order(source_lengths: Lengths, target_lengths: Lengths, ties: Indices) -> Indices:
    """Return the indices of pairs, (pairs,), in an order in which neighbors have similar lengths.

    Pairs are sorted by the length of their longer side. Among pairs with the same longer side, the order leads from a
    long source with a short target to a short source with a long target. For the next length this order is reversed. So
    a batch that spans two lengths has little padding.

    Pairs with equal lengths on both sides are ordered by their numbers in ``ties``, (pairs,).
    """
    longer = np.maximum(source_lengths, target_lengths)
    difference = target_lengths - source_lengths
    return np.lexsort((ties, np.where(longer % 2 == 0, difference, -difference), longer))


def in_length_order(source_lengths: Lengths, target_lengths: Lengths) -> tuple[Lengths, Lengths]:
    """Return the source lengths and the target lengths, (pairs,) each, of pairs sorted as by ``length_order``.

    The lengths suffice to count batches. Sorting only lengths is far faster than sorting pairs, because pairs of equal
    lengths need no order.
    """
    longer = np.maximum(source_lengths, target_lengths).astype(np.int64)
    difference = target_lengths.astype(np.int64) - source_lengths
    key = longer << 32 | np.where(longer % 2 == 0, difference, -difference) + _HALF
    key.sort()
    longer, signed = key >> 32, (key & 0xFFFFFFFF) - _HALF
    difference = np.where(longer % 2 == 0, signed, -signed)
    source, target = longer - np.maximum(difference, 0), longer + np.minimum(difference, 0)
    return source.astype(np.int32), target.astype(np.int32)


def find_batch_starts(
    source_lengths: Lengths, target_lengths: Lengths, batch_tokens: int, max_padded_tokens: int
) -> Indices:
    """Return the index of the first pair of each batch and, at the end, the number of pairs: (batches + 1,).

    The pairs must be sorted by length. Each batch is the longest run with at most ``batch_tokens`` target tokens, and
    at most ``max_padded_tokens`` per side with padding; a pair that exceeds these limits alone is a batch.
    """
    target_before = np.append(0, np.cumsum(target_lengths, dtype=np.int64))
    starts = [0]
    while starts[-1] < len(target_lengths):
        start = starts[-1]
        stop = int(np.searchsorted(target_before, target_before[start] + batch_tokens, side="right")) - 1
        for lengths in (source_lengths[start:stop], target_lengths[start:stop]):
            if not len(lengths) or int(lengths.max()) * len(lengths) <= max_padded_tokens:
                continue  # padded size grows with every row, so smaller prefixes fit too
            padded = np.maximum.accumulate(lengths.astype(np.int64)) * np.arange(1, len(lengths) + 1)
            stop = min(stop, start + int(np.searchsorted(padded, max_padded_tokens, side="right")))
        starts.append(max(stop, start + 1))
    return np.array(starts, dtype=np.int64)


# --- batches ---


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of B sentence pairs; S and T are the lengths of the longest source and target.

    Every sentence ends with the end symbol, which counts as a token.
    """

    source: NDArray[np.int64]
    """Source ids, (B, S), padded at the right."""
    target: NDArray[np.int64]
    """Target ids, (B, T), padded at the right."""
    indices: Indices
    """The pairs' indices in the corpus, (B,); -1 in an artificial batch, and empty in a stand-in."""
    source_tokens: int
    """The number of source ids without padding, end symbols included."""
    target_tokens: int
    """The number of target ids without padding, end symbols included; 0 in a stand-in."""
    weights: NDArray[np.float32] | None = field(default=None, kw_only=True)
    """The weight of each pair in the loss, (B,); None: 1."""
    is_stand_in: bool = field(default=False, kw_only=True)
    """True if the process has no row of its own in this step, so that the only row belongs to another process.

    The batch's loss then counts nothing.
    """

    def as_stand_in(self) -> Self:
        """Return a copy of the batch that is marked as a stand-in, without indices and with 0 target tokens.

        A stand-in is the batch of a process that has no rows of its own in a training step. The ids and labels stay, so
        that the model and its loss compute the batch as any other.
        """
        return replace(self, indices=self.indices[:0], target_tokens=0, is_stand_in=True)

    def rows(self, pad_ids: tuple[int, int]) -> tuple[list[Row], list[Row]]:
        """Return two lists of B rows of token ids without padding: the sources and the targets.

        `pad_ids` are the padding ids of source and target. Padding must be at the right of the rows only.
        """
        sides = zip((self.source, self.target), pad_ids, strict=True)
        source, target = (
            [row[:length] for row, length in zip(ids, (ids != pad).sum(axis=1).tolist(), strict=True)]
            for ids, pad in sides
        )
        return source, target

    def with_rows(self, rows: Sequence[Sequence[Row | list[int]]], pad_ids: tuple[int, int]) -> Self:
        """Return a copy of the batch with other token ids: `rows` are B sources and B targets, without padding.

        The rows are padded at the right with `pad_ids`, the padding ids of source and target.
        """
        (source, source_tokens), (target, target_tokens) = map(pad_rows, rows, pad_ids)
        return replace(self, source=source, target=target, source_tokens=source_tokens, target_tokens=target_tokens)

    def grown(self, tokens: int, pad_ids: tuple[int, int]) -> Self:
        """Return a copy of the batch whose longest source and longest target are longer by a number of tokens.

        The other sentences get padding; `pad_ids` are the padding ids of source and target. Such a batch serves to test
        whether memory suffices for slightly longer sentences.
        """
        sides = self.rows(pad_ids)
        for rows in sides:
            longest = int(np.argmax([len(row) for row in rows]))
            rows[longest] = np.full(len(rows[longest]) + tokens, rows[longest][0])
        return self.with_rows(sides, pad_ids)


def pad_rows(rows: Sequence[Row | list[int]], pad_id: int) -> tuple[NDArray[np.int64], int]:
    """Return B rows of token ids as one array, (B, longest), padded at the right, and the total number of ids.

    The total does not count the padding.
    """
    padded = np.full((len(rows), max(map(len, rows))), pad_id, np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded, sum(map(len, rows))


class Corpus(Protocol):
    """An interface of corpora that can be batched, such as `PreparedCorpus`."""

    @property
    def pairs(self) -> int:
        """The number of sentence pairs."""

    @property
    def source_pad_id(self) -> int:
        """The padding id of source sentences."""

    @property
    def target_pad_id(self) -> int:
        """The padding id of target sentences."""

    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[Lengths, Lengths]:
        """Return two arrays: the source and the target lengths of the pairs in ranges (start, stop), concatenated.

        Lengths are in tokens and include the end symbol.
        """

    def read_ranges(self, ranges: Sequence[PairRange]) -> tuple[EncodedSentences, EncodedSentences]:
        """Return two `EncodedSentences`: the sources and the targets of the pairs in ranges (start, stop), joined."""

    def read_range_weights(self, ranges: Sequence[PairRange]) -> NDArray[np.float32] | None:
        """Return an array of the loss weights of the pairs in several ranges (start, stop), in the order of the ranges.

        The result is None if the corpus has no weights.
        """


class PlannedBlock(NamedTuple):
    """A block of a corpus's pairs, read and planned for one epoch, from which batches are cut.

    `indices` are the pairs' indices in the corpus. `order` sorts the pairs by length: it holds positions in the block.
    A batch is a run of `order`, and `starts` are the positions in `order` at which batches begin. `batch_order` is the
    random order of the batches.
    """

    indices: Indices  # of the pairs in the corpus, in the order read
    source: EncodedSentences
    target: EncodedSentences
    weights: NDArray[np.float32] | None
    order: Indices
    starts: Indices
    batch_order: Indices


AnyBatch_co = TypeVar("AnyBatch_co", covariant=True)


class Plan(Protocol[AnyBatch_co]):
    """An interface of plans that provide the batches of every epoch, which depend only on the corpus and the seed."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def batch(self, epoch: int, position: int) -> AnyBatch_co:
        """Return this process's part of the batch at a position, from 0 to ``len(self) - 1``, of an epoch.

        If more processes train than the batch has rows, a process without any gets a row of another process as a
        stand-in (`is_stand_in`), because all must take part in the gradient. The training loop multiplies the loss of a
        stand-in by 0.
        """


class ChangedPlan(Plan[Batch]):
    """A plan of the batches of another plan, which a function changes in each epoch, for example by noise."""

    def __init__(self, plan: Plan[Batch], change: Callable[[Batch, int], Batch]) -> None:
        """Change the batches of a plan: `change` gets a batch and the epoch, and returns a batch."""
        self._plan, self._change = plan, change

    @override
    def __len__(self) -> int:
        return len(self._plan)

    @override
    def batch(self, epoch: int, position: int) -> Batch:
        return self._change(self._plan.batch(epoch, position), epoch)


# --- the rows of one process ---


class DividedBatch(Protocol):
    """An interface of batches whose rows several processes divide among themselves."""

    def as_stand_in(self) -> Self:
        """Return a copy of the batch that is marked as a stand-in.

        A stand-in is the batch of a process that has no rows of its own in a training step. The batch has a single row,
        which belongs to another process.
        """


D = TypeVar("D", bound=DividedBatch)


def own_part(all_rows: Indices, rank_and_count: tuple[int, int], batch_of: Callable[[Indices], D]) -> D:
    """Return the batch of the rows that belong to one process, or a stand-in if the process has no row.

    Args:
        all_rows: the numbers of the rows of the whole batch.
        rank_and_count: (r, n): every n-th row, from row r on, belongs to the process.
        batch_of: makes a batch of the rows with these numbers. For a stand-in it gets the first row of the whole batch.
    """
    first, step = rank_and_count
    rows = all_rows[first::step]
    return batch_of(rows) if len(rows) else batch_of(all_rows[:1]).as_stand_in()


class BatchPlan:
    """A plan of batches of sentence pairs, which returns any batch of any epoch on request.

    For a batch, only the block of pairs that contains it is read and sorted.

    A batch holds at most ``batch_tokens`` target tokens without padding, and at most twice as many per side with
    padding; a longer pair is a batch alone. Every epoch has the same number of batches and contains every pair exactly
    once.

    Each of several processes gets some rows of the same batches: ``rank_and_count`` = (r, n) takes every n-th row,
    starting with row r. If no row is left for a process, it gets another process's row as a stand-in.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        seed: int,
        rank_and_count: tuple[int, int] = (0, 1),
    ) -> None:
        """Read the lengths of the whole corpus once, to count the batches of each block.

        Raises:
            TransduceError: `batch_tokens` is below 1, `seed` is negative, or the corpus has no pair.
        """
        if batch_tokens < 1:
            raise TransduceError(f"`training.batch_tokens` must be at least 1, but is {batch_tokens}.")
        if seed < 0:
            raise TransduceError(f"`training.seed` must not be negative, but is {seed}.")
        if corpus.pairs < 1:
            raise TransduceError("Batches need a corpus with at least one pair, but it has none: check its filters.")
        self._corpus = corpus
        self._seed = seed
        self._rank_and_count = rank_and_count
        self._limits = (batch_tokens, 2 * batch_tokens)
        self._blocks = Blocks(corpus.pairs, seed)
        self._batches = np.array([self._count_batches(block) for block in range(self._blocks.count)])
        self._planned: tuple[tuple[int, int], PlannedBlock] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return int(self._batches.sum())

    def batch(self, epoch: int, position: int) -> Batch:
        """Return the `Batch` of this process's pairs at a position of an epoch.

        Positions are counted from 0 to ``len(self) - 1``.

        Raises:
            IndexError: there is no such batch.
        """
        if epoch < 0 or not 0 <= position < len(self):
            raise IndexError(f"epoch {epoch} has no batch {position}: an epoch has {len(self)} batches")
        block_order = permutation(self._blocks.count, self._seed, RandomPurpose.BLOCK_ORDER, epoch)
        stops = np.cumsum(self._batches[block_order])
        block_position = int(np.searchsorted(stops, position, side="right"))
        number = int(block_order[block_position])
        return self._batch_of(self._block(epoch, number), position - (stops[block_position] - self._batches[number]))

    def _batch_of(self, block: PlannedBlock, position: int) -> Batch:
        """Return this process's pairs of one batch of a block.

        `position`, from 0, counts the block's batches in their random order. A process without any pair gets one pair
        as a stand-in.
        """
        number = block.batch_order[position]

        def batch_of(rows: Indices) -> Batch:
            source, source_tokens = block.source.padded(rows, self._corpus.source_pad_id)
            target, target_tokens = block.target.padded(rows, self._corpus.target_pad_id)
            weights = None if block.weights is None else block.weights[rows]
            return Batch(source, target, block.indices[rows], source_tokens, target_tokens, weights=weights)

        all_rows = block.order[block.starts[number] : block.starts[number + 1]]
        return own_part(all_rows, self._rank_and_count, batch_of)

    def _block(self, epoch: int, number: int) -> PlannedBlock:
        if self._planned is None or self._planned[0] != (epoch, number):
            self._planned = (epoch, number), self._plan(epoch, number)
        return self._planned[1]

    def _plan(self, epoch: int, number: int) -> PlannedBlock:
        return self._plan_ranges(
            self._blocks.ranges(number),
            (RandomPurpose.PAIR_TIES, epoch, number),
            (RandomPurpose.BATCH_ORDER, epoch, number),
        )

    def _plan_ranges(
        self, ranges: Sequence[PairRange], ties_key: tuple[int, ...], order_key: tuple[int, ...]
    ) -> PlannedBlock:
        """Return a `PlannedBlock`: the pairs of several ranges (start, stop), sorted by length and cut into batches.

        The keys seed the random orders of equally long pairs and of batches.
        """
        source, target = self._corpus.read_ranges(ranges)
        indices = np.concatenate([np.arange(*each) for each in ranges])
        order = self._order(source.lengths, target.lengths, indices, ties_key)
        starts = find_batch_starts(source.lengths[order], target.lengths[order], *self._limits)
        batch_order = permutation(len(starts) - 1, self._seed, *order_key)
        return PlannedBlock(
            indices, source, target, self._corpus.read_range_weights(ranges), order, starts, batch_order
        )

    def _order(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        indices: Indices,
        ties_key: tuple[int, ...],
    ) -> Indices:
        """Return the pairs' order by length, from which batches are cut: indices into the arrays of lengths.

        `indices` are those of the pairs in the corpus; `ties_key` seeds the random order of equally long pairs.
        """
        return length_order(source_lengths, target_lengths, permutation(len(indices), self._seed, *ties_key))

    def _count_batches(self, number: int) -> int:
        source, target = in_length_order(*self._corpus.read_range_lengths(self._blocks.ranges(number)))
        return len(find_batch_starts(source, target, *self._limits)) - 1


# --- largest batches ---
# Stand-ins for the batches of a corpus that need most memory, with the same shapes but arbitrary ids.


def largest_batches(corpus: Corpus, *, batch_tokens: int, seed: int) -> list[Batch]:
    """Return a list of one or two artificial batches as large as a ``BatchPlan``'s largest, to test the memory.

    The activations that a Transformer keeps for its gradients grow with the padded tokens (sub-layers) and with the
    products of lengths (attention). One batch is largest by the first measure and one by the second; often they are the
    same. Shapes are equal in all epochs. The ids are arbitrary.
    """
    blocks = Blocks(corpus.pairs, seed)
    ranges = (blocks.ranges(number) for number in range(blocks.count))
    ordered = (in_length_order(*corpus.read_range_lengths(each)) for each in ranges)
    return largest_among(corpus, ordered, batch_tokens=batch_tokens)


def largest_among(corpus: Corpus, ordered: Iterable[tuple[Lengths, Lengths]], *, batch_tokens: int) -> list[Batch]:
    """Return a list of one or two artificial batches as large as the largest that are cut from sorted pairs.

    One batch is the largest by padded tokens, the other by attention scores; a single batch if both have the same
    shape.

    Args:
        corpus: the corpus of the pairs, whose padding ids the batches have.
        ordered: for each group of pairs that is cut into batches, such as a block, the source and the target lengths,
            sorted as for batching.
        batch_tokens: maximum number of target tokens in a batch.
    """
    largest: dict[str, tuple[int, Lengths, Lengths]] = {}
    for source, target in ordered:
        starts = find_batch_starts(source, target, batch_tokens, 2 * batch_tokens)
        for name, sizes in _sizes(source, target, starts).items():
            batch = int(sizes.argmax())
            rows = slice(starts[batch], starts[batch + 1])
            if name not in largest or sizes[batch] > largest[name][0]:
                largest[name] = int(sizes[batch]), source[rows], target[rows]
    batches = [_artificial_batch(corpus, source, target) for _, source, target in largest.values()]
    shapes = {(batch.source.shape, batch.target.shape) for batch in batches}
    return batches[: len(shapes)]


def _sizes(source: Lengths, target: Lengths, starts: Indices) -> dict[str, Indices]:
    """Return two measures of each batch's size, (batches,), as a dict: `tokens` and `scores`.

    `tokens` are the padded tokens of both sides, and `scores` the attention scores of encoder, decoder and
    cross-attention for one head.

    Args:
        source: the source lengths of all pairs, in the order of the batches.
        target: the target lengths.
        starts: the index of the first pair of each batch, and the number of pairs at the end.
    """
    rows = np.diff(starts)
    s, t = (np.maximum.reduceat(lengths, starts[:-1]).astype(np.int64) for lengths in (source, target))
    return {"tokens": rows * (s + t), "scores": rows * (s * s + t * t + s * t)}


def _artificial_batch(corpus: Corpus, source: Lengths, target: Lengths) -> Batch:
    """Return an artificial batch of sentences with these source and target lengths, (B,), filled with one arbitrary id.

    The batch is tried before training, to test whether memory suffices.
    """
    source_ids, target_ids = (
        np.where(np.arange(lengths.max()) < lengths[:, None], non_padding_id(pad), pad).astype(np.int64)
        for lengths, pad in ((source, corpus.source_pad_id), (target, corpus.target_pad_id))
    )
    return Batch(source_ids, target_ids, np.full(len(source), -1), int(source.sum()), int(target.sum()))


def non_padding_id(pad_id: int) -> int:
    """Return a token id that is not the padding id: 0 or 1, which every vocabulary has."""
    return int(pad_id == 0)


# --- batches of texts with labels, of the text or of its words ---
# Legend: B texts of a batch, S tokens of a text.


# The texts of this many batches are sorted by length together, so that a batch has little padding.
_BATCHES_SORTED = 16


@dataclass(frozen=True, eq=False)
class LabeledBatch(Batch):
    """A batch with texts (B, S) as source, and as target their class indices (B, 1) or the labels of tokens (B, S)."""


class LabeledTexts:
    """Tokenized texts with special tokens and the class index of each text, to train and validate a classifier."""

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        labels: Sequence[int],
        special_tokens: SpecialTokens,
        length: int,
    ) -> None:
        """Store the texts, truncated at the end to `length` tokens including special tokens.

        Args:
            rows: the token ids of each text.
            labels: the class index of each text.
            special_tokens: the special tokens.
            length: the maximum number of tokens.
        """
        self._texts = EncodedSentences.of([special_tokens.frame(row, length) for row in rows])
        self.lengths = self._texts.lengths
        self.labels = np.array(labels, np.int64)
        self.weights: NDArray[np.float32] | None = None  # the weight of each text in the loss, (N,); None: 1

    def __len__(self) -> int:
        """Return the number of labeled texts."""
        return len(self.lengths)

    def batch(self, numbers: Indices, pad_id: int) -> LabeledBatch:
        """Return a `LabeledBatch` of the texts with these indices and their classes, padded at the right."""
        ids, tokens = self._texts.padded(numbers, pad_id)  # (B, S)
        labels: NDArray[np.int64] = self.labels[numbers][:, None]
        weights = None if self.weights is None else self.weights[numbers]
        return LabeledBatch(ids, labels, numbers, tokens, len(numbers), weights=weights)

    def in_order(self, rows: int, pad_id: int) -> list[LabeledBatch]:
        """Return a list of batches for validation, which contain every text once, sorted by length.

        A batch has `rows` texts; the last one may have fewer.
        """
        order = np.argsort(self.lengths, kind="stable")
        return [self.batch(order[start : start + rows], pad_id) for start in range(0, len(order), rows)]


NO_LABEL = -1
"""The label of tokens that the loss of a tagger ignores: all tokens but the first one of each word."""


class WordTokens(NamedTuple):
    """The tokens of a sentence, or of some consecutive words of a long one, as a tagger's encoder reads them."""

    sentence: int
    """Index of the sentence among all sentences of the corpus."""
    first_word: int
    """Index in the sentence of the first word whose tokens these are."""
    ids: list[int]
    """Token ids of the words, including special tokens of the encoder."""
    positions: list[int]
    """The position of each word's first token among `ids`."""


class TaggedTexts(LabeledTexts):
    """Tokenized sentences with special tokens and a label at the first token of each word, for a tagger."""

    def __init__(self, rows: Sequence[WordTokens], labels: Sequence[Sequence[int]]) -> None:
        """Store tokenized sentences with the labels of their words.

        Args:
            rows: the tokens of each sentence, or of a part of a long one, with the index of the sentence in `labels`.
            labels: for each sentence, the label index of each of its words.
        """
        self.rows = rows
        self._texts = EncodedSentences.of([row.ids for row in rows])
        self.lengths = self._texts.lengths
        shifted = np.zeros_like(self._texts.ids)  # 0: no label
        for row, start in zip(rows, self._texts.offsets.tolist(), strict=False):
            words = labels[row.sentence][row.first_word : row.first_word + len(row.positions)]
            shifted[start + np.array(row.positions)] = np.array(words) - NO_LABEL
        self._shifted = self._texts._replace(ids=shifted)

    def batch(self, numbers: Indices, pad_id: int) -> LabeledBatch:
        """Return a batch, padded at the right, of the rows with these indices: token ids and labels, (B, S) each.

        A row is a sentence, or a part of a long sentence. Padding, and tokens that begin no word, have the label
        `NO_LABEL`.
        """
        ids, tokens = self._texts.padded(numbers, pad_id)  # (B, S)
        shifted, _ = self._shifted.padded(numbers, 0)
        labels = shifted + NO_LABEL  # (B, S)
        return LabeledBatch(ids, labels, numbers, tokens, int((labels != NO_LABEL).sum()))


class LabeledPlan:
    """A plan of batches of labeled texts, which returns any batch of any epoch on request.

    An epoch contains every text once.
    """

    def __init__(
        self, texts: LabeledTexts, *, rows: int, seed: int, pad_id: int, rank_and_count: tuple[int, int] = (0, 1)
    ) -> None:
        """Plan batches of texts.

        Args:
            texts: the texts to batch.
            rows: texts per batch.
            seed: the seed of the random orders.
            pad_id: the padding id.
            rank_and_count: (r, n): take every n-th text of a batch, starting with text r.
        """
        self._texts = texts
        self._rows = rows
        self._seed = seed
        self._pad_id = pad_id
        self._rank_and_count = rank_and_count
        self._epoch: tuple[int, list[Indices]] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(len(self._texts) / self._rows)

    def batch(self, epoch: int, position: int) -> LabeledBatch:
        """Return a `LabeledBatch`: this process's texts of the batch at a position, counted from 0, of an epoch.

        If more processes train than the batch has texts, a process without any gets one text as a stand-in.
        """
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._batches_of_epoch(epoch)
        rows = self._epoch[1][position]
        return own_part(rows, self._rank_and_count, lambda numbers: self._texts.batch(numbers, self._pad_id))

    def largest_batches(self) -> list[LabeledBatch]:
        """Return a list with the batch of the longest texts, which needs the most memory of all batches."""
        order = np.argsort(self._texts.lengths, kind="stable")
        return [self._texts.batch(order[-self._rows :], self._pad_id)]

    def _batches_of_epoch(self, epoch: int) -> list[Indices]:
        """Return a list of the batches of an epoch, each an array with the indices of its texts.

        A batch has texts of similar length, and the batches are in random order.
        """
        order = permutation(len(self._texts), self._seed, RandomPurpose.LABELED_TEXT_ORDER, epoch)
        many = self._rows * _BATCHES_SORTED
        for start in range(0, len(order), many):
            part = order[start : start + many]
            order[start : start + many] = part[np.argsort(self._texts.lengths[part], kind="stable")]
        batches = [order[start : start + self._rows] for start in range(0, len(order), self._rows)]
        batch_order = permutation(len(batches), self._seed, RandomPurpose.LABELED_BATCH_ORDER, epoch)
        return [batches[number] for number in batch_order]
