"""Test Adam over one flat vector against PyTorch's Adam, with micro-batches and skipped steps."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.optimizer import FlatOptimizer
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


def tiny_transformer() -> Transformer:
    return Transformer(
        ModelConfig(
            source_vocabulary_size=11,
            target_vocabulary_size=11,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=8,
            d_ff=12,
            num_heads=2,
            dropout=0.0,
        )
    )


def loss_of(model: Transformer, source: Tensor, target: Tensor) -> Loss:
    inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
    return projected_cross_entropy(model.hidden(source, inputs), model.output_weight, target, pad_id=0, frozen_row=0)


def add_gradient(model: Transformer, optimizer: FlatOptimizer, source: Tensor, target: Tensor) -> int:
    loss = loss_of(model, source, target)
    loss.total.backward()
    optimizer.finish_batch()
    return loss.tokens


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


# Four pairs; the targets have 2, 5, 3 and 6 tokens, so that micro-batches have unequal numbers of tokens.
SOURCE = torch.tensor([[3, 4, 1, 0], [5, 6, 7, 1], [8, 1, 0, 0], [9, 2, 3, 1]])
TARGET = torch.tensor([[4, 1, 0, 0, 0, 0], [6, 5, 7, 2, 1, 0], [3, 3, 1, 0, 0, 0], [2, 9, 8, 7, 6, 1]])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_step_over_a_big_batch_equals_accumulated_steps(make_settings: Make, precision: str) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    start = tiny_transformer()
    results = []
    for cuts in ([slice(0, 4)], [slice(0, 1), slice(1, 4)], [slice(n, n + 1) for n in range(4)]):
        model = copy.deepcopy(start)
        optimizer = FlatOptimizer(model, make_settings(), dtype)
        tokens = sum(add_gradient(model, optimizer, SOURCE[cut], TARGET[cut]) for cut in cuts)
        assert tokens == 16
        optimizer.step(tokens, 0.01)
        # Adam's first step is the gradient's sign; its first moment shows the gradient itself.
        results.append(torch.cat([t.flatten() for t in optimizer.state()["exp_avg"].values()]))
    assert results[0].abs().max() > 1e-3
    tolerance = 1e-7 if precision == "fp32" else 1e-3
    torch.testing.assert_close(results[1], results[0], atol=tolerance, rtol=1e-4)
    torch.testing.assert_close(results[2], results[0], atol=tolerance, rtol=1e-4)


def test_the_gradient_is_that_of_the_loss_per_token_of_the_whole_step(make_settings: Make) -> None:
    """The mean of the micro-batches' means would give tokens of short batches more weight."""
    model = tiny_transformer()
    whole = loss_of(model, SOURCE, TARGET)
    (expected,) = torch.autograd.grad(whole.total / whole.tokens, [model.source_weight])
    halves = [loss_of(model, SOURCE[cut], TARGET[cut]) for cut in (slice(0, 1), slice(1, 4))]
    mean_of_means = sum((half.total / half.tokens for half in halves), torch.zeros(())) / 2
    (wrong,) = torch.autograd.grad(mean_of_means, [model.source_weight])

    optimizer = FlatOptimizer(model, make_settings(), torch.float32)
    tokens = sum(add_gradient(model, optimizer, SOURCE[cut], TARGET[cut]) for cut in (slice(0, 1), slice(1, 4)))
    optimizer.step(tokens, 0.01)
    applied = optimizer.state()["exp_avg"]["source_weight"] / 0.1  # (1 - beta1) times the gradient
    torch.testing.assert_close(applied, expected, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(applied, wrong, atol=1e-3)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip_norm", [0.0, 0.05])
def test_steps_equal_pytorchs_adamw(make_settings: Make, clip_norm: float, weight_decay: float) -> None:
    ours = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))
    theirs = copy.deepcopy(ours)
    optimizer = FlatOptimizer(ours, make_settings(clip_norm=clip_norm), torch.float32)
    matrices = [each for each in theirs.parameters() if each.dim() > 1]
    others = [each for each in theirs.parameters() if each.dim() == 1]  # biases and norms do not decay
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, 8):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.grad = torch.randn_like(other)
            assert one.grad is not None
            one.grad.copy_(other.grad * 50)  # a sum over 50 tokens
        norm = optimizer.step(50, 0.01 / step, weight_decay)
        expected_norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or 1e9)
        for group in reference.param_groups:
            group["lr"] = 0.01 / step
        reference.step()
        assert norm == pytest.approx(float(expected_norm), rel=1e-4)
    torch.testing.assert_close(weights_of(ours), weights_of(theirs), atol=1e-6, rtol=1e-5)


def test_the_padding_row_stays_zero(make_settings: Make) -> None:
    model = tiny_transformer()
    optimizer = FlatOptimizer(model, make_settings(average_decay=0.9), torch.float32)
    for _ in range(3):
        optimizer.step(add_gradient(model, optimizer, SOURCE, TARGET), 0.01, weight_decay=0.1)
    assert not model.source_weight[0].any()
    assert not optimizer.weights_to_keep()["source_weight"][0].any()


def test_clipping_scales_the_gradient_to_the_norm(make_settings: Make) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = FlatOptimizer(model, make_settings(clip_norm=1.0), torch.float32)
    model.weight.grad.copy_(torch.tensor([[30.0, 40.0]]))  # type: ignore[union-attr]
    assert optimizer.step(tokens=10, rate=0.1) == pytest.approx(5.0)
    torch.testing.assert_close(optimizer.state()["exp_avg"]["weight"], torch.tensor([[0.06, 0.08]]), rtol=1e-5, atol=0)


