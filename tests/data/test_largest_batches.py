"""Test that stand-ins for the largest batches have the largest shapes of a plan's batches."""

from collections.abc import Sequence

import numpy as np
import pytest

from transduce.data.batches import BatchPlan, Lengths, PairRange, largest_batches
from transduce.data.id_files import EncodedSentences


class SyntheticCorpus:
    """A corpus of pairs of random lengths, a few of them long."""

    source_pad_id = target_pad_id = 0

    def __init__(self, pairs: int, seed: int) -> None:
        self.pairs = pairs
        random = np.random.default_rng(seed)
        self._lengths = np.minimum(200, random.geometric(0.06, (2, pairs))).astype(np.int32)

    def read_range_weights(self, ranges: Sequence[PairRange]) -> None:
        """Return that the pairs have no weights."""

    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[Lengths, Lengths]:
        source, target = (np.concatenate([side[start:stop] for start, stop in ranges]) for side in self._lengths)
        return source, target

    def read_ranges(self, ranges: Sequence[PairRange]) -> tuple[EncodedSentences, EncodedSentences]:
        source, target = (
            EncodedSentences(
                np.full(lengths.sum(), 5, np.uint32), np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            )
            for lengths in self.read_range_lengths(ranges)
        )
        return source, target


@pytest.mark.parametrize(("pairs", "batch_tokens"), [(1, 100), (3_000, 500), (3_000, 50), (150_000, 4_000)])
def test_no_batch_of_a_plan_exceeds_the_largest_batches(pairs: int, batch_tokens: int) -> None:
    corpus = SyntheticCorpus(pairs, seed=pairs)
    plan = BatchPlan(corpus, batch_tokens=batch_tokens, seed=3)
    shapes = [(b.source.shape, b.target.shape) for b in (plan.batch(0, n) for n in range(len(plan)))]
    sizes = [rows * (s + t) for (rows, s), (_, t) in shapes]
    scores = [rows * (s * s + t * t + s * t) for (rows, s), (_, t) in shapes]
    found = largest_batches(corpus, batch_tokens=batch_tokens, seed=3)
    assert len(found) in (1, 2)
    tried = [(batch.source.shape, batch.target.shape) for batch in found]
    assert tried[0] == shapes[int(np.argmax(sizes))] or sizes[shapes.index(tried[0])] == max(sizes)
    assert scores[shapes.index(tried[-1])] == max(scores)


def test_rows_have_real_lengths_and_ids_that_every_vocabulary_has() -> None:
    (*_, batch) = largest_batches(SyntheticCorpus(3_000, seed=1), batch_tokens=500, seed=1)
    for ids in (batch.source, batch.target):
        assert set(np.unique(ids)) <= {0, 1}
        lengths = (ids != 0).sum(axis=1)
        assert lengths.min() >= 1
        assert lengths.max() == ids.shape[1]
        assert all((row[:length] == 1).all() for row, length in zip(ids, lengths, strict=True))
    assert batch.target_tokens == int((batch.target != 0).sum())
    assert (batch.indices == -1).all()


def test_padding_may_be_the_vocabularys_last_token() -> None:
    class LastIsPadding(SyntheticCorpus):
        source_pad_id = target_pad_id = 6

    (*_, batch) = largest_batches(LastIsPadding(300, seed=1), batch_tokens=500, seed=1)
    for ids in (batch.source, batch.target):
        assert set(np.unique(ids)) == {0, 6}
