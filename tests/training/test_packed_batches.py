"""Test batches that are packed without padding."""

import numpy as np
import pytest
import torch

from transduce.model.masks import PackedBatch
from transduce.training.prefetch import Ids, pack_arrays, unpack


def pack(source: Ids, target: Ids, rooms_for: int | None = None) -> PackedBatch | None:
    laid = pack_arrays(source, target, pad_id=0, start_id=2, capacity_for=rooms_for)
    return None if laid is None else unpack(torch.from_numpy(laid.numbers), laid.size)


def test_packing_concatenates_sentences_and_records_their_offsets() -> None:
    source, target = np.array([[5, 6, 1], [7, 1, 0]]), np.array([[8, 1, 0, 0], [9, 4, 3, 1]])
    packed = pack(source, target)
    assert packed is not None
    assert packed.source.tolist() == [[5, 6, 1, 7, 1]]
    assert packed.labels.tolist() == [[8, 1, 9, 4, 3, 1]]
    assert packed.target_input.tolist() == [[2, 8, 2, 9, 4, 3]]
    assert [part.tolist() for part in packed.source_packing[:3]] == [[0, 3], [3, 2], [0, 1, 2, 0, 1]]
    assert [part.tolist() for part in packed.target_packing[:3]] == [[0, 2], [2, 4], [0, 1, 0, 1, 2, 3]]
    assert (packed.source_packing.max_length, packed.target_packing.max_length) == (3, 4)


def test_batches_with_padding_before_tokens_are_not_packed() -> None:
    whole = np.array([[5, 1], [6, 1]])
    for other in (np.array([[0, 5], [6, 1]]), np.array([[5, 1], [0, 0]])):
        assert pack(whole, other) is None
        assert pack(other, whole) is None


def test_buffers_are_filled_with_sentences_of_padding() -> None:
    source, target = np.array([[5, 6, 1], [7, 1, 0]]), np.array([[8, 1, 0, 0], [9, 4, 3, 1]])
    packed = pack(source, target, rooms_for=1000)
    assert packed is not None
    assert packed.present is not None
    own, filled = packed.labels[0].split([6, 58])
    assert own.tolist() == [8, 1, 9, 4, 3, 1]
    assert packed.target_input[0, :6].tolist() == [2, 8, 2, 9, 4, 3]
    assert filled.tolist() == packed.target_input[0, 6:].tolist() == [0] * 58
    assert packed.present.tolist() == [True] * 6 + [False] * 58
    assert packed.source[0].tolist() == [5, 6, 1, 7, 1] + [0] * 59
    # 58 target and 59 source tokens in four sentences of at most 16, and two empty sentences.
    assert [part.tolist() for part in packed.source_packing[:2]] == [
        [0, 3, 5, 20, 35, 50, 64, 64],
        [3, 2, 15, 15, 15, 14, 0, 0],
    ]
    assert packed.target_packing.counts.tolist() == [2, 4, 15, 15, 14, 14, 0, 0]
    assert packed.source_packing.positions[5:22].tolist() == [*range(15), 0, 1]
    assert (packed.source_packing.max_length, packed.target_packing.max_length) == (16, 16)


@pytest.mark.parametrize(("longest", "most"), [(4, 1000), (30, 1000), (30, 30), (90, 100)])
def test_every_token_of_a_buffer_is_in_a_sentence_that_has_a_source(longest: int, most: int) -> None:
    random = np.random.default_rng(longest)
    for _ in range(200):
        counts = random.integers(1, longest + 1, (2, random.integers(1, 300)))
        source, target = (np.where(np.arange(longest) < each[:, None], 5, 0) for each in counts)
        packed = pack(source, target, rooms_for=most)
        assert packed is not None
        assert packed.present is not None
        assert int(packed.present.sum()) == counts[1].sum()
        sides = packed.source_packing, packed.target_packing
        for ids, side in zip((packed.source, packed.labels), sides, strict=True):
            assert int(side.counts.sum()) == ids.numel()
            assert int(side.counts.max()) <= side.max_length <= most
            assert torch.equal(side.starts, side.counts.cumsum(0).to(torch.int32) - side.counts)
        assert bool((sides[0].counts >= 1)[sides[1].counts >= 1].all())


def test_batches_of_similar_size_share_buffer_sizes() -> None:
    random, sizes = np.random.default_rng(7), set()
    for _ in range(200):
        counts = random.integers(3, 17, (2, 600))
        counts = counts[:, counts[1].cumsum() <= 4000]  # sentences with at most as many tokens as a step
        arrays = (np.where(np.arange(16) < each[:, None], 5, 0) for each in counts)
        laid = pack_arrays(*arrays, pad_id=0, start_id=2, capacity_for=1000)
        assert laid is not None
        sizes.add(laid.size)
        assert sum(counts.sum(axis=1)) <= laid.size.source + laid.size.target <= sum(counts.sum(axis=1)) * 1.04
    assert len(sizes) < 20
