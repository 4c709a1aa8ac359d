"""Test windows over a stream of tokens: every token occurs once per epoch, with its next token as the label."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transduce.errors import TransduceError
from transduce.tasks.kinds.texts import WindowPlan, consecutive_batches

STREAM: NDArray[np.unsignedinteger] = np.arange(3, 1003, dtype=np.uint16)


def plan(rank_and_count: tuple[int, int] = (0, 1), *, context: int = 10, rows: int = 7, seed: int = 1) -> WindowPlan:
    return WindowPlan(STREAM, context=context, rows=rows, seed=seed, pad_id=0, rank_and_count=rank_and_count)


def epoch_inputs(windows: WindowPlan, epoch: int) -> NDArray[np.int64]:
    return np.concatenate([windows.batch(epoch, position).source for position in range(len(windows))])


def test_an_epoch_has_consecutive_windows_once_each_and_their_next_tokens() -> None:
    windows = plan()
    for epoch in range(3):
        for position in range(len(windows)):
            batch = windows.batch(epoch, position)
            assert (batch.target == batch.source + 1).all()  # the stream counts upwards
            assert batch.target_tokens == batch.target.size == batch.source_tokens
        pieces = np.sort(epoch_inputs(windows, epoch).flatten())
        assert len(pieces) == 990
        assert (np.diff(pieces) == 1).all()


def test_epochs_differ_in_order_and_in_where_windows_begin() -> None:
    windows = plan()
    first, second = epoch_inputs(windows, 0), epoch_inputs(windows, 1)
    assert (first != second).any()
    begins = {int(epoch_inputs(windows, epoch).min()) for epoch in range(30)}
    assert len(begins) > 5
    assert begins <= set(range(3, 13))


def test_a_batch_depends_on_its_position_alone() -> None:
    windows = plan()
    later = windows.batch(4, 5)
    assert (plan().batch(4, 5).source == later.source).all()
    assert (plan(seed=2).batch(4, 5).source != later.source).any()


@pytest.mark.parametrize("count", [2, 3])
def test_processes_share_a_batch(count: int) -> None:
    whole = plan().batch(2, 3)
    shares = [plan((rank, count)).batch(2, 3) for rank in range(count)]
    assert sorted(row[0] for share in shares for row in share.source.tolist()) == sorted(whole.source[:, 0].tolist())
    assert sum(share.target_tokens for share in shares) == whole.target_tokens


def test_a_process_without_a_window_of_its_own_has_a_stand_in() -> None:
    whole, idle = plan().batch(0, 0), plan((9, 10)).batch(0, 0)
    assert (idle.source.tolist(), idle.target.tolist()) == (whole.source[:1].tolist(), whole.target[:1].tolist())
    assert (whole.is_stand_in, idle.is_stand_in, idle.target_tokens, len(idle.indices)) == (False, True, 0, 0)


def test_largest_batches_has_the_shape_of_a_full_batch() -> None:
    windows = plan()
    (largest,) = windows.largest_batches()
    assert largest.source.shape == windows.batch(0, 0).source.shape == (7, 10)


def test_a_text_that_is_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"more tokens than `task\.context` \(1,000\), but has 1,000"):
        plan(context=1000)
    assert plan(context=999).batch(3, 0).source.tolist() == [list(range(3, 1002))]


def test_validation_reads_a_text_from_its_beginning_to_its_end() -> None:
    batches = consecutive_batches(STREAM, context=64, rows=4)
    inputs = np.concatenate([batch.source.flatten() for batch in batches])
    assert (inputs == np.arange(3, 3 + 15 * 64)).all()
    assert [len(batch.source) for batch in batches] == [4, 4, 4, 3]
    assert consecutive_batches(STREAM[:5], context=64, rows=4)[0].target.tolist() == [[4, 5, 6, 7]]
    with pytest.raises(TransduceError, match="needs at least two tokens"):
        consecutive_batches(STREAM[:1], context=64, rows=4)
