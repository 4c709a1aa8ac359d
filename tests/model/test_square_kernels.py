"""Products of square matrices in machine code give what PyTorch gives, and symmetric ones to the bit."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.model.fused import Mixture, training_with
from transduce.model.native.fused_products import pair_tile
from transduce.model.native.fused_squares import multiply_mixed, multiply_symmetric, suits_squares
from transduce.model.native.training import NativeTraining
from transduce.training.muon import orthogonalize

if pair_tile() is None:
    pytest.skip("this processor does not multiply pairs of bfloat16", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("threads")

# Matrices, rows, columns: one and several panels, more matrices than threads, fewer, and some that are left over.
SIZES = pytest.mark.parametrize(("matrices", "rows", "columns"), [(1, 32, 32), (2, 64, 96), (4, 96, 32), (5, 160, 320)])


def random(*shape: int) -> Tensor:
    return torch.randn(shape).div(shape[-1] ** 0.5).bfloat16()


@SIZES
def test_symmetric_products(matrices: int, rows: int, columns: int) -> None:
    x = random(matrices, rows, columns)
    gram = multiply_symmetric(x, x)
    assert torch.equal(gram, gram.mT)
    torch.testing.assert_close(gram.double(), x.double() @ x.double().mT, rtol=2**-8, atol=1e-5)
    found = multiply_symmetric(gram, gram, Mixture(gram, -2.5, 1.5, diagonal=3.0))
    assert torch.equal(found, found.mT)
    wide = gram.double()
    wanted = 1.5 * wide @ wide - 2.5 * wide
    # The diagonal is rounded twice.
    torch.testing.assert_close(found.double(), wanted + 3.0 * torch.eye(rows), rtol=2**-8, atol=2e-2)
    off = ~torch.eye(rows, dtype=torch.bool)
    torch.testing.assert_close(found.double()[:, off], wanted[:, off], rtol=2**-8, atol=1e-5)


@SIZES
def test_mixed_products(matrices: int, rows: int, columns: int) -> None:
    factor, x = random(matrices, rows, rows), random(matrices, rows, columns)
    plain, mixed = multiply_mixed(factor, x), multiply_mixed(factor, x, Mixture(x, 2.0))
    wanted = factor.double() @ x.double()
    torch.testing.assert_close(plain.double(), wanted, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(mixed.double(), wanted + 2.0 * x.double(), rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 192), (192, 64), (96, 128)])
def test_matrices_become_orthogonal_as_with_the_library(rows: int, columns: int) -> None:
    """Square, wide (by way of the Gram matrix), tall, and between them."""
    matrices = torch.randn(5, rows, columns)
    found = []
    for dtype, kernels in ((torch.float64, None), (torch.bfloat16, None), (torch.bfloat16, NativeTraining())):
        with training_with(kernels):
            found.append(orthogonalize(matrices.to(dtype)).double())
    exact, library, ours = found
    library_error, own_error = (float((each - exact).norm() / exact.norm()) for each in (library, ours))
    assert own_error < 1.1 * library_error < 0.15
    assert torch.linalg.svdvals(ours).max() < 1.5


def test_the_number_of_threads_changes_no_bit() -> None:
    x = random(5, 96, 64)
    found = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        gram = multiply_symmetric(x, x)
        found.append((gram, multiply_mixed(gram, x, Mixture(x, 0.5, 0.25))))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def test_what_does_not_fit_is_refused_or_left_to_the_library() -> None:
    assert suits_squares(random(2, 32, 64))
    assert not suits_squares(random(2, 48, 64))
    assert not suits_squares(random(2, 32, 48))
    assert not suits_squares(random(2, 32, 64).float())
    with pytest.raises(ValueError, match=r"\(1, 32, 64\) by the transpose of \(1, 32, 32\)"):
        multiply_symmetric(random(1, 32, 64), random(1, 32, 32))
    with pytest.raises(ValueError, match=r"\(1, 64, 64\) by \(1, 32, 64\)"):
        multiply_mixed(random(1, 64, 64), random(1, 32, 64))
    with pytest.raises(ValueError, match=r"with 2.0 on the diagonal"):
        multiply_mixed(random(1, 32, 32), random(1, 32, 64), Mixture(diagonal=2.0))
    with pytest.raises(ValueError, match=r"\(1, 32, 64\) cannot be added to \(1, 32, 32\)"):
        multiply_symmetric(random(1, 32, 64), random(1, 32, 64), Mixture(random(1, 32, 64)))
