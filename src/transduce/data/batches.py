"""Batches as a pure function of (corpus, seed, epoch, position)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.data.idfiles import IdRun
from transduce.data.order import Blocks, Indices, Lengths, Run, cut_batches, in_length_order, length_order, permutation
from transduce.errors import TransduceError

# Keys that keep the random orders apart (1 deals the chunks into blocks).
_BLOCK_ORDER, _BATCH_ORDER, _TIES = 2, 3, 4


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs that are trained on together: B pairs, S and T the longest source and target.

    Every sentence ends with the end of sentence, which counts as a token.
    """

    # (B, S) and (B, T) ids, padded at the right.
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    # (B,) numbers of the pairs in the corpus.
    indices: Indices
    # Ids that are not padding.
    source_tokens: int
    target_tokens: int


class Corpus(Protocol):
    """What batches need of a corpus; ``PreparedCorpus`` is one."""

    @property
    def pairs(self) -> int:
        """How many pairs there are."""

    @property
    def source_pad_id(self) -> int:
        """What fills a source row."""

    @property
    def target_pad_id(self) -> int:
        """What fills a target row."""

    def read_run_lengths(self, runs: Sequence[Run]) -> tuple[Lengths, Lengths]:
        """Lengths of the pairs of several runs (start, stop), one after another: sources and targets."""

    def read_runs(self, runs: Sequence[Run]) -> tuple[IdRun, IdRun]:
        """Ids of the pairs of several runs, one after another: sources and targets."""


class _Block(NamedTuple):
    """A block laid out for one epoch: its ids, and pairs and batches in their order."""

    numbers: Indices  # of the pairs in the corpus, as read
    source: IdRun
    target: IdRun
    order: Indices
    starts: Indices
    batch_order: Indices


class BatchPlan:
    """All batches of all epochs, each reachable at once: at most one block is read and laid out for it.

    A batch holds at most ``batch_tokens`` non-padding target tokens (unless it is one longer pair) and at
    most ``max_padded_tokens`` a side with padding (twice ``batch_tokens`` when not said). Every epoch has the
    same number of batches and every pair exactly once.

    Of several processes, each has its share of the same batches: ``share`` = (r, n) takes every n-th row from the r-th
    on. Where a batch has too few rows, the share is one row without target tokens.
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
        """Reads the lengths of the whole corpus once, to know how many batches each block has."""
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
        """Batches in an epoch."""
        return int(self._batches.sum())

    def batch(self, epoch: int, position: int) -> Batch:
        """The batch at a position, from 0 to ``len(self) - 1``, of an epoch; IndexError outside."""
        if epoch < 0 or not 0 <= position < len(self):
            raise IndexError(f"epoch {epoch} has no batch {position}: an epoch has {len(self)} batches")
        block_order = permutation(self._blocks.count, self._seed, _BLOCK_ORDER, epoch)
        stops = np.cumsum(self._batches[block_order])
        place = int(np.searchsorted(stops, position, side="right"))
        number = int(block_order[place])
        block = self._block(epoch, number)
        batch = block.batch_order[position - (stops[place] - self._batches[number])]
        return self._assemble(block, block.order[block.starts[batch] : block.starts[batch + 1]])

    def _assemble(self, block: _Block, whole: Indices) -> Batch:
        first, step = self._share
        rows = whole[first::step]
        if not len(rows):
            return self._without_target(self._pad(block, whole[:1]))
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
