"""Test that emulated bfloat16 matrix multiplications equal PyTorch's up to the order of sums."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

# The scripts import one another by their names alone.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
Emulation = importlib.import_module("emulated_bf16").Emulation

torch.manual_seed(1)
ROWS, COLUMNS = torch.randn(3, 5, 64).bfloat16(), torch.randn(3, 64, 7).bfloat16()
SUMMAND = torch.randn(3, 5, 7).bfloat16()


def in_place() -> Tensor:
    return SUMMAND[0].clone().addmm_(ROWS[0], COLUMNS[0], alpha=0.5)


def into_another() -> Tensor:
    out = torch.empty_like(SUMMAND)
    torch.bmm(ROWS, COLUMNS, out=out)
    return out


def gradient() -> Tensor:
    weight = COLUMNS[0].t().clone().requires_grad_()
    torch.nn.functional.linear(ROWS[0], weight).sum().backward()
    assert weight.grad is not None
    return weight.grad


PRODUCTS = {
    "matmul": lambda: ROWS @ COLUMNS,
    "mm": lambda: ROWS[0] @ COLUMNS[0],
    "baddbmm": lambda: torch.baddbmm(SUMMAND, ROWS, COLUMNS, beta=0.5, alpha=2.0),
    "linear": lambda: torch.nn.functional.linear(ROWS, COLUMNS[0].t(), SUMMAND[0, 0]),
    "in place": in_place,
    "into another": into_another,
    "gradient": gradient,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_rounded_once(name: str) -> None:
    expected = PRODUCTS[name]()
    with Emulation():
        found = PRODUCTS[name]()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-2)


def test_float32_is_left_alone() -> None:
    x = torch.randn(4, 4)
    expected = x @ x
    with Emulation():
        assert torch.equal(x @ x, expected)
