"""Test float32 sums of gradients that are accumulated during the backward pass."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model import backend
from transduce.model.backend import add_to
from transduce.training.loss import projected_cross_entropy
from transduce.training.optimizer import clear_gradients, collect_gradients, vector_norm


@pytest.mark.parametrize("shape", [(7, 5), (40,), (3, 2, 4), (0, 4), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_in_blocks_equals_adding_at_once(
    shape: Sequence[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_BLOCK_ELEMENTS", 16)
    part, before = torch.randn(shape).to(dtype), torch.randn(shape)
    total = before.clone()
    add_to(total, part)
    assert torch.equal(total, before + part.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_several_passes_are_summed_in_one_vector(dtype: torch.dtype) -> None:
    """The vector includes parameters that are used twice, and zeros for unused ones."""
    parameters = parameters_of(dtype)
    vector = torch.zeros(9)
    collect_gradients(parameters, vector)
    for factor in (256.0, 1.0):  # in bfloat16, 256 + 1 is 256
        loss(parameters, factor).backward()
    assert vector.tolist() == [257.0] * 2 + [514.0] * 4 + [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_weight_gradient_sums_loss_and_embedding(dtype: torch.dtype) -> None:
    """The output matrix is the embedding, too: the loss adds its part by itself."""
    weight = nn.Parameter(torch.randn(6, 4).to(dtype))
    vector = torch.zeros(24)
    collect_gradients([weight], vector)
    labels = torch.tensor([[1, 5]])
    for _ in range(2):
        projected_cross_entropy(weight[2:4][None], weight, labels, pad_id=0).total.backward()
    wide = weight.detach().double().requires_grad_()
    (2.0 * F.cross_entropy(wide[2:4] @ wide.t(), labels[0], reduction="sum")).backward()
    assert wide.grad is not None
    torch.testing.assert_close(vector.view(6, 4).double(), wide.grad, rtol=0.02, atol=0.05)


def test_parameter_hooks_see_the_gradient() -> None:
    weight = nn.Parameter(torch.randn(6, 4))
    vector = torch.zeros(24)
    collect_gradients([weight], vector)
    weight.register_hook(lambda gradient: gradient * 0.0)
    projected_cross_entropy(torch.ones(1, 2, 4), weight, torch.tensor([[1, 5]]), pad_id=0).total.backward()
    assert vector.tolist() == [0.0] * 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_discarding_gradients_removes_all_of_an_interrupted_pass(dtype: torch.dtype) -> None:
    parameters = parameters_of(dtype)
    vector = torch.zeros(9)
    cut = parameters[0].register_post_accumulate_grad_hook(interrupt)  # before it is moved
    collect_gradients(parameters, vector)
    with pytest.raises(InterruptedError):
        loss(parameters, 1.0).backward()
    cut.remove()
    clear_gradients(parameters, vector)
    loss(parameters, 3.0).backward()
    assert vector.tolist() == [3.0] * 2 + [6.0] * 4 + [0.0] * 3


def parameters_of(dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in ((2,), (2, 2), (3,))]


def loss(parameters: Sequence[Tensor], factor: float) -> Tensor:
    return factor * (parameters[0].sum() + parameters[1].sum() + parameters[1].t().sum())


def interrupt(_: Tensor) -> None:
    raise InterruptedError


@pytest.mark.parametrize("count", [0, 1, 1000, (1 << 14) - 1, 1 << 14, (1 << 19) + 7])
def test_a_norm_is_that_of_exact_arithmetic(count: int) -> None:
    vector = torch.randn(count)
    assert vector_norm(vector) == pytest.approx(float(vector.double().norm()), rel=1e-6)


@pytest.mark.parametrize("place", [5, (1 << 18) + 3])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_non_finite_element_gives_non_finite_norm(value: float, place: int) -> None:
    vector = torch.randn((1 << 18) + 5)
    vector[place] = value
    assert not math.isfinite(vector_norm(vector))
