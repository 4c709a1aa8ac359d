"""Test that the compiled kernels orthogonalize matrices as PyTorch's operations do."""

import pytest
import torch

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.gemm.train_calls import bfloat16_tile
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.kernels.cpu.training.optimizer import orthogonalize_in_place, supports_orthogonalization
from transduce.model.backend import using_backend
from transduce.training.muon import _POLYNOMIALS as POLYNOMIALS
from transduce.training.muon import orthogonalize

if bfloat16_tile() is None:
    pytest.skip("this processor does not multiply pairs of bfloat16", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("threads")

SHAPES = pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 192), (192, 64), (96, 128), (32, 32), (160, 320)])
"""Square, wide (by way of the Gram matrix), tall, and between them; of one and of several panels."""


@SHAPES
def test_matrices_become_orthogonal_as_with_the_library(rows: int, columns: int) -> None:
    matrices = torch.randn(5, rows, columns)
    found = []
    for dtype, kernels in ((torch.float64, None), (torch.bfloat16, None), (torch.bfloat16, CompiledTraining())):
        with using_backend(kernels):
            found.append(orthogonalize(matrices.to(dtype), 3.0).double())
    exact, library, ours = found
    library_error, own_error = (float((each - exact).norm() / exact.norm()) for each in (library, ours))
    assert own_error < 1.1 * library_error < 0.15
    assert torch.linalg.svdvals(ours).max() < 3.0 * 1.5


@SHAPES
def test_the_number_of_threads_changes_no_bit_nor_where_matrices_stand(rows: int, columns: int) -> None:
    matrices, found = torch.randn(5, rows, columns).bfloat16(), []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        with using_backend(CompiledTraining()):
            found.append(orthogonalize(matrices))
    # Somewhere, and in another order.
    size = rows * columns
    room = torch.zeros(5 * (size + 33) + 1).bfloat16()
    spread = [room[start : start + size].view(rows, columns) for start in range(1, len(room), size + 33)]
    for one, each in zip(reversed(spread), matrices, strict=True):
        one.copy_(each)
    between = [room[0], *(room[start + size : start + size + 33] for start in range(1, len(room), size + 33))]
    assert supports_orthogonalization(spread)
    by_gram_matrix = max(rows, columns) > 2 * min(rows, columns)
    assert all(orthogonalize_in_place(spread, POLYNOMIALS, 1.0, by_gram_matrix=by_gram_matrix))
    for other in (*found[1:], torch.stack(spread[::-1])):
        assert torch.equal(found[0], other)
    assert not any(bool(each.any()) for each in between)


@pytest.mark.parametrize("length", [2.0**-80, 2.0**-20, 1.0, 2.0**40])
@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (32, 32), (32, 96)])
def test_orthogonalization_ignores_scale_and_other_matrices_of_the_batch(
    rows: int, columns: int, length: float
) -> None:
    matrices = torch.randn(3, rows, columns).bfloat16()
    with using_backend(CompiledTraining()):
        together = orthogonalize(matrices)
        one, two, none = orthogonalize(torch.stack([length * matrices[1], matrices[0], torch.zeros_like(matrices[0])]))
    assert torch.equal(two, together[0])
    assert not none.any()
    assert (one - together[1]).norm() < 0.15 * together[1].norm()


def test_matrices_of_unsupported_shapes_are_refused_or_left_to_pytorch() -> None:
    assert supports_orthogonalization(list(torch.randn(2, 32, 64).bfloat16()))
    for shape in ((48, 64), (32, 48)):
        assert not supports_orthogonalization([torch.randn(shape).bfloat16()])
    assert not supports_orthogonalization([torch.randn(32, 64)])
    assert not supports_orthogonalization([torch.randn(32, 64).bfloat16(), torch.randn(64, 32).bfloat16().mT])
    with pytest.raises(ValueError, match=r"matrices have one shape, and there are three polynomials"):
        orthogonalize_in_place(
            [torch.randn(32, n).bfloat16() for n in (32, 64)], POLYNOMIALS, 1.0, by_gram_matrix=False
        )
    with pytest.raises(ValueError, match=r"matrices have one shape, and there are three polynomials"):
        orthogonalize_in_place(list(torch.randn(1, 32, 32).bfloat16()), POLYNOMIALS[:2], 1.0, by_gram_matrix=False)
