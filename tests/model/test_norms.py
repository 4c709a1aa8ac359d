"""Test norms against their formulas and PyTorch's, BatchNorm's statistics, and the place of norms in each order."""

import msgspec
import pytest
import torch
from torch import nn

from transduce.model.config import ModelConfig
from transduce.model.layers import Residual
from transduce.model.norms import BatchNorm, build_norm
from transduce.model.transformer import Transformer

CONFIG = ModelConfig(
    source_vocabulary_size=11,
    target_vocabulary_size=11,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=6,
    d_ff=8,
    num_heads=2,
    dropout=0.0,
)


def build(norm: str, epsilon: float = 1e-3) -> nn.Module:
    made = build_norm(msgspec.structs.replace(CONFIG, norm=norm, norm_epsilon=epsilon))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made


def test_layer_norm_by_hand() -> None:
    norm, x = build("layer"), torch.randn(2, 3, 6) * 5 + 2
    assert isinstance(norm, nn.LayerNorm)
    by_hand = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(norm(x), by_hand * norm.weight + norm.bias)


def test_rms_norm_by_hand() -> None:
    norm, x = build("rms"), torch.randn(2, 3, 6) * 5 + 2
    assert isinstance(norm, nn.RMSNorm)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


def test_batch_norm_equals_pytorch_in_training_and_after() -> None:
    norm = build("batch")
    assert isinstance(norm, BatchNorm)
    theirs = nn.BatchNorm1d(6, eps=1e-3)
    theirs.load_state_dict(
        {
            "weight": norm.weight,
            "bias": norm.bias,
            "running_mean": norm.running_mean,
            "running_var": norm.running_variance,
            "num_batches_tracked": torch.tensor(0),
        }
    )
    for _ in range(3):
        x = torch.randn(4, 5, 6) * 3 + 1
        torch.testing.assert_close(norm(x), theirs(x.flatten(0, 1)).view_as(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(norm.running_mean, theirs.running_mean)
    torch.testing.assert_close(norm.running_variance, theirs.running_var)
    x = torch.randn(2, 1, 6)
    evaluated = theirs.eval()(x.flatten(0, 1)).view_as(x)
    torch.testing.assert_close(norm.eval()(x), evaluated, atol=1e-5, rtol=1e-5)


def test_batch_norm_does_not_count_padding() -> None:
    norm = build("batch")
    x = torch.randn(2, 4, 6)
    present = torch.tensor([[True, True, True, True], [True, True, False, False]])
    padded = x.masked_fill(~present[..., None], 1e4)
    alone = norm(x[present][None])
    torch.testing.assert_close(norm(padded, present)[present], alone[0])
    assert isinstance(norm, BatchNorm)
    assert norm.running_mean.abs().max() < 1


def test_batch_norm_of_a_model_ignores_padding() -> None:
    """Padding changes neither the output in training nor BatchNorm's running statistics."""
    source, target = torch.tensor([[5, 6, 7, 1], [8, 1, 0, 0]]), torch.tensor([[0, 4, 9], [0, 3, 0]])
    model = Transformer(msgspec.structs.replace(CONFIG, norm="batch"))
    other = Transformer(model.config)
    other.load_state_dict(model.state_dict())
    longer = model(nn.functional.pad(source, (0, 5)), nn.functional.pad(target, (0, 2)))
    torch.testing.assert_close(other(source, target)[0], longer[0, :3], atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_running_statistics_are_stored_with_the_weights() -> None:
    names = [
        name for name in Transformer(msgspec.structs.replace(CONFIG, norm="batch")).state_dict() if "running" in name
    ]
    assert len(names) == 2 * (2 + 3 + 2)  # encoder layer, decoder layer, last norms
    assert "encoder_layers.0.feed_forward_residual.norm_before.running_variance" in names


def test_running_statistics_keep_all_their_digits_in_bfloat16() -> None:
    norm = BatchNorm(2)
    norm.running_mean.copy_(torch.tensor([1.2345678, -0.1]))
    kept = norm.running_mean.clone()
    assert torch.equal(norm.to(torch.bfloat16).running_mean, kept)
    assert norm.weight.dtype == torch.bfloat16


def test_batch_norm_of_a_single_position_is_finite() -> None:
    norm = BatchNorm(6)
    assert norm(torch.randn(1, 1, 6)).isfinite().all()
    assert norm.running_variance.isfinite().all()


@pytest.mark.parametrize("order", ["pre", "post", "sandwich"])
def test_pre_post_and_sandwich_norm_equal_their_formulas(order: str) -> None:
    residual = Residual(msgspec.structs.replace(CONFIG, norm_order=order))
    layer, x = nn.Linear(6, 6), torch.randn(1, 2, 6)
    norms = [module for module in (residual.norm_before, residual.norm_after) if isinstance(module, nn.LayerNorm)]
    for norm in norms:
        nn.init.normal_(norm.weight)
    expected = {
        "pre": lambda: x + layer(norms[0](x)),
        "post": lambda: norms[0](x + layer(x)),
        "sandwich": lambda: x + norms[1](layer(norms[0](x))),
    }[order]()
    torch.testing.assert_close(residual(x, layer), expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"norm_order": "sandwich"}, True),
        ({"norm_order": "post", "final_norm": True}, True),
        ({"final_norm": False}, False),
    ],
    ids=str,
)
def test_final_norm_sets_whether_stacks_end_with_a_norm(changes: dict[str, object], expected: bool) -> None:
    model = Transformer(msgspec.structs.replace(CONFIG, **changes))
    for norm in (model.encoder_norm, model.decoder_norm):
        assert isinstance(norm, nn.LayerNorm) is expected
