"""Test denoising: which tokens are removed, how many, and that the text can be restored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text_noise import MASK, SENTINELS, Noised, NoiseSettings, add_noise, noise_share, noise_tokens
from transduce.errors import TransduceError

MARKS = list(range(1000, 1100))
KINDS = ["infilling", "spans", "masking", "deletion"]


def noised(length: int, seed: int = 1, **settings: object) -> Noised:
    noise = NoiseSettings(**settings)  # type: ignore[arg-type]
    marks = MARKS[: len(noise_tokens(noise))]
    return add_noise(np.arange(3, 3 + length), noise, marks, np.random.Generator(np.random.Philox(seed)))


def restored_text(found: Noised) -> list[int]:
    """Return the original text of T5's denoising: source marks are replaced by what follows them in the target."""
    spans: dict[int, list[int]] = {}
    mark = -1
    for piece in found.target.tolist():
        if piece >= 1000:
            mark = piece
            spans[mark] = []
        else:
            spans[mark].append(piece)
    return [piece for source in found.source.tolist() for piece in spans.get(source, [source])]


@given(st.integers(1, 300), st.integers(0, 1000), st.floats(0.05, 0.9), st.floats(1.0, 8.0))
def test_the_target_spans_restore_the_text_of_span_noise(length: int, seed: int, share: float, mean: float) -> None:
    found = noised(length, seed, kind="spans", share=share, mean_span=mean)
    assert restored_text(found) == list(range(3, 3 + length))
    marks = [piece for piece in found.source.tolist() if piece >= 1000]
    assert marks == MARKS[: len(marks)]
    assert found.target.tolist()[-1] == MARKS[len(marks)]


@given(st.integers(1, 200), st.integers(0, 1000), st.floats(0.05, 0.9), st.sampled_from(KINDS))
def test_a_share_of_the_tokens_is_taken_and_the_rest_keeps_its_order(
    length: int, seed: int, share: float, kind: str
) -> None:
    found = noised(length, seed, kind=kind, share=share)
    kept = [piece for piece in found.source.tolist() if piece < 1000]
    assert kept == sorted(kept)
    assert abs(length - len(kept) - share * length) <= 1.0
    if kind != "spans":
        assert found.target.tolist() == list(range(3, 3 + length))


def test_masking_keeps_the_length_and_deletion_leaves_no_trace() -> None:
    masked, deleted = noised(20, kind="masking"), noised(20, kind="deletion")
    assert len(masked.source) == 20
    assert masked.source.tolist().count(1000) == 6
    assert len(deleted.source) == 14
    assert (deleted.source < 1000).all()


def test_infilling_has_one_mask_a_span_of_three_tokens_on_average_and_some_for_nothing() -> None:
    found = [noised(200, seed, kind="infilling") for seed in range(200)]
    masks = sum(int((each.source == 1000).sum()) for each in found)
    assert masks == pytest.approx(200 * 200 * 0.3 / 3.0, rel=0.1)
    inserted = sum(
        after == before + 1
        for each in found
        for before, mask, after in zip(each.source.tolist(), each.source[1:].tolist(), each.source[2:].tolist())  # noqa: B905
        if mask == 1000
    )
    assert inserted == pytest.approx(masks * np.exp(-3.0), rel=0.35)


def test_texts_without_tokens_stay_empty() -> None:
    for kind in KINDS:
        found = noised(0, kind=kind)
        assert [piece for piece in found.source.tolist() if piece < 1000] == []


def test_each_kind_of_noise_has_its_default_share_and_special_tokens() -> None:
    assert [noise_share(NoiseSettings(kind=kind)) for kind in ("infilling", "spans")] == [0.3, 0.15]
    assert noise_tokens(NoiseSettings()) == (MASK,)
    assert noise_tokens(NoiseSettings(kind="spans")) == SENTINELS
    assert noise_tokens(NoiseSettings(kind="deletion")) == ()


def test_noise_settings_out_of_range_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"`task\.noise\.share` must be above 0 and below 1, but is 1\.5"):
        NoiseSettings(share=1.5)
    with pytest.raises(TransduceError, match=r"`task\.noise\.mean_span` must be at least 1, but is 0\.5"):
        NoiseSettings(mean_span=0.5)
