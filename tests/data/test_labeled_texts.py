"""Test batches of labeled texts: each text once per epoch, truncated, with access to any batch."""

import numpy as np
import pytest

from transduce.data.batches import LabeledPlan, LabeledTexts
from transduce.text.vocabulary import SpecialTokens

MARKS = SpecialTokens(cls=3, sep=4, mask=5)
TEXTS = 100


def texts(length: int = 12) -> LabeledTexts:
    return LabeledTexts([[10 + n] * (1 + n % 20) for n in range(TEXTS)], [n % 7 for n in range(TEXTS)], MARKS, length)


def plan(rank_and_count: tuple[int, int] = (0, 1), seed: int = 1) -> LabeledPlan:
    return LabeledPlan(texts(), rows=8, seed=seed, pad_id=0, rank_and_count=rank_and_count)


@pytest.mark.parametrize("epoch", [0, 5])
def test_an_epoch_has_every_text_once_with_its_label(epoch: int) -> None:
    made, seen = plan(), []
    assert len(made) == 13
    for position in range(len(made)):
        batch = made.batch(epoch, position)
        for row, label, number in zip(batch.source, batch.target[:, 0], batch.indices, strict=True):
            pieces = row[row != 0].tolist()
            assert pieces == [MARKS.cls, *[10 + number] * min(10, 1 + number % 20), MARKS.sep]
            assert label == number % 7
        assert batch.target_tokens == len(batch.indices) <= 8
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(TEXTS))


def test_epochs_and_seeds_have_orders_of_their_own_and_any_batch_is_reached_at_once() -> None:
    def numbers(made: LabeledPlan, epoch: int) -> list[int]:
        found: list[int] = made.batch(epoch, 2).indices.tolist()
        return found

    made = plan()
    assert numbers(made, 0) != numbers(made, 1)
    assert numbers(made, 0) != numbers(plan(seed=2), 0)
    assert numbers(made, 3) == numbers(plan(), 3)


def test_like_lengths_stand_together() -> None:
    made = plan()
    padding = [(made.batch(0, n).source == 0).mean() for n in range(len(made))]
    assert np.mean(padding) < 0.12


def test_processes_share_a_batch() -> None:
    whole = plan().batch(1, 3)
    parts = [plan((rank, 3)).batch(1, 3) for rank in range(3)]
    for rank, part in enumerate(parts):
        assert part.indices.tolist() == whole.indices[rank::3].tolist()
    idle = plan((9, 10)).batch(1, 3)
    assert (idle.is_stand_in, idle.target_tokens, len(idle.indices)) == (True, 0, 0)
    assert (idle.source.tolist(), idle.target.tolist()) == (whole.source[:1].tolist(), whole.target[:1].tolist())
    assert not any(part.is_stand_in for part in parts)


def test_the_dev_set_is_read_once_by_length_and_the_largest_batch_is_tried() -> None:
    batches = texts().in_order(16, 0)
    assert sum(len(batch.indices) for batch in batches) == TEXTS
    widths = [batch.source.shape[1] for batch in batches]
    assert widths == sorted(widths)
    assert [batch.source.shape for batch in plan().largest_batches()] == [(8, 12)]
