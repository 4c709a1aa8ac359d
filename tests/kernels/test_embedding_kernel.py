"""Test that the embedding kernel gives the rows and gradients of PyTorch's operations."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.kernels.training_executor import embed
from transduce.model.backend import add_gradients_to

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("tile", "threads")

KERNELS = CompiledTraining()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("width", [16, 48])
@pytest.mark.parametrize("frozen_row", [None, 2])
@pytest.mark.parametrize("is_summed", [False, True], ids=["given", "summed"])
def test_embeddings_and_their_gradients_equal_pytorchs(
    dtype: torch.dtype, width: int, frozen_row: int | None, is_summed: bool
) -> None:
    torch.manual_seed(1)
    weight = torch.randn(11, width).to(dtype).requires_grad_()
    ids = torch.tensor([[3, 2, 3, 10], [0, 3, 2, 2]])  # tokens repeat
    total = torch.full((11, width), 5.0)
    if is_summed:
        add_gradients_to(weight, total)
    found = embed(KERNELS, ids, weight, 1.5, frozen_row)
    slope = torch.randn(2, 4, width).to(dtype)
    found.backward(slope)
    wide = weight.detach().double().requires_grad_()
    wanted = F.embedding(ids, wide, padding_idx=frozen_row) * 1.5
    (known,) = torch.autograd.grad(wanted, wide, slope.double())
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
    if is_summed:
        assert weight.grad is None
        torch.testing.assert_close((total - 5.0).double(), known, rtol=1e-5, atol=1e-5)
    else:
        assert weight.grad is not None
        assert weight.grad.dtype == dtype
        torch.testing.assert_close(weight.grad.double(), known, rtol=tolerance, atol=tolerance)


def test_adding_rows_of_mismatched_shapes_or_indices_is_refused() -> None:
    total, ids = torch.zeros(4, 16), torch.tensor([1, 2])
    with pytest.raises(ValueError, match=r"rows of torch.float32 \(3, 16\) cannot be added by torch.int64 \(2,\)"):
        KERNELS.add_rows_in_place(total, ids, torch.zeros(3, 16), 1.0, None)
    with pytest.raises(IndexError, match="rows 1 to 4 of a matrix of 4"):
        KERNELS.add_rows_in_place(total, torch.tensor([1, 4]), torch.zeros(2, 16), 1.0, None)
    KERNELS.add_rows_in_place(total, ids[:0], torch.zeros(0, 16), 1.0, None)
    assert not total.any()
