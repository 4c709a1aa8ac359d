"""Test shares of corpora over a run, the corpora's streams, and the resulting batches."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from transduce.data.batches import BatchPlan, PairRange
from transduce.data.id_files import EncodedSentences
from transduce.data.mixing import MixedPlan, Mixture, share_at, spread_copies, stream_ranges
from transduce.errors import TransduceError
from transduce.tasks.settings.reading import make_settings


class Numbered:
    """A corpus in which the tokens of pair n are n + 1, in sentences of 2 to 6 tokens."""

    source_pad_id = target_pad_id = 0

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs

    def read_ranges(self, ranges: Sequence[PairRange]) -> tuple[EncodedSentences, EncodedSentences]:
        """Return the pairs of the ranges."""
        numbers = np.concatenate([np.arange(*each) for each in ranges])
        lengths = 2 + numbers % 5
        ids = np.repeat(numbers + 1, lengths).astype(np.uint32)
        run = EncodedSentences(ids, np.concatenate(([0], np.cumsum(lengths))))
        return run, run

    def read_range_weights(self, ranges: Sequence[PairRange]) -> None:
        """Return that the pairs have no weights."""

    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths of the pairs of the ranges."""
        source, target = self.read_ranges(ranges)
        return source.lengths, target.lengths


@pytest.mark.parametrize(
    ("schedule", "fraction", "share"),
    [
        (((0.0, 0.3),), 0.9, 0.3),
        (((0.0, 0.9), (1.0, 0.1)), 0.5, 0.5),
        (((0.0, 0.9), (0.5, 0.9), (0.5, 0.2)), 0.49, 0.9),  # two stages
        (((0.0, 0.9), (0.5, 0.9), (0.5, 0.2)), 0.5, 0.2),
        (((0.2, 0.4), (0.4, 0.6)), 0.1, 0.4),
    ],
)
def test_shares_are_linear_between_points(
    schedule: tuple[tuple[float, float], ...], fraction: float, share: float
) -> None:
    assert share_at(schedule, fraction) == pytest.approx(share)


def test_corpora_without_a_share_divide_the_rest() -> None:
    mixture = Mixture((((0.0, 0.2),), None, None), (0.0, 300.0, 100.0))
    assert mixture.shares(0.5) == pytest.approx([0.2, 0.6, 0.2])
    assert mixture.mean_shares() == pytest.approx([0.2, 0.6, 0.2])
    ramp = Mixture((((0.0, 1.0), (1.0, 0.0)), ((0.0, 0.0), (1.0, 1.0))), (0.0, 0.0))
    assert ramp.shares(0.25) == pytest.approx([0.75, 0.25])
    assert ramp.mean_shares() == pytest.approx([0.5, 0.5])
    assert ramp.changes


def test_a_stream_has_every_pair_once_in_each_pass() -> None:
    first = [pair for each in stream_ranges(1, (100, 300), 7, 0, 200) for pair in range(*each)]
    assert sorted(first) == list(range(100, 300))
    assert first != sorted(first)
    both = [pair for each in stream_ranges(1, (100, 300), 7, 0, 400) for pair in range(*each)]
    assert both[:200] == first
    assert sorted(both[200:]) == list(range(100, 300))
    assert both[200:] != first
    # Any position is reached without those before it.
    for start in (0, 1, 31, 32, 199, 200, 333):
        part = [pair for each in stream_ranges(1, (100, 300), 7, start, 50) for pair in range(*each)]
        assert part == both[start : start + 50]


def plan(
    shares: Mixture,
    run_batches: int | None = 200,
    rank_and_count: tuple[int, int] = (0, 1),
    *,
    spread_copies: bool = True,
) -> MixedPlan:
    corpus = Numbered(12_000)
    return MixedPlan(
        corpus,
        [(0, 2_000), (2_000, 12_000)],
        shares,
        batch_tokens=256,
        seed=3,
        epoch_batches=190,
        run_batches=run_batches,
        rank_and_count=rank_and_count,
        spread_copies=spread_copies,
    )


