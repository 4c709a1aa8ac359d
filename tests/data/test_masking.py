"""Test token masking: the paper's proportions, and that special tokens are never masked."""

import numpy as np
import pytest

from transduce.data.masked_language_model import MaskingSettings, draw_uniform, mask_tokens
from transduce.errors import TransduceError

MASK, PAD = 5, 0
ORDINARY = np.arange(10, 1000)


def hide(ids: np.ndarray, may_hide: np.ndarray, settings: MaskingSettings | None = None, key: int = 1):  # type: ignore[no-untyped-def]
    uniform = draw_uniform((3, *ids.shape), key)
    return mask_tokens(
        ids, may_hide, uniform, settings or MaskingSettings(), mask_id=MASK, pad_id=PAD, ordinary=ORDINARY
    )


def test_fifteen_of_a_hundred_tokens_are_hidden_in_every_row_80_10_10() -> None:
    ids = np.full((2_000, 100), 7)
    masked = hide(ids, np.ones_like(ids, bool))
    hidden = masked.labels != PAD
    assert (hidden.sum(axis=1) == 15).all()
    assert (masked.labels[hidden] == 7).all()
    assert (masked.ids[~hidden] == 7).all()
    shares = [(masked.ids[hidden] == MASK).mean(), np.isin(masked.ids[hidden], ORDINARY).mean()]
    assert shares == pytest.approx([0.8, 0.1], abs=0.01)
    assert (masked.ids[hidden] == 7).mean() == pytest.approx(0.1, abs=0.01)


def test_every_position_is_hidden_as_often_and_other_keys_hide_others() -> None:
    ids = np.full((4_000, 20), 7)
    first, second = (hide(ids, np.ones_like(ids, bool), key=key).labels != PAD for key in (1, 2))
    assert first.mean(axis=0) == pytest.approx(np.full(20, 0.15), abs=0.025)
    assert (first != second).any()
    assert (first == (hide(ids, np.ones_like(ids, bool), key=1).labels != PAD)).all()


def test_special_tokens_stay_and_at_least_one_token_is_masked() -> None:
    ids = np.array([[2, 7, 3, 0, 0], [2, 7, 8, 9, 3], [2, 3, 0, 0, 0]])
    may_hide = ids > 3
    for key in range(50):
        masked = hide(ids, may_hide, key=key)
        assert ((masked.labels != PAD) <= may_hide).all()
        assert (masked.ids[~may_hide] == ids[~may_hide]).all()
        assert (masked.labels != PAD).sum(axis=1).tolist() == [1, 1, 0]


def test_shares_that_are_set_are_applied() -> None:
    ids = np.full((10, 50), 7)
    masked = hide(ids, np.ones_like(ids, bool), MaskingSettings(share=0.4, masked=1.0, random=0.0))
    assert (masked.ids == MASK).sum(axis=1).tolist() == [20] * 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, r"`task.masking.share` must be above 0 and below 1, but is 0.0"),
        ({"share": 1.0}, r"`task.masking.share` must be above 0 and below 1, but is 1"),
        ({"masked": 0.9, "random": 0.2}, r"1 together at most, but are 0.9 and 0.2"),
        ({"random": -0.1}, r"1 together at most"),
    ],
)
def test_shares_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        MaskingSettings(**settings)


def test_uniform_draws_depend_on_the_key_alone() -> None:
    assert (draw_uniform((2, 3), 1, 2) == draw_uniform((2, 3), 1, 2)).all()
    assert (draw_uniform((2, 3), 1, 2) != draw_uniform((2, 3), 2, 1)).all()
    many = draw_uniform((100_000,), 7)
    assert 0.0 <= many.min() < many.max() < 1.0
    assert many.mean() == pytest.approx(0.5, abs=0.01)
