"""Test the loss fused with the projection against PyTorch's cross-entropy: gradients, and computation in chunks."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transduce.training import loss as loss_module
from transduce.training.loss import Loss, projected_cross_entropy

PAD = 0


def sample(
    *, rows: int = 3, length: int = 5, width: int = 6, pieces: int = 11, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a decoder's output, an output matrix, and labels of which some are padding."""
    hidden = torch.randn(rows, length, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(pieces, width, dtype=dtype, requires_grad=True)
    labels = torch.randint(1, pieces, (rows, length))
    labels[0, -1] = labels[1, -3:] = PAD
    return hidden, weight, labels


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradients_equal_pytorchs_cross_entropy(dtype: torch.dtype, smoothing: float) -> None:
    hidden, weight, labels = sample(dtype=dtype)
    ours = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=smoothing)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
    expected = criterion((hidden @ weight.T).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(ours.total, expected, atol=1e-4, rtol=1e-5)
    hidden_gradient, weight_gradient = gradients(ours.total, hidden, weight)
    expected_hidden, expected_weight = gradients(expected, hidden, weight)
    torch.testing.assert_close(hidden_gradient, expected_hidden, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(weight_gradient[1:], expected_weight[1:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("factors", [None, (0.5, 2.0, 1.25)])
def test_a_bias_counts_in_the_loss_and_learns(factors: tuple[float, ...] | None) -> None:
    hidden, weight, labels = sample(dtype=torch.float64)
    bias = torch.randn(len(weight), dtype=torch.float64, requires_grad=True)
    each = None if factors is None else torch.tensor(factors)
    ours = projected_cross_entropy(
        hidden, weight, labels, pad_id=PAD, bias=bias, frozen_row=PAD, label_smoothing=0.3, sentence_weights=each
    )
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.3, reduction="none")
    rows = criterion((hidden @ weight.T + bias).flatten(0, 1), labels.flatten()).view_as(labels)
    expected = (rows if each is None else rows * each[:, None]).sum()
    torch.testing.assert_close(ours.total, expected)
    found, wanted = (gradients(total, hidden, weight, bias) for total in (ours.total, expected))
    torch.testing.assert_close(found[0], wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one[1:], other[1:])
        assert not one[PAD].any()


@pytest.mark.parametrize("frozen", [PAD, None])
def test_a_frozen_row_of_the_matrix_gets_no_gradient(frozen: int | None) -> None:
    hidden, weight, labels = sample()
    loss = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, frozen_row=frozen, label_smoothing=0.1)
    (gradient,) = gradients(loss.total, weight)
    assert gradient[PAD].any() == (frozen is None)
    assert gradient[1:].any(dim=1).all()


def test_the_smoothed_loss_equals_the_hand_computed_value() -> None:
    """Logits (0, ln 2, ln 5) are probabilities (1/8, 2/8, 5/8)."""
    hidden = torch.ones(1, 1, 1)
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(5)]])
    loss = projected_cross_entropy(hidden, weight, torch.tensor([[2]]), pad_id=PAD, label_smoothing=0.3)
    own, others = -math.log(5 / 8), -math.log(1 / 8) - math.log(2 / 8) - math.log(5 / 8)
    assert float(loss.negative_log_likelihood) == pytest.approx(own)
    assert float(loss.total) == pytest.approx(0.7 * own + 0.3 / 3 * others)
    assert loss.tokens == 1


def test_uniform_logits_cost_ln_v_a_token() -> None:
    labels = torch.tensor([[4, 7, 1, PAD]])
    loss = projected_cross_entropy(torch.zeros(1, 4, 2), torch.randn(9, 2), labels, pad_id=PAD, label_smoothing=0.1)
    assert float(loss.total) == pytest.approx(3 * math.log(9))
    assert loss.tokens == 3


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_pass_gradcheck(smoothing: float) -> None:
    hidden, weight, labels = sample(rows=2, length=4, width=3, pieces=7, dtype=torch.float64)
    trained = weight.detach()[1:].requires_grad_()

    def total(hidden: Tensor, trained: Tensor) -> Tensor:
        padded = torch.cat([torch.zeros(1, 3, dtype=torch.float64), trained])
        return projected_cross_entropy(hidden, padded, labels[:2, :4], pad_id=PAD, label_smoothing=smoothing).total

    assert torch.autograd.gradcheck(total, (hidden, trained))