def test_batches_have_the_shares_of_their_point_of_the_run() -> None:
    mixed = plan(Mixture((((0.0, 0.9), (0.5, 0.9), (0.5, 0.1)), None), (0.0, 10_000.0)))
    counts = []
    for number in range(200):
        batch = mixed.batch(*divmod(number, 190))
        assert batch.target_tokens <= 256
        counts.append((int((batch.indices < 2_000).sum()), len(batch.indices)))
    # A window is about 8 batches, which differ among each other.
    early, late = (np.array(part).sum(axis=0) for part in (counts[:90], counts[135:]))
    assert early[0] / early[1] == pytest.approx(0.9, abs=0.02)
    assert late[0] / late[1] == pytest.approx(0.1, abs=0.02)


def test_a_batch_depends_on_its_position_alone() -> None:
    mixture = Mixture((((0.0, 0.5), (1.0, 0.2)), None), (0.0, 1.0))
    whole, other = plan(mixture), plan(mixture)
    for number in (150, 3, 77, 78):
        one, same = whole.batch(*divmod(number, 190)), other.batch(*divmod(number, 190))
        assert np.array_equal(one.source, same.source)
        shares = [plan(mixture, rank_and_count=(rank, 2)).batch(*divmod(number, 190)).indices for rank in range(2)]
        assert sorted(np.concatenate(shares)) == sorted(one.indices)


def test_a_constant_share_repeats_the_small_corpus_evenly() -> None:
    mixed = plan(Mixture((((0.0, 0.5),), None), (0.0, 10_000.0)), run_batches=None)
    times, number = Counter[int](), 0
    while len(mixed._windows) < 5:  # complete windows only
        times.update(mixed.batch(*divmod(number, 190)).indices.tolist())
        number += 1
    times -= Counter(mixed.batch(*divmod(number - 1, 190)).indices.tolist())
    small = [times[pair] for pair in range(2_000)]
    large = [times[pair] for pair in range(2_000, 12_000)]
    assert sum(small) / (sum(small) + sum(large)) == pytest.approx(0.5, abs=0.03)
    assert max(small) - min(small) <= 2
    assert max(large) <= 1


def small_at_half(*, spread_copies: bool, ranks: int = 1) -> list[list[list[int]]]:
    """Return the pairs of 190 batches, by batch and rank, of which 300 pairs have a share of a half."""
    plans = [
        MixedPlan(
            Numbered(12_000),
            [(0, 300), (300, 12_000)],
            Mixture((((0.0, 0.5),), None), (0.0, 1.0)),
            batch_tokens=256,
            seed=3,
            epoch_batches=190,
            run_batches=None,
            rank_and_count=(rank, ranks),
            spread_copies=spread_copies,
        )
        for rank in range(ranks)
    ]
    return [[each.batch(0, number).indices.tolist() for each in plans] for number in range(190)]


def test_copies_of_a_pair_are_spread_over_batches() -> None:
    def different(batches: list[list[list[int]]]) -> float:
        own = [[pair for pair in batch if pair < 300] for (batch,) in batches]
        return sum(len(set(each)) for each in own) / sum(map(len, own))

    together, spread = (small_at_half(spread_copies=each) for each in (False, True))
    assert different(together) < 0.85
    assert different(spread) > 0.9
    # Both have the pairs of the same streams.
    counts = [Counter(pair for (batch,) in batches for pair in batch if pair < 300) for batches in (together, spread)]
    assert abs(counts[0].total() - counts[1].total()) < 0.05 * counts[0].total()
    shares = small_at_half(spread_copies=True, ranks=2)
    assert [sorted(one + other) for one, other in shares] == [sorted(batch) for (batch,) in spread]


def test_runs_of_earlier_versions_keep_their_batches() -> None:
    pairs = [pair for (batch,) in small_at_half(spread_copies=False) for pair in batch]
    digest = hashlib.sha256(np.array(pairs, "<i8").tobytes()).hexdigest()
    assert digest == "1970c5972fb75594c56d3fbaf7746c87f7a62bc925d8cfeb90ac67c0edd6c7df"  # that of version 0.1


