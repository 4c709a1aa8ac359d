"""Test the order of pairs in cases solved by hand: permutations, blocks, lengths, batch boundaries."""

import numpy as np

from transduce.data.batches import Blocks, find_batch_starts, in_length_order, length_order, permutation


def test_a_permutation_depends_on_its_key_only() -> None:
    first = permutation(1_000, 1, 2, 3)
    np.testing.assert_array_equal(np.sort(first), np.arange(1_000))
    np.testing.assert_array_equal(first, permutation(1_000, 1, 2, 3))
    for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3), (1, 2)):
        assert not np.array_equal(first, permutation(1_000, *key))


def test_permutations_never_change() -> None:
    # A run that resumes under another numpy must see the same batches.
    assert permutation(8, 1).tolist() == [2, 0, 1, 4, 5, 6, 7, 3]


def test_blocks_deal_out_every_pair_once() -> None:
    for pairs in (1, 255, 256, 257, 65_536, 300_001):
        blocks = Blocks(pairs, seed=3)
        numbers = [np.arange(*each) for block in range(blocks.count) for each in blocks.ranges(block)]
        np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(pairs))


def test_a_small_corpus_is_one_block_and_large_ones_have_equal_mixed_blocks() -> None:
    assert Blocks(20_000, seed=1).ranges(0) == [(0, 20_000)]
    blocks = Blocks(655_360, seed=1)
    sizes = [sum(stop - start for start, stop in blocks.ranges(block)) for block in range(blocks.count)]
    assert sizes == [65_536] * 10
    assert len(blocks.ranges(0)) > 100
    assert blocks.ranges(0) != Blocks(655_360, seed=2).ranges(0)


def test_pairs_are_sorted_by_their_longer_side_in_alternating_direction() -> None:
    source = np.array([2, 1, 3, 2, 3, 1, 2, 3], dtype=np.int32)
    target = np.array([2, 2, 1, 1, 3, 3, 2, 2], dtype=np.int32)
    order = length_order(source, target, ties=np.arange(8))
    # Longer side 2, from long source to long target; then longer side 3, from long target to long source.
    assert [(int(source[i]), int(target[i])) for i in order] == [
        *[(2, 1), (2, 2), (2, 2), (1, 2)],
        *[(1, 3), (3, 3), (3, 2), (3, 1)],
    ]
    assert order.tolist()[1:3] == [0, 6]
    assert length_order(source, target, ties=np.arange(8)[::-1]).tolist()[1:3] == [6, 0]


def test_sorting_lengths_alone_gives_the_order_of_pairs() -> None:
    random = np.random.default_rng(3)
    for longest in (1, 4, 60, 100_000):
        source, target = random.integers(1, longest + 1, (2, 500), dtype=np.int32)
        order = length_order(source, target, ties=random.permutation(500))
        found = in_length_order(source, target)
        np.testing.assert_array_equal(found, (source[order], target[order]))


def cut(source: list[int], target: list[int], batch_tokens: int, max_padded_tokens: int) -> list[int]:
    lengths = np.array(source, dtype=np.int32), np.array(target, dtype=np.int32)
    return [int(start) for start in find_batch_starts(*lengths, batch_tokens, max_padded_tokens)]


def test_batches_end_where_the_target_tokens_are_spent() -> None:
    assert cut([1] * 5, [2, 2, 2, 3, 3], 6, 100) == [0, 3, 5]
    assert cut([1] * 5, [2, 2, 2, 3, 3], 5, 100) == [0, 2, 4, 5]


def test_batches_end_before_either_side_is_padded_too_much() -> None:
    # Three sources of 4 would take 12 ids with padding, and so would two of 4 with one of 1.
    assert cut([1, 4, 4, 4], [1, 1, 1, 1], 100, 8) == [0, 2, 4]
    assert cut([4, 1, 1, 1], [1, 1, 1, 1], 100, 8) == [0, 2, 4]
    assert cut([1, 1, 1], [1, 1, 9], 11, 18) == [0, 2, 3]


def test_a_pair_beyond_the_limits_is_a_batch_of_its_own() -> None:
    assert cut([1, 50, 1], [9, 1, 9], 4, 8) == [0, 1, 2, 3]