@pytest.mark.parametrize(("elements", "rows"), [(1, 1), (11 * 4, 1), (11 * 7, 1), (1, 5)])
def test_chunked_loss_and_gradients_equal_the_whole(elements: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels = sample(dtype=torch.float64)

    def run() -> tuple[Loss, tuple[Tensor, ...]]:
        loss = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
        return loss, gradients(loss.total, hidden, weight)

    whole, whole_gradients = run()
    monkeypatch.setattr(loss_module, "_CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(loss_module, "_MIN_ROWS", rows)
    chunked, chunked_gradients = run()
    torch.testing.assert_close(chunked.total, whole.total)
    torch.testing.assert_close(chunked.negative_log_likelihood, whole.negative_log_likelihood)
    torch.testing.assert_close(chunked_gradients, whole_gradients)


def test_padding_counts_for_nothing() -> None:
    hidden, weight, labels = sample()
    loss = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
    assert loss.tokens == int((labels != PAD).sum()) == 11
    (gradient,) = gradients(loss.total, hidden)
    assert not gradient[labels == PAD].any()
    changed = hidden.detach().clone()
    changed[labels == PAD] = 99.0
    again = projected_cross_entropy(changed, weight, labels, pad_id=PAD, label_smoothing=0.1)
    assert torch.equal(again.total, loss.total)


def test_a_batch_of_padding_has_zero_loss_and_gradient() -> None:
    hidden, weight, labels = sample()
    loss = projected_cross_entropy(hidden, weight, torch.full_like(labels, PAD), pad_id=PAD)
    assert (loss.total.item(), loss.tokens) == (0.0, 0)
    assert not torch.cat([g.flatten() for g in gradients(loss.total, hidden, weight)]).any()


def test_sums_add_up_over_micro_batches() -> None:
    hidden, weight, labels = sample()
    whole = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
    parts = [
        projected_cross_entropy(hidden[row], weight, labels[row], pad_id=PAD, label_smoothing=0.1)
        for row in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(parts[0].total + parts[1].total, whole.total)
    assert sum(part.tokens for part in parts) == whole.tokens


def test_the_gradient_is_scaled_by_later_operations() -> None:
    hidden, weight, labels = sample()
    total = projected_cross_entropy(hidden, weight, labels, pad_id=PAD).total
    once = gradients(total, hidden, weight)
    total = projected_cross_entropy(hidden, weight, labels, pad_id=PAD).total
    torch.testing.assert_close(gradients(total * 3, hidden, weight), tuple(3 * g for g in once))


def test_the_unsmoothed_likelihood_carries_no_gradient() -> None:
    hidden, weight, labels = sample()
    loss = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
    assert not loss.negative_log_likelihood.requires_grad
    plain = projected_cross_entropy(hidden, weight, labels, pad_id=PAD)
    torch.testing.assert_close(loss.negative_log_likelihood, plain.negative_log_likelihood)


def test_validation_does_not_pay_for_gradients() -> None:
    """One product of N × D × V makes the logits; two more make the gradients."""
    hidden, weight, labels = sample()
    counts = {}
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with FlopCounterMode(display=False) as counter, mode():
            projected_cross_entropy(hidden, weight, labels, pad_id=PAD)
        counts[mode] = counter.get_total_flops()
    logits = 2 * 11 * 6 * 11
    assert counts == {torch.enable_grad: 3 * logits, torch.no_grad: logits, torch.inference_mode: logits}


def test_bfloat16_is_near_float32() -> None:
    hidden, weight, labels = sample(rows=20, width=16, pieces=50)
    wide = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
    narrow_hidden = hidden.detach().bfloat16().requires_grad_()
    narrow_weight = weight.detach().bfloat16().requires_grad_()
    narrow = projected_cross_entropy(narrow_hidden, narrow_weight, labels, pad_id=PAD, label_smoothing=0.1)
    assert narrow.total.dtype == torch.float32
    torch.testing.assert_close(narrow.total, wide.total, rtol=0.01, atol=0)
    torch.testing.assert_close(narrow.negative_log_likelihood, wide.negative_log_likelihood, rtol=0.01, atol=0)
    expected = gradients(wide.total, hidden, weight)
    ours = gradients(narrow.total, narrow_hidden, narrow_weight)
    for got, true in zip(ours, expected, strict=True):
        assert got.dtype == torch.bfloat16
        assert float((got.float() - true).norm() / true.norm()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_have_their_exact_loss(dtype: torch.dtype) -> None:
    hidden = torch.tensor([[[300.0], [-300.0]]], dtype=dtype, requires_grad=True)
    weight = torch.tensor([[0.0], [1.0], [-1.0]], dtype=dtype, requires_grad=True)
    loss = projected_cross_entropy(hidden, weight, torch.tensor([[1, 1]]), pad_id=PAD, label_smoothing=0.1)
    expected = nn.functional.cross_entropy(
        (hidden @ weight.T)[0].float(), torch.tensor([1, 1]), reduction="sum", label_smoothing=0.1
    )
    torch.testing.assert_close(loss.total.float(), expected)
    assert loss.negative_log_likelihood.item() == 600.0  # 0 and 600, although float32 has no number e^-600
    hidden_gradient, weight_gradient = gradients(loss.total, hidden, weight)
    assert hidden_gradient.isfinite().all()
    assert weight_gradient.isfinite().all()
    # The second label has probability e^-600: its gradient must pull as hard as for any other hopeless guess.
    assert hidden_gradient[0, 1].item() < -1.5


@pytest.mark.parametrize("learns", ["hidden", "weight"])
def test_frozen_hidden_states_or_weights_leave_the_other_gradient_unchanged(learns: str) -> None:
    hidden, weight, labels = sample()
    both = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, label_smoothing=0.1)
    expected = dict(zip(("hidden", "weight"), gradients(both.total, hidden, weight), strict=True))
    alone = {"hidden": hidden.detach(), "weight": weight.detach()}
    learner = alone[learns].requires_grad_()
    loss = projected_cross_entropy(alone["hidden"], alone["weight"], labels, pad_id=PAD, label_smoothing=0.1)
    (gradient,) = gradients(loss.total, learner)
    assert torch.equal(gradient, expected[learns])


def test_without_a_padding_id_every_label_counts_but_negative_ones() -> None:
    torch.manual_seed(1)
    hidden, weight = torch.randn(1, 4, 3), torch.randn(5, 3, requires_grad=True)
    labels = torch.tensor([[0, 2, -1, 4]])
    loss = projected_cross_entropy(hidden, weight, labels, pad_id=None)
    expected = nn.functional.cross_entropy((hidden @ weight.T)[0], labels[0], ignore_index=-1, reduction="sum")
    torch.testing.assert_close(loss.total, expected)
    assert loss.tokens == 3
    (gradient,) = torch.autograd.grad(loss.total, weight)
    (theirs,) = torch.autograd.grad(expected, weight)
    torch.testing.assert_close(gradient, theirs)


@pytest.mark.parametrize("weight", [None, 2.5])
def test_an_uncounted_loss_is_zero_and_its_gradients_are_zero(weight: float | None) -> None:
    hidden, matrix, labels = sample()
    loss = projected_cross_entropy(hidden, matrix, labels, pad_id=PAD)._replace(weight=weight).uncounted()
    assert (float(loss.total.detach()), float(loss.negative_log_likelihood), loss.tokens, loss.divisor) == (
        0.0,
        0.0,
        0,
        0,
    )
    assert all(not gradient.any() for gradient in gradients(loss.total, hidden, matrix))
