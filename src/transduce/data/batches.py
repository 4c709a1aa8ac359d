"""Batches of sentence pairs as a pure function of (corpus, seed, epoch, position)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.data.idfiles import IdRun
from transduce.data.order import Blocks, Indices, Lengths, Run, cut_batches, in_length_order, length_order, permutation
from transduce.errors import TransduceError

# Keys that make the random orders independent (key 1 assigns chunks to blocks).
_BLOCK_ORDER, _BATCH_ORDER, _TIES = 2, 3, 4


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of B sentence pairs; S and T are the longest source and target.

    Every sentence ends with the end symbol, which counts as a token.
    """

    source: NDArray[np.int64]
    """Source ids, (B, S), padded at the right."""
    target: NDArray[np.int64]
    """Target ids, (B, T), padded at the right."""
    indices: Indices
    """The pairs' indices in the corpus, (B,)."""
    source_tokens: int
    """The number of source ids without padding."""
    target_tokens: int
    """The number of target ids without padding."""


class Corpus(Protocol):
    """An interface of corpora that can be batched, such as `PreparedCorpus`."""

    @property
    def pairs(self) -> int:
        """The number of sentence pairs."""

    @property
    def source_pad_id(self) -> int:
        """The padding id of source rows."""

    @property
    def target_pad_id(self) -> int:
        """The padding id of target rows."""

    def read_run_lengths(self, runs: Sequence[Run]) -> tuple[Lengths, Lengths]:
        """Return the lengths of the pairs in several runs (start, stop), concatenated: sources and targets."""

    def read_runs(self, runs: Sequence[Run]) -> tuple[IdRun, IdRun]:
        """Return the ids of the pairs in several runs (start, stop), concatenated: sources and targets."""


class _Block(NamedTuple):
    """A block planned for one epoch: its ids, and the order of its pairs and batches."""

    numbers: Indices  # the pairs' indices in the corpus, in the order read
    source: IdRun
    target: IdRun
    order: Indices
    starts: Indices
    batch_order: Indices


class BatchPlan:
    """A plan of all batches of all epochs with random access: at most one block is read and sorted for a batch.

    A batch holds at most ``batch_tokens`` target tokens without padding (unless it is one longer pair), and at most
    ``max_padded_tokens`` per side with padding (default: twice ``batch_tokens``). Every epoch has the same number of
    batches and contains every pair exactly once.

    Each of several processes gets a share of the same batches: ``share`` = (r, n) takes every n-th row, starting with
    row r. If a batch has too few rows, the share is one row without target tokens.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        seed: int,
        max_padded_tokens: int | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Read the lengths of the whole corpus once, to count the batches of each block."""
        if batch_tokens < 1:
            raise TransduceError(f"`training.batch_tokens` must be at least 1, but is {batch_tokens}.")
        if seed < 0:
            raise TransduceError(f"`training.seed` must not be negative, but is {seed}.")
        if corpus.pairs < 1:
            raise TransduceError("Batches need a corpus with at least one pair, but it has none: check its filters.")
        self._corpus = corpus
        self._seed = seed
        self._share = share
        self._limits = (batch_tokens, max_padded_tokens or 2 * batch_tokens)
        self._blocks = Blocks(corpus.pairs, seed)
        self._batches = np.array([self._count_batches(block) for block in range(self._blocks.count)])
        self._planned: tuple[tuple[int, int], _Block] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return int(self._batches.sum())

    def batch(self, epoch: int, position: int) -> Batch:
        """Return the batch at a position, from 0 to ``len(self) - 1``, of an epoch.

        Raises:
            IndexError: there is no such batch.
        """
        if epoch < 0 or not 0 <= position < len(self):
            raise IndexError(f"epoch {epoch} has no batch {position}: an epoch has {len(self)} batches")
        block_order = permutation(self._blocks.count, self._seed, _BLOCK_ORDER, epoch)
        stops = np.cumsum(self._batches[block_order])
        block_position = int(np.searchsorted(stops, position, side="right"))
        number = int(block_order[block_position])
        block = self._block(epoch, number)
        batch = block.batch_order[position - (stops[block_position] - self._batches[number])]
        return self._assemble(block, block.order[block.starts[batch] : block.starts[batch + 1]])

    def _assemble(self, block: _Block, all_rows: Indices) -> Batch:
        first, step = self._share
        rows = all_rows[first::step]
        if not len(rows):
            return self._without_target(self._pad(block, all_rows[:1]))
        return self._pad(block, rows)

    def _without_target(self, batch: Batch) -> Batch:
        empty = np.full_like(batch.target, self._corpus.target_pad_id)
        return Batch(batch.source, empty, batch.indices[:0], batch.source_tokens, 0)

    def _pad(self, block: _Block, rows: Indices) -> Batch:
        source, source_tokens = block.source.padded(rows, self._corpus.source_pad_id)
        target, target_tokens = block.target.padded(rows, self._corpus.target_pad_id)
        return Batch(source, target, block.numbers[rows], source_tokens, target_tokens)

    def _block(self, epoch: int, number: int) -> _Block:
        if self._planned is None or self._planned[0] != (epoch, number):
            self._planned = (epoch, number), self._plan(epoch, number)
        return self._planned[1]

    def _plan(self, epoch: int, number: int) -> _Block:
        runs = self._blocks.runs(number)
        source, target = self._corpus.read_runs(runs)
        ties = permutation(source.sentences, self._seed, _TIES, epoch, number)
        order = length_order(source.lengths, target.lengths, ties)
        starts = cut_batches(source.lengths[order], target.lengths[order], *self._limits)
        batch_order = permutation(len(starts) - 1, self._seed, _BATCH_ORDER, epoch, number)
        numbers = np.concatenate([np.arange(*run) for run in runs])
        return _Block(numbers, source, target, order, starts, batch_order)

    def _count_batches(self, number: int) -> int:
        source, target = in_length_order(*self._corpus.read_run_lengths(self._blocks.runs(number)))
        return len(cut_batches(source, target, *self._limits)) - 1
