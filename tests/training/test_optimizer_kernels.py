"""Test that the kernels that update parameters equal PyTorch's operations."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernel_interfaces import AdamScalars, UpdatedVectors
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.model.backend import using_backend
from transduce.training.optimizer import FlatUpdate
from transduce.training.settings import ResolvedTraining

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("tile", "threads")

KERNELS = CompiledTraining()
Make = Callable[..., ResolvedTraining]


def updated(settings: ResolvedTraining, kernels: CompiledTraining | None, *, bf16: bool) -> dict[str, Tensor]:
    """Return all tensors after three updates of 37 + 64 × 3 parameters."""
    torch.manual_seed(2)
    shapes = {"bias": torch.Size([37]), "matrix": torch.Size([64, 3])}
    master, gradient = torch.randn(229), torch.zeros(229)
    working = master.bfloat16() if bf16 else None
    matrices = {"matrix": (32, 32)} if settings.optimizer == "muon" else {}
    update = FlatUpdate(master, gradient, shapes, settings, matrices, working=working)
    for rate in (0.1, 0.01, 0.02):
        gradient += torch.randn(229) * 3
        with using_backend(kernels):
            update.update(float(gradient.norm()) / 7, 7, rate, 0.1)
        assert not gradient.any()
    assert update.updates == 3
    state = {f"{kind}.{name}": x for kind, named in update.state().items() for name, x in named.items()}
    return copy.deepcopy(state | ({} if working is None else {"working": working.float()}))


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("average_decay", [0.0, 0.9])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_update_kernels_equal_pytorchs_operations(
    make_settings: Make, bf16: bool, optimizer: str, average_decay: float, precision: str
) -> None:
    """Muon orthogonalizes in the model's precision, regardless of the weights' dtype."""
    settings = make_settings(optimizer=optimizer, average_decay=average_decay, clip_norm=1.0, precision=precision)
    plain, fused = (updated(settings, kernels, bf16=bf16) for kernels in (None, KERNELS))
    assert plain.keys() == fused.keys()
    for name, wanted in plain.items():
        # A value between two bfloat16 numbers may be rounded to either: a weight, or a whole update.
        tolerance = 1e-2 if name == "working" else 1e-5
        least = 1e-3 if (optimizer, precision) == ("muon", "bf16") else 1e-6
        torch.testing.assert_close(fused[name], wanted, rtol=tolerance, atol=least, msg=name)


def test_momentum_updates_of_mismatched_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float32 \(19,\) beside 20 parameters"):
        KERNELS.update_momentum(torch.zeros(20), torch.zeros(19), torch.zeros(20), 1.0, 0.9)
    with pytest.raises(ValueError, match=r"torch.bfloat16 \(20,\) beside 20 parameters"):
        KERNELS.update_momentum(torch.zeros(20), torch.zeros(20).bfloat16(), torch.zeros(20), 1.0, 0.9)
    vectors = UpdatedVectors(torch.zeros(20), torch.zeros(20), None, None)
    with pytest.raises(ValueError, match=r"torch.float16 \(20,\) beside 20 parameters"):
        KERNELS.apply_update(vectors, 0.0, torch.zeros(20).half(), 0.1, 1.0)


def test_adam_updates_of_mismatched_vectors_are_refused() -> None:
    vectors = UpdatedVectors(torch.zeros(20), torch.zeros(20), None, torch.zeros(20, dtype=torch.bfloat16))
    moments = torch.zeros(20), torch.zeros(19)
    with pytest.raises(ValueError, match=r"torch.float32 \(19,\) beside 20 parameters"):
        KERNELS.update_by_adam(vectors, moments, AdamScalars(1.0, 0.9, 0.98, 1e-3, 1.0, 1e-9), 0.9)
    assert not KERNELS.supports_update(vectors._replace(working=torch.zeros(20, dtype=torch.float16)))