def test_a_gradient_below_the_norm_is_left_alone(make_settings: Make) -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = FlatOptimizer(model, make_settings(clip_norm=6.0), torch.float32)
    model.weight.grad.copy_(torch.tensor([[30.0, 40.0]]))  # type: ignore[union-attr]
    assert optimizer.step(tokens=10, rate=0.1) == pytest.approx(5.0)
    torch.testing.assert_close(optimizer.state()["exp_avg"]["weight"], torch.tensor([[0.3, 0.4]]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing_and_the_next_step_works(
    make_settings: Make, value: float, precision: str
) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    model = tiny_transformer()
    optimizer = FlatOptimizer(model, make_settings(average_decay=0.9), dtype)
    optimizer.step(add_gradient(model, optimizer, SOURCE, TARGET), 0.01)
    before = copy.deepcopy(optimizer.state())
    weights = weights_of(model)

    tokens = add_gradient(model, optimizer, SOURCE, TARGET)
    optimizer.gradient[5] = value
    norm = optimizer.step(tokens, 0.01)
    assert norm - norm != 0.0
    assert optimizer.updates == 1
    assert torch.equal(weights_of(model), weights)
    for kind, tensors in optimizer.state().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[kind][name]), (kind, name)

    norm = optimizer.step(add_gradient(model, optimizer, SOURCE, TARGET), 0.01)
    assert norm - norm == 0.0
    assert optimizer.updates == 2
    assert weights_of(model).isfinite().all()
    assert not torch.equal(weights_of(model), weights)


def test_float32_masters_accumulate_updates_too_small_for_bfloat16(make_settings: Make) -> None:
    """At 1.0 bfloat16 has steps of 1/128: updates of 0.001 would be lost one by one."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = FlatOptimizer(model, make_settings(), torch.bfloat16)
    assert model.weight.dtype == torch.bfloat16
    for _ in range(20):
        (model.weight * 1.0).sum().backward()
        optimizer.finish_batch()
        optimizer.step(tokens=1, rate=0.001)
    assert optimizer.state()["weights"]["weight"].item() == pytest.approx(0.98, abs=1e-4)
    assert model.weight.item() == 0.98046875  # the nearest number that bfloat16 has


def test_gradients_of_bfloat16_micro_batches_are_added_in_float32(make_settings: Make) -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = FlatOptimizer(model, make_settings(), torch.bfloat16)
    for part in (256.0, 1.0, 1.0):  # in bfloat16, 256 + 1 is 256
        (model.weight * part).sum().backward()
        optimizer.finish_batch()
    assert optimizer.step(tokens=1, rate=0.1) == 258.0


def test_tied_parameters_are_stored_once_in_the_vector(make_settings: Make) -> None:
    model = tiny_transformer()
    optimizer = FlatOptimizer(model, make_settings(), torch.float32)
    assert optimizer.master.numel() == sum(parameter.numel() for parameter in model.parameters())
    assert set(optimizer.state()["weights"]) == set(model.state_dict())


def test_parameters_are_views_of_the_vector(make_settings: Make) -> None:
    model = tiny_transformer()
    optimizer = FlatOptimizer(model, make_settings(), torch.float32)
    optimizer.master.zero_()
    assert not weights_of(model).any()


def test_the_average_at_the_start_is_over_what_there_is(make_settings: Make) -> None:
    """Decays (1 + step) / (10 + step) = 2/11, 3/12, … until 0.3 is less."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = FlatOptimizer(model, make_settings(average_decay=0.3), torch.float32)
    average = 0.0
    for decay in (2 / 11, 3 / 12, 0.3, 0.3):
        (model.weight * 1.0).sum().backward()
        optimizer.step(tokens=1, rate=0.1)
        average = decay * average + (1 - decay) * model.weight.item()
        assert optimizer.weights_to_keep()["weight"].item() == pytest.approx(average, rel=1e-5)


def test_no_average_is_held_or_stored_if_its_decay_is_zero(make_settings: Make) -> None:
    without, kept = (
        FlatOptimizer(tiny_transformer(), make_settings(average_decay=decay), torch.float32) for decay in (0.0, 0.9)
    )
    assert without.state().keys() == {"weights", "exp_avg", "exp_avg_sq"}
    assert kept.state().keys() == {"weights", "exp_avg", "exp_avg_sq", "average"}
    without.load_state(kept.state(), updates=3)  # as an older checkpoint holds one
    assert without.updates == 3


def test_without_an_average_the_weights_themselves_are_kept(make_settings: Make) -> None:
    model = nn.Linear(2, 1)
    optimizer = FlatOptimizer(model, make_settings(), torch.float32)
    assert torch.equal(optimizer.weights_to_keep()["weight"], model.weight)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_restored_adam_state_continues_bit_by_bit(make_settings: Make, precision: str) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    settings = make_settings(average_decay=0.9, clip_norm=0.1)
    first, second = tiny_transformer(), tiny_transformer()
    optimizer = FlatOptimizer(first, settings, dtype)
    for _ in range(3):
        optimizer.step(add_gradient(first, optimizer, SOURCE, TARGET), 0.01)
    resumed = FlatOptimizer(second, settings, dtype)
    resumed.load_state(copy.deepcopy(optimizer.state()), optimizer.updates)
    for model, one in ((first, optimizer), (second, resumed)):
        one.step(add_gradient(model, one, SOURCE, TARGET), 0.01)
    assert torch.equal(weights_of(first), weights_of(second))
    for name, kept in optimizer.weights_to_keep().items():
        assert torch.equal(kept, resumed.weights_to_keep()[name])
    for kind, tensors in optimizer.state().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, resumed.state()[kind][name]), (kind, name)
