"""Test the Transformer over numbers: what it may attend to, and that roll-out equals teacher forcing."""

import pytest
import torch

from transduce.errors import TransduceError
from transduce.model.build import build_any_model, build_model
from transduce.model.config import ModelConfig
from transduce.model.series import SeriesTransformer

SIZES = {
    "kind": "series",
    "source_vocabulary_size": 0,
    "target_vocabulary_size": 0,
    "num_series": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 2,
    "dropout": 0.0,
}


def make(**settings: object) -> SeriesTransformer:
    model = build_any_model(ModelConfig(**SIZES | settings))  # type: ignore[arg-type]
    assert isinstance(model, SeriesTransformer)
    return model.eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"positions": "rotary"},
        {"positions": "relative"},
        {"positions": "learned", "max_positions": 40},
        {"attention_window": 3},
        {"norm": "rms", "activation": "swiglu", "norm_order": "sandwich", "share_layers": True},
        {"predicts_deviations": True, "num_key_value_heads": 1},
    ],
    ids=str,
)
@torch.inference_mode()
def test_rolling_out_is_teacher_forcing_with_its_own_values(settings: dict[str, object]) -> None:
    model, past = make(**settings), torch.randn(3, 30, 2)
    rolled = model.roll_out(past, 7)
    forced = model(past, torch.cat([past[:, -1:], rolled.means[:, :-1]], dim=1))
    torch.testing.assert_close(rolled.means, forced.means)
    assert (rolled.log_deviations is None) == (forced.log_deviations is None) == ("predicts_deviations" not in settings)


@torch.inference_mode()
def test_a_value_depends_on_the_past_and_on_what_came_before_it_alone() -> None:
    model, past, inputs = make(), torch.randn(1, 30, 2), torch.randn(1, 6, 2)
    found = model(past, inputs).means
    later = inputs.clone()
    later[:, 3:] += 1.0
    changed = model(past, later).means
    assert torch.equal(found[:, :3], changed[:, :3])
    assert not torch.equal(found[:, 3:], changed[:, 3:])
    other_past = past.clone()
    other_past[:, 0, 1] += 1.0
    assert not torch.allclose(found, model(other_past, inputs).means)


@torch.inference_mode()
def test_sampled_roll_outs_have_the_predicted_deviations_and_follow_the_seed() -> None:
    model, past = make(predicts_deviations=True), torch.randn(1, 30, 2).expand(2_000, -1, -1)
    predicted = model.roll_out(past[:1], 1)
    assert predicted.log_deviations is not None
    draws = model.roll_out(past, 1, generator=torch.Generator().manual_seed(1)).means
    again = model.roll_out(past, 1, generator=torch.Generator().manual_seed(1)).means
    assert torch.equal(draws, again)
    torch.testing.assert_close(draws.mean(0), predicted.means[0], atol=0.1, rtol=0.0)
    torch.testing.assert_close(draws.std(0), predicted.log_deviations.exp()[0], atol=0.1, rtol=0.1)


def test_a_series_model_is_refused_where_a_text_model_is_needed() -> None:
    with pytest.raises(TransduceError, match=r"A model of text is needed, but `model\.kind` is series"):
        build_model(ModelConfig(**SIZES))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_series": 0}, r"`model\.num_series` must be at least 1"),
        (
            {"source_vocabulary_size": 9},
            r"`model\.source_vocabulary_size` = 9 means nothing where `model\.kind` is ser",
        ),
        ({"scale_embeddings": False}, r"`model\.scale_embeddings` = False means nothing"),
        ({"recurrent_cell": "gru"}, r"`model\.recurrent_cell` = gru means nothing"),
        (
            {"kind": "transformer", "source_vocabulary_size": 9, "target_vocabulary_size": 9},
            r"`model\.num_series` = 2 means nothing where `model\.kind` is transformer",
        ),
    ],
)
def test_settings_that_series_models_do_not_use_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        ModelConfig(**SIZES | settings)  # type: ignore[arg-type]
