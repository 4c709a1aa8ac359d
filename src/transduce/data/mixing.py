"""Plan batches of several corpora whose shares may change over the run.

A batch follows from (corpora, seed, position) alone.

Every corpus is a stream of its pairs, in another random order at each pass. A window takes the next pairs of each
stream, in proportion to the corpora's shares at this point of the run. Its pairs are batched by length, like a block
of a single corpus. So a share does not depend on a corpus's size: a small corpus is repeated, and a large one is seen a
part at a time.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from transduce.data.batches import (
    BLOCK_PAIRS,
    Batch,
    BatchPlan,
    Corpus,
    Indices,
    Lengths,
    PairRange,
    PlannedBlock,
    RandomPurpose,
    find_batch_starts,
    in_length_order,
    largest_among,
    permutation,
)
from transduce.errors import TransduceError

# --- shares ---


Schedule = tuple[tuple[float, float], ...]
"""The type of a corpus's share of the batches over a run: points (fraction of the run from 0 to 1, share). The
fractions ascend, and between points the share is linear."""


def share_at(schedule: Schedule, fraction: float) -> float:
    """Return a corpus's share of the batches at a fraction (0 to 1) of the run, interpolated between scheduled points.

    Before the first point and after the last one, the share is constant.
    """
    if fraction >= schedule[-1][0]:
        return schedule[-1][1]
    # Of several points at one fraction, the last one holds from there on.
    after = next(number for number, (each, _) in enumerate(schedule) if each > fraction)
    if after == 0:
        return schedule[0][1]
    (start, low), (stop, high) = schedule[after - 1], schedule[after]
    return low + (high - low) * (fraction - start) / (stop - start)


class Mixture(NamedTuple):
    """The shares of the batches that corpora take over a run.

    Some shares are set, and the other corpora divide the rest in proportion to their weights.
    """

    schedules: tuple[Schedule | None, ...]
    """For each corpus, its share of the batches over the run, as points (fraction of the run, share); None: the corpus
    takes a part of what the others leave."""
    weights: tuple[float, ...]
    """A weight for each corpus, such as its number of pairs; weights of corpora with a set share are ignored."""

    def shares(self, fraction: float) -> list[float]:
        """Return a list with each corpus's share of the batches at a fraction of the run; the shares sum to 1.

        Raises:
            TransduceError: the shares sum to more than 1, or to 0 without a corpus that takes the rest.
        """
        fixed = [0.0 if each is None else share_at(each, fraction) for each in self.schedules]
        rest_weight = sum(weight for weight, each in zip(self.weights, self.schedules, strict=True) if each is None)
        total = sum(fixed)
        if total > 1.0 + 1e-9 or (total <= 0.0 and not rest_weight):
            raise TransduceError(
                f"The shares of `data.corpora` must sum to more than 0 and at most 1, but at {fraction:.0%} of the run "
                f"they sum to {total:g}: change one of them."
            )
        if not rest_weight:
            return [each / total for each in fixed]
        rest = max(0.0, 1.0 - total)
        return [
            rest * weight / rest_weight if each is None else share
            for share, weight, each in zip(fixed, self.weights, self.schedules, strict=True)
        ]

    def check(self) -> None:
        """Check the sum of the shares throughout the run.

        Raises:
            TransduceError: at some point, the shares sum to more than 1, or to 0 without a corpus that takes the rest.
        """
        for schedule in self.schedules:
            for fraction, _ in schedule or ():
                self.shares(fraction)
                self.shares(max(0.0, fraction - 1e-6))

    def mean_shares(self) -> list[float]:
        """Return a list with each corpus's mean share over the run, from samples at 1,000 evenly spaced points."""
        points = [self.shares((number + 0.5) / _MEAN_POINTS) for number in range(_MEAN_POINTS)]
        return [sum(column) / _MEAN_POINTS for column in zip(*points, strict=True)]

    @property
    def changes(self) -> bool:
        """True if a share changes over the run."""
        return any(len({share for _, share in schedule or ()}) > 1 for schedule in self.schedules)


