"""Batches without their padding."""

import numpy as np
import torch

from transduce.training.packed import pack

PLACE = torch.device("cpu")


def test_sentences_stand_one_after_another() -> None:
    source, target = np.array([[5, 6, 1], [7, 1, 0]]), np.array([[8, 1, 0, 0], [9, 4, 3, 1]])
    packed = pack(source, target, pad_id=0, start_id=2, device=PLACE)
    assert packed is not None
    assert packed.source.tolist() == [[5, 6, 1, 7, 1]]
    assert packed.labels.tolist() == [[8, 1, 9, 4, 3, 1]]
    assert packed.target_input.tolist() == [[2, 8, 2, 9, 4, 3]]
    assert [part.tolist() for part in packed.source_packing[:3]] == [[0, 3], [3, 2], [0, 1, 2, 0, 1]]
    assert [part.tolist() for part in packed.target_packing[:3]] == [[0, 2], [2, 4], [0, 1, 0, 1, 2, 3]]
    assert (packed.source_packing.longest, packed.target_packing.longest) == (3, 4)


def test_a_batch_of_another_kind_stays_as_it_is() -> None:
    whole = np.array([[5, 1], [6, 1]])
    for other in (np.array([[0, 5], [6, 1]]), np.array([[5, 1], [0, 0]])):
        assert pack(whole, other, pad_id=0, start_id=2, device=PLACE) is None
        assert pack(other, whole, pad_id=0, start_id=2, device=PLACE) is None