@pytest.mark.parametrize("spread_copies", [True, False])
def test_no_batch_of_a_mixture_is_larger_than_those_tried_before(spread_copies: bool) -> None:
    mixed = plan(Mixture((((0.0, 0.9), (1.0, 0.1)), None), (0.0, 10_000.0)), spread_copies=spread_copies)
    batches = [mixed.batch(0, number) for number in range(190)]
    largest = max(mixed.largest_batches(), key=lambda batch: batch.source.size + batch.target.size)
    assert largest.source.size + largest.target.size == max(each.source.size + each.target.size for each in batches)


def test_copies_are_a_batch_apart() -> None:
    numbers = np.array([7, 3, 3, 8, 3, 9, 4, 4])
    order = np.array([1, 2, 4, 0, 3, 5, 6, 7])
    starts = np.array([0, 2, 4, 6, 8])
    assert spread_copies(order, numbers, starts).tolist() == [1, 2, 0, 3, 4, 5, 6, 7]
    assert spread_copies(order, np.arange(8), starts).tolist() == order.tolist()


def test_without_copies_batches_are_those_of_a_plan_that_does_not_spread() -> None:
    mixture = Mixture((None, None), (2_000.0, 10_000.0))
    spread, together = (plan(mixture, spread_copies=each) for each in (True, False))
    for number in range(0, 134, 7):
        one, other = (each.batch(0, number) for each in (spread, together))
        assert np.array_equal(one.indices, other.indices)
        assert np.array_equal(one.source, other.source)
    assert spread._windows == together._windows
    numbers = [
        np.concatenate([np.arange(*each) for each in spread._window_ranges(window)]) for window in spread._windows
    ]
    assert not any(map(spread._spreads, numbers))


def test_without_shares_batches_are_those_of_a_plan_of_one_corpus() -> None:
    data = make_settings(
        {"data": {"corpora": [{"source": ["a.en"], "target": ["a.de"]}, {"source": ["b.en"], "target": ["b.de"]}]}}
    ).data
    assert not data.has_shares
    assert data.directions == ()
    assert data.pair == ("en", "de")
    assert data.repetitions([100, 100]) == [1.0, 1.0]
    assert len(BatchPlan(Numbered(50), batch_tokens=64, seed=1)) == 4


def corpora(**more: object) -> dict[str, object]:
    return {
        "data": {
            "corpora": [{"source": ["a.en"], "target": ["a.de"]}, {"source": ["b.en"], "target": ["b.de"], **more}]
        }
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (corpora(share=1.5), "`share` must be a number from 0 to 1"),
        (corpora(share=[[0.5, 0.1], [0.2, 0.1]]), "or points .* in order"),
        (corpora(share=0.5, sampling_weight=2), "`sampling_weight` and `upsample` have no effect"),
        (corpora(tag="a b"), "`tag` must consist of letters"),
        (
            {"data": {"corpora": [{"source": ["a.en"], "target": ["a.de"], "tag": "x"}]}},
            "leave out the tag of the most",
        ),
        (
            {
                "data": {
                    "corpora": [
                        {"source": ["a.en"], "target": ["a.de"], "share": 0.7},
                        {"source": ["b.en"], "target": ["b.de"], "share": 0.6},
                    ]
                }
            },
            "at 0% of the run they sum to 1.3",
        ),
        (corpora(share=[[0.0, 0.1], [1.0, 0.5]]) | {"training": {"minutes": 5}}, "needs a number of steps"),
        ({"data": {"noise": {"typos": 2}}}, "`data.noise.typos` must be from 0 to 1, but is 2"),
    ],
)
def test_shares_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        make_settings(settings)


def test_shares_count_in_the_size_of_an_epoch() -> None:
    data = make_settings(corpora(share=0.25)).data
    # 900 other pairs are three quarters of an epoch.
    assert data.repetitions([900, 100]) == pytest.approx([1.0, 3.0])
    assert data.repetitions([900, 3_000]) == pytest.approx([1.0, 0.1])
