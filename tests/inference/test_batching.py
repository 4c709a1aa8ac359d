"""Test how sentences are divided into batches."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from transduce.inference.batching import batches_by_length, cut_batches

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=30)


def padded_size(batch: Sequence[tuple[int, int]]) -> int:
    return len(batch) * (max(source for source, _ in batch) + max(target for _, target in batch))


@given(LENGTHS, st.integers(1, 300), st.none() | st.integers(1, 5))
def test_batches_keep_the_order_and_are_as_large_as_the_limits_allow(
    lengths: list[tuple[int, int]], max_size: int, max_items: int | None
) -> None:
    found = list(cut_batches(lengths, lambda each: each, max_size, max_items, kind=lambda each: each[0] % 2))
    assert [each for batch in found for each in batch] == lengths
    assert all(len(batch) == 1 or padded_size(batch) <= max_size for batch in found)
    assert all(len({each[0] % 2 for each in batch}) == 1 for batch in found)
    for batch, (first, *_) in pairwise(found):
        is_full = padded_size([*batch, first]) > max_size or len(batch) == max_items
        assert is_full or first[0] % 2 != batch[0][0] % 2


def test_the_size_may_be_another_function_of_the_lengths() -> None:
    pairs = [(2, 3), (3, 2), (1, 1)]
    assert list(cut_batches(pairs, lambda each: each, 18, size=prod)) == [pairs[:2], pairs[2:]]


def test_texts_are_sorted_by_length() -> None:
    assert list(batches_by_length([5, 1, 9, 1], 8)) == [[1, 3], [0], [2]]