_MEAN_POINTS = 1_000


# --- streams ---


# Consecutive pairs of a corpus that stay together in its random order, so that reading takes few seeks.
_CHUNK = 32


class _Pass(NamedTuple):
    """The random order in which one pass over a corpus reads its chunks (32 consecutive pairs each)."""

    starts: NDArray[np.int64]
    """The index of the first pair of each chunk, in the order of reading."""
    ends: NDArray[np.int64]
    """The number of pairs that the pass has read at the end of each chunk."""


@lru_cache(maxsize=64)
def _pass(corpus: int, pairs: PairRange, seed: int, number: int) -> _Pass:
    """Return the random order of a corpus's chunks in its pass `number`, counted from 0.

    `pairs` is the range (start, stop) of the corpus's pairs among all.
    """
    start, stop = pairs
    order = permutation(-(-(stop - start) // _CHUNK), seed, RandomPurpose.STREAM_ORDER, corpus, number)
    starts = np.arange(start, stop, _CHUNK)[order]
    return _Pass(starts, np.cumsum(np.minimum(_CHUNK, stop - starts)))


def stream_ranges(corpus: int, pairs: PairRange, seed: int, first: int, count: int) -> list[PairRange]:
    """Return the next pairs of a corpus's stream as a list of ranges (start, stop) of consecutive pairs.

    The stream consists of the corpus's pairs in random order, pass after pass.

    Args:
        corpus: the index of the corpus.
        pairs: the range of its pairs among all pairs.
        seed: the seed of the random orders.
        first: the number of pairs that were taken from the stream before.
        count: the number of pairs to take.
    """
    size, ranges = pairs[1] - pairs[0], list[PairRange]()
    while count > 0:
        number, offset = divmod(first, size)
        order = _pass(corpus, pairs, seed, number)
        chunk = int(np.searchsorted(order.ends, offset, side="right"))
        skipped = offset - (int(order.ends[chunk - 1]) if chunk else 0)  # pairs of the chunk that were read before
        while count > 0 and chunk < len(order.ends):
            start = int(order.starts[chunk]) + skipped
            stop = min(int(order.starts[chunk]) + _CHUNK, pairs[1], start + count)
            ranges.append((start, stop))
            first, count, chunk, skipped = first + stop - start, count - stop + start, chunk + 1, 0
    return ranges


# --- batches ---


class _Window(NamedTuple):
    """A window of a run: the next pairs of all corpora by their shares, sorted by length and batched together."""

    first: int
    """The number of batches of the run before the window."""
    taken: tuple[int, ...]
    """The number of pairs of each corpus that earlier windows have taken, over all passes through the corpus."""
    counts: tuple[int, ...]
    """The number of pairs of each corpus in the window."""
    batches: int
    """The number of batches of the window."""


class MixedPlan(BatchPlan):
    """A plan of batches of several corpora in changing shares, which returns the batch at any position of the run.

    The position of a batch is `epoch * len(plan) + position`; an epoch is a number of batches without other meaning.
    """

    def __init__(
        self,
        corpus: Corpus,
        ranges: Sequence[PairRange],
        mixture: Mixture,
        *,
        batch_tokens: int,
        seed: int,
        epoch_batches: int,
        run_batches: int | None,
        rank_and_count: tuple[int, int] = (0, 1),
        spread_copies: bool = True,
    ) -> None:
        """Create a plan.

        Args:
            corpus: all pairs.
            ranges: the range of each corpus's pairs.
            mixture: the shares of the corpora over the run.
            batch_tokens: maximum number of target tokens in a batch.
            seed: the seed of all random orders.
            epoch_batches: the number of batches that count as an epoch.
            run_batches: the number of batches of the run; None: unknown, for shares that do not change.
            rank_and_count: (r, n): take every n-th row of a batch, starting with row r.
            spread_copies: True: copies of a pair are put into different batches, although pairs are batched by length.

        Raises:
            TransduceError: `batch_tokens` is below 1, the shares sum to more than 1 or to 0 somewhere, or a corpus has
                no pairs.
        """
        if batch_tokens < 1:
            raise TransduceError(f"`training.batch_tokens` must be at least 1, but is {batch_tokens}.")
        mixture.check()
        if any(start >= stop for start, stop in ranges):
            raise TransduceError(
                "Each table of `data.corpora` needs at least one pair, but the filters left none of one: check its "
                "files."
            )
        self._corpus = corpus
        self._ranges = list(ranges)
        self._mixture = mixture
        self._seed = seed
        self._rank_and_count = rank_and_count
        self._limits, self._spread_copies = (batch_tokens, 2 * batch_tokens), spread_copies
        self._planned = None
        self._epoch_batches, self._run_batches = max(1, epoch_batches), run_batches
        self._windows = list[_Window]()
        pairs = sum(stop - start for start, stop in ranges)
        per_batch = max(1, pairs // max(1, epoch_batches))
        # Small windows follow a schedule closely, and large ones leave little padding.
        window_batches = _BATCHES_OF_WINDOW
        if mixture.changes and run_batches is not None:
            window_batches = max(_MIN_BATCHES, min(window_batches, run_batches // _WINDOWS_OF_RUN))
        self._window_pairs = min(BLOCK_PAIRS, window_batches * per_batch)

    @override
    def __len__(self) -> int:
        return self._epoch_batches

    @override
    def batch(self, epoch: int, position: int) -> Batch:
        if epoch < 0 or not 0 <= position < len(self):
            raise IndexError(f"epoch {epoch} has no batch {position}: an epoch has {len(self)} batches")
        number = epoch * len(self) + position
        index = self._find_window(number)
        return self._batch_of(self._block(0, index), number - self._windows[index].first)

    @override
    def _plan(self, epoch: int, number: int) -> PlannedBlock:
        ranges = self._window_ranges(self._windows[number])
        return self._plan_ranges(ranges, (RandomPurpose.MIXED_TIES, number), (RandomPurpose.MIXED_BATCH_ORDER, number))

    def _find_window(self, batch: int) -> int:
        """Return the index of the window (pairs that are batched together) that contains a batch of the run.

        All windows up to that one are laid out first, since their numbers of batches are not known before.
        """
        while not self._windows or self._windows[-1].first + self._windows[-1].batches <= batch:
            self._windows.append(self._next_window())
        firsts = [window.first for window in self._windows]
        return int(np.searchsorted(firsts, batch, side="right")) - 1

    def _next_window(self) -> _Window:
        last = self._windows[-1] if self._windows else _Window(0, (0,) * len(self._ranges), (0,) * len(self._ranges), 0)
        first = last.first + last.batches
        taken = tuple(one + other for one, other in zip(last.taken, last.counts, strict=True))
        shares = self._mixture.shares(min(1.0, first / self._run_batches) if self._run_batches else 0.0)
        counts = _rounded([share * self._window_pairs for share in shares], self._seed, len(self._windows))
        window = _Window(first, taken, tuple(counts), 0)
        source, target = self._ordered_lengths(window, len(self._windows))
        return window._replace(batches=len(find_batch_starts(source, target, *self._limits)) - 1)

    def _ordered_lengths(self, window: _Window, index: int) -> tuple[Lengths, Lengths]:
        """Return two arrays: the source and the target lengths of a window's pairs, in the order of batches.

        The window's index seeds the random order of equally long pairs.
        """
        ranges = self._window_ranges(window)
        source, target = self._corpus.read_range_lengths(ranges)
        numbers = np.concatenate([np.arange(*each) for each in ranges])
        if not self._spreads(numbers):
            return in_length_order(source, target)  # faster than an order of the pairs
        order = self._order(source, target, numbers, (RandomPurpose.MIXED_TIES, index))
        return source[order], target[order]

    def largest_batches(self) -> list[Batch]:
        """Return one or two artificial batches, as large as the run's largest, to test whether memory suffices.

        Only the first windows of the run are considered.
        """
        while len(self._windows) < _WINDOWS_OF_RUN:
            self._windows.append(self._next_window())
        ordered = (self._ordered_lengths(each, number) for number, each in enumerate(self._windows[:_WINDOWS_OF_RUN]))
        return largest_among(self._corpus, ordered, batch_tokens=self._limits[0])

    @override
    def _order(
        self, source_lengths: Lengths, target_lengths: Lengths, indices: Indices, ties_key: tuple[int, ...]
    ) -> Indices:
        order = super()._order(source_lengths, target_lengths, indices, ties_key)
        if not self._spreads(indices):
            return order
        return spread_copies(
            order, indices, find_batch_starts(source_lengths[order], target_lengths[order], *self._limits)
        )

    def _spreads(self, indices: Indices) -> bool:
        """Return whether copies of a pair must be spread over batches.

        Copies must be spread if the plan's `spread_copies` is set and the array of pair indices has repetitions.
        """
        return self._spread_copies and len(np.unique(indices)) < len(indices)

    def _window_ranges(self, window: _Window) -> list[PairRange]:
        """Return the pairs of a window, corpus after corpus, as a list of ranges (start, stop) of consecutive pairs."""
        ranges = list[PairRange]()
        for number, (pairs, taken, count) in enumerate(zip(self._ranges, window.taken, window.counts, strict=True)):
            ranges += stream_ranges(number, pairs, self._seed, taken, count)
        return ranges


def spread_copies(order: Indices, numbers: Indices, starts: Indices) -> Indices:
    """Return an order of the pairs, (pairs,), in which copies of a pair lie in different batches.

    The copies of a pair are divided into groups of five. Each group is spread over five successive batches; lengths
    within a batch stay similar.

    Args:
        order: the pairs in order of length, (pairs,).
        numbers: the pairs' indices in the corpus, which copies share, (pairs,).
        starts: the index in `order` of the first pair of each batch and, at the end, the number of pairs.
    """
    positions, ranks = np.arange(len(order)), np.empty_like(order)
    ranks[order] = positions
    by_number = np.argsort(numbers, kind="stable")
    is_first = np.diff(numbers[by_number], prepend=-1) != 0
    firsts = np.maximum.accumulate(np.where(is_first, positions, 0))
    shifts = (positions - firsts) % _BATCHES_OF_COPIES
    ranks = ranks[by_number[positions - shifts]]  # those of the first copy in each group
    batches = np.searchsorted(starts, ranks, side="right") - 1
    in_batch = (ranks - starts[batches]) * _FRACTIONS // np.diff(starts)[batches]
    return by_number[np.lexsort((by_number, in_batch, batches + shifts))]


def _rounded(exact: Sequence[float], seed: int, window: int) -> list[int]:
    """Round the number of pairs that each corpus has in a window, up or down at random.

    The mean of a rounded number over many windows is the exact number. If all become 0, the corpus with the largest
    exact number gets 1. Seed and window index determine the result.
    """
    key = np.random.SeedSequence((seed, RandomPurpose.MIXED_ROUNDING, window))
    draws = np.random.Philox(key).random_raw(len(exact)) / 2.0**64
    counts = [int(each) + int(draw < each - int(each)) for each, draw in zip(exact, draws.tolist(), strict=True)]
    if not any(counts):
        counts[int(np.argmax(exact))] = 1
    return counts


# Batches of a window; and if shares change, the minimum number of batches of a window, and of windows in a run.
_BATCHES_OF_WINDOW, _MIN_BATCHES, _WINDOWS_OF_RUN = 50, 8, 40
# Adjacent batches over which the copies of a pair are spread. More would have fewer copies, and more padding.
_BATCHES_OF_COPIES = 5
_FRACTIONS = 1 << 20  # steps in which a pair's place in a batch is measured
